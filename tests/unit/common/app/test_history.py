"""The last hour of a link: what is kept, and what a histogram says of delays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.app.history import SAMPLES, History, Sample, columns, quantile
from common.link.lane_work import DELAYS_S, Delays


def test_an_hour_is_kept_and_the_oldest_makes_room() -> None:
    history = History()
    for i in range(SAMPLES + 5):
        history.add(Sample(i, 1.0, None, i, None, None))
    found = columns(history.samples())
    assert (len(found["at_ms"]), found["at_ms"][0], found["lag"][-1]) == (360, 5, 364)
    assert set(found["bytes_per_second"]) == {None}


def test_a_history_without_samples_has_its_columns() -> None:
    assert columns(())["p99_s"] == []


def test_a_quantile_lies_even_within_its_bucket() -> None:
    delays = Delays()
    delays.took(20, 50)
    delays.took(90, 50)
    assert quantile(delays, 0.5) == pytest.approx(0.025)
    assert quantile(delays, 0.25) == pytest.approx(0.0175)
    assert quantile(delays, 0.99) == pytest.approx(0.099)
    assert quantile(Delays(), 0.5) is None
    late = Delays()
    late.took(10_000_000, 1)
    assert quantile(late, 0.5) == DELAYS_S[-1]


@given(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_quantile_is_within_the_bucket_of_the_record_that_it_is_of(took: list[int], share: float) -> None:
    delays = Delays()
    for ms in took:
        delays.took(ms, 1)
    found = quantile(delays, share)
    assert found is not None
    enough = sum(delay / 1000 <= found for delay in took)
    bounds = [0.0, *DELAYS_S]
    upper = next((bound for bound in bounds if bound >= found), DELAYS_S[-1])
    assert sum(delay / 1000 <= upper for delay in took) >= share * len(took) or upper == DELAYS_S[-1]
    assert enough <= len(took)
