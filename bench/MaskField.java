import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.transforms.Transformation;

/** A transform as people write them: the value, which is JSON in bytes, without what is in one of its fields. */
public class MaskField<R extends ConnectRecord<R>> implements Transformation<R> {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private String field;

    @Override
    public R apply(R record) {
        if (!(record.value() instanceof byte[] bytes)) {
            return record;
        }
        try {
            JsonNode node = MAPPER.readTree(bytes);
            if (node instanceof ObjectNode object && object.has(field)) {
                object.put(field, "***");
                bytes = MAPPER.writeValueAsBytes(object);
            }
            return record.newRecord(record.topic(), record.kafkaPartition(), record.keySchema(), record.key(),
                record.valueSchema(), bytes, record.timestamp());
        } catch (IOException error) {
            // MirrorMaker 2's own records are no JSON.
            return record;
        }
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef().define("field", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "to be hidden");
    }

    @Override
    public void configure(Map<String, ?> configs) {
        field = (String) configs.get("field");
    }

    @Override
    public void close() {
    }
}
