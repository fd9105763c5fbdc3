"""How long a lane is held back: by limits, and by quotas since it began."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import ThrottleEvent

from common.kafka import quotas
from common.kafka.quotas import Throttled
from replicator.lane import throttle
from replicator.lane.throttle import Throttle


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Throttled:
    found = Throttled(own_ms=70, library_ms=80)
    monkeypatch.setattr(throttle, "THROTTLED", found)
    assert quotas.THROTTLED is not found
    return found


def a_throttle() -> Throttle:
    plan = SimpleNamespace(partitions_of={}, partitions_in_all=0)
    return Throttle(cast(Any, plan), [], cast(Any, None))


def test_time_counts_while_something_waits_for_a_limit(held: Throttled) -> None:
    lane = a_throttle()
    assert not lane.holds_back(0, 0, True, 100.0)
    assert lane.holds_back(1, 1, True, 105.0), "it begins to wait"
    assert lane.counts()["limit_wait_ms"] == 0
    assert not lane.holds_back(0, 2, False, 106.0), "only what was full was cut: that shows nothing"
    assert not lane.holds_back(1, 2, True, 107.5), "another one does not wait"
    assert lane.counts()["limit_wait_ms"] == 2500
    assert not lane.holds_back(0, 0, True, 108.0)
    assert not lane.holds_back(0, 1, True, 120.0)
    assert lane.counts()["limit_wait_ms"] == 3000


def test_quotas_count_from_the_lanes_beginning_on_by_cluster(held: Throttled) -> None:
    lane = a_throttle()
    held.add(250)
    held.told(ThrottleEvent("b", 1, 0.5))
    held.told(ThrottleEvent("b", 1, 0.0))
    found = lane.counts()
    assert (found["source_throttle_ms"], found["target_throttle_ms"]) == (250, 500)
