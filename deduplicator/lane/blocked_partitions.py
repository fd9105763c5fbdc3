"""The source partitions of a staging partition that can't go on for now: told in the control topic, asked
for, released again.

What is true of one of them is decided in deduplicator/lane/blocked_partition.py; which frames are skipped, in
deduplicator/lane/frame_handler.py.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from confluent_kafka.admin import AdminClient

from common import ports
from common.app.lane_term import LaneTerm
from common.kafka.client import clients
from common.link.control_kinds import Halted, Resend, Resumed
from common.link.control_records import DEDUPLICATOR, Destination, Request
from common.link.frame import Frame
from common.link.halt_reasons import AT_THE_DESTINATION, HaltReason
from common.link.partitioning import staging_partition
from common.partitions import PartitionId, PartitionName
from common.ports import Deadline
from deduplicator.lane.blocked_partition import BlockedPartition
from deduplicator.lane.letter_topic import LetterTopic
from deduplicator.lane.partition_state import StagingPartitionState
from deduplicator.lane.transaction import Again
from deduplicator.lane.unavailable import Unavailable
from deduplicator.lane_plan import DeduplicatorPlan

log = logging.getLogger(__name__)

CALL_S = 30.0


class BlockedPartitions:
    """Partitions that stand still, and what the replicator is asked and told about them."""

    def __init__(
        self,
        plan: DeduplicatorPlan,
        term: LaneTerm,
        state: StagingPartitionState,
        admin: AdminClient,
        unavailable: Unavailable,
    ) -> None:
        self.plan = plan
        self.term = term
        self.state = state
        self.stuck: dict[PartitionId, BlockedPartition] = {}
        self._admin = admin
        self._unavailable = unavailable
        self.letter_topic = LetterTopic(term, unavailable, state.partition)
        self._answered: dict[PartitionId, int] = {}
        self._ask_from: dict[int, int] = {}
        """Control offset of a question -> end of staging when it was seen first."""
        self._closing: dict[PartitionId, str] = {}

    def skip(
        self,
        key: PartitionId,
        frame: Frame,
        offset: int,
        reason: str,
        detail: str,
        available: int | None = None,
        to: PartitionName | None = None,
    ) -> None:
        """Leave a frame out: hold it, and ask the replicator or tell the operator. `to`: the topic and the
        partition for which."""
        trouble = self.stuck.get(key)
        now = ports.monotonic()
        if trouble is None or (trouble.reason != reason and reason != HaltReason.MISSING):
            held, start = (offset, frame.start) if trouble is None else (trouble.held, trouble.held_start)
            trouble = self.stuck[key] = BlockedPartition(reason, held, start, frame.next, to=to)
            if reason != HaltReason.MISSING:
                self._tell_halt(key, frame, trouble, detail, available)
        trouble.held_end = max(trouble.held_end, frame.next)
        if trouble.to is None:
            trouble.to = to  # of one that was inherited it was not known
        if trouble.reason == HaltReason.MISSING and not self._lost_at_source(key) and trouble.asks_now(now):
            log.warning(
                "%s-%d: %s; asking to send again from %s",
                frame.topic,
                frame.partition,
                detail,
                self.state.next.get(key, "its origin"),
            )
            self._ask_again(key, frame.topic, trouble)

    def staging_end(self) -> int:
        """The offset of the next frame that comes to be there."""
        _, end = clients.watermarks(
            self._admin, self.plan.staging_topic, self.state.partition, Deadline(CALL_S)
        )
        return end

    def _lost_at_source(self, key: PartitionId) -> bool:
        """Whether the replicator has said that it can't send again what is asked for."""
        halt = self.term.state.halts.get(("replicator", key))
        return halt is not None and halt.next == self.state.next.get(key)

    def _tell_halt(
        self, key: PartitionId, frame: Frame, trouble: BlockedPartition, detail: str, available: int | None
    ) -> None:
        halt = self.term.state.halts.get((DEDUPLICATOR, key))
        next_offset = self.state.next.get(key)
        if halt is not None and (halt.reason, halt.next, halt.detail) == (
            trouble.reason,
            next_offset,
            detail,
        ):
            return
        halted = Halted(
            DEDUPLICATOR,
            frame.topic,
            *key,
            trouble.reason,
            detail,
            next_offset,
            available,
            held=(self.state.partition, trouble.held),
            held_start=trouble.held_start,
        )
        self.term.control.append(halted, Deadline(CALL_S))

    # going on

    def close_gap(self, key: PartitionId, topic: str) -> None:
        """The partition moves again: once past all that was skipped, nothing needs to be held any more."""
        trouble = self.stuck.get(key)
        if trouble is not None and trouble.closed(self.state.next[key], self.state.position):
            self._closing[key] = topic

    def forget_closing(self) -> None:
        """The transaction that would have closed some is given up."""
        self._closing = {}

    def settle(self) -> None:
        """Say which partitions go on, after the transaction that moved them is committed: said before, and
        aborted, what they skipped could be trimmed although it is needed again."""
        for key, trouble in self.stuck.items():
            # A frame is judged before the position has passed it: after the last one that was skipped, it
            # shows only here. And a gap that a frame has closed is open again where a later one of the same
            # transaction was skipped.
            if trouble.closed(self.state.next.get(key, -1), self.state.position):
                self._closing.setdefault(key, "")
                continue
            self._closing.pop(key, None)
            if self.state.position >= trouble.until:
                trouble.returning = False
        for key, topic in self._closing.items():
            if self.stuck.pop(key, None) is not None:
                resumed = Resumed(application=DEDUPLICATOR, topic=topic, topic_id=key[0], partition=key[1])
                self.term.control.append(resumed, Deadline(CALL_S))
        self._closing = {}

    def go_back_where_cleared(self) -> None:
        """A destination that was refused or set aside is fit now, or takes records without a key, or the
        topic of dead letters takes some: go back to the first frame skipped for it."""
        self._unavailable.look()
        cleared: list[str] = []
        for key, trouble in self.stuck.items():
            if (fit := self._fit_again(key, trouble.reason)) is not None:
                trouble.reason = HaltReason.MISSING
                trouble.until = max(trouble.until, self.state.position)
                trouble.returning = True
                cleared.append(fit)
        if cleared:
            # All at once: a second return, to a later offset, would leave out what the first one has not read
            # again yet.
            raise Again(f"{', '.join(cleared)}: fit again, going back to the first frame skipped")

    def _fit_again(self, key: PartitionId, reason: str) -> str | None:
        """The topic for which a partition stood still, where it need not any more."""
        if reason == HaltReason.DEAD_LETTERS:
            at = self.letter_topic.at
            return at[0] if at is not None and self.letter_topic.refusal() is None else None
        destination, to = self._for_which(key)
        if reason not in (HaltReason.REFUSED, HaltReason.NO_KEY, *AT_THE_DESTINATION) or destination is None:
            return None
        if reason == HaltReason.NO_KEY and destination.compacted:
            return None
        aside = to in self._unavailable.aside
        return None if aside or destination.refused is not None else destination.topic

    def _for_which(self, key: PartitionId) -> tuple[Destination | None, PartitionName]:
        """The destination for which a partition stands still, as it is by now, and the partition there."""
        to = self.stuck[key].to
        found = self.term.state.destination_of(key[0], None if to is None else to[0])
        name = "" if found is None else found.topic
        return found, to if to is not None and to[0] == name else (name, key[1])

    def stay(self, partitions: Collection[PartitionName]) -> None:
        """These destination partitions are set aside: what was being read again for them need not be, before
        they take records again."""
        for key, trouble in self.stuck.items():
            _, to = self._for_which(key)
            if to not in partitions:
                continue
            # Of one that was inherited it is not known yet how far the skipped frames reach: they are read
            # all the same.
            if trouble.returning and trouble.held_end > self.state.next.get(key, -1):
                trouble.returning = False
                trouble.reason = self._unavailable.aside[to].reason

    def first_returning(self, position: int) -> int:
        """Where to read from, so that what is being read again is: `position`, or below it.

        Also when a transaction fails after the return: the committed position still lies behind what was
        skipped.
        """
        return min([position, *(t.held for t in self.stuck.values() if t.returning)])

    def inherit_holds(self, position: int) -> None:
        """Take over what a predecessor skipped."""
        state = self.term.state
        for key, hold in state.holds.copy().items():
            if hold.held is not None and hold.held[0] == self.state.partition and key not in self.stuck:
                halt = state.halts.get((DEDUPLICATOR, key))
                start = hold.held_start if hold.held_start is not None else 0
                reason = halt.reason if halt else HaltReason.MISSING
                # Read again from the first skipped frame: what was halted may go on now, and only so is it
                # known how far the skipped frames reach, and thus when they need not be held any more. Not
                # before that frame itself is read: the position may lie below it, and what comes between,
                # seen, would close the gap.
                until = max(position, hold.held[1] + 1)
                self.stuck[key] = BlockedPartition(reason, hold.held[1], start, start, until, returning=True)
                destination = state.destinations.get(key[0])
                if halt is not None and reason in AT_THE_DESTINATION and destination is not None:
                    self._unavailable.stood_still((destination.topic, key[1]), reason, halt.detail)

    # questions

    def asked(self) -> bool:
        """Whether the replicator waits for an answer."""
        return bool(self._open_asks())

    def answer_asks(self) -> None:
        """Tell the replicator how far a partition is, once all that was in staging when it asked has been
        delivered."""
        asks = self._open_asks()
        new = [ask for ask in asks.values() if ask.at not in self._ask_from]
        if new:
            # The replicator's frames were acknowledged before it asked.
            self._ask_from |= dict.fromkeys((ask.at for ask in new), self.staging_end())
        asks = {k: a for k, a in asks.items() if self.state.position >= self._ask_from[a.at]}
        for key, ask in asks.items():
            self._answered[key] = ask.at
            if key not in self.state.next and not self.state.complete:
                continue
            self._ask_again(key, ask.topic, self.stuck.get(key), ask.at)

    def _ask_again(
        self, key: PartitionId, topic: str, trouble: BlockedPartition | None, answers: int | None = None
    ) -> None:
        """Say how far a partition is: the replicator sends again what comes then."""
        held = None if trouble is None else (self.state.partition, trouble.held)
        start = None if trouble is None else trouble.held_start
        resend = Resend(topic, *key, self.state.next.get(key), answers, held, start)
        self.term.control.append(resend, Deadline(CALL_S))

    def _open_asks(self) -> dict[PartitionId, Request]:
        return {
            k: a
            for k, a in self.term.state.asks.copy().items()
            if self._answered.get(k, -1) < a.at and self._mine(k, a.topic)
        }

    def _mine(self, key: PartitionId, topic: str) -> bool:
        return staging_partition(topic, key[1], self.plan.staging_partitions) == self.state.partition
