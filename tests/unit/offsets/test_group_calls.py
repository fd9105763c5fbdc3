from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from common.errors import LinkRefused
from common.kafka.wire import protocol
from common.kafka.wire.broker_backoff import TRIES
from common.kafka.wire.protocol import Answer, Api, MalformedAnswer, compact_count, compact_text, text
from offsets import group_protocol
from offsets.group_calls import GroupCalls
from offsets.group_protocol import (
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    Committed,
    Group,
    list_groups,
    listed,
)
from tests.support.listeners import Asked, Broker, metadata, told

GROUPS: list[tuple[str, ...]] = [
    ("plain", "consumer", "Empty", "Classic"),
    ("simple", "", "Empty", "Classic"),
    ("workers", "connect", "Stable", "Classic"),
    ("new", "consumer", "Assigning", "Consumer"),
    ("streaming", "streams", "NotReady", "Streams"),
    ("shared", "share", "Dead", "Share"),
    ("", "queue", "Stable", "Queue"),
]


def an_answer(groups: Sequence[tuple[str, ...]], version: int, error: int = 0) -> bytes:
    out = b"\0" + struct.pack(">ih", 0, error) + compact_count(groups)
    for group in groups:
        out += b"".join(map(compact_text, group[: version - 1])) + b"\0"
    return out + b"\0"


def test_groups_that_consume_are_told_with_kind_and_members() -> None:
    error, found = listed(Answer(an_answer(GROUPS, 5)), 5)
    assert (error, found) == (
        0,
        {
            "plain": Group("classic", False),
            "simple": Group("classic", False),
            "new": Group("consumer", True),
            "streaming": Group("streams", True),
            "shared": Group("share", False),
            "": Group("queue", True),
        },
    )
    assert list_groups(5) == b"\x01\x01\0"


def test_brokers_from_before_types_have_classic_groups() -> None:
    error, found = listed(Answer(an_answer(GROUPS[:3], 4)), 4)
    assert (error, found) == (0, {"plain": Group("classic", False), "simple": Group("classic", False)})
    assert list_groups(4) == b"\x01\0"


@given(st.binary(max_size=80))
def test_any_bytes_are_an_answer_or_malformed(data: bytes) -> None:
    for read in (
        lambda answer: listed(answer, 5),
        group_protocol.fetched_offsets,
        lambda answer: group_protocol.members("classic", answer),
        lambda answer: group_protocol.members("consumer", answer),
    ):
        try:
            read(Answer(data))
        except MalformedAnswer:
            continue


def test_offsets_are_read_and_written_as_kafka_spells_them() -> None:
    fetched = struct.pack(">ii", 0, 1) + text("t") + struct.pack(">i", 3)
    fetched += struct.pack(">iqi", 0, 7, -1) + text("a note") + struct.pack(">h", 0)
    fetched += struct.pack(">iqi", 1, -1, -1) + text(None) + struct.pack(">h", 0)
    fetched += struct.pack(">iqi", 2, 8, -1) + text("") + struct.pack(">h", 3) + struct.pack(">h", 0)
    assert group_protocol.fetched_offsets(Answer(fetched)) == (0, {("t", 0): Committed(7, "a note")})
    assert group_protocol.fetch_offsets("g") == text("g") + struct.pack(">i", -1)
    assert group_protocol.commit_offsets("", {("t", 1): Committed(5, "n")}) == (
        text("") + struct.pack(">i", -1) + text("") + text(None) + struct.pack(">i", 1)
        + text("t") + struct.pack(">iiqi", 1, 1, 5, -1) + text("n")
    )  # fmt: skip


class Pair:
    """Two brokers, each with groups of its own."""

    def __init__(self, stack: ExitStack) -> None:
        self.a, self.b = (stack.enter_context(Broker({})) for _ in range(2))
        stack.callback(TRIES._of.clear)
        self.calls = GroupCalls({"bootstrap.servers": f"127.0.0.1:{self.a.address[1]}"})
        stack.callback(self.calls.close)
        self.offsets: dict[str, bytes] = {}

    def lists(self, a: bytes, b: bytes, newest: int = 5) -> dict[str, Group]:
        api = replace(LIST_GROUPS, version=min(5, newest))
        brokers = metadata({0: self.a.address, 1: self.b.address}, "t", [])
        for broker, answer in ((self.a, a), (self.b, b)):
            broker.answers = {protocol.METADATA: brokers, api: told(answer[1:])}
            broker.knows = {api: (0, newest)}
        found = self.calls.listed(5)
        for broker in (self.a, self.b):
            assert [one.body[1:] for one in broker.asked if one.api.key == 16][-1] == list_groups(api.version)
        return found

    def coordinate(self, answers: Mapping[Api, Mapping[str, Callable[[Asked], bytes | None]]]) -> None:
        """Groups that begin with b are coordinated by b, x by nobody; all others by a."""

        def whose(asked: Asked) -> bytes:
            group = of(asked)
            error = KafkaError.COORDINATOR_NOT_AVAILABLE if group.startswith("x") else 0
            at = (self.b if group.startswith("b") else self.a).address
            return struct.pack(">ihhi", 0, error, -1, 1) + text(at[0]) + struct.pack(">i", at[1])

        brokers = metadata({0: self.a.address, 1: self.b.address}, "t", [])
        for broker in (self.a, self.b):
            broker.answers = {
                protocol.METADATA: brokers,
                protocol.FIND_COORDINATOR: whose,
                **dict.fromkeys(answers, lambda asked: answers[asked.api][of(asked)](asked)),
            }


