"""A consumer that hands out what brokers send as it is: record batches, and the records of small ones as
Arrow columns. Decides nothing of frames.

The client library makes an object of each record, and unpacks each batch to do so. Here a batch of some size
stays as its producer wrote it, and costs the same whatever is in it.

As there, committed records only, in order, none left out in silence: a position outside of the log, and a log
with another history than what was read (it is asked with the leader epoch of the last record), are events;
nothing of the partition comes after them. Topics are asked for by id where the broker knows that (`by_name`).
For one thread: `read` sends, waits (common/kafka/wire/fetch_sessions.py) and takes apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition

from common import ports
from common.kafka.errors import retriable
from common.kafka.wire import fetch_answers, fetch_protocol
from common.kafka.wire.chunks import Chunk
from common.kafka.wire.fetch_answers import Budget
from common.kafka.wire.fetch_protocol import Part
from common.kafka.wire.fetch_sessions import FetchSessions, Position
from common.kafka.wire.protocol import Address
from common.kafka.wire.record_batch import BatchError
from common.partitions import PartitionName

WHOLE_BYTES = 64 << 10
"""From this size on a batch stays whole. Smaller ones become records, of which a frame makes a larger batch,
unless one comes alone: each costs phase 2 a request."""
JUST_ASKED_S = 0.004
"""How long to wait at least for an answer to what was just asked: who does not wait at all has waited before,
and cuts what there is now."""
UNKNOWN_S = 2.0
"""For how long a topic may be unknown to a broker that has not heard of it yet."""
_ELSEWHERE = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, 100, 103})
"""The last two: a topic id that is not known, or is another one by now."""


@dataclass(frozen=True, slots=True)
class Event:
    """What stands in a partition's way."""

    topic: str
    partition: int
    error: KafkaError
    count = bytes = 0
    """It has no records."""


class BatchConsumer:
    """Reads partitions from given positions on."""

    def __init__(
        self, config: Mapping[str, Any], whole_codecs: Mapping[int, int], apart: Collection[str] = ()
    ) -> None:
        """`whole_codecs`: batches of these, up to so many bytes of each, may be handed out whole, but for
        those of the topics `apart`."""
        self._sessions = FetchSessions(config)
        self._codecs = whole_codecs
        self._apart = apart
        self._positions = self._sessions.positions
        self._named: dict[PartitionName, Position] = {}
        """The same by the topics' names."""
        self._budget = Budget()
        """What this look at the answers may unpack into."""

    def assign(self, positions: Iterable[tuple[str, str, int, int, int | None]]) -> None:
        """Topic, its id, partition, offset, and the leader epoch of the record before, where it is known."""
        for topic, topic_id, partition, offset, epoch in positions:
            key = fetch_protocol.canonical(topic_id), partition
            at = Position(key, topic, partition, offset, -1 if epoch is None else epoch)
            self._positions[key] = self._named[at.name] = self._sessions.changed[key] = at

    # As the client library's consumer has these.

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch nothing more of these. What is on its way is dropped, and fetched again."""
        self._hold(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._hold(partitions, False)

    def _hold(self, partitions: Iterable[TopicPartition], held: bool) -> None:
        self._sessions.limits.held_at = ports.monotonic()
        for partition in partitions:
            at = self._named[partition.topic, partition.partition]
            at.held = held
            self._sessions.changed[at.key] = at

    def get_watermark_offsets(self, partition: TopicPartition, cached: bool) -> tuple[int, int] | None:
        """The high watermark that a broker told last, behind an offset that is not known; None: none has."""
        at = self._named.get((partition.topic, partition.partition))
        return None if at is None or at.end < 0 else (OFFSET_INVALID, at.end)

    def close(self) -> None:
        self._sessions.close()

    def read(self, timeout_s: float) -> list[Chunk | Event]:
        """What has come, or comes within the time-out. Raises LinkRefused."""
        sessions = self._sessions
        now = ports.monotonic()
        found: list[Chunk | Event] = []
        asked = sessions.ask(now)
        self._budget = Budget()
        for address in sessions.answered(timeout_s, JUST_ASKED_S if asked else 0.0):
            found += self._take(address, now)
        sessions.limits.ask_for_less(self._budget)
        sessions.give_up(ports.monotonic())
        if sessions.had_much():
            # More is there, most likely: it comes while this is worked on.
            sessions.ask(now, ahead=True)
        if sessions.refusals:
            found += self._refused()
        return found

    def by_name(self) -> bool:
        """Whether any broker was asked for topics by their names: what it sent may be of a topic that was
        made again."""
        return self._sessions.by_name

    def more_comes(self) -> bool:
        """Whether a broker that had much was asked for more, and has not answered."""
        return self._sessions.more_comes()

    def asked_of_one(self) -> int:
        """Of how many partitions a broker is asked for at most."""
        return self._sessions.asked_of_one()

    def _refused(self) -> Iterator[Event]:
        refusals, self._sessions.refusals = self._sessions.refusals, []
        for refused, error in refusals:
            for at in refused or list(self._positions.values()):
                at.stopped = True
                self._sessions.changed[at.key] = at
            yield from (Event(at.topic, at.partition, error) for at in refused)
            if not refused:
                yield Event("", -1, error)

    # taking

    def _take(self, address: Address, now: float) -> Iterator[Chunk | Event]:
        answer = self._sessions.take(address, now)
        if answer is None:
            return
        for key, part in answer.parts.items():
            at = self._positions.get(key)
            if at is not None and not at.held and not at.stopped:
                self._sessions.changed[key] = at
                if at.leader != address and (part.error or part.diverges is not None):
                    # Somebody else is asked by now: what this one lacks says nothing.
                    continue
                yield from self._take_part(at, part, now)

    def _take_part(self, at: Position, part: Part, now: float) -> Iterator[Chunk | Event]:
        error = part.error
        if at.replica is not None and (error or part.diverges is not None):
            # A follower may be behind: to it a position that the leader has is outside of the log, or in
            # another history.
            self._sessions.back_to_leader(at, now)
            return
        if not error and part.preferred >= 0:
            self._sessions.follow(at, part.preferred, now)
            return
        at.end = part.high_watermark
        if part.diverges is not None:
            at.stopped = True
            words = f"the log's history has parted from what was read at offset {part.diverges}"
            yield Event(at.topic, at.partition, KafkaError(KafkaError._LOG_TRUNCATION, words))
            return
        if error in _UNKNOWN:
            # A broker may hear of a new topic later than we do.
            at.unknown_since = now if at.unknown_since is None else at.unknown_since
            self._sessions.later(now)
            if now - at.unknown_since < UNKNOWN_S:
                return
            error = KafkaError.UNKNOWN_TOPIC_OR_PART
        if error in _ELSEWHERE or (error and retriable(KafkaError(error)) and error not in _UNKNOWN):
            self._sessions.brokers.forget_leader_of(at.name)
            self._sessions.later(now)
            return
        if error:
            at.stopped = True
            yield Event(at.topic, at.partition, KafkaError(error))
            return
        at.unknown_since = None
        try:
            codecs = {} if at.topic in self._apart else self._codecs
            yield from fetch_answers.chunks(at, part, codecs, WHOLE_BYTES, self._budget)
        except BatchError as wrong:
            at.stopped = True
            words = f"{wrong} (read up to {at.offset})"
            yield Event(at.topic, at.partition, KafkaError(KafkaError._BAD_MSG, words))
