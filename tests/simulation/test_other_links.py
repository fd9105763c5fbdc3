"""Seeded schedules of other links: whose source is asked for topics by name, which merge two topics into one,
whose pipeline changes, or takes records elsewhere, and whose topics are promoted."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.schedules import by_seed

FIRST = 1_000_000
BY_NAME, MERGED, PIPED, PROMOTED, ROUTED = 120, 60, 120, 120, 120
"""Schedules of each."""
SLICE = 12
"""Of each in the default run."""


def played(schedules: int, option: str, first: int = FIRST) -> Counter[str]:
    """What so many schedules of `--option` have visited. One that fails is named."""
    visited: Counter[str] = Counter()
    for seed in range(first, first + schedules):
        try:
            visited.update(by_seed(seed, **{option: True}))
        except Exception as error:
            error.add_note(f"schedule {seed}, --{option}")
            raise
    return visited


@pytest.mark.parametrize(
    ("option", "reached"),
    [
        ("names", "topic made again"),
        ("merged", "records of several sources interleave"),
        ("pipelines", "another pipeline went on"),
        ("routes", "a mapping has several topics"),
        ("promotions", "a topic was let go of, and given back"),
    ],
)
def test_a_slice_of_each_arrives_once_and_in_order(option: str, reached: str) -> None:
    """What the others say, of fewer schedules; of some more, where these don't come that way."""
    assert any(played(SLICE, option, FIRST + turn * SLICE)[reached] for turn in range(4))


@pytest.mark.whole
def test_the_same_where_topics_are_asked_for_by_name() -> None:
    visited = played(BY_NAME, "names")
    assert visited["topic made again"]


@pytest.mark.whole
def test_two_sources_in_one_destination_arrive_once_and_each_in_its_order() -> None:
    """The same for a link that merges two topics, each with an owner of its own, under the same faults."""
    visited = played(MERGED, "merged")
    reached = [
        "records of several sources interleave",
        "another writer's records came between two batches",
        "rolled forward from the mappings",
        "topic made again",
    ]
    assert [state for state in reached if not visited[state]] == []


@pytest.mark.whole
def test_each_record_arrives_by_the_version_of_the_pipeline_that_its_mapping_names() -> None:
    """Promise: however often the pipeline changes, under the same faults and with replicators that go on
    without their drivers, each record is copied once as exactly the version that covers it makes it, or left
    out by that one, or is one dead letter of it, and a version never goes back."""
    visited = played(PIPED, "pipelines")
    reached = [
        "another pipeline went on",
        "a zombie's frame reached staging",
        "a dead letter was written",
        "rolled forward from the mappings",
    ]
    assert [state for state in reached if not visited[state]] == []


@pytest.mark.whole
def test_each_record_goes_to_the_one_topic_that_its_version_takes_it_to() -> None:
    """Promise: the same where versions take records to other topics, now these, now those: each record lies
    in one topic, once, in order there, and its mapping leads to it."""
    visited = played(ROUTED, "routes")
    reached = [
        "a mapping has several topics",
        "another pipeline went on",
        "a zombie's frame reached staging",
        "a dead letter was written",
        "rolled forward from the mappings",
        "a transaction was found open",
        "topic made again",
    ]
    assert [state for state in reached if not visited[state]] == []


@pytest.mark.whole
def test_nothing_comes_behind_what_was_let_go_of_and_all_arrives_once_it_is_given_back() -> None:
    """Promise: however often a topic is taken from the link, under the same faults and with producers that
    go on, nothing beyond the end that is on record comes once the deduplicator has let go; given back,
    nothing is missing and nothing repeated."""
    visited = played(PROMOTED, "promotions")
    reached = [
        "a topic was let go of, and given back",
        "a zombie's frame reached staging",
        "rolled forward from the mappings",
        "topic made again",
    ]
    assert [state for state in reached if not visited[state]] == []
