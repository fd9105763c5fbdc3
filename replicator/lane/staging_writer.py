"""The staging side of a lane: frames appended in order, then the positions that they have reached. Confirms
and decides nothing.

A delivery error ends the writer: frames after a missing one must not be appended.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Producer

from common import ports
from common.app.lane_term import LaneTerm
from common.errors import VerbatimError
from common.kafka.client import clients
from common.kafka.client.clients import ProducedHeaders
from common.kafka.errors import denied, kafka_error, lacks_right
from common.kafka.quotas import THROTTLED
from common.link import positions
from common.link.frame import encode_headers, staging_key
from common.link.halt_reasons import HaltReason
from common.link.lane_counters import Counters
from common.link.lane_progress import FrameRefused
from common.link.lane_work import Work
from common.link.partitioning import staging_partition
from common.link.positions import Position
from common.ports import Deadline
from replicator.lane.frame_packer import frame_codec
from replicator.lane.frame_trace import FrameTrace
from replicator.lane.halts import Halts
from replicator.lane.partition_copy import CutFrame, PartitionCopy
from replicator.lane_plan import ReplicatorPlan

log = logging.getLogger(__name__)

QUEUE_BYTES = 128 << 20
BATCH_BYTES = 1_000_000
IN_FLIGHT = 5
"""Messages to one partition that librdkafka lets an idempotent producer have on their way before it sends
another batch (2.16 compares the requests that Kafka allows with messages). While another batch is ready and
may not go, its thread polls without a pause and takes a core for it: so what would only wait there waits
here."""
HELD_BYTES = 32 << 20
HELD_S = 0.05
"""How long to wait for an acknowledgement, and with it for room, before looking round. Fifty lanes that did
so a hundred times a second took up to three tenths of two cores, and what they waited for came later."""
UNACKNOWLEDGED_S = 60.0
"""An idempotent producer of librdkafka's may cease to send to a partition after its leader has changed, and
says nothing: broker and client disagree about what comes next, and the client waits for answers that never
come. Another producer has no such past."""
REPORT_S = 2.0
"""How long to wait for the report of a frame whose refusal has ended the producer."""


class WriterFailed(VerbatimError):
    """A frame could not be appended: the lane's writer has ended."""


@dataclass(slots=True)
class Way:
    """What is on its way to one staging partition, and the frames that are held until it has arrived, in
    order."""

    messages: int = 0
    bytes: int = 0
    moved: float = 0.0
    """When something was acknowledged last, or sent after nothing was on its way."""
    held: deque[tuple[PartitionCopy, CutFrame]] = field(default_factory=deque)

    def full(self) -> bool:
        return self.messages >= IN_FLIGHT and self.bytes >= BATCH_BYTES


