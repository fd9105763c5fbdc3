"""Every sequence of events that has broken, or would break, a careless version of the protocol."""

from __future__ import annotations

import pytest

from tests.simulation.cases import (
    BATCHES,
    CASES,
    RECORDS,
    WAYS,
    copied_world,
    cut_and_written_anew,
    lane,
    run_case,
)
from tests.simulation.world import in_batches


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        pytest.param(name, way, id=f"{name}-in-batches" if way is BATCHES else name)
        for name in CASES
        for way in WAYS[name]
    ],
)
def test_case(name: str, batches: bool) -> None:
    run_case(name, batches)


@pytest.mark.parametrize("batches", [RECORDS, BATCHES])
def test_a_source_cut_while_spark_runs_a_lane_again_is_noticed(batches: bool) -> None:
    """The source log is cut and written anew above the position of a plan, and below what is delivered."""
    with in_batches(batches):
        w = copied_world(records=4)
    with w.living():
        w.start()
        w.run_until(w.copied)
        w.run_for(30.0)
        w.lost = True
        w.kill(lane(w, "replicator"))
        cut_and_written_anew(w, 2, 6)
        w.run_for(100.0)
        w.check()
        assert {h.reason for h in w.control().halts.values()} == {"source-truncated"}
