"""What `verbatim links` makes of what topics and groups say, and how it is shown."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import loading
from common.errors import ControlError, SettingsError
from common.link.control_kinds import (
    ControlRecord,
    Halted,
    Identity,
    Leader,
    Pause,
    Resumed,
    SourceTopic,
    TopicDeleted,
    encode,
)
from common.link.control_state import Control
from common.link.identity import own_topics
from common.link.lane_words import Heard
from common.link.lane_work import Work
from common.link.link_status import SILENT_MS
from common.link.positions import Position
from common.link.positions import encode as encode_position
from offsets.group_offsets import GroupKey, encode_key
from tests.support.link_words import DEDUPLICATOR, REPLICATOR, heard, state
from tests.support.made_up_link import settings
from verbatim.commands.links import MOST_NAME, WIDTH, text
from verbatim.links.summary import (
    STATES,
    age,
    groups_in,
    heard_in,
    in_order,
    is_sick,
    links_in,
    row,
    traces,
    unread,
)
from verbatim.links.tails import LEAST, Entry, first

SETTINGS = settings()
TARGET = {"KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "b:1"}
LED = {"east.replicator.leader": True, "east.deduplicator.leader": True}
FRESH = 5000 + SILENT_MS - 1
"""The last moment at which what the lanes said at 5000 is fresh."""
EAST = Identity("s-1", "t-1", 8, dict.fromkeys(own_topics(SETTINGS), "id"))


def told(*records: ControlRecord, now_ms: int = FRESH, **changed: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "heard": heard(*REPLICATOR, *DEDUPLICATOR),
        "members": LED,
        "groups": 3,
    } | changed
    return row(SETTINGS, state(EAST, *records), given["heard"], given["members"], given["groups"], now_ms)


def test_a_link_that_runs_is_told_with_how_far_it_is() -> None:
    found = told()
    assert (found["state"], found["why"], is_sick(found)) == ("runs", [], False)
    assert (found["link"], found["source"], found["control_topic"]) == ("east", "s-1", "east.control")
    assert (found["topics"], found["partitions"], found["lag"], found["topics_without_lag"]) == (2, 3, 20, 0)
    assert (found["paused_topics"], found["halted_partitions"], found["halts"], found["groups"]) == (
        0,
        0,
        {},
        3,
    )
    assert [(one["application"], one["runs"]) for one in found["applications"]] == [
        ("replicator", True),
        ("deduplicator", True),
    ]


def test_halts_are_counted_by_reason_and_partitions_once() -> None:
    paid = ("paid", "id-p", 0)
    halts = (
        Halted("replicator", *paid, "source-lost", "a"),
        Halted("deduplicator", *paid, "destination-refused", "b"),
        Halted("deduplicator", "orders", "id-o", 1, "source-lost", "c"),
    )
    found = told(*halts)
    assert (found["state"], found["halted_partitions"]) == ("halted", 2)
    assert found["halts"] == {"source-lost": 2, "destination-refused": 1}
    assert found["why"] == ["halted: destination-refused 1, source-lost 2"]
    goes_on = [
        Resumed(application=one.application, topic_id=one.topic_id, partition=one.partition) for one in halts
    ]
    assert told(*halts, *goes_on)["state"] == "runs"


@pytest.mark.parametrize(
    ("members", "now_ms", "why"),
    [
        (LED, FRESH + 1, ["replicator leads; its lanes have said nothing for 15 s"] * 1),
        (LED | {"east.replicator.leader": False}, FRESH, ["replicator does not run; its lanes have said"]),
        ({}, FRESH, []),
        ({}, FRESH + 1, ["replicator does not run; its lanes have said nothing for 15 s"]),
    ],
)
def test_who_does_not_run_or_says_nothing_makes_a_link_silent(
    members: dict[str, bool], now_ms: int, why: list[str]
) -> None:
    """Groups tell, and where they can't be seen, what lanes say does: fresh for as long as elsewhere."""
    found = told(members=members, now_ms=now_ms)
    assert found["state"] == ("silent" if why else "runs")
    assert [words[: len(why[0])] for words in found["why"][:1]] == why


def test_an_application_of_which_nothing_is_known_is_no_sign_of_life_and_offsets_is_needed_by_none() -> None:
    only_one = heard(*REPLICATOR)
    found = told(heard=only_one, members={})
    assert (found["state"], found["why"]) == ("silent", ["deduplicator: nothing is heard of it"])
    # One that leads and has not said anything yet has just started.
    assert told(heard=only_one)["state"] == "runs"
    away = told(Leader("offsets", "host-3"), members=LED | {"east.offsets.leader": False})
    assert (away["state"], away["applications"][2]["runs"]) == ("runs", False)


