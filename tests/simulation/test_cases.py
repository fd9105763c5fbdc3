"""Every sequence of events that has broken, or would break, a careless version of the protocol."""

from __future__ import annotations

import pytest

from tests.simulation.cases import (
    BY_ID,
    BY_NAME,
    CASES,
    WAYS,
    copied_world,
    cut_and_written_anew,
    lane,
    run_case,
)
from tests.simulation.world import by_names


@pytest.mark.parametrize(
    ("name", "names"),
    [
        pytest.param(name, way, id=f"{name}-by-name" if way is BY_NAME else name)
        for name in CASES
        for way in WAYS[name]
    ],
)
def test_case(name: str, names: bool) -> None:
    run_case(name, names)


@pytest.mark.parametrize("names", [BY_ID, BY_NAME])
def test_a_source_cut_while_spark_runs_a_lane_again_is_noticed(names: bool) -> None:
    """The source log is cut and written anew above the position of a plan, and below what is delivered."""
    with by_names(names):
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