def of(asked: Asked) -> str:
    """The group that a request is about."""
    return asked.body[2 : 2 + struct.unpack_from(">h", asked.body)[0]].decode()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


def test_every_broker_is_asked_for_its_groups_and_one_error_is_all(pair: Pair) -> None:
    a = an_answer(GROUPS[:1], 5)
    b = an_answer([("plain", "consumer", "Stable", "Classic"), GROUPS[4]], 5)
    assert pair.lists(a, b) == {"plain": Group("classic", True), "streaming": Group("streams", True)}
    assert pair.lists(b, a)["plain"].active
    with pytest.raises(KafkaException) as raised:
        pair.lists(a, an_answer([], 5, KafkaError.COORDINATOR_LOAD_IN_PROGRESS))
    assert raised.value.args[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(MalformedAnswer):
        pair.lists(a, b"\0\0")
    assert pair.lists(a, a) == {"plain": Group("classic", False)}, "what was asked before is not in the way"


@pytest.mark.parametrize("newest", [4, 5, 9])
def test_older_brokers_are_asked_in_their_version(pair: Pair, newest: int) -> None:
    answer = an_answer(GROUPS[:1], min(5, newest))
    assert pair.lists(answer, answer, newest) == {"plain": Group("classic", False)}


def test_brokers_that_do_not_tell_states_are_not_asked(pair: Pair) -> None:
    with pytest.raises(LinkRefused, match=r"the broker 127.0.0.1:\d+ does not tell the states"):
        pair.lists(b"", b"", newest=3)


def test_what_is_asked_of_several_groups_has_an_answer_or_an_error_for_each(pair: Pair) -> None:
    def committed(offset: int, error: int = 0) -> Callable[[Asked], bytes | None]:
        one = struct.pack(">iqi", 0, offset, -1) + text("") + struct.pack(">h", 0)
        return told(
            struct.pack(">ii", 0, 1) + text("t") + struct.pack(">i", 1) + one + struct.pack(">h", error)
        )

    moved = committed(0, KafkaError.NOT_COORDINATOR)
    fine = told(struct.pack(">ii", 0, 1) + text("t") + struct.pack(">iih", 1, 0, 0))
    busy = told(
        struct.pack(">ii", 0, 1) + text("t") + struct.pack(">iih", 1, 0, KafkaError.UNKNOWN_MEMBER_ID)
    )
    pair.coordinate(
        {
            OFFSET_FETCH: {"a1": committed(1), "a2": moved, "b1": committed(3), "b2": lambda _: None},
            OFFSET_COMMIT: {"a1": fine, "b1": busy},
        }
    )
    found = pair.calls.committed(["a1", "a2", "b1", "b2", "x"], 5)
    assert (found["a1"], found["b1"]) == (
        {("t", 0): Committed(1, "")},
        {("t", 0): Committed(3, "")},
    )
    assert {group: error_of(found[group]) for group in ("a2", "b2", "x")} == {
        "a2": KafkaError.NOT_COORDINATOR,
        "b2": KafkaError._TRANSPORT,
        "x": KafkaError.COORDINATOR_NOT_AVAILABLE,
    }
    assert pair.calls.committed([], 5) == {}
    refused = pair.calls.commit({g: {("t", 0): Committed(1, "")} for g in ("a1", "b1", "x")}, 5)
    assert refused["a1"] == {} and error_of(refused["x"]) == KafkaError.COORDINATOR_NOT_AVAILABLE
    of_b = refused["b1"]
    assert isinstance(of_b, dict) and of_b["t", 0].code() == KafkaError.UNKNOWN_MEMBER_ID


def error_of(answer: object) -> int:
    assert isinstance(answer, KafkaException)
    return int(answer.args[0].code())
