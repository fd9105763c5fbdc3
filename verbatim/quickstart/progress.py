"""How far a link is, from the topics that it writes anyway; shows nothing.

source end   end offsets of the source topic
staged       positions topic: what the replicator knows to be in staging
delivered    offset mappings, read committed: what is at the destination
duplicates   positions topic: the deduplicator's counters
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from common.errors import StateError
from common.kafka.client import clients, topics
from common.link import lane_words, offset_mappings, positions
from common.partitions import PartitionId
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

RATE_S = 3.0
DELAY_S = 2.0
_SOURCE_EVERY_S = 0.25
_TOPICS_EVERY_S = 0.5
_CALL_S = 10.0

WrittenAt = Callable[[int, int], float | None]
"""(partition, offset) -> when that source record was written, on time.monotonic's clock; None where it is not
known."""


@dataclass(frozen=True)
class Progress:
    """A moment of a link. `rate`: delivered records/s over the last RATE_S. `delay_s`: from the source to a
    read-committed reader of the destination: the median of what arrived in the last DELAY_S, else the age of
    the oldest record that waits, else None."""

    source_end: int = 0
    staged: int = 0
    delivered: int = 0
    duplicates: int = 0
    rate: float = 0.0
    delay_s: float | None = None

    @property
    def lag(self) -> int:
        """Records that are at the source and not at the destination."""
        return max(0, self.source_end - self.delivered)


class Tally:
    """Adds up what the records of a link's own topics say about one topic. Pure: no clients, no clock."""

    def __init__(self, topic: str, written_at: WrittenAt) -> None:
        self.delivered = 0
        self.next: dict[int, int] = {}
        self._topic = topic
        self._written_at = written_at
        self._positions: dict[PartitionId, int] = {}
        self._counters: dict[tuple[str, int, int, int], Counter[str]] = {}
        self._delays: deque[tuple[float, float]] = deque()
        self._deliveries: deque[tuple[float, int]] = deque()

    def mapping(self, value: bytes | None, now: float) -> None:
        """A record of the offset mappings, seen at `now`."""
        try:
            mapping = offset_mappings.decode(value)
        except StateError:
            return  # it is the deduplicator that must not go on without it
        if mapping.topic != self._topic:
            return
        self.delivered += mapping.records
        self.next[mapping.partition] = mapping.next
        if mapping.records and (written := self._written_at(mapping.partition, mapping.next - 1)) is not None:
            self._delays.append((now, now - written))
        self._deliveries.append((now, mapping.records))

    def position(self, key: bytes | None, value: bytes | None) -> None:
        """A record of the positions topic: a position or a lane's counters."""
        if (position := positions.decode(key, value)) is not None:
            self._positions[position[0]] = position[1].next
            return
        if (said := lane_words.decode(key, value)) is not None:
            self._counters[said.application, said.lane, said.term, said.epoch] = said.work.counts

    def counter(self, application: str, name: str) -> int:
        """A counter, added up over lanes, epochs and terms."""
        return sum(counters[name] for at, counters in self._counters.items() if at[0] == application)

    def term(self, application: str) -> int:
        """The newest leader's term that lanes have counted in; -1 before the first."""
        return max((at[2] for at in self._counters if at[0] == application), default=-1)

    def progress(self, source_end: int, now: float) -> Progress:
        for recent, age in ((self._delays, DELAY_S), (self._deliveries, RATE_S)):
            while recent and now - recent[0][0] > age:
                recent.popleft()
        rate = sum(records for _, records in self._deliveries) / RATE_S
        # What is delivered was staged, and what is staged is at the source: none of these is asked at the
        # same moment.
        staged = max(sum(self._positions.values()), self.delivered)
        duplicates = self.counter("deduplicator", "duplicates")
        return Progress(max(source_end, staged), staged, self.delivered, duplicates, rate, self._delay(now))

    def _delay(self, now: float) -> float | None:
        if self._delays:
            return median(delay for _, delay in self._delays)
        waiting = [self._written_at(partition, offset) for partition, offset in self.next.items()]
        return max((now - written for written in waiting if written is not None), default=None)


class Meter:
    """Follows one topic of a link. For one thread."""

    def __init__(
        self, settings: Settings, topic: str, written_at: WrittenAt = lambda partition, offset: None
    ) -> None:
        self.tally = Tally(topic, written_at)
        self._settings = settings
        self._topic = topic
        self._source = clients.admin(settings.client_config("source", "admin"))
        self._target = clients.admin(settings.client_config("destination", "admin"))
        self._consumer: Consumer = clients.consumer(
            settings.client_config("destination", "consumer"),
            group_id=f"{settings.application_name}.progress",
            isolation_level="read_committed",
            fetch_wait_max_ms=100,
        )
        self._assigned = False
        self._look_at = 0.0
        self._partitions = 0
        self._source_end = 0
        self._source_at = 0.0

    def poll(self, timeout_s: float) -> Progress:
        """Take in what there is, waiting at most so long for it."""
        now = time.monotonic()
        if not self._assigned and now >= self._look_at:
            self._look_at = now + _TOPICS_EVERY_S
            self._assign()
        if self._assigned:
            self._read(timeout_s)
        else:
            time.sleep(timeout_s)
        now = time.monotonic()
        if now - self._source_at >= _SOURCE_EVERY_S:
            self._source_at = now
            self._source_end = self._ask_source()
        return self.tally.progress(self._source_end, now)

    def close(self) -> None:
        self._consumer.close()

    def _assign(self) -> None:
        own = [self._settings.mappings_topic, self._settings.positions_topic]
        there = topics.describe(self._target, own, Deadline(_CALL_S))
        if len(there) == len(own):
            self._consumer.assign(
                [
                    TopicPartition(t.name, p, OFFSET_BEGINNING)
                    for t in there.values()
                    for p in range(t.partitions)
                ]
            )
            self._assigned = True

    def _read(self, timeout_s: float) -> None:
        # consume(n, timeout) would wait for n messages or the whole time-out.
        first = self._consumer.poll(timeout_s)
        messages: list[Message] = [] if first is None else [first, *self._consumer.consume(5000, 0)]
        now = time.monotonic()
        for message in messages:
            if message.error() is not None:
                continue  # passing, or else the applications fail of it, and say so
            if message.topic() == self._settings.mappings_topic:
                self.tally.mapping(message.value(), now)
            else:
                self.tally.position(message.key(), message.value())

    def _ask_source(self) -> int:
        if not self._partitions:
            self._partitions = topics.describe(self._source, [self._topic], Deadline(_CALL_S))[
                self._topic
            ].partitions
        specs = {(self._topic, partition): OffsetSpec.latest() for partition in range(self._partitions)}
        return sum(topics.offsets(self._source, specs, Deadline(_CALL_S), committed=True).values())
