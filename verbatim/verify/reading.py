"""Reads what `verbatim verify` compares: records, offset mappings and origins. Judges nothing, and takes no
code for frames, state or mappings from the applications it checks: the JSON is parsed here by itself."""

from __future__ import annotations

import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np
import orjson
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
from common.partitions import PartitionName
from common.ports import Deadline
from verbatim.verify.comparison import Batch, Judge, as_it_is
from verbatim.verify.control import plain_id
from verbatim.verify.mappings import Column, Runs
from verbatim.verify.provenance import Prepare, every
from verbatim.verify.versions import Versions

if TYPE_CHECKING:
    from common.config.settings import Settings

T = TypeVar("T")
_BATCH_RECORDS = 5_000
_BATCH_BYTES = 8 << 20
_SPILL_RUNS = 1_000_000
_LONGEST_TRANSACTION_MS = 120_000
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


@dataclass
class PartitionMappings:
    """What the mapping records say of one source partition under its current topic id."""

    start: int | None = None
    next: int = 0
    complete: bool = False
    other_topic_ids: set[str] = field(default_factory=set)
    other_destinations: set[str] = field(default_factory=set)
    holes: list[tuple[int, int]] = field(default_factory=list)
    accepted_loss: int = 0
    versions: Versions = field(default_factory=Versions)
    columns: tuple[array[int], array[int], array[int]] = field(
        default_factory=lambda: (array("q"), array("q"), array("q"))
    )
    spilled: int = 0


