"""Commands broken on purpose, in their own process, to see that the oracle notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as other
from typing import Any

from common.link.control_kinds import GroupMove
from common.link.control_records import MOVED
from common.ports import Deadline
from offsets.groups import Groups
from offsets.translation_index import PartitionIndex
from tests.faults.moves.points import replace
from verbatim.moves import demotion, handover, promotion
from verbatim.moves.group_move import GroupMoves

CALL_S = 30.0


def one_off() -> None:
    """Each offset is translated to the one behind it."""

    def by(translate: Any) -> Any:
        def translated(self: Any, offset: int, origin: int | None) -> Any:
            found = translate(self, offset, origin)
            return found if found.offset is None else found._replace(offset=found.offset + 1)

        return translated

    replace(PartitionIndex, "translate", by)


def done_before() -> None:
    """That a group was moved is on record before its offsets are written."""

    def by(write: Any) -> Any:
        def written(self: GroupMoves, ways: Any, *rest: Any) -> Any:
            records = [GroupMove(way.group, MOVED) for way in ways]
            self.survey.control.append_all(records, Deadline(CALL_S))
            return write(self, ways, *rest)

        return written

    replace(GroupMoves, "_write", by)


def ends_off() -> None:
    """Where copies end is written down one record too early."""

    def by(made: Any) -> Any:
        def early(*args: Any) -> Any:
            said = made(*args)
            return other(said, ends=tuple(max(0, end - 1) for end in said.ends))

        return early

    replace(handover, "HandedOver", by)


def promoted_at_once() -> None:
    """A topic is promoted though nobody has said that nothing more of it is delivered."""
    replace(
        promotion.Promoting, "hold", lambda _: lambda self, found, ends, step: setattr(self, "_taken", {})
    )


def not_given_back() -> None:
    """A topic is said to be copied again, and that is not on record."""
    replace(demotion.Demotion, "_give_back", lambda _: lambda self, control, step: None)


def offsets_forgotten() -> None:
    """The records of groups' offsets are written, the offsets are not."""
    replace(Groups, "commit", lambda _: lambda self, wanted, deadline: {})


BREAKAGES: dict[str, Callable[[], None]] = {
    "done-before": done_before,
    "ends-off": ends_off,
    "not-given-back": not_given_back,
    "offsets-forgotten": offsets_forgotten,
    "one-off": one_off,
    "promoted-at-once": promoted_at_once,
}
