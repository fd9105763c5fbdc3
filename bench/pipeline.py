"""What stages of a pipeline cost: µs of the process's CPU time a record of about 1 KB of JSON, or the same
in Avro, in batches, as in a lane. No brokers. `python -m bench.pipeline`"""

from __future__ import annotations

import io
import json
import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from common.app.lane_term import tame_garbage_collector
from common.kafka.wire.records import encode_rows
from common.link.schema_map import Mapped
from common.pipeline import loading
from common.pipeline.batch import Origin
from common.pipeline.columns import replaced
from common.pipeline.engine import Engine

RECORDS = 400
"""In a batch: about what goes into a frame."""
ROUNDS = 60
STAGES: dict[str, dict[str, Any]] = {
    "filter, one field": {"filter": {"keep": {"value.type": {"in": ["order", "refund"]}}}},
    "filter, a field in an object": {"filter": {"keep": {"value.address.city": "Berlin"}}},
    "mask, redact one field": {"mask": {"fields": {"email": "redact"}}},
    "mask, hmac of one field": {"mask": {"key": "k", "fields": {"email": "hmac"}}},
    "mask, encrypt of one field": {"mask": {"key": "k", "fields": {"email": "encrypt"}}},
    "mask, three fields": {
        "mask": {"fields": {"email": "redact", "phone": {"partial": {"last": 4}}, "address.street": "redact"}}
    },
    "headers, one set": {"headers": {"set": {"origin": "{topic}"}}},
    "fields, one dropped": {"fields": {"drop": ["email"]}},
    "python, all as it was": {"python": "bench.pipeline:as_it_was"},
    "sql, where": {"sql": "SELECT * FROM records WHERE value->>'$.type' <> 'other'"},
    "sql, one field replaced": {
        "sql": """SELECT * REPLACE (json_merge_patch(value, '{"email":"***"}') AS value) FROM records"""
    },
}
AVRO: dict[str, dict[str, Any]] = {
    "avro, filter, one field": {"filter": {"keep": {"value.type": {"in": ["order", "refund"]}}}},
    "avro, filter, in an object": {"filter": {"keep": {"value.address.city": "Berlin"}}},
    "avro, mask, redact one field": {"mask": {"fields": {"email": "redact"}}},
    "avro, mask, hmac of one field": {"mask": {"key": "k", "fields": {"email": "hmac"}}},
}


def _schema(name: str, value: Any) -> Any:
    """Of a value like this one."""
    if isinstance(value, dict):
        fields = [{"name": inner, "type": _schema(name + inner, one)} for inner, one in value.items()]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(value, list):
        return {"type": "array", "items": _schema(name, value[0])}
    return {str: ["null", "string"], int: "long", float: "double"}[type(value)]


def in_avro(rows: pa.RecordBatch) -> tuple[str, pa.RecordBatch]:
    """A schema's text, and the same records in Avro."""
    import fastavro

    values = [json.loads(value) for value in rows.column(4).to_pylist()]
    schema = _schema("Customer", values[0])
    parsed = fastavro.parse_schema(schema)
    items = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        items.append(b"\0\0\0\0\1" + out.getvalue())
    return json.dumps(schema), replaced(rows, "value", pa.array(items, pa.binary()))


def as_it_was(rows: pa.RecordBatch) -> pa.RecordBatch:
    """What a function of one's own costs, whatever it does."""
    return rows


def records(count: int) -> pa.RecordBatch:
    """Customers, of about 1 KB each."""
    rnd = random.Random(1)
    values = []
    for number in range(count):
        items = [
            {
                "sku": f"S-{rnd.randrange(10**6)}",
                "qty": rnd.randrange(9),
                "price": round(rnd.random() * 100, 2),
            }
            for _ in range(8)
        ]
        value = {
            "id": number,
            "type": rnd.choice(["order", "refund", "other"]),
            "name": f"Customer {number}",
            "email": f"customer{number}@example.org",
            "phone": f"+49{rnd.randrange(10**9)}",
            "amount": rnd.randrange(10**6) / 100,
            "address": {"street": f"Street {number}", "city": "Berlin", "zip": "10115"},
            "items": items,
            "note": "lorem ipsum dolor sit amet " * 14,
        }
        values.append(json.dumps(value).encode())
    keys = [b"%d" % number for number in range(count)]
    return encode_rows(range(count), [1] * count, [1] * count, keys, values, [[("a", b"b")]] * count)


def main() -> None:
    tame_garbage_collector()
    rows = records(RECORDS)
    size = rows.column(4).nbytes / RECORDS
    print(f"{RECORDS} records a batch, {size:.0f} bytes each; µs of CPU a record, the least of {ROUNDS}")
    schema, avro = in_avro(rows)
    written = Mapped(1, "", (), schema)
    for name, stage in (STAGES | AVRO).items():
        flows = [{"topics": ["t"], "value": "avro" if name in AVRO else "json", "stages": [stage]}]
        told = {"version": 1, "keys": {"k": "file:/none"}, "flows": flows, "schemas": {}}
        told["registries"] = {"source": {"url": "http://source"}, "target": {"url": "http://target"}}
        made = loading.parse(json.dumps(told), Path("bench"))
        engine = Engine(made, {"k": b"0123456789abcdef" * 4}, texts=lambda context, schema_id: written)
        flow, given = engine.flow_of("t"), avro if name in AVRO else rows
        assert flow is not None
        origin = Origin("link", "t", 0)
        took = []
        for _ in range(ROUNDS):
            began = time.process_time()
            flow.apply(given, origin)
            took.append(time.process_time() - began)
        print(f"{name:32} {min(took) / RECORDS * 1e6:6.2f}")


if __name__ == "__main__":
    main()
