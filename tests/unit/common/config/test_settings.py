"""Settings: what wins, what is refused and how it is named, what is hidden. Starts nothing; librdkafka is
only asked."""

from __future__ import annotations

import ctypes
import json
import pickle
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from common.config import client_properties, loading, topic_names
from common.config.fields import CLUSTERS, FIELDS, KINDS, flag_of
from common.config.legacy import OLD_VARIABLES
from common.config.reference import settings_table
from common.config.settings import Settings
from common.errors import SettingsError

SOURCE = "KAFKA_CLUSTERS_SOURCE_"
TARGET = "KAFKA_CLUSTERS_DESTINATION_"
REQUIRED = {
    SOURCE + "BOOTSTRAP_SERVERS": "source:9092",
    SOURCE + "TOPIC": "orders",
    TARGET + "BOOTSTRAP_SERVERS": "target:9092",
}
FIXED_INTERFACE = [
    "APPLICATION_NAME",
    *(SOURCE + name for name in ("BOOTSTRAP_SERVERS", "NAME", "TOPIC", "TOPIC_EXCLUDE", "CLIENT_CONFIG")),
    *(
        TARGET + name
        for name in ("BOOTSTRAP_SERVERS", "TOPIC", "TOPIC_MAP", "TOPIC_REWRITE", "CLIENT_CONFIG")
    ),
    "SEVERAL_SOURCES",
    *(
        "START_OFFSETS",
        "TOPIC_RECREATED",
        "REPLICATION_FACTOR",
        "STATE_PATH",
        "STATE_SHARING",
        "SPARK_MASTER",
        "HEALTH_PORT",
    ),
    *(
        "HEALTH_ADDRESS",
        "INSTANCE_ID",
        "STAGING_PARTITIONS",
        "PARALLELISM",
        "TOPIC_REFRESH_INTERVAL",
        "LOG_LEVEL",
        "LOG_FORMAT",
    ),
    *("CONSUMER_GROUPS", "CONSUMER_GROUPS_EXCLUDE", "OFFSETS_INTERVAL", "GROUP_NAME", "ON_ACTIVE_GROUP"),
    *("ON_SEVERAL_TARGETS", "REWIND", "MAPPINGS_RETENTION", "MAPPINGS_LIMIT"),
    *("ACL_SYNC", "ACL_READ_ONLY", "ACL_EXEMPT", "PIPELINE"),
    *(
        "CREATE_TOPICS",
        "PROVENANCE_HEADERS",
        "HEARTBEATS_INTERVAL",
        "HEARTBEATS_TOPIC",
        "STAGING_TOPIC",
        "CONTROL_TOPIC",
        "POSITIONS_TOPIC",
        "OFFSET_MAPPINGS_TOPIC",
        "DEAD_LETTERS_TOPIC",
    ),
    *("GROUP_OFFSETS_TOPIC", "SCHEMAS_TOPIC", "LINK_TOPIC_CONFIG"),
    *("TOPIC_CONFIG_SYNC", "TOPIC_CONFIG_EXCLUDE", "TOPIC_CONFIG_DEFAULTS"),
    *("OTEL_METRICS_EXPORTER", "OTEL_METRIC_EXPORT_INTERVAL", "METRICS_TOPIC"),
    *("OTEL_TRACES_EXPORTER", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"),
    *("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_HEADERS"),
    *("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"),
]
legal_name = st.text("abcXYZ019._-", min_size=1, max_size=40).filter(lambda name: name not in (".", ".."))


def load(
    config_file: Path | None = None, flags: dict[str, str | None] | None = None, /, **variables: str
) -> Settings:
    return loading.load({**REQUIRED, **variables}, config_file, flags or {})


def refusal(
    config_file: Path | None = None, flags: dict[str, str | None] | None = None, /, **variables: str
) -> str:
    with pytest.raises(SettingsError) as caught:
        load(config_file, flags, **variables)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, (
        "a traceback would show the value"
    )
    return message


# --- declaration and sources


def test_every_variable_of_the_interface_is_declared_described_and_in_the_table() -> None:
    table = settings_table()
    for variable in FIXED_INTERFACE:
        assert Settings.model_fields[FIELDS[variable]].description
        assert f"| `{variable}` | `{flag_of(variable)}` |" in table
    assert set(FIXED_INTERFACE) == set(FIELDS) - set(OLD_VARIABLES)
    for variable in OLD_VARIABLES:
        assert f"| `{variable}` |" in table


def test_every_row_of_the_table_has_the_columns_of_its_head() -> None:
    for table in settings_table().split("\n\n"):
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(widths) == 1


def test_the_module_prints_the_table() -> None:
    root = Path(__file__).parents[4]
    shown = subprocess.run(
        [sys.executable, "-m", "common.config.reference"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert shown.stdout.strip() == settings_table()


def test_importing_settings_loads_neither_spark_nor_a_kafka_client() -> None:
    code = "import sys, common.config.settings; print([m for m in ('pyspark', 'confluent_kafka') if m in sys.modules])"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert shown.stdout.strip() == "[]"


def test_defaults_are_those_of_the_interface() -> None:
    settings = load()
    assert settings.application_name == "verbatim"
    assert settings.source_name is None
    assert settings.start_offsets == "earliest"
    assert settings.topic_recreated == "continue"
    assert settings.replication_factor is None
    assert settings.state_path == "./state"
    assert settings.spark_master == "local[*]"
    assert (settings.health_port, settings.health_address) == (8080, "127.0.0.1")
    assert settings.instance_id is None
    assert settings.staging_partitions == 8
    assert settings.parallelism is None
    assert settings.topic_refresh_interval_s == 30.0
    assert settings.log_level == "INFO"
    assert settings.destination_topic("orders", "west") == "orders"
    assert settings.warnings == []


def test_the_links_own_names_follow_the_application_name() -> None:
    settings = load(APPLICATION_NAME="west-east")
    assert settings.staging_topic == "west-east.staging"
    assert settings.positions_topic == "west-east.positions"
    assert settings.control_topic == "west-east.control"
    assert settings.mappings_topic == "west-east.offset-mappings"
    assert settings.deduplicator_group == "west-east.deduplicator"


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "link.yaml"
    file.write_text("HEALTH_PORT: 1\n")
    assert load(file).health_port == 1
    assert load(file, HEALTH_PORT="2").health_port == 2
    assert load(file, {"HEALTH_PORT": "3"}, HEALTH_PORT="2").health_port == 3
    assert load(file, {"HEALTH_PORT": None}, HEALTH_PORT="2").health_port == 2
    assert load(file, HEALTH_PORT="").health_port == 1, "an empty variable is not set"


def test_a_file_alone_configures_a_link(tmp_path: Path) -> None:
    file = tmp_path / "link.yaml"
    file.write_text(
        f"{SOURCE}BOOTSTRAP_SERVERS: a:1\n{TARGET}BOOTSTRAP_SERVERS: b:2\n{SOURCE}TOPIC: 'o.*'\n"
        f"START_OFFSETS: 2024-05-01T00:00:00Z\nPARALLELISM: 3\n{SOURCE}PROPERTIES_SOCKET_KEEPALIVE_ENABLE: true\n"
    )
    settings = loading.load({}, file)
    assert settings.selects("orders")
    assert settings.start_offsets == 1714521600000
    assert settings.parallelism == 3
    assert settings.client_config("source", "admin") == {
        "bootstrap.servers": "a:1",
        "socket.keepalive.enable": "true",
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("HEALTH_PROT: 1", "HEALTH_PROT"),
        ("PATH: /bin", "PATH"),
        ("HEALTH_PORT: [1]", "HEALTH_PORT"),
        ("- a\n- b", "--config"),
        ("STATE_PATH: 's3cret", "--config"),
        ("START_OFFSETS: 2024-99-01", "START_OFFSETS"),
        ("HEALTH_PORT: many", "HEALTH_PORT"),
    ],
)
def test_a_bad_file_is_refused_naming_key_or_file(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "link.yaml"
    file.write_text(text)
    message = refusal(file)
    assert message.startswith(named)
    assert str(file) in message
    assert "s3cret" not in message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.yaml").startswith("--config: can't read")


@pytest.mark.parametrize("variable", REQUIRED)
def test_a_missing_required_variable_is_named(variable: str) -> None:
    with pytest.raises(SettingsError, match=f"^{variable}: not set"):
        loading.load({name: value for name, value in REQUIRED.items() if name != variable})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("APPLICATION_NAME", "a/b"),
        ("APPLICATION_NAME", "x" * 234),
        (SOURCE + "BOOTSTRAP_SERVERS", "host:port"),
        (SOURCE + "BOOTSTRAP_SERVERS", "host:0"),
        (TARGET + "BOOTSTRAP_SERVERS", "a:1 b:2"),
        (SOURCE + "NAME", "my source"),
        (SOURCE + "TOPIC", ","),
        (SOURCE + "TOPIC", "ok,broken("),
        (SOURCE + "TOPIC_EXCLUDE", "*"),
        (TARGET + "TOPIC", "{topik}"),
        (TARGET + "TOPIC", "{topic}}"),
        (TARGET + "TOPIC", "{topic.__class__}"),
        (TARGET + "TOPIC", "a b"),
        (TARGET + "TOPIC", "x" * 250),
        ("START_OFFSETS", "yesterday"),
        ("START_OFFSETS", "-5"),
        ("START_OFFSETS", "1969-01-01"),
        ("TOPIC_RECREATED", "stop"),
        ("REPLICATION_FACTOR", "0"),
        ("SPARK_MASTER", "cluster"),
        ("HEALTH_PORT", "65536"),
        ("HEALTH_PORT", "http"),
        ("HEALTH_ADDRESS", "http://x"),
        ("INSTANCE_ID", "a b"),
        ("STAGING_PARTITIONS", "0"),
        ("STAGING_PARTITIONS", "1.5"),
        ("PARALLELISM", "all"),
        ("TOPIC_REFRESH_INTERVAL", "30"),
        ("TOPIC_REFRESH_INTERVAL", "0s"),
        ("LOG_LEVEL", "LOUD"),
        ("KAFKA_CONFIG_CONSUMER_AUTO_RESET", "none"),
        ("KAFKA_CONFIG_PRODUCER_LINGER_MS", "soon"),
        ("STREAMS_REPLICATION_FACTOR", "x"),
        ("STREAMS_NUM_STREAM_THREADS", "0"),
        (TARGET + "TOPIC_PROXY", "a,b"),
        (SOURCE + "TOPICS", "orders"),
        ("KAFKA_CLUSTERS_THIRD_TOPIC", "orders"),
        (SOURCE + "PROPERTIES_", "x"),
        (SOURCE + "CLIENT_CONFIG", "/does/not/exist"),
        ("OTEL_METRICS_EXPORTER", "otpl"),
        ("OTEL_METRICS_EXPORTER", "none,otlp"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "30s"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
    ],
)
def test_an_ill_formed_value_or_unknown_variable_is_named_first(variable: str, value: str) -> None:
    assert refusal(**{variable: value}).startswith(variable + ":")


def test_an_ill_formed_flag_is_named_as_flag() -> None:
    assert refusal(None, {"HEALTH_PORT": "x"}).startswith("HEALTH_PORT (--health-port): ")


def test_other_kafka_variables_are_left_alone() -> None:
    assert load(KAFKA_PORT="tcp://10.0.0.1:9092", KAFKA_CLUSTER="x", KAFKA_SERVICE_HOST="10.0.0.1") == load()


# --- values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30.0), ("5m", 300.0), ("1h", 3600.0), ("1.5 s", 1.5), ("7d", 604800.0)],
)
def test_durations_become_seconds(text: str, seconds: float) -> None:
    assert load(TOPIC_REFRESH_INTERVAL=text).topic_refresh_interval_s == seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Latest", "latest"),
        ("1700000000000", 1700000000000),
        ("2023-11-14T22:13:20Z", 1700000000000),
        ("2023-11-14 22:13:20", 1700000000000),
        ("2023-11-15T00:13:20+02:00", 1700000000000),
        ("2023-11-14T22:13:20.0001Z", 1700000000001),
    ],
)
def test_start_offsets_are_a_word_or_milliseconds(text: str, expected: str | int) -> None:
    assert load(START_OFFSETS=text).start_offsets == expected


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)))  # noqa: DTZ001 - without a zone, as they may be written
def test_a_start_time_never_includes_an_earlier_millisecond(moment: datetime) -> None:
    millis = load(START_OFFSETS=moment.isoformat(sep=" ")).start_offsets
    assert isinstance(millis, int)
    chosen = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=millis)
    assert timedelta(0) <= chosen - moment.replace(tzinfo=UTC) < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("text", "level"), [("debug", "DEBUG"), ("WARN", "WARNING"), ("FATAL", "CRITICAL"), ("trace", "DEBUG")]
)
def test_log_levels_are_pythons_whatever_the_spelling(text: str, level: str) -> None:
    assert load(LOG_LEVEL=text).log_level == level


