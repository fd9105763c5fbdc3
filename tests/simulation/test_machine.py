"""A state machine for hypothesis, which looks for the shortest sequence of events that breaks something."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.simulation import faults
from tests.simulation.scheduler import Seeded
from tests.simulation.world import World

PICKS = st.lists(st.integers(0, 11), min_size=5, max_size=5)


def picker(picks: list[int]) -> Callable[[int], int]:
    left = list(picks)
    return lambda n: (left.pop(0) if left else 0) % n


class Link(RuleBasedStateMachine):
    """One link, whatever befalls it."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.world: World | None = None

    @initialize(
        seed=st.integers(0, 1 << 16),
        odds=st.sampled_from([0.0, 0.05, 0.3]),
        partitions=st.sampled_from([1, 2]),
        lanes=st.sampled_from([1, 2]),
        lazy=st.booleans(),
        records=st.sampled_from([0, 1, 3]),
        fold_s=st.sampled_from([10.0, 60.0, 300.0]),
    )
    def begin(
        self, seed: int, odds: float, partitions: int, lanes: int, lazy: bool, records: int, fold_s: float
    ) -> None:
        self.world = World(Seeded(seed, odds), partitions=partitions, lanes=lanes, lazy=lazy, records=records)
        self.world.fold_s = fold_s
        self.stack.enter_context(self.world.living())
        self.world.start()

    @rule(steps=st.sampled_from([1, 3, 10, 30, 100]))
    def some_steps(self, steps: int) -> None:
        assert self.world is not None
        self.world.run(steps)

    @rule(picks=PICKS)
    def produce(self, picks: list[int]) -> None:
        assert self.world is not None
        faults.produce(self.world, picker(picks))

    @rule(fault=st.sampled_from(faults.HARMLESS), picks=PICKS, steps=st.sampled_from([0, 3, 30]))
    def befalls(self, fault: faults.Fault, picks: list[int], steps: int) -> None:
        assert self.world is not None
        fault(self.world, picker(picks))
        self.world.run(steps)

    @invariant()
    def nothing_is_wrong(self) -> None:
        if self.world is not None:
            self.world.check()

    def teardown(self) -> None:
        """However it came to this: once nothing fails any more, everything arrives."""
        try:
            if self.world is not None:
                self.world.settle()
        finally:
            self.stack.close()


def so_many(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=20,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class TestLink(Link.TestCase):  # type: ignore[misc, valid-type]
    settings = so_many(15)


@pytest.mark.whole
class TestLinkForLonger(Link.TestCase):  # type: ignore[misc, valid-type]
    settings = so_many(60)
