"""Record batches: what goes in comes out, byte for byte as the plain way would have it; what is damaged is a
BatchError and nothing worse."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.kafka.wire import record_batch, record_encoder
from common.kafka.wire.record_batch import (
    CODECS,
    HEADER_BYTES,
    BatchError,
    BatchHeader,
    Records,
    decode,
    headers,
    seal,
)
from common.kafka.wire.record_by_record import one_by_one
from common.kafka.wire.record_encoder import encode_records
from common.kafka.wire.records import HEADERS, MAX_UNPACKED_BYTES, ROWS, Header, encode_rows
from common.link.frame import pack
from tests.support import strategies, wire
from tests.support.strategies import Record
from tests.support.wire import NOW, sealed

EXTRAS = st.none() | st.tuples(strategies.TEXT, st.none() | st.binary(max_size=20) | st.just(b"long" * 50))
PAYLOADS = strategies.BYTES | st.sampled_from([b"twelve bytes", b"thirteen byte", b"v" * 64, b"v" * 9000])
STAMPS = st.sampled_from([10, 1000, 10**9, 2**52]).flatmap(
    lambda far: st.integers(NOW, NOW + far)
) | st.sampled_from([0, -1, 1])
"""Those of a common batch; others come from `strategies.INT64`."""


def rows_of(records: list[Record]) -> pa.RecordBatch:
    return encode_rows(
        [r.at for r in records],
        [r.stamp for r in records],
        [r.kind for r in records],
        [r.k for r in records],
        [r.v for r in records],
        [r.h for r in records],
    )


@st.composite
def batches(draw: st.DrawFn, most: int = 12) -> list[Record]:
    """Records of one shape or of several: all keys null or none, as many headers each or not, common
    timestamps or any."""
    keys = draw(st.sampled_from([st.none(), PAYLOADS, PAYLOADS.filter(lambda p: p is not None)]))
    values = draw(st.sampled_from([st.none(), PAYLOADS, PAYLOADS]))
    stamps = draw(st.sampled_from([STAMPS, STAMPS, strategies.INT64]))
    each = draw(st.sampled_from([0, 0, 1, 2, None]))
    names = st.sampled_from(["a", "", "é", "a name of more than twelve bytes"])
    if each is None:
        named: st.SearchStrategy[Any] = strategies.HEADERS
    else:
        named = st.lists(st.tuples(names, PAYLOADS), min_size=each, max_size=each)
    some = draw(st.lists(st.tuples(stamps, keys, values, named), min_size=1, max_size=most))
    # Many records, from a few that were drawn.
    some *= draw(st.sampled_from([1, 1, 1, 17]))
    return [Record(3 * at, stamp, 1, k, v, h) for at, (stamp, k, v, h) in enumerate(some)]


def whole(pieces: list[Any]) -> bytes:
    return b"".join(map(bytes, pieces))


def with_extra(own: list[Header] | None, extra: Header | None) -> list[Header] | None:
    return [*(own or []), *([] if extra is None else [extra])] or None


def plainly(records: list[Record], most_bytes: int, extra: Header | None) -> Iterator[Records]:
    """The format as its documentation has it, step by step."""

    def blob(value: bytes | None) -> bytes:
        return wire._varint(-1) if value is None else wire._varint(len(value)) + value

    def encoded(record: Record, base: int, place: int) -> bytes:
        delta = record.stamp - base
        delta = (delta + 2**63) % 2**64 - 2**63
        named = with_extra(record.h, extra) or []
        body = b"\0" + wire._varint(delta) + wire._varint(place) + blob(record.k) + blob(record.v)
        body += wire._varint(len(named)) + b"".join(blob(n.encode()) + blob(v) for n, v in named)
        return wire._varint(len(body)) + body

    section: list[Record] = []
    data = b""
    for record in records:
        more = encoded(record, section[0].stamp, len(section)) if section else b""
        if section and len(data) + len(more) > most_bytes:
            yield Records(len(section), section[0].stamp, max(r.stamp for r in section), pa.py_buffer(data))
            section, data = [], b""
        data += more if section else encoded(record, record.stamp, 0)
        section.append(record)
    if section:
        yield Records(len(section), section[0].stamp, max(r.stamp for r in section), pa.py_buffer(data))


def comparable(sections: Iterator[Records]) -> list[tuple[int, int, int, bytes]]:
    return [(s.count, s.base_timestamp, s.max_timestamp, bytes(s.data)) for s in sections]


@settings(max_examples=200)
@given(batches(), EXTRAS, st.sampled_from([1, 60, 500, 20_000, 1 << 30]), st.data())
def test_both_ways_of_encoding_give_the_bytes_of_the_plain_one(
    records: list[Record], extra: Header | None, most: int, data: st.DataObject
) -> None:
    rows = rows_of([*records, *records])
    begin = data.draw(st.integers(0, len(records)))
    rows = rows.slice(begin, len(records))
    want = comparable(plainly([*records, *records][begin : begin + len(records)], most, extra))
    assert comparable(one_by_one(rows, most, extra)) == want
    with suppress(record_encoder._TooWide):
        assert comparable(record_encoder._at_once(rows, most, extra)) == want
    assert comparable(encode_records(rows, most, extra)) == want
    assert all(len(section[3]) <= most or section[0] == 1 for section in want)


@settings(max_examples=100)
@given(batches().filter(bool), st.integers(1, 40), st.data())
def test_sections_begin_where_they_are_asked_for(
    records: list[Record], times: int, data: st.DataObject
) -> None:
    records = records * times
    inner = data.draw(st.sets(st.integers(1, max(1, len(records) - 1)), max_size=5))
    starts = sorted({0} | {at for at in inner if at < len(records)})
    want = [
        section
        for begin, end in pairwise([*starts, len(records)])
        for section in comparable(plainly(records[begin:end], 1 << 30, None))
    ]
    assert comparable(iter(record_encoder.encode_sections(rows_of(records), starts))) == want


@settings(max_examples=100)
@given(batches(), EXTRAS, st.sampled_from([1, 500, 1 << 30]), st.sampled_from([*CODECS]))
def test_what_was_encoded_and_sealed_decodes_to_the_same(
    records: list[Record], extra: Header | None, most: int, codec: str
) -> None:
    found = []
    for section in encode_records(rows_of(records), most, extra):
        batch = whole(seal(section, codec, None, 7, 3, 11, True))
        [(at, header)] = headers(batch)
        assert at == 0 and header.size == len(batch)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
        assert header.transactional and not header.control and not header.log_append_time
        assert (header.base_offset, header.leader_epoch, header.magic) == (0, -1, 2)
        assert header.count == section.count == header.next_offset
        assert header.base_timestamp == section.base_timestamp
        assert header.max_timestamp == section.max_timestamp
        assert header.codec == (CODECS[codec] if len(batch) < HEADER_BYTES + len(section.data) else 0)
        read = decode(batch)
        assert [r.offset for r in read] == list(range(section.count))
        found += [(r.timestamp, r.timestamp_type, r.key, r.value, r.headers) for r in read]
    assert found == [(r.stamp, 1, r.k, r.v, with_extra(r.h, extra)) for r in records]


def many(count: int, named: int = 2) -> list[Record]:
    return [
        Record(
            at,
            NOW + at // 10,
            1,
            b"%d" % at,
            b"value %d " % at * 20,
            [("h", b"%d" % at)] * (at % (named + 1)),
        )
        for at in range(count)
    ]


@pytest.mark.parametrize("codec", [*CODECS])
@pytest.mark.parametrize("count", [record_encoder._FEW, record_encoder._FEW + 1, 3000])
def test_a_large_batch_comes_back(codec: str, count: int) -> None:
    """More than one block of each codec that has some."""
    records = many(count)
    [section] = encode_records(rows_of(records), 1 << 30)
    batch = seal(section, codec)
    if codec != "none":
        assert sum(map(len, batch)) < len(section.data) / 2
    read = decode(whole(batch))
    assert [(r.key, r.value, r.headers or []) for r in read] == [(r.k, r.v, r.h) for r in records]


@pytest.mark.parametrize("most", [1, 3000, 100_000])
def test_many_rows_are_split_alike_by_each_way(most: int) -> None:
    records = many(1000)
    want = comparable(plainly(records, most, None))
    assert comparable(encode_records(rows_of(records), most)) == want
    assert comparable(record_encoder._at_once(rows_of(records), most, None)) == want


def test_rows_beyond_arrows_reach_are_taken_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_encoder, "_MOST_AT_ONCE", 200_000)
    records = many(2000)
    sections = list(encode_records(rows_of(records), 1 << 30))
    assert len(sections) > 2
    assert [r.value for s in sections for r in decode(whole(seal(s, "none")))] == [r.v for r in records]


def test_no_rows_are_no_batch() -> None:
    assert list(encode_records(rows_of([]), 100)) == []


@pytest.mark.parametrize("encode", [one_by_one, record_encoder._at_once])
@pytest.mark.parametrize("codec", [None, pa.Codec("lz4")])
def test_columns_as_a_frame_brings_them_encode_too(encode: Any, codec: pa.Codec | None) -> None:
    """Their buffers are parts of the frame's, and those that hold nothing are missing."""
    for records in (many(500), [Record(at, NOW, 1, None, None) for at in range(500)], many(500, 0)):
        packed = pack(rows_of(records), codec)
        rows = pa.ipc.read_record_batch(pa.ipc.read_message(packed), ROWS)
        for part in (slice(0, 500), slice(3, 490), slice(499, 500)):
            got = comparable(encode(rows.slice(part.start, part.stop - part.start), 10_000, ("m", b"1")))
            assert got == comparable(plainly(records[part], 10_000, ("m", b"1")))


