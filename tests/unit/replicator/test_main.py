"""What the replicator's driver makes of what its lanes tell."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from common.link.control_kinds import Halted, encode
from common.link.control_records import REPLICATOR
from common.link.control_state import Control
from common.link.lane_progress import (
    Done,
    FrameRefused,
    PartitionHalted,
    PartitionPaused,
    Row,
    Unfinished,
)
from common.link.lane_work import Work
from common.spark.lane_jobs import Behind
from replicator.main import Replicator
from tests.simulation.world import settings


@pytest.fixture
def bounded() -> Any:
    found: Any = Replicator(settings(), until_caught_up=True)
    state = Control()
    state.apply(0, encode(Halted(REPLICATOR, "orders", "id", 3, "source-lost", "gone"), "l"))
    found.control = SimpleNamespace(refresh=lambda _: state)
    found.left_out = []
    found.planner = SimpleNamespace(
        stand=lambda: {("orders", p): (5, 9) for p in range(4)}, leave_out=found.left_out.append
    )
    return found


def test_what_stands_still_for_a_reason_is_not_behind(bounded: Any) -> None:
    rows = [PartitionHalted("orders", 0, "bad"), PartitionPaused("orders", 1), PartitionPaused("other", 2)]
    assert bounded.behind(rows) == {"orders-2": Behind(5, 9)}


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([], 0),
        ([PartitionPaused("orders", 1)], 3),
        ([PartitionHalted("orders", 0, "bad")], 3),
        ([PartitionHalted("orders", 0, "bad"), Unfinished()], None),
    ],
)
def test_a_bounded_run_ends_well_only_without_halts_and_goes_on_while_lanes_are_unfinished(
    bounded: Any, rows: list[Row], code: int | None
) -> None:
    bounded.control = SimpleNamespace(refresh=lambda _: Control())
    assert bounded.caught_up([Done(Work(Counter(records=1))), *rows]) == code


def test_a_partition_whose_frame_staging_refuses_is_left_out_of_the_next_plans(bounded: Any) -> None:
    bounded._count([FrameRefused("id", 3), Done(Work(Counter(records=1)))])
    assert bounded.left_out == [("id", 3)]
