"""What the control topic and the lanes' words add up to for those who look at a link."""

from __future__ import annotations

from collections import Counter

from common.link.control_kinds import (
    Halted,
    Leader,
)
from common.link.control_state import Control
from common.link.lane_words import Said, newest
from common.link.lane_work import ALL, Work
from common.link.link_status import (
    LEFT,
    Line,
    add_rates,
    applications,
    halts,
    partitions,
    rates,
    speaks,
    standing,
    told,
)
from tests.support.link_words import DEDUPLICATOR, REPLICATOR, SETTINGS, heard, said, state
from verbatim.commands.status import state_of


def lags(control: Control, *all_said: Said) -> tuple[dict[str, int | None], int | None]:
    found = standing(told(SETTINGS, control)["topics"], partitions(heard(*all_said)))
    return {line["topic"]: line["lag"] for line in found["topics"]}, found["lag"]


def without_left(line: Line) -> Line:
    return {name: value for name, value in line.items() if name not in LEFT}


def test_what_a_pipeline_keeps_from_going_on_is_told_by_partition_and_by_topic() -> None:
    """Left out by the replicator, delivered as dead letters by the deduplicator."""
    all_said = (
        said("replicator", 0, 4, 9, orders_0={"end_offset": 9, "filtered": 3, "skipped": 1}),
        said("replicator", 1, 4, 9, orders_1={"end_offset": 9, "filtered": 4}),
        said("deduplicator", 0, 5, 2, orders_0={"delivered_offset": 9, "dead_letters": 2}),
    )
    each = partitions(heard(*all_said))
    assert [[line[name] for name in LEFT] for line in each] == [[3, 1, 2], [4, 0, 0]]
    orders, paid = standing(told(SETTINGS, state())["topics"], each)["topics"]
    assert [[line[name] for name in LEFT] for line in (orders, paid)] == [[7, 1, 2], [0, 0, 0]]
    assert state_of(orders) == "copied, 7 filtered, 1 skipped, 2 dead letters"
    assert state_of(paid) == "copied"


def test_lag_is_what_the_source_has_beyond_what_is_delivered() -> None:
    assert lags(state(), *REPLICATOR, *DEDUPLICATOR) == ({"orders": 20, "paid": 0}, 20)


def test_lag_is_unknown_where_it_was_not_said_of_each_partition() -> None:
    assert lags(state(), *REPLICATOR, DEDUPLICATOR[0]) == ({"orders": None, "paid": 0}, None)
    assert lags(state(), *REPLICATOR) == ({"orders": None, "paid": None}, None)
    assert lags(state()) == ({"orders": None, "paid": None}, None)


def test_lag_said_by_topic_counts_for_all_its_partitions() -> None:
    replicator = Said("replicator", 0, 4, 9, Work(of={("orders", ALL): Counter(end_offset=150)}))
    deduplicator = Said("deduplicator", 0, 5, 2, Work(of={("orders", ALL): Counter(delivered_offset=130)}))
    assert lags(state(), replicator, deduplicator)[0]["orders"] == 20


def test_a_delivery_that_is_ahead_of_what_was_said_of_the_source_has_no_lag() -> None:
    behind = said("replicator", 0, 4, 9, orders_0={"end_offset": 70}, orders_1={"end_offset": 50})
    assert lags(state(), behind, *DEDUPLICATOR)[0]["orders"] == 0


def test_lanes_of_an_older_epoch_say_nothing_any_more() -> None:
    old = said("replicator", 2, 4, 8, orders_0={"end_offset": 999})
    older = said("replicator", 3, 3, 99, orders_1={"end_offset": 999})
    every = heard(*REPLICATOR, old, older)
    assert {word.said.lane for word in newest(every, "replicator")} == {0, 1}
    assert newest(every, "deduplicator") == []


def test_who_runs_is_told_with_its_instance_and_when_it_was_heard_of() -> None:
    leads: dict[str, bool | None] = {"replicator": True, "deduplicator": False, "offsets": False}
    found = applications(state().led_by, heard(*REPLICATOR), leads, 7500)
    assert found == [
        {"application": "replicator", "runs": True, "instance": "host-1", "lanes": 2, "said_s": 2.5},
        {"application": "deduplicator", "runs": False, "instance": "host-2", "lanes": 0, "said_s": None},
    ], "offsets never led here"
    assert len(applications(state(Leader("offsets", "host-3")).led_by, {}, leads, 0)) == 3


def test_partitions_are_told_as_each_application_sees_them() -> None:
    found = [without_left(line) for line in partitions(heard(*REPLICATOR, DEDUPLICATOR[0]))]
    assert found == [
        {"topic": "orders", "partition": 0, "end": 100, "staged": 90, "delivered": 80, "lag": 20},
        {"topic": "orders", "partition": 1, "end": 50, "staged": None, "delivered": None, "lag": None},
        {"topic": "paid", "partition": 0, "end": 7, "staged": None, "delivered": 7, "lag": 0},
    ]
    whole = Said("replicator", 0, 4, 9, Work(of={("orders", ALL): Counter(end_offset=150)}))
    assert partitions(heard(whole))[0]["partition"] is None


def test_rates_are_those_between_two_words_of_a_lane() -> None:
    before = heard(*REPLICATOR, *DEDUPLICATOR)
    later = (
        said("deduplicator", 0, 5, 2, orders_0={"delivered_offset": 100}, paid_0={"delivered_offset": 7}),
        said("deduplicator", 1, 5, 2, orders_1={"delivered_offset": 75}),
    )
    now = heard(*REPLICATOR) | heard(*later, at_ms=10_000)
    topics, each = told(SETTINGS, state())["topics"], partitions(now)
    add_rates(topics, before, now)
    add_rates(each, before, now)
    assert {line["topic"]: line["per_second"] for line in topics} == {"orders": 9.0, "paid": 0.0}
    assert [line["per_second"] for line in each] == [4.0, 5.0, 0.0]
    add_rates(topics, heard(*REPLICATOR), now)
    assert {line["per_second"] for line in topics} == {None}


def test_an_application_that_was_not_heard_of_has_no_rates_yet() -> None:
    one = Said("replicator", 0, 4, 9, Work(Counter(records=10, bytes=500)))
    two = Said("replicator", 0, 4, 9, Work(Counter(records=50, bytes=900)))
    found = rates(heard(one), heard(two, at_ms=9000))
    assert found["replicator"] == {"records_per_second": 10.0, "bytes_per_second": 100.0}
    assert set(found["deduplicator"].values()) == {None}


def test_lanes_that_say_nothing_for_a_while_do_not_run() -> None:
    assert speaks({}, "replicator", 5000) is None
    assert speaks(heard(*REPLICATOR), "replicator", 8000) is True
    assert speaks(heard(*REPLICATOR), "replicator", 60_000) is False


def test_a_halt_is_told_with_what_goes_on_for_its_own_destination() -> None:
    control = state(Halted("deduplicator", "paid", "id-p", 0, "destination-gone", "it was deleted"))
    (halt,) = halts(SETTINGS, control)
    assert halt["runbook"] == "docs: operations/halts#destination-gone"
    assert [way["command"] for way in halt["ways_on"]] == ["verbatim accept-destination copy.paid"]