@pytest.mark.parametrize("encode", [one_by_one, record_encoder._at_once])
def test_elements_of_a_null_list_are_no_headers(encode: Any) -> None:
    """Arrow lets a null have some."""
    named = pa.array([[{"key": name, "value": b"v"}] for name in "abc"], HEADERS)
    validity = pa.py_buffer(b"\x05")
    hidden = pa.Array.from_buffers(HEADERS, 3, [validity, named.buffers()[1]], children=[named.values])
    plain = rows_of([Record(at) for at in range(3)])
    rows = pa.RecordBatch.from_arrays([*plain.columns[:5], hidden], schema=ROWS)
    for begin in (0, 1):
        [section] = encode(rows.slice(begin), 1000, None)
        want = [[("a", b"v")], None, [("c", b"v")]][begin:]
        assert [r.headers for r in decode(whole(seal(section, "none")))] == want


@pytest.mark.parametrize("encode", [one_by_one, record_encoder._at_once])
def test_bytes_of_a_null_are_not_written(encode: Any) -> None:
    """Arrow lets a null have some."""
    full = pa.array([b"a", b"bytes that nobody sees", b"c"], pa.binary())
    hidden = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), *full.buffers()[1:]])
    plain = rows_of([Record(at) for at in range(3)])
    rows = pa.RecordBatch.from_arrays([*plain.columns[:3], hidden, hidden, plain.column(5)], schema=ROWS)
    [section] = encode(rows, 1000, None)
    read = decode(whole(seal(section, "none")))
    assert [(r.key, r.value) for r in read] == [(b"a", b"a"), (None, None), (b"c", b"c")]


