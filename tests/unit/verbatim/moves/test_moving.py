"""What a move takes for sure: anything that is not known to be so is a reason to refuse."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from common.config import loading
from common.errors import PartitionsHalted, SettingsError
from common.kafka.client import clients, topics
from common.kafka.client.topics import TopicInfo
from common.link.control_state import Control
from common.link.promotions import Promotion
from common.ports import Deadline
from offsets.commit_rule import MEANINGS
from offsets.group_offsets import GroupKey, GroupOffset
from offsets.group_protocol import Group
from offsets.survey import Row, unmoved
from tests.support.control_json import encode
from verbatim.commands.failover import as_json, as_text
from verbatim.moves import cutover_rules as rules
from verbatim.moves.failover import missing
from verbatim.moves.freshness import newest_records
from verbatim.moves.link_progress import Link, Standing, stand
from verbatim.moves.steps import Doubt, Step, Steps, listed, wait_for

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
    assert bool(judged.doubts) == (outcome not in ("written", "in-step", "moved"))


def test_a_group_in_use_at_the_source_or_one_that_would_read_again_is_in_doubt() -> None:
    assert rules.judge_groups([a_row()], {"g": False, "other": True}, False).doubts == []
    assert "has members at the source" in rules.judge_groups([a_row()], {"g": True}, True).doubts[0]
    assert "thinned" in rules.judge_groups([a_row(exact=False)], {}, False).doubts[0]
    assert rules.judge_groups([a_row(exact=False)], {}, True) == rules.Groups([], [], 1)


def test_a_group_that_would_be_left_behind_is_a_doubt() -> None:
    kinds = {
        "g": Group("classic", False),
        "s": Group("share", False),
        "new": Group("queue", True),
        "x": Group("share", True),
    }
    settings = loading.load(
        {
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "s:1",
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "t:1",
            "KAFKA_CLUSTERS_SOURCE_TOPIC": "t",
            "CONSUMER_GROUPS_EXCLUDE": "x",
        }
    )
    left = unmoved(settings.selects_group, kinds, {"sick": "why"})
    assert [(of.group, of.outcome) for of in left] == [
        ("new", "unmovable"),
        ("s", "unmovable"),
        ("sick", "failed"),
    ]
    judged = rules.judge_groups([a_row()], {}, False, left)
    assert [doubt.partition(":")[0] for doubt in judged.doubts] == [
        "group new can't be moved (unmovable)",
        "group s can't be moved (unmovable)",
        "group sick can't be moved (failed)",
    ]
    assert all("CONSUMER_GROUPS_EXCLUDE" in doubt for doubt in judged.doubts)


def info(name: str, partitions: int = 1) -> TopicInfo:
    return TopicInfo(name, f"id-{name}", partitions)


PROMOTED = {
    "b": Promotion(0, "id-b", "b", "promoted", (5,), (5,)),
    "c": Promotion(1, "id-c", "c", "promoting", (5,)),
}


def test_the_topics_that_are_named_are_moved_and_those_promoted_before_are_kept() -> None:
    found = [info("a"), info("b"), info("c"), info("bc")]
    assert rules.chosen(found, (), PROMOTED) == ([info("a"), info("c"), info("bc")], ["b"])
    assert rules.chosen(found, ("b", "a"), PROMOTED) == ([info("a")], ["b"])
    assert rules.chosen(found, ("b.*",), PROMOTED) == ([info("bc")], ["b"])
    assert rules.chosen([], ("b",), PROMOTED) == ([], []), "it is gone from the source by now"
    with pytest.raises(SettingsError, match="--topic: x means no topic"):
        rules.chosen(found, ("a", "x"), PROMOTED)


def test_a_topic_whose_promotion_was_not_ended_is_not_copied() -> None:
    control = Control()
    control.steering = replace(control.steering, promotions=PROMOTED)
    (told,) = rules.paused(control, ["a", "b", "c"])
    assert told.startswith("topic c is promoting: ") and "verbatim demote c" in told


@pytest.mark.parametrize(
    ("row", "gone_on"),
    [
        (replace(a_row("active"), committed=12), True),
        (replace(a_row("target-ahead"), committed=13), True),
        (replace(a_row("active"), committed=11), False),
        (replace(a_row("active"), committed=None), False),
        (replace(a_row("active", exact=False), committed=13), False),
        (replace(a_row("in-step"), committed=12), False),
    ],
)
def test_a_group_has_gone_on_where_it_reads_behind_all_that_it_had_to_read(row: Row, gone_on: bool) -> None:
    assert rules.has_gone_on(row) is gone_on


def test_partitions_of_other_topics_stay_at_the_source_and_are_named() -> None:
    offsets = {"g": {("t", 0): 1, ("u", 1): 2, ("u", 0): 3}, "other": {("u", 0): 1}}
    found = rules.stay(offsets, [a_row()], {"t"})
    assert found == {"g": [("u", 0), ("u", 1)]}
    assert rules.told_of(found)[0].startswith("group g goes on at the source with u: ")
    assert rules.stay({"g": {("t", 0): 1}}, [a_row()], {"t"}) == {}


def test_a_group_that_has_moved_anywhere_is_seen() -> None:
    before = rules.positions([a_row()])
    assert rules.positions([a_row()]) == before
    assert rules.positions([a_row(source=11)]) != before
    assert rules.positions([a_row(offset=13)]) != before
    assert rules.positions([Row(a_row().key, a_row().record, 13)]) != before


# failover


def test_what_is_missing_is_told_by_what_is_known_to_have_been_there() -> None:
    (found,) = missing(a_link(), [a_row(source=8)], {("t", 0): 77})
    assert (found.delivered, found.known_to, found.at_least, found.newest_ms) == (10, 10, 0, 77)
    # A group had read further than what was copied.
    (found,) = missing(a_link(), [a_row(source=14)], {})
    assert (found.at_least, found.newest_ms) == (4, None)
    (found,) = missing(a_link(), [a_row("beyond-source", source=14)], {})
    assert found.at_least == 0
    # Staged, and held back.
    (found,) = missing(a_link(staged=13, stuck="halted"), [], {})
    assert (found.at_least, found.why) == (3, "halted")
    (found,) = missing(a_link(mapped=None, staged=13, stuck="halted"), [], {})
    assert (found.delivered, found.known_to) == (None, 13)
    (found,) = missing(a_link(mapped=None, staged=None), [], {})
    assert found.delivered == PARTITION.origin


def test_of_a_topic_that_was_made_again_the_newest_counts_and_what_stands_still() -> None:
    older = replace(PARTITION, topic_id="old")
    link = Link({("old", 0): older, KEY: PARTITION}, {})
    assert [m.delivered for m in missing(link, [], {})] == [10]
    link = Link({("old", 0): replace(older, stuck="halted"), KEY: PARTITION}, {})
    assert sorted(m.why or "" for m in missing(link, [], {})) == ["", "halted"]


class FakeReader:
    """Hands out the records it is given, in place of a consumer and its broker."""

    def close(self) -> None:
        pass


def test_the_newest_record_is_looked_for_behind_the_markers_of_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one partition the last offsets are markers; one is empty; one holds nothing but markers."""
    held = {0: {990: 5, 991: 9, 992: 7}, 1: {10: 3}, 2: {}, 3: {}}
    ends = {("t", 0): 993, ("t", 1): 900, ("t", 2): 0, ("t", 3): 2000}
    asked: list[dict[int, tuple[int, int]]] = []

    def offsets(
        _: Any, specs: dict[Any, Any], deadline: Deadline, committed: bool = False, failed: Any = None
    ) -> dict[Any, int]:
        return {at: ends[at] if committed else 0 for at in specs}

    def read(_: Any, topic: str, ranges: dict[int, tuple[int, int]]) -> Any:
        asked.append(ranges)
        for p, (start, end) in ranges.items():
            for offset, at in held[p].items():
                if start <= offset < end:
                    yield SimpleNamespace(partition=lambda p=p: p, timestamp=lambda at=at: (1, at))

    monkeypatch.setattr(topics, "offsets", offsets)
    monkeypatch.setattr("verbatim.moves.freshness.records", read)
    monkeypatch.setattr(clients, "consumer", lambda *_, **__: FakeReader())
    settings: Any = SimpleNamespace(application_name="l", client_config=lambda *_: {})
    found = newest_records(settings, None, list(ends), Deadline(5))  # type: ignore[arg-type]
    assert found == {("t", 0): 9, ("t", 1): 3, ("t", 2): None, ("t", 3): None}
    assert asked == [
        {0: (973, 993), 1: (880, 900), 3: (1980, 2000)},
        {1: (0, 900), 3: (1000, 2000)},
    ]


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (None, "ok: done in"),
        (PartitionsHalted("1 partitions stand still"), "but 1 partitions stand still"),
        (Doubt("no"), "REFUSED"),
    ],
)
def test_a_failover_ends_with_what_may_be_done_now(error: Any, last: str) -> None:
    run: Any = SimpleNamespace(
        rows=[a_row("written")],
        missing=missing(a_link(staged=13, stuck="halted"), [], {("t", 0): 1_700_000_000_049}),
        steps=Steps(),
        last_staged_ms=1_700_000_000_123,
        last_heartbeat_ms=1_700_000_000_456,
    )
    lines = as_text(run, error)
    assert "source offset 10 is 12 there: the translated offset was written" in lines[0]
    assert "up to source offset 10 (newest record of 2023-11-14T22:13:20.049Z)" in lines[1]
    assert "at least 3 offsets missing; stands still: halted" in lines[1]
    assert "2023-11-14T22:13:20.123Z" in lines[2]
    assert "heartbeat" in lines[3] and "2023-11-14T22:13:20.456Z" in lines[3]
    assert last in lines[-1]
    assert as_json(run, error)["ok"] == (error is None)


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


def test_steps_beside_others_last_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 3.0, 3.0, 4.0, 8.0, 8.0])
    monkeypatch.setattr("verbatim.moves.steps.time.monotonic", lambda: next(now))
    steps = Steps()
    steps.over("members", "done", ["none"])
    assert steps.waited == 1
    steps.over("copy", "refused", ["behind"])
    assert [(s.name, s.state, s.seconds) for s in steps.steps] == [
        ("members", "done", 3),
        ("copy", "refused", 5),
    ]


def test_waiting_ends_when_nothing_stands_in_the_way_or_with_what_does() -> None:
    looks = iter([["a"], ["b"], []])
    wait_for(lambda: next(looks), Deadline(5), 0.001)
    with pytest.raises(Doubt, match="^in the way$"):
        wait_for(lambda: ["in the way"], Deadline(0.01), 0.001)
    assert listed([str(n) for n in range(7)]) == "0; 1; 2; 3; 4; and 2 more"
