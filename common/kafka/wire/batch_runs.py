"""Many small record batches one behind the other, as one. Pure.

Producers that hardly linger make batches of a few records, and an answer holds a thousand of them. Of each,
all that is told in its header would take several times as long as its records do. Where they are as ordinary
as can be, and each begins where the one before it ends, what is true of one is true of all: their headers are
read as columns, and a run counts as one batch until its records are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.kafka.wire.record_batch import (
    CONTROL,
    HEADER_BYTES,
    LENGTH_FROM,
    MAGIC,
    NO_EPOCH,
    TRANSACTIONAL,
    BatchHeader,
    checksum,
    headers,
)
from common.kafka.wire.records import MAX_OFFSET

LEAST_BATCHES = 32
"""Of fewer each is read by itself: to begin with all at once takes 0.15 ms."""
MOST_BATCHES = 4096
MOST_RECORDS = 16
"""Of one batch. Where there are more, they take the time, not the batch."""
BATCHES_A_RECORD = 8
"""So many batches for each record of the largest one: a step through all takes as long as a few records read
one by one."""

_LENGTH = struct.Struct(">i")
_LENGTH_AT, _MAGIC_AT = 8, 16
_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
"""As common/kafka/wire/record_batch.py has it."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Sound batches of one leader epoch that leave out no offset between them, none of them a marker or
    aborted; told of as BatchHeader tells of a batch. `bounds`: where each begins in what was fetched, and the
    last one ends. `columns`: their headers."""

    bounds: Ints
    columns: npt.NDArray[np.void]
    first: BatchHeader
    next_offset: int
    count: int
    """Of records."""

    @property
    def size(self) -> int:
        return int(self.bounds[-1] - self.bounds[0])

    @property
    def base_offset(self) -> int:
        return self.first.base_offset

    @property
    def leader_epoch(self) -> int:
        return self.first.leader_epoch

    def column(self, name: str) -> Ints:
        """A field of each header."""
        values: Ints = self.columns[name].astype(np.int64)
        return values

    def each(self) -> Iterator[tuple[int, BatchHeader]]:
        for at, row in zip(self.bounds.tolist(), self.columns, strict=False):
            yield at, BatchHeader(*row.item())


OneOrMany = BatchHeader | BatchRun
Found = tuple[int, OneOrMany]
"""Where a batch, or a run of them, begins; and its header, or what is told for all of theirs."""


def each(found: Iterable[Found]) -> Iterator[tuple[int, BatchHeader]]:
    """The same, batch by batch."""
    for at, one in found:
        if isinstance(one, BatchRun):
            yield from one.each()
        else:
            yield at, one


def found(data: pa.Buffer, offset: int, smaller_than: int, transactional: bool) -> Iterator[Found]:
    """All batches of an answer, as `record_batch.headers` has them; those in a run are sound, the others are
    not looked into.

    In runs are batches from an offset on and smaller than so many bytes, `transactional` ones if none of them
    is aborted. Raises BatchError as `record_batch.headers` does.
    """
    at, view = 0, memoryview(data)
    while True:
        bounds = _small(view, at, smaller_than)
        for begin, run in _runs(data, bounds, offset, transactional):
            yield from takewhile(lambda one: one[0] < begin, headers(data, True, at))  # noqa: B023
            yield begin, run
            at = begin + run.size
        # What is in no run, and the one behind all these, which is none of them.
        for one in headers(data, True, at):
            yield one
            at = one[0] + one[1].size
            if at > bounds[-1]:
                break
        else:
            return


def _small(view: memoryview, at: int, smaller_than: int) -> list[int]:
    """Where the batches begin that are that small, one behind the other from there on, and where the last one
    ends."""
    bounds, end, size_at = [at], len(view), _LENGTH.unpack_from
    while len(bounds) <= MOST_BATCHES and at + HEADER_BYTES <= end:
        size = LENGTH_FROM + size_at(view, at + _LENGTH_AT)[0]
        if not HEADER_BYTES <= size < smaller_than or at + size > end or view[at + _MAGIC_AT] != MAGIC:
            break
        at += size
        bounds.append(at)
    return bounds


def _runs(
    data: pa.Buffer, bounds: list[int], offset: int, transactional: bool
) -> Iterator[tuple[int, BatchRun]]:
    """The runs among these batches."""
    if len(bounds) <= LEAST_BATCHES:
        return
    begins = np.array(bounds)
    anywhere = np.ndarray((len(data) - HEADER_BYTES + 1,), f"V{HEADER_BYTES}", data, 0, (1,))
    columns = anywhere[begins[:-1]].view(_HEADER)
    base, deltas, counts, epochs, attributes = (
        columns[name].astype(np.int64)
        for name in ("base_offset", "last_offset_delta", "count", "leader_epoch", "attributes")
    )
    refused = CONTROL if transactional else CONTROL | TRANSACTIONAL
    ordinary = (
        (counts >= 1)
        & (counts <= np.minimum(deltas + 1, MOST_RECORDS))
        & (base >= offset)
        & (base < MAX_OFFSET - deltas)
        & (epochs >= NO_EPOCH)
        & (attributes & refused == 0)
    )
    follows = (
        ordinary[1:] & ordinary[:-1] & (base[1:] == (base + deltas + 1)[:-1]) & (epochs[1:] == epochs[:-1])
    )
    edges = np.concatenate(([0], np.flatnonzero(~follows) + 1, [len(columns)]))
    for number in np.flatnonzero(np.diff(edges) >= LEAST_BATCHES):
        first, end = int(edges[number]), int(edges[number + 1])
        if end - first < BATCHES_A_RECORD * counts[first:end].max():
            continue
        end = first + _intact(data, bounds[first : end + 1], columns["crc"][first:end].tolist())
        if end - first >= LEAST_BATCHES:
            yield (
                bounds[first],
                BatchRun(
                    begins[first : end + 1],
                    columns[first:end],
                    BatchHeader(*columns[first].item()),
                    int(base[end - 1] + deltas[end - 1] + 1),
                    int(counts[first:end].sum()),
                ),
            )


def _intact(data: pa.Buffer, bounds: list[int], sums: list[int]) -> int:
    """How many batches, from the first on, are what their checksums are of."""
    for number, (begin, end, crc) in enumerate(zip(bounds, islice(bounds, 1, None), sums, strict=False)):
        if checksum(data, begin, end - begin) != crc:
            return number
    return len(sums)
