"""Source partitions that an operator takes out of the link: nothing more of them is delivered, and that is
said once it is certain. What they are is decided in common/link/promotions.py.
"""

from __future__ import annotations

import logging

from common import ports
from common.app.lane_term import LaneTerm
from common.link.control_kinds import LetGo
from common.link.frame import Frame
from common.link.partitioning import partitions_of
from common.link.promotions import PROMOTING
from common.partitions import PartitionId
from common.ports import Deadline
from deduplicator.lane.partition_state import StagingPartitionState

log = logging.getLogger(__name__)

CALL_S = 30.0


class LettingGo:
    """Of one staging partition."""

    def __init__(self, term: LaneTerm, state: StagingPartitionState, staging_partitions: int) -> None:
        self.term = term
        self.state = state
        self._staging_partitions = staging_partitions
        self._answered: set[tuple[int, PartitionId]] = set()
        self._told: set[PartitionId] = set()

    def leaves_out(self, key: PartitionId, frame: Frame) -> bool:
        """Whether a frame has what is not copied any more. All of it is left out: what lies below the end was
        delivered before. Where the topic was given back before the frame was written, that is on record by
        now; the replicator's next frame shows that those before it are missing."""
        promotion = self.term.state.steering.promotions.get(frame.topic)
        if promotion is None or frame.next <= promotion.end(key):
            return False
        promotion = self.term.control.refresh(Deadline(CALL_S)).steering.promotions.get(frame.topic)
        if promotion is None or frame.next <= promotion.end(key):
            return False
        if key not in self._told:
            self._told.add(key)
            log.error(
                "%s-%d is %s, copied up to source offset %d: what comes then is left out. Who still writes at the source?",
                frame.topic,
                frame.partition,
                promotion.state,
                promotion.end(key),
            )
        return True

    def due(self) -> list[LetGo]:
        """The answers that are to be given, between two transactions.

        They hold for whoever may own the partition. Earlier owners are fenced. The next one fences after the
        record by which this epoch ends, and has read the control topic up to there: if that comes behind
        the promotion, it knows. If it comes before, this one knows that it may own nothing any more.
        """
        if self.term.over(ports.monotonic()):
            return []
        return [
            LetGo(topic, promotion.topic_id, p, self.state.next.get((promotion.topic_id, p), 0), promotion.at)
            for topic, promotion in self.term.state.steering.promotions.items()
            if promotion.state == PROMOTING
            for p in partitions_of(topic, len(promotion.ends), self.state.partition, self._staging_partitions)
            if p not in promotion.let_go and (promotion.at, (promotion.topic_id, p)) not in self._answered
        ]

    def answer(self) -> None:
        """Give them."""
        if answers := self.due():
            self.term.control.append_all(answers, Deadline(CALL_S))
            self._answered |= {(answer.answers, answer.key) for answer in answers}
