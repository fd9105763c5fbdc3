"""Schedules by chance and one after the other: whatever happens, every record arrives once and in order, and nothing halts for nothing.

A slice; `python -m tests.simulation --help` tells how to run more.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation import exhaustive
from tests.simulation.schedules import by_seed

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
    "a batch was taken apart",
    "Produce is refused",
    "Produce answer is lost",
    "AddPartitionsToTxn answer is lost",
    "a record arrived after its producer was gone",
    "a topic made again was not read on",
    "an answer to a fetch takes a while",
]
"""What must happen somewhere in this slice: a simulation that never gets there shows nothing about it."""

BY_NAME = 200
"""Schedules in which topics are asked for by name."""

_visited: Counter[str] = Counter()


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_every_record_arrives_once_and_in_order(part: int) -> None:
    """A failure names its seed: `python -m tests.simulation --seed SEED --schedules 1` runs it again."""
    share = SCHEDULES // PARTS
    for seed in range(FIRST + part * share, FIRST + (part + 1) * share):
        try:
            _visited.update(by_seed(seed))
        except Exception as error:
            error.add_note(f"schedule {seed}")
            raise


def test_the_interesting_states_are_visited() -> None:
    if sum(_visited.values()) == 0:
        pytest.skip("says something about the whole slice only")
    assert [state for state in REACHED if not _visited[state]] == []


def test_the_same_where_topics_are_asked_for_by_name() -> None:
    visited: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + BY_NAME):
        try:
            visited.update(by_seed(seed, names=True))
        except Exception as error:
            error.add_note(f"schedule {seed}, --names")
            raise
    assert visited["topic made again"]


def test_two_sources_in_one_destination_arrive_once_and_each_in_its_order() -> None:
    """The same for a link that merges two topics, each with an owner of its own, under the same faults."""
    visited: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + 80):
        try:
            visited.update(by_seed(seed, merged=True))
        except Exception as error:
            error.add_note(f"schedule {seed}, --merged")
            raise
    reached = [
        "records of several sources interleave",
        "another writer's records came between two batches",
        "rolled forward from the mappings",
        "topic made again",
    ]
    assert [state for state in reached if not visited[state]] == []


@pytest.mark.parametrize("disturbance", range(len(exhaustive.DISTURBANCES)))
def test_whatever_befalls_a_process_at_any_point_breaks_nothing(disturbance: int) -> None:
    """All of them."""
    chosen = [departures for departures in exhaustive.one_departure() if departures[0][1] == disturbance]
    assert chosen
    for departures in chosen:
        exhaustive.run(departures)


def test_whatever_befalls_any_two_processes_at_any_points_breaks_nothing() -> None:
    """Each 997th pair."""
    run = [exhaustive.run(departures) for departures in exhaustive.pairs(997)]
    assert 100 < len(run) < 200
