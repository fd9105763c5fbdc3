"""Delivery from one staging partition: frames in, transactions out, exactly once.

A thread runs one Delivery: take frames, decide (deduplicator/dedup.py), produce what is new, then in the same transaction the mappings
and the staging position. Blocking calls are welcome here; while one transaction commits, the next frames gather in the inbox, so
transactions grow with the load by themselves.

An unclean outcome is never judged from an exception: the producer is dropped, and state and position are loaded again, together.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from common import kafka
from common.control import DEDUPLICATOR, Control, Destination, Key
from common.errors import Deposed, FrameError, KafkaTimeout, UncleanTransaction
from common.frame import Frame, Rows, decode_headers, decode_rows
from common.kafka import Deadline, Received
from common.lane import LaneTerm
from common.routing import staging_partition
from deduplicator import mappings, stuck
from deduplicator.dedup import Action, Decision, decide
from deduplicator.mappings import Mapping
from deduplicator.recovery import Snapshot, recover
from deduplicator.runs import Run, contiguous, merge, segments
from deduplicator.stuck import Stuck

log = logging.getLogger(__name__)

TRANSACTION_S = 0.25
"""A transaction that still has input ends after so long."""
TRANSACTION_BYTES = 16 << 20
TRANSACTION_RUNS = 20_000
"""Runs go into mapping records: on sparse sources each record is one."""
SLOW_COMMIT_S = 5.0
"""Past this, librdkafka may have sent EndTxn again: the first request, delayed, could end this producer's next transaction."""
CALL_S = 30.0
RECOVERY_S = 60.0
KEEP_OFFSETS_S = 3600.0
DUPLICATES_S = 5.0
"""How long a position that moved over duplicates only may stay uncommitted."""


MAX_BATCH_BYTES = 1_000_000


