"""Reads what `verbatim verify` compares: records, and what clusters say of topics. Judges nothing, and takes
no code for frames or state from the applications it checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from common.errors import KafkaTimeout, VerbatimError
from common.kafka.errors import future_result, retrying
from common.kafka.wire import oauth_tokens
from common.ports import Deadline
from verbatim.verify.comparison import Batch, Judge, as_it_is
from verbatim.verify.control import plain_id
from verbatim.verify.provenance import Prepare, every

if TYPE_CHECKING:
    from common.config.settings import Settings

T = TypeVar("T")
_BATCH_RECORDS = 5_000
_BATCH_BYTES = 8 << 20
_VISIBLE_S = 10.0


class LogStartMoved(VerbatimError):
    """The log start passed the offset that was to be read next: retention was quicker. Begin the partition
    anew."""


@dataclass
class TopicState:
    """`retention_ms`: None where nothing is deleted by age."""

    topic_id: str
    partitions: int
    compacted: bool
    deletes: bool
    retention_ms: int | None = None


class Cluster:
    """One cluster with an admin client and a consumer that reads one partition range at a time, without a
    group."""

    def __init__(self, settings: Settings, which: Literal["source", "destination"], timeout_s: float) -> None:
        self.which = which
        self._timeout_s = timeout_s
        self._admin = AdminClient(oauth_tokens.for_library(settings.client_config(which, "admin")))
        config = oauth_tokens.for_library(settings.client_config(which, "consumer"))
        config.setdefault("group.id", f"{settings.application_name}.verify")
        # The next partition is not read before the last one's long poll has ended.
        config.setdefault("fetch.wait.max.ms", 50)
        config |= {
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # A truncated log must show as an error, not as a silent jump.
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 32_768,
        }
        self._consumer = Consumer(config)
        self.on_records: Callable[[int], None] = lambda count: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _call(self, what: str, call: Callable[[float], T]) -> T:
        """What is asked; again, where a leader has just moved or a broker is away."""
        try:
            return retrying(f"{self.which} cluster: {what}", call, Deadline(self._timeout_s))
        except KafkaException as error:
            raise VerbatimError(f"{self.which} cluster: {what}: {error}") from error

    def cluster_id(self) -> str:
        # Not DescribeCluster: what a broker says that has just started aborts the process (librdkafka 2.16).
        found = self._call(
            "asking for the cluster id", lambda timeout: self._admin.list_topics(timeout=timeout)
        )
        return str(found.cluster_id)

    def topic_names(self) -> list[str]:
        metadata = self._call("listing topics", lambda timeout: self._admin.list_topics(timeout=timeout))
        return sorted(metadata.topics)

    def topic(self, name: str) -> TopicState | None:
        """What the cluster says of a topic; None when there is none."""
        resource = ConfigResource(ResourceType.TOPIC, name)

        def describe(timeout: float) -> Any:
            future = self._admin.describe_topics(TopicCollection([name]), request_timeout=timeout)[name]
            try:
                return future_result(future, timeout + 1)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
                raise

        def configuration(timeout: float) -> Any:
            return future_result(
                self._admin.describe_configs([resource], request_timeout=timeout)[resource], timeout + 1
            )

        if (described := self._call(f"describing topic {name}", describe)) is None:
            return None
        found = self._call(f"reading the configuration of {name}", configuration)
        policy, retention_ms = found["cleanup.policy"].value, int(found["retention.ms"].value)
        return TopicState(
            plain_id(str(described.topic_id)),
            len(described.partitions),
            "compact" in policy,
            "delete" in policy,
            retention_ms if "delete" in policy and retention_ms >= 0 else None,
        )

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """(log start, last stable offset): what a read-committed reader may see now."""
        return self._offset(topic, partition, OffsetSpec.earliest()), self._offset(
            topic, partition, OffsetSpec.latest()
        )

    def settled(self, topic: str, partition: int, end: int) -> tuple[int, int]:
        """The same, once all below `end` may be seen: the markers of one transaction reach the partitions one
        after the other, and the mappings can be visible first."""
        give_up = time.monotonic() + _VISIBLE_S
        while (found := self.bounds(topic, partition))[1] < end and time.monotonic() < give_up:
            time.sleep(0.2)
        return found

    def high_watermark(self, topic: str, partition: int) -> int:
        """The end of the log, open transactions and all."""
        return self._offset(topic, partition, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)

    def _offset(
        self,
        topic: str,
        partition: int,
        which: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> int:
        at = TopicPartition(topic, partition)

        def ask(timeout: float) -> int:
            asked = self._admin.list_offsets({at: which}, isolation_level=isolation, request_timeout=timeout)
            offset = int(future_result(asked[at], timeout + 1).offset)
            if offset < 0:
                # The client tells OFFSET_INVALID, and no error, where a leader did not answer in time: a log
                # would pass for an empty one.
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "its leader did not answer"))
            return offset

        return self._call(f"offsets of {topic}/{partition}", ask)

    def messages(self, topic: str, partition: int, begin: int, end: int) -> Iterator[list[Message]]:
        """The records at offsets [begin, end), in batches of at most a few megabytes."""
        if begin >= end:
            return
        consumer = self._consumer
        consumer.assign([TopicPartition(topic, partition, begin)])
        wanted, heard = 500, time.monotonic()
        while True:
            messages: list[Message] = []
            ended = False
            # consume(n, timeout) would wait for n messages or the whole time-out, at the end of each
            # partition.
            first = consumer.poll(0.5)
            for message in [] if first is None else [first, *consumer.consume(wanted, 0)]:
                error = message.error()
                if error is not None:
                    ended = self._ended(error, message, end) or ended
                elif message.topic() != topic or message.partition() != partition:
                    continue
                elif (message.offset() or 0) >= end:
                    ended = True
                    break
                else:
                    messages.append(message)
            if messages:
                heard = time.monotonic()
                size = sum(len(m) for m in messages) // len(messages) + 64
                wanted = max(1, min(_BATCH_RECORDS, _BATCH_BYTES // size))
                self.on_records(len(messages))
                yield messages
            if ended:
                break
            if time.monotonic() - heard > self._timeout_s:
                raise KafkaTimeout(
                    f"{self.which} cluster: {topic}/{partition}: nothing read for {self._timeout_s:g} s before offset {end}"
                )
        consumer.unassign()

    def _ended(self, error: KafkaError, message: Message, end: int) -> bool:
        if error.code() == KafkaError._PARTITION_EOF:
            # The end of the log may lie behind markers that are no records.
            return (message.offset() or 0) >= end
        where = f"{self.which} cluster: {message.topic()}/{message.partition()}: "
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise LogStartMoved(where + "the log start moved while it was read")
        if error.retriable() or error.code() in (
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._RESOLVE,
        ):
            return False
        raise VerbatimError(where + error.str())

    def records(
        self,
        topic: str,
        partition: int,
        begin: int,
        end: int,
        prepare: Prepare = every,
        judge: Judge = as_it_is,
    ) -> Iterator[Batch]:
        """Offsets and digests of the records: of those that `prepare` has compared, by the headers that it
        gives, and that `judge` gives a digest."""
        for messages in self.messages(topic, partition, begin, end):
            digests = [_judged(m, prepare, judge) for m in messages]
            if any(d is None for d in digests):
                messages = [m for m, d in zip(messages, digests, strict=True) if d is not None]
            if messages:
                yield [m.offset() for m in messages], [d for d in digests if d is not None]  # type: ignore[misc]


def _judged(message: Message, prepare: Prepare, judge: Judge) -> bytes | None:
    wanted, headers = prepare(message.headers())  # type: ignore[arg-type]
    if not wanted:
        return None
    return judge(message.offset(), _timestamp_ms(message), message.key(), message.value(), headers)  # type: ignore[arg-type]


def _timestamp_ms(message: Message) -> int:
    """What Kafka has of a record. The client says 0, and of no type, where a record of an old format has
    none, which is -1."""
    kind, ms = message.timestamp()
    return -1 if kind == TIMESTAMP_NOT_AVAILABLE else ms
