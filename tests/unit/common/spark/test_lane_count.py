"""The number of lanes, as executors come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.spark.lane_count import SETTLED_S, LaneCount, shares


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


@pytest.mark.parametrize(
    ("slots", "lanes"),
    [
        (9, [1, 4, 2]),
        (7, [1, 4, 2]),
        (6, [1, 3, 2]),
        (5, [1, 2, 2]),
        (4, [1, 2, 1]),
        (2, [1, 1, 0]),
        (0, [0, 0, 0]),
    ],
)
def test_links_share_slots_one_each_and_then_in_turn(slots: int, lanes: list[int]) -> None:
    assert shares(slots, [1, 4, 2]) == lanes


@given(st.integers(0, 40), st.lists(st.integers(1, 9), max_size=12))
def test_no_slot_is_dealt_twice_and_none_is_left_that_somebody_wants(slots: int, wanted: list[int]) -> None:
    """Promise: who came first has a lane before any has two; whoever has fewer than another wants no more."""
    found = shares(slots, wanted)
    assert sum(found) == min(slots, sum(wanted))
    assert all(lanes <= most for lanes, most in zip(found, wanted, strict=True))
    assert [min(1, lanes) for lanes in found] == [index < slots for index in range(len(wanted))]
    short = [lanes for lanes, most in zip(found, wanted, strict=True) if lanes < most]
    assert max(found, default=0) - min(short, default=max(found, default=0)) <= 1
