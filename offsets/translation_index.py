"""What the offset mappings say, ready to be asked: source offset to destination offset, and back. Pure;
reading them is left to others.

For each source partition three arrays of 64-bit numbers, in source order (and so in destination order): a run
is 24 bytes. When there are more runs than allowed, or older ones than wanted, the oldest are thinned: of
several neighbours only the beginning of the first stays. Between such points an offset translates to the
point before it: some records may be read again, none is skipped.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from common.link.offset_mappings import Mapping
from common.partitions import PartitionId, PartitionName

COARSE = 0
"""Length of an entry that is a point: exact for its own offset, a lower bound up to the next entry."""
HOLE = -1
"""Length of an entry that is a lower bound only: mappings are missing behind it."""

AHEAD = "not-copied-yet"
"""The offset lies beyond what has been copied: the end of that, until there is more."""
BEFORE_ORIGIN = "before-origin"
"""The offset lies below where copying began: the log start of the other side. Others may have copied what
comes there: at the first record that this link has copied, it would be left out."""
BEFORE_HISTORY = "before-history"
"""The mappings do not reach back so far."""
THINNED = "thinned"
"""The mappings around it were thinned (MAPPINGS_LIMIT, MAPPINGS_RETENTION): the last point known before
it."""
MISSING = "mappings-missing"
"""Mappings around it are missing: the last point known before it."""
NOTHING_COPIED = "nothing-copied"
"""No record of the partition has been copied yet."""
BEYOND = "beyond-copies"
"""Backwards only: the offset lies beyond the last copied record; whatever stands there did not come from the
source."""

_MARKS = 64
"""How finely ages are remembered: the retention's 64th part."""
_LEAST = 8
"""Entries of a partition that are never thinned."""


class Translation(NamedTuple):
    """`offset` None stands for the log start of the other side. `why` tells what keeps it from being
    exact."""

    offset: int | None
    exact: bool
    why: str | None = None


class Point(NamedTuple):
    """A translation that was made earlier, and so is known though its mappings may be gone."""

    source: int
    destination: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Destination:
    topic: str
    partition: int