def test_bootstrap_servers_lose_their_blanks() -> None:
    assert (
        load(**{SOURCE + "BOOTSTRAP_SERVERS": " a:1 , [::1]:2,c "}).source_bootstrap_servers
        == "a:1,[::1]:2,c"
    )


# --- topics


def test_names_are_names_and_expressions_match_whole_names() -> None:
    settings = load(**{SOURCE + "TOPIC": "a.b, pay.*,  v[0-9]{1,3}"})
    assert settings.selects("a.b")
    assert not settings.selects("axb"), "a dot in a name is a dot"
    assert settings.selects("payments")
    assert not settings.selects("repay")
    assert settings.selects("v123")
    assert not settings.selects("v1234")


def test_excluded_topics_are_left_out_by_name_or_expression() -> None:
    settings = load(**{SOURCE + "TOPIC": ".*", SOURCE + "TOPIC_EXCLUDE": "orders,.*-test"})
    assert settings.selects("payments")
    assert not settings.selects("orders")
    assert not settings.selects("payments-test")


def test_internal_and_own_topics_are_never_selected_even_when_named() -> None:
    own = ["verbatim.staging", "verbatim.positions", "verbatim.control", "verbatim.offset-mappings"]
    internal = ["__consumer_offsets", "__transaction_state"]
    for text in (".*", ",".join(own + internal)):
        settings = load(**{SOURCE + "TOPIC": text})
        assert not any(settings.selects(topic) for topic in own + internal)
    assert len(settings.warnings) == 6
    assert load(APPLICATION_NAME="other", **{SOURCE + "TOPIC": own[0]}).selects(own[0])


