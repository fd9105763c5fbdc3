"""Frames: what goes in comes out, and whatever else stands in staging is a FrameError and nothing worse."""

from __future__ import annotations

import contextlib
import resource
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import FrameError
from common.kafka.wire.records import (
    HEADERS,
    MAX_RECORDS,
    MAX_UNPACKED_BYTES,
    NO_ROWS,
    ROWS,
    Header,
    Rows,
    encode_rows,
)
from common.link.frame import Frame, decode_headers, decode_rows, encode_headers, pack, staging_key
from tests.support import strategies
from tests.support.strategies import Record


def encode(records: list[Record], with_headers: bool = True, codec: pa.Codec | None = None) -> bytes:
    rows = encode_rows(
        [r.at for r in records],
        [r.stamp for r in records],
        [r.kind for r in records],
        [r.k for r in records],
        [r.v for r in records],
        [r.h for r in records] if with_headers else None,
    )
    return bytes(pack(rows, codec))


def frame(count: int, start: int = 0, end: int = 10, **more: Any) -> Frame:
    return Frame("cluster", "orders", "id", 3, start, end, count, "w", **more)


def decode(value: bytes, count: int, start: int = 0, end: int = 10) -> Rows:
    """Decode with a right checksum, as a hostile or buggy writer would have it."""
    return decode_rows(frame(count, start, end), zlib.crc32(value), value)


def covering(records: list[Record]) -> tuple[int, int]:
    return (records[0].at, records[-1].at + 1) if records else (0, 0)


@given(strategies.records(), st.booleans())
def test_records_come_out_as_they_went_in(records: list[Record], with_headers: bool) -> None:
    rows = decode(encode(records, with_headers), len(records), *covering(records))
    assert list(rows.offsets) == [r.at for r in records]
    assert rows.timestamps == [r.stamp for r in records]
    assert rows.keys == [r.k for r in records]
    assert rows.values == [r.v for r in records]
    headers = [r.h for r in records] if with_headers else [None] * len(records)
    assert (rows.headers or [None] * len(records)) == headers


@given(strategies.records(min_size=1), st.integers(-2, 3))
def test_from_offset_keeps_the_rows_at_or_above_it(records: list[Record], move: int) -> None:
    rows = decode(encode(records), len(records), *covering(records))
    for offset in {r.at + move for r in records} | {records[-1].at + 10**6}:
        kept = rows.from_offset(offset)
        wanted = [r for r in records if r.at >= offset]
        assert list(kept.offsets) == [r.at for r in wanted]
        assert kept.timestamps == [r.stamp for r in wanted]
        assert kept.keys == [r.k for r in wanted]
        assert kept.values == [r.v for r in wanted]
        assert kept.headers is None or kept.headers == [r.h for r in wanted]


def test_no_records_is_an_empty_value() -> None:
    assert encode([]) == b""
    assert decode_rows(frame(0), 0, b"") is NO_ROWS
    assert decode_rows(frame(0), 0, None) is NO_ROWS


def test_the_wire_format_does_not_change() -> None:
    """Frames outlive a release in staging: version 1 stays as it is, byte for byte."""
    headers = encode_headers(frame(2, 5, 9, origin=True, gap=False, reason="why"), b"abc")
    assert headers == [
        ("v", b"1"),
        ("cluster", b"cluster"),
        ("topic", b"orders"),
        ("topic_id", b"id"),
        ("partition", b"3"),
        ("start", b"5"),
        ("next", b"9"),
        ("count", b"2"),
        ("writer", b"w"),
        ("crc", b"352441c2"),
        ("flags", b"origin"),
        ("reason", b"why"),
    ]
    assert staging_key("orders", 3) == b"orders/3"
    assert ROWS.names == ["offset", "timestamp", "timestamp_type", "key", "value", "headers"]


@given(strategies.frames(), st.binary(max_size=8))
def test_headers_come_out_as_they_went_in(what: Frame, value: bytes) -> None:
    assert decode_headers(encode_headers(what, value)) == (what, zlib.crc32(value))


def changed(name: str, *values: bytes | None) -> list[Header]:
    """Good headers, with another value of `name`: none, or several."""
    good = encode_headers(frame(1, 0, 10), b"value")
    return [h for h in good if h[0] != name] + [(name, value) for value in values]


REQUIRED = ["v", "cluster", "topic", "topic_id", "partition", "start", "next", "count", "writer", "crc"]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_header_is_refused(name: str) -> None:
    with pytest.raises(FrameError):
        decode_headers(changed(name))


