"""What the control topic adds up to: first record wins where writers race, and what can't be understood is a
ControlError."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.app.work_report import halts_of
from common.errors import ControlError
from common.link.control_kinds import Halted, Identity, SourceTopic
from common.link.control_log import ControlLog
from common.link.control_records import (
    DEDUPLICATOR,
    FOLLOWED,
    HELD,
    MOVED,
    MOVING,
    REPLICATOR,
    Consent,
    Destination,
    GroupMove,
    Halt,
    Origin,
    PipelineVersion,
    Request,
    Settled,
)
from common.link.control_state import Control
from common.ports import Deadline
from tests.support import strategies
from tests.support.control_json import encode

KEY = ("id", 0)
WHERE: dict[str, Any] = {"topic": "orders", "topic_id": "id", "partition": 0}


def control(*records: tuple[str, dict[str, Any]]) -> Control:
    """The sum of these records, from offset 0 on."""
    out = Control()
    for kind, fields in records:
        out.apply(out.position, encode(kind, **fields))
    return out


def test_nothing_is_known_at_first() -> None:
    state = Control()
    assert (state.position, state.identity, state.started) == (0, None, False)
    assert not state.deposed(REPLICATOR, 0) and not state.epoch_ended(REPLICATOR, 0, 0)


def test_the_first_identity_stays() -> None:
    first: dict[str, Any] = {
        "source_cluster": "s",
        "target_cluster": "t",
        "staging_partitions": 8,
        "topics": {"a": "b"},
    }
    state = control(("identity", first), ("identity", {**first, "staging_partitions": 9}))
    assert state.identity == Identity(**first)


def test_the_first_origin_of_a_partition_stays() -> None:
    state = control(
        ("origin", {**WHERE, "offset": 5, "initial": True}),
        ("origin", {**WHERE, "offset": 7, "initial": True}),
        ("origin", {**WHERE, "offset": 9, "initial": False}),
        ("origin", {**WHERE, "partition": 1, "offset": 0, "initial": False}),
        ("origin", {**WHERE, "topic_id": "id2", "offset": 2, "initial": False}),
    )
    assert state.origins == {
        KEY: Origin("orders", 5),
        ("id", 1): Origin("orders", 0),
        ("id2", 0): Origin("orders", 2),
    }
    assert state.topic_id_history("orders") == ["id", "id2"]
    assert state.topic_id_history("other") == []


def test_a_paused_first_leader_decides_no_origin_once_the_link_has_started() -> None:
    late = ("origin", {**WHERE, "offset": 7, "initial": True})
    assert control(("started", {}), late).origins == {}
    new = ("origin", {**WHERE, "offset": 0, "initial": False})
    assert control(("started", {}), late, new).origins == {KEY: Origin("orders", 0)}


def test_the_newest_leader_deposes_the_others_of_its_application_only() -> None:
    state = control(("leader", {"application": REPLICATOR}), ("leader", {"application": DEDUPLICATOR}))
    assert not state.deposed(REPLICATOR, 0) and not state.deposed(DEDUPLICATOR, 1)
    state.apply(2, encode("leader", application=REPLICATOR, instance="b"))
    assert state.deposed(REPLICATOR, 0) and not state.deposed(REPLICATOR, 2)
    assert not state.deposed(DEDUPLICATOR, 1)
    assert state.epoch_ended(REPLICATOR, 0, 99), "a deposed leader's epochs are over"


def test_an_epoch_ends_with_those_before_it_and_in_its_term_only() -> None:
    end = {"application": REPLICATOR, "term": 0}
    state = control(
        ("leader", {"application": REPLICATOR}),
        ("end-epoch", {**end, "epoch": 3}),
        ("end-epoch", {**end, "epoch": 1}),
    )
    assert [state.epoch_ended(REPLICATOR, 0, e) for e in (2, 3, 4)] == [True, True, False]
    assert not state.epoch_ended(DEDUPLICATOR, 0, 3)
    assert not state.epoch_ended(REPLICATOR, 1, 3)


def test_topics_and_destinations_are_the_newest() -> None:
    topic = {"topic": "orders", "topic_id": "id", "partitions": 2, "config": {"a": "1"}}
    to = {"topic": "orders", "topic_id": "id", "destination": "d", "partitions": 2, "max_message_bytes": 9}
    state = control(
        ("topic", topic),
        ("topic", {**topic, "partitions": 3}),
        ("destination", {**to, "refused": "why"}),
        ("destination", to),
    )
    assert state.topics == {"id": SourceTopic("orders", "id", 3, {"a": "1"})}
    assert state.destinations == {"id": Destination("d", 2, 9, None)}
    assert state.copied_into == {"d": {"orders"}}


def test_a_destination_remembers_every_topic_that_was_let_in_and_none_that_was_refused() -> None:
    to = {"topic": "a", "topic_id": "A", "destination": "d", "partitions": 2, "max_message_bytes": 9}
    state = control(
        ("destination", to),
        ("destination", {**to, "destination": "e", "config": {"k": "v"}, "compacted": True}),
        ("destination", {**to, "topic": "b", "topic_id": "B", "refused": "why"}),
    )
    assert state.copied_into == {"d": {"a"}, "e": {"a"}}
    assert state.destinations["A"] == Destination("e", 2, 9, None, {"k": "v"}, True)
    assert not state.has_several_sources("d") and not state.has_several_sources("nothing")
    state.apply(state.position, encode("destination", **{**to, "topic_id": "again"}))
    assert not state.has_several_sources("d"), "a topic made again is no other topic"
    state.apply(state.position, encode("destination", **{**to, "topic": "b", "topic_id": "B"}))
    state.apply(state.position, encode("topic-deleted", topic="b", topic_id="B"))
    assert state.has_several_sources("d") and not state.has_several_sources("e"), (
        "its records are there still"
    )


def test_a_topic_is_deleted_until_it_is_described_again_and_not_while_another_has_its_name() -> None:
    topic = {"topic": "orders", "topic_id": "id", "partitions": 2, "config": {}, "explicit": ["a"]}
    gone = ("topic-deleted", {"topic": "orders", "topic_id": "id"})
    assert control(("topic", topic), gone).deleted_topics() == ["orders"]
    assert control(("topic", topic), gone, ("topic", topic)).deleted_topics() == []
    again = control(("topic", topic), gone, ("topic", {**topic, "topic_id": "id2"}))
    assert again.deleted_topics() == []
    assert again.newest_topics()["orders"].topic_id == "id2"


def test_a_resend_answers_the_ask_that_it_names() -> None:
    state = control(("ask", WHERE))
    assert state.asks == {KEY: Request(0, "orders", None)}
    state.apply(1, encode("resend", **WHERE, next=7, answers=0))
    assert (
        state.asks == {}
        and state.resends == {KEY: Request(1, "orders", 7, answers=True)}
        and state.holds == {}
    )
    state.apply(2, encode("resend", **WHERE, next=None))
    assert state.resends[KEY] == Request(2, "orders", None)


def test_a_demand_between_a_question_and_its_answer_is_neither() -> None:
    """The owner finds frames missing while what was staged before the question is still being delivered."""
    state = control(("ask", WHERE), ("resend", {**WHERE, "next": 7}))
    assert state.resends == {KEY: Request(1, "orders", 7)} and state.asks == {KEY: Request(0, "orders", None)}
    state.apply(2, encode("resend", **WHERE, next=7, answers=0))
    assert state.resends == {KEY: Request(2, "orders", 7, answers=True)} and state.asks == {}


def test_an_answer_to_an_older_question_leaves_the_newer_one_open() -> None:
    state = control(("ask", WHERE), ("ask", WHERE), ("resend", {**WHERE, "next": 7, "answers": 0}))
    assert not state.resends[KEY].answers and state.asks == {KEY: Request(1, "orders", None)}


def test_the_first_hold_stays_until_the_deduplicator_goes_on() -> None:
    state = control(
        ("resend", {**WHERE, "next": 7, "held": [2, 40], "held_start": 9}),
        ("resend", {**WHERE, "next": 8, "held": [2, 60], "held_start": 12}),
        (
            "halted",
            {
                **WHERE,
                "application": DEDUPLICATOR,
                "reason": "r",
                "next": 8,
                "held": [2, 70],
                "held_start": 20,
            },
        ),
        ("resumed", {**WHERE, "application": REPLICATOR}),
    )
    assert state.resends[KEY].held == (2, 60)
    assert state.holds == {KEY: Request(0, "orders", 7, (2, 40), 9)}
    state.apply(4, encode("resumed", **WHERE, application=DEDUPLICATOR))
    assert state.holds == {} and state.halts == {}
    state.apply(
        5,
        encode("halted", **WHERE, application=DEDUPLICATOR, reason="r", next=8, held=[2, 70], held_start=20),
    )
    assert state.holds == {KEY: Request(5, "orders", 8, (2, 70), 20)}


def test_each_application_halts_and_resumes_by_itself() -> None:
    halted = {**WHERE, "reason": "source-lost", "next": 5, "available": 9}
    state = control(
        ("halted", {**halted, "application": REPLICATOR, "detail": "d"}),
        ("halted", {**halted, "application": DEDUPLICATOR, "available": None}),
        ("resumed", {**WHERE, "application": DEDUPLICATOR}),
    )
    assert state.halts == {(REPLICATOR, KEY): Halt(0, REPLICATOR, "orders", "source-lost", 5, 9, "d")}
    state.apply(3, encode("resumed", **WHERE, application=REPLICATOR))
    state.apply(4, encode("resumed", **WHERE, application=REPLICATOR))
    assert state.halts == {}


def test_the_newest_consent_counts() -> None:
    state = control(
        ("accept-loss", {**WHERE, "next": 5, "to": 9, "reason": "r"}),
        ("accept-loss", {**WHERE, "to": 11, "reason": ""}),
    )
    assert state.consents == {KEY: Consent(1, "orders", None, 11, "")}


@given(st.lists(strategies.control_records(), max_size=12), st.data())
def test_records_below_the_position_change_nothing(
    records: list[dict[str, Any]], data: st.DataObject
) -> None:
    state = Control()
    for offset, record in enumerate(records):
        state.apply(offset, json.dumps(record).encode())
        assert state.position == offset + 1
    before = copy.deepcopy(state)
    for offset in data.draw(st.lists(st.integers(0, max(0, len(records) - 1)), max_size=8)):
        if offset < len(records):
            state.apply(offset, json.dumps(records[offset]).encode())
            state.apply(offset, b"not even a record")
    assert state == before


def test_offsets_may_skip() -> None:
    state = Control()
    state.apply(7, encode("leader", application=REPLICATOR))
    assert state.position == 8 and state.leaders == {REPLICATOR: 7}


KINDS = ["", "_on_leader", "apply", "-on-leader", "end_epoch", "accept_loss", "position", "deposed", "Leader", "leader ", "__init__",
         "x" * 10_000, "é", "\0"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_kind_is_refused(kind: str) -> None:
    state = Control()
    with pytest.raises(ControlError, match="offset 3"):
        state.apply(
            3,
            json.dumps(
                {"kind": kind, **WHERE, "application": "replicator", "reason": "r", "term": 0, "epoch": 0}
            ).encode(),
        )
    assert state == Control()


@pytest.mark.parametrize(
    "value",
    [None, b"", b"{", b"\xff", b"null", b"1", b'"leader"', b"[]", b'["kind"]', b"{}", b'{"kind":null}', b'{"kind":5}', b'{"kind":{}}',
     b'{"kind":["leader"]}', b"[" * 5000, b'{"kind":"leader","application":"replicator"} x', b'{"kind":1e999}'],
)  # fmt: skip
def test_what_is_no_record_is_refused(value: bytes | None) -> None:
    state = Control()
    with pytest.raises(ControlError):
        state.apply(0, value)
    assert state == Control()


GOOD: list[dict[str, Any]] = [
    {"kind": "identity", "source_cluster": "s", "target_cluster": "t", "staging_partitions": 8},
    {"kind": "leader", "application": REPLICATOR},
    {"kind": "origin", **WHERE, "offset": 5},
    {"kind": "topic", "topic": "orders", "topic_id": "id", "partitions": 2, "config": {}},
    {
        "kind": "destination",
        "topic": "orders",
        "topic_id": "id",
        "destination": "d",
        "partitions": 2,
        "max_message_bytes": 9,
    },
    {"kind": "end-epoch", "application": REPLICATOR, "term": 0, "epoch": 1},
    {"kind": "ask", **WHERE},
    {"kind": "resend", **WHERE},
    {"kind": "halted", **WHERE, "application": REPLICATOR, "reason": "r"},
    {"kind": "resumed", "application": REPLICATOR, "topic_id": "id", "partition": 0},
    {"kind": "accept-loss", **WHERE, "reason": "r"},
]
NEEDED = [(record, name) for record in GOOD for name in record if name != "kind"]


@pytest.mark.parametrize(("record", "name"), NEEDED, ids=lambda x: x if isinstance(x, str) else x["kind"])
def test_a_field_that_is_missing_or_of_another_type_is_refused(record: dict[str, Any], name: str) -> None:
    Control().apply(0, json.dumps(record).encode())
    wrong: list[Any] = [None, [], ["x"], {"a": 1}, 1.5, True, -1]
    if name == "config":
        wrong = [None, 5, ["a"], {"a": 1}, {"a": {}}, "x"]
    wrong += ["x"] if isinstance(record[name], int) else []
    wrong += [7] if isinstance(record[name], str) else []
    state = Control()
    for bad in [
        {k: v for k, v in record.items() if k != name},
        *({**record, name: value} for value in wrong),
    ]:
        with pytest.raises(ControlError):
            state.apply(0, json.dumps(bad).encode())
        assert state == Control(), f"{bad} was refused and changed something all the same"


@pytest.mark.parametrize("name", ["next", "held", "held_start", "available", "to"])
@pytest.mark.parametrize(
    "value", ["ab", [1], [1, 2, 3], ["a", "b"], [-1, 0], [None, 1], {"0": 1, "1": 2}, 1.0, True, -1, ""]
)
def test_an_optional_field_of_another_type_is_refused(name: str, value: Any) -> None:
    kind = "accept-loss" if name == "to" else "halted"
    with pytest.raises(ControlError):
        control((kind, {**WHERE, "application": DEDUPLICATOR, "reason": "r", name: value}))


@settings(max_examples=300)
@given(strategies.JSON_VALUES | strategies.hostile_control_records())
def test_any_json_is_taken_in_or_refused(value: Any) -> None:
    state = Control()
    try:
        state.apply(0, json.dumps(value).encode())
    except ControlError:
        assert state == Control(), "a refused record must change nothing"
    else:
        assert state.position == 1


@given(st.binary(max_size=60))
def test_any_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(ControlError):
        Control().apply(0, value)


def test_what_no_reader_would_understand_is_never_appended() -> None:
    """One such record in the log, which is never trimmed, would end the link."""
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    log = ControlLog("control", nowhere, nowhere, nowhere, "link")
    try:
        with pytest.raises(ControlError, match="available is -1001"):
            log.append(
                Halted("replicator", "orders", "id", 0, "source-truncated", "", 20, -1001), Deadline(0.1)
            )
    finally:
        log.close()


def test_links_that_share_a_control_topic_take_in_their_own_records_only() -> None:
    leader, origin = {"application": REPLICATOR}, {**WHERE, "offset": 5, "initial": False}
    mine, other = Control(link="mine"), Control(link="other")
    for state in (mine, other):
        state.apply(0, encode("leader", link="mine", **leader))
        state.apply(1, encode("origin", link="mine", **origin))
        state.apply(2, encode("leader", link="other", **leader))
        state.apply(3, encode("of-a-newer-release", link="other" if state is mine else "mine"))
    assert (mine.leaders, mine.origins, mine.position) == ({REPLICATOR: 0}, {KEY: Origin("orders", 5)}, 4)
    assert (other.leaders, other.origins, other.position) == ({REPLICATOR: 2}, {}, 4)


STRAYS: list[bytes | None] = [
    None,
    b"",
    b"hello",
    b"\xff\xfe",
    b"[1]",
    b"5",
    b"null",
    b'"mine"',
    b"{}",
    b'{"kind":"order","id":7}',
    b'{"link":7,"kind":"leader"}',
    b'{"link":null}',
    b'{"kind":["leader"]}',
]


@pytest.mark.parametrize("value", STRAYS)
def test_what_carries_no_link_of_ours_is_skipped_with_a_word(value: bytes | None) -> None:
    state = Control(link="mine")
    told = state.apply(0, value)
    assert told and told.startswith("it ")
    assert state == Control(link="mine", position=1)
    with pytest.raises(ControlError):
        Control().apply(0, value)


def test_a_kind_that_a_newer_release_knows_is_skipped_with_a_word() -> None:
    state = Control(link="mine")
    told = state.apply(0, encode("of-a-newer-release", link="mine", topic=5))
    assert told == "this release knows no records of the kind 'of-a-newer-release'"
    assert state.apply(1, encode("end_epoch", link="mine")) and state.position == 2


@pytest.mark.parametrize(
    "value",
    [
        encode("origin", link="mine", topic="t")[:-4],
        encode("origin", link="mine", topic="t"),
        b'{"link":"mine"}',
        b'{"link":"mine","kind":null}',
        b'{"kind":"leader"}',
    ],
    ids=["cut", "without a field", "without a kind", "null for a kind", "of an early release, and damaged"],
)
def test_a_damaged_record_of_the_link_itself_is_not_guessed_at(value: bytes) -> None:
    state = Control(link="mine")
    with pytest.raises(ControlError, match="control record at offset 3"):
        state.apply(3, value)
    assert state == Control(link="mine")


@given(st.binary(max_size=60) | st.builds(lambda v: json.dumps(v).encode(), strategies.JSON_VALUES))
def test_no_stray_ends_a_link(value: bytes) -> None:
    state = Control(link="a link that nobody names")
    state.apply(0, value)
    assert state == Control(link=state.link, position=1)


def test_a_consent_counts_until_it_has_let_a_destination_in() -> None:
    """One that was given for a deletion long ago would stand for the next."""
    let_in = {
        "topic": "orders",
        "topic_id": "id",
        "destination": "copy",
        "partitions": 1,
        "max_message_bytes": 1,
    }
    state = control(("accept-destination", {"destinations": ["copy", "other"]}))
    assert state.accepts("copy") and not state.accepts("nowhere")
    state.apply(1, encode("destination", **let_in, refused="not yet"))
    assert state.accepts("copy")
    state.apply(2, encode("destination", **let_in, destination_id="t1"))
    assert not state.accepts("copy") and state.accepts("other")
    state.apply(3, encode("destination", **let_in, refused="gone", gone=True))
    assert state.destinations["id"].gone and not state.accepts("copy")
    assert state.settled["copy"] == Settled(2, "t1", frozenset({"id"})), "what it was is not forgotten"
    state.apply(4, encode("accept-destination", destinations=["copy"]))
    assert state.accepts("copy")


def test_a_destination_let_in_by_an_earlier_version_has_no_id() -> None:
    said = {
        "topic": "orders",
        "topic_id": "id",
        "destination": "copy",
        "partitions": 1,
        "max_message_bytes": 1,
    }
    state = control(("destination", said))
    assert state.settled_id("copy") is None and not state.accepts("copy")


def test_the_newest_producer_that_was_given_up_counts() -> None:
    said = {"transactional_id": "l.0", "producer_id": 7}
    state = control(("given-up", {**said, "epoch": 1}), ("given-up", {**said, "epoch": 4}))
    assert state.given_up == {"l.0": (7, 4)}


def test_a_group_is_held_only_by_the_answer_to_what_was_asked_last() -> None:
    def moves(*records: dict[str, Any]) -> dict[str, GroupMove]:
        return control(*(("group-move", {"group": "g", **said}) for said in records)).group_moves

    asked, late = {"state": MOVING}, {"state": HELD, "answers": 0}
    assert moves(asked) == {"g": GroupMove(0, MOVING)}
    assert moves(asked, late) == {"g": GroupMove(0, HELD)}
    assert moves(asked, asked, late) == {"g": GroupMove(1, MOVING)}, "an answer to the first"
    assert moves(asked, {"state": FOLLOWED}, late) == {}
    assert moves(asked, late, {"state": MOVED}, late) == {"g": GroupMove(2, MOVED)}
    assert moves(asked, late, {"state": MOVED}, {"state": FOLLOWED}) == {}
    back = control(*(("group-move", {"group": "g", **said}) for said in (asked, {"state": FOLLOWED}, late)))
    assert back.followed == {"g"}, "it was on its way once"
    with pytest.raises(ControlError, match="parked"):
        moves({"state": "parked"})


def test_the_first_record_of_a_pipelines_number_counts() -> None:
    """Promise: a paused leader that wakes up and writes the number which its successor has written changes
    nothing."""

    def said(n: int, name: str) -> tuple[str, dict[str, Any]]:
        return "pipeline", {"n": n, "definition": name, "sha256": name}

    assert (control().pipeline, control().pipelines) == (0, {})
    state = control(said(1, "a"), said(2, "b"), said(2, "c"), said(1, "d"), said(3, "a"))
    assert state.pipeline == 3
    assert state.pipelines == {
        1: PipelineVersion(0, "a", "a"),
        2: PipelineVersion(1, "b", "b"),
        3: PipelineVersion(4, "a", "a"),
    }


class Growing(dict[Any, Any]):
    """Another thread takes in a record while somebody goes through it."""

    def _each(self, of: Iterable[Any]) -> Iterator[Any]:
        for number, one in enumerate(of):
            self[f"new {number}"] = None
            yield one

    def values(self) -> Any:
        return self._each(super().values())

    def items(self) -> Any:
        return self._each(super().items())


def test_what_others_read_may_grow_meanwhile() -> None:
    """Promise: a halt or a new topic that comes just then does not end an application."""
    topic = SourceTopic("orders", "id", 1, {})
    state = Control(
        topics=Growing(id=topic),
        destinations=Growing(),
        origins=Growing({KEY: Origin("orders", 0)}),
        halts=Growing({(REPLICATOR, KEY): Halt(0, REPLICATOR, "orders", "loop", None, None)}),
    )
    assert state.newest_topics() == {"orders": topic}
    assert (state.copies(), state.running_topics(), state.deleted_topics()) == ({}, ["orders"], [])
    assert state.topic_id_history("orders") == ["id"]
    assert list(halts_of(REPLICATOR, state)) == [("orders", 0)]
