"""Whole record batches to and from real brokers: the producer of transactions, the consumer, and what travels
from one to the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from common.kafka.wire import batch_consumer, batch_runs
from common.kafka.wire.batch_consumer import BatchConsumer, Event
from common.kafka.wire.batch_producer import BatchProducer
from common.kafka.wire.batch_runs import BatchRun, Found
from common.kafka.wire.chunks import Chunk
from common.kafka.wire.record_batch import CODECS, BatchHeader, decode
from common.kafka.wire.record_encoder import encode_records
from common.kafka.wire.records import encode_rows
from tests.conftest import Kafka, Names
from tests.faults.rounds.proxy import END_TXN, Proxy, Rule
from tests.faults.rounds.proxy import Connection as Through
from tests.support.brokers import Record, create_topic, delete_topic, end_offsets, produce, read_all, topic_id
from tests.support.harness import Link, assert_copied, eventually

ALL = dict.fromkeys(CODECS.values(), 1 << 31)
T = 1_700_000_000_000
FOREVER = {"retention.ms": "-1"}


def records(values: list[bytes]) -> list[Any]:
    count = len(values)
    rows = encode_rows(range(count), [T + i for i in range(count)], [1] * count, [None] * count, values, None)
    return list(encode_records(rows, 1 << 20))


def producer(at: str, names: Names, **config: str) -> BatchProducer:
    made = BatchProducer({"bootstrap.servers": at, **config}, f"{names.link}.0", 60_000, f"{names.link}.g")
    made.init_transactions(30)
    return made


def send(to: BatchProducer, topic: str, values: list[bytes], partition: int = 0) -> list[tuple[Any, int]]:
    told: list[tuple[Any, int]] = []
    for some in records(values):
        to.produce_batch(topic, partition, some, lambda error, offset: told.append((error, offset)))
    return told


def seen(at: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_all(at, topic)[0]]


def assert_seen(at: str, topic: str, values: list[bytes]) -> None:
    """A commit is answered before its markers are written."""
    eventually(lambda: len(seen(at, topic)) >= len(values), "what was committed")
    assert seen(at, topic) == values


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_committed_is_read_by_other_clients_and_what_is_aborted_is_not(
    source: Kafka, names: Names, codec: str
) -> None:
    """Promise: batches of each codec pass the broker's checks, and a consumer of the client library's reads
    what is committed, once."""
    at, topic = source.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER)
    values = [b"value %d " % i * 20 for i in range(3000)]
    to = producer(at, names, **{"compression.type": codec})
    to.begin_transaction()
    first = send(to, topic, values[:1000])
    assert to.flush(10) == 0
    assert first == [(None, 0)]
    to.commit_transaction(10)
    to.begin_transaction()
    send(to, topic, [b"never"] * 500)
    to.flush(10)
    to.abort_transaction(10)
    to.begin_transaction()
    second = send(to, topic, values[1000:])
    to.commit_transaction(10)
    assert second == [(None, 1000 + 1 + 500 + 1)], "behind two markers"
    to.begin_transaction()
    to.commit_transaction(10)  # nothing in it
    to.close()
    assert_seen(at, topic, values)


def test_offsets_are_committed_with_the_transaction_or_not_at_all(source: Kafka, names: Names) -> None:
    """Promise: the group's offset is that of the last transaction that was committed."""
    at, topic = source.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER)
    to = producer(at, names)
    for number, commit in ((5, True), (9, False)):
        to.begin_transaction()
        to.send_offsets_to_transaction([TopicPartition(topic, 0, number)], 10)
        (to.commit_transaction if commit else to.abort_transaction)(10)
    to.close()
    admin = AdminClient({"bootstrap.servers": at})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(f"{names.link}.g")])
    (found,) = asked[f"{names.link}.g"].result(10).topic_partitions
    assert (found.topic, found.offset) == (topic, 5)


