"""Records as Arrow columns, and what bounds them: the form in which they pass from the source's batches to
the destination's. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import pyarrow as pa

MAX_RECORDS = 1 << 20
"""No frame is written with more, and one that claims more is none of ours: it would only serve to fill the
reader's memory."""

MAX_UNPACKED_BYTES = 128 << 20
"""A larger frame is not compressed: one that would unpack into more is none of ours either."""
MAX_OFFSET = 2**63 - 1
Item = bytes | None
"""A key or a value."""
Header = tuple[str, Item]

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary())]))
ROWS = pa.schema(
    [
        pa.field("offset", pa.int64(), False),
        pa.field("timestamp", pa.int64(), False),
        pa.field("timestamp_type", pa.int8(), False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)
"""Schema of a frame's value: the record's source offset, its timestamp in ms since the epoch and that
timestamp's type (0 none, 1 CreateTime, 2 LogAppendTime), key and value (null and empty differ), and headers
in order (null: none)."""


@dataclass(frozen=True)
class Rows:
    """The records of a frame: `batch` is of `ROWS`. `offsets` ascend: a range, or a list where some are
    missing. `bytes` is about what keys and values take together, `unpacked` what their whole frame takes, not
    compressed.

    Column by column as Python's objects they are there for who asks: for most frames nobody does.
    """

    offsets: Sequence[int]
    batch: pa.RecordBatch
    bytes: int = 0
    unpacked: int = 0

    @classmethod
    def of(cls, offsets: Sequence[int], batch: pa.RecordBatch) -> Rows:
        """All of a frame's."""
        data = (batch.column(at).buffers()[2] for at in (3, 4))
        return cls(offsets, batch, sum(some.size for some in data if some is not None), batch.nbytes)

    @property
    def count(self) -> int:
        return len(self.offsets)

    @cached_property
    def timestamps(self) -> list[int]:
        return cast("list[int]", self.batch.column(1).to_pylist())

    @cached_property
    def keys(self) -> list[Item]:
        return cast("list[Item]", self.batch.column(3).to_pylist())

    @cached_property
    def values(self) -> list[Item]:
        return cast("list[Item]", self.batch.column(4).to_pylist())

    @cached_property
    def headers(self) -> list[list[Header] | None] | None:
        """None where no record has any."""
        column = self.batch.column(5)
        return None if column.null_count == len(column) else headers_of(self.batch)

    def from_offset(self, offset: int) -> Rows:
        """The rows at or above a source offset."""
        return self._part(bisect_left(self.offsets, offset), len(self.offsets))

    def below(self, offset: int) -> Rows:
        """The rows below a source offset."""
        return self._part(0, bisect_left(self.offsets, offset))

    def _part(self, begin: int, end: int) -> Rows:
        count = len(self.offsets)
        if end - begin == count:
            return self
        size = self.bytes * (end - begin) // count
        return Rows(self.offsets[begin:end], self.batch.slice(begin, end - begin), size, self.unpacked)


def headers_of(batch: pa.RecordBatch) -> list[list[Header] | None]:
    """The headers of each record of a batch of `ROWS`."""
    return [
        None if row is None else [(h["key"], h["value"]) for h in row] for row in batch.column(5).to_pylist()
    ]


NO_ROWS = Rows((), pa.RecordBatch.from_pylist([], ROWS))


def encode_rows(
    offsets: Sequence[int],
    timestamps: Sequence[int],
    timestamp_types: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Sequence[Header] | None] | None,
) -> pa.RecordBatch:
    """Records, given column by column, as a batch of `ROWS`."""
    if headers is None:
        header_column = pa.nulls(len(offsets), HEADERS)
    else:
        rows = [None if h is None else [{"key": k, "value": v} for k, v in h] for h in headers]
        header_column = pa.array(rows, HEADERS)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(offsets, pa.int64()),
            pa.array(timestamps, pa.int64()),
            _types(timestamp_types),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            header_column,
        ],
        schema=ROWS,
    )


def _types(timestamp_types: Sequence[int]) -> pa.Array:
    count = len(timestamp_types)
    if count and timestamp_types.count(first := timestamp_types[0]) == count:
        return pa.repeat(pa.scalar(first, pa.int8()), count)
    return pa.array(timestamp_types, pa.int8())
