"""Schedules by chance and one after the other: whatever happens, every record arrives once and in order, and
nothing halts for nothing.

A slice, and with `pytest -m whole` a larger one; `python -m tests.simulation --help` tells how to run more.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation import exhaustive
from tests.simulation.schedules import by_seed
from tests.support.slices import each

FIRST, SCHEDULES, PARTS = 1_000_000, 600, 6

REACHED = [
    "a zombie's frame reached staging",
    "rolled forward from the mappings",
    "an owner found itself fenced",
    "fenced a transaction under way",
    "fencing waited for a commit that was being completed",
    "unknown outcome: committed",
    "unknown outcome: aborted",
    "a late EndTxn ended a transaction",
    "a hole was repaired",
    "began with what an owner left",
    "a frame was refused",
    "out of range",
    "group offsets lost",
    "mappings trimmed",
    "table lost",
    "topic made again",
    "a batch went whole",
    "small batches became one",
    "records stayed columns",
    "a batch was taken apart",
    "Produce is refused",
    "Produce answer is lost",
    "AddPartitionsToTxn answer is lost",
    "a record arrived after its producer was gone",
    "a topic made again was not read on",
    "an answer to a fetch takes a while",
]
"""What must happen somewhere in this slice: a simulation that never gets there shows nothing about it."""

_visited: Counter[str] = Counter()


@pytest.mark.parametrize("part", each(PARTS, range(PARTS)))
def test_whatever_happens_every_record_arrives_once_and_in_order(part: int) -> None:
    """A failure names its seed: `python -m tests.simulation --seed SEED --schedules 1` runs it again."""
    share = SCHEDULES // PARTS
    for seed in range(FIRST + part * share, FIRST + (part + 1) * share):
        try:
            _visited.update(by_seed(seed))
        except Exception as error:
            error.add_note(f"schedule {seed}")
            raise


@pytest.mark.whole
def test_the_interesting_states_are_visited() -> None:
    if sum(_visited.values()) == 0:
        pytest.skip("says something about the whole slice only")
    assert [state for state in REACHED if not _visited[state]] == []


@pytest.mark.parametrize("disturbance", range(len(exhaustive.DISTURBANCES)))
@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.whole), 10])
def test_whatever_befalls_a_process_at_any_point_breaks_nothing(disturbance: int, stride: int) -> None:
    """All of them, or each tenth."""
    chosen = [departures for departures in exhaustive.one_departure() if departures[0][1] == disturbance]
    assert chosen
    for departures in chosen[::stride]:
        exhaustive.run(departures)


@pytest.mark.parametrize("stride", [pytest.param(997, marks=pytest.mark.whole), 9973])
def test_whatever_befalls_any_two_processes_at_any_points_breaks_nothing(stride: int) -> None:
    """Each `stride`-th pair."""
    run = [exhaustive.run(departures) for departures in exhaustive.pairs(stride)]
    assert 100 < len(run) * stride / 997 < 200