def test_a_successor_fences_and_nothing_more_is_taken_from_its_predecessor(
    source: Kafka, names: Names
) -> None:
    """Promise: whoever has had its id taken can neither produce nor commit, and what it had under way is
    gone."""
    at, topic = source.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER)
    old = producer(at, names)
    old.begin_transaction()
    send(old, topic, [b"under way"])
    assert old.flush(10) == 0
    new = producer(at, names)
    told = send(old, topic, [b"late"])
    old.flush(10)
    assert told[0][0].code() == KafkaError.INVALID_PRODUCER_EPOCH
    with pytest.raises(KafkaException) as caught:
        old.commit_transaction(10)
    assert caught.value.args[0].fatal()
    with pytest.raises(KafkaException):
        old.begin_transaction()
    new.begin_transaction()
    send(new, topic, [b"new"])
    new.commit_transaction(10)
    new.close()
    assert_seen(at, topic, [b"new"])


def test_what_a_broker_refuses_is_told_by_topic_and_ends_the_transaction(source: Kafka, names: Names) -> None:
    """Promise: a batch that is too large for its topic is reported under its code, and what stood behind it
    is not taken either."""
    at, topic = source.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER | {"max.message.bytes": "1000"})
    to = producer(at, names, **{"compression.type": "none"})
    to.begin_transaction()
    told = send(to, topic, [b"v" * 2000]) + send(to, topic, [b"small"])
    told = send(to, topic, [b"w" * 2000])
    to.flush(10)
    assert told[0][0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert f"{topic}-0" in told[0][0].str()
    to.abort_transaction(10)
    to.close()
    assert_seen(at, topic, [])


def test_a_topic_that_comes_later_is_found(source: Kafka, names: Names) -> None:
    at = source.bootstrap_servers
    to = producer(at, names)
    for number in range(2):
        topic = names.topic(f"t{number}")
        create_topic(at, topic, config=FOREVER)
        to.begin_transaction()
        told = send(to, topic, [b"x"])
        to.commit_transaction(30)
        assert told == [(None, 0)]
    to.close()


def test_connections_that_a_broker_closed_meanwhile_cost_no_transaction(source: Kafka, names: Names) -> None:
    """Promise: what was closed between two transactions, as brokers do with idle connections, is noticed
    before the next one begins."""
    at, topic = source.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER)
    to = producer(at, names)
    for value in (b"before", b"after"):
        to.begin_transaction()
        send(to, topic, [value])
        to.commit_transaction(10)
        for connection in to._brokers._connections.values():
            # As seen from here, that is what a broker's closing looks like.
            assert connection._socket is not None
            connection._socket.shutdown(2)
    to.close()
    assert_seen(at, topic, [b"before", b"after"])


class AnswerLost(Rule):
    """The broker ends a transaction, and the connection breaks before it can say so."""

    async def request(self, connection: Through, api: int, body: bytes) -> bool:
        if api != END_TXN or self.hits:
            return True
        self.hits += 1
        connection.reset()
        return True


def test_a_commit_whose_answer_is_lost_ends_the_producer(behind_a_proxy: Proxy, names: Names) -> None:
    """Promise: nothing is asked twice. Whether it was committed is for the next owner to find out, from the
    mappings."""
    at, topic = behind_a_proxy.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER)
    to = producer(at, names)
    to.begin_transaction()
    send(to, topic, [b"x"])
    to.flush(10)
    rule = AnswerLost()
    behind_a_proxy.add(rule)
    with pytest.raises(KafkaException):
        to.commit_transaction(5)
    assert rule.hits == 1
    for call in (to.begin_transaction, lambda: to.abort_transaction(1), lambda: send(to, topic, [b"y"])):
        with pytest.raises(KafkaException):
            call()
    assert rule.hits == 1, "and no other end was asked for"
    new = producer(at, names)
    new.begin_transaction()
    send(new, topic, [b"z"])
    new.commit_transaction(10)
    new.close()
    eventually(lambda: seen(at, topic)[-1:] == [b"z"], "what the successor has committed")


# reading


def reading(at: str, topic: str, offset: int = 0, codecs: dict[int, int] = ALL) -> BatchConsumer:
    made = BatchConsumer({"bootstrap.servers": at, "fetch.wait.max.ms": 100}, codecs)
    made.assign([(topic, topic_id(at, topic), 0, offset, None)])
    return made


