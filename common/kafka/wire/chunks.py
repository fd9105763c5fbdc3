"""What came of a partition and is in no frame yet, in chunks: whole record batches, or records as Arrow
columns. Pure."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.kafka.wire.record_batch import BatchError, BatchHeader
from common.kafka.wire.record_decoder import UNPACKED_BYTES, leading
from common.kafka.wire.records import MAX_RECORDS

_Ints = npt.NDArray[np.int64]
Whole = tuple[BatchHeader, pa.Buffer]
"""A batch as its producer wrote it."""


APART_BYTES = 512 << 10
"""Of batches that are taken apart together: each time costs as much as a hundred records."""


def unpacked(wholes: Sequence[Whole], position: int) -> tuple[pa.RecordBatch, int]:
    """The first records at or behind a position, as many as are unpacked at once, and the position behind
    them. Raises BatchError where the first batch can't be taken apart."""
    found, size = [], 0
    for header, _ in wholes:
        found.append((size, header))
        size += header.size
    data = wholes[0][1] if len(wholes) == 1 else pa.py_buffer(b"".join(batch for _, batch in wholes))
    rows, end, _ = leading(data, found, position, UNPACKED_BYTES)
    return rows, end


@dataclass(slots=True)
class Chunk:
    """What came of a partition, as far as `next`, the position behind it: whole batches, or records as a
    batch of common.kafka.wire.records.ROWS, or neither where nothing but markers and aborted records came.
    `leader_epoch` is that of all of it."""

    topic: str
    partition: int
    next: int
    leader_epoch: int
    wholes: list[Whole] = field(default_factory=list)
    rows: pa.RecordBatch | None = None
    alone: bool = False
    """Whether it is a small batch, which stays whole only while no other chunk is with it."""
    apart: int = field(default=0, compare=False)
    """Up to where the records of its first batch are rows of another chunk, before it."""
    left: int = field(default=0, compare=False)
    """Of its bytes, those that are in no frame yet, while it is among others. Of headers the average counts,
    which is another one for what is left."""

    @property
    def count(self) -> int:
        """Records."""
        if self.rows is not None:
            return len(self.rows)
        return sum(header.count for header, _ in self.wholes)

    @property
    def bytes(self) -> int:
        """Of values, or of batches as they are."""
        if self.rows is not None:
            return int(payload_bounds(self.rows)[-1])
        return sum(header.size for header, _ in self.wholes)


@dataclass(slots=True)
class FrameContents:
    """Whole batches for a frame, or rows for some; the position behind them, and the leader epoch of the
    last."""

    next: int
    leader_epoch: int
    wholes: list[Whole]
    rows: pa.RecordBatch | None


class Chunks:
    """Chunks of one partition, in order."""

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self.count = self.bytes = 0
        """Of records and, about, of what they take."""

    def add(self, chunk: Chunk, in_front: bool = False) -> None:
        """One with records."""
        (self._chunks.appendleft if in_front else self._chunks.append)(chunk)
        chunk.left = chunk.bytes
        self.count += chunk.count
        self.bytes += chunk.left

    def clear(self) -> None:
        self._chunks.clear()
        self.count = self.bytes = 0

    def cut(self, most_records: int, most_bytes: int, whole: bool, frames: int = 1) -> FrameContents:
        """Take so much from the front, and a record or a whole batch at least; the bytes are of each frame.
        Without `whole`, batches are taken apart; what they were becomes up to so many `frames`. Raises
        BatchError where that can't be, and then has taken nothing."""
        if not whole or self._chunks[0].apart:
            self._take_apart()
        elif len(self._chunks) > 1:
            self._rows_come()
        first = self._chunks[0]
        if first.wholes:
            return self._cut_wholes(most_bytes)
        return self._cut_rows(most_records, most_bytes * frames)

    def _take_apart(self) -> None:
        """Some batches, one at least, or a part of it: they unpack into much more, and the others wait as
        they are."""
        chunk = self._chunks[0]
        if not chunk.wholes:
            return
        ends = list(accumulate(header.size for header, _ in chunk.wholes))
        rows, end = unpacked(chunk.wholes[: max(1, bisect_right(ends, APART_BYTES))], chunk.apart)
        first = Chunk(chunk.topic, chunk.partition, end, chunk.leader_epoch, rows=rows)
        first.left = first.bytes
        done = bisect_right(chunk.wholes, end, key=lambda whole: whole[0].next_offset)
        size = ends[done - 1] if done else 0
        self.bytes += first.left - size
        chunk.left -= size
        del chunk.wholes[:done]
        chunk.apart = end if chunk.wholes and chunk.wholes[0][0].base_offset < end else 0
        if not chunk.wholes:
            first.next = chunk.next
            self._chunks.popleft()
        self._chunks.appendleft(first)

    def _rows_come(self) -> bool:
        """Whether the first chunk is rows; what came alone is taken apart for that, or goes as it is where
        that can't be."""
        if self._chunks[0].alone:
            with contextlib.suppress(BatchError):
                self._take_apart()
        return self._chunks[0].rows is not None

    def _cut_wholes(self, most_bytes: int) -> FrameContents:
        chunk = self._chunks[0]
        size = taken = count = 0
        for header, _ in chunk.wholes:
            count += header.count
            if taken and (size + header.size > most_bytes or count > MAX_RECORDS):
                break
            size += header.size
            taken += 1
        wholes, chunk.wholes = chunk.wholes[:taken], chunk.wholes[taken:]
        self.count -= sum(header.count for header, _ in wholes)
        self.bytes -= size
        chunk.left -= size
        end = wholes[-1][0].next_offset
        if not chunk.wholes:
            end = chunk.next
            self._chunks.popleft()
        return FrameContents(end, chunk.leader_epoch, wholes, None)

    def _cut_rows(self, most_records: int, most_bytes: int) -> FrameContents:
        parts: list[pa.RecordBatch] = []
        count = size = 0
        end = epoch = -1
        while self._chunks and count < most_records:
            if parts and (self._chunks[0].leader_epoch != epoch or not self._rows_come()):
                break
            chunk = self._chunks[0]
            rows = chunk.rows
            assert rows is not None
            bounds = payload_bounds(rows)
            fits = int(np.searchsorted(bounds, most_bytes - size, "right")) - 1
            fits = min(len(rows), most_records - count, max(fits, 0 if parts else 1))
            if not fits:
                break
            part_bytes = min(int(bounds[fits]), chunk.left) if fits < len(rows) else chunk.left
            self.count -= fits
            self.bytes -= part_bytes
            chunk.left -= part_bytes
            count, size, epoch = count + fits, size + part_bytes, chunk.leader_epoch
            parts.append(rows.slice(0, fits))
            if fits < len(rows):
                chunk.rows = rows.slice(fits)
                end = rows.column(0)[fits - 1].as_py() + 1
                break
            end = chunk.next
            self._chunks.popleft()
        return FrameContents(end, epoch, [], _joined(parts))


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def payload_bounds(rows: pa.RecordBatch) -> _Ints:
    """How many bytes the keys, values and, on the average, headers of the first 0, 1, 2 ... rows take."""
    total = sum(_bounds_of(rows.column(at)) for at in (3, 4))
    headers = rows.column(5)
    if headers.null_count < len(rows):
        total = total + np.arange(len(rows) + 1) * (headers.nbytes // len(rows))
    return cast("_Ints", total)


def _bounds_of(column: pa.Array) -> _Ints:
    bounds = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    return cast("_Ints", bounds.astype(np.int64) - bounds[0])
