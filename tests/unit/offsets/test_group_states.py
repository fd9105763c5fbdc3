"""How groups were translated, as metrics tell it."""

from __future__ import annotations

from common.app.group_state import GroupState
from offsets.group_offsets import GroupKey, GroupOffset
from offsets.group_states import group_states
from offsets.survey import Row, Unmoved


def row(group: str, partition: int, outcome: str, exact: bool = True, doubt: str = "") -> Row:
    record = GroupOffset("id", 5, group, "t", partition, 5, exact, None, outcome, "", 0, "", None)
    return Row(GroupKey(group, "t", partition), record, None, doubt)


def test_partitions_are_exact_or_behind_or_held_back() -> None:
    rows = [
        row("g", 0, "written"),
        row("g", 1, "in-step"),
        row("g", 2, "written", exact=False),
        row("g", 3, "active"),
        row("g", 4, "target-ahead", exact=False),
        row("g", 5, "written", doubt="no answer"),
        row("h", 0, "in-step", exact=False),
    ]
    found = group_states(rows, [], {}, 1000)
    assert found == {"g": GroupState(2, 1, 3, 2, None), "h": GroupState(0, 1, 0, 0, 1000)}


def test_a_group_that_is_held_back_was_in_step_when_it_was() -> None:
    first = group_states([row("g", 0, "written"), row("g", 1, "written")], [], {}, 1000)
    then = group_states([row("g", 0, "written"), row("g", 1, "active")], [], first, 2000)
    assert then == {"g": GroupState(1, 0, 1, 3, 1000)}
    again = group_states([row("g", 0, "in-step"), row("g", 1, "in-step")], [], then, 3000)
    assert again == {"g": GroupState(2, 0, 0, 3, 3000)}


def test_one_that_can_not_be_read_stays_as_it_was_and_one_that_is_gone_goes() -> None:
    before = group_states([row("g", 0, "written"), row("h", 0, "written")], [], {}, 1000)
    unread = [
        Unmoved("g", "failed", "not now"),
        Unmoved("i", "failed", "never"),
        Unmoved("s", "unmovable", "x"),
    ]
    assert group_states([], unread, before, 2000) == {"g": before["g"]}


def test_a_group_that_was_moved_is_neither_behind_nor_held_back() -> None:
    rows = [row("g", 0, "moved"), row("g", 1, "moved", exact=False)]
    assert group_states(rows, [], {}, 1000) == {"g": GroupState(0, 0, 0, 0, 1000, 2)}
    assert group_states([row("g", 0, "moving")], [], {}, 1000) == {"g": GroupState(0, 0, 1, 0, None)}
