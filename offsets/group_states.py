"""How the groups of a round were translated, as metrics tell it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common.app.group_state import GroupState
from offsets.survey import Row, Unmoved

IN_STEP = frozenset({"written", "in-step"})


def group_states(
    rows: Iterable[Row], unmoved: Iterable[Unmoved], before: Mapping[str, GroupState], now_ms: int
) -> dict[str, GroupState]:
    """By source group. One whose offsets could not be read is as it was `before`; `now_ms`: since 1970."""
    found = {
        left.group: before[left.group]
        for left in unmoved
        if left.outcome == "failed" and left.group in before
    }
    by_group: dict[str, list[Row]] = {}
    for row in rows:
        by_group.setdefault(row.key.group, []).append(row)
    for group, of_group in by_group.items():
        moved = sum(row.record.outcome == "moved" for row in of_group)
        held = sum(row.record.outcome not in IN_STEP or bool(row.doubt) for row in of_group) - moved
        exact = sum(row.record.outcome in IN_STEP and not row.doubt and row.record.exact for row in of_group)
        was = before.get(group, GroupState())
        written = was.written + sum(row.record.outcome == "written" and not row.doubt for row in of_group)
        in_step_ms = was.in_step_ms if held else now_ms
        found[group] = GroupState(
            exact, len(of_group) - held - exact - moved, held, written, in_step_ms, moved
        )
    return found
