"""Rows of a lane's progress arrive at the driver as they were."""

from __future__ import annotations

from collections import Counter

import pytest

from common.link.lane_progress import (
    KINDS,
    Done,
    FrameRefused,
    PartitionHalted,
    PartitionPaused,
    Refused,
    Row,
    Unfinished,
    decode,
    encode,
)
from common.link.lane_work import Work
from deduplicator.lane.recovery import Snapshot
from deduplicator.lane_plan import Left

ROWS: list[Row] = [
    Refused("no right"),
    PartitionHalted("orders", 3, "gone"),
    PartitionPaused("orders", 3),
    FrameRefused("id", 3),
    Unfinished(),
    Done(Work(Counter(records=7), {("orders", 3): Counter(lag=2)})),
    Left(1, Snapshot(20, True, 5, {("id", 3): 7}, {("id", 3): 2})),
    Left(1, Snapshot(0, False, None, {})),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_a_row_arrives_as_it_was(row: Row) -> None:
    assert decode(encode(row)) == row


def test_there_is_a_row_here_of_every_kind() -> None:
    assert {type(row) for row in ROWS} == set(KINDS.values())
