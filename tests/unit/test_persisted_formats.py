"""What the link's topics hold stays readable, byte for byte as it was first written: tests/unit/golden has
records as releases wrote them.

Promise: version N reads what version N-1 wrote, and a format that is not new is written as it always was. A
golden file is never changed; a new format gets a new one. `python -m tests.unit.test_persisted_formats`
writes the files that are missing; the state table Spark has written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import orjson
import pyarrow as pa
import pytest

from common.kafka.model import Acl
from common.kafka.wire import record_batch
from common.kafka.wire.record_encoder import encode_records
from common.kafka.wire.records import NO_ROWS, encode_rows
from common.link import control_kinds as kinds
from common.link import control_state, frame, lane_counters, offset_mappings, positions, schema_map
from common.link.batch_frame import decode as decode_batches
from common.link.frame_errors import merged
from common.link.frame_routes import with_routes
from common.link.halt_reasons import HaltReason
from common.link.lane_work import Work
from deduplicator.state import local_reader
from deduplicator.state.delta_rows import STATE_DDL
from deduplicator.state.snapshot import PartitionState, Snapshot
from offsets import group_offsets
from offsets.commit_rule import Written

GOLDEN = Path(__file__).parent / "golden"
ID = "AAAAAAAAAAAAAAAAAAAAAQ"
ACL = Acl("LITERAL", "orders", "User:a", "*", "READ", "ALLOW")
CONTROL: list[kinds.ControlRecord] = [
    kinds.Identity("east", "west", 4, {"link.staging": ID}),
    kinds.Leader("replicator", "host/1"),
    kinds.SourceTopic("orders", ID, 6, {"retention.ms": "-1"}, frozenset({"retention.ms", "cleanup.policy"})),
    kinds.Origin("orders", ID, 3, 17, True),
    kinds.Started("earliest"),
    kinds.TopicAcls("orders", (ACL,)),
    kinds.Granted("copy.orders", (ACL,)),
    kinds.TopicDeleted("orders", ID),
    kinds.Destination(
        "orders", ID, "copy.orders", 6, 1048588, None, {"retention.ms": "-1"}, False, ID, False
    ),
    kinds.Destination("orders", ID, "copy.orders", 1, 9, "it is full", {}, True, None, True),
    kinds.AcceptDestination(("copy.orders",)),
    kinds.GivenUp("link.0", 9, 2),
    kinds.EndEpoch("replicator", 1, 7),
    kinds.Ask("orders", ID, 3),
    kinds.Halted("replicator", "orders", ID, 3, HaltReason.SOURCE_LOST, "why", None, None),
    kinds.Halted("deduplicator", "orders", ID, 3, HaltReason.MISSING, "why", 40, 50, (2, 99), 44),
    kinds.Resend("orders", ID, 3, None, None, (2, 99), 44),
    kinds.Resend("orders", ID, 3, 40, 13),
    kinds.Resend("orders", ID, 3, 40, 13, (2, 99), 44),
    kinds.Resumed(application="deduplicator", topic="orders", topic_id=ID, partition=3),
    kinds.AcceptLoss("orders", ID, 3, 40, 50, reason="accepted"),
    kinds.Pause(("orders",), True),
    kinds.Limit(("orders",), 1000, None),
    kinds.GroupMove("billing", "moving"),
    kinds.GroupMove("billing", "held", 24),
]
"""Each kind of record, and each form that is written of it. golden/control has others, which early releases
wrote, or might have."""
PIPELINE = '{"flows":[],"keys":{},"version":1}'
PIPELINES: list[kinds.ControlRecord] = [
    kinds.Pipeline(1, PIPELINE, hashlib.sha256(PIPELINE.encode()).hexdigest())
]
PROMOTIONS: list[kinds.ControlRecord] = [
    kinds.Promotion("orders", ID, "copy.orders", "promoting", (40, 0)),
    kinds.LetGo("orders", ID, 1, 0, 26),
    kinds.Promotion("orders", ID, "copy.orders", "promoted", (40, 0), (31, 0), 26),
    kinds.Promotion("orders", ID, "copy.orders", "copied", answers=26),
]
DEAD_LETTERS: list[kinds.ControlRecord] = [
    kinds.DeadLetters("link.dead-letters", ID, 67108864),
    kinds.DeadLetters("link.dead-letters", None, 1, "it may not be made"),
]
ROUTES: list[kinds.ControlRecord] = [
    kinds.Route("orders", ID, "orders.de", 6, 1048588, None, {"retention.ms": "-1"}, True, ID, False),
    kinds.Route("orders", ID, "orders.de", 6, 1048588, "it is full", {}, False, None, True),
]
HANDED_OVER: list[kinds.ControlRecord] = [
    kinds.HandedOver("orders", ID, "copy.orders", ID, "cutover", (40, 0), (15, 0, 3), 1700000000000),
    kinds.HandedOver("orders", ID, "copy.orders", ID, "failover", (40,), (15,), 1700000000000, True),
]
MAPPINGS = [
    offset_mappings.Mapping("east", "orders", ID, 3, 17, 40, "copy.orders", 3, 99, 20, 1, 0, [[17, 5, 10], [30, 15, 10]]),
    offset_mappings.Mapping("east", "orders", ID, 3, 40, 60, "copy.orders", 3, 120, 0, 0, 20, []),
]  # fmt: skip
PIPELINE_MAPPINGS = [dataclasses.replace(MAPPINGS[0], pipeline=2)]
DEAD_LETTER_MAPPINGS = [
    dataclasses.replace(
        of, pipeline=2, dead_letters=offset_mappings.Letters("link.dead-letters", 1, [[27, 3, 2]])
    )
    for of in MAPPINGS
]
ROUTED_MAPPINGS = [
    dataclasses.replace(
        of, pipeline=2, routed=(offset_mappings.Routed("orders.de", [[27, 3, 2]]), offset_mappings.Routed("b", []))
    )
    for of in (*MAPPINGS, DEAD_LETTER_MAPPINGS[0])
]  # fmt: skip
SPREAD_MAPPINGS = [
    dataclasses.replace(
        of, pipeline=2, routed=(offset_mappings.Routed("orders.de", [[27, 3, 2]], 0), offset_mappings.Routed("orders.de", [[29, 0, 1]], 5))
    )
    for of in (*MAPPINGS, DEAD_LETTER_MAPPINGS[0])
]  # fmt: skip
POSITIONS = [positions.Position(40, 7, 13), positions.Position(41, None, -1)]
TOLERATED_POSITIONS = [positions.Position(43, 7, 13, 3, (40, 42))]
GROUPS = [
    (
        group_offsets.GroupKey("billing", "orders", 3),
        group_offsets.GroupOffset(
            ID, 30, "west.billing", "copy.orders", 3, 15, True, None, "written", "", 1700000000000, "meta", Written(30, 15, None)
        ),
    ),
    (
        group_offsets.GroupKey("ünï", "orders", 0),
        group_offsets.GroupOffset(
            ID, 7, "ünï", "copy.orders", 0, None, False, "not-copied", "skipped", "why", 1700000000001, "", None
        ),
    ),
]  # fmt: skip
ROUTED_GROUPS = [
    (group_offsets.GroupKey("billing", "orders", 3, "orders.de"), dataclasses.replace(GROUPS[0][1], destination_topic="orders.de"))
]  # fmt: skip
_ROWS = encode_rows(
    [17, 19, 20],
    [-1, 0, 1700000000000],
    [0, 1, 2],
    [b"k", None, b""],
    [b"v", b"", None],
    [[("h", b"1"), ("h", None)], [], None],
)
FRAMES = [
    frame.Frame("east", "orders", ID, 3, 17, 21, 3, "host/1.0.0.ab"),
    frame.Frame("east", "orders", ID, 3, 17, 17, 0, "host/1.0.0.ab", origin=True),
    frame.Frame("east", "orders", ID, 3, 21, 30, 0, "host/1.0.0.ab", gap=True, reason="accepted"),
]


PIPELINE_FRAMES = [dataclasses.replace(of, pipeline=12) for of in FRAMES]
FAILURES = {17: ("stage 1 (mask)", "the value is no JSON"), 20: ("stage 2 (key)", "value.ü is not there")}
FAILED_ROWS = {
    payload: [merged(_ROWS, kept, why, payload) for kept, why in (
        (_ROWS.slice(1, 1), FAILURES), (_ROWS.slice(0, 0), FAILURES | {19: FAILURES[17]})
    )]
    for payload in (False, True)
}  # fmt: skip
"""By whether they come with payload: rows and what the header says of them, with one that goes on, and
without any."""
FAILED_FRAMES = [
    (dataclasses.replace(FRAMES[0], count=3 - failed.count, pipeline=12, failed=failed), rows)
    for some in FAILED_ROWS.values()
    for rows, failed in some
]


ROUTED_ROWS = [
    with_routes(_ROWS, _ROWS.column(0), ("orders.de", "b"), np.array([1, -1, 0], np.int16)),
    with_routes(FAILED_ROWS[True][0][0], _ROWS.column(0)[1:2], ("b",), np.array([0], np.int16)),
]
ROUTED_FRAMES = [
    (dataclasses.replace(FRAMES[0], pipeline=12, routes=ROUTED_ROWS[0][1]), ROUTED_ROWS[0][0]),
    (dataclasses.replace(FAILED_FRAMES[2][0], routes=ROUTED_ROWS[1][1]), ROUTED_ROWS[1][0]),
]
"""Records for three topics, and one beside two on which a stage failed."""
SPREAD_ROWS = with_routes(_ROWS, _ROWS.column(0), ("b/0", "b/1", "b/2"), np.array([2, -1, 0], np.int16))
SPREAD_FRAMES = [(dataclasses.replace(FRAMES[0], pipeline=12, routes=SPREAD_ROWS[1]), SPREAD_ROWS[0])]
"""Records for two partitions of a topic."""


def _plain(value: Any) -> Any:
    return orjson.loads(
        orjson.dumps(
            _keys(dataclasses.asdict(value)), default=lambda some: sorted(some, key=repr), option=orjson.OPT_SORT_KEYS
        )
    )  # fmt: skip


def _keys(value: Any) -> Any:
    """Dictionaries with texts for keys."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else repr(key): _keys(of) for key, of in value.items()}
    return [_keys(of) for of in value] if isinstance(value, list) else value


