"""Messages of magic 0 and 1: the records come out as Kafka has them, and what is damaged is refused."""

from __future__ import annotations

import gzip
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kafka.wire.message_sets import _xxh32, leading
from common.kafka.wire.record_batch import BatchError, headers
from tests.support import strategies
from tests.support.old_format import NOW, Old, compressed, message

CODECS = ["gzip", "snappy", "lz4"]
SOME = [
    Old(b"k", b"v" * 30, NOW),
    Old(None, b"", NOW + 1),
    Old(b"", None, NOW - 5),
    Old(b"k" * 9, b"w" * 300, 0),
]


def read(data: bytes, position: int = 0, most: int = 1 << 30, floor: int = 0) -> tuple[list[Any], int]:
    buffer = pa.py_buffer(data)
    rows, end, _ = leading(buffer, list(headers(buffer, old=True)), position, most, floor)
    rows.validate(full=True)
    columns = [rows.column(at).to_pylist() for at in range(6)]
    return list(zip(*columns, strict=True)), end


def wanted(offset: int, records: list[Old], magic: int, kind: int = 1, stamp: int | None = None) -> list[Any]:
    return [
        (
            offset + at,
            (r.stamp if stamp is None else stamp) if magic else -1,
            kind if magic else 0,
            r.key,
            r.value,
            None,
        )
        for at, r in enumerate(records)
    ]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_that_are_not_compressed_are_read(magic: int) -> None:
    data = b"".join(message(7 + at, r, magic) for at, r in enumerate(SOME))
    assert read(data) == (wanted(7, SOME, magic), 11)


def test_a_message_of_magic_0_has_no_time_and_that_is_not_0() -> None:
    assert [r[1:3] for r in read(message(0, SOME[0], 0))[0]] == [(-1, 0)]
    assert [r[1:3] for r in read(message(0, Old(None, b"v", 0), 1))[0]] == [(0, 1)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [*CODECS, "raw snappy"])
def test_compressed_messages_are_read(magic: int, codec: str) -> None:
    """Those within have places from 0 on with magic 1, and offsets with magic 0; LZ4's checksum is another
    one with magic 0."""
    many = SOME * 300
    data = compressed(1000, many, magic, codec.removeprefix("raw "), xerial=codec == "snappy")
    assert read(data) == (wanted(1000, many, magic), 1000 + len(many))


def test_times_that_a_broker_has_set_are_those_of_the_message_around() -> None:
    data = message(3, SOME[0], 1, 0x08) + compressed(4, SOME, 1, "gzip", 0x08, NOW + 99)
    assert read(data)[0] == wanted(3, SOME[:1], 1, 2) + wanted(4, SOME, 1, 2, NOW + 99)


@pytest.mark.parametrize("magic", [0, 1])
def test_offsets_that_compaction_took_are_missing(magic: int) -> None:
    data = compressed(50, SOME, magic, "lz4", places=[0, 3, 4, 9])
    assert [r[0] for r in read(data)[0]] == [50, 53, 54, 59]


def test_reading_begins_at_a_position_and_ends_where_it_is_enough() -> None:
    data = compressed(0, SOME * 10, 1, "gzip") + message(40, SOME[0], 1)
    everything = read(data)[0]
    got: list[Any] = []
    position, turns = 0, 0
    while position < 41:
        some, position = read(data, position, 2000)
        got += some
        turns += 1
    assert got == everything and turns > 2
    assert [r[0] for r in read(data, 38)[0]] == [38, 39, 40]


@given(
    st.lists(st.tuples(strategies.BYTES, strategies.BYTES, strategies.INT64), min_size=1, max_size=9),
    st.sampled_from([0, 1]),
    st.sampled_from(["none", *CODECS]),
)
def test_any_records_are_read(records: list[Any], magic: int, codec: str) -> None:
    some = [Old(*r) for r in records]
    data = (
        b"".join(message(5 + at, r, magic) for at, r in enumerate(some))
        if codec == "none"
        else compressed(5, some, magic, codec)
    )
    assert read(data)[0] == wanted(5, some, magic)


def again(offset: int, inner: bytes, magic: int = 1, attributes: int = 1, key: bytes | None = None) -> bytes:
    """A message around any bytes, with a right checksum."""
    return message(offset, Old(key, gzip.compress(inner)), magic, attributes)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (message(9, Old(None, b"x"), 1, 0x04), "did not have"),
        (message(9, Old(None, b"x"), 1, 0x07), "codec 7"),
        (message(9, Old(None, None), 1, 0x01), "nothing"),
        (again(9, b""), "holds messages"),
        (again(9, message(0, SOME[0], 0)), "own format"),
        (again(9, compressed(0, SOME, 1, "gzip")), "own format"),
        (again(9, message(0, SOME[0], 1)[:-1]), "left over"),
        (again(9, message(0, SOME[0], 1) * 2), "do not ascend"),
        (again(1, message(0, SOME[0], 1) + message(5, SOME[0], 1)), "holds messages"),
        (again(9, message(8, SOME[0], 0), 0), "holds messages"),
        (again(9, message(0, SOME[0], 1)[:-1] + b"x"), "checksum"),
        (compressed(3, SOME, 1, "gzip"), "begin at 4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_client_wrote_is_refused_by_its_offset(data: bytes, what: str) -> None:
    (offset,) = struct.unpack_from(">q", data)
    with pytest.raises(BatchError, match=f"offset {offset}.*{what}"):
        read(data, floor=4)


def test_what_is_sound_before_it_comes_first() -> None:
    good, bad = message(3, SOME[0], 1), again(4, b"")
    assert read(good + bad) == (wanted(3, SOME[:1], 1), 4)


def test_the_hash_is_xxhash() -> None:
    """Values of its reference implementation."""
    assert [_xxh32(text) for text in (b"", b"abcde")] == [0x02CC5D05, 0x9738F19B]
