"""The deduplicator's lane: reads its staging partitions and hands their frames to a Delivery each, for one
epoch."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from common import ports
from common.app.lane_term import LaneTerm, run_lane
from common.errors import KafkaTimeout
from common.kafka.client import clients
from common.kafka.client.clients import Received
from common.kafka.client.stall_detector import StallDetector
from common.kafka.errors import NO_RIGHTS, denied, retriable
from common.kafka.quotas import THROTTLED
from common.link.control_log import ControlLog
from common.link.control_records import DEDUPLICATOR
from common.link.halt_reasons import HaltReason
from common.link.lane_counters import Counters, ends
from common.link.lane_progress import Done, PartitionHalted, Refused, Row, Unfinished
from common.link.lane_work import Work, together
from common.partitions import PartitionName
from common.ports import Deadline
from deduplicator.lane.delivery import Delivery
from deduplicator.lane.partition_state import StagingPartitionState
from deduplicator.lane_plan import DeduplicatorPlan, Left

if TYPE_CHECKING:
    from common.app.otel.spans import Spans

log = logging.getLogger(__name__)

BEGIN_POLL_S, POLL_S, IDLE_POLL_S = 0.005, 0.05, 0.25
"""How long to wait for a frame: before any partition is assigned, usually, and after QUIET_S without one. It
comes as soon as it is there, and what turns take is all that a lane without traffic takes."""
QUIET_S = 1.0
CONSUME = 200
INBOX_BYTES = 48 << 20
"""Frames that wait in all inboxes of a lane together: past this much nothing more is read."""
STOP_S = 5.0
HANGS_S = 120.0
"""A delivery that takes longer for one turn than all its time-outs together hangs inside the client."""
CALL_S = 30.0
SILENCE_S = 20.0
CONNECT_S = 1.0
"""Past this the consumer need not be waited for, since by then it looks by itself for the topic that it is to
read."""
TOGETHER_S = 0.1
"""How long the first partitions wait for the others. What is assigned while a request for some is on its way
is asked for in the next one: that waits at the broker for FETCH_WAIT_MS where nothing comes."""
FETCH_WAIT_MS = 100
FETCH_BYTES = 8 << 20
"""Of a staging partition, in one answer, unless an operator says otherwise: the client asks for the next one
when this one is there. With the library's 1 MiB a target that is 50 ms away gives 17 MB/s of each."""


def run(plan: dict[str, Any]) -> Iterator[str]:
    """Run a lane for one epoch and yield its progress rows, as JSON."""
    return run_lane(plan, lambda found, spans: Lane(DeduplicatorPlan.from_json(found), spans))


