from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from common.errors import LinkRefused
from common.kafka.wire import protocol
from common.kafka.wire.protocol import Answer, Api, MalformedAnswer, text, unsigned
from offsets import group_calls, group_protocol
from offsets.group_protocol import Committed, Group, list_groups, listed

CONFIG = {"bootstrap.servers": "a:1"}
GROUPS: list[tuple[str, ...]] = [
    ("plain", "consumer", "Empty", "Classic"),
    ("simple", "", "Empty", "Classic"),
    ("workers", "connect", "Stable", "Classic"),
    ("new", "consumer", "Assigning", "Consumer"),
    ("streaming", "streams", "NotReady", "Streams"),
    ("shared", "share", "Dead", "Share"),
    ("", "queue", "Stable", "Queue"),
]


def compact(value: str) -> bytes:
    return unsigned(len(value.encode()) + 1) + value.encode()


def an_answer(groups: Sequence[tuple[str, ...]], version: int, error: int = 0) -> bytes:
    out = b"\0" + struct.pack(">ih", 0, error) + unsigned(len(groups) + 1)
    for group in groups:
        out += b"".join(map(compact, group[: version - 1])) + b"\0"
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
    for read in (lambda answer: listed(answer, 5), group_protocol.fetched_offsets):
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


class Brokers:
    """Two brokers, each with groups of its own."""

    def __init__(self, answers: dict[str, bytes], newest: int = 5) -> None:
        self.answers, self.newest = answers, newest

    def __call__(self, config: Any) -> Brokers:
        return self

    def any(self, api: Api, body: list[bytes], deadline: Any) -> Answer:
        return self.ask(("a", 1), api, body, deadline)

    def close(self) -> None:
        pass

    def ask(self, address: tuple[str, int], api: Api, body: list[bytes], deadline: Any) -> Answer:
        if api is protocol.METADATA:
            nodes = [
                struct.pack(">i", i) + text(host) + struct.pack(">i", 1) + text(None)
                for i, host in enumerate("ab")
            ]
            return Answer(struct.pack(">ii", 0, 2) + b"".join(nodes) + text(None) + struct.pack(">ii", 0, 0))
        if api is protocol.API_VERSIONS:
            return Answer(struct.pack(">hihhh", 0, 1, 16, 0, self.newest))
        assert (api.key, api.version, body) == (16, min(5, self.newest), [list_groups(min(5, self.newest))])
        return Answer(self.answers[address[0]])


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[[Brokers], dict[str, Group]]:
    def asked(brokers: Brokers) -> dict[str, Group]:
        monkeypatch.setattr(group_calls, "BrokerConnections", brokers)
        return group_calls.listed(CONFIG, 5)

    return asked


def test_every_broker_is_asked_for_its_groups_and_one_error_is_all(
    ask: Callable[[Brokers], dict[str, Group]],
) -> None:
    both = {
        "a": an_answer(GROUPS[:1], 5),
        "b": an_answer([("plain", "consumer", "Stable", "Classic"), GROUPS[4]], 5),
    }
    assert ask(Brokers(both)) == {"plain": Group("classic", True), "streaming": Group("streams", True)}
    assert ask(Brokers({"a": both["b"], "b": both["a"]}))["plain"].active
    with pytest.raises(KafkaException) as raised:
        ask(Brokers(both | {"b": an_answer([], 5, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)}))
    assert raised.value.args[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(KafkaException, match="an answer that can't be read"):
        ask(Brokers(both | {"b": b"\0\0"}))


def test_older_brokers_are_asked_in_their_version_or_not_at_all(
    ask: Callable[[Brokers], dict[str, Group]],
) -> None:
    of_four = an_answer(GROUPS[:1], 4)
    assert ask(Brokers({"a": of_four, "b": of_four}, newest=4)) == {"plain": Group("classic", False)}
    assert ask(Brokers({"a": an_answer([], 5), "b": an_answer([], 5)}, newest=9)) == {}
    with pytest.raises(LinkRefused, match="the broker a:1 does not tell the states"):
        ask(Brokers({}, newest=3))
