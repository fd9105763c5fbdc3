"""What is fuzzed: whatever comes from brokers and from the link's topics, each with the promise that it keeps
for any bytes. What is read is right, or refused by an error of its own; never another one.

An input is bytes alone. Where a promise is about more than one thing, the first byte chooses, or a line's end
parts them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import google_crc32c
import orjson
import pyarrow as pa

from common.errors import ControlError, FrameError, StateError
from common.kafka.wire import (
    batch_runs,
    fetch_answers,
    fetch_protocol,
    open_transactions_protocol,
    protocol,
    record_batch,
    sasl,
)
from common.kafka.wire.chunks import Chunk
from common.kafka.wire.fetch_answers import Budget
from common.kafka.wire.fetch_protocol import Aborted, Part
from common.kafka.wire.protocol import Answer, MalformedAnswer
from common.kafka.wire.record_batch import BatchError
from common.kafka.wire.record_decoder import TooManyAtOnce, columns
from common.kafka.wire.records import ROWS
from common.link import batch_frame, control_state, frame, offset_mappings, positions, schema_map
from common.link.frame import Frame
from offsets import group_offsets, group_protocol
from tests.support import pipelines
from tests.unit.common.kafka.wire.test_fetch_answers import KINDS, At
from tests.unit.common.kafka.wire.test_fetch_answers import batch as a_batch
from tests.unit.common.kafka.wire.test_record_decoder import plainly, rows_of

GOLDEN = Path(__file__).parents[1] / "unit" / "golden"
LINK = "link"


@dataclass(frozen=True)
class Target:
    """`run` raises where a promise is broken; `seeds` are inputs that are well."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


def stamped(data: bytes) -> bytes:
    """Batches and messages with right checksums, as far as their lengths go: else nothing gets beyond
    these."""
    out = bytearray(data)
    at = 0
    while at + 17 <= len(out):
        (size,) = struct.unpack_from(">i", out, at + 8)
        end = at + 12 + size
        if size < 6 or end > len(out):
            break
        if out[at + 16] >= 2 and size >= 49:
            struct.pack_into(">I", out, at + 17, google_crc32c.value(bytes(out[at + 21 : end])))
        else:
            struct.pack_into(">I", out, at + 12, crc32(out[at + 16 : end]))
        at = end
    return bytes(out)


# Batches.


def answer(data: bytes) -> None:
    """An answer to Fetch: records in the order of their offsets, within the log, each with what a record has;
    or BatchError. Many small batches at once are what each is by itself. The first byte: whether checksums
    are right, which batches may stay whole, and whether a transaction is aborted."""
    flags, data = (data[:1] or b"\0")[0], data[1:]
    data = stamped(data) if flags & 1 else data
    each, wrong = came(data, flags, MOST_BATCHES=0)
    last = -1
    for chunk in each:
        assert last < chunk.next
        if chunk.rows is not None:
            chunk.rows.validate(full=True)
            assert chunk.rows.schema == ROWS
            offsets = chunk.rows.column(0).to_pylist()
            assert offsets == sorted(set(offsets)) and last < offsets[0] and offsets[-1] < chunk.next
        for header, whole in chunk.wholes:
            assert last < header.base_offset and header.next_offset <= chunk.next
            assert len(whole) == header.size
        last = chunk.next - 1
    at_once = came(data, flags, LEAST_BATCHES=2, BATCHES_A_RECORD=0)
    assert at_once == (each, wrong)


def came(data: bytes, flags: int, **bounds: int) -> tuple[list[Chunk], str]:
    """What comes of an answer, and what is wrong with it."""
    at = At(7, aligned=bool(flags & 2))
    aborted = [] if flags & 8 else [Aborted(7, 0)]
    part = Part(0, 1 << 40, 1 << 40, aborted, memoryview(data), None)
    whole_bytes = 1 if flags & 4 else 1 << 20
    found: list[Chunk] = []
    try:
        with patch.dict(vars(batch_runs), bounds):
            for chunk in fetch_answers.chunks(
                at, part, dict.fromkeys(range(5), 1 << 31), whole_bytes, Budget()
            ):
                assert chunk.next == at.offset
                found.append(chunk)
    except BatchError as error:
        return found, str(error)
    return found, ""


def batch(data: bytes) -> None:
    """Batches read as columns hold what they hold read record by record; or both refuse."""
    data = stamped(data)
    try:
        found = list(record_batch.headers(data))
        for at, header in found:
            record_batch.must_be_sound(pa.py_buffer(data), at, header)
    except BatchError:
        return
    try:
        want = plainly(data, found)
    except BatchError:
        want = None
    try:
        got = columns(pa.py_buffer(data), found)
    except BatchError:
        assert want is None, "only as columns it is refused"
        return
    except TooManyAtOnce:
        return
    assert want is not None, "only as columns it is taken"
    got.validate(full=True)
    assert got.equals(rows_of(want))


