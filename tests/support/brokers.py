"""What tests do to a cluster, each in one bounded call: make topics, write, read everything, delete; asserts
nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

Headers = list[tuple[str, bytes | None]]
T = TypeVar("T")

_TIMEOUT_S = 30.0
_ATTEMPT_S = 3.0
"""How long one request for offsets may take: a leader that has just died answers none, the next attempt asks
the next leader."""
_LEADER_CHANGES = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._TIMED_OUT,
)
"""What is answered while brokers and client have not all heard of the same leader."""
_POLL_S = 0.05


@dataclass(frozen=True)
class Record:
    """A record to write. `timestamp` is in ms since the epoch; None: now."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    timestamp: int | None = None
    headers: Headers | None = None


class Seen(NamedTuple):
    """A record as a consumer sees it. `timestamp_type`: TIMESTAMP_CREATE_TIME or
    TIMESTAMP_LOG_APPEND_TIME."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp_type: int
    timestamp: int


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    replication_factor: int = -1,
) -> str:
    """Make a topic, wait until each partition has a leader, return its id as Kafka's tools print it."""
    return _create(
        bootstrap,
        NewTopic(name, partitions, replication_factor=replication_factor, config=dict(config or {})),
    )


def create_on_nodes(bootstrap: str, name: str, *replicas: list[int], **config: str) -> str:
    """The same, of a topic whose partitions have these replicas, and which takes records with one that is in
    sync. Waits where a node that was hurt before is not let in again yet."""
    wanted = {"retention.ms": "-1", "min.insync.replicas": "1", **config}
    return _create(bootstrap, NewTopic(name, len(replicas), replica_assignment=list(replicas), config=wanted))


def _create(bootstrap: str, topic: NewTopic) -> str:
    admin, name = _admin(bootstrap), topic.topic
    _answer(
        lambda: admin.create_topics([topic], request_timeout=_TIMEOUT_S)[name].result(_TIMEOUT_S),
        (KafkaError.INVALID_REPLICA_ASSIGNMENT,),
    )

    def led() -> bool:
        found = admin.list_topics(name, timeout=_TIMEOUT_S).topics[name].partitions
        return len(found) == topic.num_partitions and all(
            p.leader >= 0 and p.error is None for p in found.values()
        )

    wait_until(led, f"the partitions of {name} to have leaders")
    # Whichever node answers may not have heard of the topic yet.
    return _answer(lambda: topic_id(bootstrap, name), (KafkaError.UNKNOWN_TOPIC_OR_PART,))


def topic_id(bootstrap: str, name: str) -> str:
    """The topic's id as Kafka's tools print it. Raises KafkaException where there is no such topic."""
    admin = _admin(bootstrap)
    described = admin.describe_topics(TopicCollection([name]), request_timeout=_TIMEOUT_S)
    # The client prints the other base64 alphabet than Kafka's tools.
    return str(described[name].result(_TIMEOUT_S).topic_id).translate({ord("+"): "-", ord("/"): "_"})


