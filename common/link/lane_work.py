"""What lanes have done, added up: over lanes, over epochs, by partition of the source. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from common.partitions import PartitionName

LEVELS = frozenset(
    {"lag", "staging_lag", "end_offset", "staged_offset", "delivered_offset", "subjects_failed"}
)
"""What stands at some value; all else only grows."""
DELAYS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Bounds of the histogram of delays."""
MOST_PARTITIONS = 1000
"""Where there are more, topics are counted, not their partitions: each is a series of its own in whatever
reads them."""
ALL = -1
"""In the place of a partition: all of a topic."""

_OF, _DELAYS = "of", "delays"


@dataclass
class Delays:
    """A histogram: how many records took so long, by `DELAYS_S` and beyond, and the sum of all in ms."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(DELAYS_S) + 1))
    sum_ms: int = 0

    def took(self, ms: int, count: int) -> None:
        """So many records took so long. A negative delay, of clocks that differ, is none."""
        ms = max(ms, 0)
        self.buckets[bisect_left(DELAYS_S, ms / 1000)] += count
        self.sum_ms += ms * count

    def add(self, other: Delays) -> None:
        self.buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]
        self.sum_ms += other.sum_ms


@dataclass
class Work:
    """`counts` of all together, and `of` each source partition."""

    counts: Counter[str] = field(default_factory=Counter)
    of: dict[PartitionName, Counter[str]] = field(default_factory=dict)
    delays: Delays = field(default_factory=Delays)

    def add(self, other: Work) -> None:
        # Counter.update adds; `+` would leave out what is 0.
        self.counts.update(other.counts)
        for at, counts in other.of.items():
            self.of.setdefault(at, Counter()).update(counts)
        self.delays.add(other.delays)

    def done(self) -> Work:
        """Without levels: what stays once it is over."""
        return Work(
            _only(self.counts, False),
            {at: _only(counts, False) for at, counts in self.of.items()},
            self.delays,
        )

    def levels(self) -> Work:
        """The levels alone."""
        return Work(_only(self.counts, True), {at: _only(counts, True) for at, counts in self.of.items()})

    def shown(self) -> Work:
        """The same with no more partitions than may be."""
        if len(self.of) <= MOST_PARTITIONS:
            return self
        topics: dict[PartitionName, Counter[str]] = {}
        for (topic, _), counts in self.of.items():
            topics.setdefault((topic, ALL), Counter()).update(counts)
        return Work(self.counts, topics, self.delays)

    def to_json(self) -> dict[str, Any]:
        """Flat, but for what there is of partitions and delays."""
        said: dict[str, Any] = dict(self.counts)
        if self.of:
            said[_OF] = [[topic, partition, counts] for (topic, partition), counts in self.of.items()]
        if any(self.delays.buckets):
            said[_DELAYS] = [*self.delays.buckets, self.delays.sum_ms]
        return said

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Self:
        """Raises TypeError or ValueError where it is none."""
        *buckets, sum_ms = said.get(_DELAYS) or [0] * (len(DELAYS_S) + 2)
        if len(buckets) != len(DELAYS_S) + 1:
            buckets, sum_ms = [0] * (len(DELAYS_S) + 1), 0
        return cls(
            Counter({name: int(count) for name, count in said.items() if name not in (_OF, _DELAYS)}),
            {(str(topic), int(p)): Counter(counts) for topic, p, counts in said.get(_OF, ())},
            Delays([*map(int, buckets)], int(sum_ms)),
        )


def together(works: Iterable[Work]) -> Work:
    found = Work()
    for work in works:
        found.add(work)
    return found


def _only(counts: Counter[str], levels: bool) -> Counter[str]:
    return Counter({name: count for name, count in counts.items() if (name in LEVELS) is levels})
