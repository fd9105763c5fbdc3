"""What a move takes for sure: anything that is not known to be so is a reason to refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.control import Control, encode
from common.kafka import Deadline
from offsets.decision import MEANINGS
from offsets.records import GroupKey, GroupOffset
from offsets.survey import Row
from verbatim import cutover_rules as rules
from verbatim.standing import Link, Standing, stand
from verbatim.steps import Doubt, Step, Steps, listed, wait_for

KEY = ("id", 0)
NAMES = {KEY: "t-0"}
PARTITION = Standing("t", "id", 0, "t", 0, 10, 10)


def a_link(drained: bool = True, **changes: Any) -> Link:
    return Link({KEY: replace(PARTITION, **changes)}, {0: (5, 5), 1: (3 if drained else 2, 3)})


def a_row(outcome: str = "in-step", exact: bool = True, offset: int | None = 12, source: int = 10) -> Row:
    record = GroupOffset(
        "id", source, "g", "t", 0, offset, exact, None if exact else "thinned", outcome, "", 1, "", None
    )
    return Row(GroupKey("g", "t", 0), record, offset)


# where a partition stands


@pytest.mark.parametrize(
    ("changes", "drained", "delivered"),
    [
        ({}, False, 10),  # the mappings say so, whatever waits in staging
        ({"staged": 99}, True, 10),
        ({"mapped": None}, True, 10),  # idle for so long that they say nothing
        ({"mapped": None}, False, None),
        ({"mapped": None, "stuck": "halted"}, True, None),
        ({"mapped": None, "staged": None}, True, None),
    ],
)
def test_what_is_delivered_is_told_only_where_it_is_sure(
    changes: dict[str, Any], drained: bool, delivered: int | None
) -> None:
    assert replace(PARTITION, **changes).delivered(drained) == delivered


def test_staging_is_drained_when_each_of_its_partitions_is() -> None:
    assert a_link().drained and not a_link().waiting()
    assert not a_link(drained=False).drained
    assert a_link(drained=False).waiting() == ["staging partition 1: 2 of 3"]


def test_what_holds_a_partition_back_is_told_from_the_control_topic() -> None:
    control = Control()

    def say(kind: str, **fields: Any) -> None:
        control.apply(control.position, encode(kind, topic="t", topic_id="id", partition=0, **fields))

    say("origin", offset=3)
    found = stand(control, {KEY: 7}, {KEY: 9})[KEY]
    assert found == Standing("t", "id", 0, None, 3, 7, 9)
    say("destination", destination="d", partitions=1, max_message_bytes=1, refused="too short")
    assert stand(control, {}, {})[KEY].stuck == "destination-refused: too short"
    say("destination", destination="d", partitions=1, max_message_bytes=1, refused=None)
    assert stand(control, {}, {})[KEY].stuck is None
    # Frames are missing and are asked for: no halt, and yet not all that is staged is delivered.
    say("resend", next=7, held=[0, 4], held_start=8)
    held = stand(control, {}, {})[KEY]
    assert held.stuck is not None and held.stuck.startswith("staging-missing") and held.held == 8
    say("halted", application="replicator", reason="source-lost", next=7, available=9, detail="gone")
    assert stand(control, {}, {})[KEY].stuck == "source-lost: gone"
    say("resumed", application="replicator")
    say("resumed", application="deduplicator")
    assert stand(control, {}, {})[KEY] == Standing("t", "id", 0, "d", 3, None, None)


# cutover


def test_a_source_stands_still_when_nothing_at_all_has_moved() -> None:
    ends = {("t", 0): 5, ("t", 1): 6}
    assert rules.moved(ends, ends, ends) == []
    assert "from offset 5 to 7" in rules.moved(ends, {**ends, ("t", 0): 7}, {**ends, ("t", 0): 7})[0]
    assert rules.moved(ends, {**ends, ("t", 2): 0}, {**ends, ("t", 2): 0}) == ["t-2 has come or gone"]
    assert rules.moved({**ends, ("t", 2): 0}, ends, ends) == ["t-2 has come or gone"]
    assert rules.moved(ends, ends, {**ends, ("t", 1): 4}) == ["t-1: a transaction is open from offset 4"]


@pytest.mark.parametrize(
    ("link", "obstacle"),
    [
        (a_link(), None),
        (a_link(mapped=9), "delivered up to offset 9 of 10"),
        (a_link(stuck="halted"), "stands still: halted"),
        (a_link(mapped=None), None),
        (a_link(mapped=None, drained=False), "can't be told"),
        (a_link(mapped=None, staged=9), "delivered up to offset 9 of 10"),
        (Link({}, {0: (1, 1)}), "not copied yet"),
    ],
)
def test_nothing_is_behind_only_if_all_is_delivered(link: Link, obstacle: str | None) -> None:
    found = rules.behind(link, {KEY: 10}, NAMES)
    assert (found == []) if obstacle is None else (len(found) == 1 and obstacle in found[0])


def test_more_delivered_than_there_is_means_that_the_source_was_cut() -> None:
    assert rules.beyond(a_link(), {KEY: 10}, NAMES) == []
    assert (
        "delivered up to offset 10, but the source ended at 9" in rules.beyond(a_link(), {KEY: 9}, NAMES)[0]
    )


@pytest.mark.parametrize("outcome", sorted(MEANINGS))
def test_a_group_goes_on_only_where_it_is_in_step(outcome: str) -> None:
    judged = rules.judge_groups([a_row(outcome)], {}, accept_redelivery=True)
    assert bool(judged.due) == (outcome == "written")
    assert bool(judged.doubts) == (outcome not in ("written", "in-step"))


def test_a_group_in_use_at_the_source_or_one_that_would_read_again_is_in_doubt() -> None:
    assert rules.judge_groups([a_row()], {"g": False, "other": True}, False).doubts == []
    assert "has members at the source" in rules.judge_groups([a_row()], {"g": True}, True).doubts[0]
    assert "thinned" in rules.judge_groups([a_row(exact=False)], {}, False).doubts[0]
    assert rules.judge_groups([a_row(exact=False)], {}, True) == rules.Groups([], [], 1)


def test_a_group_that_has_moved_anywhere_is_seen() -> None:
    before = rules.positions([a_row()])
    assert rules.positions([a_row()]) == before
    assert rules.positions([a_row(source=11)]) != before
    assert rules.positions([a_row(offset=13)]) != before
    assert rules.positions([Row(a_row().key, a_row().record, 13)]) != before


# steps


def test_a_step_that_refuses_is_the_last_and_says_why() -> None:
    told: list[Step] = []
    steps = Steps(told.append)
    with steps.step("one") as step:
        step.found = ["fine"]
    with pytest.raises(Doubt), steps.step("two"):
        raise Doubt("no")
    assert [(s.name, s.state, s.found) for s in told] == [
        ("one", "done", ["fine"]),
        ("two", "refused", ["no"]),
    ]
    assert told[1].line().startswith("REFUSED two") and steps.as_json()[0]["name"] == "one"


def test_waiting_ends_when_nothing_stands_in_the_way_or_with_what_does() -> None:
    looks = iter([["a"], ["b"], []])
    wait_for(lambda: next(looks), Deadline(5), 0.001)
    with pytest.raises(Doubt, match="^in the way$"):
        wait_for(lambda: ["in the way"], Deadline(0.01), 0.001)
    assert listed([str(n) for n in range(7)]) == "0; 1; 2; 3; 4; and 2 more"
