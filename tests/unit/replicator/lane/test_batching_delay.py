"""When the replicator's lane cuts frames that are not full."""

from __future__ import annotations

import pytest

from replicator.lane.batching_delay import (
    ANSWER_REST,
    BUSY_PER_S,
    LEAST_REST_S,
    MANY_ANSWER_REST,
    MANY_REST_S,
    MOST_REST_S,
    REST,
    WINDOW_S,
    BatchingDelay,
    Rate,
)


def test_rests_as_long_as_the_work_took_within_bounds() -> None:
    rest = BatchingDelay()
    assert rest.until == 0, "the first frames wait for nothing"
    for took, lasts in (
        (0.0, LEAST_REST_S),
        (0.005, REST * 0.005),
        (1.0, MOST_REST_S),
    ):
        rest.after(7.0, 7.0 + took, False, 0.0)
        assert rest.until - (7.0 + took) == pytest.approx(lasts)


def test_rests_longer_while_there_is_more_than_is_read_at_once() -> None:
    rest = BatchingDelay()
    rest.after(7.0, 7.001, True, 0.0)
    assert rest.until == pytest.approx(7.001 + MANY_REST_S)


def test_what_comes_last_does_not_wait_as_long_as_what_there_was_much_of() -> None:
    rest = BatchingDelay()
    rest.after(7.0, 7.0, True, 0.0)
    rest.no_more(7.01)
    assert rest.until == pytest.approx(7.01 + MOST_REST_S)


def test_finding_nothing_more_never_makes_a_rest_longer() -> None:
    rest = BatchingDelay()
    rest.after(7.0, 7.0, False, 0.0)
    rest.no_more(7.001)
    assert rest.until == pytest.approx(7.0 + LEAST_REST_S)


def test_what_an_answer_costs_is_rested_for_by_a_multiple() -> None:
    rest = BatchingDelay()
    rest.after(7.0, 7.001, False, 0.008)
    assert rest.until == pytest.approx(7.001 + ANSWER_REST * 0.008), "a topic of 1,000 partitions"
    rest.after(7.0, 7.001, False, 0.0001)
    assert rest.until == pytest.approx(7.001 + LEAST_REST_S), "a small topic: no longer than without"
    rest.after(7.0, 7.001, True, 0.008)
    assert rest.until == pytest.approx(7.001 + MANY_ANSWER_REST * 0.008)
    rest.no_more(7.002)
    assert rest.until == pytest.approx(7.002 + ANSWER_REST * 0.008)


def test_the_rate_is_that_of_the_last_window_that_is_over() -> None:
    rate = Rate()
    assert rate.per_s > 1e9, "not known yet: as much as can be"
    rate.look(7.0)
    rate.came(60)
    rate.came(40)
    rate.look(7.0 + WINDOW_S / 2)
    assert rate.per_s > 1e9, "the window is not over"
    rate.look(9.0)
    assert rate.per_s == 50.0
    rate.look(10.0)
    assert rate.per_s == 0.0, "nothing of the windows before is left"


@pytest.mark.parametrize(
    ("per_s", "least_s"),
    [
        (BUSY_PER_S, LEAST_REST_S),
        (10 * BUSY_PER_S, LEAST_REST_S),
        (BUSY_PER_S / 4, LEAST_REST_S / 4),
        (0.0, 0.0),
    ],
)
def test_the_fewer_records_come_the_less_it_rests_at_least(per_s: float, least_s: float) -> None:
    rest = BatchingDelay()
    rest.rate.per_s = per_s
    rest.after(7.0, 7.0, False, 0.0)
    assert rest.until - 7.0 == pytest.approx(least_s)
    rest.after(7.0, 7.005, False, 0.0)
    assert rest.until - 7.005 == pytest.approx(REST * 0.005), "never less than the work is worth"
    rest.after(7.0, 7.001, False, 0.008)
    assert rest.until - 7.001 == pytest.approx(ANSWER_REST * 0.008)


def test_it_learns_how_many_come_from_one_window_to_the_next() -> None:
    rest = BatchingDelay()
    rest.after(7.0, 7.0, False, 0.0)
    assert rest.until - 7.0 == pytest.approx(LEAST_REST_S), "at first it takes them for many"
    rest.rate.came(BUSY_PER_S)
    rest.after(11.0, 11.0, False, 0.0)
    assert rest.until - 11.0 == pytest.approx(LEAST_REST_S / 4)