class Mappings:
    """All offset mappings of a link, read once. Runs beyond a million are spilled to temporary files, and
    searched there."""

    def __init__(self, cluster_id: str, topics: dict[str, tuple[str, str]], several: bool = False) -> None:
        """`topics`: source topic → (its current topic id, its destination topic). `several`: what other
        source topics have in these destinations is wanted too."""
        self._cluster_id = cluster_id
        self._topics = topics
        self.several = several
        self._destinations = {destination for _, destination in topics.values()}
        self._others: dict[PartitionName, dict[PartitionName, str]] = {}
        """Destination topic and partition -> where the runs lie of what is not compared there -> its source
        topic."""
        self.whole_from_ms = 0.0
        """None of the records written since then has expired."""
        self._whole_from: dict[PartitionName, int] = {}
        self.with_letters: list[dict[str, Any]] = []
        """What mappings say of dead letters: their source partition, and where they are."""
        self._partitions: dict[PartitionName, PartitionMappings] = {}
        self._directory = tempfile.TemporaryDirectory(prefix="verbatim-verify-")
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    def add(self, value: bytes, first_of_log: bool, time_ms: int = 0) -> None:
        """Takes one mapping record, written at `time_ms`. `first_of_log`: the mappings partition still begins
        at its first offset."""
        m = orjson.loads(value)
        if m["cluster"] != self._cluster_id:
            return
        if "dead_letters" in m:
            self.with_letters.append({k: m[k] for k in ("topic", "topic_id", "partition", "dead_letters")})
        self._add_own(m, first_of_log)
        if self.several and m["destination_topic"] in self._destinations and m["runs"]:
            self._add_of_several(m, time_ms)

    def _add_of_several(self, m: dict[str, Any], time_ms: int) -> None:
        at, topic_id = (m["destination_topic"], m["destination_partition"]), plain_id(m["topic_id"])
        if self._topics.get(m["topic"]) != (topic_id, at[0]):
            # No topic is called so: its name has a character that none has.
            place = f"{m['topic']}~{topic_id}~{at[0]}", m["partition"]
            entry = self._partitions.setdefault(place, PartitionMappings(start=0))
            self._others.setdefault(at, {})[place] = m["topic"]
            self._add_runs(entry, m["runs"])
        if time_ms >= self.whole_from_ms:
            first = min(d for _, d, _ in m["runs"])
            self._whole_from[at] = min(first, self._whole_from.get(at, first))

    def others(self, destination: str, partition: int) -> list[Runs]:
        """The runs in a destination partition of what is no source topic any more, or goes elsewhere by
        now."""
        places = sorted(self._others.get((destination, partition), ()))
        return [runs for place in places if (runs := self.runs(*place)) is not None]

    def topics_in(self, destination: str) -> set[str]:
        """Source topics that have, or had, records in a destination, and are not compared with it."""
        return {
            topic for at, places in self._others.items() if at[0] == destination for topic in places.values()
        }

    def known_from(self, destination: str, partition: int) -> int | None:
        """The offset of a destination partition from which on no mapping has expired; None where that is not
        known."""
        return self._whole_from.get((destination, partition)) if self.whole_from_ms else 0

    def _add_own(self, m: dict[str, Any], first_of_log: bool) -> None:
        known = self._topics.get(m["topic"])
        if known is None:
            return
        place = m["topic"], m["partition"]
        entry = self._partitions.setdefault(place, PartitionMappings())
        if plain_id(m["topic_id"]) != known[0]:
            entry.other_topic_ids.add(plain_id(m["topic_id"]))
            return
        if (m["destination_topic"], m["destination_partition"]) != (known[1], m["partition"]):
            entry.other_destinations.add(f"{m['destination_topic']}/{m['destination_partition']}")
            return
        if entry.start is None:
            entry.start = m["start"]
            entry.complete = first_of_log or (m["start"] == m["next"] and not m["runs"])
        elif m["start"] != entry.next:
            entry.holes.append((entry.next, m["start"]))
        entry.next = m["next"]
        entry.accepted_loss += m.get("lost", 0)
        entry.versions.add(m["start"], m["runs"], m.get("pipeline", 0))
        self._add_runs(entry, m["runs"])

    def _add_runs(self, entry: PartitionMappings, runs: list[list[int]]) -> None:
        source, destination, length = entry.columns
        for s, d, count in runs:
            if source and source[-1] + length[-1] == s and destination[-1] + length[-1] == d:
                length[-1] += count
                continue
            source.append(s)
            destination.append(d)
            length.append(count)
            self._held += 1
        if self._held > _SPILL_RUNS:
            for each in self._partitions:
                self._spill(each)

    def _spill(self, place: PartitionName) -> None:
        entry = self._partitions[place]
        for name, column in zip("sdl", entry.columns, strict=True):
            with self._file(place, name).open("ab") as file:
                column.tofile(file)
        entry.spilled += len(entry.columns[0])
        self._held -= len(entry.columns[0])
        entry.columns = array("q"), array("q"), array("q")

    def _file(self, place: PartitionName, column: str) -> Path:
        return Path(self._directory.name) / f"{place[0]}.{place[1]}.{column}"

    def of(self, topic: str, partition: int) -> PartitionMappings:
        return self._partitions.get((topic, partition), PartitionMappings())

    def runs(self, topic: str, partition: int) -> Runs | None:
        entry = self.of(topic, partition)
        if entry.start is None:
            return None
        place = topic, partition
        if entry.spilled:
            self._spill(place)
            loaded: Iterable[Column] = (
                np.memmap(self._file(place, c), dtype=np.int64, mode="r") for c in "sdl"
            )
        else:
            loaded = (np.frombuffer(column, dtype=np.int64) for column in entry.columns)
        source, destination, length = loaded
        return Runs(source, destination, length, entry.start, entry.next, entry.complete)


def read_mappings(cluster: Cluster, topic: str, mappings: Mappings) -> None:
    state = cluster.topic(topic)
    partitions = range(state.partitions if state else 0)
    bounds = {p: cluster.bounds(topic, p) for p in partitions}
    if mappings.several:
        # Records may be visible at their destination a moment before their mapping is: what is pending there
        # is waited for.
        bounds = {p: (bounds[p][0], cluster.high_watermark(topic, p)) for p in partitions}
        starts = [_written_from(cluster, topic, p, *bounds[p]) for p in partitions if bounds[p][0] > 0]
        mappings.whole_from_ms = max(starts, default=0.0)
    for partition, (begin, end) in bounds.items():
        for messages in cluster.messages(topic, partition, begin, end):
            for message in messages:
                value = message.value()
                if value is None:
                    continue
                try:
                    mappings.add(value, begin == 0, message.timestamp()[1])
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    where = f"{topic}-{partition} offset {message.offset()}"
                    raise VerbatimError(f"{where}: no mapping record that can be read ({error!r})") from None


def _written_from(cluster: Cluster, topic: str, partition: int, begin: int, end: int) -> float:
    """When the first record of a partition was written that is still there, and well after; infinite where
    there is none."""
    first = next(iter(cluster.messages(topic, partition, begin, end)), None)
    # A transaction that began earlier may have been written down later.
    return first[0].timestamp()[1] + _LONGEST_TRANSACTION_MS if first else float("inf")
