"""Brokers that hang, refuse, die, throttle or lack what is asked: they stop nothing but what only they have.
Listeners that are no brokers answer as they are told; real brokers that are stopped:
tests/integration/test_dead_broker.py."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from common.errors import LinkRefused
from common.kafka.quotas import THROTTLED
from common.kafka.wire import broker_connections, fetch_protocol, protocol
from common.kafka.wire.batch_consumer import BatchConsumer, Event
from common.kafka.wire.batch_producer import BatchProducer
from common.kafka.wire.broker_backoff import CONTROL, DATA, TRIES, BrokerTries
from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.chunks import Chunk
from common.kafka.wire.connection import Connection, access
from common.kafka.wire.fetch_protocol import FETCH, FETCH_BY_NAME
from common.kafka.wire.protocol import Address
from common.ports import Deadline
from replicator.lane.source_reader import Source
from tests.support.listeners import Asked, Broker, coordinator, metadata, nobody, offset_of, silent, told
from tests.unit.common.kafka.wire.test_batch_consumer import batch

ID = "ASNFZ4mrze8BI0VniavN7w"
ALL_CODECS = dict.fromkeys(range(5), 1 << 31)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No broker has failed before, and those that are given are asked in their order."""
    monkeypatch.setattr(random, "shuffle", lambda _: None)
    TRIES._of.clear()
    yield
    TRIES._of.clear()


def servers(*addresses: Address) -> dict[str, Any]:
    return {"bootstrap.servers": ",".join(f"{host}:{port}" for host, port in addresses)}


# Fetch


def fetched(
    partition: int,
    records: bytes = b"",
    throttle_ms: int = 0,
    error: int = 0,
    preferred: int = -1,
    name: bytes = b"",
) -> bytes:
    head = struct.pack(">ihi", throttle_ms, 0, 0)
    part = struct.pack(">ihqqq", partition, error, 9, 9, 0) + b"\0" + struct.pack(">i", preferred)
    size = protocol.unsigned(len(records) + 1)
    topic = uuid.UUID(fetch_protocol.canonical(ID)).bytes
    if name:
        topic = protocol.unsigned(len(name) + 1) + name
    return head + b"\x02" + topic + b"\x02" + part + size + records + b"\0\0\0"


def one_by_one(partition: int) -> Callable[[Asked], bytes]:
    """Each request is answered with a record, after a hundredth of a second."""

    def answer(asked: Asked) -> bytes:
        time.sleep(0.01)
        _, offset = offset_of(asked) or (0, 0)
        return fetched(partition, batch(offset, 1))

    return answer


def consumer(config: dict[str, Any], partitions: int = 1) -> BatchConsumer:
    made = BatchConsumer(config | {"fetch.wait.max.ms": 50}, ALL_CODECS)
    made.assign([("orders", ID, partition, 0, None) for partition in range(partitions)])
    return made


def read(
    from_: BatchConsumer,
    for_s: float,
    enough: int = 1 << 30,
    of: set[tuple[int, int]] | None = None,
    until: Callable[[], bool] = bool,
) -> list[tuple[float, Chunk]]:
    """What comes, and after how many seconds; no longer than until so many chunks are there, or these
    (partition and the offset behind it), or something else is so."""
    begun = time.monotonic()
    found: list[tuple[float, Chunk]] = []
    while time.monotonic() - begun < for_s and len(found) < enough and not until():
        for item in from_.read(0.05):
            assert isinstance(item, Chunk)
            found.append((time.monotonic() - begun, item))
        if of is not None and of <= {(chunk.partition, chunk.next) for _, chunk in found}:
            break
    return found


def test_a_broker_that_hangs_and_is_listed_first_delays_the_first_record_by_a_second() -> None:
    """Seen: three nodes of which the first was stopped, and no record in 46 s, since that one was asked each
    time."""
    with silent() as hung, contextlib.ExitStack() as stack:
        sound = stack.enter_context(Broker({FETCH: one_by_one(0)}))
        sound.answers = {**sound.answers, protocol.METADATA: metadata({1: sound.address}, "orders", [1])}
        reader = consumer(servers(hung, nobody(), sound.address))
        stack.callback(reader.close)
        ((after_s, _),) = read(reader, 10, enough=1)
        assert after_s < 3
        again = consumer(servers(hung, nobody(), sound.address))
        stack.callback(again.close)
        ((after_s, _),) = read(again, 10, enough=1)
        assert after_s < 0.7, "whoever comes later in this process asks it last"


