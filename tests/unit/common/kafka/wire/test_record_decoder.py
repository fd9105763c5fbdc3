"""Record batches as columns: what record_batch.decode has record by record, whoever wrote them; what it
refuses is refused, and nothing else happens."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.kafka.wire import record_decoder
from common.kafka.wire.record_batch import (
    CODECS,
    BatchError,
    BatchHeader,
    Record,
    Records,
    decode,
    headers,
    seal,
)
from common.kafka.wire.record_decoder import TooManyAtOnce, columns
from common.kafka.wire.record_encoder import encode_records
from common.kafka.wire.records import MAX_OFFSET, MAX_UNPACKED_BYTES, ROWS, Header, Item, encode_rows
from tests.support import strategies
from tests.support.wire import NOW, sealed

PAYLOADS = strategies.BYTES | st.sampled_from([b"twelve bytes", b"thirteen byte", b"v" * 64, b"v" * 9000])
STAMPS = st.integers(NOW, NOW + 50) | st.integers(NOW - 10**6, NOW + 10**10) | strategies.INT64
NAMES = st.sampled_from(["a", "", "é", "a name of more than twelve bytes"]) | strategies.TEXT
Batches = Sequence[tuple[int, BatchHeader]]


def in_parts(data: pa.Buffer, batches: Batches) -> pa.RecordBatch:
    """All at once, but a few records at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_decoder, "_PART", 20)
        return record_decoder._at_once(data, batches)


WAYS = [record_decoder._one_by_one, record_decoder._at_once, in_parts]


def rows_of(records: Sequence[Record]) -> pa.RecordBatch:
    return encode_rows(
        [r.offset for r in records],
        [r.timestamp for r in records],
        [r.timestamp_type for r in records],
        [r.key for r in records],
        [r.value for r in records],
        [r.headers for r in records],
    )


# A writer of its own: any offset deltas, and numbers that take more bytes than they need to.


def varint(number: int, size: int = 1) -> bytes:
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F or len(out) < size - 1:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def blob(value: bytes | None, size: int = 1) -> bytes:
    return varint(-1, size) if value is None else varint(len(value), size) + value


def line(
    delta: int,
    stamp: int = 0,
    key: Item = None,
    value: Item = None,
    named: list[Header] | None = None,
    size: int = 1,
) -> bytes:
    """A record as it is written. size: what each number takes at least, up to 5."""
    body = b"\0" + varint(stamp, size) + varint(delta, size) + blob(key, size) + blob(value, size)
    body += varint(len(named or []), size)
    body += b"".join(blob(n.encode(), size) + blob(v, size) for n, v in named or [])
    return varint(len(body), size) + body


def packed(data: bytes, codec: str) -> bytes:
    if codec == "none":
        return data
    return b"".join(map(bytes, seal(Records(1, 0, 0, pa.py_buffer(data)), codec)[1:]))


def found_in(data: bytes) -> Batches:
    return list(headers(data))


def plainly(data: bytes, batches: Batches) -> list[Record]:
    return [record for at, header in batches for record in decode(data[at : at + header.size])]


def same(got: pa.RecordBatch, want: list[Record]) -> bool:
    """Compared by value, and each buffer is as Arrow wants it."""
    got.validate(full=True)
    assert got.schema == ROWS
    assert not any(got.column(at).null_count for at in range(3))
    return bool(got.equals(rows_of(want)))


def check(data: bytes, batches: Batches) -> None:
    want = plainly(data, batches)
    for way in (columns, *WAYS):
        assert same(way(pa.py_buffer(data), batches), want)


