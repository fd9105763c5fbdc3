"""What the Spark task adds to a lane's plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from common.spark import lane_query


@pytest.mark.parametrize(("attempt", "again"), [(None, False), (0, False), (1, True), (3, True)])
def test_a_lane_is_told_that_spark_runs_it_again(
    monkeypatch: pytest.MonkeyPatch, attempt: int | None, again: bool
) -> None:
    task = None if attempt is None else SimpleNamespace(attemptNumber=lambda: attempt)
    monkeypatch.setattr(lane_query, "TaskContext", SimpleNamespace(get=lambda: task))

    def run_lane(plan: dict[str, Any]) -> Iterator[str]:
        yield json.dumps(plan)

    batch = pa.RecordBatch.from_pylist([{"plan": json.dumps({"term": 5, "epoch": 7})}])
    (row,) = [row for out in lane_query.in_arrow(run_lane)(iter([batch])) for row in out.to_pylist()]
    assert (row["term"], row["epoch"]) == (5, 7)
    assert json.loads(row["said"]) == {"term": 5, "epoch": 7, "again": again}
