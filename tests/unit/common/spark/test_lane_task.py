"""What the Spark task adds to a lane's plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from common.spark import lane_task


@pytest.mark.parametrize(("attempt", "again"), [(None, False), (0, False), (1, True), (3, True)])
def test_a_lane_is_told_that_spark_runs_it_again(
    monkeypatch: pytest.MonkeyPatch, attempt: int | None, again: bool
) -> None:
    task = None if attempt is None else SimpleNamespace(attemptNumber=lambda: attempt)
    monkeypatch.setattr(lane_task, "TaskContext", SimpleNamespace(get=lambda: task))

    def run_lane(plan: dict[str, Any]) -> Iterator[str]:
        yield json.dumps(plan)

    ((term, epoch, said),) = lane_task.in_task(run_lane, [json.dumps({"term": 5, "epoch": 7})])
    assert (term, epoch) == (5, 7)
    assert json.loads(said) == {"term": 5, "epoch": 7, "again": again}