@st.composite
def batch_records(draw: st.DrawFn, most: int = 12) -> list[Record]:
    """Records of one shape or of several."""
    keys = draw(st.sampled_from([st.none(), PAYLOADS, PAYLOADS.filter(lambda p: p is not None)]))
    values = draw(st.sampled_from([st.none(), PAYLOADS, PAYLOADS]))
    stamps = draw(st.sampled_from([st.integers(NOW, NOW + 50), STAMPS]))
    each = draw(st.sampled_from([0, 0, 1, 3, None]))
    named: st.SearchStrategy[Any] = strategies.HEADERS
    if each is not None:
        named = st.lists(st.tuples(NAMES, PAYLOADS), min_size=each, max_size=each)
    some = draw(st.lists(st.tuples(stamps, keys, values, named), min_size=1, max_size=most))
    # Many records, from a few that were drawn: more than are read one by one.
    some *= draw(st.sampled_from([1, 1, 1, 9]))
    return [Record(at, stamp, 1, key, value, h) for at, (stamp, key, value, h) in enumerate(some)]


def at_offset(batch: bytes, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + batch[8:]


@settings(max_examples=150)
@given(
    st.lists(st.tuples(batch_records(), st.sampled_from([*CODECS]), st.integers(0, 50)), max_size=4),
    strategies.OFFSETS,
    st.sampled_from([100, 1 << 30]),
)
def test_what_was_encoded_and_sealed_is_read(
    parts: list[tuple[list[Record], str, int]], offset: int, most: int
) -> None:
    data, want = b"", []
    for records, codec, gap in parts:
        offset += gap
        for section in encode_records(rows_of(records), most):
            data += at_offset(b"".join(map(bytes, seal(section, codec))), offset)
            offset += section.count
        first = offset - len(records)
        want += [r._replace(offset=first + r.offset, headers=r.headers or None) for r in records]
    batches = found_in(data)
    assert plainly(data, batches) == want
    check(data, batches)


@st.composite
def hand_made(draw: st.DrawFn) -> bytes:
    """A batch as compaction may leave one, or a writer of less skill: offsets missing, numbers longer than
    need be, any type of timestamp."""
    lines, delta = b"", -1
    count = draw(st.sampled_from([1, 2, 5, 40]))
    some = draw(
        st.lists(
            st.tuples(
                st.sampled_from([1, 1, 2, 100, 10**6]),
                st.integers(0, 100) | strategies.INT64,
                PAYLOADS,
                PAYLOADS,
                strategies.HEADERS,
                st.sampled_from([1, 1, 1, 2, 3, 4, 5]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    for at in range(count):
        step, stamp, key, value, named, size = some[at % len(some)]
        delta += step
        lines += line(delta, stamp, key, value, named, size)
    codec = draw(st.sampled_from([*CODECS]))
    body = packed(lines, codec)
    return sealed(
        body,
        codec if body != lines else "none",
        count,
        delta + draw(st.integers(0, 3)),
        flags=draw(st.sampled_from([0, 0x08, 0x10, 0x80])),
        base=draw(st.just(NOW) | strategies.INT64),
        largest=draw(st.just(NOW + 77) | strategies.INT64),
        offset=draw(st.integers(0, 2**40)),
    )


@settings(max_examples=150)
@given(st.lists(hand_made(), min_size=1, max_size=4), st.data())
def test_batches_of_any_writer_are_read(made: list[bytes], data: st.DataObject) -> None:
    batches = found_in(b"".join(made))
    check(b"".join(made), batches)
    # Some of them are the caller's to leave out.
    left = data.draw(st.lists(st.sampled_from(batches), unique=True).map(sorted))
    check(b"".join(made), left)


def test_offsets_left_out_by_compaction_stay_left_out() -> None:
    data = sealed(line(3) + line(7), count=2, last=9)
    for way in WAYS:
        assert way(pa.py_buffer(data), found_in(data)).column(0).to_pylist() == [1003, 1007]


def test_log_append_time_is_the_batchs() -> None:
    plain = sealed(line(0, 5) + line(1, 6), count=2)
    late = sealed(line(0, 5) + line(1, 6), count=2, flags=0x08, largest=NOW + 77)
    for way in WAYS:
        rows = way(pa.py_buffer(plain + late), found_in(plain + late))
        assert rows.column(1).to_pylist() == [NOW + 5, NOW + 6, NOW + 77, NOW + 77]
        assert rows.column(2).to_pylist() == [1, 1, 2, 2]


def test_timestamps_wrap_as_javas_do() -> None:
    data = sealed(line(0, 1) + line(1, -(2**63)), count=2, base=2**63 - 1)
    for way in WAYS:
        assert way(pa.py_buffer(data), found_in(data)).column(1).to_pylist() == [-(2**63), -1]


@pytest.mark.parametrize("flags", [0, CODECS["zstd"]])
def test_batches_that_compaction_emptied_add_nothing(flags: int) -> None:
    empty = sealed(b"", count=0, last=4, flags=flags)
    for way in (columns, *WAYS):
        assert same(way(pa.py_buffer(empty + empty), found_in(empty + empty)), [])
        assert same(way(pa.py_buffer(b""), []), [])
    data = empty + sealed(line(0), offset=2000) + empty
    check(data, found_in(data))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
def test_any_buffer_is_read(kind: Callable[[bytes], Any]) -> None:
    data = sealed(b"".join(line(at, value=b"v") for at in range(100)), count=100)
    assert columns(kind(data), found_in(data)).num_rows == 100


@pytest.mark.parametrize("codec", [*CODECS])
@pytest.mark.parametrize("named", [0, 3])
def test_large_batches_are_read(codec: str, named: int) -> None:
    """More than one block of each codec that has some, and more than room is made for to begin with."""
    lines = b"".join(
        line(at, at // 9, b"%d" % at, b"value %d" % at * (at % 300), [("h", b"%d" % at)] * (at % (named + 1)))
        for at in range(1500)
    )
    batch = sealed(packed(lines, codec), codec, 1500)
    assert codec == "none" or len(batch) < len(lines) / 4
    check(batch * 2, found_in(batch * 2))


@pytest.mark.parametrize(
    ("codec", "pack"),
    [
        ("snappy", lambda data: bytes(pa.Codec("snappy").compress(data))),
        ("lz4", lambda data: bytes(pa.Codec("lz4").compress(data))),
        ("gzip", lambda data: gzip.compress(data[:500]) + gzip.compress(data[500:])),
        (
            "zstd",
            lambda data: b"".join(bytes(pa.Codec("zstd").compress(part)) for part in (data[:9], data[9:])),
        ),
    ],
)
def test_other_writers_framing_is_read(codec: str, pack: Callable[[bytes], bytes]) -> None:
    lines = b"".join(line(at, value=b"%d" % at * 100) for at in range(500))
    check(sealed(pack(lines), codec, 500), found_in(sealed(pack(lines), codec, 500)))


def test_a_record_may_have_many_headers_where_others_have_few() -> None:
    for counts in ([3000] + [2] * 50, [0] * 50 + [3000], [5] * 50 + [0, 100]):
        lines = b"".join(
            line(at, named=[(f"n{turn}", b"%d" % turn if turn % 3 else None) for turn in range(many)])
            for at, many in enumerate(counts)
        )
        check(sealed(lines, count=len(counts)), found_in(sealed(lines, count=len(counts))))


def test_each_size_of_key_value_and_name_is_read() -> None:
    """Up to twelve bytes they are told to Arrow otherwise than longer ones; numbers of up to two bytes are
    read otherwise too."""
    sizes = [*range(40), 63, 64, 65, 8191, 8192, 8193, 2**20]
    lines = b"".join(
        line(at, size, b"k" * size, b"v" * size, [("n" * size, b"h" * size)]) for at, size in enumerate(sizes)
    )
    check(sealed(lines, count=len(sizes)), found_in(sealed(lines, count=len(sizes))))
    for size in sizes:
        lines = b"".join(line(at, value=b"v" * size) for at in range(3))
        check(sealed(lines, count=3), found_in(sealed(lines, count=3)))


# What is damaged, or was never well.


def refused(data: bytes, batches: Batches, match: str | None = None) -> None:
    for way in (columns, *WAYS):
        with pytest.raises(BatchError, match=match):
            way(pa.py_buffer(data), batches)


def read_or_refused(data: bytes, batches: Batches) -> None:
    """As decode has it."""
    try:
        plainly(data, batches)
    except BatchError:
        refused(data, batches)
    else:
        check(data, batches)


def lines_of(count: int, named: int) -> bytes:
    draw = random.Random(count)
    return b"".join(
        line(
            at,
            draw.choice([at, at * 1000, -(2**60)]),
            draw.choice([None, b"", b"k", b"key of more than twelve"]),
            draw.choice([None, b"", b"v%d" % at, b"value" * 30]),
            [("é", b"v"), ("", None), ("name", b"")][: draw.randint(0, named)],
            draw.choice([1, 1, 1, 3]),
        )
        for at in range(count)
    )


BODIES = [
    (count, codec, body)
    for count, named in ((4, 0), (5, 3), (40, 0), (50, 3))
    for plain in [lines_of(count, named)]
    for codec, body in [
        ("none", plain),
        *((codec, packed(plain, codec)) for codec in CODECS),
        ("snappy", bytes(pa.Codec("snappy").compress(plain))),
    ]
]
CHANGES = st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 255)), max_size=4)


def damaged(data: bytes, changes: list[tuple[int, int]], keep: int = 0) -> bytes:
    changed = bytearray(data)
    for at, byte in changes:
        changed[at % len(data)] = byte
    return bytes(changed[: keep % len(data) or None])


@settings(max_examples=400)
@given(
    st.sampled_from(BODIES),
    CHANGES,
    st.just(0) | st.integers(0, 100_000),
    st.sampled_from([0, 0, 0, -1, 1, -60, 2**31 - 100]),
    st.sampled_from([0, 0, 0, -1, 1, -60]),
    st.sampled_from(["before", "behind", "alone"]),
)
def test_a_damaged_batch_is_read_as_decode_reads_it_or_refused(
    body: tuple[int, str, bytes], changes: list[tuple[int, int]], keep: int, more: int, late: int, place: str
) -> None:
    """With a right checksum: whoever damaged it may have meant to. A batch that is well, beside it, is no
    help."""
    count, codec, data = body
    batch = sealed(damaged(data, changes, keep), codec, count + more, count - 1 + late)
    well = sealed(lines_of(40, 2), count=40)
    data = {"before": batch + well, "behind": well + batch, "alone": batch}[place]
    read_or_refused(data, found_in(data))


@settings(max_examples=400)
@given(
    st.sampled_from([body for body in BODIES if body[1] == "none"]),
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 255)), min_size=1, max_size=2),
    st.sampled_from(["none", "lz4"]),
)
def test_damaged_records_are_read_as_decode_reads_them_or_refused(
    body: tuple[int, str, bytes], changes: list[tuple[int, int]], codec: str
) -> None:
    """Damaged before they were packed, and then no codec notices."""
    count, _, plain = body
    data = damaged(plain, changes)
    small = packed(data, codec)
    batch = sealed(small, codec if small != data else "none", count)
    read_or_refused(batch, found_in(batch))


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from([b"\0", b"\1", b"\2", b"\x80", b"\xff", b"\x0c", b"\x0e", b"\x10"]), max_size=60
    ),
    st.integers(0, 5),
    st.integers(0, 40),
)
def test_random_records_are_read_as_decode_reads_them_or_refused(
    noise: list[bytes], count: int, before: int
) -> None:
    lines = b"".join(line(at) for at in range(before)) + b"".join(noise)
    batch = sealed(lines, count=count + before)
    read_or_refused(batch, found_in(batch))