def test_a_name_with_several_addresses_is_tried_with_another_one_first_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("common.kafka.wire.broker_backoff.FIRST_S", 0.5)
    resolve = socket.getaddrinfo
    with silent() as hung, Broker({FETCH: one_by_one(0)}) as sound:

        def both(host: str, *asked: Any, **more: Any) -> Any:
            if host == "brokers.invalid" and not more:
                return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", at) for at in (hung, sound.address)]
            return resolve(host, *asked, **more)

        monkeypatch.setattr(socket, "getaddrinfo", both)
        named = ("brokers.invalid", sound.address[1])
        sound.answers = {**sound.answers, protocol.METADATA: metadata({1: named}, "orders", [1])}
        reader = consumer(servers(sound.address))
        assert read(reader, 5, enough=1), "the leader is known by the name"
        reader.close()


def hanging(stack: contextlib.ExitStack) -> Address:
    """Connections are accepted, and nothing is said."""
    return stack.enter_context(silent())


def refusing(_: contextlib.ExitStack) -> Address:
    return nobody()


def dying(stack: contextlib.ExitStack) -> Address:
    """It hangs up at the first request."""
    return stack.enter_context(Broker({protocol.API_VERSIONS: lambda _: None})).address


def never(_: Asked) -> None:
    time.sleep(20)


def dumb(stack: contextlib.ExitStack) -> Address:
    """It can be connected to, and answers no Fetch."""
    return stack.enter_context(Broker({FETCH: never})).address


def unknown(_: contextlib.ExitStack) -> Address:
    """Its name is not answered for by any resolver."""
    return ("broker.invalid", 9092)