def test_an_extra_header_has_any_size() -> None:
    """Up to twelve bytes are laid out otherwise than more."""
    rows = rows_of(many(3))
    for size in range(20):
        extra = ("n", b"v" * size)
        want = comparable(plainly(many(3), 1000, extra))
        assert comparable(record_encoder._at_once(rows, 1000, extra)) == want


def test_a_batch_is_what_a_hand_made_one_is() -> None:
    """Which real brokers take (tests/support/wire.py)."""
    values = [b"one", b"", b"three" * 100]
    records = [Record(at, -5, 1, None, value) for at, value in enumerate(values)]
    [section] = encode_records(rows_of(records), 10_000)
    assert whole(seal(section, "none")) == wire._batch(values, -5)


def test_what_a_codec_does_not_make_smaller_is_left_as_it_is() -> None:
    noise = random.Random(1).randbytes(100_000)
    for value in (b"x", noise):
        [section] = encode_records(rows_of([Record(0, NOW, 1, None, value)]), 1)
        for codec in CODECS:
            pieces = seal(section, codec)
            assert pieces[1] is section.data and next(headers(whole(pieces)))[1].codec == 0
            assert whole(pieces) == whole(seal(section, "none"))


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_level_is_used(codec: str) -> None:
    [section] = encode_records(rows_of(many(2000)), 1 << 30)
    sizes = [sum(map(len, seal(section, codec, level))) for level in (1, 9)]
    assert sizes[1] < sizes[0]
    # And without a meaning for the others.
    assert whole(seal(section, "lz4", 9)) == whole(seal(section, "lz4"))


