"""What leaders tell of open transactions, and what is not told, before brokers that answer as they are told.
Real ones: tests/integration."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from confluent_kafka import KafkaError

from common import ports
from common.kafka.wire import open_transactions_protocol as protocol
from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.connection import broken
from common.kafka.wire.open_transactions import OpenTransactions, open_transactions
from common.kafka.wire.protocol import Answer, Api, text, unsigned
from common.ports import Deadline

ONE, TWO = ("one", 1), ("two", 2)
DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED
Listed = dict[int, tuple[int, int]]


def listed(found: Listed) -> bytes:
    """Error and offset by partition."""
    parts = (struct.pack(">ihqqi", p, error, -1, offset, 0) for p, (error, offset) in found.items())
    return struct.pack(">ii", 0, 1) + text("t") + struct.pack(">i", len(found)) + b"".join(parts)


def told(partition: int, error: int, *producers: tuple[int, int]) -> bytes:
    """Producer ids, and where their transactions begin (-1: they have none)."""
    each = b"".join(struct.pack(">qiiqiq", number, 3, 9, 1, 0, first) + b"\0" for number, first in producers)
    one = struct.pack(">ih", partition, error) + b"\0" + unsigned(len(producers) + 1) + each + b"\0"
    return b"\0" + struct.pack(">i", 0) + b"\2" + b"\2t" + b"\2" + one + b"\0\0"


class Brokers(BrokerConnections):
    """`answers` by broker, in order; None: it is gone."""

    def __init__(self, leaders: dict[int, int], answers: dict[tuple[str, int], list[bytes | None]]) -> None:
        super().__init__({"bootstrap.servers": "one:1"})
        self._addresses = {1: ONE, 2: TWO}
        self.now = {("t", p): leader for p, leader in leaders.items()}
        self.answers = answers
        self.asked: list[str] = []

    def describe(self, topics: Any, deadline: Any) -> dict[str, int]:
        self._leaders.update(self.now)
        return {}

    def ask(self, address: Any, api: Api, body: Any, deadline: Any) -> Answer:
        self.asked.append(api.name)
        answer = self.answers[address].pop(0)
        if answer is None:
            raise broken("gone")
        return Answer(answer)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(ports, "monotonic", lambda: now[0])
    monkeypatch.setattr(ports, "sleep", lambda s: now.__setitem__(0, now[0] + s))


def asked(brokers: Brokers, *partitions: int) -> OpenTransactions:
    return open_transactions(brokers, [("t", p) for p in partitions], Deadline(5))


def codes(found: OpenTransactions) -> dict[int, int]:
    return {p: error.code() for (_, p), error in found.untold.items()}


def test_where_all_is_decided_nobody_is_asked_whose_anything_is() -> None:
    brokers = Brokers({0: 1, 1: 1}, {ONE: [listed({0: (0, 7), 1: (0, 0)}), listed({0: (0, 7), 1: (0, 0)})]})
    assert asked(brokers, 0, 1) == OpenTransactions()
    assert brokers.asked == ["ListOffsets"] * 2
    assert asked(brokers) == OpenTransactions() and len(brokers.asked) == 2


def test_what_is_open_is_told_by_producer_and_what_a_producer_has_ended_is_not() -> None:
    brokers = Brokers({0: 1}, {ONE: [listed({0: (0, 7)}), listed({0: (0, 4)}), told(0, 0, (8, 4), (9, -1))]})
    assert asked(brokers, 0) == OpenTransactions({("t", 0): {8: 4}}, {})


def test_a_partition_without_a_leader_and_a_broker_that_is_gone_hide_none_of_the_others() -> None:
    error = KafkaError.NOT_LEADER_FOR_PARTITION
    first = listed({0: (0, 7), 3: (error, -1)})
    brokers = Brokers({0: 1, 1: -1, 2: 2, 3: 1}, {ONE: [first, listed({0: (0, 7)})], TWO: [None]})
    brokers._leaders["t", 1] = 2  # as it was before
    found = asked(brokers, 0, 1, 2, 3)
    assert found.first == {}
    assert codes(found) == {1: KafkaError.LEADER_NOT_AVAILABLE, 2: KafkaError._TRANSPORT, 3: error}


def test_what_a_broker_has_told_before_it_fails_is_told() -> None:
    """One that is not well, such as one that may not be looked at, takes no other with it."""
    answers = [listed({0: (0, 7), 1: (0, 9)}), listed({0: (0, 7), 1: (0, 6)}), None]
    found = asked(Brokers({0: 1, 1: 1}, {ONE: list(answers)}), 0, 1)
    assert codes(found) == {1: KafkaError._TRANSPORT}


def test_whoever_may_not_ask_whose_it_is_waits_until_it_is_over_or_is_told_what_right_it_takes() -> None:
    """Another writer has something open all the time; what was open at first is decided soon, unless it
    hangs."""
    ends = {0: (0, 7), 1: (0, 9), 2: (0, 3)}
    for later, left in ((6, {1: DENIED}), (9, {})):
        answers = [listed(ends), listed({0: (0, 4), 1: (0, 6), 2: (0, 3)}), denied(0, 1)]
        answers += [listed({0: (0, 7), 1: (0, 6)}), *[listed({1: (0, later)})] * 100]
        brokers = Brokers({0: 1, 1: 1, 2: 1}, {ONE: list(answers)})
        found = asked(brokers, 0, 1, 2)
        assert codes(found) == left
        if left:
            assert "READ" in found.untold["t", 1].str()


def denied(*partitions: int) -> bytes:
    each = b"".join(struct.pack(">ih", p, DENIED) + b"\0\1\0" for p in partitions)
    return b"\0" + struct.pack(">i", 0) + b"\2" + b"\2t" + unsigned(len(partitions) + 1) + each + b"\0\0"


def test_requests_are_as_the_protocol_has_them() -> None:
    partitions = [("t", 1), ("u", 0), ("t", 2)]
    wanted = struct.pack(">ibi", -1, 1, 2)
    wanted += text("t") + struct.pack(">iiiqiiq", 2, 1, -1, -1, 2, -1, -1)
    wanted += text("u") + struct.pack(">iiiq", 1, 0, -1, -1)
    assert protocol.list_offsets(partitions, True) == wanted
    wanted = b"\3" + b"\2t\3" + struct.pack(">ii", 1, 2) + b"\0" + b"\2u\2" + struct.pack(">i", 0) + b"\0\0"
    assert protocol.describe_producers(partitions) == wanted