@pytest.mark.parametrize("name", [*REQUIRED, "flags", "reason", "pipeline", "unheard-of"])
def test_a_repeated_or_null_header_is_refused(name: str) -> None:
    value = dict(encode_headers(frame(1), b"value")).get(name, b"")
    with pytest.raises(FrameError, match="repeated"):
        decode_headers(changed(name, value, value))
    with pytest.raises(FrameError, match="null"):
        decode_headers(changed(name, None))


@pytest.mark.parametrize("name", ["cluster", "topic", "topic_id", "writer", "reason"])
def test_text_that_is_not_utf8_is_refused(name: str) -> None:
    with pytest.raises(FrameError):
        decode_headers(changed(name, b"\xff\xfe"))


NUMBERS = [
    b"",
    b"-1",
    b"+1",
    b" 1",
    b"1 ",
    b"1_0",
    b"0x1",
    b"1.0",
    b"1e3",
    b"\xb2",
    "²".encode(),
    b"\xd9\xa1",
]


@pytest.mark.parametrize("name", ["partition", "start", "next", "count", "pipeline"])
@pytest.mark.parametrize("value", [*NUMBERS, b"9" * 19, b"9223372036854775808", b"1" + b"0" * 100_000])
def test_what_is_no_number_or_too_large_is_refused(name: str, value: bytes) -> None:
    with pytest.raises(FrameError) as refused:
        decode_headers(changed(name, value))
    assert len(str(refused.value)) < 300


def test_the_pipeline_is_said_only_where_there_is_one_and_none_is_never_said() -> None:
    assert ("pipeline", b"7") in encode_headers(frame(1, pipeline=7), b"")
    assert "pipeline" not in dict(encode_headers(frame(1), b""))
    with pytest.raises(FrameError, match="no number between 1"):
        decode_headers(changed("pipeline", b"0"))


@pytest.mark.parametrize(
    "value", [*NUMBERS, b"0000000", b"000000000", b"0000000G", b"ABCDEF01", b"f" * 100_000]
)
def test_what_is_no_checksum_is_refused(value: bytes) -> None:
    with pytest.raises(FrameError):
        decode_headers(changed("crc", value))


@pytest.mark.parametrize("version", [b"", b"0", b"4", b"11", b"\xff"])
def test_another_version_is_refused(version: bytes) -> None:
    with pytest.raises(FrameError, match="version"):
        decode_headers(changed("v", version))


def test_what_no_writer_would_say_is_refused() -> None:
    with pytest.raises(FrameError, match="newer release"):
        decode_headers(changed("flags", b"origin,other"))
    with pytest.raises(FrameError, match="covers"):
        decode_headers(encode_headers(frame(0, 5, 4), b""))
    with pytest.raises(FrameError, match="covers"):
        decode_headers(encode_headers(frame(11, 0, 10), b""))
    with pytest.raises(FrameError, match="covers"):
        decode_headers(encode_headers(frame(MAX_RECORDS + 1, 0, 2**62), b""))
    with pytest.raises(FrameError, match="accepted loss"):
        decode_headers(encode_headers(frame(1, gap=True), b""))
    # A partition number that no topic has would be waited for, for ever, by all that shares its staging
    # partition.
    with pytest.raises(FrameError):
        decode_headers(changed("partition", b"2147483648"))


def test_no_headers_at_all_are_refused() -> None:
    for headers in (None, [], [("other", b"x")]):
        with pytest.raises(FrameError):
            decode_headers(headers)


@given(
    st.lists(
        st.tuples(st.sampled_from([*REQUIRED, "flags", "reason"]) | strategies.TEXT, strategies.BYTES),
        max_size=14,
    )
)
def test_any_headers_are_a_frame_or_refused(headers: list[Header]) -> None:
    with contextlib.suppress(FrameError):
        decode_headers(headers)


GOOD = encode(
    [Record(1, 5, 1, b"k", b"v" * 30, [("a", b"1"), ("a", None)]), Record(2, 6), Record(7, -1, 0, None, None)]
)


def test_a_wrong_checksum_is_refused() -> None:
    assert decode(GOOD, 3).offsets == [1, 2, 7]
    with pytest.raises(FrameError, match="checksum"):
        decode_rows(frame(3), zlib.crc32(GOOD) ^ 1, GOOD)


@pytest.mark.parametrize("count", [0, 1, 2, 4, MAX_RECORDS])
def test_a_wrong_count_is_refused(count: int) -> None:
    with pytest.raises(FrameError):
        decode(GOOD, count, 0, 2**40)


