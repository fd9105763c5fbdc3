"""Where destinations end into which the link has copied nothing yet, though they hold records of others: a
group that has read all below the origin stands there."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from common.kafka.client import topics
from common.partitions import PartitionId
from common.ports import Deadline
from offsets.readers import MappingTail


class HeldEnds:
    """Tells the index of a tail. Only once the mappings are read to where they end after a look is it known
    that nothing was copied: a record's transaction may be committed in its destination before it is in the
    mappings."""

    def __init__(self, tail: MappingTail, admin: AdminClient) -> None:
        self._tail = tail
        self._admin = admin
        self._seen: dict[PartitionId, int] = {}
        self._mappings: dict[int, int] = {}

    def look(self, deadline: Deadline) -> None:
        """Before mappings are read: note the ends, unless those noted before are not known yet."""
        if self._seen:
            return
        partitions = self._tail.index.partitions
        idle = {key: p.destination for key, p in partitions.items() if not p and p.start and p.held is None}
        names = sorted({to.topic for to in idle.values()})
        there = topics.describe(self._admin, names, deadline) if names else {}
        at = {
            key: (to.topic, to.partition)
            for key, to in idle.items()
            if to.topic in there and to.partition < there[to.topic].partitions
        }
        ends = topics.ends(self._admin, at.values(), deadline, committed=True)
        self._seen = {key: ends[to] for key, to in at.items()}
        self._mappings = self._tail.ends(deadline) if at else {}

    def tell(self) -> None:
        """After mappings were read."""
        if self._tail.has_read(self._mappings):
            for key, end in self._seen.items():
                self._tail.index.partitions[key].held = end
            self._seen = {}
