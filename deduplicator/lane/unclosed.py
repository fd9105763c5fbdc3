"""Destination partitions in which a transaction may have been left without its marker: how it ended, so that they get it before they are used again.

Brokers (KRaft, seen with Kafka 4.3) complete a transaction without a marker in a partition that has no leader, as if it had been deleted. Once it has one
again, the records that hang there are decided by the next marker of that producer, and of no other: those of an aborted transaction would come a second
time with the commit that follows, those of a committed one could go with an abort. So a transaction without records, of the same transactional id, which
ends as the one that may hang did, comes before anything else. Where nothing hangs it does no harm. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from common.link.control_records import Key

Partition = tuple[str, int]
Outcomes = dict[Partition, dict[str, bool]]


@dataclass(slots=True)
class Unclosed:
    """`outcomes` says of each such partition, by transactional id, whether its last transaction that has records there was committed."""

    outcomes: Outcomes = field(default_factory=dict)
    _doubt: dict[tuple[Partition, str], tuple[Key, int]] = field(default_factory=dict)
    """Where it is not known yet: it was, if this source partition has come so far."""
    _last: frozenset[Partition] = frozenset()
    """The partitions of the last transaction that was committed: Kafka may complete it later."""
    _used: set[Partition] = field(default_factory=set)
    _fenced: frozenset[str] = frozenset()

    def committed(self, partitions: Collection[Partition]) -> None:
        self._last = frozenset(partitions)
        self._used |= self._last

    def failed(
        self,
        transactional_id: str,
        reached: Mapping[Partition, tuple[Key, int]],
        registered: Collection[Partition],
        refused: Collection[Partition],
    ) -> None:
        """A transaction of this id has failed that would have `reached` so far; only partitions that were `registered` can have records of it."""
        doubt = {at: so_far for at, so_far in reached.items() if at in registered}
        self._doubt |= {(at, transactional_id): so_far for at, so_far in doubt.items()}
        before = {*self._last, *(at for at in refused if at in self._used)}
        for at in before - {at for at, _ in self._doubt}:
            self.outcomes.setdefault(at, {}).setdefault(transactional_id, True)
        self._last = frozenset()

    def decided(
        self,
        fenced: Collection[str],
        found: Mapping[str, Mapping[Partition, bool]],
        reached: Mapping[Key, int],
    ) -> None:
        """After recovery: the ids that are at hand, what the coordinators knew of the last transaction of each, and how far the mappings say each
        source partition is."""
        self._fenced = frozenset(fenced)
        for transactional_id, partitions in found.items():
            for at, committed in partitions.items():
                self.outcomes.setdefault(at, {}).setdefault(transactional_id, committed)
        for (at, transactional_id), (key, so_far) in self._doubt.items():
            self.outcomes.setdefault(at, {})[transactional_id] = reached.get(key, -1) >= so_far
        self._doubt = {}

    def due(self, transactional_id: str, committed: bool, left_out: Collection[Partition]) -> list[Partition]:
        return [
            at
            for at, by_id in self.outcomes.items()
            if by_id.get(transactional_id) is committed and at not in left_out
        ]

    def closed(self, transactional_id: str, partitions: Collection[Partition]) -> None:
        for at in partitions:
            self.outcomes[at].pop(transactional_id)
            if not self.outcomes[at]:
                del self.outcomes[at]

    def lacks_marker(self, at: Partition) -> bool:
        """Whether it is to get one before it is used. Of an id that is not at hand: before that one is used again; what others write there shows
        only then."""
        return not self._fenced.isdisjoint(self.outcomes.get(at, ()))
