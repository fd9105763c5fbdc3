"""Whether the topic of dead letters takes what frames have for it. Makes nothing and writes nothing: the
driver looks after the topic (deduplicator/driver/letter_topic.py)."""

from __future__ import annotations

from common.app.lane_term import LaneTerm
from common.errors import FrameError
from common.link import control_kinds as kinds
from common.link.dead_letters import asked_for
from common.link.frame import Frame
from common.partitions import PartitionName
from common.ports import Deadline
from deduplicator.lane.hanging import Unsettled
from deduplicator.lane.unavailable import Unavailable, Waiting

CALL_S = 30.0


class LetterTopic:
    """As the owner of a staging partition sees it, which writes to the partition of the same number."""

    def __init__(self, term: LaneTerm, unavailable: Unavailable, partition: int) -> None:
        self._term = term
        self._unavailable = unavailable
        self._partition = partition
        self._asked_for: dict[int, bool] = {}
        """By the number of a pipeline."""

    @property
    def at(self) -> PartitionName | None:
        """Where dead letters go, if there is such a topic."""
        found = self._term.state.dead_letters
        return None if found is None else (found.topic, self._partition)

    def found(self) -> kinds.DeadLetters:
        """The topic, as the driver has found it. Raises Waiting where it has not looked yet."""
        if (found := self._term.state.dead_letters) is None:
            raise Waiting
        return found

    def refusal(self, frame: Frame | None = None) -> str | None:
        """Why nothing may be written there; None: it may. Raises Waiting; FrameError where no pipeline could
        have made the frame; Unsettled."""
        if frame is not None:
            self._must_be_asked_for(frame)
        found = self.found()
        at = (found.topic, self._partition)
        if found.refused is not None:
            return found.refused
        if (aside := self._unavailable.aside.get(at)) is not None:
            return aside.detail
        if frame is not None and (unsettled := self._unavailable.unsettled.get(at)) is not None:
            raise Unsettled(at, unsettled)
        return None

    def _must_be_asked_for(self, frame: Frame) -> None:
        """Otherwise it would be waited for in vain."""
        number = frame.pipeline
        if number not in self._asked_for:
            version = self._term.state.pipelines.get(number)
            if version is None:
                version = self._term.control.refresh(Deadline(CALL_S)).pipelines.get(number)
            self._asked_for[number] = version is not None and asked_for(version.definition)
        if not self._asked_for[number]:
            where = f"{frame.topic}-{frame.partition} [{frame.start}, {frame.next})"
            raise FrameError(
                f"frame of {where} holds records that a stage failed on, and pipeline {number} has no dead letters"
            )
