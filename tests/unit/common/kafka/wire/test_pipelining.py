"""Many requests at once, to listeners that answer as they are told."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from common.kafka.wire import pipelining, protocol
from common.kafka.wire.broker_backoff import CONTROL, TRIES
from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.protocol import FIND_COORDINATOR, Address, Answer, text
from common.ports import Deadline
from tests.support.listeners import Asked, Broker, nobody, silent


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    TRIES._of.clear()
    yield
    TRIES._of.clear()


@pytest.fixture
def brokers() -> Iterator[BrokerConnections]:
    with closing(BrokerConnections({"bootstrap.servers": "127.0.0.1:1"})) as made:
        yield made


def echo(asked: Asked) -> bytes:
    """A coordinator that is called what was asked for."""
    size = struct.unpack_from(">h", asked.body)[0]
    return struct.pack(">ihhi", 0, 0, -1, 1) + text(asked.body[2 : 2 + size].decode()) + struct.pack(">i", 1)


def ask(brokers: BrokerConnections, keys: dict[str, Address], within_s: float = 10) -> dict[str, Any]:
    requests = {k: (at, FIND_COORDINATOR, [protocol.find_coordinator(0, k)]) for k, at in keys.items()}

    def read(key: str, answer: Answer) -> str:
        return protocol.coordinator(answer)[2]

    return pipelining.pipelined(brokers, requests, read, Deadline(within_s))


def hanging_up(after: int, answer: Callable[[Asked], bytes]) -> Callable[[Asked], bytes | None]:
    left = [after]

    def answers(asked: Asked) -> bytes | None:
        left[0] -= 1
        if left[0] >= 0:
            return answer(asked)
        # What was answered before may be lost with the connection, unless it was read.
        time.sleep(0.3)
        return None

    return answers


def test_each_request_has_its_own_answer_and_many_are_under_way(brokers: BrokerConnections) -> None:
    waited: list[float] = []

    def slow(asked: Asked) -> bytes:
        waited.append(time.monotonic() - asked.at)
        return echo(asked)

    with Broker({FIND_COORDINATOR: slow}) as one, Broker({FIND_COORDINATOR: echo}) as two:
        keys = {f"k{n}": (one if n % 2 else two).address for n in range(500)}
        assert ask(brokers, keys) == {key: key for key in keys}
        assert {asked.connection for asked in one.asked} == {1}
        assert ask(brokers, {"again": one.address}) == {"again": "again"}
        assert {asked.connection for asked in one.asked} == {1}, "connections are kept"
    assert ask(brokers, {}) == {}


def test_no_more_are_under_way_to_a_broker_than_it_is_to_have(
    brokers: BrokerConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelining, "MOST_UNDER_WAY", 3)
    most = 0
    send = pipelining._go_on

    def seen(of: Any, address: Any, line: Any, *rest: Any) -> None:
        nonlocal most
        send(of, address, line, *rest)
        most = max(most, len(line.sent))

    monkeypatch.setattr(pipelining, "_go_on", seen)

    def slow(asked: Asked) -> bytes:
        time.sleep(0.002)
        return echo(asked)

    with Broker({FIND_COORDINATOR: slow}) as one:
        keys = {f"k{n}": one.address for n in range(20)}
        assert ask(brokers, keys) == {key: key for key in keys}
    assert 1 <= most <= 3


def test_who_hangs_or_is_not_there_holds_up_nobody_else(brokers: BrokerConnections) -> None:
    answered: list[float] = []

    def told(asked: Asked) -> bytes:
        answered.append(time.monotonic())
        return echo(asked)

    with silent() as hung, Broker({FIND_COORDINATOR: told}) as sound:
        gone, begun = nobody(), time.monotonic()
        found = ask(brokers, {"a": hung, "b": gone, "c": sound.address, "d": hung, "e": sound.address}, 2.0)
        assert time.monotonic() - begun < 4
        assert answered[-1] - begun < 2
        assert (found["c"], found["e"]) == ("c", "e")
        for key, code in (
            ("a", KafkaError._TIMED_OUT),
            ("d", KafkaError._TIMED_OUT),
            ("b", KafkaError._TRANSPORT),
        ):
            assert isinstance(found[key], KafkaException) and found[key].args[0].code() == code, found
        # Whoever failed lately is not tried again at once, and is not waited for longer than is allowed.
        for _ in range(6):
            TRIES.failed(gone, CONTROL, "still")
        tries = TRIES.tries(gone)
        again = ask(brokers, {"b": gone, "c": sound.address}, 0.05)
        assert TRIES.tries(gone) == tries, "it was not tried"
        assert again["c"] == "c" and "failed lately" in str(again["b"]) and f":{gone[1]}" in str(again["b"])


def test_a_connection_that_breaks_takes_what_was_under_way_there_and_no_more(
    brokers: BrokerConnections,
) -> None:
    with Broker({FIND_COORDINATOR: hanging_up(3, echo)}) as one, Broker({FIND_COORDINATOR: echo}) as two:
        found = ask(brokers, {f"k{n}": one.address for n in range(9)} | {"x": two.address})
        assert [found[f"k{n}"] for n in range(3)] == ["k0", "k1", "k2"] and found["x"] == "x"
        assert all(isinstance(found[f"k{n}"], KafkaException) for n in range(3, 9))
        assert not brokers.has((one.address, CONTROL))
        one.answers = {FIND_COORDINATOR: echo}
        assert ask(brokers, {"k9": one.address}) == {"k9": "k9"}


def test_an_answer_that_cannot_be_read_is_that_of_one_request(brokers: BrokerConnections) -> None:
    def bad(asked: Asked) -> bytes:
        return b"\0" if b"k1" in asked.body else echo(asked)

    with Broker({FIND_COORDINATOR: bad}) as one:
        found = ask(brokers, {f"k{n}": one.address for n in range(3)})
    assert (found["k0"], found["k2"]) == ("k0", "k2") and isinstance(found["k1"], protocol.MalformedAnswer)