@settings(max_examples=200)
@given(st.binary(max_size=200), st.sampled_from([*CODECS]), st.integers(0, 50))
def test_random_bytes_are_read_as_decode_reads_them_or_refused(data: bytes, codec: str, count: int) -> None:
    batch = sealed(data, codec, count)
    read_or_refused(batch, found_in(batch))


@pytest.mark.parametrize("before", [0, 50])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\1" + b"\0\0%\1\1\0",  # a length below 0
        b"\x0d" + b"\0\0%\1\1\0",  # another, which would be right if it were not
        b"\x0a" + b"\0\0%\1\1",  # too short for a record
        b"\x0e" + b"\0\0%\1\1\0\0",  # a byte left over
        b"\x0c" + b"\0\0%\1\1\0" + b"\0",  # and one behind the record
        b"\x0c" + b"\0\0%\1\1\1",  # less than no headers
        b"\x0c" + b"\0\0%\1\1\2",  # a header that is not there
        b"\x10" + b"\0\0%\1\1\2\1\1",  # one without a name
        b"\x12" + b"\0\0%\1\1\2\2\xff\1",  # one whose name is no text
        b"\x16" + b"\0\0%\1\1\2\6\xed\xa0\x80\1",  # one whose name is half a character
        b"\x10" + b"\0\0%\1\1\2\0\3",  # one with a value of length -2
        b"\x18" + b"\0\0%\1\1\xfe\xff\xff\xff\x0f\0\1",  # more headers than there are bytes
        b"\x0c" + b"\0\0%\3\1\0",  # a key of length -2
        b"\x0c" + b"\0\0%\1\x04\0",  # a value that reaches beyond the record
        b"\x14" + b"\0\0%\1\xfe\xff\xff\xff\x0f\0",  # and far beyond
        b"\x14" + b"\0\0%\xfe\xff\xff\xff\x0f\1\0",  # a key that does
        b"\x14" + b"\0\0%\1\xfe\xff\xff\xff\x1f\0",  # a length of more than 32 bits
        b"\x16" + b"\0\0%\1\x80\x80\x80\x80\x80\0\0",  # and one that does not end
        b"\x0c" + b"\0\0\1\1\1\0",  # a place before the first
        b"\xff\xff\xff\xff\x1f" + b"\0\0%\1\1\0",
        b"\x80\x80\x80\x80\x80\0" + b"\0\0%\1\1\0",
        b"\xff\xff\xff\xff\x0f" + b"\0\0%\1\1\0",
        b"\x2a" + b"\0" + b"\xff" * 9 + b"\x02" + b"%\1\1\0" + b"\0" * 6,  # a time of more than 64 bits
        b"\x1e" + b"\0" + b"\xff" * 9 + b"\x02" + b"%\1\1\0",
        b"\x20" + b"\0" + b"\xff" * 10 + b"\x01" + b"%\1\1\0",  # and one that does not end
    ],
)
def test_an_ill_formed_record_is_refused(body: bytes, before: int) -> None:
    """Alone, and behind many that are well. Its place stands where the percent sign does."""
    place = varint(before)
    size = len(place) - 1
    if size and body:
        body = bytes([body[0] + 2 * size]) + body[1:] if body[0] < 0x80 else body
    lines = b"".join(line(at) for at in range(before))
    batch = sealed(lines + body.replace(b"%", place), count=before + 1)
    with pytest.raises(BatchError):
        decode(batch)
    refused(batch, found_in(batch), "batch at offset 1000")
    well = sealed(lines + line(before), count=before + 1)
    check(well, found_in(well))