@pytest.mark.parametrize(("codec", "level"), [("gzip", 10), ("gzip", 12), ("zstd", 23)])
def test_a_level_above_a_codecs_greatest_counts_as_that(codec: str, level: int) -> None:
    [section] = encode_records(rows_of(many(100)), 1 << 30)
    assert whole(seal(section, codec, level)) == whole(seal(section, codec, {"gzip": 9, "zstd": 22}[codec]))


@pytest.mark.parametrize(
    ("size", "most", "head"),
    [
        (64 << 10, 64 << 10, "04224d18604082"),
        ((64 << 10) + 1, 256 << 10, "04224d186050fb"),
        ((256 << 10) + 1, 256 << 10, "04224d186050fb"),
        ((512 << 10) + 1000, 256 << 10, "04224d186050fb"),
    ],
)
def test_an_lz4_frame_has_blocks_of_their_own(size: int, most: int, head: str) -> None:
    """FLG: version 1, independent blocks, nothing else. BD: 64 KiB, or 256. Their checksum is asked for by
    whoever reads it."""
    plain = (random.Random(1).randbytes(most) + b"a" * size)[-size:]
    frame = whole(record_batch._lz4(pa.py_buffer(plain)))
    assert frame[:7].hex() == head
    at, found = 7, b""
    while block_size := int.from_bytes(frame[at : at + 4], "little"):
        block = frame[at + 4 : (at := at + 4 + (block_size & 0x7FFFFFFF))]
        # Alone, without the blocks before: the last one has as many bytes as are left.
        length = min(most, size - len(found))
        is_plain = bool(block_size >> 31)
        assert not is_plain or len(block) == length
        found += block if is_plain else pa.Codec("lz4_raw").decompress(block, length, asbytes=True)
    assert frame[at:] == bytes(4)
    assert found == plain
    with pa.CompressedInputStream(pa.BufferReader(frame), "lz4") as stream:
        assert stream.read() == plain


@pytest.mark.parametrize("most", [64 << 10, 256 << 10])
def test_a_block_that_lz4_makes_no_smaller_is_left_as_it_is(most: int) -> None:
    noise = random.Random(1).randbytes(most)
    frame = whole(record_batch._lz4(pa.py_buffer(noise)))
    assert frame[7:11] == (most | 1 << 31).to_bytes(4, "little") and frame[11:-4] == noise


def test_a_snappy_section_is_framed_as_java_does_it() -> None:
    plain = b"snappy" * 10_000
    packed = whole(record_batch._snappy(pa.py_buffer(plain)))
    assert packed[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    at, found = 16, b""
    while at < len(packed):
        [size] = struct.unpack_from(">i", packed, at)
        length = min(32 << 10, len(plain) - len(found))
        found += pa.Codec("snappy").decompress(packed[at + 4 : at + 4 + size], length, asbytes=True)
        at += 4 + size
    assert found == plain


def test_a_gzip_section_is_gzip() -> None:
    [section] = encode_records(rows_of(many(100)), 1 << 30)
    assert gzip.decompress(whole(seal(section, "gzip")[1:])) == bytes(section.data)


# Reading what others wrote.


RECORDS = many(40)
PLAIN = bytes(next(encode_records(rows_of(RECORDS), 1 << 30)).data)


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        ("snappy", bytes(pa.Codec("snappy").compress(PLAIN))),
        ("lz4", bytes(pa.Codec("lz4").compress(PLAIN))),
        ("gzip", gzip.compress(PLAIN[:500]) + gzip.compress(PLAIN[500:])),
        ("zstd", bytes(pa.Codec("zstd").compress(PLAIN[:9])) + bytes(pa.Codec("zstd").compress(PLAIN[9:]))),
    ],
)
def test_other_writers_framing_is_read(codec: str, packed: bytes) -> None:
    read = decode(sealed(packed, codec, 40))
    assert [r.value for r in read] == [r.v for r in RECORDS]
    assert [r.offset for r in read] == list(range(1000, 1040))


def test_linked_lz4_blocks_are_read() -> None:
    """Arrow's frames have them when there is more than one."""
    values = [b"%d" % at * 30 for at in range(5000)]
    [section] = encode_records(rows_of([Record(at, NOW, 1, None, v) for at, v in enumerate(values)]), 1 << 30)
    packed = bytes(pa.Codec("lz4").compress(section.data))
    assert not packed[4] & 0x20 or len(section.data) < 64 << 10
    assert [r.value for r in decode(sealed(packed, "lz4", 5000))] == values


