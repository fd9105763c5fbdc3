"""When the replicator's lane asks for its topics, and cuts frames that are not full."""

from __future__ import annotations

import pytest

from replicator.lane import LEAST_REST_S, MANY_REST_S, MOST_REST_S, REST, Rest


def test_rests_as_long_as_the_work_took_within_bounds() -> None:
    rest = Rest()
    assert rest.until == 0, "the first frames wait for nothing"
    for took, lasts in (
        (0.0, LEAST_REST_S),
        (0.005, REST * 0.005),
        (1.0, MOST_REST_S),
    ):
        rest.after(7.0, 7.0 + took, False)
        assert rest.until - (7.0 + took) == pytest.approx(lasts)


def test_rests_longer_while_there_is_more_than_is_read_at_once() -> None:
    rest = Rest()
    rest.after(7.0, 7.001, True)
    assert rest.until == pytest.approx(7.001 + MANY_REST_S)


def test_what_comes_last_does_not_wait_as_long_as_what_there_was_much_of() -> None:
    rest = Rest()
    rest.after(7.0, 7.0, True)
    rest.no_more(7.01)
    assert rest.until == pytest.approx(7.01 + MOST_REST_S)


def test_finding_nothing_more_never_makes_a_rest_longer() -> None:
    rest = Rest()
    rest.after(7.0, 7.0, False)
    rest.no_more(7.001)
    assert rest.until == pytest.approx(7.0 + LEAST_REST_S)