def test_places_ascend_and_end_where_the_batch_says() -> None:
    for deltas, last in (([0, 0], 5), ([2, 1], 5), ([0, 6], 5), ([-1, 0], 5), ([-(2**31), 1], 5)):
        batch = sealed(b"".join(map(line, deltas)), count=2, last=last)
        # The batch before has other places, and its last one is not this one's first.
        for data in (batch, sealed(line(3), last=3) + batch, batch + sealed(line(3), last=3)):
            refused(data, found_in(data), "batch at offset 1000")


def test_a_record_does_not_reach_into_the_next_batch() -> None:
    """Its bytes follow once they are unpacked, and would even be right."""
    whole = line(0) + line(1)
    for cut in range(1, len(whole)):
        data = sealed(whole[:cut], count=2) + sealed(whole[cut:], count=1)
        refused(data, found_in(data))


def test_a_number_that_ends_in_the_next_record_is_refused() -> None:
    data = sealed(b"\x0c" + b"\0\0\0\1\1\x80" + line(1), count=2)
    refused(data, found_in(data))


@pytest.mark.parametrize("way", [columns, *WAYS])
def test_the_error_names_the_batch(way: Any) -> None:
    well = sealed(b"".join(line(at) for at in range(40)), count=40)
    bad = [line(0, named=[("n", b"v")])[:-4] + b"\2\xff\1", b"\x0c\0\0\0\3\1\0", b"\x0c\0\0\2\1\1\0"]
    for body in bad:
        data = well + sealed(body, offset=2000) + at_offset(well, 3000)
        with pytest.raises(BatchError, match="batch at offset 2000"):
            way(pa.py_buffer(data), found_in(data))


