"""A consumer that hands out what brokers send as it is: record batches, and the records of small ones as Arrow columns. Decides nothing of frames.

The client library makes an object of each record, and unpacks each batch to do so. Here a batch of some size stays as its producer wrote it, and
costs the same whatever is in it. The library's consumer serves where this one can't: Source decides.

As there, committed records only, in order, none left out in silence: a position outside of the log, and a log with another history than
what was read (it is asked with the leader epoch of the last record), are events; nothing of the partition comes after them. Topics are
asked for by id. For one thread: `read` sends, waits and takes apart.
"""

from __future__ import annotations

import contextlib
import logging
import select
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from common import kafka, outside, protocol
from common.broker_connections import DATA, Address, BrokerConnections, Line, Partition
from common.kafka import Deadline
from common.record_batch import BatchError
from replicator import answers, fetch_protocol
from replicator.answers import Budget
from replicator.chunks import Chunk
from replicator.fetch_protocol import FETCH, NO_SESSION, Fetched, Part, Topic, Wanted

log = logging.getLogger(__name__)

WHOLE_BYTES = 64 << 10
"""From this size on a batch stays whole. Smaller ones become records, which phase 2 makes larger batches of: each costs a request there."""
FETCH_BYTES = 8 << 20
LEAST_FETCH_BYTES = 64 << 10
AHEAD_BYTES = 64 << 10
"""A broker whose answer has less is asked again when that is waited for, not before: it would answer with the next record alone, and all behind
that would wait for another one."""
JUST_ASKED_S = 0.004
"""How long to wait at least for an answer to what was just asked: who does not wait at all has waited before, and cuts what there is now."""
CALL_S = 5.0
ANSWER_S = 30.0
"""How long a broker may take beyond the time that it may wait for records."""
BACK_OFF_S = 0.1
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
_SESSION_LOST = frozenset({70, 71, 106})


class Unsupported(Exception):
    """This source has to be read with the client library."""


@dataclass(frozen=True, slots=True)
class Event:
    """What stands in a partition's way."""

    topic_: str
    partition_: int
    error_: KafkaError

    @property
    def count(self) -> int:
        """It has no records."""
        return 0

    bytes = count

    def topic(self) -> str:
        return self.topic_

    def partition(self) -> int:
        return self.partition_

    def error(self) -> KafkaError:
        return self.error_


@dataclass(slots=True)
class _Position:
    """Where a partition is read. `end` is the high watermark that was told last; `leader` who is asked for it."""

    key: Topic
    topic: str
    partition: int
    offset: int
    epoch: int
    held: bool = False
    stopped: bool = False
    end: int = -1
    leader: Address | None = None
    unknown_since: float | None = None
    aligned: bool = False
    doubted: tuple[int, int] | None = None
    room: int = 0
    """The last three are replicator/answers.py's."""

    @property
    def name(self) -> Partition:
        return self.topic, self.partition

    def wanted(self, most_bytes: int) -> Wanted:
        return Wanted(self.offset, self.epoch, max(most_bytes, self.room))


@dataclass(slots=True)
class _Session:
    """What is wanted of a broker, and what it knows of that. `untold`: of these it may know something else."""

    number: int = NO_SESSION
    epoch: int = 0
    wanted: dict[Topic, _Position] = field(default_factory=dict)
    known: dict[Topic, Wanted] = field(default_factory=dict)
    untold: set[Topic] = field(default_factory=set)
    answer_by: float | None = None
    """While a request is in flight."""
    had_much: bool = False
    """Whether its last answer had: then more is there, most likely."""