def _batch_within(max_message_bytes: int) -> int:
    """Producer batches that a topic with this limit takes, envelope and all."""
    return max(1, min(MAX_BATCH_BYTES, max_message_bytes * 9 // 10))


class _Again(Exception):
    """Abort, and go through recovery: from `position` if given."""

    def __init__(self, why: str, position: int | None = None) -> None:
        super().__init__(why)
        self.position = position


class Waiting(Exception):
    """The destination of a frame is not made yet."""


@dataclass(slots=True)
class Moved:
    """What a transaction does to one source partition."""

    frame: Frame
    start: int
    next: int
    destination: Destination
    runs: list[Run] = field(default_factory=list)
    records: int = 0
    duplicates: int = 0
    lost: int = 0


class Inbox:
    """Frames on their way from the lane's consumer to a delivery, counted in bytes."""

    def __init__(self) -> None:
        self._items: deque[Received] = deque()
        self._arrived = threading.Condition()
        self.bytes = 0
        self.generation = 0

    def put(self, messages: list[Received], generation: int) -> None:
        """Add messages read since the position was set for the `generation`th time; older ones are dropped."""
        with self._arrived:
            if generation == self.generation:
                self._items.extend(messages)
                self.bytes += sum(map(len, messages))
                self._arrived.notify()

    def take(self, timeout: float) -> Received | None:
        with self._arrived:
            if not self._items:
                self._arrived.wait(timeout)
            if not self._items:
                return None
            message = self._items.popleft()
            self.bytes -= len(message)
            return message

    def empty(self) -> bool:
        return not self._items

    def restart(self) -> int:
        """Forget what is in here and what is still on its way; the new generation."""
        with self._arrived:
            self._items.clear()
            self.bytes = 0
            self.generation += 1
            return self.generation

    def wake(self) -> None:
        with self._arrived:
            self._arrived.notify()


class Delivery:
    """One staging partition, owned by one lane.

    `group_metadata` was asked of the lane's consumer once, since it has no members and never changes: the client lets only one thread at
    a time into a consumer, and the lane's is in `poll` all the time.
    `read_from` gets (generation, offset) when the lane is to read from there."""

    def __init__(
        self,
        plan: dict[str, Any],
        share: dict[str, Any],
        term: LaneTerm,
        group_metadata: Any,
        admin: AdminClient,
    ) -> None:
        self.plan = plan
        self.partition: int = share["partition"]
        self.end: int | None = share["end"]
        self.snapshot = Snapshot.from_plan(share)
        self.term = term
        self.inbox = Inbox()
        self.read_from: deque[tuple[int, int]] = deque()
        self.restart = False
        """Set by the lane when staging no longer has what it is reading."""
        self.failure: BaseException | None = None
        self.refusal: str | None = None
        self.stopping = False
        self.position = -1
        self.delivered = 0
        self.duplicates = 0
        self.frames = 0
        self.transactions = 0
        self.recoveries = 0
        self.stuck: dict[Key, Stuck] = {}
        self._group_metadata = group_metadata
        self._admin = admin
        self._producer: Producer | None = None
        self._next: dict[Key, int] = {}
        self._complete = False
        self._trouble = False
        self._moved: dict[Key, Moved] = {}
        self._open = False
        self._opened = 0.0
        self._bytes = 0
        self._runs = 0
        self._failed: list[tuple[Run | None, KafkaError]] = []
        self._one_by_one: set[str] = set()
        self._batch_bytes = MAX_BATCH_BYTES
        self._bad: dict[Key, tuple[int, str, str]] = {}
        """Records that can't be delivered: source offset, reason, detail."""
        self._committed = -1
        self._committed_at = time.monotonic()
        self._answered: dict[Key, int] = {}
        self._pending: Received | None = None
        self._pause = 0.1
        self._resume_at: int | None = None
        """Where to read from after the next recovery, when that is not where the last transaction ended."""
        self._closing: dict[Key, str] = {}
        self.thread = threading.Thread(target=self._main, name=f"delivery-{self.partition}", daemon=True)

    @property
    def name(self) -> str:
        return f"{self.plan['staging_topic']}-{self.partition}"

    def done(self) -> bool:
        """In a bounded run: whether everything up to the end it was given is committed."""
        return self.end is not None and self.position >= self.end and self._committed >= self.end

    # the thread

    def _main(self) -> None:
        try:
            while not self.stopping:
                try:
                    if self._producer is None:
                        self._recover()
                    self._turn()
                except _Again as again:
                    log.info("%s: %s", self.name, again)
                    self._resume_at = again.position
                    self._abandon()
                except (UncleanTransaction, KafkaException, KafkaTimeout) as error:
                    self._ride_out(error)
        except Deposed as error:
            log.info("%s: %s", self.name, error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the lane must hear of it
            self.failure = error
        finally:
            self._close()

    def _ride_out(self, error: Exception) -> None:
        reason = kafka.kafka_error(error)
        if reason is not None and reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            # Only the ends of a run are reported: do it again, each record by itself, to learn which one it is.
            self._one_by_one |= {m.destination.topic for m in self._moved.values()}
        self._abandon()
        if reason is not None and reason.code() in kafka.NO_RIGHTS:
            self.refusal = f"{self.name}: {reason.str()}"
            self.stopping = True
            return
        if not self.stopping:
            log.warning("%s: transaction given up, going through recovery: %s", self.name, error)
            time.sleep(self._pause)
            self._pause = min(5.0, self._pause * 2)

    def _turn(self) -> None:
        """Gather one transaction and commit it."""
        if self.restart:
            raise _Again("staging was cut under the reader")
        self._answer_asks()
        self._go_back_where_cleared()
        # A message with an empty value counts as false.
        message = self._pending if self._pending is not None else self.inbox.take(0.2)
        self._pending = None
        now = time.monotonic()
        if message is None:
            self._when_idle(now)
            return
        while message is not None:
            try:
                self._take(message)
            except Waiting:
                self._pending = message
                break
            if self._full(time.monotonic()):
                break
            message = None if self.inbox.empty() else self.inbox.take(0.0)
        if self._open:
            self._commit()
        else:
            self._settle()
            if self.position != self._committed:
                self._when_idle(time.monotonic())
        if self._pending is not None:
            time.sleep(0.1)

    def _full(self, now: float) -> bool:
        if not self._open:
            return self.stopping
        return (
            self.stopping
            or now - self._opened >= TRANSACTION_S
            or self._bytes >= TRANSACTION_BYTES
            or self._runs >= TRANSACTION_RUNS
        )

    def _when_idle(self, now: float) -> None:
        """Commit a position that moved over duplicates only, and from time to time the same one again: a group without members loses
        its offsets after some days."""
        since = now - self._committed_at
        moved = self.position != self._committed
        at_end = self.end is not None and self.position >= self.end
        if (moved and (since > DUPLICATES_S or at_end)) or since > KEEP_OFFSETS_S:
            self._begin()
            self._commit()

    # one frame

    def _take(self, message: Received) -> None:
        offset = message.offset()
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self.position = max(self.position, offset)
            return
        if offset < self.position:
            return
        self._judge(message)
        self.position = offset + 1
        self.frames += 1

    def _judge(self, message: Received) -> None:
        offset = message.offset()
        try:
            frame, crc = decode_headers(message.headers())
        except (FrameError, UnicodeDecodeError) as error:
            log.error(
                "%s offset %d: %s; left out: if it was a frame, its records will be asked for again",
                self.name,
                offset,
                error,
            )
            return
        key = (frame.topic_id, frame.partition)
        if frame.cluster != self.plan["cluster"]:
            log.error(
                "%s offset %d: frame of cluster %s, which is not this link's source; left out",
                self.name,
                offset,
                frame.cluster,
            )
            return
        decision = decide(self._next.get(key), frame, self._complete)
        if decision.action is Action.SEEN:
            self.duplicates += frame.count
            if key in self._moved:
                self._moved[key].duplicates += frame.count
            self._close_gap(key)
            return
        if decision.action is Action.HOLE:
            self._skip(
                key,
                frame,
                offset,
                stuck.MISSING,
                f"frames before source offset {frame.start} are missing from staging",
            )
            return
        if decision.action is Action.UNKNOWN:
            self._unknown(key, frame, offset)
            return
        destination = self._destination(key, frame, offset)
        if destination is None:
            return
        try:
            rows = decode_rows(frame, crc, message.value())
        except FrameError as error:
            log.error("%s offset %d: %s; asking for it again", self.name, offset, error)
            self._skip(key, frame, offset, stuck.MISSING, str(error))
            return
        self._deliver(key, frame, rows.from_offset(decision.from_offset), decision, destination, offset)
        self._bytes += len(message)

    def _unknown(self, key: Key, frame: Frame, offset: int) -> None:
        if self._complete:
            # Its origin frame was lost from staging: everything from the origin is asked for.
            self._skip(
                key, frame, offset, stuck.MISSING, "the first frame of the partition is missing from staging"
            )
            return
        self._skip(
            key,
            frame,
            offset,
            stuck.STATE_LOST,
            f"nothing is known of {frame.topic}-{frame.partition}: the mappings were cut before the Delta table had them, so how far it was "
            f"delivered can't be known; find its last delivered source offset and run: verbatim accept-loss {frame.topic} {frame.partition} "
            "--next OFFSET",
        )

    def _destination(self, key: Key, frame: Frame, offset: int) -> Destination | None:
        destination = self.term.state.destinations.get(frame.topic_id)
        if destination is not None and destination.refused is not None:
            self._skip(key, frame, offset, stuck.REFUSED, destination.refused)
            return None
        if destination is None or frame.partition >= destination.partitions:
            if self._described(frame):
                raise Waiting
            log.error(
                "%s offset %d: frame of %s-%d (topic id %s), which the replicator never described; left out",
                self.name,
                offset,
                frame.topic,
                frame.partition,
                frame.topic_id,
            )
            return None
        if _batch_within(destination.max_message_bytes) < self._batch_bytes:
            raise _Again(f"{destination.topic} takes only smaller batches")
        return destination

    def _described(self, frame: Frame) -> bool:
        """Whether the replicator has said that there is such a partition: it does so before the first frame."""

        def there(state: Control) -> bool:
            source = state.topics.get(frame.topic_id)
            return source is not None and frame.partition < source.partitions

        return there(self.term.state) or there(self.term.control.refresh(Deadline(CALL_S)))

    def _deliver(
        self, key: Key, frame: Frame, rows: Rows, decision: Decision, destination: Destination, offset: int
    ) -> None:
        assert decision.next is not None
        reached = decision.next
        rows, bad = self._deliverable(key, frame, rows)
        if bad is not None:
            reached = bad[0]
        if bad is None or decision.first or reached > self._next.get(key, -1):
            self._begin()
            moved = self._moved.get(key)
            if moved is None:
                start = self._next.get(key, frame.start)
                moved = self._moved[key] = Moved(frame, start, reached, destination)
            moved.next = reached
            moved.records += len(rows.offsets)
            if bad is None:
                # Of a frame that was seen in part.
                moved.duplicates += frame.count - len(rows.offsets)
                self.duplicates += frame.count - len(rows.offsets)
            moved.lost += decision.lost
            self._next[key] = reached
            if rows.offsets:
                self._produce(moved, destination, frame.partition, rows)
        if bad is not None:
            self._skip(key, frame, offset, bad[1], bad[2], available=bad[0] + 1)
        elif frame.gap and key in self.stuck:
            # What was skipped while the partition stood still comes now, in order: go back to it.
            trouble = self.stuck[key]
            trouble.until = max(trouble.until, offset)
            trouble.returning = True
            self._bad.pop(key, None)
            self._commit()
            raise _Again(
                f"going back to offset {trouble.held} for {frame.topic}-{frame.partition}", trouble.held
            )
        else:
            self._close_gap(key)

    def _deliverable(self, key: Key, frame: Frame, rows: Rows) -> tuple[Rows, tuple[int, str, str] | None]:
        """The rows up to the first one that can't be delivered, and why that one can't."""
        bad = self._bad.get(key)
        if rows.timestamps and min(rows.timestamps) <= 0:
            at = next(i for i, t in enumerate(rows.timestamps) if t <= 0)
            if bad is None or rows.offsets[at] < bad[0]:
                # librdkafka takes 0 for "now" and can't send less, so the timestamp would be altered.
                bad = (
                    rows.offsets[at],
                    stuck.TIMESTAMP,
                    (
                        f"record {rows.offsets[at]} of {frame.topic}-{frame.partition} has timestamp {rows.timestamps[at]}, which can't "
                        "be produced unaltered"
                    ),
                )
        if bad is None or not rows.offsets or bad[0] > rows.offsets[-1] or bad[0] < rows.offsets[0]:
            return rows, None
        keep = sum(1 for o in rows.offsets if o < bad[0])
        headers = rows.headers[:keep] if rows.headers is not None else None
        return Rows(
            rows.offsets[:keep], rows.timestamps[:keep], rows.keys[:keep], rows.values[:keep], headers
        ), bad

    def _produce(self, moved: Moved, destination: Destination, partition: int, rows: Rows) -> None:
        if destination.topic in self._one_by_one:
            parts = [(i, i + 1) for i in range(len(rows.offsets))]
        else:
            parts = segments(rows.offsets)
        topic = destination.topic
        for begin, end in parts:
            run = Run(rows.offsets[begin], end - begin)
            moved.runs.append(run)
            self._runs += 1
            first = partial(self._reported, run, True, end - begin == 1)
            self._produce_rows(topic, partition, rows, begin, begin + 1, first)
            if end - begin > 2:
                self._produce_rows(topic, partition, rows, begin + 1, end - 1, None)
            if end - begin > 1:
                self._produce_rows(
                    topic, partition, rows, end - 1, end, partial(self._reported, run, False, True)
                )

    def _produce_rows(
        self,
        topic: str,
        partition: int,
        rows: Rows,
        begin: int,
        end: int,
        reported: Callable[..., None] | None,
    ) -> None:
        assert self._producer is not None
        # Any arguments: a list of headers of bytes is one that the client takes, but not by its type.
        produce: Callable[..., None] = self._producer.produce
        values, keys, stamps, headers = rows.values, rows.keys, rows.timestamps, rows.headers
        at = resumed = begin
        while resumed < end:
            try:
                if headers is None:
                    for at in range(resumed, end):
                        produce(topic, values[at], keys[at], partition, reported, None, stamps[at])
                else:
                    for at in range(resumed, end):
                        produce(
                            topic, values[at], keys[at], partition, reported, None, stamps[at], headers[at]
                        )
                return
            except BufferError:
                # The queue is full: the record at `at` was not taken, those before it were.
                resumed = at
                self._producer.poll(0.05)
                if time.monotonic() - self._opened > CALL_S:
                    raise UncleanTransaction("the target took no records for too long") from None

    # partitions that can't go on

    def _skip(
        self, key: Key, frame: Frame, offset: int, reason: str, detail: str, available: int | None = None
    ) -> None:
        trouble = self.stuck.get(key)
        now = time.monotonic()
        if trouble is None or (trouble.reason != reason and reason != stuck.MISSING):
            held, start = (offset, frame.start) if trouble is None else (trouble.held, trouble.held_start)
            trouble = self.stuck[key] = Stuck(reason, held, start, frame.next)
            if reason != stuck.MISSING:
                self._tell_halt(key, frame, trouble, detail, available)
        trouble.held_end = max(trouble.held_end, frame.next)
        if trouble.reason == stuck.MISSING and not self._lost_at_source(key) and trouble.asks_now(now):
            log.warning(
                "%s-%d: %s; asking to send again from %s",
                frame.topic,
                frame.partition,
                detail,
                self._next.get(key, "its origin"),
            )
            self.term.control.append(
                "resend",
                Deadline(CALL_S),
                topic=frame.topic,
                topic_id=key[0],
                partition=key[1],
                next=self._next.get(key),
                held=[self.partition, trouble.held],
                held_start=trouble.held_start,
            )

    def _lost_at_source(self, key: Key) -> bool:
        """Whether the replicator has said that it can't send again what is asked for."""
        halt = self.term.state.halts.get(("replicator", key))
        return halt is not None and halt.next == self._next.get(key)

    def _tell_halt(self, key: Key, frame: Frame, trouble: Stuck, detail: str, available: int | None) -> None:
        halt = self.term.state.halts.get((DEDUPLICATOR, key))
        next_offset = self._next.get(key)
        if halt is not None and (halt.reason, halt.next, halt.detail) == (
            trouble.reason,
            next_offset,
            detail,
        ):
            return
        self.term.control.append(
            "halted",
            Deadline(CALL_S),
            application=DEDUPLICATOR,
            topic=frame.topic,
            topic_id=key[0],
            partition=key[1],
            reason=trouble.reason,
            detail=detail,
            next=next_offset,
            available=available,
            held=[self.partition, trouble.held],
            held_start=trouble.held_start,
        )

    def _close_gap(self, key: Key) -> None:
        """The partition moves again: once past all that was skipped, nothing needs to be held any more."""
        trouble = self.stuck.get(key)
        if trouble is not None and trouble.closed(self._next[key], self.position):
            self._closing[key] = self._moved[key].frame.topic if key in self._moved else ""

    def _settle(self) -> None:
        """Say which partitions go on, after the transaction that moved them is committed: said before, and aborted, what they skipped
        could be trimmed although it is needed again."""
        for key, trouble in self.stuck.items():
            # A frame is judged before the position has passed it: after the last one that was skipped, it shows only here.
            if trouble.closed(self._next.get(key, -1), self.position):
                self._closing.setdefault(key, "")
            elif self.position >= trouble.until:
                trouble.returning = False
        for key, topic in self._closing.items():
            if self.stuck.pop(key, None) is not None:
                self.term.control.append(
                    "resumed",
                    Deadline(CALL_S),
                    application=DEDUPLICATOR,
                    topic=topic,
                    topic_id=key[0],
                    partition=key[1],
                )
        self._closing = {}

    def _go_back_where_cleared(self) -> None:
        """A destination that was refused is accepted now: go back to the first frame that was skipped for it."""
        cleared: list[str] = []
        for key, trouble in self.stuck.items():
            if trouble.reason != stuck.REFUSED:
                continue
            destination = self.term.state.destinations.get(key[0])
            if destination is not None and destination.refused is None:
                trouble.reason = stuck.MISSING
                trouble.until = max(trouble.until, self.position)
                trouble.returning = True
                cleared.append(destination.topic)
        if cleared:
            # All at once: a second return, to a later offset, would leave out what the first one has not read again yet.
            raise _Again(f"{', '.join(cleared)}: fit again, going back to the first frame skipped")

    def _answer_asks(self) -> None:
        """Tell the replicator how far a partition is, once all that is in staging now has been delivered."""
        asks = {
            k: a
            for k, a in self.term.state.asks.copy().items()
            if self._answered.get(k, -1) < a.at and self._mine(k, a.topic)
        }
        if not asks or not self.inbox.empty():
            return
        _, high = kafka.watermarks(self._admin, self.plan["staging_topic"], self.partition, Deadline(CALL_S))
        if self.position < high:
            return
        for key, ask in asks.items():
            self._answered[key] = ask.at
            if key not in self._next and not self._complete:
                continue
            trouble = self.stuck.get(key)
            self.term.control.append(
                "resend",
                Deadline(CALL_S),
                topic=ask.topic,
                topic_id=key[0],
                partition=key[1],
                next=self._next.get(key),
                **(
                    {}
                    if trouble is None
                    else {"held": [self.partition, trouble.held], "held_start": trouble.held_start}
                ),
            )

    def _mine(self, key: Key, topic: str) -> bool:
        return staging_partition(topic, key[1], self.plan["staging_partitions"]) == self.partition

    # the transaction

    def _begin(self) -> None:
        if self._open:
            return
        assert self._producer is not None
        self._producer.poll(0)
        self._trouble = False
        self._failed = []
        self._producer.begin_transaction()
        self._open = True
        self._opened = time.monotonic()
        self._bytes = self._runs = 0

    def _commit(self) -> None:
        """Records are there; add mappings and position, and commit. Afterwards the producer is used again only if all was clean."""
        assert self._producer is not None
        producer = self._producer
        deadline = Deadline(CALL_S)
        if self._moved:
            while producer.flush(deadline.left(1.0)) > 0 and not self._failed:
                if deadline.passed():
                    raise UncleanTransaction("records were not acknowledged in time")
                # A record that is refused fails the transaction, and what waits behind it is never sent. Where it is one without a
                # report, this call is what tells.
                self._send_position(deadline)
            self._check_reports()
            for moved in self._moved.values():
                key, value = mappings.encode(self._mapping(moved))
                producer.produce(
                    self.plan["mappings_topic"], value, key, self.partition, on_delivery=self._unreported
                )
        self._send_position(deadline)
        began = time.monotonic()
        producer.commit_transaction(max(1.0, deadline.left()))
        took = time.monotonic() - began
        self._open = False
        self.delivered += sum(m.records for m in self._moved.values())
        self._moved = {}
        self._committed = self.position
        self._committed_at = time.monotonic()
        self.transactions += 1
        self._pause = 0.1
        self._settle()
        self._must_be_clean(producer, took)

    def _must_be_clean(self, producer: Producer, took_s: float) -> None:
        """Raise UncleanTransaction unless this producer may begin another transaction after one that ended well.

        librdkafka repeats EndTxn by itself: the first request, still on its way, could arrive within the next transaction of the same
        producer and commit it half done, or abort its first half and let the rest commit.
        """
        producer.poll(0)
        if self._trouble or took_s > SLOW_COMMIT_S:
            raise UncleanTransaction(
                f"its end took {took_s:.1f} s or saw a connection error; the producer is not used again"
            )

    def _send_position(self, deadline: Deadline) -> None:
        assert self._producer is not None
        self._producer.send_offsets_to_transaction(
            [TopicPartition(self.plan["staging_topic"], self.partition, self.position)],
            self._group_metadata,
            deadline.left(),
        )

    def _mapping(self, moved: Moved) -> Mapping:
        f = moved.frame
        return Mapping(
            f.cluster,
            f.topic,
            f.topic_id,
            f.partition,
            moved.start,
            moved.next,
            moved.destination.topic,
            f.partition,
            self.position,
            moved.records,
            moved.duplicates,
            moved.lost,
            merge(moved.runs),
        )

    def _check_reports(self) -> None:
        if self._failed:
            run, error = self._failed[0]
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._too_large(run)
            raise UncleanTransaction(f"a record was not acknowledged: {error.str()}")
        for moved in self._moved.values():
            if not all(contiguous(run) for run in moved.runs):
                topic = moved.destination.topic
                if topic in self._one_by_one:
                    raise UncleanTransaction(
                        f"records of {topic}-{moved.frame.partition} were not all reported"
                    )
                log.warning(
                    "%s-%d: another writer's records came between; from now on each record is reported. Nobody else should write to a "
                    "copied topic",
                    topic,
                    moved.frame.partition,
                )
                self._one_by_one.add(topic)
                raise _Again("run of destination offsets broken by another writer")

    def _too_large(self, run: Run | None) -> None:
        for key, moved in self._moved.items():
            if run is not None and any(run is r for r in moved.runs):
                where = f"{moved.frame.topic}-{moved.frame.partition}"
                if run.length == 1:
                    self._bad[key] = (
                        run.source,
                        stuck.TOO_LARGE,
                        f"record {run.source} of {where} is larger than max.message.bytes of {moved.destination.topic} allows; raise it",
                    )
                else:
                    self._one_by_one.add(moved.destination.topic)
                raise _Again(f"a record of {where} is too large for {moved.destination.topic}")
        self._one_by_one |= {m.destination.topic for m in self._moved.values()}
        raise _Again("a record is too large for its destination")

    def _reported(
        self, run: Run, first: bool, last: bool, error: KafkaError | None, message: Message
    ) -> None:
        if error is not None:
            self._failed.append((run, error))
            return
        if first:
            run.first = message.offset()
        if last:
            run.last = message.offset()

    def _unreported(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append((None, error))

    def _on_error(self, error: KafkaError) -> None:
        self._trouble = True

    # recovery

    def _recover(self) -> None:
        """Fence, then load state and position."""
        plan = self.plan
        deadline = Deadline(RECOVERY_S)
        self._abandon()
        self.recoveries += 1
        self.term.must_lead(deadline)
        limits = [d.max_message_bytes for d in self.term.state.destinations.copy().values()]
        self._batch_bytes = min([MAX_BATCH_BYTES, *(_batch_within(limit) for limit in limits)])
        producer = kafka.producer(
            plan["producer"],
            transactional_id=f"{plan['link']}.{self.partition}",
            transaction_timeout_ms=60_000,
            batch_size=self._batch_bytes,
            linger_ms=5,
            queue_buffering_max_kbytes=max(65536, 3 * TRANSACTION_BYTES // 1024),
            error_cb=self._on_error,
        )
        kafka.patiently(f"fencing {self.name}", lambda t: producer.init_transactions(t), deadline)
        # A record of our own shows where the log really ends: acknowledged by all replicas, it stands behind every commit of a
        # predecessor, some of which may not be visible yet. Its transaction is aborted, so that nobody ever reads it.
        fence: list[int] = []
        producer.poll(0)
        self._trouble = False
        producer.begin_transaction()

        def fenced(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                fence.append(offset)

        producer.produce(plan["mappings_topic"], b"fence", None, self.partition, on_delivery=fenced)
        producer.flush(deadline.left())
        if not fence:
            raise UncleanTransaction("the end of the mappings could not be found")
        began = time.monotonic()
        producer.abort_transaction(max(1.0, deadline.left()))
        self._must_be_clean(producer, time.monotonic() - began)
        found = recover(
            self.snapshot,
            plan["mappings_topic"],
            plan["staging_topic"],
            self.partition,
            fence[0],
            plan["reader"],
            plan["group"],
            self._admin,
            deadline,
        )
        self._producer = producer
        self._next = found.next
        self._complete = found.complete
        self._inherit_holds(found.position)
        start = found.position
        if self._resume_at is not None:
            start = min(start, self._resume_at)
        # Also when a transaction fails after the return: the committed position still lies behind what was skipped.
        start = min([start, *(t.held for t in self.stuck.values() if t.returning)])
        self._resume_at = None
        low, _ = kafka.watermarks(self._admin, plan["staging_topic"], self.partition, deadline)
        start = max(start, low)
        self.position = start
        self._committed = found.position
        self.restart = False
        self.read_from.append((self.inbox.restart(), start))
        log.info("%s: owned, %d partitions known, reading from %d", self.name, len(self._next), start)

    def _inherit_holds(self, position: int) -> None:
        state = self.term.state
        for key, hold in state.holds.copy().items():
            if hold.held is not None and hold.held[0] == self.partition and key not in self.stuck:
                halt = state.halts.get((DEDUPLICATOR, key))
                start = hold.held_start if hold.held_start is not None else 0
                reason = halt.reason if halt else stuck.MISSING
                # Read again from the first skipped frame: what was halted may go on now, and only so is it known how far the skipped
                # frames reach, and thus when they need not be held any more.
                self.stuck[key] = Stuck(reason, hold.held[1], start, start, position, returning=True)

    def _abandon(self) -> None:
        """Drop the producer. Its transaction is aborted if that is easy; else the next owner's fencing does it."""
        producer, self._producer = self._producer, None
        self._moved = {}
        self._closing = {}
        self._pending = None
        was_open, self._open = self._open, False
        if producer is None:
            return
        try:
            producer.purge()
            if was_open:
                producer.abort_transaction(5.0)
        except KafkaException as error:
            log.debug("%s: aborting: %s", self.name, error)

    def _close(self) -> None:
        self._abandon()