def test_a_link_is_paused_where_all_its_topics_are() -> None:
    assert (told(Pause(("orders",), True))["state"], told(Pause(("orders",), True))["paused_topics"]) == (
        "runs",
        1,
    )
    found = told(Pause((), True))
    assert (found["state"], found["paused_topics"], is_sick(found)) == ("paused", 2, False)
    gone = told(TopicDeleted("orders", "id-o"), TopicDeleted("paid", "id-p"))
    assert (gone["state"], gone["topics"], gone["lag"]) == ("runs", 0, 0)


def test_lag_is_of_those_topics_of_which_it_is_known() -> None:
    found = told(SourceTopic("later", "id-l", 1, {}))
    assert (found["topics"], found["lag"], found["topics_without_lag"]) == (3, 20, 1)
    assert told(heard={})["lag"] is None


def test_what_lanes_say_and_nobody_may_read_is_no_health() -> None:
    found = told(heard="topic east.positions: denied")
    assert (found["state"], found["why"], found["topics"], found["lag"]) == (
        "unread",
        ["topic east.positions: denied"],
        2,
        None,
    ), "who leads, groups tell"
    halted = told(Halted("replicator", "paid", "id-p", 0, "loop", ""), heard="denied")
    assert (halted["state"], halted["why"]) == ("halted", ["halted: loop 1", "denied"])


def test_a_control_topic_is_told_apart_by_links_and_one_that_is_damaged_is_alone() -> None:
    records = [
        (0, encode(Leader("replicator", "a"), "one")),
        (1, b"not json"),
        (2, encode(Leader("replicator", "b"), "two")),
        (3, b'{"kind": "leader", "link": "three"'),
        (4, encode(Leader("replicator", "c"), "three")),
        (5, orjson.dumps({"kind": "leader", "link": "four", "application": 7})),
        (6, None),
        (7, b"[1]"),
        (8, orjson.dumps({"kind": "of-a-time-to-come", "link": "two"})),
        (9, orjson.dumps({"kind": "leader", "application": "deduplicator", "instance": "early"})),
    ]
    found = links_in(records)
    assert sorted(found) == ["four", "one", "three", "two"]
    one, two = found["one"], found["two"]
    assert isinstance(one, Control) and one.led_by == {"replicator": "a", "deduplicator": "early"}
    assert isinstance(two, Control) and two.led_by == {"replicator": "b", "deduplicator": "early"}
    assert isinstance(found["three"], ControlError) and isinstance(found["four"], ControlError)
    assert links_in([(0, b"{}"), (1, b"x"), (2, b'{"link": 3}')]) == {}


@given(st.lists(st.sampled_from(["one", "two", "three"]), max_size=12))
def test_each_link_is_as_if_it_had_the_topic_for_itself(names: list[str]) -> None:
    records = [(i, encode(Leader("replicator", f"host-{i}"), name)) for i, name in enumerate(names)]
    for name, shared in links_in(records).items():
        alone = Control(link=name)
        for offset, value in records:
            alone.apply(offset, value)
        assert isinstance(shared, Control) and shared.leaders == alone.leaders


def test_links_leave_traces_beside_their_control_topics() -> None:
    names = [
        "a.staging",
        "a.positions",
        "b.staging",
        "c.offset-mappings",
        "c.positions",
        "orders",
        ".staging",
    ]
    groups = ["d.replicator.leader", "e.deduplicator.leader", "e.reader", "consumers", "f.offsets.leader"]
    assert traces(names, groups) == {"a", "c", "d", "e"}


def test_the_third_of_its_own_topics_is_where_a_link_speaks() -> None:
    """survey.py goes by this order where the topic has another name."""
    assert list(own_topics(SETTINGS))[2] == SETTINGS.positions_topic


def test_words_are_taken_from_a_topic_that_holds_positions_too() -> None:
    word = Counter(end_offset=7)
    key = orjson.dumps({"metrics": "replicator", "lane": 0})
    value = orjson.dumps({"term": 1, "epoch": 1, **Work(Counter(), {("t", 0): word}).to_json()})
    position = encode_position("t", ("id", 0), Position(3, None, -1))
    entries = [
        Entry(0, 10, *position),
        Entry(1, 20, key, value),
        Entry(2, 30, b"?", value),
        Entry(3, 40, None, None),
    ]
    found: Heard = heard_in(entries)
    assert {at: one.at_ms for at, one in found.items()} == {("replicator", 0): 20}


