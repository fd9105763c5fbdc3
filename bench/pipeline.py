"""What stages of a pipeline cost: µs of the process's CPU time a record of about 1 KB of JSON, in batches, as
in a lane. No brokers. `python -m bench.pipeline`"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from common.app.lane_term import tame_garbage_collector
from common.kafka.wire.records import encode_rows
from common.pipeline import loading
from common.pipeline.batch import Origin
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
    for name, stage in STAGES.items():
        flows = [{"topics": ["t"], "value": "json", "stages": [stage]}]
        text = json.dumps({"version": 1, "keys": {"k": "file:/none"}, "flows": flows})
        flow = Engine(loading.parse(text, Path("bench")), {"k": b"0123456789abcdef" * 4}).flow_of("t")
        assert flow is not None
        origin = Origin("link", "t", 0)
        took = []
        for _ in range(ROUNDS):
            began = time.process_time()
            flow.apply(rows, origin)
            took.append(time.process_time() - began)
        print(f"{name:32} {min(took) / RECORDS * 1e6:6.2f}")


if __name__ == "__main__":
    main()