def test_any_changed_bit_is_noticed() -> None:
    """But for those that the checksum does not cover: the base offset, and the leader's epoch; and the
    length, which `headers` has judged."""
    good = sealed(lines_of(3, 2), count=3)
    for at in range(17, len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        refused(bytes(bad), found_in(bytes(bad)), "checksum")


def test_an_unknown_codec_is_refused() -> None:
    for codec in (5, 6, 7):
        data = sealed(line(0), flags=codec)
        refused(data, found_in(data), f"codec {codec}")


def test_batches_that_are_not_whole_are_refused() -> None:
    data = sealed(line(0))
    [(_, header)] = found_in(data)
    for at, cut in ((0, data[:-1]), (1, data), (-1, data)):
        with pytest.raises(BatchError, match="beyond what was fetched"):
            columns(cut, [(at, header)])


def test_offsets_beyond_the_last_one_are_refused() -> None:
    fits = sealed(line(0) + line(5), count=2, last=5, offset=MAX_OFFSET - 5)
    check(fits, found_in(fits))
    data = sealed(line(0) + line(6), count=2, last=6, offset=MAX_OFFSET - 5)
    with pytest.raises(BatchError, match="beyond the last offset"):
        columns(data, found_in(data))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "raw snappy", "lz4", "zstd"])
