"""Whether the topics that a frame's records go to take them: the link's own destination, and those that a
stage of the pipeline takes some to. Makes nothing and writes nothing: the driver looks after the topics
(deduplicator/driver/destinations.py, deduplicator/driver/route_topics.py)."""

from __future__ import annotations

import logging

from common.app.lane_term import LaneTerm
from common.errors import FrameError
from common.link.control_records import Destination
from common.link.control_state import Control
from common.link.frame import Frame
from common.link.halt_reasons import HaltReason
from common.partitions import PartitionId
from common.pipeline.route_names import routed_topics
from common.ports import Deadline
from deduplicator.lane.blocked_partitions import BlockedPartitions
from deduplicator.lane.hanging import Unsettled
from deduplicator.lane.transaction import Again, Transaction, batch_within
from deduplicator.lane.unavailable import Unavailable, Waiting

log = logging.getLogger(__name__)

CALL_S = 30.0


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
        self._named: dict[tuple[int, str], frozenset[str]] = {}
        """By the number of a pipeline and a source topic, where its stages take records of the topic."""

    def own(self, key: PartitionId, frame: Frame, offset: int) -> Destination | None:
        """The link's own destination; None: the frame is left out, or held."""
        destination = self._term.state.destinations.get(frame.topic_id)
        if destination is not None and not self._takes(key, frame, offset, destination):
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

    def routes(
        self, key: PartitionId, frame: Frame, offset: int, own: Destination
    ) -> list[Destination] | None:
        """Of each of the frame's routes the destination: `own`, where that is called so. None: the frame is
        held. Raises FrameError where no pipeline could have made it."""
        found: list[Destination] = []
        for name in frame.routes:
            if name == own.topic:
                found.append(own)
                continue
            self._must_be_named(frame, name)
            destination = self._term.state.routes.get((frame.topic_id, name))
            if destination is not None and not self._takes(key, frame, offset, destination):
                return None
            if destination is None or frame.partition >= destination.partitions:
                raise Waiting
            found.append(self._with_room(destination))
        return found

    def _takes(self, key: PartitionId, frame: Frame, offset: int, destination: Destination) -> bool:
        name = destination.topic
        if destination.refused is not None:
            reason = HaltReason.GONE if destination.gone else HaltReason.REFUSED
            self._blocked.skip(key, frame, offset, reason, destination.refused, to=name)
            return False
        at = (name, frame.partition)
        if aside := self._unavailable.aside.get(at):
            self._blocked.skip(key, frame, offset, aside.reason, aside.detail, to=name)
            return False
        if (unsettled := self._unavailable.unsettled.get(at)) is not None:
            raise Unsettled(at, unsettled)
        return True

    def _with_room(self, destination: Destination) -> Destination:
        if batch_within(destination.max_message_bytes) < self._transaction.batch_bytes:
            raise Again(f"{destination.topic} takes only smaller batches")
        return destination

    def _must_be_named(self, frame: Frame, name: str) -> None:
        """Otherwise it would be waited for in vain."""
        at = (frame.pipeline, frame.topic)
        if at not in self._named:
            version = self._term.state.pipelines.get(frame.pipeline)
            if version is None:
                version = self._term.control.refresh(Deadline(CALL_S)).pipelines.get(frame.pipeline)
            named = frozenset[str]()
            if version is not None:
                named = routed_topics(version.definition, frame.topic, self._transaction.plan.link)
            self._named[at] = named
        if name not in self._named[at]:
            where = f"{frame.topic}-{frame.partition} [{frame.start}, {frame.next})"
            raise FrameError(
                f"frame of {where} holds records for {name}, and pipeline {frame.pipeline} takes none there"
            )


def _described(term: LaneTerm, frame: Frame) -> bool:
    """Whether the replicator has said that there is such a partition: it does so before the first frame."""

    def there(state: Control) -> bool:
        source = state.topics.get(frame.topic_id)
        return source is not None and frame.partition < source.partitions

    return there(term.state) or there(term.control.refresh(Deadline(CALL_S)))