def _frame_line(of: frame.Frame, value: bytes) -> dict[str, Any]:
    headers = [[name, (what or b"").hex()] for name, what in frame.encode_headers(of, value)]
    return {"headers": headers, "value": value.hex()}


def _batch() -> bytes:
    (records,) = encode_records(_ROWS.slice(0, 1), 1 << 20)
    return b"".join(bytes(piece) for piece in record_batch.seal(records, "none"))


STATE_TABLE = Snapshot(
    exists=True,
    folded={0: 2, 1: 9},
    staging={0: 100, 1: 400},
    states={
        ("source-cluster", "topic-id", 0): PartitionState(10, "orders", "copy", 0, 0, 10, 1, 0, False),
        ("source-cluster", "topic-id", 1): PartitionState(40, "orders", "copy", 1, 1, 13, 1, 7, False),
    },
    holes={1: 5},
)
"""What golden/state-table says: two folds, the second of partition 1 alone, whose mappings below 5 had been
lost before the first."""
SCHEMA = (
    schema_map.SchemaId(".eu", 7),
    schema_map.Mapped(12, "ab" * 32, (schema_map.Reference("a.proto", ":.eu:a", -1),)),
)
SCHEMA_WITH_TEXT = schema_map.SchemaId(".", 8), schema_map.Mapped(13, "cd" * 32, avro='{"type":"string"}')
RESTORES = [
    ("orders-value", schema_map.Restore("FULL", "READWRITE")),
    ("other", schema_map.Restore("NONE")),
    ("gone", None),
]
COUNTERS = Work(Counter(records=12, frames=3, lag=7))