def test_the_topic_of_metrics_is_the_links_own_where_it_is_asked_for_alone() -> None:
    """Elsewhere `orders.metrics` may well be somebody's."""
    named = {"APPLICATION_NAME": "orders", SOURCE + "TOPIC": ".*"}
    assert load(**named).selects("orders.metrics")
    assert load(**named, OTEL_METRICS_EXPORTER="otlp").selects("orders.metrics")
    own = load(**named, OTEL_METRICS_EXPORTER="prometheus,kafka")
    assert not own.selects("orders.metrics") and "orders.metrics" in own.own_topics
    assert refusal(OTEL_METRICS_EXPORTER="kafka", METRICS_TOPIC="verbatim.staging").startswith(
        "STAGING_TOPIC, "
    )


@pytest.mark.parametrize(
    ("text", "exporters"),
    [
        ("", ["prometheus"]),
        (" OTLP , prometheus,otlp", ["otlp", "prometheus"]),
        ("console,kafka", ["console", "kafka"]),
        ("None", []),
    ],
)
def test_where_metrics_go_is_a_list_as_opentelemetry_has_it(text: str, exporters: list[str]) -> None:
    assert load(OTEL_METRICS_EXPORTER=text).exporters == exporters


@pytest.mark.parametrize(
    ("variable", "value", "others"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", {}),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", {}),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a b", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}),
        ("OTEL_EXPORTER_OTLP_HEADERS", "Bearer-hunter2", {}),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=1,b c=hunter2", {}),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=hunter2%0d%0ahost:x", {}),
        ("OTEL_RESOURCE_ATTRIBUTES", "env", {}),
        ("OTEL_RESOURCE_ATTRIBUTES", "env=", {"OTEL_METRICS_EXPORTER": "kafka"}),
    ],
)
def test_what_an_exporter_could_not_go_by_is_refused_where_it_is_used(
    variable: str, value: str, others: dict[str, str]
) -> None:
    """And the same means nothing where it is another program's."""
    told = refusal(**{"OTEL_METRICS_EXPORTER": "otlp", variable: value, **others})
    assert told.startswith(variable + ":") and "hunter2" not in told
    load(**{variable: value, **others, "OTEL_METRICS_EXPORTER": "prometheus"})


@pytest.mark.parametrize(
    "given",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector:4318/otlp"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic YTpi, x-tenant=east"},
        {"OTEL_RESOURCE_ATTRIBUTES": "env=prod, team=a%20b"},
    ],
)
def test_what_an_exporter_can_go_by_is_taken(given: dict[str, str]) -> None:
    load(OTEL_METRICS_EXPORTER="otlp", **given)


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a{1,3},b", ["a{1,3}", "b"]),
        ("a{,3},b", ["a{,3}", "b"]),
        ("a{1,b},c", ["a{1", "b}", "c"]),
        ("[a,b],c", ["[a,b]", "c"]),
        ("[],]x,c", ["[],]x", "c"]),
        ("[^],]x,c", ["[^],]x", "c"]),
        (r"[\],]x,c", [r"[\],]x", "c"]),
        ("(a,b),c", ["(a,b)", "c"]),
        (r"\(a,b", [r"\(a", "b"]),
        (r"a\,b,c", [r"a\,b", "c"]),
        (" a , ,b,", ["a", "b"]),
        ("", []),
    ],
)
def test_a_comma_inside_an_expression_does_not_split_it(text: str, entries: list[str]) -> None:
    assert topic_names.split_entries(text) == entries


@given(st.lists(legal_name, min_size=1, max_size=5))
def test_a_list_of_names_selects_exactly_those(names: list[str]) -> None:
    text = ",".join(names)
    assert topic_names.split_entries(text) == names
    assert all(topic_names.matches(text, name) for name in names)
    assert not topic_names.matches(text, "q")


@given(st.text(r"ab,\[](){}^1 ", max_size=20))
def test_splitting_keeps_every_character_but_blanks_and_commas(text: str) -> None:
    def bare(some: str) -> str:
        return re.sub("[ ,]", "", some)

    assert bare("".join(topic_names.split_entries(text))) == bare(text)


def test_an_ill_formed_expression_is_named_with_its_entry() -> None:
    message = refusal(**{SOURCE + "TOPIC": "fine,[a-"})
    assert message.startswith(SOURCE + "TOPIC:")
    assert "'[a-'" in message


def test_templates_place_topic_and_source() -> None:
    settings = load(**{TARGET + "TOPIC": "{source}.{topic}-copy"})
    assert settings.destination_topic("orders", "west") == "west.orders-copy"
    assert settings.destination_topic("topic", "{topic}".strip("{}")) == "topic.topic-copy"


