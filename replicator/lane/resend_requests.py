"""What a lane is asked to send again, what an operator has given up, and what it asks itself when the source
has lost its position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from confluent_kafka import KafkaError

from common import ports
from common.app.lane_term import LaneTerm
from common.link.control_kinds import Ask
from common.link.control_records import Consent, Request
from common.link.halt_reasons import HaltReason
from common.ports import Deadline
from replicator.lane.halts import Halts
from replicator.lane.partition_copy import CutFrame, PartitionCopy, Status
from replicator.lane.source_reader import Source

log = logging.getLogger(__name__)

ASK_AGAIN_S = 30.0
CALL_S = 30.0


class ResendRequests:
    """Turns copies back, or halts them. `hold_back` takes frames that are to be sent."""

    def __init__(
        self,
        copies: Collection[PartitionCopy],
        term: LaneTerm,
        source: Source,
        halts: Halts,
        hold_back: Callable[[CutFrame], None],
    ) -> None:
        self.copies = copies
        self.term = term
        self.source = source
        self.halts = halts
        self.hold_back = hold_back

    def answer(self) -> None:
        """Turn to what the control topic has asked since."""
        rewound = False
        for copy in self.copies:
            resend = self.term.state.resends.get(copy.key)
            consent = self.term.state.consents.get(copy.key)
            demands: list[Request | Consent] = [
                d for d in (resend, consent) if d is not None and d.at > copy.handled
            ]
            if demands and consent is not None and resend is not None and given_up(resend, consent):
                # What is asked for is what has been given up: the consent is the answer, also when its gap
                # frame has to go again.
                demands = [consent]
                copy.handled = max(copy.handled, resend.at)
            for demand in sorted(demands, key=lambda d: d.at):
                copy.handled = max(copy.handled, demand.at)
                if isinstance(demand, Consent):
                    rewound |= self._accept_loss(copy, demand)
                else:
                    rewound |= self._resend(copy, demand)
        if rewound and self.source.reading():
            self.source.read_from_positions()

    def _resend(self, copy: PartitionCopy, demand: Request) -> bool:
        position = copy.origin if demand.next is None else demand.next
        low, high = self.source.watermarks(copy)
        if not low <= position <= high and not self.source.still_the_same(copy):
            self.halts.recreated(copy.topic)
            return False
        if position < low and not demand.answers:
            # Not a loss yet: whoever asked may have been fenced before the record arrived, and the
            # destination be further by now.
            copy.status = Status.ASKING
            copy.rewind(copy.acked)
            copy.gone = (position, low, high)
            self._ask(copy, ports.monotonic())
            return False
        if position < low:
            self.halts.halt(
                copy,
                HaltReason.SOURCE_LOST,
                f"records [{position}, {low}) of {copy.name} are gone from the source before they reached the destination; its log is [{low}, {high}) now",
                position,
                low,
            )
            return False
        if position > high:
            self.halts.halt(
                copy,
                HaltReason.SOURCE_TRUNCATED,
                f"the source log of {copy.name} ends at {high}, below {position} which the destination has reached",
                position,
                low,
            )
            return False
        log.warning("%s: sending again from %d", copy.name, position)
        copy.rewind(position)
        copy.status = Status.RUNNING
        if demand.next is None:
            self.hold_back(copy.origin_frame())
        return True

    def _accept_loss(self, copy: PartitionCopy, consent: Consent) -> bool:
        if consent.to is None:
            return False
        start = consent.to if consent.next is None else consent.next
        log.warning(
            "%s: going on at %d; the loss of [%d, %d) is accepted: %s",
            copy.name,
            consent.to,
            start,
            consent.to,
            consent.reason,
        )
        copy.rewind(consent.to)
        copy.status = Status.RUNNING
        self.hold_back(copy.gap_frame(start, consent.to, consent.reason))
        return True

    def lost_position(self, copy: PartitionCopy, error: KafkaError, now: float) -> None:
        """The source has no record at the position: gone by retention, or the log is shorter than it was.

        Or it is another log: a topic deleted and made again is read on at the old position, which may lie
        outside of what it holds.
        """
        low, high = self.source.watermarks(copy)
        if not self.source.still_the_same(copy):
            self.halts.recreated(copy.topic)
            return
        if error.code() == KafkaError._LOG_TRUNCATION or copy.read > high:
            self.halts.halt(
                copy,
                HaltReason.SOURCE_TRUNCATED,
                f"the source log of {copy.name} was cut below position {copy.read} (it now ends at {high}): records copied before may "
                "differ from what the source holds now",
                copy.acked,
                low,
            )
        elif copy.read < low:
            # Only if something is lost: the position may merely be behind the deduplicator's.
            copy.status = Status.ASKING
            copy.rewind(copy.acked)
            copy.gone = (copy.read, low, high)
            self._ask(copy, now)
        else:
            log.warning(
                "%s: %s at position %d, log [%d, %d): reading again",
                copy.name,
                error.str(),
                copy.read,
                low,
                high,
            )
            self.source.read_from_positions()

    def ask_again(self, now: float) -> None:
        """A question without an answer is asked again after a while."""
        for copy in self.copies:
            if copy.status is Status.ASKING and now - copy.asked_since > ASK_AGAIN_S:
                self._ask(copy, now)

    def _ask(self, copy: PartitionCopy, now: float) -> None:
        log.warning(
            "%s: %s; asking how far the destination is",
            copy.name,
            no_longer_there(copy),
        )
        self.term.control.append(Ask(copy.topic, copy.topic_id, copy.partition), Deadline(CALL_S))
        copy.asked_since = now


def no_longer_there(copy: PartitionCopy) -> str:
    """Of a copy that is asking: what its source was asked for, and what it has by now."""
    assert copy.gone is not None
    return "the source no longer has position {}: its log is [{}, {}) now".format(*copy.gone)


def given_up(resend: Request, consent: Consent) -> bool:
    """Whether a demand asks for records whose loss an operator has accepted."""
    if consent.to is None:
        return False
    if resend.at < consent.at:
        return True
    return resend.next is not None and consent.next is not None and consent.next <= resend.next < consent.to
