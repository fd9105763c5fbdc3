"""What to do with a frame, given how far its source partition has been delivered. Pure: no I/O, no clock.

The state of a source partition is one number, `next`: every offset from the origin up to it is at the
destination. Why that is enough: a writer appends the frames of a partition in order and without gaps, from a
position below which earlier writers had already appended everything; so the first occurrence of an offset in
staging stands behind the first occurrence of every earlier one. With it goes the number of the newest
pipeline that has decided any of these offsets: no older one decides another.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from common.link.frame import Frame


class Action(Enum):
    """What becomes of a frame."""

    SEEN = "seen"
    """All of it is at the destination already: drop it."""
    DELIVER = "deliver"
    """Deliver its rows at or above `from_offset`; then the partition's next is `next`."""
    HOLE = "hole"
    """Frames before it are missing: drop it, and ask for them again from the partition's next."""
    OUTDATED = "outdated"
    """It is of an older pipeline than what was delivered: as HOLE."""
    UNKNOWN = "unknown"
    """Nothing is known of the partition, and it can't be taken for new: ask its replicator, or halt."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`next` is the partition's next after the frame; `first` says that the partition was not known before;
    `lost` counts the offsets that an accepted loss skips."""

    action: Action
    from_offset: int = 0
    next: int | None = None
    first: bool = False
    lost: int = 0


def decide(next_offset: int | None, frame: Frame, complete: bool, pipeline: int = 0) -> Decision:
    """Decide about a frame.

    `next_offset` is the partition's next, None when the state has none; `complete` says whether the state is
    known to hold every partition ever delivered, so that an unknown one is new; `pipeline` is the number of
    the newest pipeline delivered of the partition, 0 without one.
    """
    if next_offset is None:
        if frame.gap:
            # The operator's word stands in for the lost state.
            return Decision(Action.DELIVER, frame.next, frame.next, first=True, lost=frame.next - frame.start)
        if not (frame.origin and complete):
            return Decision(Action.UNKNOWN)
        return Decision(Action.DELIVER, frame.start, frame.next, first=True)
    if frame.start > next_offset:
        return Decision(Action.HOLE, next=next_offset)
    if frame.next <= next_offset:
        return Decision(Action.SEEN, next=next_offset)
    if frame.pipeline < pipeline:
        return Decision(Action.OUTDATED, next=next_offset)
    lost = frame.next - next_offset if frame.gap else 0
    return Decision(Action.DELIVER, next_offset, frame.next, lost=lost)
