"""What a frame is made of: a record batch where no offset is missing, columns otherwise, and what compresses
either."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kafka.wire.record_batch import CODECS
from common.kafka.wire.records import Rows, crc32, encode_rows
from common.link import batch_frame
from common.link.batch_frame import BatchFrame
from common.link.frame import Frame, decode_rows
from replicator.lane.frame_packer import PLAIN_BYTES, FramePacker, frame_codec, whole_codecs
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
    value, batches = packer.pack(rows)
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


def test_nothing_makes_no_batch() -> None:
    rows = encode_rows([], [], [], [], [], None)
    assert FramePacker.of({}, False).pack(rows) == (b"", False)


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
