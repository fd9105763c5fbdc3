"""What a frame is made of: a record batch where no offset is missing, columns otherwise, and what compresses
either."""

from __future__ import annotations

from dataclasses import astuple
from itertools import accumulate, pairwise
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kafka.wire.record_batch import CODECS
from common.kafka.wire.records import Rows, encode_rows
from common.link import batch_frame
from common.link.batch_frame import BatchFrame
from common.link.frame import Frame, decode_rows
from replicator.lane.frame_packer import (
    PLAIN_BYTES,
    FramePacker,
    Packed,
    frame_codec,
    starts,
    whole_codecs,
)
from tests.support.strategies import INT64, Record, chunk_of, records

CONFIGS = st.sampled_from(
    [
        {},
        *({"compression.type": codec} for codec in CODECS),
        {"compression.type": "gzip", "compression.level": "9"},
    ]
)


def read(packer: FramePacker, some: list[Record]) -> BatchFrame | Rows:
    """What a deduplicator finds in a frame of these."""
    rows = chunk_of(some).rows
    assert rows is not None
    (packed,) = packer.pack(rows)
    value, batches = packed.value, packed.sealed
    assert packed.count == len(some)
    of = Frame("c", "orders", "id", 0, some[0].at, some[-1].at + 1, len(some), "w", batches=batches)
    return (batch_frame.decode if batches else decode_rows)(of, crc32(value), bytes(value))


def told(rows: Rows) -> list[tuple[Any, ...]]:
    """Null and empty lists of headers are the same to Kafka."""
    each = zip(
        rows.offsets,
        rows.timestamps,
        rows.keys,
        rows.values,
        rows.headers or [None] * rows.count,
        strict=True,
    )
    return [(*some, headers or None) for *some, headers in each]


def known(some: list[Record]) -> list[tuple[Any, ...]]:
    return [(at, stamp, k, v, h or None) for at, stamp, _, k, v, h in map(astuple, some)]


@given(records(min_size=1), CONFIGS, st.booleans())
def test_what_is_packed_is_what_is_read(some: list[Record], config: dict[str, str], provenance: bool) -> None:
    found = read(FramePacker.of(config, provenance), some)
    dense = some[-1].at - some[0].at + 1 == len(some)
    assert isinstance(found, BatchFrame) == (dense and not provenance)
    if isinstance(found, BatchFrame):
        ((_, header),) = found.batches
        assert (header.base_offset, header.next_offset) == (some[0].at, some[-1].at + 1)
        assert header.codec in (0, CODECS[config.get("compression.type", "lz4")])
        assert not header.transactional and not header.log_append_time
    assert told(found.rows() if isinstance(found, BatchFrame) else found) == known(some)


@given(st.integers(33, 400), st.integers(0, 2**62), st.integers(0, 60), INT64, CONFIGS)
def test_many_records_too(count: int, at: int, size: int, stamp: int, config: dict[str, str]) -> None:
    some = [Record(at + n, stamp, 1, b"%d" % n, b"v" * size) for n in range(count)]
    found = read(FramePacker.of(config, False), some)
    assert isinstance(found, BatchFrame) and told(found.rows()) == known(some)


@given(
    st.lists(st.sampled_from([0, 1, 30, 99, 100, 101, 300]), min_size=1, max_size=40),
    st.integers(1, 12),
)
def test_frames_together_have_no_more_than_each_may_and_are_about_alike(sizes: list[int], most: int) -> None:
    chunk = chunk_of([Record(at, v=b"x" * size) for at, size in enumerate(sizes)])
    assert chunk.rows is not None
    found = starts(chunk.rows, most, 100)
    assert found[0] == 0 and found == sorted(set(found)) and found[-1] < len(sizes)
    frames = [sizes[begin:end] for begin, end in pairwise([*found, len(sizes)])]
    assert all(len(frame) <= most and (sum(frame) <= 100 or len(frame) == 1) for frame in frames)
    if set(sizes) == {30} and most >= 3:
        assert max(map(len, frames)) <= 3 and len(frames) <= -(-len(sizes) // 3) + 1


@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=6), st.sets(st.integers(0, 400), max_size=3), CONFIGS
)
def test_frames_packed_together_are_those_packed_alone(
    counts: list[int], missing: set[int], config: dict[str, str]
) -> None:
    some = [Record(at, v=b"v%d" % at) for at in range(sum(counts) + len(missing)) if at not in missing]
    rows = chunk_of(some).rows
    assert rows is not None
    begins = [begin for begin in accumulate([0, *counts[:-1]]) if begin < len(some)]
    packer = FramePacker.of(config, False)
    parts = [rows.slice(begin, end - begin) for begin, end in pairwise([*begins, len(some)])]
    assert packer.pack(rows, begins) == [of for part in parts for of in packer.pack(part)]


def test_nothing_makes_no_batch() -> None:
    rows = encode_rows([], [], [], [], [], None)
    assert FramePacker.of({}, False).pack(rows) == [Packed(0, pa.py_buffer(b""), False, rows.nbytes)]


@pytest.mark.parametrize(
    ("config", "codec"),
    [
        ({}, "lz4"),
        ({"compression.type": "zstd", "compression.level": "3"}, "zstd"),
        ({"compression.type": "lz4", "compression.level": "-1"}, "lz4"),
        ({"compression.type": "gzip"}, None),
        ({"compression.type": "none"}, None),
    ],
)
def test_columns_are_compressed_with_what_arrow_knows(config: dict[str, str], codec: str | None) -> None:
    found = frame_codec(config)
    assert (found and found.name) == codec


def test_which_codecs_go_as_they_are_is_what_an_operator_has_asked_for() -> None:
    any_size = 1 << 31
    assert whole_codecs({}, False) == {0: PLAIN_BYTES} | dict.fromkeys((1, 2, 3, 4), any_size)
    assert whole_codecs({"compression.type": "zstd"}, False) == {4: any_size}
    assert whole_codecs({"compression.type": "none"}, False) == {0: any_size}
    assert whole_codecs({}, True) == {}, "each record gets a header"
