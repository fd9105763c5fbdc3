"""Whether the topics that a frame's records go to take them: the link's own destination, and those that a
stage of the pipeline takes some to. Makes nothing and writes nothing: the driver looks after the topics
(deduplicator/driver/destinations.py, deduplicator/driver/route_topics.py)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from common.app.lane_term import LaneTerm
from common.errors import FrameError
from common.link.control_records import Destination
from common.link.control_state import Control
from common.link.frame import Frame
from common.link.halt_reasons import HaltReason
from common.partitions import PartitionId
from common.pipeline.route_names import place, routed_topics, topic_and_partition
from common.ports import Deadline
from deduplicator.lane.blocked_partitions import BlockedPartitions
from deduplicator.lane.hanging import Unsettled
from deduplicator.lane.transaction import Again, Transaction, batch_within
from deduplicator.lane.unavailable import Unavailable, Waiting

log = logging.getLogger(__name__)

CALL_S = 30.0
To = tuple[Destination, int | None]
"""Where records go; None: to the partition that has the number of the source's."""


class FrameDestinations:
    """As the owner of a staging partition sees them. What it is asked about raises Waiting where the driver
    has not looked yet, Unsettled and Again."""

    def __init__(
        self, term: LaneTerm, transaction: Transaction, blocked: BlockedPartitions, unavailable: Unavailable
    ) -> None:
        self._term = term
        self._transaction = transaction
        self._blocked = blocked
        self._unavailable = unavailable

    def own(self, key: PartitionId, frame: Frame, offset: int) -> Destination | None:
        """The link's own destination; None: the frame is left out, or held."""
        destination = self._term.state.destinations.get(frame.topic_id)
        if destination is not None and not self._takes(key, frame, offset, destination, frame.partition):
            return None
        if destination is None or frame.partition >= destination.partitions:
            if _described(self._term, frame):
                raise Waiting
            log.error(
                "%s offset %d: frame of %s-%d (topic id %s), which the replicator never described; left out",
                self._blocked.state.name,
                offset,
                frame.topic,
                frame.partition,
                frame.topic_id,
            )
            return None
        return self._with_room(destination)

    def routes(self, key: PartitionId, frame: Frame, offset: int, own: Destination) -> list[To] | None:
        """Of each of the frame's routes the destination: `own`, where that is called so; and the partition
        there. None: the frame is held. Raises FrameError where no pipeline could have made it."""
        found: list[To] = []
        for route in frame.routes:
            try:
                name, partition = topic_and_partition(route)
            except ValueError as error:
                raise FrameError(f"frame of {_where(frame)}: {error}") from None
            if name == own.topic:
                # Which has the source's partitions, and no others.
                found.append((own, None))
                continue
            count = self._count(frame, name, partition)
            destination = self._term.state.routes.get((frame.topic_id, name))
            at = frame.partition if partition is None else partition
            if destination is not None and not self._takes(key, frame, offset, destination, at):
                return None
            if destination is None or max(at, (count or 0) - 1) >= destination.partitions:
                raise Waiting
            if count is not None and count < destination.partitions:
                self._of_fewer(key, frame, offset, count, destination)
                return None
            found.append((self._with_room(destination), partition))
        return found

    def _takes(
        self, key: PartitionId, frame: Frame, offset: int, destination: Destination, partition: int
    ) -> bool:
        name = destination.topic
        at = (name, partition)
        if destination.refused is not None:
            reason = HaltReason.GONE if destination.gone else HaltReason.REFUSED
            self._blocked.skip(key, frame, offset, reason, destination.refused, to=at)
            return False
        if aside := self._unavailable.aside.get(at):
            self._blocked.skip(key, frame, offset, aside.reason, aside.detail, to=at)
            return False
        if (unsettled := self._unavailable.unsettled.get(at)) is not None:
            raise Unsettled(at, unsettled)
        return True

    def _with_room(self, destination: Destination) -> Destination:
        if batch_within(destination.max_message_bytes) < self._transaction.batch_bytes:
            raise Again(f"{destination.topic} takes only smaller batches")
        return destination

    def _of_fewer(
        self, key: PartitionId, frame: Frame, offset: int, count: int, destination: Destination
    ) -> None:
        """The topic has more partitions by now than the frame's version spreads keys over: its records would
        lie where no producer puts their keys. The newest version makes them again. Raises Waiting."""
        if frame.pipeline >= self._term.state.pipeline:
            raise Waiting
        why = f"a frame of pipeline {frame.pipeline} spreads keys over {count} of {destination.partitions} partitions of {destination.topic}"
        self._blocked.skip(key, frame, offset, HaltReason.MISSING, why)

    def _count(self, frame: Frame, name: str, partition: int | None) -> int | None:
        """Over how many partitions the frame's version spreads keys there; None: it does not. Raises
        FrameError where it takes none of its records there: they would be waited for in vain."""
        version = self._term.state.pipelines.get(frame.pipeline)
        if version is None:
            version = self._term.control.refresh(Deadline(CALL_S)).pipelines.get(frame.pipeline)
        named: Mapping[str, int | None] = {}
        if version is not None:
            named = routed_topics(version.definition, frame.topic, self._transaction.plan.link)
        count = named.get(name)
        if name not in named or (count is None) != (partition is None) or (partition or 0) >= (count or 1):
            raise FrameError(
                f"frame of {_where(frame)} holds records for {place(name, partition)}, and pipeline {frame.pipeline} takes none there"
            )
        return count


def _where(frame: Frame) -> str:
    return f"{frame.topic}-{frame.partition} [{frame.start}, {frame.next})"


def _described(term: LaneTerm, frame: Frame) -> bool:
    """Whether the replicator has said that there is such a partition: it does so before the first frame."""

    def there(state: Control) -> bool:
        source = state.topics.get(frame.topic_id)
        return source is not None and frame.partition < source.partitions

    return there(term.state) or there(term.control.refresh(Deadline(CALL_S)))