def _counters() -> list[dict[str, Any]]:
    producer = Mock()
    lane_counters.Counters("replicator", 4, 9, 2, "link.positions").write(producer, 0.0, COUNTERS)
    _, value, key = producer.produce.call_args.args
    return [{"key": key.decode(), "value": value.decode()}]


def _position_lines(of: list[positions.Position]) -> list[dict[str, str]]:
    pairs = [positions.encode("orders", (ID, 3), position) for position in of]
    return [{"key": key.decode(), "value": value.decode()} for key, value in pairs]


def _mapping_lines(mappings: list[offset_mappings.Mapping]) -> list[dict[str, Any]]:
    encoded = [offset_mappings.encode(mapping) for mapping in mappings]
    return [{"key": key.decode(), "value": value.decode()} for key, value in encoded]


WRITTEN: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "control-kinds": lambda: [{"record": kinds.encode(record, "link").decode()} for record in CONTROL],
    "control-pipelines": lambda: [{"record": kinds.encode(record, "link").decode()} for record in PIPELINES],
    "control-promotions": lambda: [
        {"record": kinds.encode(record, "link").decode()} for record in PROMOTIONS
    ],
    "control-dead-letters": lambda: [
        {"record": kinds.encode(record, "link").decode()} for record in DEAD_LETTERS
    ],
    "control-routes": lambda: [{"record": kinds.encode(record, "link").decode()} for record in ROUTES],
    "control-handed-over": lambda: [
        {"record": kinds.encode(record, "link").decode()} for record in HANDED_OVER
    ],
    "mappings": lambda: _mapping_lines(MAPPINGS),
    "mappings-pipeline": lambda: _mapping_lines(PIPELINE_MAPPINGS),
    "mappings-dead-letters": lambda: _mapping_lines(DEAD_LETTER_MAPPINGS),
    "mappings-routed": lambda: _mapping_lines(ROUTED_MAPPINGS),
    "mappings-spread": lambda: _mapping_lines(SPREAD_MAPPINGS),
    "positions": lambda: _position_lines(POSITIONS),
    "positions-tolerated": lambda: _position_lines(TOLERATED_POSITIONS),
    "group-offsets": lambda: [
        {"key": group_offsets.encode_key(key).decode(), "value": group_offsets.encode_value(value).decode()}
        for key, value in GROUPS
    ],
    "group-offsets-routed": lambda: [
        {"key": group_offsets.encode_key(key).decode(), "value": group_offsets.encode_value(value).decode()}
        for key, value in ROUTED_GROUPS
    ],
    "schemas": lambda: [
        {"key": key.decode(), "value": value and value.decode()}
        for key, value in [schema_map.encode_id(*SCHEMA), *(schema_map.encode_restore(*of) for of in RESTORES)]
    ],
    "schemas-text": lambda: [
        {"key": key.decode(), "value": value.decode()}
        for key, value in [schema_map.encode_id(*SCHEMA_WITH_TEXT)]
    ],
    "frames-1": lambda: [
        _frame_line(of, frame.pack(_ROWS).to_pybytes() if of.count else b"") for of in FRAMES
    ],
    "frames-pipeline": lambda: [
        _frame_line(of, frame.pack(_ROWS).to_pybytes() if of.count else b"") for of in PIPELINE_FRAMES
    ],
    "frames-2": lambda: [
        _frame_line(frame.Frame("east", "orders", ID, 3, 0, 1, 1, "host/1.0.0.ab", batches=True), _batch())
    ],
    "frames-3": lambda: [_frame_line(of, frame.pack(rows).to_pybytes()) for of, rows in FAILED_FRAMES],
    "frames-routed": lambda: [_frame_line(of, frame.pack(rows).to_pybytes()) for of, rows in ROUTED_FRAMES],
    "frames-spread": lambda: [_frame_line(of, frame.pack(rows).to_pybytes()) for of, rows in SPREAD_FRAMES],
    "counters": _counters,
}  # fmt: skip


