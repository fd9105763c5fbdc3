"""The transactional ids of a staging partition: one is enough, until its last transaction can't end because a
partition takes no marker.

Kafka completes a transaction with a marker in each of its partitions. While one of these has no leader, the
next transaction of that id does not begin and whoever fences is told to wait: all partitions of the staging
partition would stand still with the one. So there are spare ids, `<link>.<staging partition>.1` and so on.
That two owners never deliver side by side holds as with one id, by this rule:

    Whoever owns the partition has seen each of its ids, at one and the same moment, either its own or
    nobody's.

Its own: fenced by it, and not by another since. Nobody's: never used; or its coordinator names a producer
that nobody has any more. That is either one that its holder has given up for good, which the control topic
says (`given-up`), or an epoch that was never given to anybody: Kafka raises it when it aborts a transaction
for someone who fences. Once a later owner has seen the same, the earlier one has no id that is still its own.
Seen at one moment: those that are nobody's are looked at again after all others were fenced
(deduplicator/lane/fencing.py).
"""

from __future__ import annotations

from common.kafka.wire.protocol import KnownTransaction
from common.link.control_kinds import GivenUp
from common.link.control_log import ControlLog
from common.ports import Deadline

CALL_S = 30.0
MOST = 8
"""Ids of one staging partition: so many times one destination after the other may die in the middle of a
transaction."""


def transactional_id(link: str, partition: int, number: int) -> str:
    return f"{link}.{partition}" + (f".{number}" if number else "")


class TransactionalIds:
    """What an owner knows of the ids of its staging partition."""

    def __init__(self, control: ControlLog) -> None:
        self._control = control
        self._had: dict[str, tuple[int, int]] = {}
        """The producer of this owner that had the id last: it is used by nobody else, and not again once
        another one is made."""

    def have(self, transactional_id: str, number: int, epoch: int) -> None:
        self._had[transactional_id] = (number, epoch)

    def nobodys(
        self, transactional_id: str, before: KnownTransaction | None, after: KnownTransaction | None
    ) -> bool:
        """Whether nobody has an id that could not be fenced: as its coordinator knew it before that was
        tried, and after. Pure."""
        if after is None:
            return False
        held = (after.number, after.epoch)
        raised = (
            before is not None
            and before.state == "Ongoing"
            and after.state == "PrepareAbort"
            # Of the same transaction: of another one, the next epoch may be somebody's.
            and before.began_ms == after.began_ms
            and held == (before.number, before.epoch + 1)
        )
        # Its end was decided by what this owner has sent, and nothing else of it is on its way.
        own = after.state.startswith("Prepare") and held == self._had.get(transactional_id)
        return raised or own or held == self._control.state.given_up.get(transactional_id)

    def give_up(self, transactional_id: str, known: KnownTransaction) -> None:
        """Say for good that nobody uses this producer of the id again."""
        held = (known.number, known.epoch)
        if self._control.state.given_up.get(transactional_id) != held:
            self._control.append(GivenUp(transactional_id, *held), Deadline(CALL_S))
