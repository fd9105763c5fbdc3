"""What a lane says of partitions that stop or go on: in the control topic for the operator, in progress rows
for its driver."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from confluent_kafka import KafkaException

from common.app.lane_term import LaneTerm
from common.errors import KafkaTimeout
from common.link.control_kinds import Halted, Resumed
from common.link.control_records import REPLICATOR
from common.link.halt_reasons import HaltReason
from common.link.lane_progress import PartitionHalted, Row, Unfinished
from common.partitions import PartitionId
from common.ports import Deadline
from replicator.lane.partition_copy import PartitionCopy, Status

log = logging.getLogger(__name__)

CALL_S = 30.0


class Halts:
    """Says each thing once. `rows` are the lane's progress rows."""

    def __init__(self, term: LaneTerm, copies: Iterable[PartitionCopy]) -> None:
        self.term = term
        self.copies = list(copies)
        self.rows: list[Row] = []
        self._taken_back: set[PartitionId] = set()
        """Whose halts this lane has taken back, which it may not have read yet."""

    def halt(
        self, copy: PartitionCopy, reason: str, detail: str, next_offset: int | None, available: int | None
    ) -> None:
        copy.status = Status.HALTED
        copy.rewind(copy.acked)
        halt = self.term.state.halts.get((REPLICATOR, copy.key))
        self.row_halted(copy, detail)
        said = halt is not None and (halt.reason, halt.next, halt.available) == (
            reason,
            next_offset,
            available,
        )
        if said and copy.key not in self._taken_back:
            return
        self._taken_back.discard(copy.key)
        halted = Halted(
            REPLICATOR, copy.topic, copy.topic_id, copy.partition, reason, detail, next_offset, available
        )
        self.term.control.append(halted, Deadline(CALL_S))

    def internal(self, copy: PartitionCopy, detail: str, error: Exception) -> None:
        """Stop a partition for a bug, whose traceback is told once."""
        halt = self.term.state.halts.get((REPLICATOR, copy.key))
        if halt is None or halt.detail != detail:
            log.error("%s", detail, exc_info=error)
        self.halt(copy, HaltReason.INTERNAL, detail, copy.cut_at, None)

    def row_halted(self, copy: PartitionCopy, detail: str) -> None:
        self.rows.append(PartitionHalted(copy.topic, copy.partition, detail))

    def forget(self, copy: PartitionCopy) -> None:
        """It moves again, in the same epoch. That it does is told with its next position."""
        at = (copy.topic, copy.partition)
        self.rows = [
            row
            for row in self.rows
            if not isinstance(row, PartitionHalted) or (row.topic, row.partition) != at
        ]

    def resumed(self, copy: PartitionCopy) -> None:
        """Take back a halt of a partition that moves again."""
        if (REPLICATOR, copy.key) in self.term.state.halts and copy.status is Status.RUNNING:
            try:
                resumed = Resumed(
                    application=REPLICATOR,
                    topic=copy.topic,
                    topic_id=copy.topic_id,
                    partition=copy.partition,
                )
                self.term.control.append(resumed, Deadline(5.0))
                self._taken_back.add(copy.key)
            except (KafkaException, KafkaTimeout):
                log.warning("%s goes on, but the control topic could not be told; it will be", copy.name)

    def recreated(self, topic: str) -> None:
        """Stop copying a topic that is no longer the one that was planned. No halt: nothing that it had is
        copied from it any more."""
        for copy in self.copies:
            if copy.topic == topic and copy.status is Status.RUNNING:
                copy.status = Status.HALTED
                copy.rewind(copy.acked)
        self.replan(f"topic {topic} was deleted or made again at the source")

    def replan(self, why: str) -> None:
        """The plan no longer fits what is there: end the epoch."""
        if Unfinished() not in self.rows:
            log.info("planning anew: %s", why)
            self.rows.append(Unfinished())
            self.term.end_epoch(Deadline(CALL_S))