# What the link's topics hold.


def frame_headers(data: bytes) -> None:
    """Headers, each a line: name, equals sign, value."""
    headers = []
    for line in data.split(b"\n"):
        name, equals, value = line.partition(b"=")
        headers.append((name.decode("utf-8", "replace"), value if equals else None))
    with suppress(FrameError):
        found, crc = frame.decode_headers(headers)
        assert 0 <= found.start <= found.next and 0 <= found.count <= found.next - found.start
        assert 0 <= crc < 1 << 32
        assert frame.decode_headers(frame.encode_headers(found, b""))[0] == found


def frame_rows(data: bytes) -> None:
    """A frame's value, with a right checksum; the first byte is how many records it is to have."""
    count, value = (data[0] & 63, data[1:]) if data else (0, b"")
    of = Frame("east", "orders", "id", 3, 0, 1 << 20, count, "me")
    with suppress(FrameError):
        rows = frame.decode_rows(of, crc32(value), value)
        assert len(rows.offsets) == len(rows.keys) == len(rows.values) == count
        offsets = list(rows.offsets)
        assert offsets == sorted(set(offsets)) and all(0 <= offset < 1 << 20 for offset in offsets)
        assert all(v is None or type(v) is bytes for v in [*rows.keys, *rows.values])


def frame_batches(data: bytes) -> None:
    """A frame of whole batches; the first byte is how many records it is to have."""
    count, value = (data[0] & 63, stamped(data[1:])) if data else (0, b"")
    of = Frame("east", "orders", "id", 3, 0, 1 << 20, count, "me", batches=True)
    with suppress(FrameError):
        found = batch_frame.decode(of, crc32(value), value)
        assert found.count == count
        with suppress(BatchError, FrameError):
            rows = found.rows()
            assert len(rows.offsets) == count


def mapping(data: bytes) -> None:
    with suppress(StateError):
        offset_mappings.decode(data)
    with suppress(StateError):
        key, following, pipeline, staged = offset_mappings.reached(data)
        assert type(key[1]) is type(following) is type(pipeline) is type(staged) is int


def control(data: bytes) -> None:
    """A record changes the state, or is refused and changes nothing."""
    for link in (None, LINK, "another"):
        state = control_state.Control(link=link)
        try:
            state.apply(0, data)
        except ControlError:
            assert state == control_state.Control(link=link)
        else:
            assert state.position == 1


def position(data: bytes) -> None:
    key, _, value = data.partition(b"\n")
    if (found := positions.decode(key, value)) is not None:
        (topic_id, partition), where = found
        assert isinstance(topic_id, str) and partition >= 0 and where.next >= 0 and where.handled >= -1
    positions.forgotten(key, None)


def group_offset(data: bytes) -> None:
    key, _, value = data.partition(b"\n")
    with suppress(StateError):
        group_offsets.decode(key, value)


def schema(data: bytes) -> None:
    key, _, value = data.partition(b"\n")
    with suppress(StateError):
        schema_map.SchemaMap().apply(key, value)


# What pipelines look into.

STAGES: list[dict[str, Any]] = [
    {"filter": {"keep": {"a": {"exists": True}}}},
    {"filter": {"keep": {"b.c[*]": {"gt": 2.5}}}},
    {"mask": {"fields": {"a": "redact", "b.c[*]": "null"}}},
    {"convert": {"to": "json"}},
]
MADE = [pipelines.pipeline(stage, value="avro") for stage in STAGES]


def avro(data: bytes) -> None:
    """Any bytes by any schema, which is the first line: both implementations make the same of one record, and
    of many. The first byte behind it chooses the stage."""
    text, _, item = data.partition(b"\n")
    made = MADE[item[0] % len(MADE)] if item else MADE[0]
    texts = {7: text.decode("utf-8", "replace")}
    for count in (1, 20):
        given = (None, b"\0\0\0\0\7" + item[1:], None, 0)
        pipelines.judged_alike(made, [given] * count, texts=texts)


TO_AVRO = pipelines.pipeline(
    {"convert": {"to": "avro", "id": 7}}, {"schema-ids": {}}, wire={"value": "confluent"}
)


def avro_of_json(data: bytes) -> None:
    """Any bytes as JSON, by any schema, which is the first line: both implementations make the same Avro, or
    none."""
    text, _, item = data.partition(b"\n")
    texts = {7: text.decode("utf-8", "replace")}
    pipelines.judged_alike(TO_AVRO, [(None, item, None, 0)], ids={(".", 7): 9}, texts=texts)


# Answers.

