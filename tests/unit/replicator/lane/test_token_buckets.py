"""Rate limits: never exceeded beyond what was saved, never a standstill, shared by lanes and topics; what is
parked of a partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.link.throttling import NO_LIMIT, Limit, Steering
from replicator.lane.token_buckets import BURST_S, Bucket, Pace, Pacing

RATES = st.floats(0.01, 1e9)
STEPS = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1)), max_size=60)


@given(RATES, STEPS)
def test_no_more_is_spent_than_has_come_and_was_saved(
    per_second: float, steps: list[tuple[float, float]]
) -> None:
    """Over any stretch of time, whenever it is asked."""
    bucket, now = Bucket(per_second, 0.0), 0.0
    spent: list[tuple[float, float]] = []
    for wait, part in steps:
        now += wait
        level = bucket.level(now)
        if level > 0:
            bucket.spend(part * level)
            spent.append((now, part * level))
    for i, (since, _) in enumerate(spent):
        for j in range(i, len(spent)):
            most = max(1.0, per_second * BURST_S) + per_second * (spent[j][0] - since)
            assert sum(amount for _, amount in spent[i : j + 1]) <= most * (1 + 1e-9)


@given(RATES, st.floats(0, 1e6))
def test_a_debt_is_paid_in_its_time_and_no_sooner(per_second: float, debt: float) -> None:
    bucket = Bucket(per_second, 0.0)
    bucket.spend(debt)
    due = debt / per_second
    assert bucket.level(due * 0.999 - 1e-6) <= 1e-6 * debt
    assert bucket.level(due + 2 / per_second) > 0


@given(RATES, st.lists(st.floats(0, 100), min_size=1))
def test_it_makes_no_difference_how_often_it_is_asked(per_second: float, times: list[float]) -> None:
    often, once = Bucket(per_second, 0.0), Bucket(per_second, 0.0)
    for at in sorted(times):
        level = often.level(at)
    assert level == pytest.approx(once.level(max(times)), rel=1e-6, abs=1e-6)


def test_a_clock_that_stands_or_goes_back_brings_nothing() -> None:
    bucket = Bucket(100, 10.0)
    assert (bucket.level(10.0), bucket.level(5.0)) == (0, 0)
    assert bucket.level(10.5) == 50


@given(
    st.one_of(st.none(), st.integers(1, 10**9)),
    st.one_of(st.none(), st.integers(1, 10**6)),
    st.floats(0.001, 1),
    st.integers(1, 10**7),
)
def test_no_limit_however_low_stops_a_partition_for_good(
    by_bytes: int | None, by_records: int | None, share: float, size: int
) -> None:
    """A record may be larger than what is saved in BURST_S: it goes, and its debt is paid."""
    pace, now = Pace(Limit(by_bytes, by_records), share, 0.0), 0.0
    for _ in range(3):
        found = pace.affordable(size, now)
        assert found is None or found >= 0
        pace.spend(size, 1)
        slowest = max(
            size / (by_bytes * share) if by_bytes else 0, 1 / (by_records * share) if by_records else 0
        )
        now += slowest * 2 + 2 / share
        assert pace.affordable(size, now) != 0


def test_both_limits_hold() -> None:
    pace = Pace(Limit(1000, 100), 1.0, 0.0)
    assert pace.affordable(100, 0.5) == 5, "by bytes"
    assert pace.affordable(1, 0.5) == 50, "by records"
    pace.spend(2000, 1)
    assert pace.affordable(1, 0.5) == 0
    assert Pace(NO_LIMIT, 1.0, 0.0).affordable(1, 0.0) is None


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 20), min_size=1), st.integers(1, 5), st.data())
def test_the_shares_of_all_lanes_are_the_limit(
    planned: dict[str, int], lanes: int, data: st.DataObject
) -> None:
    owners = {t: [data.draw(st.integers(0, lanes - 1)) for _ in range(n)] for t, n in planned.items()}
    steering = Steering(Limit(None, 10**6), (), ((".*", Limit(10**6)),))
    topics: dict[str, float] = dict.fromkeys(planned, 0)
    link = 0.0
    for lane in range(lanes):
        mine = {t: owned.count(lane) for t, owned in owners.items() if lane in owned}
        pacing = Pacing(mine, planned, sum(planned.values()))
        pacing.follow(steering, 0.0)
        for topic in mine:
            topics[topic] += pacing._topics[topic].share
        link += pacing._link.share if pacing._link is not None else 0
    assert link == pytest.approx(1)
    assert topics == pytest.approx(dict.fromkeys(planned, 1))


def test_a_topic_s_own_limit_and_that_of_all_together_both_hold() -> None:
    pacing = Pacing({"a": 1, "b": 1}, {"a": 1, "b": 1}, 2)
    pacing.follow(Steering(Limit(None, 100), (), (("a", Limit(None, 10)),)), 0.0)
    assert (pacing.affordable("a", 1, 0.5), pacing.affordable("b", 1, 0.5)) == (5, 50)
    pacing.spend("b", 1, 48)
    assert (pacing.affordable("a", 1, 0.5), pacing.affordable("b", 1, 0.5)) == (2, 2)
    pacing.spend("a", 1, 2)
    assert pacing.affordable("b", 1, 0.5) == 0


def test_a_limit_that_stays_keeps_its_account_and_one_that_goes_is_gone() -> None:
    pacing = Pacing({"a": 1, "b": 1}, {"a": 1, "b": 1}, 2)
    pacing.follow(Steering(NO_LIMIT, (), (("a", Limit(None, 10)),)), 0.0)
    pacing.spend("a", 0, 100)
    pacing.follow(Steering(NO_LIMIT, (("b", True),), (("a", Limit(None, 10)), ("b", Limit(5)))), 1.0)
    assert pacing.affordable("a", 1, 1.0) == 0
    assert set(pacing.limited()) == {"a", "b"} and not pacing.limits_link()
    pacing.follow(Steering(), 1.0)
    assert pacing.affordable("a", 1, 1.0) is None and not pacing.limits("a")