def test_log_append_time_is_the_batchs() -> None:
    read = decode(sealed(PLAIN, count=40, flags=0x08, largest=NOW + 77))
    assert {(r.timestamp, r.timestamp_type) for r in read} == {(NOW + 77, 2)}


def test_offsets_left_out_by_compaction_stay_left_out() -> None:
    lines = b"".join(
        wire._varint(len(body)) + body
        for body in (b"\0\0" + wire._varint(place) + b"\1\1\0" for place in (3, 7))
    )
    batch = sealed(lines, count=2, last=9)
    assert [(r.offset, r.key, r.value) for r in decode(batch)] == [(1003, None, None), (1007, None, None)]
    assert next(headers(batch))[1].next_offset == 1010


@pytest.mark.parametrize("flags", [0, CODECS["zstd"]])
def test_a_batch_that_compaction_emptied_has_no_records(flags: int) -> None:
    batch = sealed(b"", count=0, last=4, flags=flags)
    assert decode(batch) == []
    assert next(headers(batch))[1].next_offset == 1005


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
def test_any_buffer_is_read(kind: Any) -> None:
    batch = sealed(PLAIN, count=40)
    assert len(decode(kind(batch))) == 40
    assert len(list(headers(kind(batch + batch)))) == 2


@given(st.lists(st.integers(1, 30), max_size=6), st.data())
def test_headers_finds_each_whole_batch_of_a_chunk(counts: list[int], data: st.DataObject) -> None:
    chunk = [sealed(PLAIN, count=count) for count in counts]
    joined = b"".join(chunk)
    cut = data.draw(st.integers(0, len(joined)))
    want, at = [], 0
    for batch in chunk:
        if at + len(batch) <= cut:
            want.append((at, struct.unpack_from(">i", batch, 57)[0]))
        at += len(batch)
    assert [(at, header.count) for at, header in headers(joined[:cut])] == want


def test_a_header_says_what_the_batch_does() -> None:
    batch = sealed(PLAIN, "lz4", 40, 50, flags=0x30, base=1, largest=2)
    [(_, header)] = headers(batch)
    crc = google_crc32c.value(batch[21:])
    assert header == BatchHeader(1000, len(batch) - 12, 5, 2, crc, 0x33, 50, 1, 2, -1, -1, -1, 40)
    assert header.control and header.transactional and header.codec == 3 and header.next_offset == 1051


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (16, b"\0", "magic 0"),
        (16, b"\1", "magic 1"),
        (8, b"\xff" * 4, "-1 bytes"),
        (8, b"\0\0\0\x30", "48 bytes"),
    ],
)
def test_what_can_be_no_batch_is_refused(at: int, value: bytes, message: str) -> None:
    good = sealed(PLAIN, count=40)
    bad = good[:at] + value + good[at + len(value) :]
    found = headers(good + bad)
    assert next(found)[0] == 0
    with pytest.raises(BatchError, match=message):
        next(found)
    with pytest.raises(BatchError):
        decode(bad)


def test_not_one_whole_batch_is_refused() -> None:
    good = sealed(PLAIN, count=40)
    for bad in (b"", good[:20], good[:60], good[:-1], good + b"\0", good + good):
        with pytest.raises(BatchError):
            decode(bad)


def test_any_changed_bit_is_noticed() -> None:
    """But for those of the base offset, which the checksum does not cover. (Nor the leader's epoch: one below
    -1 is none.)"""
    [section] = encode_records(rows_of(many(3)), 1 << 30)
    good = whole(seal(section, "none"))
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        if at < 8:
            assert len(decode(bad)) == 3
        else:
            with pytest.raises(BatchError):
                decode(bad)


def read_or_refused(batch: bytes) -> None:
    """Never another error, and nothing that a record can't be."""
    try:
        read = decode(batch)
    except BatchError:
        return
    offsets = [r.offset for r in read]
    assert offsets == sorted(set(offsets))
    for r in read:
        assert -(2**63) <= r.timestamp < 2**63
        assert all(p is None or type(p) is bytes for p in (r.key, r.value))
        assert all(type(n) is str and (v is None or type(v) is bytes) for n, v in r.headers or ())


BODIES = [
    ("none", PLAIN),
    *((codec, whole(seal(next(encode_records(rows_of(RECORDS), 1 << 30)), codec)[1:])) for codec in CODECS),
    ("snappy", bytes(pa.Codec("snappy").compress(PLAIN))),
]


