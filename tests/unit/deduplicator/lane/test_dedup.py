"""The decision about a frame, case by case, and against a model of all offsets for any numbers."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from common.link.frame import Frame
from deduplicator.lane.dedup import Action, Decision, decide


def frame(start: int, end: int, count: int | None = None, **flags: Any) -> Frame:
    return Frame("c", "t", "id", 0, start, end, end - start if count is None else count, "w", **flags)


def test_a_frame_that_ends_at_next_is_seen() -> None:
    assert decide(10, frame(5, 10), True) == Decision(Action.SEEN, next=10)
    assert decide(10, frame(0, 3), True) == Decision(Action.SEEN, next=10)
    assert decide(10, frame(10, 10), True) == Decision(Action.SEEN, next=10)


def test_a_frame_that_continues_is_delivered() -> None:
    assert decide(10, frame(10, 15), True) == Decision(Action.DELIVER, 10, 15)


def test_of_a_frame_seen_in_part_the_rest_is_delivered() -> None:
    assert decide(10, frame(5, 11), True) == Decision(Action.DELIVER, 10, 11)


def test_a_frame_beyond_next_shows_a_hole() -> None:
    assert decide(10, frame(11, 15), True) == Decision(Action.HOLE, next=10)
    assert decide(10, frame(11, 11), True).action is Action.HOLE, "even an empty one"
    assert decide(10, frame(11, 15, origin=True), True).action is Action.HOLE, (
        "an origin never moves a known partition"
    )


def test_an_unknown_partition_begins_with_its_origin_frame() -> None:
    assert decide(None, frame(7, 7, origin=True), True) == Decision(Action.DELIVER, 7, 7, first=True)
    assert decide(None, frame(7, 9, origin=True), True) == Decision(Action.DELIVER, 7, 9, first=True)


def test_an_unknown_partition_is_new_only_if_the_state_is_complete() -> None:
    """Mappings trimmed and table lost: a zombie's origin frame must not begin the partition again."""
    assert decide(None, frame(7, 7, origin=True), False).action is Action.UNKNOWN
    assert decide(None, frame(7, 9), True).action is Action.UNKNOWN
    assert decide(None, frame(0, 9), False).action is Action.UNKNOWN


def test_a_repeated_origin_frame_is_seen() -> None:
    assert decide(7, frame(7, 7, origin=True), True).action is Action.SEEN
    assert decide(20, frame(7, 7, origin=True), False).action is Action.SEEN


def test_an_accepted_loss_moves_on_and_counts_what_it_skips() -> None:
    assert decide(10, frame(10, 15, 0, gap=True), True) == Decision(Action.DELIVER, 10, 15, lost=5)
    assert decide(12, frame(10, 15, 0, gap=True), True) == Decision(Action.DELIVER, 12, 15, lost=3)
    assert decide(15, frame(10, 15, 0, gap=True), True) == Decision(Action.SEEN, next=15)


def test_an_accepted_loss_covers_no_hole_that_the_operator_was_not_told_of() -> None:
    assert decide(9, frame(10, 15, 0, gap=True), True) == Decision(Action.HOLE, next=9)


def test_an_accepted_loss_stands_in_for_lost_state() -> None:
    for complete in (False, True):
        assert decide(None, frame(10, 15, 0, gap=True), complete) == Decision(
            Action.DELIVER, 15, 15, first=True, lost=5
        )


@given(
    st.none() | st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 6),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)
def test_no_offset_is_passed_over_and_none_comes_twice(
    next_offset: int | None, start: int, length: int, origin: bool, gap: bool, complete: bool, pipeline: int
) -> None:
    what = frame(start, start + length, 0 if gap else length, origin=origin, gap=gap, pipeline=pipeline)
    decision = decide(next_offset, what, complete, 1)
    if decision.action is not Action.DELIVER:
        assert decision.next == next_offset and not decision.first and not decision.lost
        return
    assert next_offset is None or pipeline >= 1, "an older pipeline than what was delivered"
    assert decision.next == what.next
    assert decision.first == (next_offset is None)
    assert not decision.first or gap or (origin and complete)
    before = set(range(start if next_offset is None else next_offset))
    delivered = set() if gap else {o for o in range(what.start, what.next) if o >= decision.from_offset}
    assert not before & delivered
    skipped = set(range(what.next)) - before - delivered
    assert len(skipped) == decision.lost and (gap or not skipped)


def test_what_an_older_pipeline_would_decide_counts_as_missing() -> None:
    """Promise: once a version of the pipeline has decided an offset, no older one decides another: with
    records, without any, or as an operator's accepted loss."""
    for more in ({}, {"count": 0}, {"count": 0, "gap": True}):
        assert decide(10, frame(8, 15, pipeline=1, **more), True, 2) == Decision(Action.OUTDATED, next=10)
        assert decide(10, frame(8, 15, pipeline=2, **more), True, 2).action is Action.DELIVER
        assert decide(10, frame(8, 15, pipeline=3, **more), True, 2).action is Action.DELIVER
    assert decide(10, frame(8, 10, pipeline=1), True, 2) == Decision(Action.SEEN, next=10)
    assert decide(10, frame(11, 12, pipeline=1), True, 2) == Decision(Action.HOLE, next=10)
