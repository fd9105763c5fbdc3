"""Judges the offset mappings of one source partition: are they a strictly monotone bijection, and do they
point at equal records?

Pure: runs come as three columns, the records as verbatim/verify/partition.py pairs them. Reading and parsing
is the part of verbatim/verify/link_mappings.py. It shares no code with the applications that write or use the
mappings."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verbatim.verify.comparison import Kind, PartitionReport

Column = npt.NDArray[np.int64]
_CHUNK = 1_000_000


@dataclass
class Runs:
    """The runs of one source partition under one topic id, in the order in which they were written.

    `source[i] + k` went to `destination[i] + k` for every k below `length[i]`. `start` and `next`: the range
    of source offsets that the mapping records cover; `complete`: the first of them is the partition's
    origin."""

    source: Column
    destination: Column
    length: Column
    start: int
    next: int
    complete: bool

    def __len__(self) -> int:
        return len(self.source)

    def destination_of(self, offsets: Column) -> Column:
        """The mapped destination offset of each source offset, -1 where there is none. The runs must be
        sorted."""
        return _translate(self.source, self.destination, self.length, offsets)

    def first_at_or_after(self, source_offset: int) -> int | None:
        """The destination offset of the first copied record at or after a source offset."""
        return _first_at_or_after(self.source, self.destination, self.length, source_offset)

    def first_source_at_or_after(self, destination_offset: int) -> int | None:
        return _first_at_or_after(self.destination, self.source, self.length, destination_offset)


def _translate(begins: Column, images: Column, lengths: Column, offsets: Column) -> Column:
    if not len(begins):
        return np.full(len(offsets), -1, dtype=np.int64)
    at = np.searchsorted(begins, offsets, side="right") - 1
    run = np.maximum(at, 0)
    distance = offsets - begins[run]
    return np.where((at >= 0) & (distance < lengths[run]), images[run] + distance, -1)


def _first_at_or_after(begins: Column, images: Column, lengths: Column, offset: int) -> int | None:
    at = int(np.searchsorted(begins, offset, side="right")) - 1
    if at >= 0 and offset < int(begins[at] + lengths[at]):
        return int(images[at]) + offset - int(begins[at])
    return int(images[at + 1]) if at + 1 < len(begins) else None


def check_shape(runs: Runs, report: PartitionReport) -> bool:
    """Reports each run that does not begin beyond the end of the one before it, on either side: then a source
    offset is covered twice, or the mapping is not monotone. Returns whether the runs are sound and can be
    searched."""
    sound = True
    for begin in range(0, len(runs), _CHUNK):
        window = slice(begin, min(begin + _CHUNK + 1, len(runs)))
        source, destination, length = runs.source[window], runs.destination[window], runs.length[window]
        bad = (source[1:] < source[:-1] + length[:-1]) | (destination[1:] < destination[:-1] + length[:-1])
        empty = length <= 0
        for at in (np.flatnonzero(bad) + 1).tolist():
            sound = False
            what = (
                "covered twice or out of order"
                if source[at] < source[at - 1] + length[at - 1]
                else "not increasing"
            )
            report.add(Kind.MAPPING, int(source[at]), int(destination[at]), what)
        if bool(empty.any()):
            sound = False
            at = int(np.argmax(empty))
            report.add(
                Kind.MAPPING, int(source[at]), int(destination[at]), "a run without records", int(empty.sum())
            )
    return sound


class MappingCheck:
    """Follows a comparison and checks that each mapped offset points at the equal record.

    A pair of the comparison that is the mapping's too needs no more. Where identical records let the
    comparison pair others, the record at the mapped offset is looked up among the last `window` destination
    records, or awaited. `exact` is off for compacted topics: there a mapped destination record may be
    gone."""

    def __init__(
        self, runs: Runs, report: PartitionReport, *, window: int = 60_000, exact: bool = True
    ) -> None:
        self._runs = runs
        self._report = report
        self._window = window
        self._exact = exact
        self._recent: deque[tuple[Sequence[int], Sequence[bytes]]] = deque()
        self._recent_size = 0
        self._read_to = -1
        self._awaited: dict[int, tuple[int, bytes]] = {}

    def read(self, destination: Sequence[int], digests: Sequence[bytes]) -> None:
        self._recent.append((destination, digests))
        self._recent_size += len(destination)
        while self._recent_size - len(self._recent[0][0]) >= self._window:
            self._recent_size -= len(self._recent.popleft()[0])
        self._read_to = destination[-1]
        for offset in [o for o in self._awaited if o <= self._read_to]:
            source, record = self._awaited.pop(offset)
            self._compare(source, offset, record)

    def paired(self, source: Sequence[int], destination: Sequence[int], digests: Sequence[bytes]) -> None:
        offsets = np.array(source, dtype=np.int64)
        mapped = self._runs.destination_of(offsets)
        for at in np.flatnonzero(mapped != np.array(destination, dtype=np.int64)).tolist():
            self._judge(int(offsets[at]), int(mapped[at]), digests[at])

    def altered(self, source: int, destination: int) -> None:
        mapped = int(self._runs.destination_of(np.array([source], dtype=np.int64))[0])
        if mapped < 0 and self._covered(source):
            self._report.add(Kind.MAPPING, source, destination, "no run covers the offset")
        elif mapped >= 0 and mapped != destination:
            self._report.add(Kind.MAPPING, source, mapped, f"the record is at {destination}")

    def missing(self, source: int, record: bytes) -> None:
        mapped = int(self._runs.destination_of(np.array([source], dtype=np.int64))[0])
        if mapped >= 0:
            self._judge(source, mapped, record)

    def finish(self) -> None:
        for offset, (source, _) in sorted(self._awaited.items()):
            if self._exact:
                self._report.add(Kind.MAPPING, source, offset, "no record at the destination offset")
        self._awaited.clear()

    def _covered(self, source: int) -> bool:
        return self._runs.start <= source < self._runs.next

    def _judge(self, source: int, mapped: int, record: bytes) -> None:
        if mapped < 0:
            if self._covered(source):
                self._report.add(Kind.MAPPING, source, None, "no run covers the offset")
        elif mapped <= self._read_to:
            self._compare(source, mapped, record)
        elif len(self._awaited) < self._window:
            self._awaited[mapped] = source, record
        else:
            self._report.add(Kind.MAPPING, source, mapped, "points far beyond the record")

    def _compare(self, source: int, mapped: int, record: bytes) -> None:
        found = self._look_up(mapped)
        if found is None:
            if self._exact:
                self._report.add(Kind.MAPPING, source, mapped, "no such record near the one that was copied")
        elif found != record:
            self._report.add(Kind.MAPPING, source, mapped, "points at another record")

    def _look_up(self, offset: int) -> bytes | None:
        for offsets, digests in reversed(self._recent):
            if offsets[0] <= offset <= offsets[-1]:
                at = int(np.searchsorted(np.array(offsets, dtype=np.int64), offset))
                return digests[at] if offsets[at] == offset else None
        return None