class PartitionIndex:
    """One source partition of one topic id. `before` is the destination's end when its first mapping came, if
    that is known; `held` an end that it had before the first record was copied, which others have filled."""

    __slots__ = (
        "_destination", "_length", "_marks", "_source", "before", "destination", "destinations", "final", "held",
        "next", "routes", "start", "whole_from",
    )  # fmt: skip

    def __init__(self, destination: Destination, before: int | None = None) -> None:
        self.destination = destination
        self.destinations: set[Destination] = set()
        """Where records have gone: more than one when the link's destination was changed."""
        self.before = before
        self.held: int | None = None
        self.final: Point | None = None
        """Where all of it was copied to, if others write to the destination since: source offset, and the
        destination's behind the last copied record."""
        self.routes: dict[str, PartitionIndex] = {}
        """The same of each topic that stages took records of it to: what of this one the mappings cover, they
        cover of each."""
        self.start: int | None = None
        """The mappings cover the source offsets [start, next), but for holes."""
        self.whole_from: int | None = None
        """Behind the last hole."""
        self.next = 0
        self._source = array("q")
        self._destination = array("q")
        self._length = array("q")
        self._marks: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._source)

    @property
    def end(self) -> int | None:
        """The destination's offset behind the last copied record; None where its run is not known."""
        return self._end() if self._source and self._length[-1] > 0 else None

    def add(self, mapping: Mapping) -> None:
        """Take in the next mapping record of this partition. What overlaps earlier ones is left out: the
        first copy counts."""
        first = self.start is None
        if first or (mapping.start > self.next and not self._source):
            self.start = self.next = self.whole_from = mapping.start
        elif mapping.start > self.next:
            self.whole_from = mapping.start
            end = self._end()
            self._give_way(self.next)
            self._append(self.next, end, HOLE)
        self.destination = Destination(mapping.destination_topic, mapping.destination_partition)
        if mapping.runs:
            self.destinations.add(self.destination)
        known = self.next
        for source, destination, length in mapping.runs:
            skipped = max(0, known - source)
            if skipped < length:
                self._add_run(source + skipped, destination + skipped, length - skipped)
        self.next = max(self.next, mapping.next)
        while first and self._source and self._source[-1] > self.next:
            # A translation made earlier, of an offset beyond: records between here and there may be copied
            # before it.
            self._pop()

    def route(self, topic: str, before: int | None = None) -> PartitionIndex:
        """Of a topic that stages take records to, known from now on if it was not: `before` as above."""
        known = self.routes.get(topic)
        if known is None:
            known = self.routes[topic] = PartitionIndex(
                Destination(topic, self.destination.partition), before
            )
            # What the mappings did not tell of it, none told.
            known.start, known.next, known.whole_from = self.whole_from, self.next, self.whole_from
        return known

    def remember(self, time_ms: int, source: int, every_ms: float) -> None:
        """Note that what comes from `source` on was copied at that time or later."""
        if not self._marks or time_ms - self._marks[-1][0] >= every_ms:
            self._marks.append((time_ms, source))

    def seed(self, points: Iterable[Point]) -> None:
        """Take in translations made earlier, as far as they lie below what the mappings cover; may be called
        again with newer ones."""
        earlier = self._take_points()
        most = self._destination[0] if self._source else None
        kept: list[Point] = []
        for point in sorted({*points, *earlier}, key=lambda p: (p.source, p.destination, p.exact)):
            if self.start is not None and point.source >= (self.start if self._source else self.next + 1):
                break
            # A destination that was deleted and made again counts from 0 again: what was true before is not
            # any more.
            if most is not None and point.destination > most:
                continue
            while kept and kept[-1].destination > point.destination:
                kept.pop()
            if kept and kept[-1].source == point.source:
                kept.pop()
            kept.append(point)
        self._source = array("q", [p.source for p in kept]) + self._source
        self._destination = array("q", [p.destination for p in kept]) + self._destination
        self._length = array("q", [COARSE if p.exact else HOLE for p in kept]) + self._length

    def _take_points(self) -> list[Point]:
        """Remove what an earlier `seed` has put in front of the runs."""
        bare = max(self._length, default=0) <= 0
        count = 0
        while count < len(self._source) and self._length[count] <= 0:
            if not (bare or self.start is None or self._source[count] < self.start):
                break
            count += 1
        columns = (self._source, self._destination, self._length)
        taken = [Point(s, d, n == COARSE) for s, d, n in zip(*(c[:count] for c in columns), strict=True)]
        for column in columns:
            del column[:count]
        return taken

    def thin(self) -> None:
        """Halve the number of entries in the older half."""
        older = len(self._source) // 4 * 2
        for i in range(0, older, 2):
            if self._length[i] > 0:
                self._length[i] = COARSE
        for column in (self._source, self._destination, self._length):
            column[:older] = column[:older:2]

    def forget(self, before_ms: float) -> None:
        """Keep of what was copied before a time only where it began."""
        cut = None
        while self._marks and self._marks[0][0] <= before_ms:
            cut = self._marks.popleft()[1]
        if cut is None:
            return
        # The run in which the cut lies stays whole.
        last = bisect_right(self._source, cut) - 1
        if last >= 1:
            for column in (self._source, self._destination, self._length):
                del column[1:last]
            if self._length[0] > 0:
                self._length[0] = COARSE

    def translate(self, offset: int, origin: int | None) -> Translation:
        """Destination offset of the first copied record at or after a source offset; past the last, the
        position after that.

        `origin` is where copying began, if known: only then can be told that nothing is missing below the
        first mapping.
        """
        whole = self.start is not None and origin is not None and self.start <= origin
        if self.final is not None and offset >= self.final.source:
            ahead = offset > self.final.source
            return Translation(self.final.destination, not ahead, AHEAD if ahead else None)
        at = bisect_right(self._source, offset) - 1
        if not self._source:
            if self.start is None or not whole:
                return Translation(None, False, BEFORE_HISTORY)
            # Where it is promoted: others' records may follow, which are not to be left out.
            end = self.held if self.before is None else self.before
            end = end if self.final is None else self.final.destination
            found = self._judged(end or 0, offset, origin)
            return Translation(None, False, found.why or NOTHING_COPIED) if end is None else found
        if at < 0:
            if self.start is not None and (whole or offset >= self.start):
                return self._judged(self._destination[0], offset, origin)
            return Translation(None, False, BEFORE_HISTORY)
        source, destination, length = self._source[at], self._destination[at], self._length[at]
        if length > 0 and offset < source + length:
            return Translation(destination + offset - source, True)
        more = at + 1 < len(self._source)
        if length > 0:
            if more:
                return Translation(self._destination[at + 1], True)
            return self._judged(destination + length, offset, origin)
        if length == COARSE and offset == source:
            return Translation(destination, True)
        if more and self.start is not None and source < self.start <= offset:
            return Translation(self._destination[at + 1], True)
        if not more and self.start is not None and offset > self.next:
            return Translation(destination, False, AHEAD)
        return Translation(destination, False, THINNED if length == COARSE else MISSING)

    def reverse(self, offset: int, origin: int | None) -> Translation:
        """Source offset of the first source record whose copy stands at or after a destination offset; past
        the last, the position after that."""
        whole = self.start is not None and origin is not None and self.start <= origin
        at = bisect_right(self._destination, offset) - 1
        if whole and origin and self.before is None and at < 0:
            # What stands there may be copies of what lies below the origin, made before this link began.
            return Translation(None, False, BEFORE_ORIGIN)
        if not self._source:
            if not whole:
                return Translation(None, False, BEFORE_HISTORY)
            beyond = offset > (self.before or 0)
            return Translation(self.next, not beyond, BEYOND if beyond else None)
        if at < 0:
            return Translation(self._source[0], True) if whole else Translation(None, False, BEFORE_HISTORY)
        while at > 0 and self._length[at] <= 0 and self._destination[at - 1] == self._destination[at]:
            at -= 1  # of several lower bounds the first: records may have come between
        source, destination, length = self._source[at], self._destination[at], self._length[at]
        if length > 0 and offset < destination + length:
            return Translation(source + offset - destination, True)
        if length > 0 and at + 1 < len(self._source):
            following = self._length[at + 1] != HOLE
            return Translation(self._source[at + 1], following, None if following else MISSING)
        if length > 0:
            # One more than the end is where the marker of the last transaction stands.
            beyond = offset > destination + length + 1
            return Translation(source + length, not beyond, BEYOND if beyond else None)
        if length == COARSE and offset == destination:
            return Translation(source, True)
        return Translation(source, False, THINNED if length == COARSE else MISSING)

    def around(self, offset: int, backwards: bool = False) -> tuple[int | None, int | None]:
        """What an exact translation lies between: the destination offset behind the last copied record before
        a source offset, and that of the first one at or after it; None where there is none. `backwards`: the
        same of a destination offset, in source offsets."""
        of, to = (self._destination, self._source) if backwards else (self._source, self._destination)
        following = bisect_left(of, offset)
        first = to[following] if following < len(to) else None
        if not following:
            return None, first
        length = self._length[following - 1]
        if length <= 0:
            # What lies between such a point and what follows is not known.
            return first, first
        last = to[following - 1] + min(length, offset - of[following - 1])
        return last, last if offset < of[following - 1] + length else first

    def _judged(self, destination: int, offset: int, origin: int | None) -> Translation:
        """Exact, but for offsets beyond either end of what is copied."""
        if offset > self.next:
            return Translation(destination, False, AHEAD)
        if origin is not None and offset < origin:
            return Translation(None if self.before is None else destination, False, BEFORE_ORIGIN)
        return Translation(destination, True)

    def _end(self) -> int:
        return self._destination[-1] + max(0, self._length[-1])

    def _add_run(self, source: int, destination: int, length: int) -> None:
        self._give_way(source)
        if self._source:
            if destination < self._end():
                # The destination was deleted and made again: of what was copied before, nothing is there.
                first = self._source[0]
                for column in (self._source, self._destination, self._length):
                    del column[:]
                self._append(first, destination, HOLE)
            elif (
                self._length[-1] > 0
                and self._source[-1] + self._length[-1] == source
                and self._end() == destination
            ):
                self._length[-1] += length
                return
        self._append(source, destination, length)

    def _give_way(self, source: int) -> None:
        """Remove lower bounds from a source offset on: what comes now is known better."""
        while self._source and self._length[-1] <= 0 and self._source[-1] >= source:
            self._pop()

    def _pop(self) -> None:
        for column in (self._source, self._destination, self._length):
            column.pop()

    def _append(self, source: int, destination: int, length: int) -> None:
        self._source.append(source)
        self._destination.append(destination)
        self._length.append(length)


