"""Kafka clients as this project uses them: configuration that correctness needs, bounded calls, retries. No
protocol here."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar, cast

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from common import ports
from common.config.client_properties import COMPRESSION
from common.errors import SettingsError
from common.kafka.errors import future_result, retrying
from common.kafka.wire import oauth_tokens
from common.log_folding import Folding
from common.ports import Deadline

log = logging.getLogger(__name__)
client_log = logging.getLogger("librdkafka")
client_log.addFilter(lambda record: record.levelno >= logging.ERROR or client_log.isEnabledFor(logging.DEBUG))
client_log.addFilter(Folding())

CONNECT_S = 5.0
_BASE = {"socket.keepalive.enable": True, "reconnect.backoff.ms": 20}
"""Of every client, where its user says nothing else. librdkafka allows itself half of `reconnect.backoff.ms`
between two new connections, the first one included: with its 100 ms, 50 ms passed between a client's
bootstrap and its first connection to a leader. The pause between attempts at a broker that is gone grows to
the same ten seconds from either."""

FOLLOWER_WAIT_MS = 5_000

T = TypeVar("T")
Config = Mapping[str, Any]
ProducedHeaders = list[tuple[str, str | bytes | None]]
"""As the client types them: a list, so one of (str, bytes) pairs is none without a cast."""


class Received(Protocol):
    """A message as a consumer hands it out.

    The client calls optional whatever a Message made by hand may leave out. A record, and the end of a
    partition, come with topic, partition and offset; only an error that concerns no partition has none of
    them. Lists are cast, as a whole: thousands of messages a second allow no call for each.
    """

    def __len__(self) -> int: ...
    def error(self) -> KafkaError | None: ...
    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def timestamp(self) -> tuple[int, int]: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def leader_epoch(self) -> int | None: ...


@contextlib.contextmanager
def making(what: str, config: Config) -> Iterator[None]:
    """A client is made: where the library refuses its properties, raises SettingsError. (Most of that is
    found before: common/kafka/client/cluster_check.py.)"""
    try:
        yield
    except KafkaException as error:
        words = error.args[0].str().strip() if isinstance(error.args[0], KafkaError) else str(error)
        raise SettingsError(
            f"the {what} of {config.get('bootstrap.servers')} can't be made: {words}"
        ) from None


def consumer(config: Config, **own: Any) -> Consumer:
    """A consumer that never commits by itself and never jumps: out-of-range positions are errors.

    `own` are properties in Python spelling (`_` for `.`) that the caller needs and that win over the user's.
    """
    base = {
        **_BASE,
        "group.id": "verbatim",
        "fetch.wait.max.ms": 500,
        "fetch.error.backoff.ms": 50,
        "queued.max.messages.kbytes": 32768,
        "fetch.queue.backoff.ms": 5,
        "topic.metadata.refresh.interval.ms": 30000,
    }
    fixed = {"enable.auto.commit": False, "enable.auto.offset.store": False, "auto.offset.reset": "error"}
    with making("consumer", config):
        return ports.Consumer(
            {**base, **oauth_tokens.for_library(config), **fixed, **_spelled(own)}, logger=client_log
        )


def follower(config: Config, queue_kbytes: int) -> Consumer:
    """A consumer that follows one partition in which little happens.

    Its requests wait long at the broker, which answers as soon as there is a record. Asked twice a second, as
    by default, a broker spends a third of a core on what fifty links follow while nothing happens.
    """
    return consumer(config, queued_max_messages_kbytes=queue_kbytes, fetch_wait_max_ms=FOLLOWER_WAIT_MS)


def reader(config: Config, **own: Any) -> Consumer:
    """A consumer of committed records that reads up to an end that is there: it never waits for more, and
    hears of each partition's end."""
    return consumer(
        config,
        isolation_level="read_committed",
        enable_partition_eof=True,
        fetch_wait_max_ms=20,
        **own,
    )