@pytest.mark.parametrize(
    ("template", "topic", "source"),
    [
        ("{source}.{topic}", "x" * 249, "west"),
        ("{source}.{topic}", "orders", "we st"),
        ("verbatim.{topic}", "staging", "west"),
        ("__{topic}", "orders", "west"),
    ],
)
def test_a_destination_that_can_not_be_written_to_is_refused(template: str, topic: str, source: str) -> None:
    settings = load(**{TARGET + "TOPIC": template})
    with pytest.raises(SettingsError, match=f"^{TARGET}TOPIC: "):
        settings.destination_topic(topic, source)


@given(topic=legal_name, source=legal_name, template=st.text("{}topicsource.-_", min_size=1, max_size=30))
def test_a_destination_is_a_legal_name_or_refused(topic: str, source: str, template: str) -> None:
    try:
        name = load(**{TARGET + "TOPIC": template}).destination_topic(topic, source)
    except SettingsError:
        return
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name)
    assert name not in (".", "..")


def test_several_topics_into_one_are_warned_of() -> None:
    several = {TARGET + "TOPIC": "all", SOURCE + "TOPIC": "a,b"}
    assert load(**{TARGET + "TOPIC": "all"}).warnings == []
    assert len(load(**several).warnings) == 1
    assert load(**several, **{TARGET + "TOPIC_MAP": "a=one"}).warnings == []
    assert load(**several, SEVERAL_SOURCES="merge").warnings == []


def test_topics_are_joined_by_a_map_only_where_that_is_asked_for() -> None:
    one = {TARGET + "TOPIC_MAP": "a=x,b=y,c=x"}
    assert refusal(**one) == (
        f"{TARGET}TOPIC_MAP: topics 'a' and 'c' can't both become 'x', unless SEVERAL_SOURCES=merge"
    )
    merged = load(**one, SEVERAL_SOURCES="merge")
    assert [merged.destination_topic(topic, "s") for topic in "abc"] == ["x", "y", "x"]
    assert refusal(SEVERAL_SOURCES="merge", PROVENANCE_HEADERS="true").startswith("SEVERAL_SOURCES: ")
    assert refusal(SEVERAL_SOURCES="both").startswith("SEVERAL_SOURCES: ")


def test_the_map_wins_over_the_rewrites_and_these_over_the_template() -> None:
    settings = load(
        **{
            TARGET + "TOPIC_MAP": "eu.orders = shop, plain=p",
            TARGET
            + "TOPIC_REWRITE": r"eu\.(.*)=europe.\1 , (?P<where>[a-z]{1,2})\.(?P<what>[a-z,=]+)=\g<what>.\2.{source}",
            TARGET + "TOPIC": "copy.{topic}",
        }
    )
    made = {
        topic: settings.destination_topic(topic, "west")
        for topic in ("eu.orders", "plain", "eu.payments", "us.payments", "usa.payments", "xeu.payments")
    }
    assert made == {
        "eu.orders": "shop",
        "plain": "p",
        "eu.payments": "europe.payments",
        "us.payments": "payments.payments.west",
        "usa.payments": "copy.usa.payments",
        "xeu.payments": "copy.xeu.payments",
    }


@pytest.mark.parametrize(
    "text",
    ["orders", "a=b=c", "a=", "=b", "a.*=b", "a=b c", "a=x,a=y", "a=x,b=x", "a=" + "x" * 250, "a=.."],
)
def test_a_map_that_is_none_or_joins_two_topics_is_refused(text: str) -> None:
    assert refusal(**{TARGET + "TOPIC_MAP": text}).startswith(f"{TARGET}TOPIC_MAP: ")


@pytest.mark.parametrize(
    "text", ["orders", "(=x", "a=", "=b", r"a=\1", r"(a)=\2", r"(a)=\g<b>", "a=b c", "a={topic}", r"a=\0"]
)
def test_a_rewrite_that_is_none_is_refused(text: str) -> None:
    assert refusal(**{TARGET + "TOPIC_REWRITE": text}).startswith(f"{TARGET}TOPIC_REWRITE: ")


@pytest.mark.parametrize(
    ("variable", "rule"),
    [
        ("TOPIC_REWRITE", r"o(.*)=__\1"),
        ("TOPIC_REWRITE", r"orders=verbatim.staging"),
        ("TOPIC_REWRITE", r"o(x?)rders=\1"),
        ("TOPIC_MAP", "orders=verbatim.control"),
    ],
)
def test_a_rule_that_makes_no_name_for_copies_is_refused_by_its_own_name(variable: str, rule: str) -> None:
    with pytest.raises(SettingsError, match=f"^{TARGET}{variable}: "):
        load(**{TARGET + variable: rule}).destination_topic("orders", "west")


# --- state path and master


@pytest.mark.parametrize(
    "master", ["spark://h:7077", "yarn", "k8s://https://h:6443", "spark://localhost:7077,h:7077"]
)
@pytest.mark.parametrize("path", ["./state", "/data/state", "file:/data/state", "file:///data/state"])
def test_a_local_state_path_is_refused_with_several_machines(master: str, path: str) -> None:
    assert refusal(SPARK_MASTER=master, STATE_PATH=path).startswith("STATE_PATH: ")
    assert load(SPARK_MASTER=master, STATE_PATH="s3a://bucket/state").spark_master == master
    # By somebody's word: a volume that all machines mount.
    assert load(SPARK_MASTER=master, STATE_PATH=path, STATE_SHARING="shared-volume").state_path == path


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[2]",
        "local[*,3]",
        "local-cluster[2,1,1024]",
        "spark://127.0.0.1:7077",
        "spark://localhost",
    ],
)
def test_a_local_state_path_is_fine_on_one_machine(master: str) -> None:
    assert load(SPARK_MASTER=master).state_path == "./state"


def test_a_host_that_only_begins_like_localhost_is_another_machine() -> None:
    assert refusal(SPARK_MASTER="spark://localhost.example.org:7077").startswith("STATE_PATH: ")


def test_the_master_can_not_be_set_behind_the_settings_back() -> None:
    with pytest.raises(SettingsError, match="^SPARK_MASTER: "):
        loading.load(REQUIRED, spark_conf={"spark.master": "yarn"})


# --- client properties


