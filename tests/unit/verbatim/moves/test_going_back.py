"""What the way back goes by: anything that is not as it was written down is a reason to refuse, and what was
never copied is told to the offset."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from common.config import loading
from common.errors import SettingsError
from common.kafka.client.topics import TopicInfo
from common.link import control_kinds as kinds
from common.link.control_state import Control
from offsets.failback import Back
from offsets.group_offsets import GroupKey
from offsets.group_protocol import Committed
from offsets.translation_index import Destination, PartitionIndex, Translation
from tests.unit.verbatim.moves.test_moving import a_link
from verbatim.commands.back import as_record, line
from verbatim.commands.drill import as_json, as_text
from verbatim.commands.undoing import last_line
from verbatim.moves import back_rules as rules
from verbatim.moves.back_settings import back_name, back_settings
from verbatim.moves.drill import Result
from verbatim.moves.failover import delivered
from verbatim.moves.handover import due_of
from verbatim.moves.link_progress import Link
from verbatim.moves.steps import Doubt, Steps
from verbatim.moves.uncopied import Left
from verbatim.moves.undo import judge, read_on
from verbatim.verify.comparison import Kind, PartitionReport

HANDED = kinds.HandedOver("t", "id", "d", "there", "cutover", (10,), (12,), 1_700_000_000_000)
TOPIC = TopicInfo("t", "id", 1)


def a_state(*handed: kinds.HandedOver, **destination: Any) -> Control:
    control = Control(link="l")
    said: list[kinds.ControlRecord] = [
        kinds.Origin("t", "id", 0, 0),
        kinds.Destination("t", "id", "d", 1, 1, **{"destination_id": "there", **destination}),
        *handed,
    ]
    for record in said:
        control.apply(control.position, kinds.encode(record, "l"))
    return control


# what is written down


def test_what_is_known_of_all_partitions_is_written_down_once() -> None:
    assert due_of(a_state(), {("id", 0): 10}) == ([("id", "d")], [])
    assert due_of(a_state(HANDED), {("id", 0): 10}) == ([], [])
    assert due_of(a_state(HANDED), {("id", 0): 11}) == ([("id", "d")], [])
    # What was emptied since is not what a failover that is run again finds.
    assert due_of(a_state(replace(HANDED, emptied=True)), {("id", 0): 11}) == ([], [])
    assert due_of(a_state(), {("id", 1): 10})[1] == [
        "d: how far some of its partitions are delivered is not known"
    ]
    assert due_of(a_state(refused="too short"), {("id", 0): 10}) == ([], [])
    assert due_of(a_state(), {("other", 0): 10}) == ([], [])
    merged = a_state()
    merged.copied_into["d"] = {"t", "u"}
    assert due_of(merged, {("id", 0): 10}) == ([], ["d holds records of several sources"])


@pytest.mark.parametrize("state", ["promoting", "promoted"])
def test_a_topic_that_was_taken_from_the_link_is_not_handed_over_and_turned_round_by_nobody(
    state: str,
) -> None:
    control = a_state(HANDED)
    said: list[kinds.ControlRecord] = [kinds.Promotion("t", "id", "d", "promoting", (10,))]
    if state == "promoted":
        at = control.position
        said += [
            kinds.LetGo("t", "id", 0, 10, at),
            kinds.Promotion("t", "id", "d", "promoted", (10,), (12,), at),
        ]
    for record in said:
        control.apply(control.position, kinds.encode(record, "l"))
    assert control.steering.promotions["t"].state == state
    assert due_of(control, {("id", 0): 11}) == ([], ["d: `cutover --topic` has taken it from the link"])
    handed, (doubt,) = rules.judge_handover(control, a_link(), [TOPIC], set())
    assert not handed and f"topic t is {state}" in doubt and "verbatim demote t" in doubt
    assert rules.promoted(control, ["other"]) == []


def test_a_failover_tells_how_far_each_partition_is_delivered_that_it_knows_of() -> None:
    assert delivered(a_link(), "beats") == {("id", 0): 10}
    assert delivered(a_link(), "t") == {}
    assert delivered(a_link(mapped=None, stuck="halted"), "beats") == {}
    (known,) = a_link().partitions.values()
    again = Link({("old", 0): replace(known, topic_id="old"), ("id", 0): known}, {})
    assert delivered(again, "beats") == {("id", 0): 10}


def test_the_end_of_the_copies_is_behind_the_last_one_where_the_mappings_tell() -> None:
    index = PartitionIndex(Destination("d", 0))
    assert index.end is None
    index._append(3, 7, 4)
    assert index.end == 11
    index._append(9, 12, 0)
    assert index.end is None


# whether it still holds


def test_copies_end_where_it_was_written_down_unless_anything_has_changed_since() -> None:
    assert rules.judge_handover(a_state(HANDED), a_link(), [TOPIC], set()) == ([HANDED], [])
    _, doubts = rules.judge_handover(a_state(), a_link(), [TOPIC], set())
    assert "neither a cutover nor a failover" in doubts[0]
    _, doubts = rules.judge_handover(a_state(HANDED), a_link(mapped=11), [TOPIC], set())
    assert "has gone on copying since cutover, from source offset 10 to 11" in doubts[0]
    # Mappings that are no longer kept say nothing against it.
    assert rules.judge_handover(a_state(HANDED), a_link(mapped=None), [TOPIC], set())[1] == []
    # Nothing of it was ever copied: it has no way back.
    _, doubts = rules.judge_handover(a_state(refused="not theirs"), a_link(), [TOPIC], set())
    assert doubts == ["the link copies no topic that is there"]
    (known,) = a_link().partitions.values()
    more = Link({("id", 0): known, ("id", 1): replace(known, partition=1)}, {})
    assert (
        "t-1: it has come since cutover" in rules.judge_handover(a_state(HANDED), more, [TOPIC], set())[1][0]
    )
    assert "copies no topic" in rules.judge_handover(a_state(HANDED), a_link(), [], set())[1][0]


def test_a_topic_that_was_made_again_comes_back_whole_while_it_is_empty() -> None:
    again = TopicInfo("t", "new", 1)
    _, doubts = rules.judge_handover(a_state(HANDED), a_link(), [again], set())
    assert "was made again at the source since cutover, and holds records" in doubts[0]
    handed, doubts = rules.judge_handover(a_state(HANDED), a_link(), [again], {"t"})
    assert (handed, doubts) == ([replace(HANDED, topic_id="new", delivered=(), emptied=True)], [])


@pytest.mark.parametrize(
    ("there", "bounds", "why"),
    [
        ({"d": TopicInfo("d", "there", 1)}, (12, 20), None),
        ({"d": TopicInfo("d", "there", 1)}, (13, 20), "offsets 12 to 12 are gone from the target"),
        ({"d": TopicInfo("d", "there", 1)}, (0, 11), "ends at 11, the copies did at 12"),
        ({"d": TopicInfo("d", "other", 1)}, (0, 20), "deleted or made again"),
        ({}, (0, 20), "deleted or made again"),
    ],
)
def test_records_behind_the_copies_must_all_be_there(
    there: dict[str, TopicInfo], bounds: tuple[int, int], why: str | None
) -> None:
    found = rules.judge_target([HANDED], there, {("d", 0): bounds})
    assert (found == []) if why is None else (len(found) == 1 and why in found[0])
    if why is not None and "gone" in why:
        assert rules.judge_target([replace(HANDED, emptied=True)], there, {("d", 0): bounds}) == []


def test_what_was_never_copied_lies_behind_what_was_and_in_partitions_that_are_new() -> None:
    found = rules.never_copied([HANDED], {("t", 0): (2, 15), ("t", 1): (0, 3)})
    assert found == {("t", 0): rules.Uncopied(10, 10, 15), ("t", 1): rules.Uncopied(0, 0, 3)}
    # A topic that the link has never seen.
    assert rules.never_copied([], {("new", 0): (0, 3)}) == {("new", 0): rules.Uncopied(0, 0, 3)}
    # Retention at the source was faster.
    (of,) = rules.never_copied([HANDED], {("t", 0): (13, 15)}).values()
    assert (of.start, of.low, of.end, of.shorter) == (10, 13, 15, 0)


def test_a_source_that_has_less_than_was_copied_or_an_open_transaction_is_in_doubt() -> None:
    found = rules.never_copied([HANDED], {("t", 0): (0, 15)})
    assert rules.judge_source(found, {("t", 0): 15}) == []
    assert "open at the source from offset 14" in rules.judge_source(found, {("t", 0): 14})[0]
    found = rules.never_copied([HANDED], {("t", 0): (0, 9)})
    assert "it has lost records that the target has" in rules.judge_source(found, {("t", 0): 9})[0]


@pytest.mark.parametrize(
    ("kind", "source", "destination", "differs"),
    [
        (Kind.LOST, 9, None, True),
        (Kind.LOST, 10, None, False),
        (Kind.ALTERED, 10, 11, False),
        (Kind.ALTERED, 9, 30, True),
        (Kind.FOREIGN, None, 11, True),
        (Kind.FOREIGN, None, 12, False),
        # Produced at the target once more: not a copy.
        (Kind.DUPLICATED, 3, 12, False),
        (Kind.DUPLICATED, 3, 11, True),
        (Kind.GONE, 0, None, True),
        (Kind.HALTED, None, None, True),
    ],
)
def test_only_what_differs_among_the_copies_keeps_the_source_from_being_emptied(
    kind: Kind, source: int | None, destination: int | None, differs: bool
) -> None:
    found = PartitionReport("t", 0, "d", behind=5)
    found.add(kind, source, destination)
    assert rules.differences(found, HANDED) == ([f"t-0: 1 {kind}"] if differs else [])


# the settings


def the_settings(**more: str) -> Any:
    return loading.load(
        {
            "APPLICATION_NAME": "l",
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "s:1",
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "t:1",
            "KAFKA_CLUSTERS_SOURCE_TOPIC": "t",
            **more,
        }
    )


def test_source_and_target_change_places_and_each_partition_begins_where_the_copies_end(
    tmp_path: Any,
) -> None:
    settings = the_settings(
        KAFKA_CLUSTERS_SOURCE_PROPERTIES_SECURITY_PROTOCOL="SASL_SSL",
        KAFKA_CLUSTERS_SOURCE_PROPERTIES_SASL_MECHANISM="PLAIN",
        KAFKA_CLUSTERS_SOURCE_PROPERTIES_SASL_USERNAME="u",
        KAFKA_CLUSTERS_SOURCE_PROPERTIES_SASL_PASSWORD="hush",  # noqa: S106
        KAFKA_CLUSTERS_DESTINATION_PRODUCER_LINGER_MS="7",
        CONSUMER_GROUPS_EXCLUDE="x",
        STAGING_PARTITIONS="3",
    )
    other = replace(HANDED, topic="e", topic_id="e", destination="e", ends=(4, 5), emptied=True)
    text = back_settings(settings, [HANDED, replace(HANDED, ends=(12, 3)), other][1:], "l.back")
    assert "hush" not in text
    assert "A secret, not written here: KAFKA_CLUSTERS_DESTINATION_PROPERTIES_SASL_PASSWORD" in text
    said = yaml.safe_load(text)
    assert said["START_OFFSETS"] == "d:0=12,d:1=3"
    assert said["KAFKA_CLUSTERS_SOURCE_TOPIC"] == "d,e"
    assert said["KAFKA_CLUSTERS_DESTINATION_TOPIC_MAP"] == "d=t"
    assert said["KAFKA_CLUSTERS_SOURCE_PRODUCER_LINGER_MS"] == "7"
    assert (said["CONSUMER_GROUPS"], said["CONSUMER_GROUPS_EXCLUDE"]) == (".*", "x")
    file = tmp_path / "back.yaml"
    file.write_text(text)
    found = loading.load({"KAFKA_CLUSTERS_DESTINATION_PROPERTIES_SASL_PASSWORD": "hush"}, file)
    assert (found.source_bootstrap_servers, found.destination_bootstrap_servers) == ("t:1", "s:1")
    assert found.client_properties["destination.admin"] == settings.client_properties["source.admin"]
    assert found.destination_topic("d", "any") == "t" and found.staging_partitions == 3
    assert back_settings(settings, [other], "l.back").count('START_OFFSETS: "earliest"') == 1


def test_what_can_not_be_turned_round_is_said() -> None:
    text = back_settings(the_settings(GROUP_NAME="eu.{group}"), [HANDED], "l.back")
    assert "GROUP_NAME of the link is eu.{group}" in " ".join(text.replace("#", "").split())
    assert "CONSUMER_GROUPS" not in yaml.safe_load(text)
    assert back_name("l", None) == "l.back" and back_name("l", "m") == "m"
    with pytest.raises(SettingsError, match="--name"):
        back_name("l", "l")


# what is told


def test_a_record_that_was_never_copied_is_told_with_its_key_only_if_that_is_asked_for() -> None:
    left = Left("t", 0, 7, 1_700_000_000_049, b"k\xff", 2, None, 1)
    assert line(left, False) == (
        "never copied t-0 offset 7 of 2023-11-14T22:13:20.049Z: key 2 B, no value, 1 headers"
    )
    assert line(left, True).endswith(" key b'k\\xff'")
    assert "key" not in as_record(left, False) and as_record(left, True)["key"] == "a/8="
    assert as_record(replace(left, key=None), True)["key"] is None


# undo


def a_way(outcome: Any, target: int, source: int | None, committed: int | None, exact: bool = True) -> Back:
    found = Translation(source, exact, None if exact else "thinned")
    return Back(GroupKey("g", "t", 0), Committed(target, ""), found, committed, outcome)


def test_a_group_has_read_on_only_where_its_next_record_is_another_one() -> None:
    there = Translation(12, True)
    assert not read_on(a_way("in-step", 12, 10, 10), there)
    assert not read_on(a_way("target-ahead", 12, 10, 11), there)
    assert read_on(a_way("written", 13, 11, 10), there)
    # 10 was compacted: both are at the copy of 11.
    assert not read_on(a_way("written", 12, 11, 10), there)
    assert read_on(a_way("written", 12, 10, None), None)
    assert read_on(a_way("active", 13, 11, 10), there)
    # Nothing exact is known: what can be translated back decides.
    assert read_on(a_way("written", 13, 11, 10), Translation(5, False, "thinned"))
    assert not read_on(a_way("written", 13, 10, 10), Translation(5, False, "thinned"))


def test_a_group_that_has_read_on_is_taken_back_exactly_or_not_at_all() -> None:
    names = {"g": "g-there"}
    assert judge([a_way("written", 13, 11, 10)], {"g-there": False}, names) == []
    assert (
        "g-there has members at the target"
        in judge([a_way("written", 13, 11, 10)], {"g-there": True}, names)[0]
    )
    assert "members at the source" in judge([a_way("active", 13, 11, 10)], {}, names)[0]
    assert "(thinned)" in judge([a_way("written", 13, 11, 10, exact=False)], {}, names)[0]


def test_where_nothing_has_to_be_undone_that_is_what_is_said() -> None:
    run: Any = SimpleNamespace(rows=[])
    assert last_line(run, None).startswith("ok: nothing has to be undone")
    run.rows = [a_way("written", 13, 11, 10)]
    assert last_line(run, None).startswith("ok: groups were taken back")
    assert last_line(run, Doubt("no")).startswith("REFUSED")


# drill


def test_a_drill_counts_what_was_there_when_the_source_was_cut_off_and_what_came_later_apart() -> None:
    result = Result(cut_ms=10_000, lag=4, seen_s=1.0, stopped_s=2.0, recovered_s=3.5)
    result.lost = result.after = 0
    for timestamp_ms in (9_000, 7_500, 10_000, 10_001):
        result.count(Left("t", 0, 7, timestamp_ms, None, None, 1, 0))
    assert (result.lost, result.lost_s, result.after) == (3, 2.5, 1)
    run: Any = SimpleNamespace(result=result, rows=[], uncopied=[], steps=Steps())
    lines = as_text(run, None)
    assert lines[1].startswith("RPO     3 records, 2.5 s:")
    assert lines[2].startswith("RTO     3.5 s from the cut") and "after 1.0 s" in lines[2]
    assert "after   1 records more came" in lines[4] and lines[-1].startswith("ok: start the replicator")
    found = as_json(run, None)
    assert (found["rpo"], found["rto"]) == ({"records": 3, "seconds": 2.5}, {"seconds": 3.5})
    # Refused before anything was cut off.
    run.result = Result()
    assert (
        as_text(run, Doubt("no"))[-1].startswith("REFUSED")
        and as_json(run, Doubt("no"))["rpo"]["records"] is None
    )