def read(consumer: BatchConsumer, until: int, within_s: float = 20.0) -> list[Any]:
    """Read up to a position, or to an event."""
    found: list[Any] = []
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for item in consumer.read(0.1):
            found.append(item)
            if isinstance(item, Event) or item.next >= until:
                return found
    raise AssertionError(f"not read within {within_s} s: {found}")


def values(items: list[Any]) -> list[bytes | None]:
    out: list[bytes | None] = []
    for item in items:
        assert isinstance(item, Chunk), item
        if item.rows is not None:
            out += item.rows.column(4).to_pylist()
        out += [r.value for _, batch in item.wholes for r in decode(bytes(batch))]
    return out


def batches_of(at: str, topic: str, until: int) -> list[tuple[BatchHeader, bytes]]:
    """The batches of a partition as they lie there, from their records on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_consumer, "WHOLE_BYTES", 1)
        consumer = reading(at, topic)
        items = read(consumer, until)
        consumer.close()
    return [(h, bytes(b)[61:]) for item in items for h, b in item.wholes]


def test_committed_records_are_read_from_any_position_and_no_others(
    source: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: of transactions that interleave, those that are committed are read, in order, whole or not,
    wherever one begins."""
    at, topic = source.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER)
    good, bad = (Producer({"bootstrap.servers": at, "transactional.id": names.link + x}) for x in "gb")
    for each in (good, bad):
        each.init_transactions(30)
    written: list[bytes] = []
    for number in range(6):
        for each in (good, bad):
            each.begin_transaction()
        for step in range(4):
            for each in (good, bad) if step % 2 else (bad, good):
                value = b"%s %d.%d" % (b"good" if each is good else b"bad", number, step)
                each.produce(topic, value, partition=0)
                each.flush(10)
                if each is good:
                    written.append(value)
        good.commit_transaction(10)
        bad.abort_transaction(10)
    end = 6 * (8 + 2)
    # The coordinator answers before its markers are in the log.
    eventually(lambda: end_offsets(at, topic) == {0: end}, "the last markers")
    everything = read_all(at, topic)[0]
    assert [r.value for r in everything] == written
    for whole_bytes in (1, 1 << 20):
        monkeypatch.setattr(batch_consumer, "WHOLE_BYTES", whole_bytes)
        for offset in (0, 1, 7, 13, 30, end - 3):
            consumer = reading(at, topic, offset)
            got = values(read(consumer, end))
            consumer.close()
            assert got == [r.value for r in everything if r.offset >= offset]


def test_an_open_transaction_is_not_passed(source: Kafka, names: Names) -> None:
    """Promise: nothing behind the last stable offset is read."""
    at, topic = source.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER)
    open_one = Producer({"bootstrap.servers": at, "transactional.id": names.link})
    open_one.init_transactions(30)
    produce(at, topic, [Record(b"before")])
    open_one.begin_transaction()
    open_one.produce(topic, b"open", partition=0)
    open_one.flush(10)
    produce(at, topic, [Record(b"behind")])
    consumer = reading(at, topic)
    assert values(read(consumer, 1)) == [b"before"]
    assert [item for _ in range(5) for item in consumer.read(0.1)] == []
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), cached=True) == (OFFSET_INVALID, 3)
    open_one.commit_transaction(10)
    assert values(read(consumer, 4)) == [b"open", b"behind"]
    consumer.close()


def test_a_topic_made_again_is_not_read_on(source: Kafka, names: Names) -> None:
    """Promise: records of a topic that was deleted and made again, in a log longer than the old one, are
    never handed out as its own (librdkafka goes on there without a word)."""
    at, topic = source.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER)
    produce(at, topic, [Record(b"old %d" % i) for i in range(5)])
    consumer = reading(at, topic)
    assert len(values(read(consumer, 5))) == 5
    delete_topic(at, topic)
    create_topic(at, topic, config=FOREVER)
    produce(at, topic, [Record(b"new %d" % i) for i in range(50)])
    (event,) = read(consumer, 50)
    assert event.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    consumer.close()


