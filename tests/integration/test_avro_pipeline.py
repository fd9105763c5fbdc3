"""Avro on embedded brokers: `schemas` writes texts down, a pipeline reads records by them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro

from common.link.halt_reasons import HaltReason
from schemas.model import Schema
from tests.conftest import Kafka, Names
from tests.integration.test_pipelines import verified
from tests.integration.test_schema_ids import framed, id_of, world_of
from tests.support.brokers import Record, produce
from tests.support.harness import eventually
from tests.support.registry import stand_in
from tests.support.schemas import avro, client, clients_closed

__all__ = ["clients_closed"]
CUSTOMER: dict[str, Any] = {
    "type": "record",
    "name": "Customer",
    "fields": [
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["ORDER", "OTHER"]}},
        {"name": "email", "type": ["null", "string"]},
        {"name": "note", "type": "string"},
    ],
}
SCHEMAS = [
    CUSTOMER,
    CUSTOMER | {"fields": [{"name": "n", "type": "long", "default": 0}, *CUSTOMER["fields"]]},
]
PARSED = [fastavro.parse_schema(schema) for schema in SCHEMAS]


def made(which: int, n: int) -> dict[str, Any]:
    record = {"kind": "ORDER" if n % 2 else "OTHER", "email": f"{n}@x" if n % 3 else None, "note": "n" * n}
    return record | ({"n": n} if which else {})


def written(which: int, n: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PARSED[which], made(which, n))
    return out.getvalue()


def test_avro_is_filtered_and_masked_by_the_schemas_that_are_written_down(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    """Promise: what a filter on Avro keeps arrives, masked, with the target's id, and is read by its own
    schema; a record of a schema that is new waits until `schemas` has written its text down, and goes on by
    itself; `verify` finds nothing."""
    with stand_in() as mine, stand_in() as theirs:
        urls = mine.url, theirs.url
        world = world_of(source, target, names, tmp_path / "pipeline.yaml", urls, "customers")
        (topic,), link = world.topics, world.link
        said = json.loads(world.file.read_text())
        stages = [
            {"filter": {"keep": {"kind": "ORDER"}}},
            {"mask": {"fields": {"email": "redact"}}},
            {"schema-ids": {}},
        ]
        said["flows"] = [
            {"topics": [".*"], "value": "avro", "wire": {"value": "confluent"}, "stages": stages}
        ]
        world.file.write_text(json.dumps(said))
        client(theirs.url).register("taken", avro("Taken", "x"))
        registered = client(mine.url)

        def more(which: int) -> None:
            schema_id = registered.register(f"{topic}-value", Schema(json.dumps(SCHEMAS[which]))).id
            produce(link.source, topic, [Record(framed(schema_id, written(which, n))) for n in range(40)])

        with world.schemas(), link.running():
            more(0)
            eventually(lambda: link.arrived(topic) == [20], "the first records", 120)
            more(1)
            eventually(lambda: link.arrived(topic) == [40], "those of a new schema", 60)
            eventually(lambda: not link.halted(), "no halt")
        kept = [(which, n) for which in (0, 1) for n in range(40) if n % 2]
        there = world.there(topic)
        assert len(there) == len(kept)
        ids = set()
        for (which, n), seen in zip(kept, there, strict=True):
            wanted = made(which, n)
            wanted["email"] = None if wanted["email"] is None else "***"
            assert seen.value is not None
            found = fastavro.schemaless_reader(io.BytesIO(seen.value[5:]), PARSED[which], None)
            assert found == wanted
            ids.add(id_of(seen.value))
        assert ids == {2, 3}, "the target's"
        code, reports = verified(link)
        assert code == 0, reports
        assert sum(report["filtered"] for report in reports) == 40
        assert sum(report["transformed"] for report in reports) == 40


def test_avro_is_changed_as_json_is_and_gets_a_schema_that_is_not_there_yet(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    """Promise: Avro becomes JSON, loses a field, and becomes Avro of another schema, by its id at the source:
    until `schemas` has brought that one its partition waits, and goes on by itself; whoever reads by the
    target's registry reads it; `verify` finds nothing."""
    with stand_in() as mine, stand_in() as theirs:
        world = world_of(
            source, target, names, tmp_path / "pipeline.yaml", (mine.url, theirs.url), "customers"
        )
        (topic,), link = world.topics, world.link
        registered = client(mine.url)
        old = registered.register(f"{topic}-value", Schema(json.dumps(CUSTOMER))).id
        client(theirs.url).register("taken", avro("Taken", "x"))
        world.once()
        short = CUSTOMER | {"fields": CUSTOMER["fields"][:2]}
        new = registered.register(f"{topic}-value", Schema(json.dumps(short))).id
        said = json.loads(world.file.read_text())
        stages = [
            {"convert": {"to": "json"}},
            {"fields": {"drop": ["note"]}},
            {"convert": {"to": "avro", "id": new}},
            {"schema-ids": {}},
        ]
        said["flows"] = [
            {"topics": [".*"], "value": "avro", "wire": {"value": "confluent"}, "stages": stages}
        ]
        world.file.write_text(json.dumps(said))
        produce(link.source, topic, [*(Record(framed(old, written(0, n))) for n in range(40)), Record(None)])
        with link.running():
            eventually(lambda: link.halted() == {(topic, 0): HaltReason.SCHEMA_UNKNOWN}, "the halt", 120)
            assert link.arrived(topic) == [0]
            with world.schemas():
                eventually(lambda: link.arrived(topic) == [41], "all", 60)
            eventually(lambda: not link.halted(), "no halt")
        *there, tombstone = world.there(topic)
        assert tombstone.value is None
        target_id = client(theirs.url).version(f"{topic}-value", 2).id
        for n, seen in enumerate(there):
            assert seen.value is not None and id_of(seen.value) == target_id != new
            found = fastavro.schemaless_reader(io.BytesIO(seen.value[5:]), fastavro.parse_schema(short), None)
            assert found == {name: made(0, n)[name] for name in ("kind", "email")}
        code, reports = verified(link)
        assert code == 0, reports
        assert sum(report["transformed"] for report in reports) == 40