@pytest.mark.parametrize("sick", [hanging, refusing, dying, dumb, unknown])
def test_a_leader_that_is_sick_stops_its_own_partitions_only_and_is_named_once(
    sick: Callable[[contextlib.ExitStack], Address],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Seen: connecting to one that was silent, again and again for 5 s in the loop that serves all: 375
    records in 10 s became 6 in 30 s."""
    resolve = socket.getaddrinfo

    def slowly(host: str, *asked: Any, **more: Any) -> Any:
        if host == "broker.invalid" and not more:
            time.sleep(20)
        return resolve(host, *asked, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    monkeypatch.setattr("common.kafka.wire.fetch_sessions.ANSWER_S", 2.0)
    monkeypatch.setattr("common.kafka.wire.broker_backoff.FIRST_S", 2.0)
    caplog.set_level(logging.WARNING, "common.kafka.wire.broker_backoff")
    with contextlib.ExitStack() as stack:
        bad = sick(stack)
        sound = stack.enter_context(Broker({FETCH: one_by_one(1)}))
        sound.answers = {
            **sound.answers,
            protocol.METADATA: metadata({1: bad, 2: sound.address}, "orders", [1, 2]),
        }
        reader = consumer(servers(sound.address), partitions=2)
        stack.callback(reader.close)
        came = [at for at, _ in read(reader, 3.5)]
        gaps = [after - before for before, after in zip([0.0, *came], came, strict=False)]
        assert max(gaps) < 2.0, "nobody waits for the sick one"
        assert len(came) > 20
        assert [r.getMessage().startswith(f"broker {bad[0]}:{bad[1]}:") for r in caplog.records] == [True]


def test_a_leader_that_comes_back_is_read_again_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "common.kafka.wire.broker_backoff")
    with contextlib.ExitStack() as stack:
        bad = nobody()
        sound = stack.enter_context(Broker({FETCH: one_by_one(1)}))
        answers = {protocol.METADATA: metadata({1: bad, 2: sound.address}, "orders", [1, 2])}
        sound.answers = {**sound.answers, **answers}
        reader = consumer(servers(sound.address), partitions=2)
        stack.callback(reader.close)
        assert {chunk.partition for _, chunk in read(reader, 10, enough=5)} == {1}
        stack.enter_context(Broker({FETCH: one_by_one(0), **answers}, port=bad[1]))
        assert 0 in {chunk.partition for _, chunk in read(reader, 20, of={(0, 1)})}
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]
    assert "answers again" in caplog.messages[1]


def test_tls_to_somebody_who_is_silent_is_given_time_and_waited_for_by_nobody() -> None:
    with silent() as hung:
        connection = Connection(access({**servers(hung), "security.protocol": "ssl"}), hung)
        begun = time.monotonic()
        while connection.begun + 0.3 > time.monotonic():
            assert not connection.ready()
            time.sleep(0.01)
        assert time.monotonic() - begun < 5
        with pytest.raises(KafkaException, match="no answer to TCP or TLS"):
            connection.open(Deadline(0.2))


def test_what_a_socket_does_not_take_at_once_goes_out_by_and_by() -> None:
    """A first Fetch of many partitions is larger than what a socket takes from whoever does not wait."""
    rest = threading.Event()

    def slow(_: Asked) -> bytes:
        rest.wait(5)
        return struct.pack(">ih", 0, 0)

    with Broker({protocol.END_TXN: slow}) as broker:
        connection = Connection(access(servers(broker.address)), broker.address)
        connection.open(Deadline(5))
        begun = time.monotonic()
        for _ in range(2):
            connection.send(protocol.END_TXN, [b"x" * (24 << 20)], None)
        assert time.monotonic() - begun < 4, "who waits for it waits five seconds"
        assert not connection.complete()
        rest.set()
        for _ in range(2):
            connection.answer(Deadline(5))
        assert [len(asked.body) for asked in broker.asked[1:]] == [24 << 20] * 2
        connection.close()


# metadata, coordinators, producer ids


def transactional(address: Callable[[], Address]) -> dict[Any, Callable[[Asked], bytes | None]]:
    return {
        protocol.FIND_COORDINATOR: coordinator(address),
        protocol.INIT_PRODUCER_ID: lambda _: struct.pack(">ihqh", 0, 0, 7, 0),
        protocol.ADD_PARTITIONS_TO_TXN: lambda _: (
            struct.pack(">ii", 0, 1) + protocol.text("t") + struct.pack(">iih", 1, 0, 0)
        ),
        protocol.END_TXN: lambda _: struct.pack(">ih", 0, 0),
    }


def fencing(*addresses: Address) -> float:
    """How long that takes with a producer of its own."""
    begun = time.monotonic()
    producer = BatchProducer(servers(*addresses), "tx", 60_000, "g")
    producer.init_transactions(10)
    producer.close()
    return time.monotonic() - begun


def test_a_producer_fences_though_the_broker_that_is_listed_first_hangs() -> None:
    with silent() as hung, Broker({}) as sound:
        sound.answers = transactional(lambda: sound.address)
        assert fencing(hung, nobody(), sound.address) < 3
        assert fencing(hung, nobody(), sound.address) < 0.7


def test_a_coordinator_that_hangs_is_looked_for_anew() -> None:
    """It is the coordinator for as long as the cluster takes it for alive. Nothing was sent to it, so another
    one may be asked."""
    with silent() as hung, Broker({}) as sound:
        moved = time.monotonic() + 1.0
        sound.answers = transactional(lambda: hung if time.monotonic() < moved else sound.address)
        assert fencing(sound.address) < 4


def test_a_question_that_a_connected_broker_does_not_answer_is_put_to_another() -> None:
    with Broker({protocol.METADATA: never}) as dumb_one, Broker({}) as sound:
        sound.answers = {protocol.METADATA: metadata({2: sound.address}, "orders", [2])}
        brokers = BrokerConnections(servers(dumb_one.address, sound.address))
        brokers.connected((dumb_one.address, CONTROL), Deadline(5))
        assert brokers.describe(["orders"], Deadline(10)) == {}
        assert brokers.leader(("orders", 0)) == sound.address
        assert not brokers.has((dumb_one.address, CONTROL)), "its answer would be taken for another one's"
        brokers.close()


def test_one_that_is_slow_but_sound_is_waited_for_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_connections, "NEXT_BROKER_S", 0.2)
    answer = metadata({1: ("b", 1)}, "orders", [1])

    def slowly(asked: Asked) -> bytes:
        time.sleep(1.0)
        return answer(asked)

    with silent() as hung, Broker({protocol.METADATA: slowly}) as slow:
        brokers = BrokerConnections(servers(slow.address, hung))
        brokers.describe(["orders"], Deadline(10))
        assert brokers.leader(("orders", 0)) == ("b", 1)
        brokers.close()


def test_a_try_lasts_longer_each_time_that_it_was_too_short_and_there_is_a_pause_between() -> None:
    tries, at = BrokerTries(), ("b", 1)
    allowances = []
    for _ in range(5):
        allowances.append(tries.allowance_s(at))
        tries.failed(at, DATA, "no")
    assert allowances == [2, 4, 8, 10, 10]
    assert 1 < tries.next_at(at) - time.monotonic() < 2
    assert tries.in_order([at, ("c", 1)]) == [("c", 1), at]
    tries.worked(at, CONTROL)
    assert tries.next_at(at) > 0, "it answers questions, and breaks with each request for records"
    tries.worked(at, DATA)
    assert tries.next_at(at) == 0 and tries.in_order([at, ("c", 1)]) == [at, ("c", 1)]


# quotas


def commit_one(producer: BatchProducer) -> None:
    producer.init_transactions(5)
    producer.begin_transaction()
    producer.produce("t", b"v", None, 0)
    producer.commit_transaction(5)


def test_a_broker_whose_quota_is_used_up_is_sent_nothing_before_its_time_is_over() -> None:
    with Broker({}) as broker:
        broker.answers = {
            protocol.METADATA: metadata({1: broker.address}, "orders", [1]),
            FETCH: told(fetched(0, batch(0, 1), throttle_ms=700), fetched(0, batch(1, 1))),
        }
        before_ms = THROTTLED.own_ms
        reader = consumer(servers(broker.address))
        assert len(read(reader, 5, enough=2)) == 2
        reader.close()
        assert THROTTLED.own_ms - before_ms == 700
        first, second, *_ = (asked.at for asked in broker.asked if asked.api is FETCH)
        assert second - first > 0.65


def test_a_producer_whose_quota_is_used_up_sends_neither_records_nor_questions() -> None:
    produced = struct.pack(">i", 1) + protocol.text("t") + struct.pack(">iihqqq", 1, 0, 0, 5, -1, 0)
    produced += struct.pack(">i", 0) + protocol.text(None) + struct.pack(">i", 600)
    with Broker({}) as broker:
        broker.answers = {
            **transactional(lambda: broker.address),
            protocol.METADATA: metadata({1: broker.address}, "t", [1]),
            protocol.PRODUCE: lambda _: produced,
        }
        before_ms = THROTTLED.own_ms
        producer = BatchProducer(servers(broker.address), "tx", 60_000, "g")
        commit_one(producer)
        producer.close()
        assert THROTTLED.own_ms - before_ms == 600
        at = {asked.api.name: asked.at for asked in broker.asked}
        assert at["EndTxn"] - at["Produce"] > 0.55


# versions


@pytest.mark.parametrize("lacks", [FETCH_BY_NAME, protocol.METADATA])
def test_a_source_whose_broker_lacks_a_request_of_ours_is_read_otherwise_and_named(
    lacks: protocol.Api,
) -> None:
    of_ours = FETCH if lacks is FETCH_BY_NAME else lacks
    with Broker({}, knows={of_ours: (0, lacks.version - 1)}) as old:
        old.answers = {protocol.METADATA: metadata({1: old.address}, "orders", [1])}
        reader = consumer(servers(old.address))
        words = f"{old.address[1]} does not know version {lacks.version} of {lacks.name}, only 0 to"
        with pytest.raises(LinkRefused, match=words):
            read(reader, 5)
        reader.close()
        assert lacks.name not in old.kinds()


def test_a_broker_that_knows_no_topic_ids_is_asked_by_name_and_others_by_id_and_the_first_is_remembered() -> (
    None
):
    """Promise: two brokers in the midst of an upgrade are both read; from the first answer by name on nobody
    takes a topic's id for granted."""
    with Broker({}, knows={FETCH: (0, 12)}) as old, Broker({FETCH: one_by_one(1)}) as new:
        of_topic = metadata({1: old.address, 2: new.address}, "orders", [1, 2])
        new.answers = {**new.answers, protocol.METADATA: of_topic}
        by_name = fetched(0, batch(0, 1), name=b"orders"), fetched(0, batch(1, 1), name=b"orders")
        old.answers = {
            protocol.METADATA: of_topic,
            FETCH_BY_NAME: told(*by_name, fetched(0, name=b"orders")),
        }
        reader = consumer(servers(old.address, new.address), partitions=2)
        assert not reader.by_name()
        found = read(reader, 20, of={(0, 1), (0, 2), (1, 1)})
        assert reader.by_name()
        reader.close()
        assert {(chunk.partition, chunk.next) for _, chunk in found} >= {(0, 1), (0, 2), (1, 1)}
        asked = next(one.body for one in old.asked if one.api is FETCH_BY_NAME)
        assert b"\x02\x07orders\x02" in asked
        assert uuid.UUID(fetch_protocol.canonical(ID)).bytes not in asked
        assert all(one.api is not FETCH_BY_NAME for one in new.asked)


def test_frames_wait_for_their_topics_id_once_a_broker_was_asked_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise: for good, whoever is asked later: a record that was read by name may not be in a frame yet,
    and frames may not overtake each other."""
    with Broker({}, knows={FETCH: (0, 12)}) as old:
        old.answers = {
            protocol.METADATA: metadata({1: old.address}, "orders", [1]),
            FETCH_BY_NAME: told(fetched(0, batch(0, 1), name=b"orders"), fetched(0, name=b"orders")),
        }
        monkeypatch.setattr("common.kafka.client.clients.admin", lambda _: None)
        clients = {"source_consumer": servers(old.address), "staging_producer": {}, "source_admin": {}}
        source = Source(cast(Any, SimpleNamespace(**clients, provenance=False)), [])
        source.read_from_positions()
        assert source.by_id(), "nothing was read yet"
        of_it = cast(BatchConsumer, source._consumer)
        of_it.assign([("orders", ID, 0, 0, None)])
        until = time.monotonic() + 5
        while not source.read(0.05) and time.monotonic() < until:
            pass
        assert not source.by_id()
        source.read_from_positions()
        assert not source.by_id(), "with a consumer that has asked nobody"
        source.close()


@pytest.mark.parametrize("lacks", [protocol.INIT_PRODUCER_ID, protocol.METADATA, protocol.PRODUCE])
def test_a_target_whose_broker_lacks_a_request_of_ours_is_refused_by_name(lacks: protocol.Api) -> None:
    with Broker({}, knows={lacks: (lacks.version + 1, lacks.version + 3)}) as other:
        other.answers = {
            **transactional(lambda: other.address),
            protocol.METADATA: metadata({1: other.address}, "t", [1]),
        }
        producer = BatchProducer(servers(other.address), "tx", 60_000, "g")
        with pytest.raises(KafkaException) as caught:
            commit_one(producer)
        producer.close()
        error = caught.value.args[0]
        assert error.code() == KafkaError.UNSUPPORTED_VERSION
        only = f"does not know version {lacks.version} of {lacks.name}, only {lacks.version + 1} to"
        assert f"broker 127.0.0.1:{other.address[1]} {only}" in error.str()
        assert lacks.name not in other.kinds()


# SASL

HANDSHAKE = struct.pack(">hi", 0, 1) + protocol.text("SCRAM-SHA-256")


def authenticated(token: bytes, life_ms: int = 0) -> bytes:
    return struct.pack(">h", 0) + protocol.text(None) + protocol.blob(token) + struct.pack(">q", life_ms)


def sasl(broker: Broker, mechanism: str) -> dict[str, Any]:
    return servers(broker.address) | {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "u",
        "sasl.password": "p",
    }


def challenge(iterations: str) -> Callable[[Asked], bytes]:
    def answer(asked: Asked) -> bytes:
        nonce = asked.body.partition(b"r=")[2].decode()
        return authenticated(f"r={nonce}more,s=c2FsdA==,i={iterations}".encode())

    return answer


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda _: b"\0", "malformed answer"),
        (lambda _: struct.pack(">hh", 0, 500) + b"x", "malformed answer"),
        (lambda _: authenticated(b"\xff\xfe"), "challenge can't be read"),
        (lambda _: authenticated(b"r=,s=a,i=9999"), "challenge can't be read"),
        (challenge("1e4"), "challenge can't be read"),
        (challenge("2147483648"), "2147483648 iterations, which are too many"),
        (challenge("-5"), "too few"),
        (challenge("4096"), "last word can't be read"),
    ],
)
def test_a_malformed_word_of_a_broker_s_is_an_error_of_authentication(
    answer: Callable[[Asked], bytes], why: str
) -> None:
    def say(asked: Asked) -> bytes:
        return authenticated(b"v=a") if b"p=" in asked.body else answer(asked)

    answers = {protocol.SASL_HANDSHAKE: lambda _: HANDSHAKE, protocol.SASL_AUTHENTICATE: say}
    with Broker(answers) as broker:
        connection = Connection(access(sasl(broker, "SCRAM-SHA-256")), broker.address)
        with pytest.raises(KafkaException, match=why) as caught:
            connection.open(Deadline(5))
        error = caught.value.args[0]
        assert error.code() == KafkaError._AUTHENTICATION and str(broker.address[1]) in error.str()


def test_a_broker_that_does_not_let_us_in_is_asked_once_and_told_of() -> None:
    refused = (
        struct.pack(">h", 58) + protocol.text("no such user") + protocol.blob(b"") + struct.pack(">q", 0)
    )
    answers = {protocol.SASL_HANDSHAKE: lambda _: HANDSHAKE, protocol.SASL_AUTHENTICATE: lambda _: refused}
    with Broker(answers) as broker:
        reader = consumer(sasl(broker, "PLAIN"))
        events = [item for _ in range(10) for item in reader.read(0.05)]
        reader.close()
        (event,) = events
        assert isinstance(event, Event) and "no such user" in event.error.str()
        assert broker.kinds().count("SaslAuthenticate") == 1, "an account is locked by more"


def test_a_broker_that_does_not_let_us_in_keeps_nobody_from_asking_another() -> None:
    refused = struct.pack(">h", 58) + protocol.text("not yet") + protocol.blob(b"") + struct.pack(">q", 0)
    answers: dict[Any, Any] = {protocol.SASL_HANDSHAKE: lambda _: HANDSHAKE}
    with (
        Broker({**answers, protocol.SASL_AUTHENTICATE: lambda _: refused}) as bad,
        Broker({**answers, protocol.SASL_AUTHENTICATE: lambda _: authenticated(b"")}) as sound,
    ):
        sound.answers = {**sound.answers, protocol.METADATA: metadata({1: sound.address}, "orders", [1])}
        for given, message in (((bad, sound), ""), ((bad,), "not yet")):
            config = sasl(bad, "PLAIN") | servers(*(one.address for one in given), nobody())
            brokers = BrokerConnections(config)
            with contextlib.ExitStack() as expected:
                if message:
                    expected.enter_context(pytest.raises(KafkaException, match=message))
                brokers.describe(["orders"], Deadline(5))
            brokers.close()


def test_a_connection_authenticates_again_before_its_session_ends() -> None:
    answers = {
        protocol.SASL_HANDSHAKE: lambda _: HANDSHAKE,
        protocol.SASL_AUTHENTICATE: lambda _: authenticated(b"", life_ms=500),
    }
    with Broker(answers) as broker:
        broker.answers = {
            **answers,
            protocol.METADATA: metadata({1: broker.address}, "orders", [1]),
            FETCH: one_by_one(0),
        }
        reader = consumer(sasl(broker, "PLAIN"))

        def kinds() -> list[str]:
            numbers = {asked.connection for asked in [*broker.asked] if asked.api is FETCH}
            assert len(numbers) <= 1
            return [asked.api.name for asked in [*broker.asked] if asked.connection in numbers]

        read(reader, 30, until=lambda: kinds().count("SaslAuthenticate") >= 3)
        reader.close()
        found = kinds()
        again = [i for i, kind in enumerate(found) if kind == "SaslHandshake"]
        assert len(again) >= 3 and all(found[i + 1] == "SaslAuthenticate" for i in again)
