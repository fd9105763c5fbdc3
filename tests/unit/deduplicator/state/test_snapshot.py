"""What the rows of the state table add up to."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplicator.state.snapshot import FoldPlan, Snapshot


def source(next_offset: int, topic_id: str = "id", partition: int = 0, of: int = 1) -> dict[str, Any]:
    return {
        "kind": "source",
        "mappings_partition": of,
        "cluster": "c",
        "topic": "t",
        "topic_id": topic_id,
        "partition": partition,
        "next": next_offset,
        "destination_topic": "t",
        "destination_partition": 0,
        "records": 1,
        "duplicates": 0,
        "lost": 0,
        "mappings_offset": 3,
        "hole": None,
        "staging_offset": None,
    }


def own(partition: int, folded: int) -> dict[str, Any]:
    row = {"kind": "mappings", "mappings_partition": partition, "cluster": "", "topic_id": ""}
    return (
        row
        | {"partition": partition, "folded": folded, "hole": None, "staging_offset": 7}
        | {"updated": datetime.now(UTC)}
    )


def test_rows_of_different_keys_are_one_snapshot() -> None:
    found = Snapshot.of([own(0, 4), own(1, 5), source(3), source(4, partition=1), source(5, "other")])
    assert found.folded == {0: 4, 1: 5}
    assert {key[1:]: state.next for key, state in found.states.items()} == {
        ("id", 0): 3,
        ("id", 1): 4,
        ("other", 0): 5,
    }


@pytest.mark.parametrize(
    "rows",
    [
        [own(1, 5), source(3), source(9)],
        [own(1, 5), source(3), source(3)],
        [own(1, 5), own(1, 9)],
        [own(0, 1), source(3, of=0), source(9, of=1)],
    ],
)
def test_two_rows_of_one_key_are_damage_and_neither_is_believed(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(
        ValueError, match="two rows of one (source c id 0|mappings   1), which no single writer"
    ):
        Snapshot.of(rows)


def test_a_fold_reads_from_m_to_the_end_and_skips_nothing_but_what_is_gone() -> None:
    plan = FoldPlan.of({0: 4, 1: 4}, {0: 0, 1: 6, 2: 0, 3: 2}, {0: 9, 1: 6, 2: 0, 3: 5})
    assert plan.expected == {0: 4, 1: 4, 2: 0, 3: 0}
    assert plan.start == {0: 4, 1: 6, 2: 0, 3: 2}
    assert plan.end == {0: 9, 1: 6, 2: 0, 3: 5}
    assert plan.holes == {1: 6, 3: 2}, "also where nothing is left to fold"


def test_a_fold_up_to_an_offset_goes_no_further_nor_back_and_knows_only_partitions_that_are_there() -> None:
    plan = FoldPlan.of({0: 4, 1: 4}, {0: 0, 1: 0, 2: 0}, {0: 9, 1: 9, 2: 9}, {0: 7, 1: 2, 5: 1})
    assert (plan.start, plan.end, plan.holes) == ({0: 4, 1: 4}, {0: 7, 1: 4}, {})


offsets = st.lists(st.integers(0, 60), min_size=3, max_size=3)


@given(offsets, offsets, offsets, st.integers(1, 20))
def test_the_commits_of_a_fold_cover_it_once_and_leave_each_hole_to_the_first(
    folded: list[int], low: list[int], more: list[int], most: int
) -> None:
    m = dict(enumerate(folded))
    starts = dict(enumerate(low))
    high = {p: max(m[p], starts[p]) + more[p] for p in m}
    whole = plan = FoldPlan.of(m, starts, high)
    read: dict[int, list[int]] = {p: [] for p in m}
    holes: dict[int, int] = {}
    for _ in range(1000):
        part = plan.next_commit(most)
        if not part.end:
            break
        assert part.expected == {p: m[p] for p in part.end}
        assert sum(o - part.start[p] for p, o in part.end.items()) <= max(most, len(part.end))
        for p, end in part.end.items():
            read[p] += range(part.start[p], end)
        holes |= part.holes
        m |= part.end
        plan = FoldPlan.of(m, starts, high, whole.end)
    assert read == {p: list(range(whole.start[p], whole.end[p])) for p in m}
    assert (holes, m) == (whole.holes, high)


def test_what_a_commit_merges_is_a_row_for_each_source_and_the_new_m_with_the_one_it_began_from() -> None:
    now = datetime.now(UTC)
    folded = [source(3) | {"staging_offset": 70}, source(9, partition=1) | {"staging_offset": 50}]
    plan = FoldPlan(expected={0: 2, 1: 4}, start={0: 2, 1: 6}, end={0: 2, 1: 9}, holes={1: 6})
    first, second, *own_rows = plan.rows(folded, "m", now)
    assert (first["kind"], first["next"], first["staging_offset"], first["updated"]) == (
        "source",
        3,
        None,
        now,
    )
    assert (second["partition"], second["next"]) == (1, 9)
    empty = {"kind": "mappings", "cluster": "", "topic_id": "", "topic": "m", "updated": now}
    assert own_rows == [
        empty | {"partition": 0, "mappings_partition": 0, "folded": 2, "expected": 2, "hole": None}
        | {"staging_offset": None},
        empty | {"partition": 1, "mappings_partition": 1, "folded": 9, "expected": 4, "hole": 6}
        | {"staging_offset": 70},
    ]  # fmt: skip