class Lane:
    """One epoch of one lane."""

    def __init__(self, plan: DeduplicatorPlan, spans: Spans | None = None) -> None:
        self.plan = plan
        self._throttled_before_ms = THROTTLED.all_ms
        """What a lane before it in this process counted."""
        self.bounded: bool = plan.bounded
        self.control = ControlLog.in_lane(plan)
        self.admin = clients.admin(plan.control_admin)
        self.term = LaneTerm(plan, self.control)
        self.counters = Counters(DEDUPLICATOR, plan.term, plan.epoch, plan.lane, plan.positions_topic)
        self._mute = False
        self.counting: Producer = clients.producer(plan.control_producer, linger_ms=0)
        self.consumer = _reader(plan)
        self.deliveries = {
            share.partition: Delivery(plan, share, self.term, self.admin, spans) for share in plan.partitions
        }
        self.generations: dict[int, int] = {}
        self._next: dict[PartitionName, int] = {}
        """The offset of each staging partition that is to come next."""
        self._arrived = ports.monotonic()
        """When something did last."""
        self._together_until = math.inf
        self._silence = StallDetector(self.admin, SILENCE_S)

    def run(self) -> Iterator[Row]:
        self.control.refresh(Deadline(CALL_S))
        if self.term.again:
            yield self.term.plan_anew()
            return
        for delivery in self.deliveries.values():
            delivery.thread.start()
        # Meanwhile.
        clients.connect(self.consumer, self.plan.staging_topic, Deadline(CONNECT_S))
        while not self._step():
            pass
        self._finish()
        for delivery in self.deliveries.values():
            if delivery.failure is not None:
                raise delivery.failure
        yield from self._rows()

    def close(self) -> None:
        for delivery in self.deliveries.values():
            delivery.stopping = True
        self.consumer.close()
        with contextlib.suppress(KafkaException):
            self.counting.flush(1.0)
        self.control.close()

    def _step(self) -> bool:
        now = ports.monotonic()
        if self.term.look(now):
            if self.counters.due(now):
                self._show(now)
            self._watch(now)
            if any(
                d.failure is not None or d.refusal is not None or d.stale for d in self.deliveries.values()
            ):
                self.term.end_epoch(Deadline(CALL_S))
                return True
        if self.term.over(now):
            # At the moment that all lanes of the epoch end: what one of them holds stands still until the
            # last has.
            return True
        self._follow_positions(now)
        if sum(d.inbox.bytes for d in self.deliveries.values()) > INBOX_BYTES:
            ports.sleep(0.002)
        else:
            self._read()
        return self.bounded and all(d.done() or not d.thread.is_alive() for d in self.deliveries.values())

    def _watch(self, now: float) -> None:
        """Give up a delivery that hangs: a call of the client that never returns would stop its partitions in
        silence, for ever.

        The lane fails, and its process ends with it. Should the call return before that, the transaction is
        either committed before the next owner fences, and then found by its recovery, or never.
        """
        for delivery in self.deliveries.values():
            if delivery.failure is None and delivery.thread.is_alive() and now - delivery.turned > HANGS_S:
                delivery.failure = KafkaTimeout(
                    f"{delivery.name}: a call of the Kafka client has not returned for {HANGS_S:.0f} s; starting anew"
                )

    def _follow_positions(self, now: float) -> None:
        """Read partitions from where their deliveries want to go on: at the start all together, if they get
        there soon one after the other."""
        ready = {p: d for p, d in self.deliveries.items() if d.read_from}
        if not ready:
            return
        if not self.generations and len(ready) < len(self.deliveries):
            self._together_until = min(self._together_until, now + TOGETHER_S)
            if now < self._together_until:
                return
        known = self.generations.keys() & ready
        wanted = []
        for partition, delivery in ready.items():
            self.generations[partition], offset = delivery.read_from.popleft()
            wanted.append(TopicPartition(self.plan.staging_topic, partition, offset))
            self._next[self.plan.staging_topic, partition] = offset
        if known:
            self.consumer.incremental_unassign([at for at in wanted if at.partition in known])
        self.consumer.incremental_assign(wanted)

    def _wait(self) -> float:
        """How long to wait for a frame now."""
        if not self.generations:
            return BEGIN_POLL_S
        quiet = ports.monotonic() - self._arrived > QUIET_S
        return IDLE_POLL_S if quiet and not self.bounded else POLL_S

    def _read(self) -> None:
        by_partition: dict[int, list[Received]] = {}
        arrived = clients.read(self.consumer, self._wait(), CONSUME)
        if arrived:
            self._arrived = ports.monotonic()
        if not arrived:
            self._listen()
        for message in arrived:
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                by_partition.setdefault(message.partition(), []).append(message)
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                # Staging was cut under us. The delivery starts again from what is left, and asks for what is
                # missing.
                log.warning("staging partition %d: %s", message.partition(), error.str())
                self.deliveries[message.partition()].restart = True
            elif error.code() in NO_RIGHTS:
                what = f"reading {self.plan.staging_topic}"
                for delivery in self.deliveries.values():
                    delivery.refusal = str(denied(what, error, self.plan.group, "READ"))
            elif not retriable(error):
                log.warning("staging: %s", error.str())
        for partition, messages in by_partition.items():
            last = messages[-1]
            self._next[self.plan.staging_topic, partition] = last.offset() + (last.error() is None)
            self.deliveries[partition].inbox.put(messages, self.generations[partition])

    def _listen(self) -> None:
        """Nothing has arrived: where that is because the client has gone silent, another one is needed, which
        the next epoch has."""
        for topic, partition in self._silence.found(lambda: dict(self._next)):
            log.warning(
                "%s-%d: nothing comes from offset %d on, though there is more; planning anew",
                topic,
                partition,
                self._next[topic, partition],
            )
            self.term.end_epoch(Deadline(CALL_S))

    def _finish(self) -> None:
        for delivery in self.deliveries.values():
            delivery.stopping = True
            delivery.inbox.wake()
        deadline = Deadline(STOP_S)
        for delivery in self.deliveries.values():
            delivery.thread.join(deadline.left())
        self._show(ports.monotonic())

    def _show(self, now: float) -> None:
        """Write the counters. Whoever may not is told once; what they count goes on."""
        try:
            self.counters.write(self.counting, now, self._work())
            self.counting.poll(0)
        except KafkaException as error:
            if not self._mute:
                log.warning("counters can't be written: %s", error)
            self._mute = True

    def _work(self) -> Work:
        names = {source.topic_id: name for name, source in self.term.state.newest_topics().items()}
        found = together(_work_of(d.state, names) for d in self.deliveries.values())
        topic = self.plan.staging_topic
        read = {(topic, p): max(0, d.state.position) for p, d in self.deliveries.items()}
        behind = ends(self.consumer, [TopicPartition(*at) for at in read])
        found.counts["target_throttle_ms"] = THROTTLED.all_ms - self._throttled_before_ms
        found.counts["staging_lag"] = sum(max(0, end - read[at]) for at, end in behind.items())
        return found

    def _rows(self) -> Iterator[Row]:
        for delivery in self.deliveries.values():
            if delivery.left is not None:
                yield Left(delivery.partition, delivery.left)
            if delivery.refusal is not None:
                yield Refused(delivery.refusal)
            for key, trouble in delivery.stuck.items():
                if trouble.reason == HaltReason.MISSING:
                    request = self.term.state.resends.get(key)
                    topic = request.topic if request is not None else key[0]
                    detail = f"frames are missing from staging; the replicator is asked to send again from {request.next if request else '?'}"
                    yield PartitionHalted(topic, key[1], detail)
        yield Done(self._work())
        if not all(d.done() for d in self.deliveries.values()):
            yield Unfinished()