def test_groups_are_counted_once_and_not_when_they_are_gone() -> None:
    keys = [
        GroupKey("one", "t", 0),
        GroupKey("one", "t", 1),
        GroupKey("two", "t", 0),
        GroupKey("three", "t", 0),
    ]
    entries = [Entry(i, 0, encode_key(key), b"{}") for i, key in enumerate(keys)]
    entries += [Entry(7, 0, encode_key(keys[3]), None), Entry(8, 0, b"stray", b"x")]
    assert groups_in(entries) == 2


def test_the_worst_come_first() -> None:
    rows = [{"link": f"{state}-{i}", "state": state} for state in reversed(STATES) for i in (2, 1)]
    assert [one["link"] for one in in_order(rows)] == [f"{state}-{i}" for state in STATES for i in (1, 2)]
    assert [state for state in STATES if is_sick({"state": state})] == ["unread", "halted", "silent"]


def test_a_link_that_can_not_be_read_has_every_field_of_one_that_can() -> None:
    assert unread("x", "x.control", "denied").keys() == told().keys()


def test_the_table_names_the_sick_with_what_is_wrong() -> None:
    rows = [told(), unread("west", "west.control", "topic west.control: denied; grant READ")]
    found = {"target": "t-1", "sick": 1, "links": in_order(rows)}
    assert text(found).splitlines() == [
        "t-1: 2 links, 1 of them sick",
        "",
        "LINK  SOURCE  TOPICS  PARTITIONS  LAG  HEARD  GROUPS  STATE",
        "west  -       -       -           ?    -      -       unread",
        "east  s-1     2       3           20   15 s   3       runs",
        "",
        "west: topic west.control: denied; grant READ",
    ]
    assert text({"target": "t-1", "sick": 0, "links": []}) == "t-1: no link is found"


def test_what_others_have_written_steers_no_terminal() -> None:
    name = "a\x1b[2J\nb"
    one = told(heard=f"topic {name}: damaged") | {"link": name, "source": "\x07s"}
    lines = text({"target": "t-1", "sick": 1, "links": [one]})
    assert all(line.isprintable() for line in lines.split("\n")) and "a?[2J?b" in lines


@given(st.integers(1, 249), st.integers(0, 10**12), st.integers(0, 99999), st.integers(0, 10**7))
def test_whatever_links_are_called_and_hold_the_table_is_no_wider_than_promised(
    length: int, lag: int, topics: int, said_s: int
) -> None:
    one = told(now_ms=5000 + said_s * 1000) | {"link": "x" * length, "source": "A" * 22}
    one |= {
        "lag": lag,
        "topics": topics,
        "partitions": 10 * topics,
        "topics_without_lag": 1,
        "groups": topics,
    }
    one["why"] = [f"topic {'x' * length}.control: " + "a reason of many words " * 9]
    lines = text({"target": "t" * 22, "sick": 1, "links": [one]}).splitlines()
    assert all(len(line) <= WIDTH for line in lines if "x" * (WIDTH // 2) not in line), lines
    assert len(lines[3].split()[0]) <= MOST_NAME and f"{lag:,}+" in lines[3]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (10**6, "12 d")],
)
def test_ages(seconds: float, words: str) -> None:
    assert age(seconds) == words


def test_nothing_of_the_source_need_be_said() -> None:
    settings = loading.load(environ=TARGET, assumed=loading.NO_SOURCE)
    assert settings.client_config("destination", "admin")["bootstrap.servers"] == "b:1"
    given = TARGET | {"KAFKA_CLUSTERS_SOURCE_TOPIC": "orders"}
    assert loading.load(environ=given, assumed=loading.NO_SOURCE).source_topic == "orders"
    with pytest.raises(SettingsError, match="KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS: not set"):
        loading.load(environ={}, assumed=loading.NO_SOURCE)
    with pytest.raises(SettingsError, match="KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS: not set"):
        loading.load(environ=TARGET)


@pytest.mark.parametrize(
    ("low", "end", "most", "recent", "begin"),
    [
        (5, 90_000, None, 0, 5),
        (5, 90_000, 20_000, 0, 70_000),
        (0, 90_000, 20_000, 85_000, 85_000),
        (0, 90_000, 20_000, 89_999, 90_000 - LEAST),
        (0, 90_000, 20_000, -1, 90_000 - LEAST),
        (0, 90_000, 20_000, 10, 70_000),
        (89_990, 90_000, 20_000, -1, 89_990),
        (0, 3, 20_000, -1, 0),
    ],
)
def test_of_what_lanes_say_the_recent_is_read_and_something_in_any_case(
    low: int, end: int, most: int | None, recent: int, begin: int
) -> None:
    assert first(low, end, most, recent) == begin