def _golden(name: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_what_always_was(name: str) -> None:
    assert WRITTEN[name]() == _golden(name)


def test_the_golden_control_topic_adds_up_to_what_it_always_did() -> None:
    state = control_state.Control(link="link")
    for offset, line in enumerate(_golden("control")):
        assert state.apply(offset, line["record"].encode()) is None
    (wanted,) = _golden("control-state")
    # Since then an identity is without the link's name, and with the topics that this one does not tell.
    wanted["identity"] = wanted["identity"] | {"topics": {}}
    del wanted["identity"]["link"]
    # And who leads is told by name.
    wanted["led_by"] = {"replicator": "host/1", "deduplicator": "host/2"}
    # And which groups were moved.
    wanted["group_moves"] = {}
    wanted["followed"] = []
    # And where its topics were handed over.
    wanted["handed_over"] = {}
    # And which pipelines there were.
    wanted["pipelines"] = {}
    # And which topics were promoted.
    wanted["steering"]["promotions"] = {}
    # And where dead letters go.
    wanted["dead_letters"] = None
    # And where stages take records.
    wanted["routes"] = {}
    assert _plain(state) == wanted


def test_each_kind_of_golden_control_record_is_read_as_what_was_written() -> None:
    names = (
        "control-kinds", "control-pipelines", "control-promotions", "control-dead-letters", "control-handed-over",
        "control-routes",
    )  # fmt: skip
    lines = [line for name in names for line in _golden(name)]
    wanted = CONTROL + PIPELINES + PROMOTIONS + DEAD_LETTERS + HANDED_OVER + ROUTES
    assert [kinds.decode(orjson.loads(line["record"])) for line in lines] == wanted
    assert {record.kind for record in wanted} == kinds.KINDS.keys()


def test_golden_mappings_positions_and_group_offsets_are_read() -> None:
    lines = [*_golden("mappings"), *_golden("mappings-pipeline"), *_golden("mappings-dead-letters")]
    lines += [*_golden("mappings-routed"), *_golden("mappings-spread")]
    written = MAPPINGS + PIPELINE_MAPPINGS + DEAD_LETTER_MAPPINGS + ROUTED_MAPPINGS + SPREAD_MAPPINGS
    assert [offset_mappings.decode(line["value"].encode()) for line in lines] == written
    lines = [*_golden("positions"), *_golden("positions-tolerated")]
    found = [positions.decode(line["key"].encode(), line["value"].encode()) for line in lines]
    assert found == [((ID, 3), position) for position in POSITIONS + TOLERATED_POSITIONS]
    groups = [
        group_offsets.decode(line["key"].encode(), line["value"].encode())
        for line in [*_golden("group-offsets"), *_golden("group-offsets-routed")]
    ]
    assert groups == GROUPS + ROUTED_GROUPS


def test_golden_schemas_are_read() -> None:
    found = schema_map.SchemaMap()
    for line in [*_golden("schemas"), *_golden("schemas-text")]:
        found.apply(line["key"].encode(), line["value"] and line["value"].encode())
    assert found.ids == dict([SCHEMA, SCHEMA_WITH_TEXT]) and found.restores == {
        n: r for n, r in RESTORES if r is not None
    }


def test_golden_frames_are_read() -> None:
    lines = [*_golden("frames-1"), *_golden("frames-pipeline")]
    for line, wanted in zip(lines, FRAMES + PIPELINE_FRAMES, strict=True):
        found, crc = frame.decode_headers([(name, bytes.fromhex(what)) for name, what in line["headers"]])
        assert found == wanted
        rows = frame.decode_rows(found, crc, bytes.fromhex(line["value"]))
        assert rows.batch.equals(_ROWS if wanted.count else NO_ROWS.batch)


def test_golden_frames_with_records_that_a_stage_failed_on_or_has_routed_are_read() -> None:
    lines = [*_golden("frames-3"), *_golden("frames-routed"), *_golden("frames-spread")]
    for line, (wanted, there) in zip(lines, FAILED_FRAMES + ROUTED_FRAMES + SPREAD_FRAMES, strict=True):
        found, crc = frame.decode_headers([(name, bytes.fromhex(what)) for name, what in line["headers"]])
        assert found == wanted
        rows = frame.decode_rows(found, crc, bytes.fromhex(line["value"]))
        assert rows.batch.equals(there)


def test_a_golden_frame_of_batches_is_read() -> None:
    (line,) = _golden("frames-2")
    found, crc = frame.decode_headers([(name, bytes.fromhex(what)) for name, what in line["headers"]])
    assert found.batches
    rows = decode_batches(found, crc, bytes.fromhex(line["value"])).rows()
    assert (rows.keys, rows.values, rows.timestamps) == ([b"k"], [b"v"], [-1])


def _many(offsets: Iterable[int], size: int) -> pa.RecordBatch:
    """What golden/frames-1-compressed and golden/frames-2-compressed hold at these offsets."""
    all_of = [*offsets]
    return encode_rows(
        all_of,
        [1700000000000 + n for n in all_of],
        [1] * len(all_of),
        [None if n % 7 == 0 else b"key-%d" % n for n in all_of],
        [None if n % 11 == 0 else b"%d:" % n + b"x" * size for n in all_of],
        [[("n", b"%d" % n), ("n", None)] if n % 5 == 0 else None for n in all_of],
    )


def test_golden_frames_whose_records_are_compressed_are_read() -> None:
    """An earlier version wrote them. What a codec's library makes of the same bytes may change."""
    lines = _golden("frames-1-compressed")
    for line in lines:
        found, crc = frame.decode_headers([(name, bytes.fromhex(what)) for name, what in line["headers"]])
        assert found == frame.Frame("east", "orders", ID, 3, 0, 80, 40, "host/1.0.0.ab")
        assert frame.decode_rows(found, crc, bytes.fromhex(line["value"])).batch.equals(
            _many(range(0, 80, 2), 2000)
        )
    assert len(lines) == 2, "lz4 and zstd"


def test_a_golden_frame_of_batches_of_each_codec_is_read_and_each_batch_is_as_it_was() -> None:
    (line,) = _golden("frames-2-compressed")
    found, crc = frame.decode_headers([(name, bytes.fromhex(what)) for name, what in line["headers"]])
    assert found == frame.Frame("east", "orders", ID, 3, 100, 250, 50, "host/1.0.0.ab", batches=True)
    batches = decode_batches(found, crc, bytes.fromhex(line["value"]))
    assert [(header.base_offset, header.codec) for header, _ in batches.each()] == [
        (100 + 30 * codec, codec) for codec in range(5)
    ]
    assert b"".join(bytes(batch) for _, batch in batches.each()).hex() == line["value"]
    wanted = _many((n for first in range(100, 250, 30) for n in range(first, first + 10)), 100)
    rows = batches.rows()
    assert [*rows.offsets] == wanted.column(0).to_pylist()
    for column in range(1, 6):
        assert rows.batch.column(column).to_pylist() == wanted.column(column).to_pylist()


def test_golden_counters_of_a_lane_are_summed_up_and_no_position() -> None:
    (line,) = _golden("counters")
    key, value = line["key"].encode(), line["value"].encode()
    message = Mock(error=lambda: None, key=lambda: key, value=lambda: value, timestamp=lambda: (1, 5000))
    consumer = Mock(consume=lambda *_: [message])
    with patch.object(lane_counters.CounterTail, "_reader", return_value=consumer):
        tail = lane_counters.CounterTail("replicator", "link.positions", {})
    assert tail.sums(term=4, epoch=9) == COUNTERS
    assert tail.sums(term=3, epoch=9) is None
    assert positions.decode(key, value) is None


def test_a_golden_state_table_is_read() -> None:
    """tests/integration/test_state.py folds on from it."""
    found = Snapshot.of(local_reader.rows(GOLDEN / "state-table"))
    assert found.updated is not None
    assert dataclasses.replace(found, updated=None) == STATE_TABLE


def test_every_column_of_the_golden_state_table_is_still_written_with_its_type() -> None:
    first = (GOLDEN / "state-table/_delta_log/00000000000000000000.json").read_bytes().splitlines()
    (about,) = (found["metaData"] for found in map(orjson.loads, first) if "metaData" in found)
    columns = {field["name"]: field["type"] for field in orjson.loads(about["schemaString"])["fields"]}
    declared = dict(column.split() for column in STATE_DDL.split(", "))
    spark_names = {"integer": "int", "long": "bigint"}
    assert {name: spark_names.get(kind, kind) for name, kind in columns.items()}.items() <= declared.items()


def main() -> int:
    for name, lines in WRITTEN.items():
        path = GOLDEN / f"{name}.jsonl"
        if not path.exists():
            path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