def test_a_property_may_be_in_a_file_of_its_own(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(" pass=word#1 \r\n")
    given = {
        SOURCE + "PROPERTIES_SASL_PASSWORD_FILE": str(secret),
        TARGET + "PRODUCER_CLIENT_ID_FILE": str(secret),
    }
    settings = loading.load(REQUIRED | given)
    assert settings.client_config("source", "consumer")["sasl.password"] == " pass=word#1 "
    assert settings.client_config("destination", "producer")["client.id"] == " pass=word#1 "
    assert "client.id" not in settings.client_config("destination", "admin")
    assert "pass=word" not in repr(settings.redacted()["client_properties"]["source.consumer"])
    # A file's path is what some properties of the library want.
    name = "SASL_OAUTHBEARER_ASSERTION_FILE"
    found = loading.load(REQUIRED | {SOURCE + "PROPERTIES_" + name: "/a/token"})
    assert found.client_config("source", "admin")["sasl.oauthbearer.assertion.file"] == "/a/token"


def test_a_property_in_a_file_that_is_not_there_or_given_twice_is_refused(tmp_path: Path) -> None:
    variable = SOURCE + "PROPERTIES_SASL_PASSWORD_FILE"
    assert refusal(**{variable: "/does/not/exist"}) == (
        f"{variable}: can't read /does/not/exist: No such file or directory"
    )
    (tmp_path / "password").write_text("s3cret")
    both = {variable: str(tmp_path / "password"), SOURCE + "PROPERTIES_SASL_PASSWORD": "s3cret"}
    assert refusal(**both) == (
        f"{variable}: sasl.password is also given by {SOURCE}PROPERTIES_SASL_PASSWORD; keep one"
    )


def properties_file(tmp_path: Path, text: str, cluster: str = SOURCE) -> dict[str, str]:
    file = tmp_path / "client.properties"
    file.write_text(text)
    return {cluster + "CLIENT_CONFIG": str(file)}


def test_the_kinds_own_variable_beats_the_clusters_beats_the_file(tmp_path: Path) -> None:
    file = properties_file(tmp_path, "client.id = file\nclient.rack: file\nsocket.timeout.ms 1000\n")
    settings = load(
        **file,
        **{SOURCE + "PROPERTIES_CLIENT_RACK": "all", SOURCE + "PROPERTIES_SOCKET_TIMEOUT_MS": "2000"},
        **{SOURCE + "CONSUMER_SOCKET_TIMEOUT_MS": "3000"},
    )
    assert settings.client_config("source", "consumer") == {
        "group.id": "verbatim.reader",
        "bootstrap.servers": "source:9092",
        "client.id": "file",
        "client.rack": "all",
        "socket.timeout.ms": 3000,
    }
    assert settings.client_config("source", "admin")["socket.timeout.ms"] == 2000
    assert settings.client_config("destination", "consumer") == {
        "bootstrap.servers": "target:9092",
        "group.id": "verbatim.reader",
    }


def test_another_spelling_of_a_property_does_not_escape_precedence(tmp_path: Path) -> None:
    file = properties_file(tmp_path, "queue.buffering.max.ms=1\nsasl.mechanisms=PLAIN\n", TARGET)
    settings = load(
        **file, **{TARGET + "PROPERTIES_LINGER_MS": "2", TARGET + "PRODUCER_SASL_MECHANISM": "SCRAM-SHA-256"}
    )
    config = settings.client_config("destination", "producer")
    assert (config["linger.ms"], config["sasl.mechanism"]) == ("2", "SCRAM-SHA-256")
    assert not {"queue.buffering.max.ms", "sasl.mechanisms"} & config.keys()


def test_two_spellings_in_one_layer_that_differ_are_refused() -> None:
    both = {TARGET + "PRODUCER_LINGER_MS": "1", TARGET + "PRODUCER_QUEUE_BUFFERING_MAX_MS": "2"}
    assert "PRODUCER_LINGER_MS" in refusal(**both)


def test_an_alias_in_the_file_gives_way_to_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "link.yaml"
    file.write_text(f"{TARGET}PRODUCER_QUEUE_BUFFERING_MAX_MS: 1\n{TARGET}PRODUCER_BATCH_SIZE: 9\n")
    config = load(file, **{TARGET + "PRODUCER_LINGER_MS": "2"}).client_config("destination", "producer")
    assert (config["linger.ms"], config["batch.size"]) == ("2", 9)


def test_properties_of_the_other_kind_are_left_out_of_a_clusters_and_refused_in_a_kinds(
    tmp_path: Path,
) -> None:
    settings = load(**{TARGET + "PROPERTIES_LINGER_MS": "5", TARGET + "PROPERTIES_FETCH_MIN_BYTES": "7"})
    assert "linger.ms" in settings.client_config("destination", "producer")
    assert "linger.ms" not in settings.client_config("destination", "consumer")
    assert "fetch.min.bytes" not in settings.client_config("destination", "admin")
    assert refusal(**{TARGET + "CONSUMER_LINGER_MS": "5"}).startswith(TARGET + "CONSUMER_LINGER_MS: ")


def test_an_underscore_of_librdkafka_itself_is_found() -> None:
    assert load(**{SOURCE + "PROPERTIES_LOG_LEVEL": "3"}).client_config("source", "admin")["log_level"] == 3


def test_changing_a_config_that_was_handed_out_changes_no_settings() -> None:
    settings = load()
    settings.client_config("source", "consumer")["client.id"] = "mine"
    assert "client.id" not in settings.client_config("source", "consumer")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("PROPERTIES_NO_SUCH_THING", "1"),
        ("PROPERTIES_SOCKET_TIMEOUT_MS", "soon"),
        ("PROPERTIES_SOCKET_TIMEOUT_MS", "1"),
        ("PROPERTIES_SOCKET_KEEPALIVE_ENABLE", "perhaps"),
        ("PROPERTIES_SECURITY_PROTOCOL", "TLS"),
        ("PROPERTIES_DEBUG", "broker,gossip"),
        ("PRODUCER_LINGER_MS", "5s"),
        ("CONSUMER_KEY_DESERIALIZER", "x"),
        ("CONSUMER_FETCH_MAX_WAIT_MS", "5"),
        ("PROPERTIES_SASL_JAAS_CONFIG", "nonsense"),
        ("PROPERTIES_BOOTSTRAP_SERVERS", "elsewhere:9092"),
        ("PROPERTIES_ERROR_CB", "x"),
    ],
)
def test_an_unknown_property_or_ill_formed_value_names_the_variable(key: str, value: str) -> None:
    assert refusal(**{SOURCE + key: value}).startswith(SOURCE + key + ": ")