@pytest.mark.parametrize("count", [1, 3])
def test_a_missing_value_is_refused(count: int) -> None:
    with pytest.raises(FrameError):
        decode_rows(frame(count), 0, None)


def test_every_truncation_is_refused() -> None:
    body = max(i for i in range(len(GOOD)) if GOOD[i]) + 1  # what follows is padding
    for length in range(body):
        with pytest.raises(FrameError):
            decode(GOOD[:length], 3)


def decoded_or_refused(value: bytes, count: int) -> None:
    """Never another error; and what does decode keeps the promises that a delivery builds on."""
    try:
        rows = decode(value, count)
    except FrameError:
        return
    assert len(rows.offsets) == len(rows.timestamps) == len(rows.keys) == len(rows.values) == count
    assert rows.headers is None or len(rows.headers) == count
    assert all(type(o) is int for o in rows.offsets) and list(rows.offsets) == sorted(set(rows.offsets))
    assert not rows.offsets or (rows.offsets[0] >= 0 and rows.offsets[-1] < 10)
    assert all(type(t) is int for t in rows.timestamps)
    assert all(v is None or type(v) is bytes for v in [*rows.keys, *rows.values])
    assert all(type(name) is str for row in rows.headers or [] for name, _ in row or [])


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_changed_bytes_are_decoded_or_refused(changes: list[tuple[int, int]]) -> None:
    value = bytearray(GOOD)
    for at, byte in changes:
        value[at] = byte
    decoded_or_refused(bytes(value), 3)


def test_each_byte_changed_alone_is_decoded_or_refused() -> None:
    for at in range(len(GOOD)):
        for byte in (0, 1, 0x7F, 0x80, 0xFF, GOOD[at] ^ 1):
            decoded_or_refused(GOOD[:at] + bytes([byte]) + GOOD[at + 1 :], 3)


@given(st.binary(max_size=400), st.integers(1, 5))
def test_random_bytes_are_refused(value: bytes, count: int) -> None:
    decoded_or_refused(value, count)
    decoded_or_refused(b"\xff\xff\xff\xff" + value, count)


@pytest.mark.parametrize(
    "offsets",
    [
        [2, 1],
        [1, 1],
        [1, 3, 2],
        [1, 2, 2, 4],
        [0, 10],
        [-1, 3],
        [9, 10],
        [10],
        [-1],
        [2**63 - 1],
        [1, 5, 3, 4],
    ],
)
def test_offsets_out_of_order_or_range_are_refused(offsets: list[int]) -> None:
    value = encode([Record(o) for o in offsets])
    with pytest.raises(FrameError, match="offsets"):
        decode(value, len(offsets))


# Messages that Arrow reads, and no writer writes.

LOOSE_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
COLUMNS: dict[str, Callable[[], pa.Array]] = {
    "offset": lambda: pa.array([1, 2], pa.int64()),
    "timestamp": lambda: pa.array([1, 2], pa.int64()),
    "timestamp_type": lambda: pa.array([0, 0], pa.int8()),
    "key": lambda: pa.array([None, b"k"], pa.binary()),
    "value": lambda: pa.array([b"", b"v"], pa.binary()),
    "headers": lambda: pa.array([None, [{"key": "a", "value": None}]], LOOSE_HEADERS),
}


def message(**columns: pa.Array) -> bytes:
    """A record batch message with some columns replaced, whatever their types."""
    arrays = {name: make() for name, make in COLUMNS.items()} | columns
    return bytes(pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays)).serialize())


def test_the_loose_message_itself_decodes() -> None:
    assert decode(message(), 2).headers == [None, [("a", None)]]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("offset", pa.array([1, None], pa.int64())),
        ("offset", pa.array([None, 2], pa.int64())),
        ("timestamp", pa.array([1, None], pa.int64())),
        ("timestamp_type", pa.array([None, 0], pa.int8())),
        ("headers", pa.array([[{"key": None, "value": b""}], None], LOOSE_HEADERS)),
        ("headers", pa.array([[None], None], LOOSE_HEADERS)),
    ],
)
def test_a_null_where_none_may_be_is_refused(name: str, column: pa.Array) -> None:
    with pytest.raises(FrameError):
        decode(message(**{name: column}), 2)


def test_a_header_name_that_is_not_utf8_is_refused() -> None:
    binary = pa.list_(pa.struct([pa.field("key", pa.binary()), pa.field("value", pa.binary())]))
    with pytest.raises(FrameError):
        decode(message(headers=pa.array([[{"key": b"\xff", "value": b""}], None], binary)), 2)