def topics(bootstrap: str) -> set[str]:
    """The names of all topics, internal ones included."""
    return set(_admin(bootstrap).list_topics(timeout=_TIMEOUT_S).topics)


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic and wait until its name is free."""
    admin = _admin(bootstrap)
    admin.delete_topics([name], request_timeout=_TIMEOUT_S)[name].result(_TIMEOUT_S)
    wait_until(lambda: name not in admin.list_topics(timeout=_TIMEOUT_S).topics, f"{name} to be gone")


def delete_records(bootstrap: str, topic: str, before: Mapping[int, int]) -> None:
    """Delete the records below an offset; `before` maps partition to offset (-1: all there are)."""
    partitions = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
    admin = _admin(bootstrap)
    for done in admin.delete_records(partitions, request_timeout=_TIMEOUT_S).values():
        done.result(_TIMEOUT_S)


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[Record],
    transaction: str | None = None,
    transactional_id: str = "tests",
    config: Mapping[str, str | int] | None = None,
) -> list[int]:
    """Write records in order and return the offset of each.

    transaction: None writes without one, "commit" and "abort" within one that ends so; aborted records take
    up offsets too. Raises KafkaException for the first record that was not written.
    """
    if transaction not in (None, "commit", "abort"):
        raise ValueError(f"transaction is None, 'commit' or 'abort', not {transaction!r}")
    settings: dict[str, str | int] = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": "true",
        "linger.ms": 5,
    }
    if transaction is not None:
        # 100 ms by default, waited out whenever the coordinator is still at the last transaction.
        settings |= {"transactional.id": transactional_id, "retry.backoff.ms": 10}
    producer = Producer(settings | dict(config or {}))
    if transaction is not None:
        producer.init_transactions(_TIMEOUT_S)
        producer.begin_transaction()
    offsets = _send(producer, topic, records)
    if transaction == "commit":
        producer.commit_transaction(_TIMEOUT_S)
    elif transaction == "abort":
        producer.abort_transaction(_TIMEOUT_S)
    return offsets


def _send(producer: Producer, topic: str, records: Iterable[Record]) -> list[int]:
    offsets: dict[int, int] = {}
    errors: list[KafkaError] = []

    def delivered(number: int) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None:
                errors.append(error)
            elif offset is not None:
                offsets[number] = offset

        return report

    count = 0
    for number, record in enumerate(records):
        count += 1
        extra: dict[str, Any] = {} if record.timestamp is None else {"timestamp": record.timestamp}
        if record.headers is not None:
            extra["headers"] = record.headers
        while True:
            try:
                producer.produce(
                    topic, record.value, record.key, record.partition, on_delivery=delivered(number), **extra
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(_TIMEOUT_S)
    if errors:
        raise KafkaException(errors[0])
    if left or len(offsets) != count:
        raise TimeoutError(
            f"{count - len(offsets)} of {count} records for {topic} were not acknowledged in time"
        )
    return [offsets[number] for number in range(count)]


def end_offsets(bootstrap: str, topic: str, isolation: str = "read_committed") -> dict[int, int]:
    """The end of each partition: the last stable offset, or the high watermark with read_uncommitted."""
    return _offsets(bootstrap, topic, OffsetSpec.latest(), isolation)


def start_offsets(bootstrap: str, topic: str) -> dict[int, int]:
    """The log start of each partition."""
    return _offsets(bootstrap, topic, OffsetSpec.earliest(), "read_uncommitted")


def _offsets(bootstrap: str, topic: str, spec: OffsetSpec, isolation: str) -> dict[int, int]:
    admin = _admin(bootstrap)
    level = (
        IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
    )

    def ask() -> dict[int, int]:
        # Asked each time: it brings the client's leaders up to date.
        partitions = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
        asked = {TopicPartition(topic, partition): spec for partition in partitions}
        answers = admin.list_offsets(asked, isolation_level=level, request_timeout=_ATTEMPT_S)
        found = {at.partition: int(answer.result(_TIMEOUT_S).offset) for at, answer in answers.items()}
        if min(found.values(), default=0) < 0:
            # What the client tells, without an error, of a leader that did not answer in time.
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return found

    return _answer(ask, _LEADER_CHANGES)


def read_all(
    bootstrap: str, topic: str, isolation: str = "read_committed", timeout_s: float = _TIMEOUT_S
) -> list[list[Seen]]:
    """Every record of a topic up to its end at the time of the call, as one list for each partition.

    Raises TimeoutError when the ends are not reached in time, KafkaException for anything else.
    """
    ends = end_offsets(bootstrap, topic, isolation)
    found: list[list[Seen]] = [[] for _ in ends]
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests.read-all",
            "isolation.level": isolation,
            "enable.auto.commit": "false",
            "auto.offset.reset": "error",
            # The end of a partition may hold no record (markers, aborted tails): then only this event tells
            # of it.
            "enable.partition.eof": "true",
            "fetch.wait.max.ms": 50,
        }
    )
    deadline = time.monotonic() + timeout_s
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
        waiting = set(ends)
        while waiting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"partitions {sorted(waiting)} of {topic} were not read to {ends} in time")
            for message in consumer.consume(1000, 0.1):
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                if (error := message.error()) is None:
                    if offset < ends[partition]:
                        found[partition].append(_seen(message))
                    if offset + 1 >= ends[partition]:
                        waiting.discard(partition)
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                elif offset >= ends[partition]:
                    waiting.discard(partition)
    finally:
        consumer.close()
    return found


def _seen(message: Message) -> Seen:
    kind, timestamp = message.timestamp()
    offset = message.offset()
    assert offset is not None
    return Seen(offset, message.key(), message.value(), message.headers(), kind, timestamp)  # type: ignore[arg-type]


def member(bootstrap: str, group: str, *topics: str, **more: Any) -> Consumer:
    """A consumer as people write them: subscribed, committing what it has worked on; `more` of its
    properties."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "fetch.wait.max.ms": 50,
            **more,
        }
    )
    consumer.subscribe(list(topics))
    return consumer


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = _TIMEOUT_S) -> T:
    """Look until `condition()` is something true, and return that. Raises TimeoutError naming `what`.

    Between two looks it rests four times as long as the last one took, 50 ms at least: who waits is not to
    take the processors from those whom it waits for.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if found := condition():
            return found
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s in vain for {what}")
        time.sleep(min(max(_POLL_S, 4 * (now - began)), 1.0))


def _answer(ask: Callable[[], T], passing: Collection[int]) -> T:
    """Ask again while the answer is one of the errors that pass. Raises KafkaException."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in passing or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


@lru_cache(maxsize=8)
def _admin(bootstrap: str) -> AdminClient:
    """One for all questions to a cluster: to make one costs more than most of them."""
    # log_level 0: that brokers which a test has stopped refuse connections is no news.
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
