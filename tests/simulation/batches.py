"""What stands for common/kafka/wire/batch_producer.py and common/kafka/wire/batch_consumer.py, on the
clusters of tests/simulation/cluster.py.

As those are: a batch is appended whole or not at all, so that no other writer's records come into it; nothing
is sent twice by itself; a producer has ended with its first error, or with a request of which no answer came,
and what it had sent may still arrive. The consumer asks for topics by their ids, or, of a source that is
older than these, by their names: then one that was made again is read on at the old offset without an error.
It hands out what it likes as whole batches, the rest as rows.
"""

from __future__ import annotations

import bisect
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

import pyarrow as pa
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from greenlet import GreenletExit

from common.kafka.client.topics import id_text
from common.kafka.wire import record_batch
from common.kafka.wire.batch_consumer import Event
from common.kafka.wire.batch_producer import Delivered
from common.kafka.wire.chunks import Chunk, Whole
from common.kafka.wire.open_transactions import OpenTransactions
from common.kafka.wire.protocol import KnownTransaction
from common.kafka.wire.record_batch import BatchHeader, Record, Records
from common.kafka.wire.record_encoder import encode_records
from common.kafka.wire.records import encode_rows
from tests.simulation.clients import Client, Config, Surroundings, Transactional
from tests.simulation.cluster import Entry, Headers, Log, refuse

T = TypeVar("T")

# producing


@dataclass(slots=True, eq=False)
class Batch:
    log: Log
    records: list[Record]
    reported: Callable[[KafkaError | None, int], None]


@dataclass(slots=True)
class Single:
    key: bytes | None
    value: bytes | None
    report: Callable[..., None] | None