def stream(batch: pa.RecordBatch, **options: Any) -> list[bytes]:
    """The messages of an Arrow stream: the schema first."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    reader = pa.MessageReader.open_stream(pa.BufferReader(sink.getvalue()))
    return [bytes(m.serialize()) for m in reader]


def test_messages_of_another_schema_are_refused() -> None:
    for columns in (
        {"a": pa.array([1, 2])},
        {"a": pa.array(["x", "y"]), "b": pa.array([1.0, 2.0])},
        {name: pa.array(["x", "y"]) for name in COLUMNS},
        {name: pa.nulls(2) for name in COLUMNS},
    ):
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        for value in stream(batch):
            with pytest.raises(FrameError):
                decode(value, 2)


def test_schema_and_dictionary_messages_are_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["x", "y"]).dictionary_encode()], names=["a"])
    messages = stream(batch)
    assert len(messages) == 3
    for value in messages:
        with pytest.raises(FrameError):
            decode(value, 2)


def test_a_tensor_message_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(pa.array([1, 2, 3]).to_numpy()), sink)
    with pytest.raises(FrameError):
        decode(bytes(sink.getvalue()), 3)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_would_unpack_into_too_much_is_refused_before_it_is_unpacked(compression: str) -> None:
    """A few kilobytes could unpack into more memory than the reader has."""
    size = 256 << 20
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([1], pa.int64()),
            pa.array([1], pa.int64()),
            pa.array([0], pa.int8()),
            pa.array([None], pa.binary()),
            pa.array([b"\0" * size], pa.binary()),
            pa.nulls(1, HEADERS),
        ],
        schema=ROWS,
    )
    value = stream(batch, compression=compression)[1]
    assert len(value) < size // 100
    del batch
    pa.default_memory_pool().release_unused()
    before = pa.total_allocated_bytes()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FrameError, match="would unpack into 268"):
        decode(value, 1)
    assert pa.total_allocated_bytes() - before < size // 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < size // 10 // 1024


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_a_compressed_frame_is_the_same_records_in_fewer_bytes(name: str) -> None:
    records = [Record(at, v=b"value" * 400, k=b"%d" % at, h=[("h", b"1"), ("h", None)]) for at in range(100)]
    plain, packed = encode(records), encode(records, codec=pa.Codec(name))
    assert len(packed) < len(plain) / 5
    assert decode(packed, 100, 0, 100) == decode(plain, 100, 0, 100)
    assert decode(packed, 100, 0, 100).unpacked == decode(plain, 100, 0, 100).unpacked > 50_000
    # Small ones are left as they are, and so are those that a reader would refuse.
    assert encode(records[:9], codec=pa.Codec(name)) == encode(records[:9])


@given(st.data())
def test_a_damaged_compressed_frame_is_no_frame(data: st.DataObject) -> None:
    """Whatever a writer makes of it that knows the checksum: it decodes to something or is refused, and takes
    no memory that it does not need."""
    good = bytearray(encode([Record(at, v=bytes(2000)) for at in range(40)], codec=pa.Codec("lz4")))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        decode(bytes(good), 40, 0, 40)


def test_the_largest_frame_that_is_compressed_is_read_and_a_larger_one_left_as_it_is() -> None:
    codec = pa.Codec("lz4")
    largest = bytes(MAX_UNPACKED_BYTES - 200)
    packed = encode([Record(0, v=largest)], codec=codec)
    assert len(packed) < 1 << 20
    assert decode(packed, 1).values == [largest]
    assert len(encode([Record(0, v=largest + bytes(200))], codec=codec)) > MAX_UNPACKED_BYTES


def test_a_claim_of_many_records_takes_no_memory() -> None:
    """The batch's own length is changed to a billion; its buffers are not there."""
    value = encode([Record(1)])
    claimed = value.replace((1).to_bytes(8, "little"), (10**9).to_bytes(8, "little"))
    assert claimed != value
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for count in (1, MAX_RECORDS):
        with pytest.raises(FrameError):
            decode(claimed, count, 0, 2**62)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@pytest.mark.parametrize("types", [[1, 1, 1], [1, 2, 1], [0, 1, 1]])
def test_each_record_has_its_own_timestamp_type(types: list[int]) -> None:
    value = pack(encode_rows([0, 1, 2], [5, 6, 7], types, [None] * 3, [b"v"] * 3, None))
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(value), ROWS)
    assert batch.column("timestamp_type").to_pylist() == types
    batch.validate(full=True)