@pytest.mark.parametrize(
    ("name", "value", "harmless"),
    [
        ("enable.idempotence", "false", "true"),
        ("enable.gapless.guarantee", "false", "true"),
        ("transactional.id", "mine", None),
        ("isolation.level", "read_uncommitted", "read_committed"),
        ("auto.offset.reset", "latest", "error"),
        ("enable.auto.commit", "true", "false"),
        ("auto.commit.enable", "true", "false"),
        ("enable.auto.offset.store", "true", "false"),
        ("group.id", "mine", None),
        ("group.instance.id", "mine", None),
        ("message.timeout.ms", "1000", "0"),
        ("delivery.timeout.ms", "1000", "0"),
        ("acks", "1", "all"),
        ("request.required.acks", "0", "-1"),
        ("max.in.flight.requests.per.connection", "6", "5"),
        ("max.in.flight", "1000", "1"),
        ("allow.auto.create.topics", "true", "false"),
        ("delivery.report.only.error", "true", "false"),
        ("enable.partition.eof", "true", None),
        ("topic.blacklist", "orders", None),
    ],
)
def test_properties_that_correctness_depends_on_are_refused_by_name(
    tmp_path: Path, name: str, value: str, harmless: str | None
) -> None:
    variable = TARGET + "PROPERTIES_" + name.upper().replace(".", "_")
    message = refusal(**{variable: value})
    assert message.startswith(variable + ": ")
    assert client_properties.ALIASES.get(name, name) in message
    assert refusal(**properties_file(tmp_path, f"{name}={value}", TARGET)).startswith(
        TARGET + "CLIENT_CONFIG: "
    )
    if harmless is not None:
        owned = client_properties.ALIASES.get(name, name)
        configs = load(**{variable: harmless}).client_properties
        passed_on = any(owned in config for config in configs.values())
        assert passed_on == (owned == "max.in.flight.requests.per.connection")


def test_the_transaction_timeout_may_be_tuned() -> None:
    settings = load(**{TARGET + "PRODUCER_TRANSACTION_TIMEOUT_MS": "20000"})
    assert settings.client_config("destination", "producer")["transaction.timeout.ms"] == 20000


def test_a_line_of_a_private_key_in_a_client_file_is_not_shown(tmp_path: Path) -> None:
    file = properties_file(tmp_path, "ssl.key.pem=-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq\n")
    message = refusal(**file)
    assert "line 2" in message
    assert "MIIE" not in message


def test_client_files_are_read_as_java_reads_them(tmp_path: Path) -> None:
    text = "# c\n! c\n\n  client.id : a\\u0062\\=c\\\n     d\nclient.rack=x=y \\t\nsasl.password=p\\\\w#1\nclient.rack=last\n"
    parsed = client_properties.parse_properties(text, "V")
    assert {each.name: each.value for each in parsed} == {
        "client.id": "ab=cd",
        "client.rack": "last",
        "sasl.password": "p\\w#1",
    }


# JAAS and stores of Java clients


@pytest.mark.parametrize("module", ["plain.Plain", "scram.Scram"])
def test_a_jaas_config_becomes_user_name_and_password(tmp_path: Path, module: str) -> None:
    jaas = rf'org.apache.kafka.common.security.{module}LoginModule required \
  username="al\"ice" password=\'s;cr=t\' ;'
    file = properties_file(tmp_path, "sasl.username=nobody\n")
    # In a file the backslashes would be the file's own; a variable hands them to JAAS.
    settings = load(
        **file, **{SOURCE + "PROPERTIES_SASL_JAAS_CONFIG": jaas.replace("\\\n", "\n").replace("\\'", "'")}
    )
    config = settings.client_config("source", "consumer")
    assert (config["sasl.username"], config["sasl.password"]) == ('al"ice', "s;cr=t")
    assert "sasl.jaas.config" not in config


@given(user=st.text(min_size=1).filter(lambda t: t.strip() == t), password=st.text())
def test_a_quoted_jaas_password_survives(user: str, password: str) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    jaas = f"x.PlainLoginModule required username={quoted(user)} password={quoted(password)};"
    config = load(**{SOURCE + "PROPERTIES_SASL_JAAS_CONFIG": jaas}).client_config("source", "admin")
    assert (config["sasl.username"], config["sasl.password"]) == (user, password)


@pytest.mark.parametrize(
    "jaas",
    [
        'com.sun.security.auth.module.Krb5LoginModule required keyTab="hunter2";',
        'x.PlainLoginModule required username="u";',
        'x.PlainLoginModule required username="u" password="hunter2',
        'x.PlainLoginModule required username="u" password="hunter2"; y.PlainLoginModule required;',
    ],
)
def test_another_jaas_config_is_refused_without_being_shown(jaas: str) -> None:
    message = refusal(**{SOURCE + "PROPERTIES_SASL_JAAS_CONFIG": jaas})
    assert message.startswith(SOURCE + "PROPERTIES_SASL_JAAS_CONFIG: ")
    assert "hunter2" not in message


def test_pem_stores_of_java_become_librdkafkas_files(tmp_path: Path) -> None:
    file = properties_file(
        tmp_path,
        "ssl.truststore.type=PEM\nssl.truststore.location=/ca.pem\nssl.keystore.type=pem\n"
        "ssl.keystore.location=/me.pem\nssl.key.password=pw\nssl.endpoint.identification.algorithm=\n",
    )
    config = load(**file).client_config("source", "consumer")
    assert config == {
        "group.id": "verbatim.reader",
        "bootstrap.servers": "source:9092",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/me.pem",
        "ssl.key.location": "/me.pem",
        "ssl.key.password": "pw",
        "ssl.endpoint.identification.algorithm": "none",
    }


def test_inline_pem_of_java_becomes_librdkafkas() -> None:
    prefix = SOURCE + "PROPERTIES_SSL_"
    config = load(
        **{
            prefix + "TRUSTSTORE_CERTIFICATES": "CA",
            prefix + "KEYSTORE_KEY": "KEY",
            prefix + "KEYSTORE_CERTIFICATE_CHAIN": "CHAIN",
        }
    ).client_config("source", "admin")
    assert (config["ssl.ca.pem"], config["ssl.key.pem"], config["ssl.certificate.pem"]) == (
        "CA",
        "KEY",
        "CHAIN",
    )


def test_a_pkcs12_key_store_is_librdkafkas_own() -> None:
    prefix = SOURCE + "PROPERTIES_SSL_KEYSTORE_"
    config = load(
        **{prefix + "TYPE": "PKCS12", prefix + "LOCATION": "/me.p12", prefix + "PASSWORD": "pw"}
    ).client_config("source", "consumer")
    assert (config["ssl.keystore.location"], config["ssl.keystore.password"]) == ("/me.p12", "pw")
    assert "ssl.keystore.type" not in config