class BatchConsumer:
    """Reads partitions from given positions on."""

    def __init__(self, config: Mapping[str, Any], whole_codecs: Collection[int]) -> None:
        """`whole_codecs`: batches of these may be handed out whole."""
        self._brokers = BrokerConnections(config)
        self._codecs = whole_codecs
        self._wait_ms = int(config.get("fetch.wait.max.ms", 500))
        self._least_bytes = int(config.get("fetch.min.bytes", 1))
        self._most_bytes = self._asked_bytes = int(config.get("fetch.max.bytes", FETCH_BYTES))
        self._partition_bytes = int(config.get("max.partition.fetch.bytes", 1 << 20))
        self._positions: dict[Topic, _Position] = {}
        self._named: dict[Partition, _Position] = {}
        """The same by the topics' names."""
        self._changed: dict[Topic, _Position] = {}
        """Of these something else is wanted than the sessions have, or of another broker; and those that no broker is known to lead."""
        self._sessions: dict[Address, _Session] = {}
        self._look_after = 0.0
        """When leaders may be asked for again."""
        self._budget = Budget()
        """What this look at the answers may unpack into."""

    def assign(self, positions: Iterable[tuple[str, str, int, int, int | None]]) -> None:
        """Topic, its id, partition, offset, and the leader epoch of the record before, where it is known."""
        for topic, topic_id, partition, offset, epoch in positions:
            key = fetch_protocol.canonical(topic_id), partition
            at = _Position(key, topic, partition, offset, -1 if epoch is None else epoch)
            self._positions[key] = self._named[at.name] = self._changed[key] = at

    # As the client library's consumer has these.

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch nothing more of these. What is on its way is dropped, and fetched again."""
        self._hold(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._hold(partitions, False)

    def _hold(self, partitions: Iterable[TopicPartition], held: bool) -> None:
        for partition in partitions:
            at = self._named[partition.topic, partition.partition]
            at.held = held
            self._changed[at.key] = at

    def get_watermark_offsets(self, partition: TopicPartition, cached: bool) -> tuple[int, int] | None:
        """The high watermark that a broker told last, behind an offset that is not known; None: none has."""
        at = self._named.get((partition.topic, partition.partition))
        return None if at is None or at.end < 0 else (OFFSET_INVALID, at.end)

    def close(self) -> None:
        self._brokers.close()

    def read(self, timeout_s: float) -> list[Chunk | Event]:
        """What has come, or comes within the time-out. Raises Unsupported."""
        now = outside.monotonic()
        found: list[Chunk | Event] = []
        asked = False
        try:
            asked = self._ask(now)
        except KafkaException as exception:
            self._later(now)
            error: KafkaError = exception.args[0]
            if error.code() in kafka.NO_RIGHTS:
                return [Event("", -1, error)]
            log.debug("source: %s", error)
            if not self._waiting():
                outside.sleep(min(timeout_s, BACK_OFF_S))
        self._budget = Budget()
        for address in self._answered(timeout_s, JUST_ASKED_S if asked else 0.0):
            found += self._take(address, now)
        self._ask_for_less()
        self._give_up(outside.monotonic())
        if any(session.had_much for session in self._sessions.values()):
            # More is there, most likely: it comes while this is worked on.
            with contextlib.suppress(KafkaException):
                self._ask(now, ahead=True)
        return found

    def _ask_for_less(self) -> None:
        """Ask for as much as can be unpacked at once, going by how this has: what is beyond that would only be sent again."""
        spent = self._budget
        if spent.exceeded:
            self._asked_bytes = max(
                LEAST_FETCH_BYTES, answers.UNPACKED_BYTES * spent.packed // max(1, spent.unpacked)
            )
        elif spent.packed:
            self._asked_bytes += self._asked_bytes // 8
        self._asked_bytes = min(self._asked_bytes, self._most_bytes)

    def more_comes(self) -> bool:
        """Whether a broker that had much was asked for more, and has not answered."""
        return any(s.had_much and s.answer_by is not None for s in self._sessions.values())

    # asking

    def _waiting(self) -> list[Address]:
        return [a for a, session in self._sessions.items() if session.answer_by is not None]

    def _ask(self, now: float, ahead: bool = False) -> bool:
        """Send a request to each leader that owes no answer, `ahead` to those of them that had much; whether there was one."""
        self._place()
        if self._changed and now >= self._look_after:
            self._look_after = now + BACK_OFF_S
            self._brokers.describe({at.topic for at in self._changed.values()}, Deadline(CALL_S))
            # Of their topics' other partitions, too, leaders may have been learnt.
            self._changed |= self._positions
            self._place()
        problem: KafkaException | None = None
        asked = False
        for leader, session in list(self._sessions.items()):
            if session.wanted and session.answer_by is None and (session.had_much or not ahead):
                try:
                    self._send(leader, session)
                    asked = True
                except KafkaException as exception:
                    self._lose(leader)
                    problem = exception
        if problem is not None:
            raise problem
        return asked

    def _place(self) -> None:
        """Want of each leader what has changed. What has none stays where it is."""
        unled: dict[Topic, _Position] = {}
        for key, at in self._changed.items():
            wanted = not at.held and not at.stopped
            leader = self._brokers.leader(at.name) if wanted else None
            if at.leader != leader and at.leader in self._sessions:
                before = self._sessions[at.leader]
                before.wanted.pop(key, None)
                before.untold.add(key)
            at.leader = leader
            if leader is not None:
                session = self._sessions.setdefault(leader, _Session())
                session.wanted[key] = at
                session.untold.add(key)
            elif wanted:
                unled[key] = at
        self._changed = unled

    def _send(self, leader: Address, session: _Session) -> None:
        deadline = Deadline(CALL_S)
        line: Line = (leader, DATA)
        new = not self._brokers.has(line)
        connection = self._brokers.connected(line, deadline)
        if new:
            self._must_speak(protocol.versions(connection.ask(protocol.API_VERSIONS, [], deadline)))
        known = session.known
        wanted = {
            key: session.wanted[key].wanted(self._partition_bytes)
            for key in session.untold
            if key in session.wanted
        }
        changed = {key: w for key, w in wanted.items() if known.get(key) != w}
        gone = [key for key in session.untold if key in known and key not in wanted]
        body = fetch_protocol.fetch(
            changed, gone, session.number, session.epoch, self._wait_ms, self._least_bytes, self._asked_bytes
        )
        connection.send(FETCH, [body], deadline)
        known |= changed
        for key in gone:
            del known[key]
        session.untold = set()
        session.answer_by = outside.monotonic() + self._wait_ms / 1000 + ANSWER_S

    @staticmethod
    def _must_speak(answer: tuple[int, Mapping[int, tuple[int, int]]]) -> None:
        error, known = answer
        least, greatest = known.get(FETCH.key, (0, -1))
        if error or not least <= FETCH.version <= greatest:
            raise Unsupported("its brokers don't know topics by their ids yet")

    def _lose(self, leader: Address) -> None:
        """A broker can't be reached: it may lead nothing any more."""
        if (session := self._sessions.pop(leader, None)) is not None:
            self._changed |= session.wanted
        self._brokers.drop((leader, DATA))
        self._brokers.forget_leader(leader)

    def _later(self, now: float) -> None:
        self._look_after = max(self._look_after, now + BACK_OFF_S)

    # taking

    def _answered(self, timeout_s: float, all_within_s: float) -> list[Address]:
        """Whose answer is there, waiting for one of them; and for all, where they were just asked."""
        begun = outside.monotonic()
        while True:
            waiting = self._waiting()
            ready = [a for a in waiting if self._brokers[a, DATA].complete()]
            passed = outside.monotonic() - begun
            left = all_within_s - passed if ready else max(timeout_s, all_within_s) - passed
            if len(ready) == len(waiting) or left <= 0:
                return ready
            poll = select.poll()
            for address in waiting:
                if address not in ready:
                    poll.register(self._brokers[address, DATA], select.POLLIN)
            poll.poll(left * 1000)

    def _give_up(self, now: float) -> None:
        for address, session in list(self._sessions.items()):
            by = session.answer_by
            # An answer may take longer than that to arrive, as long as something comes.
            if by is not None and now > max(by, self._brokers[address, DATA].used + ANSWER_S):
                self._lose(address)

    def _take(self, address: Address, now: float) -> Iterator[Chunk | Event]:
        session = self._sessions[address]
        try:
            answer = fetch_protocol.fetched(self._brokers[address, DATA].received())
        except (KafkaException, protocol.MalformedAnswer) as error:
            log.debug("source: %s", error)
            self._lose(address)
            self._later(now)
            return
        session.answer_by = None
        session.had_much = sum(len(part.records) for part in answer.parts.values()) >= AHEAD_BYTES
        if not self._goes_on(session, answer):
            return
        for key, part in answer.parts.items():
            at = self._positions.get(key)
            if at is not None and not at.held and not at.stopped:
                self._changed[key] = at
                yield from self._take_part(at, part, now)

    @staticmethod
    def _goes_on(session: _Session, answer: Fetched) -> bool:
        if answer.error or not answer.session:
            # Its session is over, or it makes none, being asked for too many: all is said again.
            session.number, session.epoch, session.known = NO_SESSION, 0, {}
            session.untold = set(session.wanted)
        else:
            session.number = answer.session
            session.epoch = session.epoch % 0x7FFFFFFF + 1
        if answer.error and answer.error not in _SESSION_LOST:
            log.warning("source: %s", KafkaError(answer.error).str())
        return not answer.error

    def _take_part(self, at: _Position, part: Part, now: float) -> Iterator[Chunk | Event]:
        at.end = part.high_watermark
        error = part.error
        if part.diverges is not None:
            at.stopped = True
            words = f"the log's history has parted from what was read at offset {part.diverges}"
            yield Event(at.topic, at.partition, KafkaError(KafkaError._LOG_TRUNCATION, words))
            return
        if error in _UNKNOWN:
            # A broker may hear of a new topic later than we do.
            at.unknown_since = now if at.unknown_since is None else at.unknown_since
            self._later(now)
            if now - at.unknown_since < UNKNOWN_S:
                return
            error = KafkaError.UNKNOWN_TOPIC_OR_PART
        if error in _ELSEWHERE or (error and kafka.retriable(KafkaError(error)) and error not in _UNKNOWN):
            self._brokers.forget_leader_of(at.name)
            self._later(now)
            return
        if error:
            at.stopped = True
            yield Event(at.topic, at.partition, KafkaError(error))
            return
        at.unknown_since = None
        try:
            yield from answers.chunks(at, part, self._codecs, WHOLE_BYTES, self._budget)
        except BatchError as wrong:
            at.stopped = True
            words = f"{wrong} (read up to {at.offset})"
            yield Event(at.topic, at.partition, KafkaError(KafkaError._BAD_MSG, words))
