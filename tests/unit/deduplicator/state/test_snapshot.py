"""What the rows of the state table add up to."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from deduplicator.state.snapshot import Snapshot


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
    ("rows", "partitions"),
    [
        ([own(1, 5), source(3), source(9)], None),
        ([own(1, 5), source(3), source(3)], None),
        ([own(1, 5), own(1, 9)], None),
        # Also where they are of a mappings partition that nobody asked for.
        ([own(0, 1), own(1, 5), source(3), source(9)], {0}),
        ([own(0, 1), source(3, of=0), source(9, of=1)], {0}),
    ],
)
def test_two_rows_of_one_key_are_damage_and_neither_is_believed(
    rows: list[dict[str, Any]], partitions: set[int] | None
) -> None:
    with pytest.raises(
        ValueError, match="two rows of one (source c id 0|mappings   1), which no single writer"
    ):
        Snapshot.of(rows, partitions)