def producer(config: Config, **own: Any) -> Producer:
    """A producer that is idempotent, leaves no gap behind a failed message, and never gives a message up by
    itself.

    `message.timeout.ms=0` matters: librdkafka's gapless guarantee leaves out messages that timed out.
    """
    base = {
        **_BASE,
        "linger.ms": 5,
        "compression.type": COMPRESSION,
        "message.max.bytes": 1_000_000_000,
        "queue.buffering.max.kbytes": 65536,
        "queue.buffering.max.messages": 1_000_000,
        # batch.size alone bounds a batch.
        "batch.num.messages": 1_000_000,
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 500,
    }
    fixed = {
        "enable.idempotence": True,
        "acks": "all",
        "enable.gapless.guarantee": True,
        "message.timeout.ms": 0,
    }
    with making("producer", config):
        return ports.Producer(
            {**base, **oauth_tokens.for_library(config), **fixed, **_spelled(own)}, logger=client_log
        )


def connect(client: Producer | Consumer, topic: str, deadline: Deadline) -> None:
    """Wait until a client is connected, if it can be, by asking for a topic that is there. For idempotent
    producers, and for consumers that are not assigned their partitions as soon as they are made.

    librdkafka (2.16) asks for its producer id at once, and where no connection is up at that moment, again
    after half a second: so long took the first record of nearly every producer. The second question is not
    answered through the connection to a bootstrap server, which the client gives up after the first; until
    another one is up, an id can't be asked for. A consumer looks once a second which topics it has been
    assigned and has not heard of: where it was connected before, it often fetches nothing until then.
    """
    with contextlib.suppress(KafkaException):
        for _ in range(2):
            client.list_topics(topic, timeout=deadline.left(CONNECT_S))


def read(client: Consumer, timeout_s: float, most: int) -> list[Received]:
    """Wait for a message, and take with it what has come already, up to `most` more.

    `consume` alone would wait for all of them or the whole time-out.
    """
    first = client.poll(timeout_s)
    return [] if first is None else cast("list[Received]", [first, *client.consume(most, 0)])


def admin(config: Config) -> AdminClient:
    """An admin client that finds its way again, whatever becomes of the brokers
    (common/ports/reconnecting_admin.py), shared by all in this process that are given the same.
    """
    with making("admin client", config):
        return cast("AdminClient", ports.shared_admin(config, admin_config, logger=client_log))


def admin_config(config: Config) -> dict[str, Any]:
    """What an admin client needs to find its way when the broker that it takes for the controller is gone.

    Descriptions are asked of the controller that the last metadata named, which with KRaft is any broker.
    When that one dies, the client waits for it to come back until its metadata is renewed: after five minutes
    by default, and an idle client has no other reason to.
    """
    return {**_BASE, "topic.metadata.refresh.interval.ms": 3000, **oauth_tokens.for_library(config)}


def found_offset(offset: int) -> int:
    """An offset as the admin client tells it, if it is one; -1 is, where a timestamp was asked for.

    While a partition has no leader, the client's answer may be OFFSET_INVALID instead of an error: taken for
    a log's end, a sound log would look truncated. Raises KafkaException, a retriable one.
    """
    if offset < -1:
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    return offset


def watermarks(client: AdminClient, topic: str, partition: int, deadline: Deadline) -> tuple[int, int]:
    """Log start and high watermark of a partition, asked of its leader now.

    Through the admin client, since a consumer's question would wait behind its own long-polling fetches.
    """
    at = TopicPartition(topic, partition)

    def ask(timeout: float) -> tuple[int, int]:
        # A client that has not heard of the topic yet may sit for one to three seconds before it asks
        # (librdkafka 2.16, one try in eight); one that has described it asks at once.
        described = client.describe_topics(TopicCollection([topic]), request_timeout=timeout)[topic]
        future_result(described, timeout + 1)
        asked = [
            client.list_offsets({at: spec}, request_timeout=timeout)[at]
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        ]
        low, high = (found_offset(future_result(future, timeout + 1).offset) for future in asked)
        return low, high

    return retrying(f"reading the watermarks of {topic}-{partition}", ask, deadline)


def _spelled(own: Mapping[str, Any]) -> dict[str, Any]:
    # Callbacks are not librdkafka's but the Python client's, and spelled so.
    return {name if name.endswith("_cb") else name.replace("_", "."): value for name, value in own.items()}