class BatchProducer(Transactional):
    """A transactional producer of whole record batches."""

    def __init__(
        self,
        world: Surroundings,
        config: Config,
        transactional_id: str,
        transaction_timeout_ms: int,
        group: str,
        in_each: Sequence[tuple[str, int]] = (),
    ) -> None:
        own = {"transactional.id": transactional_id, "transaction.timeout.ms": transaction_timeout_ms}
        super().__init__(world, {**config, **own})
        self._group = group
        self._in_each = in_each
        self._singles: dict[tuple[str, int], list[Single]] = {}
        self._waiting: list[Batch] = []
        self._sent: deque[Batch] = deque()
        self._answers: deque[tuple[Batch, KafkaError | None, int]] = deque()
        self._broken = False
        """Whether a connection broke with requests in flight."""
        self.refused: dict[tuple[str, int], KafkaError] = {}
        self._refused: KafkaError | None = None
        """What was said of a batch of this transaction that was not appended."""
        self._registered: set[Log] = set()
        self._out_of_order: set[Log] = set()
        self._elections: dict[Log, int] = {}
        """How many each partition had had when something went there last: since the next one its leader is
        reached by another connection."""
        self._ends: dict[Log, int] = {}
        """Where the transaction's last batch ended."""
        self._with_offsets = False
        self._ended: KafkaException | None = None
        self.process.on_death.append(self._lose_sight)

    def __len__(self) -> int:
        unsent = len(self._waiting) + sum(map(len, self._singles.values()))
        return unsent + len(self._sent) + len(self._answers)

    # transactions

    @property
    def id(self) -> tuple[int, int]:
        return self.cluster.coordinated[self.tid or ""].producer, self.epoch

    def known_transaction(self, transactional_id: str, timeout: float) -> KnownTransaction | None:
        self.call(timeout)
        known = self.cluster.coordinated.get(transactional_id)
        if known is None:
            return None
        txn, state, began_ms, logs = known.txn, "Empty", -1, []
        if txn is not None:
            began_ms, logs = int(txn.started * 1000), txn.logs if txn.state == "open" else txn.unmarked
            prepared = {"open": "Ongoing", "committed": "PrepareCommit", "aborted": "PrepareAbort"}[txn.state]
            state = prepared if logs or txn.state == "open" else prepared.replace("Prepare", "Complete")
        at = frozenset((log.topic.name, log.partition) for log in logs)
        return KnownTransaction(state, known.producer, known.epoch, began_ms, at)

    def open_transactions(self, partitions: Collection[tuple[str, int]], timeout: float) -> OpenTransactions:
        self.call(timeout)
        found = OpenTransactions()
        for at in partitions:
            try:
                log = self.cluster.log(*at)
            except KafkaException as exception:
                found.untold[at] = exception.args[0]
                continue
            if log.open:
                self.world.visited("a transaction was found open")
                found.first[at] = {txn.producer: first for txn, first in reversed(log.open.items())}
        return found

    def take_part(self, partitions: Collection[tuple[str, int]], timeout: float, in_each: bool) -> None:
        self._must_go_on()
        new = [self._log(*at) for at in [*partitions, *(self._in_each if in_each else ())]]
        self.call(timeout)
        txn = self._asked(lambda: self._until_ready(self._ongoing, self.scheduler.now + 5.0))
        txn.logs += [log for log in new if log not in txn.logs]
        self._registered.update(new)

    def commit_of_predecessor(self, number: int, epoch: int, timeout: float) -> None:
        self.world.visited("what closed a commit was committed by a successor")
        self.call(timeout)
        self._asked(lambda: self.cluster.end(self.tid or "", epoch, "committed"))

    def blame_unanswered(self) -> None:
        self.refused |= {
            (b.log.topic.name, b.log.partition): KafkaError(KafkaError._TIMED_OUT) for b in self._sent
        }

    def begin_transaction(self) -> None:
        self._must_go_on()
        self._registered, self._with_offsets, self._refused = set(), False, None
        self._ends, self._out_of_order = {}, set()

    def commit_transaction(self, timeout: float = 30.0) -> None:
        end = self.scheduler.now + timeout
        while self.flush(end - self.scheduler.now):
            if self.scheduler.now >= end:
                raise self._end(KafkaError(KafkaError._TIMED_OUT))
        self._none_refused()
        self._finish("committed", end)

    def _none_refused(self) -> None:
        """What is not there whole is not committed."""
        if self._refused is not None:
            raise self._end(self._refused)

    def abort_transaction(self, timeout: float = 30.0) -> None:
        end = self.scheduler.now + timeout
        self.purge()
        while self._in_flight() and self.scheduler.now < end:
            self._wait(min(1.0, end - self.scheduler.now))
        self._finish("aborted", end)

    def send_offsets_to_transaction(self, offsets: list[TopicPartition], timeout: float = 30.0) -> None:
        self._must_go_on()
        self.call(timeout)
        txn = self._asked(lambda: self._until_ready(self._ongoing, self.scheduler.now + timeout))
        self._with_offsets = True
        for at in offsets:
            txn.offsets[(self._group, at.topic, at.partition)] = at.offset

    def _finish(self, result: str, end: float) -> None:
        self._must_go_on()
        if not self._registered and not self._with_offsets:
            return
        try:
            self.call(max(0.0, end - self.scheduler.now))
        except KafkaException as exception:
            raise self._end(exception.args[0]) from None
        way = self.world.outcome(
            "EndTxn", "is answered", "is answered slowly", "answer is lost", "is late", "is lost"
        )
        if way == "is answered slowly":
            self.scheduler.wait(6.0)
        if way == "is late":
            self._late_end(self.tid or "", self.epoch, result)
        if way in ("is late", "is lost"):
            self.scheduler.wait(max(0.0, end - self.scheduler.now))
            self._unknown(result)
        self._asked(lambda: self.cluster.end(self.tid or "", self.epoch, result))
        if way == "answer is lost":
            self._unknown(result)

    def _unknown(self, result: str) -> None:
        self.world.visited(f"unknown outcome: {result}")
        raise self._end(KafkaError(KafkaError._TIMED_OUT))

    # records

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: Callable[..., None] | None = None,
    ) -> None:
        self._must_go_on()
        self._singles.setdefault((topic, partition), []).append(Single(key, value, on_delivery))

    def produce_batch(
        self,
        topic: str,
        partition: int,
        records: Records,
        reported: Callable[[KafkaError | None, int], None],
        most_bytes: int | None = None,
    ) -> None:
        pieces = record_batch.seal(records, "none", None, 1, 1, 1, transactional=True)
        self._wait_with(topic, partition, pieces, reported)

    def produce_whole(
        self,
        topic: str,
        partition: int,
        header: BatchHeader,
        batch: pa.Buffer,
        reported: Callable[[KafkaError | None, int], None],
    ) -> None:
        self.world.visited("a batch went whole")
        self._wait_with(topic, partition, record_batch.reseal(header, batch, 1, 1, 1), reported)

    def _wait_with(
        self,
        topic: str,
        partition: int,
        pieces: Iterable[Any],
        reported: Callable[[KafkaError | None, int], None],
    ) -> None:
        self._must_go_on()
        records = record_batch.decode(b"".join(bytes(piece) for piece in pieces))
        self._waiting.append(Batch(self._log(topic, partition), records, reported))
        # What waits is sent without a flush where it is much.
        if self.scheduler.chooser.pick(2, "much waits"):
            self._send()
            self._take_answers()

    def flush(self, timeout: float = 30.0) -> int:
        self._must_go_on()
        end = self.scheduler.now + timeout
        singles, self._singles = self._singles, {}
        for (topic, partition), some in singles.items():
            records = [Record(i, 1, 1, one.key, one.value, None) for i, one in enumerate(some)]
            self._waiting.append(Batch(self._log(topic, partition), records, _each(some)))
        if self._waiting:
            self._send()
        self._take_answers()
        while self._in_flight() and self.scheduler.now < end:
            self._wait(end - self.scheduler.now)
        return len(self)

    def purge(self) -> None:
        self._waiting, self._singles = [], {}

    def close(self) -> None:
        self._lose_sight()

    # inside

    def _must_go_on(self) -> None:
        if not self.process.alive:
            raise GreenletExit
        if self._ended is not None:
            raise self._ended

    def _end(self, error: KafkaError) -> KafkaException:
        if error.code() == KafkaError._FENCED:
            self.world.visited("an owner found itself fenced")
        self._ended = KafkaException(error)
        self.close()
        return self._ended

    def _until_ready(self, ask: Callable[[], T | None], end: float) -> T:
        try:
            return super()._until_ready(ask, end)
        except KafkaException:
            raise refuse(KafkaError.CONCURRENT_TRANSACTIONS) from None

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """An answer that refuses ends the producer; none, or one of who isn't ready, doesn't."""
        try:
            return ask()
        except KafkaException as exception:
            if exception.args[0].code() in (KafkaError._TIMED_OUT, KafkaError.CONCURRENT_TRANSACTIONS):
                raise
            raise self._end(exception.args[0]) from None

    def _log(self, topic: str, partition: int) -> Log:
        log: Log = self._asked(lambda: self.cluster.log(topic, partition))
        return log

    def _in_flight(self) -> bool:
        return bool(self._sent or self._answers or self._broken)

    def _wait(self, timeout: float) -> None:
        self.scheduler.wait(timeout, lambda: bool(self._answers or self._broken))
        self._take_answers()

    def _take_answers(self) -> None:
        if not self.process.alive:
            raise GreenletExit
        while self._answers:
            batch, error, base = self._answers.popleft()
            if error is not None:
                self._refused = error
                self.refused.setdefault((batch.log.topic.name, batch.log.partition), error)
            batch.reported(error, base)
        if self._broken:
            raise self._end(KafkaError(KafkaError._TRANSPORT))

    def _send(self) -> None:
        """All that waits, behind the registration of its partitions."""
        new = [
            log for log in dict.fromkeys(batch.log for batch in self._waiting) if log not in self._registered
        ]
        for log in new:
            if self._elections.get(log, log.elections) != log.elections:
                self.world.visited("a leader was reached by another connection")
                if any(txn.producer == self.id[0] for txn in log.open):
                    raise self._end(KafkaError(KafkaError._STATE))
        if new and not self._registered:
            new += [log for log in (self._log(*at) for at in self._in_each) if log not in new]
        if new:
            self.call()
            way = self.world.outcome("AddPartitionsToTxn", "is answered", "answer is lost", "is lost")
            if way != "is lost":
                txn = self._asked(lambda: self._until_ready(self._ongoing, self.scheduler.now + 5.0))
                txn.logs += [log for log in new if log not in txn.logs]
            if way != "is answered":
                raise refuse(KafkaError._TIMED_OUT)
            self._registered.update(new)
        self._elections.update((batch.log, batch.log.elections) for batch in self._waiting)
        if not self._sent:
            self.scheduler.events.append(self._wire)
        self._sent += self._waiting
        self._waiting = []

    def _lose_sight(self) -> None:
        """Of what is in flight nobody hears any more."""
        self._leave(list(self._sent), lambda batch: self._append(batch)[0])
        if self._sent:
            self._sent.clear()
            self.scheduler.events.remove(self._wire)
        self._answers.clear()
        self._broken = False

    # the wire

    def _wire(self) -> Callable[[], None] | None:
        heard = self.reachable() and not self._broken and any(not batch.log.silent for batch in self._sent)
        return self._arrive if heard else None

    def _arrive(self) -> None:
        """A batch gets through, the next one of any partition."""
        self.scheduler.moved = self.process.name
        logs = list(dict.fromkeys(batch.log for batch in self._sent if not batch.log.silent))
        log = logs[self.scheduler.chooser.pick(len(logs), "partition")] if len(logs) > 1 else logs[0]
        batch = next(batch for batch in self._sent if batch.log is log)
        way = self.world.outcome("Produce", "is answered", "is refused", "answer is lost", "is lost")
        if way == "is lost":
            self._broken = True
            return
        error: KafkaError | None = None
        base = -1
        if log in self._out_of_order:
            error = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        elif way == "is refused" or log.refuses is not None:
            # Those behind it are refused, too: their sequence numbers don't follow.
            self._out_of_order.add(log)
            error = KafkaError(KafkaError.NOT_ENOUGH_REPLICAS if log.refuses is None else log.refuses)
            if error.code() == KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                self._append(batch)
        else:
            error, base = self._append(batch)
        self._sent.remove(batch)
        if way == "answer is lost":
            self._broken = True
        else:
            self._answers.append((batch, error, base))
        if not self._sent:
            self.scheduler.events.remove(self._wire)

    def _append(self, batch: Batch) -> tuple[KafkaError | None, int]:
        log = batch.log
        try:
            offsets = [
                self.cluster.write(self.tid or "", self.epoch, log, r.key, r.value, r.headers, r.timestamp)
                for r in batch.records
            ]
        except KafkaException as exception:
            error: KafkaError = exception.args[0]
            return error, -1
        if self._ends.get(log, offsets[0]) != offsets[0]:
            self.world.visited("another writer's records came between two batches")
        self._ends[log] = offsets[-1] + 1
        return None, offsets[0]


