"""The slots that links share: who has how many as executors, and links, come and go."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from common import ports
from common.app import role
from common.app.instance import Instance
from common.app.links import links as links_module
from common.app.links import runner as runner_module
from common.app.links import slots as slots_module
from common.app.links.pages import state_of
from common.app.links.runner import NoSlot
from common.app.links.slots import Slots
from common.app.role import LOOK_S
from common.spark.lane_count import SETTLED_S
from common.spark.usage import Usage
from replicator.main import Replicator
from tests.support.harness import eventually
from tests.support.made_up_links import LINK, links_of, running, settings_of


class Spark:
    """A cluster with so many slots, one for each executor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
        self.slots = slots
        self.now_s = 1000.0
        monkeypatch.setattr(slots_module, "usage", lambda _: Usage(self.slots, self.slots, 0))
        monkeypatch.setattr(role, "usage", lambda _: Usage(self.slots, self.slots, 0))
        monkeypatch.setattr(slots_module, "lanes_of", lambda _: slots - Replicator.extra_slots)
        monkeypatch.setattr("common.spark.java.check", lambda: None)
        monkeypatch.setattr(slots_module, "jvm_ended", lambda: None)
        monkeypatch.setattr(slots_module, "stop_session", lambda *_, **__: None)
        monkeypatch.setattr(Replicator, "session", lambda *_: cast(SparkSession, "session"))

    def settle(self, slots: Slots, links: list[str], to: int) -> list[str]:
        """Which links have none after so many slots have stood still."""
        self.slots = to
        slots.look(links)
        self.now_s += SETTLED_S
        return slots.look(links)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Spark:
    spark = Spark(monkeypatch, 4)
    monkeypatch.setattr(ports, "monotonic", lambda: spark.now_s)
    return spark


def link(slots: Slots, name: str, parallelism: int | None = None) -> Replicator:
    """Lent to, and started."""
    made: Any = Replicator(settings_of(name, PARALLELISM=str(parallelism or "")), False)
    slots.lend(name, made)
    made.start_spark()
    return cast(Replicator, made)


def opened() -> Slots:
    found = Slots(settings_of("links"), Replicator)
    found.open()
    return found


def test_each_link_follows_executors_that_go_and_come(clock: Spark) -> None:
    """Promise: lanes of links that have several are given up first, so that no link's partitions wait for an
    executor that is gone; with others there, each has again what it had. What comes and goes changes none."""
    slots = opened()
    both = [link(slots, "east", 3), link(slots, "west")]

    def lanes() -> list[int]:
        clock.now_s += LOOK_S
        for each in both:
            each.look_at_spark()
        return [each.lanes_wanted for each in both]

    assert lanes() == [3, 1]
    clock.slots = 2
    assert slots.look(["east", "west"]) == [] and lanes() == [3, 1], "not at once"
    assert clock.settle(slots, ["east", "west"], 2) == [] and lanes() == [1, 1]
    assert clock.settle(slots, ["east", "west"], 5) == [] and lanes() == [3, 1]


def test_a_link_that_comes_has_a_lane_of_those_that_have_several(clock: Spark) -> None:
    """Promise: a link that comes waits for no more than the others take to end an epoch, and when one has
    ended, its lanes are those of who is left."""
    slots = opened()
    east = link(slots, "east", 4)
    assert east.lanes_wanted == 4
    west = link(slots, "west", 4)
    clock.now_s += LOOK_S
    east.look_at_spark()
    assert (east.lanes_wanted, west.lanes_wanted) == (2, 2)
    slots.look(["west"])
    clock.now_s += LOOK_S
    west.look_at_spark()
    assert west.lanes_wanted == 4, "the other has ended"


def test_where_slots_are_gone_those_with_the_last_names_wait_for_others(clock: Spark) -> None:
    """Promise: nobody's lanes wait unseen for a slot: the last link by its file's name is told to end, says
    so, and is the next to have one; a link that begins anew keeps its own. In whatever order links begin, and
    that is another one in each process, the same ones have slots."""
    slots = opened()
    for name in ("3", "1", "4", "2"):
        link(slots, name)
    names = ["1", "2", "3", "4", "5"]
    with pytest.raises(NoSlot, match="slots for 4 of 5 links, and this one's file comes behind theirs"):
        link(slots, "5")
    link(slots, "1")
    assert clock.settle(slots, names, 3) == ["4", "5"]
    with pytest.raises(NoSlot, match="slots for 3 of 5 links"):
        link(slots, "4")
    assert clock.settle(slots, ["1", "2", "4", "5"], 3) == ["5"]
    link(slots, "4")
    link(slots, "3")
    assert slots.look(names) == ["4", "5"]


def test_a_link_without_a_slot_ends_and_begins_when_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: the process ends only that link, whose state and log say what is missing, and begins it by
    itself."""
    monkeypatch.setattr(links_module, "LOOK_S", 0.05)
    monkeypatch.setattr(links_module, "TURN_S", 0.02)
    monkeypatch.setattr(runner_module, "FIRST_WAIT_S", 0.1)
    monkeypatch.setattr(runner_module, "LOOK_S", 0.02)
    monkeypatch.setattr("common.spark.lane_count.SETTLED_S", 0.2)
    spark = Spark(monkeypatch, 2)
    first, lend = threading.Event(), Slots.lend

    def in_order(slots: Slots, name: str, instance: Instance) -> None:
        if name == "west":
            assert first.wait(10)
        lend(slots, name, Replicator(instance.settings, False))
        first.set()

    monkeypatch.setattr(Slots, "lend", in_order)
    links = links_of(tmp_path)
    links._slots = Slots(settings_of("links"), Replicator)
    for name in ("east", "west"):
        (tmp_path / f"{name}.yaml").write_text(LINK)

    def are(*states: str) -> bool:
        return [state_of(runner) for runner in links.runners.values()] == list(states)

    with running(links):
        eventually(lambda: are("leads", "leads"), "both to lead")
        spark.slots = 1
        eventually(lambda: are("leads", "failed"), "the last to wait")
        assert "slots for 1 of 2 links" in (links.runners["west"].failed or "")
        assert links.runners["east"].failures == 0
        spark.slots = 2
        eventually(lambda: are("leads", "leads"), "it to begin")
