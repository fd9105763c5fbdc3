"""Routing: a fixed function, so that a link's frames find the same staging partition in every release; and
even shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.link.partitioning import partitions_of, spread, staging_partition
from tests.support import strategies


@pytest.mark.parametrize(
    ("topic", "partition", "of", "expected"),
    [
        ("orders", 0, 8, 6),
        ("orders", 1, 8, 7),
        ("orders", 7, 8, 5),
        ("orders", 100, 8, 2),
        ("payments", 0, 8, 2),
        ("payments", 0, 3, 0),
        ("ünïcode", 2, 5, 1),
        ("a", 2147483647, 64, 2),
        ("", 0, 1, 0),
    ],
)
def test_the_function_never_changes(topic: str, partition: int, of: int, expected: int) -> None:
    """Were it another one in the next release, frames of one partition would lie in two staging partitions,
    each with its own state."""
    assert staging_partition(topic, partition, of) == expected


@given(strategies.TEXT, st.integers(1, 200), st.integers(1, 64))
def test_the_partitions_of_a_topic_are_spread_evenly(topic: str, partitions: int, of: int) -> None:
    counts = [0] * of
    for partition in range(partitions):
        counts[staging_partition(topic, partition, of)] += 1
    assert max(counts) - min(counts) <= 1


@given(strategies.TEXT, st.integers(0, 100), st.integers(1, 16))
def test_those_of_a_staging_partition_are_those_that_go_there(topic: str, partitions: int, of: int) -> None:
    for staging in range(of):
        going = [p for p in range(partitions) if staging_partition(topic, p, of) == staging]
        assert [*partitions_of(topic, partitions, staging, of)] == going


def test_topics_of_one_partition_are_spread_too() -> None:
    counts = [0] * 8
    for i in range(800):
        counts[staging_partition(f"topic-{i}", 0, 8)] += 1
    assert min(counts) > 50


@given(st.integers(0, 300), st.integers(1, 40))
def test_lanes_get_equal_shares_and_each_thing_has_one_lane(items: int, lanes: int) -> None:
    shares = spread(items, lanes)
    assert sorted(i for share in shares for i in share) == list(range(items))
    assert len(shares) == min(items, lanes)
    sizes = [len(share) for share in shares]
    assert not sizes or (min(sizes) > 0 and max(sizes) - min(sizes) <= 1)