def _each(singles: list[Single]) -> Callable[[KafkaError | None, int], None]:
    def reported(error: KafkaError | None, base: int) -> None:
        for number, single in enumerate(singles):
            if single.report is not None:
                single.report(error, Delivered(None if error is not None else base + number))

    return reported


# consuming


@dataclass(slots=True)
class Position:
    """Where a partition is read, and the answer that is on its way."""

    topic: str
    topic_id: str
    partition: int
    at: int
    leader_epoch: int | None
    held: bool = False
    stopped: bool = False
    high: int = -1
    coming: list[Chunk | Event] = field(default_factory=list)


class BatchConsumer(Client):
    """Reads partitions from given positions on, committed records only."""

    def __init__(
        self, world: Surroundings, config: Config, whole_codecs: Mapping[int, int], apart: Collection[str]
    ) -> None:
        super().__init__(world, config)
        self._whole = bool(whole_codecs)
        self._apart = apart
        self.readings: dict[tuple[str, int], Position] = {}
        world.consumers.append(self)

    def assign(self, positions: Iterable[tuple[str, str, int, int, int | None]]) -> None:
        for topic, topic_id, partition, offset, epoch in positions:
            self.readings[topic_id, partition] = Position(topic, topic_id, partition, offset, epoch)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._hold(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._hold(partitions, False)

    def _hold(self, partitions: Iterable[TopicPartition], held: bool) -> None:
        for at in partitions:
            position = self._named(at)
            assert position is not None
            position.held = held

    def _named(self, at: TopicPartition) -> Position | None:
        named = (p for p in self.readings.values() if (p.topic, p.partition) == (at.topic, at.partition))
        return next(named, None)

    def get_watermark_offsets(
        self, partition: TopicPartition, cached: bool = False
    ) -> tuple[int, int] | None:
        assert cached
        at = self._named(partition)
        return None if at is None or at.high < 0 else (OFFSET_INVALID, at.high)

    def close(self) -> None:
        self.readings = {}

    def read(self, timeout_s: float) -> list[Chunk | Event]:
        if not self.process.alive:
            raise GreenletExit
        if timeout_s > 0:
            self.scheduler.wait(max(timeout_s, 0.2 if self.reachable() else 5.0), self._something)
        else:
            self.scheduler.point()
        found: list[Chunk | Event] = []
        for p in self.readings.values():
            if not p.coming and self._fetchable(p):
                p.coming = list(self._fetched(p))
                # It may be asked for now, and come later.
                if (
                    p.coming
                    and self.world.outcome("an answer to a fetch", "comes", "takes a while") != "comes"
                ):
                    continue
            # Of a partition that is held meanwhile, the answer is dropped.
            items, p.coming = p.coming, []
            if items and not p.held and not p.stopped:
                self._move(p, items[-1])
                found += items
        return found

    def by_name(self) -> bool:
        return self.world.by_names

    def asked_of_one(self) -> int:
        return 0  # they take no time here

    def more_comes(self) -> bool:
        return any(p.coming for p in self.readings.values())

    @staticmethod
    def _move(p: Position, last: Chunk | Event) -> None:
        if isinstance(last, Chunk):
            p.at, p.leader_epoch = last.next, last.leader_epoch
        else:
            p.stopped = True

    def _something(self) -> bool:
        return any(p.coming or self._fetchable(p) for p in self.readings.values())

    def _fetchable(self, p: Position) -> bool:
        if p.held or p.stopped or not self.reachable():
            return False
        log = self._log(p)
        return log is None or p.at < log.stable() or p.at > log.end or p.at < log.start

    def _log(self, p: Position) -> Log | None:
        """The partition's, of the topic that has this id; or of whichever has its name."""
        topic = self.cluster.topics.get(p.topic)
        if topic is None or p.partition >= len(topic.logs):
            return None
        if not self.by_name() and id_text(topic.id) != p.topic_id:
            return None
        return topic.logs[p.partition]

    def _fetched(self, p: Position) -> Iterator[Chunk | Event]:
        log = self._log(p)
        if log is None:
            if p.topic in self.cluster.topics:
                self.world.visited("a topic made again was not read on")
            yield self._event(p, KafkaError.UNKNOWN_TOPIC_OR_PART)
            return
        p.high = log.high
        epoch = p.leader_epoch
        if epoch is not None and log.leader_epoch > epoch and log.end_of_epoch(epoch) < p.at:
            self.world.visited("truncation noticed")
            yield self._event(p, KafkaError._LOG_TRUNCATION)
        elif p.at < log.start or p.at > log.end:
            self.world.visited("out of range")
            yield self._event(p, KafkaError.OFFSET_OUT_OF_RANGE)
        else:
            yield from self._chunks(p, log)

    @staticmethod
    def _event(p: Position, code: int) -> Event:
        return Event(p.topic, p.partition, KafkaError(code))

    def _chunks(self, p: Position, log: Log) -> Iterator[Chunk]:
        end = log.stable()
        entries = log.entries[bisect.bisect_left(log.offsets, p.at) : bisect.bisect_left(log.offsets, end)]
        if not entries:
            yield Chunk(p.topic, p.partition, end, log.leader_epoch)
        pick = self.scheduler.chooser.pick
        for epoch, group in groupby(entries, lambda e: e.leader_epoch):
            left = list(group)
            while left:
                size = 1 + pick(len(left), "chunk") if len(left) > 1 else 1
                some, left = left[:size], left[size:]
                chunk = Chunk(p.topic, p.partition, some[-1].offset + 1, epoch)
                records = [e for e in some if not e.marker and (e.txn is None or e.txn.state == "committed")]
                if records and self._whole and p.topic not in self._apart and pick(2, "whole"):
                    chunk.wholes = list(self._wholes(records))
                    chunk.alone = len(chunk.wholes) == 1 and bool(pick(2, "alone"))
                elif records:
                    chunk.rows = _rows(records, [e.offset for e in records])
                yield chunk

    def _wholes(self, records: list[Entry]) -> Iterator[Whole]:
        """No offset is missing in a batch; but where one ends is its producer's choice."""
        batch: list[Entry] = []
        for entry in records:
            if batch and (
                entry.offset != batch[-1].offset + 1 or self.scheduler.chooser.pick(3, "batch ends") == 0
            ):
                yield _whole(batch)
                batch = []
            batch.append(entry)
        yield _whole(batch)


def _rows(entries: list[Entry], offsets: list[int]) -> pa.RecordBatch:
    own: list[Headers] = [e.headers for e in entries]
    return encode_rows(
        offsets,
        [e.timestamp for e in entries],
        [1] * len(entries),
        [e.key for e in entries],
        [e.value for e in entries],
        own if any(own) else None,
    )


def _whole(entries: list[Entry]) -> Whole:
    """A batch as a broker has it: its producer's, with the base offset and the leader epoch written in."""
    (records,) = encode_records(_rows(entries, list(range(len(entries)))), 1 << 30)
    raw = bytearray(b"".join(bytes(piece) for piece in record_batch.seal(records, "lz4")))
    struct.pack_into(">q", raw, 0, entries[0].offset)
    struct.pack_into(">i", raw, 12, entries[0].leader_epoch)
    data = pa.py_buffer(bytes(raw))
    return next(record_batch.headers(data))[1], data
