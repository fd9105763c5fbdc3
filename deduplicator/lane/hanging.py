"""Transactions that hang without a marker in destination partitions, closed as they ended before anything
else is written there.

Brokers (KRaft, seen with Kafka 4.3) complete a transaction without a marker in a partition that has no
leader, as if it had been deleted. Once it has one again, what hangs there is decided by the next marker of
that producer, and of no other: the records of an aborted one would come a second time with the commit that
follows, those of a committed one could go with an abort. So whoever has fenced a staging partition asks the
leaders what is open. The mappings tell how it ended, and a transaction without records, of the same
transactional id, puts the marker. Nothing is remembered for that, by nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from common.errors import UncleanTransaction
from common.kafka.client import clients
from common.kafka.wire.open_transactions import OpenTransactions, when_marked
from common.link import offset_mappings
from common.link.control_state import Control
from common.link.partitioning import partitions_of
from common.partitions import PartitionName
from common.pipeline.route_names import spread_over
from common.ports import Deadline
from deduplicator.lane.fencing import FencingProducer
from deduplicator.lane.recovery import Recovered, read_mappings
from deduplicator.lane_plan import DeduplicatorPlan

log = logging.getLogger(__name__)


ASK_S = 5.0
WATCH_S = 10.0
"""How often what was written to is looked at: longer than a marker takes."""
FEW, MANY_MORE = 5000, 4
"""So many of the newest offsets of the mappings are looked at first, and by what they grow where that was not
enough."""


class Unsettled(UncleanTransaction):
    """Whether something hangs in a destination partition is not known, so nothing may be written there."""

    def __init__(self, at: PartitionName, error: KafkaError) -> None:
        super().__init__(f"{at[0]}-{at[1]}: {error.str()}")
        self.refused = {at: error}


def own_destinations(
    plan: DeduplicatorPlan, partition: int, state: Control, found: Recovered
) -> dict[PartitionName, bool]:
    """Where a staging partition's records go, its dead letters too, and whether something may have been
    delivered there."""
    topics, origins, own = state.topics.copy(), state.origins.copy(), dict[PartitionName, bool]()

    def delivered(topic_id: str, number: int) -> bool:
        key = (topic_id, number)
        origin = origins[key].offset if key in origins else -1
        return not found.complete or found.next.get(key, -1) > origin

    versions = [version.definition for version in state.pipelines.copy().values()]
    for topic_id, destination in state.all_destinations():
        source, partitions = topics[topic_id].topic, destination.partitions
        is_route = (topic_id, destination.topic) in state.routes
        if count := spread_over(versions, source, plan.link, destination.topic) if is_route else 0:
            # From each partition of the source into each of these.
            mine = partitions_of(source, topics[topic_id].partitions, partition, plan.staging_partitions)
            any_delivered = any(delivered(topic_id, number) for number in mine)
            for number in range(max(count, partitions)) if mine else ():
                own[destination.topic, number] = own.get((destination.topic, number), False) or any_delivered
        for number in partitions_of(source, partitions, partition, plan.staging_partitions):
            at = (destination.topic, number)
            own[at] = own.get(at, False) or delivered(topic_id, number)
    if state.dead_letters is not None:
        own[state.dead_letters.topic, partition] = True
    return own


def close_hanging(
    plan: DeduplicatorPlan,
    partition: int,
    fencing: FencingProducer,
    destinations: Mapping[PartitionName, bool],
    until: int,
    admin: AdminClient,
    deadline: Deadline,
) -> dict[PartitionName, KafkaError]:
    """Close what hangs in the destinations of a staging partition, of which is given whether something may
    have been delivered there; those of which it is not known, and why. Call it after fencing, with the offset
    in the mappings below which stands all that was committed."""
    told = fencing.client.open_transactions(destinations, deadline.left(ASK_S))
    unsettled = untold(told)
    hanging = of_own(told, fencing)
    for at, by_id in list(hanging.items()):
        if waits := sorted(by_id.keys() - fencing.fenced.keys()):
            # Readers would see nothing of what is written behind it.
            words = f"a transaction of {waits[0]} hangs there, which is still being completed"
            unsettled[at] = KafkaError(KafkaError.LEADER_NOT_AVAILABLE, words)
            del hanging[at]
    if not hanging:
        return unsettled
    begins, all_there = last_mapped(plan, partition, hanging, until, admin, deadline)
    due: dict[tuple[str, bool], list[PartitionName]] = {}
    for at, by_id in hanging.items():
        if at not in begins and destinations[at] and not all_there:
            words = f"a transaction hangs there from offset {min(by_id.values())}, and no mapping is left that would tell whether it was committed"
            unsettled[at] = KafkaError(KafkaError._STATE, words)
            continue
        for tid, begin in by_id.items():
            due.setdefault((tid, begin in begins.get(at, ())), []).append(at)
    for (tid, committed), where in due.items():
        names = ", ".join(f"{topic}-{number}" for topic, number in sorted(where))
        log.warning(
            "a transaction of %s hangs without a marker in %s: closed as %s",
            tid,
            names,
            "committed" if committed else "aborted",
        )
        fencing.mark(tid, where, committed)
    return unsettled | _left_open([at for where in due.values() for at in where], fencing, deadline)


def _left_open(
    partitions: Collection[PartitionName], fencing: FencingProducer, deadline: Deadline
) -> dict[PartitionName, KafkaError]:
    """Where what was closed is open for longer than its marker takes, or may be, and why: that marker is
    missed as the first one was, and the next transaction would decide both."""
    told = when_marked(
        lambda: fencing.client.open_transactions(partitions, deadline.left(ASK_S)), fencing.ids_of, deadline
    )
    hanging = of_own(told, fencing)
    words = "a transaction hangs there, and what was to close it lacks its marker, too"
    return untold(told) | dict.fromkeys(hanging, KafkaError(KafkaError.LEADER_NOT_AVAILABLE, words))


def untold(told: OpenTransactions) -> dict[PartitionName, KafkaError]:
    """The partitions of which nothing was told, and why."""
    return {
        at: KafkaError(KafkaError._STATE, error.str())
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        else error
        for at, error in told.untold.items()
    }


def of_own(told: OpenTransactions, fencing: FencingProducer) -> dict[PartitionName, dict[str, int]]:
    """Where transactions of its own ids are open: by transactional id, the offset at which it begins."""
    own = {
        at: {fencing.ids_of[n]: offset for n, offset in by_producer.items() if n in fencing.ids_of}
        for at, by_producer in told.first.items()
    }
    return {at: by_id for at, by_id in own.items() if by_id}


def last_mapped(
    plan: DeduplicatorPlan,
    partition: int,
    wanted: Collection[PartitionName],
    until: int,
    admin: AdminClient,
    deadline: Deadline,
) -> tuple[dict[PartitionName, frozenset[int]], bool]:
    """Of destination partitions, where the runs begin of the last transaction that was committed there;
    whether no mapping at all is missing."""
    low, _ = clients.watermarks(admin, plan.mappings_topic, partition, deadline)
    reader, size = clients.reader(plan.reader, group_id=plan.group), FEW
    try:
        while True:
            begin = max(low, until + 1 - size)
            some = read_mappings(
                reader, plan.mappings_topic, partition, begin, until, deadline, offset_mappings.decode
            )
            # Of the first one that was read, there may be more before.
            found = last_begins(some if begin == low else _without_first(some))
            if begin == low or all(at in found for at in wanted):
                return found, low == 0
            size *= MANY_MORE
    finally:
        reader.close()


def _without_first(mappings: list[offset_mappings.Mapping]) -> list[offset_mappings.Mapping]:
    return [m for m in mappings if m.staging_offset != mappings[0].staging_offset]


def last_begins(mappings: Collection[offset_mappings.Mapping]) -> dict[PartitionName, frozenset[int]]:
    """Where the runs of the last transaction begin in each destination partition. All that a transaction has
    in a partition is written by one producer, so its first run begins where the leader says that it does."""
    found: dict[PartitionName, frozenset[int]] = {}
    of: dict[PartitionName, int] = {}
    for m in mappings:
        wrote = m.places
        if m.dead_letters is not None:
            wrote[m.dead_letters.topic, m.dead_letters.partition] = m.dead_letters.runs
        for at, runs in wrote.items():
            begins = frozenset(begin for _, begin, _ in runs)
            if runs:
                found[at] = begins | found[at] if of.get(at) == m.staging_offset else begins
                of[at] = m.staging_offset
    return found


class Watch:
    """Of the partitions that were written to since an owner has fenced, whether a transaction that has ended
    is still open there: it hears nothing of a marker that is missing, and whoever reads there sees no
    more."""

    def __init__(self, fencing: FencingProducer) -> None:
        self._fencing = fencing
        self._written: set[PartitionName] = set()
        self._seen: dict[PartitionName, dict[str, int]] = {}
        self._due = 0.0

    def wrote(self, partitions: Collection[PartitionName]) -> None:
        self._written.update(partitions)

    def hangs(self, aside: Collection[PartitionName], now: float) -> PartitionName | None:
        """A partition in which the same transaction was open WATCH_S ago. Call it between transactions."""
        if now < self._due or not self._written:
            return None
        self._due = now + WATCH_S
        told = self._fencing.client.open_transactions(self._written - set(aside), ASK_S)
        before, self._seen = self._seen, of_own(told, self._fencing)
        self._written = {*self._seen, *told.untold}
        return next((at for at, by_id in self._seen.items() if before.get(at) == by_id), None)
