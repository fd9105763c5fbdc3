"""Every sequence of events that has broken, or would break, a careless version of the protocol."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import TopicPartition

from tests.simulation import clients, faults
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
from tests.simulation.scheduler import Scripted
from tests.simulation.world import World, by_names, settings


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


def owned(w: World) -> dict[int, int]:
    """Staging partition -> the lane whose plan has it."""
    return {
        share["partition"]: number
        for query, number in w.lanes_of("deduplicator")
        for share in json.loads(query.attempts[number].plan)["partitions"]
    }


def test_a_staging_partition_that_moves_to_another_lane_costs_no_more_than_one_that_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why plans deal partitions out without looking at who had them: what an owner knows goes to the next one
    with the plan, whoever that is. Mappings are read for those alone of which nothing was left, since their
    owner has died."""
    w = World(Scripted(), settings(STAGING_PARTITIONS="6"), partitions=6, lanes=2, records=2)
    w.fold_s = 1e9  # the table knows nothing
    read = set[int]()
    assign = clients.Consumer.assign

    def assigned(self: clients.Consumer, partitions: list[TopicPartition]) -> None:
        read.update(p.partition for p in partitions if p.topic == w.settings.mappings_topic)
        assign(self, partitions)

    monkeypatch.setattr(clients.Consumer, "assign", assigned)

    with w.living():
        w.start()
        w.run_until(w.copied)
        before = owned(w)
        read.clear()
        leader = w.leading("deduplicator")
        assert leader is not None and leader.app is not None
        leader.app.lanes_wanted = 3
        assert faults.end_epoch(w, "deduplicator")
        w.run_for(25.0)
        w.produce(0, 1)
        w.run_until(w.copied)
        after = owned(w)
        assert sum(before[p] != after[p] for p in after) == 4, "two lanes become three: most move"
        assert read == set()
        lost = {p for p, number in after.items() if number == 0}
        w.kill(lane(w, "deduplicator"))
        w.run_for(60.0)
        w.settle()
        assert read == lost
