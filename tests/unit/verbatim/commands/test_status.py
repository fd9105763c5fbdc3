"""What `verbatim status` makes of the control topic and of what lanes have said."""

from __future__ import annotations

from collections import Counter
from typing import Any

from common.config import loading
from common.link.control_kinds import (
    ControlRecord,
    Destination,
    Halted,
    Leader,
    Limit,
    Pause,
    SourceTopic,
    encode,
)
from common.link.control_state import Control
from common.link.lane_counters import Said
from common.link.lane_work import ALL, Work
from verbatim.commands.status import Heard, add_rates, applications, halts, newest, standing, text
from verbatim.commands.steering import in_force

SETTINGS = loading.load(
    environ={
        "APPLICATION_NAME": "east",
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "a:1",
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "b:1",
        "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders,paid",
    }
)
DESCRIBED = (
    SourceTopic("orders", "id-o", 2, {}),
    SourceTopic("paid", "id-p", 1, {}),
    Destination("orders", "id-o", "copy.orders", 2, 1 << 20),
    Destination("paid", "id-p", "copy.paid", 1, 1 << 20),
    Leader("replicator", "host-1"),
    Leader("deduplicator", "host-2"),
)


def state(*records: ControlRecord) -> Control:
    control = Control()
    for record in (*DESCRIBED, *records):
        control.apply(control.position, encode(record, "east"))
    return control


def said(application: str, lane: int, term: int, epoch: int, **of: dict[str, int]) -> Said:
    """Counts by partition, as orders_0."""
    partitions = {(name[:-2], int(name[-1])): Counter(counts) for name, counts in of.items()}
    return Said(application, lane, term, epoch, Work(Counter(), partitions))


def heard(*all_said: Said, at_ms: int = 5000) -> Heard:
    return {(one.application, one.lane): (one, at_ms) for one in all_said}


def lags(control: Control, *all_said: Said) -> tuple[dict[str, int | None], int | None]:
    found = standing(in_force(SETTINGS, control)["topics"], control, heard(*all_said))
    return {line["topic"]: line["lag"] for line in found["topics"]}, found["lag"]


REPLICATOR = (
    said("replicator", 0, 4, 9, orders_0={"end_offset": 100, "staged_offset": 90}),
    said("replicator", 1, 4, 9, orders_1={"end_offset": 50}, paid_0={"end_offset": 7}),
)
DEDUPLICATOR = (
    said("deduplicator", 0, 5, 2, orders_0={"delivered_offset": 80}, paid_0={"delivered_offset": 7}),
    said("deduplicator", 1, 5, 2, orders_1={"delivered_offset": 50}),
)


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
    assert {one.lane for one, _ in newest(every, "replicator")} == {0, 1}
    assert newest(every, "deduplicator") == []


def test_who_runs_is_told_with_its_instance_and_when_it_was_heard_of() -> None:
    leads = {"replicator": True, "deduplicator": False, "offsets": False}
    found = applications(state(), heard(*REPLICATOR), leads, 7500)
    assert found == [
        {"application": "replicator", "runs": True, "instance": "host-1", "lanes": 2, "said_s": 2.5},
        {"application": "deduplicator", "runs": False, "instance": "host-2", "lanes": 0, "said_s": None},
    ], "offsets never led here"
    assert len(applications(state(Leader("offsets", "host-3")), {}, leads, 0)) == 3


def shown(control: Control, *all_said: Said) -> str:
    every = heard(*all_said)
    found: dict[str, Any] = {
        **in_force(SETTINGS, control),
        "source": "s-1",
        "target": "t-1",
        "applications": applications(control, every, {"replicator": True, "deduplicator": True}, 6000),
        **standing(in_force(SETTINGS, control)["topics"], control, every),
        "halts": halts(control),
    }
    return text(found)


def test_the_table_says_what_needs_attention() -> None:
    halted = Halted("deduplicator", "paid", "id-p", 0, "key-missing", "record 7 of paid-0 has no key")
    control = state(Pause(("or.*",), True), Limit((), 1_000_000, None), halted)
    lines = shown(control, *REPLICATOR, *DEDUPLICATOR).splitlines()
    assert lines == [
        "east: s-1 to t-1, 20 to go",
        "",
        "APPLICATION   STATE  LED BY  LANES  HEARD OF",
        "replicator    runs   host-1  2      1 s ago",
        "deduplicator  runs   host-2  2      1 s ago",
        "",
        "TOPIC   DESTINATION  PARTITIONS  LAG  STATE",
        "orders  copy.orders  2           20   paused by or.*",
        "paid    copy.paid    1           0    copied, 1 halted",
        "",
        "all together: at most 1,000,000 bytes/s",
        "",
        "HALTED paid-0 (deduplicator): record 7 of paid-0 has no key",
        "  what to do: docs: operations/halts#key-missing",
    ]


def test_a_second_look_tells_what_was_delivered_between_them() -> None:
    control = state()
    before = standing(in_force(SETTINGS, control)["topics"], control, heard(*REPLICATOR, *DEDUPLICATOR))
    later = (
        said("deduplicator", 0, 5, 2, orders_0={"delivered_offset": 95}, paid_0={"delivered_offset": 7}),
        said("deduplicator", 1, 5, 2, orders_1={"delivered_offset": 75}),
    )
    now = standing(in_force(SETTINGS, control)["topics"], control, heard(*REPLICATOR, *later))
    add_rates(before, now, 4.0)
    assert {line["topic"]: line["per_second"] for line in now["topics"]} == {"orders": 10.0, "paid": 0.0}
    unknown = standing(in_force(SETTINGS, control)["topics"], control, heard(*REPLICATOR))
    add_rates(unknown, now, 4.0)
    assert {line["per_second"] for line in now["topics"]} == {None}


def test_a_link_without_topics_is_shown() -> None:
    assert "no topic yet" in text(
        {
            **in_force(SETTINGS, Control()),
            "source": "s",
            "target": "t",
            "applications": [],
            **standing([], Control(), {}),
            "halts": [],
        }
    )
