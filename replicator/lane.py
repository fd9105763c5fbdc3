"""The replicator's lane: moves records of its source partitions into frames on the staging topic, for one epoch.

A thin loop round replicator/copying.py:

    source consumer -> pending records -> frames -> topic id confirmed -> staging producer -> acknowledged -> position written

It decides nothing about duplicates. A delivery error ends the lane's writer: frames after a missing one must not be appended.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition

from common import kafka
from common.control import REPLICATOR, Consent, Request
from common.control_log import ControlLog
from common.counters import Counters, lag
from common.errors import FrameError, KafkaTimeout, VerbatimError
from common.frame import encode_headers, staging_key
from common.kafka import Deadline, ProducedHeaders, Received
from common.lane import LaneTerm, tame_garbage_collector
from common.routing import staging_partition
from common.topics import id_text
from replicator import positions
from replicator.copying import Copying, Cut, Status
from replicator.positions import Position

log = logging.getLogger(__name__)

CONSUME = 5000
LINGER_S = 0.003
"""How long the first record of a frame waits for company."""
IDLE_POLL_S = 0.05
POSITION_INTERVAL_S = 1.0
ASK_AGAIN_S = 30.0
UNCONFIRMED_BYTES = 64 << 20
"""Frames held back until their topic's id is confirmed: past this much nothing more is read."""
QUEUE_BYTES = 128 << 20
STOP_S = 5.0
CALL_S = 30.0


class WriterFailed(VerbatimError):
    """A frame could not be appended: the lane's writer has ended."""