class Writer:
    """One producer for one epoch of a lane."""

    def __init__(
        self, plan: ReplicatorPlan, term: LaneTerm, halts: Halts, trace: FrameTrace | None = None
    ) -> None:
        self.plan = plan
        self._trace = trace
        self.term = term
        self.halts = halts
        uncompressed = {} if frame_codec(plan.staging_producer) is None else {"compression_type": "none"}
        self._producer: Producer = clients.producer(
            plan.staging_producer,
            **uncompressed,
            linger_ms=0,
            batch_size=BATCH_BYTES,
            queue_buffering_max_kbytes=QUEUE_BYTES >> 10,
            throttle_cb=THROTTLED.told,
        )
        clients.connect(self._producer, plan.staging_topic, Deadline(clients.CONNECT_S))
        self._failed: tuple[PartitionCopy, CutFrame, KafkaError] | None = None
        self._ways: dict[int, Way] = {}
        self._held_bytes = 0
        self._may_not: tuple[str, KafkaError] | None = None
        """The topic that may not be written: that ends the producer, and whatever comes after it fails for
        another reason."""

    def send(self, copy: PartitionCopy, cut: CutFrame) -> None:
        """Append a frame behind all that were sent before it, unless its copy goes back first. Raises
        WriterFailed."""
        frame = cut.frame
        to = staging_partition(frame.topic, frame.partition, self.plan.staging_partitions)
        way = self._ways.setdefault(to, Way())
        if not way.held and not way.full():
            self._produce(to, way, copy, cut)
            return
        way.held.append((copy, cut))
        self._held_bytes += len(cut.value)
        while self._held_bytes > HELD_BYTES:
            self.poll(HELD_S)
            self._in_time()

    def holds(self) -> bool:
        """Whether frames are held until those before them have arrived: `poll` sends them."""
        return any(way.held for way in self._ways.values())

    def awaits(self) -> bool:
        """Whether frames are on their way whose acknowledgement `poll` will take in."""
        return any(way.messages for way in self._ways.values())

    def _send_held(self) -> None:
        for to, way in self._ways.items():
            while way.held and not way.full():
                copy, cut = way.held.popleft()
                self._held_bytes -= len(cut.value)
                self._produce(to, way, copy, cut)

    def _in_time(self) -> None:
        now = ports.monotonic()
        self.term.look(now)
        if self._failed is not None or self.term.over(now):
            raise WriterFailed("the epoch ended while staging took no more frames") from None

    def _produce(self, to: int, way: Way, copy: PartitionCopy, cut: CutFrame) -> None:
        if cut.generation != copy.generation:
            return
        frame = cut.frame
        if len(cut.value) > QUEUE_BYTES:
            # It would never fit into the producer's queue, whatever staging takes.
            self._fail(copy, cut, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        while True:
            try:
                self._producer.produce(
                    self.plan.staging_topic,
                    cut.value,
                    staging_key(frame.topic, frame.partition),
                    to,
                    on_delivery=partial(self._delivered, way, copy, cut),
                    headers=cast("ProducedHeaders", encode_headers(frame, cut.value)),
                )
            except BufferError:
                self._poll(0.05)
                self._in_time()
            except KafkaException as exception:
                self._ended(exception)
                error = kafka_error(exception)
                if error is None:
                    raise
                self._failed = (copy, cut, error)
                self._fail(copy, cut, error)
            else:
                if not way.messages:
                    way.moved = ports.monotonic()
                way.messages += 1
                way.bytes += len(cut.value)
                return

    def poll(self, timeout_s: float = 0) -> None:
        """Take in acknowledgements, and send what was held for them. Raises WriterFailed where one tells that
        a frame was not appended, or none comes."""
        self._poll(timeout_s)
        if self._failed is not None:
            self._fail(*self._failed)
        self._send_held()
        self._must_move()

    def _must_move(self) -> None:
        now = ports.monotonic()
        for to, way in self._ways.items():
            if way.messages and now - way.moved > UNACKNOWLEDGED_S:
                why = (
                    f"none of {way.messages} frames on their way to {self.plan.staging_topic}-{to} was acknowledged for"
                    f" {UNACKNOWLEDGED_S:.0f} s"
                )
                self.halts.replan(why)
                raise WriterFailed(why)

    def _poll(self, timeout_s: float) -> None:
        with self._naming_the_refused():
            self._producer.poll(timeout_s)

    def _delivered(
        self, way: Way, copy: PartitionCopy, cut: CutFrame, error: KafkaError | None, _: Any
    ) -> None:
        way.messages -= 1
        way.bytes -= len(cut.value)
        if error is None:
            way.moved = ports.monotonic()
            if self._failed is None:
                copy.acknowledge(cut)
                if self._trace is not None:
                    self._trace.staged(cut.frame, len(cut.value))
        elif self._failed is None:
            self._failed = (copy, cut, error)
            self._reported(self.plan.staging_topic, error, None)

    @contextlib.contextmanager
    def _naming_the_refused(self) -> Iterator[None]:
        """The client raises what ends the producer, from any call, before it hands out the report that says
        which frame was refused."""
        try:
            yield
        except KafkaException as exception:
            self._ended(exception)
            raise

    def _ended(self, exception: KafkaException) -> None:
        """The producer takes nothing more. Which frame was refused is told by its report, which may still be
        on its way: raises WriterFailed for that."""
        error = kafka_error(exception)
        deadline = Deadline(REPORT_S)
        while error is not None and _final(error) and not self._knows_why() and not deadline.passed():
            with contextlib.suppress(KafkaException):
                self._producer.poll(0.05)
        if error is not None and not self._knows_why() and (topic := _topic_of(error)):
            self._reported(topic, error, None)
        self._must_may()
        if self._failed is not None:
            self._fail(*self._failed)

    def _knows_why(self) -> bool:
        return self._failed is not None or self._may_not is not None

    def _reported(self, topic: str, error: KafkaError | None, _: Any) -> None:
        if error is not None and self._may_not is None and lacks_right(error):
            self._may_not = (topic, error)

    def _must_may(self) -> None:
        """Raise LinkRefused where frames or positions may not be written: no other epoch would end
        otherwise."""
        if self._may_not is not None:
            topic, error = self._may_not
            raise denied(f"writing to {topic}", error, right="WRITE")

    def _fail(self, copy: PartitionCopy, cut: CutFrame, error: KafkaError) -> None:
        self._must_may()
        frame = cut.frame
        where = f"{frame.topic}-{frame.partition} [{frame.start}, {frame.next})"
        staging = self.plan.staging_topic
        if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD):
            self.halts.halt(
                copy,
                HaltReason.STAGING_REFUSED,
                f"the staging topic refuses the frame of {where}: {error.str()}; raise max.message.bytes of {staging}",
                frame.start,
                None,
            )
            self.halts.rows.append(FrameRefused(copy.topic_id, copy.partition))
        self.halts.replan(f"a frame of {where} was not appended to {staging}: {error.str()}")
        raise WriterFailed(f"frame of {where} could not be appended to staging: {error.str()}")

    def write_positions(self, copies: Iterable[PartitionCopy]) -> None:
        """Remember how far staging is known to hold each partition."""
        for copy in copies:
            if copy.recorded != copy.acked and copy.frames:
                position = Position(
                    copy.acked, copy.leader_epoch, copy.answered, copy.pipeline, copy.let_by(copy.acked)
                )
                key, value = positions.encode(copy.topic, copy.key, position)
                with self._naming_the_refused():
                    self._producer.produce(
                        self.plan.positions_topic,
                        value,
                        key,
                        on_delivery=partial(self._reported, self.plan.positions_topic),
                    )
                copy.recorded = copy.acked
                self.halts.resumed(copy)

    def write_counters(self, counters: Counters, now: float, work: Work) -> None:
        with self._naming_the_refused():
            reported = partial(self._reported, self.plan.positions_topic)
            counters.write(self._producer, now, work, reported)

    def flush(self, timeout_s: float) -> bool:
        """Wait for what is held or in flight; whether all that was heard of was appended."""
        deadline = Deadline(timeout_s)
        try:
            while self.holds() and not deadline.passed():
                self.poll(deadline.left(HELD_S))
            with self._naming_the_refused():
                self._producer.flush(deadline.left())
        except (KafkaException, WriterFailed):
            return False
        return self._failed is None

    def close(self) -> None:
        """Give up what is still in flight."""
        self._producer.purge()


def _topic_of(error: KafkaError) -> str | None:
    """The topic whose request ended the producer, where the client's words tell it and no report has."""
    found = re.search(r"ProduceRequest for (\S+) \[", error.str())
    return found and found[1]


def _final(error: KafkaError) -> bool:
    """Whether the producer has ended: the first call that tells has the code alone, the next ones the
    reason."""
    return error.fatal() or error.code() == KafkaError._FATAL
