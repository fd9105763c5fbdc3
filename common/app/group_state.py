"""How a consumer group stands, as `offsets` tells it to metrics. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class GroupState:
    """Its partitions by how they were translated, the offsets written since this instance leads, and when (ms
    since 1970) all its partitions were in step last. `moved`: those of a group that was moved to the target
    are in step by what it does there."""

    exact: int = 0
    behind: int = 0
    held_back: int = 0
    written: int = 0
    in_step_ms: int | None = None
    moved: int = 0


def all_of(groups: Collection[GroupState]) -> GroupState:
    """Added up, and in step as long ago as the last of them."""
    return GroupState(
        sum(group.exact for group in groups),
        sum(group.behind for group in groups),
        sum(group.held_back for group in groups),
        sum(group.written for group in groups),
        min((group.in_step_ms for group in groups if group.in_step_ms is not None), default=None),
        sum(group.moved for group in groups),
    )