@pytest.mark.parametrize(
    ("text", "what_to_do"),
    [
        ("ssl.truststore.location=/t.jks\nssl.truststore.password=hunter2", "ssl.ca.location"),
        ("ssl.truststore.location=/t\nssl.truststore.type=PKCS12", "ssl.ca.location"),
        ("ssl.keystore.location=/k.jks\nssl.keystore.password=hunter2", "PKCS12"),
        ("ssl.keystore.location=/k\nssl.keystore.type=JKS", "PKCS12"),
        (
            "ssl.keystore.location=/k\nssl.keystore.type=PEM\nssl.keystore.password=hunter2",
            "ssl.key.password",
        ),
        ("ssl.truststore.location=/t\nssl.truststore.type=PEM\nssl.ca.location=/c", "keep one"),
        ("ssl.keystore.provider=x", "not a property"),
    ],
)
def test_a_java_store_that_can_not_be_read_is_refused_with_what_to_do(
    tmp_path: Path, text: str, what_to_do: str
) -> None:
    message = refusal(**properties_file(tmp_path, text))
    assert message.startswith(SOURCE + "CLIENT_CONFIG: ")
    assert what_to_do in message
    assert "hunter2" not in message


# librdkafka's own opinion


def librdkafka_table(tmp_path: Path) -> list[list[str]]:
    found = sorted(Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*"))
    if not found:
        pytest.skip("this build of confluent_kafka does not carry its librdkafka as a file of its own")
    library, libc, path = ctypes.CDLL(str(found[0])), ctypes.CDLL(None), tmp_path / "table"
    libc.fopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fopen(str(path).encode(), b"w"))
    library.rd_kafka_conf_properties_show(stream)
    libc.fclose(stream)
    rows = [
        re.split(r"\s*\|\s*", line, maxsplit=5) for line in path.read_text().splitlines() if "*Type:" in line
    ]
    return [row for row in rows if "see dedicated API" not in row[5]]


def test_the_list_of_properties_is_the_installed_librdkafkas(tmp_path: Path) -> None:
    rows = librdkafka_table(tmp_path)
    theirs = {
        row[0].strip(): row[1].strip() for row in reversed(rows) if row[0].strip() != "builtin.features"
    }
    assert {prop.name: prop.scope for prop in client_properties.KNOWN.values()} == theirs
    aliases = {
        row[0].strip(): m[1]
        for row in rows
        if (m := re.match(r"(?:\*\*DEPRECATED\*\* )?Alias for `(.+?)`", row[5]))
    }
    for alias, name in aliases.items():
        ours = client_properties.ALIASES
        assert ours.get(alias, alias) == ours.get(name, name)
    limits = {row[0].strip(): row[2].strip() for row in reversed(rows)}
    for prop in client_properties.KNOWN.values():
        if prop.type in ("int", "float"):
            assert prop.limits == limits[prop.name].replace(" .. ", ".."), prop.name
        elif prop.type in ("enum", "flags"):
            assert prop.limits.split("|") == re.split(r",\s*", limits[prop.name]), prop.name


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize(("kind", "client"), list(zip(KINDS, (Consumer, Producer, AdminClient), strict=True)))
def test_librdkafka_takes_what_it_is_given(cluster: Any, kind: Any, client: Any) -> None:
    keys = {
        "PROPERTIES_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "PROPERTIES_SASL_MECHANISM": "SCRAM-SHA-512",
        "PROPERTIES_SASL_JAAS_CONFIG": 'x.ScramLoginModule required username="u" password="p";',
        "PROPERTIES_SSL_ENDPOINT_IDENTIFICATION_ALGORITHM": "",
        "PROPERTIES_LINGER_MS": "0.5",
        "PROPERTIES_FETCH_MIN_BYTES": "7",
        "PROPERTIES_SOCKET_KEEPALIVE_ENABLE": "T",
        "PROPERTIES_MAX_IN_FLIGHT": "4",
        "PRODUCER_COMPRESSION_CODEC": "ZSTD",
    }
    settings = load(**{f"KAFKA_CLUSTERS_{cluster.upper()}_{key}": value for key, value in keys.items()})
    config = settings.client_config(cluster, kind) | {"bootstrap.servers": "127.0.0.1:1"}
    complaints: list[str] = []

    class Log:
        def log(self, _level: int, line: str, *args: object) -> None:
            complaints.append(line % args if args else line)

    made = client({**config, **({"group.id": "g"} if kind == "consumer" else {})}, logger=Log())
    if kind == "consumer":
        made.close()
    else:
        made.poll(0)
    assert not [line for line in complaints if "CONFWARN" in line]


# --- the older system


def test_variables_of_the_older_system_keep_working() -> None:
    settings = load(
        KAFKA_CONFIG_CONSUMER_FETCH_MIN_BYTES="100",
        KAFKA_CONFIG_CONSUMER_AUTO_RESET="latest",
        KAFKA_CONFIG_PRODUCER_LINGER_MS="20",
        KAFKA_CONFIG_PRODUCER_COMPRESSION_TYPE="zstd",
        KAFKA_CONFIG_PRODUCER_ACKS="all",
        STREAMS_REPLICATION_FACTOR="3",
        STREAMS_NUM_STREAM_THREADS="4",
        **{TARGET + "TOPIC_PROXY": "old.proxy", TARGET + "TOPIC": "copy"},
    )
    assert settings.staging_topic == "old.proxy"
    assert not settings.selects("old.proxy")
    assert settings.destination_topic("orders", "x") == "copy"
    assert settings.start_offsets == "latest"
    assert (settings.replication_factor, settings.parallelism) == (3, 4)
    assert settings.client_config("source", "consumer")["fetch.min.bytes"] == 100
    assert settings.client_config("destination", "consumer")["fetch.min.bytes"] == 100
    producer = settings.client_config("destination", "producer")
    assert (producer["linger.ms"], producer["compression.type"]) == ("20", "zstd")
    (warning,) = settings.warnings
    assert warning.startswith(
        "KAFKA_CONFIG_PRODUCER_LINGER_MS: linger.ms has no effect on records, which are written"
    )


@pytest.mark.parametrize(
    ("value", "told"),
    [("true", False), ("True", False), ("false", True), ("FALSE", True), ("0", True), ("one", True)],
)
def test_who_asks_for_the_way_that_is_gone_is_told_and_who_asks_for_the_one_that_is_left_is_not(
    value: str, told: bool
) -> None:
    words = "WHOLE_BATCHES: gone: records always go as record batches"
    assert any(w.startswith(words) for w in load(WHOLE_BATCHES=value).warnings) == told