def test_what_would_unpack_into_too_much_is_refused(codec: str) -> None:
    """A few kilobytes could unpack into more memory than the reader has."""
    zeros = bytes(MAX_UNPACKED_BYTES * 2)
    if codec == "raw snappy":
        codec, body = "snappy", bytes(pa.Codec("snappy").compress(zeros))
    else:
        body = packed(zeros, codec)
    batch = sealed(body, codec, 100)
    before = pa.total_allocated_bytes()
    with pytest.raises(BatchError, match="unpack into more"):
        columns(batch, found_in(batch))
    assert pa.total_allocated_bytes() == before


def test_batches_that_unpack_into_too_much_together_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_decoder, "MOST_TOGETHER_BYTES", 300_000)
    lines = b"".join(line(at, value=b"v" * 2000) for at in range(100))
    batch = sealed(packed(lines, "lz4"), "lz4", 100)
    assert columns(batch, found_in(batch)).num_rows == 100
    with pytest.raises(TooManyAtOnce):
        columns(batch * 2, found_in(batch * 2))
    # Alone it may be larger than that.
    monkeypatch.setattr(record_decoder, "MOST_TOGETHER_BYTES", 100_000)
    assert columns(batch, found_in(batch)).num_rows == 100


def test_a_claim_of_many_records_or_headers_takes_no_memory() -> None:
    many = sealed(line(0), count=2**31 - 1)
    named = b"".join(line(at) for at in range(50)) + b"\x14" + b"\0\0\x64\1\1\xfe\xff\xff\xff\x0f"
    for data in (many, sealed(named, count=51)):
        batches = found_in(data)
        tracemalloc.start()
        try:
            with pytest.raises(BatchError):
                columns(data, batches)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