def run(plan: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run a lane for one epoch and yield its progress rows."""
    logging.basicConfig(level=plan["log_level"], format="%(asctime)s %(levelname)s %(name)s %(message)s")
    tame_garbage_collector()
    lane = Lane(plan)
    try:
        yield from lane.run()
    finally:
        lane.close()


class Lane:
    """One epoch of one lane."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.bounded: bool = plan["bounded"]
        self.writer = (
            f"{plan['instance']}/{plan['term']}.{plan['epoch']}.{plan['lane']}.{uuid.uuid4().hex[:6]}"
        )
        self.control = ControlLog(
            plan["control_topic"], plan["control_consumer"], plan["control_producer"], plan["control_admin"]
        )
        self.term = LaneTerm(plan, self.control)
        self.counters = Counters(
            REPLICATOR, plan["term"], plan["epoch"], plan["lane"], plan["positions_topic"]
        )
        self.copies = {
            (p["topic"], p["partition"]): Copying(
                plan["cluster"],
                p["topic"],
                p["topic_id"],
                p["partition"],
                self.writer,
                p["origin"],
                p["position"] if p["position"] is not None else p["origin"],
                p["leader_epoch"],
                p["handled"],
                p["end"],
            )
            for p in plan["partitions"]
        }
        self.new = {
            c.key
            for c, p in zip(self.copies.values(), plan["partitions"], strict=True)
            if p["position"] is None
        }
        self.rows: list[tuple[str, dict[str, Any]]] = []
        self.consumer: Consumer | None = None
        self.admin = kafka.admin(plan["source_admin"])
        self.producer: Producer = kafka.producer(
            plan["staging_producer"],
            linger_ms=0,
            batch_size=1_000_000,
            queue_buffering_max_kbytes=QUEUE_BYTES >> 10,
        )
        self.failed: tuple[Cut, KafkaError] | None = None
        self.unconfirmed: deque[tuple[Cut, float]] = deque()
        self.unconfirmed_bytes = 0
        self.describing: tuple[float, dict[str, Any]] | None = None
        self.describe_after = 0.0
        self.positions_written = 0.0

    def run(self) -> Iterator[tuple[str, dict[str, Any]]]:
        self.control.refresh(Deadline(CALL_S))
        for copy in self.copies.values():
            # The frame of a position holds nothing: if staging was cut, it shows the deduplicator that frames before it are missing, even
            # when no record ever comes again.
            self._hold_back(copy.origin_frame() if copy.key in self.new else copy.position_frame())
        self._answer_demands(time.monotonic())
        self._read_from_positions()
        try:
            while not self._step():
                pass
        except WriterFailed as error:
            log.warning("%s", error)
        self._finish()
        for copy in self.copies.values():
            if copy.status is Status.ASKING:
                detail = f"the source no longer has position {copy.read} and the deduplicator has not said how far the destination is"
                self.rows.append(
                    ("halted", {"topic": copy.topic, "partition": copy.partition, "detail": detail})
                )
        yield from self.rows
        yield ("counts", {"records": self._total("records"), "frames": self._total("frames")})

    def close(self) -> None:
        if self.consumer is not None:
            self.consumer.close()
        self.control.close()

    # the loop

    def _step(self) -> bool:
        """One turn; whether the lane is done."""
        now = time.monotonic()
        self._consume(now)
        now = time.monotonic()
        self._cut(now)
        self._confirm(now)
        self.producer.poll(0)
        if self.failed is not None:
            self._writer_failed(*self.failed)
        self._write_positions(now)
        if self.term.look(now):
            self._answer_demands(now)
            self._check_waiting(now)
        return self.term.over(now) or (self.bounded and self._all_done())

    def _consume(self, now: float) -> None:
        """Read what is there into the copies."""
        assert self.consumer is not None
        if self.unconfirmed_bytes > UNCONFIRMED_BYTES:
            time.sleep(0.001)
            return
        messages = kafka.read(self.consumer, self._wait(now), CONSUME)
        now = time.monotonic()
        copy: Copying | None = None
        run: list[Received] = []
        topic, part = "", -1
        for message in messages:
            if message.error() is not None:
                # In order with the records before it: the end of a partition stands behind its last record.
                if run and copy is not None:
                    copy.take(run, now)
                    run = []
                    topic = ""
                self._on_event(message, now)
                continue
            if message.partition() != part or message.topic() != topic:
                if run and copy is not None:
                    copy.take(run, now)
                topic, part = message.topic(), message.partition()
                copy = self.copies.get((topic, part))
                run = []
            run.append(message)
        if run and copy is not None:
            copy.take(run, now)

    def _wait(self, now: float) -> float:
        if self.describing is not None:
            return 0.0005
        if self.unconfirmed:
            return 0.0
        oldest = min((c.pending_since for c in self.copies.values() if c.pending), default=None)
        return IDLE_POLL_S if oldest is None else max(0.0, oldest + LINGER_S - now)

    def _on_event(self, message: Received, now: float) -> None:
        error = message.error()
        assert error is not None
        code = error.code()
        copy = self.copies.get((message.topic(), message.partition()))
        if code == KafkaError._PARTITION_EOF:
            if copy is not None and copy.status is Status.RUNNING:
                copy.at_end(message.offset())
        elif code in (
            KafkaError._AUTO_OFFSET_RESET,
            KafkaError.OFFSET_OUT_OF_RANGE,
            KafkaError._LOG_TRUNCATION,
        ):
            if copy is not None and copy.status is Status.RUNNING:
                self._lost_position(copy, error, now)
        elif code in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
        ):
            # Deleted, or not known yet to the broker asked: the next plan tells.
            self._replan(f"{message.topic()}: {error.str()}")
        elif code in kafka.NO_RIGHTS:
            for other in self.copies.values():
                if message.topic() in (other.topic, None) and other.status is Status.RUNNING:
                    self._halt(
                        other, "not-authorized", f"the source refuses to be read: {error.str()}", None, None
                    )
        elif not kafka.retriable(error):
            log.warning("source: %s", error.str())

    def _cut(self, now: float) -> None:
        for copy in self.copies.values():
            if copy.status is not Status.RUNNING or copy.cut_at >= copy.read:
                continue
            ripe = not copy.pending or now - copy.pending_since >= LINGER_S
            if not ripe and not copy.full():
                continue
            try:
                for cut in copy.cut(ripe):
                    self._hold_back(cut)
            except FrameError as error:
                self._halt(copy, "unreadable-header", str(error), copy.cut_at, None)

    # topic ids

    def _hold_back(self, cut: Cut) -> None:
        self.unconfirmed.append((cut, time.monotonic()))
        self.unconfirmed_bytes += len(cut.value)

    def _confirm(self, now: float) -> None:
        """Release the frames whose topic still has its id.

        librdkafka goes on in a topic that was deleted and made again at the old offset, without an error: its metadata refresh takes the
        new id and keeps the position. So a frame leaves only after a DescribeTopics that was sent after its records had been
        fetched still tells the id it carries: ids never come back, so the topic was the same when they were fetched.
        """
        if self.describing is None:
            if not self.unconfirmed or now < self.describe_after:
                return
            topics = sorted({cut.frame.topic for cut, _ in self.unconfirmed})
            sent = time.monotonic()
            futures = self.admin.describe_topics(TopicCollection(topics), request_timeout=10)
            self.describing = (sent, futures)
            return
        sent, futures = self.describing
        if not all(future.done() for future in futures.values()):
            return
        self.describing = None
        ids: dict[str, str | None] = {}
        for topic, future in futures.items():
            try:
                ids[topic] = id_text(future.result().topic_id)
            except KafkaException as exception:
                error = kafka.kafka_error(exception)
                if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    ids[topic] = None
                else:
                    log.warning("describing topic %s at the source: %s", topic, exception)
                    self.describe_after = now + 1.0
        kept: deque[tuple[Cut, float]] = deque()
        for cut, cut_at in self.unconfirmed:
            frame = cut.frame
            if cut_at > sent or frame.topic not in ids:
                kept.append((cut, cut_at))
                continue
            self.unconfirmed_bytes -= len(cut.value)
            if ids[frame.topic] == frame.topic_id:
                self._send(cut)
            else:
                self._recreated(frame.topic)
        self.unconfirmed = kept

    def _recreated(self, topic: str) -> None:
        for copy in self.copies.values():
            if copy.topic == topic and copy.status is Status.RUNNING:
                copy.status = Status.HALTED
                copy.rewind(copy.acked)
        self._replan(f"topic {topic} was deleted or made again at the source")

    def _replan(self, why: str) -> None:
        if not any(kind == "replan" for kind, _ in self.rows):
            log.info("planning anew: %s", why)
            self.rows.append(("replan", {"why": why}))
            self.term.end_epoch(Deadline(CALL_S))

    # the staging side

    def _send(self, cut: Cut) -> None:
        copy = self.copies[(cut.frame.topic, cut.frame.partition)]
        if cut.generation != copy.generation:
            return
        frame = cut.frame
        if len(cut.value) > QUEUE_BYTES:
            # It would never fit into the producer's queue, whatever staging takes.
            self._writer_failed(cut, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        while True:
            try:
                self.producer.produce(
                    self.plan["staging_topic"],
                    cut.value,
                    staging_key(frame.topic, frame.partition),
                    staging_partition(frame.topic, frame.partition, self.plan["staging_partitions"]),
                    on_delivery=partial(self._delivered, copy, cut),
                    headers=cast("ProducedHeaders", encode_headers(frame, cut.value)),
                )
                return
            except BufferError:
                self.producer.poll(0.05)
                now = time.monotonic()
                self.term.look(now)
                if self.failed is not None or self.term.over(now):
                    raise WriterFailed("the epoch ended while staging took no more frames") from None
            except KafkaException as exception:
                error = kafka.kafka_error(exception)
                self.failed = (cut, error) if error is not None else self.failed
                if error is None:
                    raise
                self._writer_failed(cut, error)

    def _delivered(self, copy: Copying, cut: Cut, error: KafkaError | None, _: Any) -> None:
        if error is None:
            if self.failed is None:
                copy.acknowledge(cut)
        elif self.failed is None:
            self.failed = (cut, error)

    def _writer_failed(self, cut: Cut, error: KafkaError) -> None:
        frame = cut.frame
        where = f"{frame.topic}-{frame.partition} [{frame.start}, {frame.next})"
        if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD):
            copy = self.copies[(frame.topic, frame.partition)]
            self._halt(
                copy,
                "staging-refused",
                f"the staging topic refuses the frame of {where}: {error.str()}; raise max.message.bytes of {self.plan['staging_topic']}",
                frame.start,
                None,
            )
        self.rows.append(("replan", {"why": f"a frame of {where} was not appended: {error.str()}"}))
        self.term.end_epoch(Deadline(CALL_S))
        raise WriterFailed(f"frame of {where} could not be appended to staging: {error.str()}")

    def _write_positions(self, now: float, force: bool = False) -> None:
        if not force and now - self.positions_written < POSITION_INTERVAL_S:
            return
        self.positions_written = now
        for copy in self.copies.values():
            if copy.recorded != copy.acked and copy.frames:
                key, value = positions.encode(
                    copy.topic, copy.key, Position(copy.acked, copy.leader_epoch, copy.answered)
                )
                self.producer.produce(self.plan["positions_topic"], value, key)
                copy.recorded = copy.acked
                self._resumed(copy)
        if force or self.counters.due(now):
            counts = {"records": self._total("records"), "frames": self._total("frames"), "lag": self._lag()}
            self.counters.write(self.producer, now, counts)

    def _finish(self) -> None:
        """Wait for what is in flight, then remember the positions. Frames not yet released are simply read again."""
        deadline = Deadline(STOP_S)
        self.producer.flush(deadline.left())
        if self.failed is None:
            self._write_positions(time.monotonic(), force=True)
            self.producer.flush(deadline.left())
        self.producer.purge()

    # reading

    def _read_from_positions(self) -> None:
        """Read all running partitions from where they are, with a consumer of its own.

        A new one rather than a seek: what an old consumer still has in its queue could stand behind the new position, and a frame that
        claims to cover the offsets between would be a loss.
        """
        if self.consumer is not None:
            self.consumer.close()
        self.consumer = kafka.consumer(
            self.plan["source_consumer"],
            group_id=self.plan["source_group"],
            isolation_level="read_committed",
            enable_partition_eof=True,
            check_crcs=True,
        )
        running = [c for c in self.copies.values() if c.status is Status.RUNNING]
        self.consumer.assign(
            [
                TopicPartition(c.topic, c.partition, c.read)
                if c.leader_epoch is None or c.read != c.acked
                else TopicPartition(c.topic, c.partition, c.read, leader_epoch=c.leader_epoch)
                for c in running
            ]
        )

    def _lost_position(self, copy: Copying, error: KafkaError, now: float) -> None:
        """The source has no record at the position: gone by retention, or the log is shorter than it was."""
        low, high = kafka.watermarks(self.admin, copy.topic, copy.partition, Deadline(CALL_S))
        if error.code() == KafkaError._LOG_TRUNCATION or copy.read > high:
            self._halt(
                copy,
                "source-truncated",
                f"the source log of {copy.name} was cut below position {copy.read} (it now ends at {high}): records copied before may "
                "differ from what the source holds now",
                copy.acked,
                low,
            )
        elif copy.read < low:
            # Only if something is lost: the position may merely be behind the deduplicator's.
            copy.status = Status.ASKING
            copy.rewind(copy.acked)
            self._ask(copy, now)
        else:
            log.warning(
                "%s: %s at position %d, log [%d, %d): reading again",
                copy.name,
                error.str(),
                copy.read,
                low,
                high,
            )
            self._read_from_positions()

    def _ask(self, copy: Copying, now: float) -> None:
        log.warning(
            "%s: the source no longer has position %d; asking how far the destination is",
            copy.name,
            copy.read,
        )
        copy.asked_at = self.control.append(
            "ask", Deadline(CALL_S), topic=copy.topic, topic_id=copy.topic_id, partition=copy.partition
        )
        copy.pending_since = now

    # demands: resend, answers, accepted losses

    def _answer_demands(self, now: float) -> None:
        rewound = False
        for copy in self.copies.values():
            resend = self.term.state.resends.get(copy.key)
            consent = self.term.state.consents.get(copy.key)
            demands: list[Request | Consent] = [
                d for d in (resend, consent) if d is not None and d.at > copy.handled
            ]
            if demands and consent is not None and resend is not None and _given_up(resend, consent):
                # What is asked for is what has been given up: the consent is the answer, also when its gap frame has to go again.
                demands = [consent]
                copy.handled = max(copy.handled, resend.at)
            for demand in sorted(demands, key=lambda d: d.at):
                copy.handled = max(copy.handled, demand.at)
                if isinstance(demand, Consent):
                    rewound |= self._accept_loss(copy, demand)
                else:
                    rewound |= self._resend(copy, demand)
        if rewound and self.consumer is not None:
            self._read_from_positions()

    def _resend(self, copy: Copying, demand: Request) -> bool:
        position = copy.origin if demand.next is None else demand.next
        low, high = self._source_watermarks(copy)
        if position < low:
            self._halt(
                copy,
                "source-lost",
                f"records [{position}, {low}) of {copy.name} are gone from the source before they reached the destination",
                position,
                low,
            )
            return False
        if position > high:
            self._halt(
                copy,
                "source-truncated",
                f"the source log of {copy.name} ends at {high}, below {position} which the destination has reached",
                position,
                low,
            )
            return False
        log.warning("%s: sending again from %d", copy.name, position)
        copy.rewind(position)
        copy.status = Status.RUNNING
        if demand.next is None:
            self._hold_back(copy.origin_frame())
        return True

    def _accept_loss(self, copy: Copying, consent: Consent) -> bool:
        if consent.to is None:
            return False
        start = consent.to if consent.next is None else consent.next
        log.warning(
            "%s: going on at %d; the loss of [%d, %d) is accepted: %s",
            copy.name,
            consent.to,
            start,
            consent.to,
            consent.reason,
        )
        copy.rewind(consent.to)
        copy.status = Status.RUNNING
        self._hold_back(copy.gap_frame(start, consent.to, consent.reason))
        return True

    def _source_watermarks(self, copy: Copying) -> tuple[int, int]:
        return kafka.watermarks(self.admin, copy.topic, copy.partition, Deadline(CALL_S))

    def _check_waiting(self, now: float) -> None:
        for copy in self.copies.values():
            if copy.status is Status.ASKING and now - copy.pending_since > ASK_AGAIN_S:
                self._ask(copy, now)

    # halts

    def _halt(
        self, copy: Copying, reason: str, detail: str, next_offset: int | None, available: int | None
    ) -> None:
        copy.status = Status.HALTED
        copy.rewind(copy.acked)
        halt = self.term.state.halts.get((REPLICATOR, copy.key))
        self.rows.append(("halted", {"topic": copy.topic, "partition": copy.partition, "detail": detail}))
        if halt is not None and (halt.reason, halt.next, halt.available) == (reason, next_offset, available):
            return
        self.control.append(
            "halted",
            Deadline(CALL_S),
            application=REPLICATOR,
            topic=copy.topic,
            topic_id=copy.topic_id,
            partition=copy.partition,
            reason=reason,
            detail=detail,
            next=next_offset,
            available=available,
        )

    def _resumed(self, copy: Copying) -> None:
        if (REPLICATOR, copy.key) in self.term.state.halts and copy.status is Status.RUNNING:
            try:
                self.control.append(
                    "resumed",
                    Deadline(5.0),
                    application=REPLICATOR,
                    topic=copy.topic,
                    topic_id=copy.topic_id,
                    partition=copy.partition,
                )
            except (KafkaException, KafkaTimeout):
                log.warning("%s goes on, but the control topic could not be told; it will be", copy.name)

    def _all_done(self) -> bool:
        if self.unconfirmed or self.describing:
            return False
        return all(c.status is not Status.RUNNING or c.done() for c in self.copies.values())

    def _lag(self) -> int:
        if self.consumer is None:
            return 0
        return lag(
            self.consumer, {TopicPartition(c.topic, c.partition): c.acked for c in self.copies.values()}
        )

    def _total(self, what: str) -> int:
        return sum(getattr(c, what) for c in self.copies.values())


def _given_up(resend: Request, consent: Consent) -> bool:
    """Whether a demand asks for records whose loss an operator has accepted."""
    if consent.to is None:
        return False
    if resend.at < consent.at:
        return True
    return resend.next is not None and consent.next is not None and consent.next <= resend.next < consent.to