def test_a_new_variable_beats_the_older_systems_even_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "link.yaml"
    file.write_text("REPLICATION_FACTOR: 2\n")
    client_file = properties_file(tmp_path, "queue.buffering.max.ms=1\n", TARGET)
    settings = load(file, **client_file, STREAMS_REPLICATION_FACTOR="3", KAFKA_CONFIG_PRODUCER_LINGER_MS="9")
    assert settings.replication_factor == 2
    assert settings.client_config("destination", "producer")["linger.ms"] == "1"
    assert [warning.split(":")[0] for warning in settings.warnings] == [
        "STREAMS_REPLICATION_FACTOR",
        "KAFKA_CLUSTERS_DESTINATION_CLIENT_CONFIG",
    ]


def test_kafka_streams_default_replication_is_the_clusters() -> None:
    assert load(STREAMS_REPLICATION_FACTOR="-1").replication_factor is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("STREAMS_NUM_STANDBY_REPLICAS", "1"),
        ("STREAMS_BUFFER_CONFIG_MAX_BYTES", "1000"),
        ("KAFKA_CONFIG_PRODUCER_DELIVERY_TIMEOUT_MS", "120000"),
        ("KAFKA_CONFIG_PRODUCER_ACKS", "1"),
    ],
)
def test_what_has_no_meaning_here_is_accepted_with_a_warning(variable: str, value: str) -> None:
    settings = load(**{variable: value})
    assert len(settings.warnings) == 1
    assert settings.warnings[0].startswith(variable + ": ignored")
    assert settings.client_properties == load().client_properties


# --- secrets and transport


def secretive() -> Settings:
    return loading.load(
        {
            **REQUIRED,
            SOURCE + "PROPERTIES_SASL_PASSWORD": "hunter2",
            SOURCE + "PROPERTIES_SSL_KEY_PEM": "hunter2",
            SOURCE + "CONSUMER_SASL_OAUTHBEARER_CLIENT_SECRET": "hunter2",
            TARGET
            + "PROPERTIES_SASL_JAAS_CONFIG": 'x.PlainLoginModule required username="u" password="hunter2";',
            TARGET + "PROPERTIES_SSL_KEYSTORE_PASSWORD": "hunter2",
            "STATE_PATH": "s3a://key:hunter2@bucket/state",
        },
        spark_conf={
            "spark.hadoop.fs.s3a.secret.key": "hunter2",
            "spark.hadoop.fs.azure.account.key.x": "hunter2",
            "spark.driver.extraJavaOptions": "-Djavax.net.ssl.keyStorePassword=hunter2",
            "spark.ui.enabled": "false",
        },
    )


def test_secrets_are_in_no_printed_form() -> None:
    settings = secretive()
    for shown in (
        repr(settings),
        str(settings),
        f"{settings}",
        json.dumps(settings.redacted()),
        "%r" % [settings],
    ):
        assert "hunter2" not in shown
        assert "orders" in shown, "what is no secret is shown"
    assert settings.redacted()["spark_conf"]["spark.ui.enabled"] == "false"
    assert settings.client_config("source", "consumer")["sasl.password"] == "hunter2"


@pytest.mark.parametrize(
    "name", [name for name in client_properties.KNOWN if re.search("pass|secret|key.pem", name)]
)
def test_every_secret_of_librdkafka_is_known_as_one(name: str) -> None:
    assert client_properties.redacted({name: "hunter2"}) == {name: "[hidden]"}


def test_settings_survive_pickle_without_loss() -> None:
    settings = secretive()
    assert pickle.loads(pickle.dumps(settings)) == settings


@given(
    start=st.sampled_from(["earliest", "latest"]) | st.integers(0, 10**15 - 1).map(str),
    interval=st.integers(1, 10**6).map(lambda n: f"{n}ms"),
    name=legal_name,
    partitions=st.integers(1, 10_000).map(str),
    source_name=st.none() | legal_name,
)
def test_any_settings_survive_pickle(
    start: str, interval: str, name: str, partitions: str, source_name: str | None
) -> None:
    settings = load(
        START_OFFSETS=start,
        TOPIC_REFRESH_INTERVAL=interval,
        APPLICATION_NAME=name,
        STAGING_PARTITIONS=partitions,
        **({SOURCE + "NAME": source_name} if source_name else {}),
    )
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings.source_name == source_name


def test_settings_can_not_be_changed() -> None:
    with pytest.raises(Exception, match="frozen"):
        load().health_port = 1


# --- consumer groups


def test_groups_are_selected_as_topics_are() -> None:
    assert load().selects_group("any group: at all/")
    chosen = load(CONSUMER_GROUPS="billing,team-.*", CONSUMER_GROUPS_EXCLUDE="team-x")
    assert [chosen.selects_group(g) for g in ("billing", "billing2", "team-a", "team-x")] == [
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("variable", "text", "hint"),
    [
        ("CONSUMER_GROUPS", "(", "no regular expression"),
        ("OFFSETS_INTERVAL", "5", "expected a duration"),
        ("GROUP_NAME", "fixed", "must hold {group} once"),
        ("GROUP_NAME", "{group}-{topic}", "neither {group} nor {source}"),
        ("ON_ACTIVE_GROUP", "wait", "'skip' or 'fail'"),
        ("ON_SEVERAL_TARGETS", "both", "'fail' or 'skip'"),
        ("REWIND", "maybe", "expected true or false"),
        ("MAPPINGS_RETENTION", "0d", "expected a duration"),
        ("MAPPINGS_LIMIT", "many", "valid integer"),
    ],
)
def test_what_is_wrong_about_groups_is_refused_by_name(variable: str, text: str, hint: str) -> None:
    message = refusal(**{variable: text})
    assert message.startswith(f"{variable}: ") and hint in message


@given(
    st.text(min_size=1, max_size=10),
    st.sampled_from(["{group}", "{source}.{group}", "a {group} z", "{group}@{source}"]),
)
def test_the_name_of_a_group_at_the_target_leads_back_to_it(group: str, template: str) -> None:
    name = topic_names.expand_group_template(template, group=group, source="east")
    assert topic_names.source_group(template, name=name, source="east") == group


def test_a_name_that_the_template_does_not_make_is_nobodys() -> None:
    assert topic_names.source_group("a.{group}.a", name="a.a", source="east") is None
    assert topic_names.source_group("a.{group}", name="b.x", source="east") is None
    assert topic_names.source_group("a.{group}", name="a.", source="east") == ""