def _reader(plan: DeduplicatorPlan) -> Consumer:
    """Of staging."""
    return clients.consumer(
        {"fetch.message.max.bytes": FETCH_BYTES, **plan.consumer},
        group_id=plan.group,
        enable_partition_eof=True,
        check_crcs=True,
        fetch_wait_max_ms=FETCH_WAIT_MS,
        throttle_cb=THROTTLED.told,
    )


def _work_of(state: StagingPartitionState, names: Mapping[str, str]) -> Work:
    """Of a staging partition, whose delivery goes on meanwhile, in its thread. `names`: topic id -> topic."""
    of = {at: counts.copy() for at, counts in state.done.copy().items()}
    for (topic_id, partition), offset in state.reached.copy().items():
        if (name := names.get(topic_id)) is not None:
            of.setdefault((name, partition), Counter())["delivered_offset"] = offset
    counts = Counter(
        records=sum(counts["records"] for counts in of.values()),
        duplicates=sum(counts["duplicates"] for counts in of.values()),
        dead_letters=sum(counts["dead_letters"] for counts in of.values()),
        frames=state.frames,
        bytes=state.bytes,
        transactions=state.transactions,
        transaction_ms=state.transaction_ms,
        aborted=state.aborted,
        mappings=state.mappings,
        recoveries=state.recoveries,
    )
    return Work(counts, of, state.delays)