@pytest.mark.parametrize("offset", [7, 1_000_000])
def test_a_position_outside_of_the_log_is_an_event(source: Kafka, names: Names, offset: int) -> None:
    at, topic = source.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER)
    produce(at, topic, [Record(b"%d" % i) for i in range(5)])
    consumer = reading(at, topic, offset)
    (event,) = read(consumer, 1 << 40)
    assert event.error.code() == KafkaError.OFFSET_OUT_OF_RANGE
    consumer.close()


def test_a_link_hands_large_batches_on_to_the_byte(source: Kafka, target: Kafka, names: Names) -> None:
    """Promise: what a producer has compressed into a large batch arrives as it was compressed; small ones
    arrive in fewer, larger ones; each record once, in order, with an exact mapping."""
    at, to, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER)
    some = Producer(
        {"bootstrap.servers": at, "linger.ms": 5000, "batch.size": 400_000, "compression.type": "zstd"}
    )
    for i in range(3000):
        some.produce(topic, bytes((i * 7 + j * i) % 251 for j in range(300)), b"%d" % i, 0, timestamp=T + i)
    assert some.flush(30) == 0
    one_by_one = Producer({"bootstrap.servers": at, "linger.ms": 0})
    for i in range(50):
        one_by_one.produce(topic, b"small %d" % i, None, 0, timestamp=T)
        assert one_by_one.flush(10) == 0
    link = Link(at, to, names.link, topic)
    assert link.copy() == (0, 0)
    assert_copied(link, topic)
    there = batches_of(at, topic, 3050)
    arrived = batches_of(to, topic, 3050)
    large = [(h.count, body) for h, body in there if h.size >= batch_consumer.WHOLE_BYTES]
    assert large, "there are some"
    assert [(h.count, body) for h, body in arrived][: len(large)] == large
    assert all(h.codec == CODECS["zstd"] for h, _ in arrived[: len(large)])
    assert len(there) > len(large) + 10 and len(arrived) <= len(large) + 3


@pytest.mark.parametrize(
    ("codec", "stamped"), [*((codec, "CreateTime") for codec in CODECS), ("lz4", "LogAppendTime")]
)
def test_a_link_copies_batches_of_a_few_records(
    source: Kafka, target: Kafka, names: Names, codec: str, stamped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: what producers write that do not linger arrives as it is, many batches read at once: with keys
    and headers, null and empty, plain and in transactions that commit and abort."""
    runs: list[BatchRun] = []
    found = batch_runs.found

    def noted(*args: Any) -> Iterator[Found]:
        for at, one in found(*args):
            if isinstance(one, BatchRun):
                runs.append(one)
            yield at, one

    monkeypatch.setattr(batch_runs, "found", noted)
    at, topic = source.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER | {"message.timestamp.type": stamped})
    own = {
        "bootstrap.servers": at,
        "compression.type": codec,
        "linger.ms": 0,
        "batch.num.messages": 2,
        "queue.buffering.max.messages": 1_000_000,
    }
    plain, transactional = Producer(own), Producer(own | {"transactional.id": names.link})
    transactional.init_transactions(30)

    def write(to: Producer, first: int, count: int) -> None:
        for number in range(first, first + count):
            to.produce(
                topic,
                [b"value %d " % number * 9, b"", None][number % 7 % 3],
                [b"key %d" % number, b"", None][number % 5 % 3],
                partition=0,
                headers=[("n", b"%d" % number), ("n", None)] if number % 3 == 0 else None,
            )
            to.poll(0)
        to.flush(30)

    write(plain, 0, 800)
    for number, commit in enumerate((True, False, True)):
        transactional.begin_transaction()
        write(transactional, 1000 * (number + 1), 300)
        (transactional.commit_transaction if commit else transactional.abort_transaction)(30)
    write(plain, 5000, 800)
    link = Link(at, target.bootstrap_servers, names.link, topic)
    assert link.copy() == (0, 0)
    assert_copied(link, topic)
    assert sum(run.count for run in runs) > 1000, "read one by one, or the producer made larger batches"
