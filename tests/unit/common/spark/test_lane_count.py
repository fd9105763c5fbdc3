"""The number of lanes, as executors come and go."""

from __future__ import annotations

import pytest

from common.spark.lane_count import SETTLED_S, LaneCount


def followed(count: LaneCount, *slots: int, every_s: float = 10.0) -> list[int]:
    """The number of lanes after each look, the first of which is at 0."""
    lanes = []
    for number, found in enumerate(slots):
        before = count.lanes
        changed = count.follow(found, number * every_s)
        assert changed == (count.lanes != before)
        lanes.append(count.lanes)
    return lanes


def test_lanes_follow_the_slots_once_these_stand_still() -> None:
    """Promise: a lost executor's partitions do not wait for it, and a new one is used; but what comes and
    goes, or comes one by one, changes plans once."""
    assert followed(LaneCount(2, None, 1), 3, 2, 2, 2, 3, 2, 3, 4, 5, 5, 5) == [
        2,
        2,
        2,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
        4,
    ]
    assert followed(LaneCount(2, None, 0), *[2, 1] * 9) == [2] * 18


@pytest.mark.parametrize(("slots", "lanes"), [(9, 3), (3, 2), (1, 1), (0, 1)])
def test_there_are_no_more_than_asked_for_and_never_none(slots: int, lanes: int) -> None:
    assert followed(LaneCount(3, 3, 1), *[slots] * 4)[-1] == lanes


def test_looks_far_apart_are_not_taken_for_a_number_that_stood_still() -> None:
    """What was seen once may have been gone since."""
    count = LaneCount(2, None, 0)
    assert not count.follow(1, 0.0)
    assert not count.follow(2, SETTLED_S + 1)
    assert count.lanes == 2
