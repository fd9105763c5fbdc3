"""How a deduplicator's lane reads its staging partitions, and when it begins to."""

from __future__ import annotations

import math
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.kafka.client import clients
from deduplicator.lane import lane as lanes
from deduplicator.lane.lane import FETCH_BYTES, TOGETHER_S, Lane


class Assigned:
    """A consumer that tells what it was asked to read."""

    def __init__(self) -> None:
        self.said: list[tuple[str, list[tuple[int, int]]]] = []

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.said.append(("assign", [(at.partition, at.offset) for at in partitions]))

    def incremental_unassign(self, partitions: list[Any]) -> None:
        self.said.append(("unassign", [(at.partition, at.offset) for at in partitions]))


def lane(*partitions: int) -> tuple[Lane, Assigned]:
    made = Lane.__new__(Lane)
    made.plan = cast(Any, SimpleNamespace(staging_topic="s"))
    deliveries: Any = {p: SimpleNamespace(read_from=deque()) for p in partitions}
    consumer: Any = Assigned()
    made.deliveries, made.consumer = deliveries, consumer
    made.generations, made._next, made._together_until = {}, {}, math.inf
    return made, consumer


def test_partitions_that_are_ready_soon_one_after_the_other_begin_together() -> None:
    a_lane, consumer = lane(0, 1, 2)
    for partition, now in ((2, 50.0), (0, 50.01), (1, 50.02)):
        a_lane._follow_positions(now)
        assert consumer.said == []
        a_lane.deliveries[partition].read_from.append((7, 10 * partition))
    a_lane._follow_positions(50.03)
    assert consumer.said == [("assign", [(0, 0), (1, 10), (2, 20)])]
    assert a_lane.generations == {0: 7, 1: 7, 2: 7}
    assert a_lane._next == {("s", 0): 0, ("s", 1): 10, ("s", 2): 20}


def test_a_partition_whose_recovery_takes_long_holds_the_others_up_for_a_moment_only() -> None:
    a_lane, consumer = lane(0, 1)
    a_lane.deliveries[1].read_from.append((0, 5))
    for now in (1000.0, 1000.0 + TOGETHER_S - 0.01):
        a_lane._follow_positions(now)
        assert consumer.said == []
    a_lane._follow_positions(1000.0 + TOGETHER_S + 0.01)
    assert consumer.said == [("assign", [(1, 5)])]
    a_lane.deliveries[0].read_from.append((0, 3))
    a_lane.deliveries[1].read_from.append((1, 4))  # it went through recovery again
    a_lane._follow_positions(1000.2)
    assert consumer.said[1:] == [("unassign", [(1, 4)]), ("assign", [(0, 3), (1, 4)])]
    assert a_lane.generations == {0: 0, 1: 1}


@pytest.mark.parametrize("name", ["fetch.message.max.bytes", "max.partition.fetch.bytes"])
def test_an_answer_is_as_large_as_the_operator_says_or_else_large_enough_for_a_long_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two names of one property the client takes what comes last."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(clients, "consumer", lambda config, **_: made.append(config))
    for config in ({}, {name: 5}):
        lanes._reader(cast(Any, SimpleNamespace(consumer=config, group="g")))
    assert made[0] == {"fetch.message.max.bytes": FETCH_BYTES}
    assert list(made[1].items())[-1] == (name, 5)