READERS: list[Callable[[Answer], Any]] = [
    protocol.produced,
    protocol.described,
    protocol.coordinator,
    protocol.producer_id,
    protocol.by_partition,
    protocol.throttled,
    protocol.mechanisms,
    protocol.authenticated,
    protocol.versions,
    protocol.known_transaction,
    fetch_protocol.fetched,
    lambda answer: fetch_protocol.fetched(answer, {}),
    open_transactions_protocol.listed_offsets,
    open_transactions_protocol.described_producers,
    group_protocol.fetched_offsets,
    lambda answer: group_protocol.listed(answer, 4),
    lambda answer: group_protocol.listed(answer, 5),
    lambda answer: group_protocol.members("classic", answer),
    lambda answer: group_protocol.members("consumer", answer),
]


def reply(data: bytes) -> None:
    """The first byte says to which request."""
    if data:
        with suppress(MalformedAnswer):
            READERS[data[0] % len(READERS)](Answer(data[1:]))


def challenge(data: bytes) -> None:
    """What a broker says to SCRAM: nobody but who knows the password is believed."""
    client = sasl.Client("SCRAM-SHA-256", "user", "password")
    client.first()
    with suppress(sasl.Refused):
        for token in data.split(b"\n", 1):
            client.answer(token.replace(b"NONCE", client._nonce.encode()))
    assert not client.done


# Seeds.


def _golden(name: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_bytes().splitlines()]


def _records(name: str, *fields: str) -> list[bytes]:
    """A line for each field."""
    return [b"\n".join((one[field] or "").encode() for field in fields) for one in _golden(name)]


def _headers() -> list[bytes]:
    return [
        b"\n".join(name.encode() + b"=" + bytes.fromhex(value) for name, value in one["headers"])
        for name in ("frames-1", "frames-2")
        for one in _golden(name)
    ]


def _values(name: str) -> list[bytes]:
    return [b"\3" + bytes.fromhex(one["value"]) for one in _golden(name)]


def _batches() -> list[bytes]:
    return [raw for kind, raw in KINDS.items() if "magic" not in kind]


def _answers() -> list[bytes]:
    return [
        bytes([flags]) + first + raw + follows
        for raw in KINDS.values()
        for flags, first, follows in (
            (1, a_batch(7, 3), a_batch(13, 3)),
            (3, b"", b""),
            (7, a_batch(7, 3), b""),
        )
    ] + [
        bytes([flags]) + b"".join(a_batch(7 + count * at, count, codec) for at in range(6))
        for flags in (1, 9)
        for count in (1, 2)
        for codec in ("none", "lz4")
    ]


def _replies() -> list[bytes]:
    produced = (
        struct.pack(">i", 1) + protocol.text("t") + struct.pack(">iihqqqihi", 1, 0, 0, 5, -1, 0, 0, -1, 0)
    )
    return [bytes([number]) + bytes(60) for number in range(len(READERS))] + [b"\0" + produced]


AVRO = (
    b'{"type":"record","name":"R","fields":[{"name":"a","type":["null","string"]},{"name":"b","type":["null","R",'
    b'{"type":"map","values":{"type":"array","items":["long","double",{"type":"enum","name":"E","symbols":["x"]},'
    b'{"type":"fixed","name":"F","size":2},"boolean"]}}]}]}\n'
)


def _avro() -> list[bytes]:
    items = [b"\0\0", b"\2\2x\2\0\0", b"\2\4xy\4\2\2c\6\0\6\2" + struct.pack("<d", 2.5) + b"\4\0\0\0"]
    return [AVRO + bytes([stage]) + item for stage in range(len(STAGES)) for item in items]


def _avro_of_json() -> list[bytes]:
    items = [
        b'{"a": null, "b": null}',
        b'{"a": "x", "b": {"a": "\\u00e4", "b": {"c": [3, 2.5, "x", "ab", true]}}}',
        b"{",
    ]
    return [AVRO + item for item in items]


TARGETS = {
    "answer": Target(answer, _answers),
    "batch": Target(batch, _batches),
    "frame-headers": Target(frame_headers, _headers),
    "frame-rows": Target(frame_rows, lambda: _values("frames-1")),
    "frame-batches": Target(frame_batches, lambda: [b"\3" + raw for raw in _batches()]),
    "mapping": Target(mapping, lambda: _records("mappings", "value")),
    "control": Target(control, lambda: _records("control", "record")),
    "position": Target(position, lambda: _records("positions", "key", "value")),
    "group-offset": Target(group_offset, lambda: _records("group-offsets", "key", "value")),
    "schema": Target(schema, lambda: _records("schemas", "key", "value")),
    "avro": Target(avro, _avro),
    "avro-of-json": Target(avro_of_json, _avro_of_json),
    "reply": Target(reply, _replies),
    "challenge": Target(
        challenge, lambda: [b"r=NONCEmore,s=c2FsdA==,i=4096\nv=c2lnbmF0dXJl", b"e=other-error", b"v=AA=="]
    ),
}