@settings(max_examples=400)
@given(
    st.sampled_from(BODIES),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=5),
    st.integers(0, 10_000),
    st.integers(-2, 45),
    st.integers(-2, 45),
)
def test_a_damaged_batch_is_read_or_refused(
    body: tuple[str, bytes], changes: list[tuple[int, int]], keep: int, count: int, last: int
) -> None:
    """With a right checksum: whoever damaged it may have meant to."""
    codec, data = body
    changed = bytearray(data)
    for at, byte in changes:
        changed[at % len(data)] = byte
    read_or_refused(sealed(bytes(changed[: keep % len(data) or None]), codec, count, last))


@given(st.binary(max_size=200), st.sampled_from([*CODECS]), st.integers(0, 3))
def test_random_bytes_are_read_or_refused(data: bytes, codec: str, count: int) -> None:
    read_or_refused(sealed(data, codec, count))
    with contextlib.suppress(BatchError):
        list(headers(data))
    read_or_refused(data)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\1" + b"\0\0\0\1\1\0",  # a length below 0
        b"\x0a" + b"\0\0\0\1\1",  # too short for a record
        b"\x0e" + b"\0\0\0\1\1\0\0",  # a byte left over
        b"\x0c" + b"\0\0\0\1\1\0" + b"\0",  # and one behind the record
        b"\x0c" + b"\0\0\0\1\1\1",  # less than no headers
        b"\x0c" + b"\0\0\0\1\1\2",  # a header that is not there
        b"\x10" + b"\0\0\0\1\1\2\1\1",  # one without a name
        b"\x12" + b"\0\0\0\1\1\2\2\xff\1",  # one whose name is no text
        b"\x0c" + b"\0\0\0\3\1\0",  # a key of length -2
        b"\x0c" + b"\0\0\0\1\x04\0",  # a value that reaches beyond the record
        b"\x0c" + b"\0\0\2\1\1\0",  # a place behind the last
        b"\x0c" + b"\0\0\1\1\1\0",  # one before the first
        b"\xff\xff\xff\xff\x1f" + b"\0\0\0\1\1\0",  # a length of more than 32 bits
        b"\x80\x80\x80\x80\x80\0" + b"\0\0\0\1\1\0",  # and one that does not end
        b"\x2a" + b"\0" + b"\xff" * 9 + b"\x02" + b"\0\1\1\0" + b"\0" * 6,  # a time of more than 64
    ],
)
def test_an_ill_formed_record_is_refused(body: bytes) -> None:
    with pytest.raises(BatchError):
        decode(sealed(body))
    assert len(decode(sealed(b"\x0c" + b"\0\0\0\1\1\0"))) == 1


def test_a_record_does_not_reach_into_the_next() -> None:
    with pytest.raises(BatchError, match="1 bytes left over"):
        decode(sealed(b"\x0e" + b"\0\0\0\1\1\0" + b"\x0c" + b"\0\0\2\1\1\0", count=2))


def test_an_unknown_codec_is_refused() -> None:
    for codec in (5, 6, 7):
        with pytest.raises(BatchError, match=f"codec {codec}"):
            decode(sealed(PLAIN, count=40, flags=codec))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "raw snappy", "lz4", "zstd"])
def test_what_would_unpack_into_too_much_is_refused(codec: str) -> None:
    """A few kilobytes could unpack into more memory than the reader has."""
    zeros = bytes(MAX_UNPACKED_BYTES * 2)
    plain = pa.py_buffer(zeros)
    if codec == "raw snappy":
        codec, packed = "snappy", bytes(pa.Codec("snappy").compress(plain))
    else:
        packed = whole(record_batch._compressed(plain, codec, 1))
    del plain, zeros
    batch = sealed(packed, codec)
    assert len(batch) < MAX_UNPACKED_BYTES // 10
    with pytest.raises(BatchError, match="unpack into more"), at_most(MAX_UNPACKED_BYTES + (1 << 20)):
        decode(batch)


def test_a_claim_of_many_records_takes_no_memory() -> None:
    batch = sealed(PLAIN, count=2**31 - 1)
    with pytest.raises(BatchError), at_most(1 << 20):
        decode(batch)


@contextlib.contextmanager
def at_most(size: int) -> Iterator[None]:
    """Fails where Python's objects take more than so many bytes."""
    tracemalloc.start()
    try:
        yield
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < size