class Index:
    """All source partitions of a link. `limit` is the number of entries, `retention_ms` the age, from which
    on it thins."""

    def __init__(self, limit: int, retention_ms: float) -> None:
        self.partitions: dict[PartitionId, PartitionIndex] = {}
        self.topics: dict[str, set[str]] = {}
        """Topic -> the ids under which mappings know it."""
        self.entries = 0
        self.limit = limit
        self.retention_ms = retention_ms
        self._ends: dict[Destination, int] = {}

    def add(self, mapping: Mapping, time_ms: int) -> None:
        """Take in the next mapping record, with the time at which it was written."""
        key = (mapping.topic_id, mapping.partition)
        to = Destination(mapping.destination_topic, mapping.destination_partition)
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = PartitionIndex(to, self._ends.get(to))
            self.topics.setdefault(mapping.topic, set()).add(mapping.topic_id)
        # What is spread by keys has no position that is one of the partition.
        kept = [one for one in mapping.routed if one.partition is None]
        for one in kept:
            partition.route(one.topic, self._ends.get(Destination(one.topic, to.partition)))
        places = {to.topic: mapping.runs} | {one.topic: one.runs for one in kept}
        its = {to.topic: partition} | partition.routes
        for topic, of in its.items():
            entries = len(of)
            of.add(mapping if topic == to.topic else _alone(mapping, topic, places.get(topic, [])))
            of.remember(time_ms, mapping.start, self.retention_ms / _MARKS)
            self.entries += len(of) - entries
        for topic, runs in places.items():
            if runs:
                _, destination, length = runs[-1]
                self._ends[Destination(topic, to.partition)] = destination + length
        if self.entries > self.limit:
            self._thin()

    def copied_ends(self) -> dict[PartitionName, int]:
        """Of each partition of a destination the offset behind the last copied record, where that is
        known."""
        found: dict[PartitionName, int] = {}
        for of in self._each():
            if (end := of.end) is not None:
                at = (of.destination.topic, of.destination.partition)
                found[at] = max(found.get(at, 0), end)
        return found

    def _each(self) -> list[PartitionIndex]:
        return [of for own in self.partitions.values() for of in (own, *own.routes.values())]

    def seed_route(self, key: PartitionId, topic: str, points: Iterable[Point]) -> None:
        """The same of a topic that stages take records to, where the source partition is known."""
        if (partition := self.partitions.get(key)) is not None:
            of = partition.route(topic)
            entries = len(of)
            of.seed(points)
            self.entries += len(of) - entries

    def seed(self, topic: str, key: PartitionId, destination: Destination, points: Iterable[Point]) -> None:
        """Take in translations made earlier, where the mappings no longer reach."""
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = PartitionIndex(destination)
            self.topics.setdefault(topic, set()).add(key[0])
        entries = len(partition)
        partition.seed(points)
        self.entries += len(partition) - entries

    def forget(self, now_ms: float) -> None:
        """Thin what is older than the retention."""
        for partition in self._each():
            partition.forget(now_ms - self.retention_ms)
        self.entries = sum(map(len, self._each()))

    def _thin(self) -> None:
        while self.entries > self.limit:
            largest = max(self._each(), key=len)
            entries = len(largest)
            if entries <= _LEAST:
                return
            largest.thin()
            self.entries += len(largest) - entries


def _alone(mapping: Mapping, topic: str, runs: list[list[int]]) -> Mapping:
    """What a mapping says of one topic."""
    return replace(mapping, destination_topic=topic, runs=runs, routed=())
