"""One transaction of a staging partition: records, then mappings and position, then the commit. Which records
is decided elsewhere.

An unclean outcome is never judged from an exception: it is raised, and whoever owns the partition drops the
producer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from common import ports
from common.errors import UncleanTransaction
from common.kafka.errors import NO_RIGHTS, denied, kafka_error
from common.kafka.wire.batch_producer import BatchProducer, Delivered, Refused
from common.kafka.wire.record_batch import NO_TIMESTAMP, Records
from common.kafka.wire.record_encoder import encode_records
from common.kafka.wire.records import Rows
from common.link import control_kinds, offset_mappings, provenance
from common.link.batch_frame import BatchFrame
from common.link.control_records import Destination
from common.link.dead_letters import letters
from common.link.frame import Frame
from common.link.halt_reasons import HaltReason
from common.partitions import PartitionId, PartitionName
from common.ports import Deadline
from deduplicator.lane.fencing import FencingProducer
from deduplicator.lane.frame_trace import FrameTrace
from deduplicator.lane.moved import Moved
from deduplicator.lane.offset_runs import Run, placed, segments
from deduplicator.lane.partition_state import StagingPartitionState
from deduplicator.lane.transaction_linger import TransactionLinger
from deduplicator.lane_plan import DeduplicatorPlan

log = logging.getLogger(__name__)

TRANSACTION_BYTES = 16 << 20
TRANSACTION_RUNS = 20_000
"""Runs go into mapping records: on sparse sources each record is one."""
PREDICTED_RUNS = 1000
"""Of more runs, comparing what was foreseen takes longer than what it saves."""
POSITION_S = 15.0
"""How often a transaction commits the group's offset too. Recovery goes by the mappings, which tell the
position of every transaction; the group's offset is for whoever watches its lag, and for the day when there
are no mappings. It costs two requests and another marker, for which the next transaction waits: of a second's
records at 1,000 a second, the slowest percent took 60 to 80 ms with it, and 40 to 50 without."""
CALL_S = 30.0
MAX_BATCH_BYTES = 1_000_000


def batch_within(max_message_bytes: int) -> int:
    """Producer batches that a topic with this limit takes, envelope and all."""
    return max(1, min(MAX_BATCH_BYTES, max_message_bytes * 9 // 10))


class Again(Exception):
    """Abort, and go through recovery: from `position` if given."""

    def __init__(self, why: str, position: int | None = None) -> None:
        super().__init__(why)
        self.position = position


def _count(
    state: StagingPartitionState,
    moved: dict[PartitionId, Moved],
    stamps: list[tuple[int, int]],
    took_s: float,
) -> None:
    """For metrics: a transaction is committed."""
    for key, one in moved.items():
        state.reached[key] = one.next
        state.count(one.frame.topic, one.frame.partition, records=one.records)
        if dead := sum(run.length for run in one.letters):
            state.count(one.frame.topic, one.frame.partition, dead_letters=dead)
    now = int(time.time() * 1000)
    for newest, count in stamps:
        if newest != NO_TIMESTAMP:
            state.delays.took(now - newest, count)
    state.transactions += 1
    state.transaction_ms += int(took_s * 1000)
    state.mappings += len(moved)


def _send_position(
    producer: BatchProducer, plan: DeduplicatorPlan, state: StagingPartitionState, deadline: Deadline
) -> None:
    try:
        producer.send_offsets_to_transaction(
            [TopicPartition(plan.staging_topic, state.partition, state.position)], deadline.left()
        )
    except KafkaException as exception:
        error = kafka_error(exception)
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise denied("committing the position", error, plan.group) from None
        if error is not None and error.code() in NO_RIGHTS:
            # To write to a destination: the driver, which looks for that now and then, will halt its
            # partitions.
            raise UncleanTransaction(f"a record was refused: {error.str()}") from None
        raise


def _flushed(producer: BatchProducer, mappings_topic: str, timeout_s: float) -> int:
    try:
        return producer.flush(timeout_s)
    except Refused as refused:
        if mappings_topic in refused.topics:
            raise
        # To write to a destination: the driver, which looks for that now and then, will halt its
        # partitions.
        raise UncleanTransaction(f"records were refused: {refused}") from None


class Transaction:
    """The transaction under way, and the producer that all of an owner's transactions go through until it is
    dropped."""

    def __init__(
        self,
        plan: DeduplicatorPlan,
        state: StagingPartitionState,
        has_several_sources: Callable[[str, bool], bool],
        trace: FrameTrace | None = None,
    ) -> None:
        """`has_several_sources` says of a destination whether other owners write there too, for other source
        topics; asked anew if wanted."""
        self.plan = plan
        self.state = state
        self.trace = trace
        self.open = False
        self.moved: dict[PartitionId, Moved] = {}
        self.bytes = 0
        self.batch_bytes = MAX_BATCH_BYTES
        self.mappings_known: tuple[int, int | None] = (0, None)
        """What all committed mappings of this partition lie below, and the staging offset that they reach."""
        self.bad: dict[PartitionId, tuple[int, str, str, str]] = {}
        """Records that can't be delivered: source offset, reason, detail, topic."""
        self._has_several_sources = has_several_sources
        self._fencing: FencingProducer | None = None
        self._producer: BatchProducer | None = None
        self._opened = 0.0
        self._linger = TransactionLinger()
        self._position_sent = 0.0
        self._runs = 0
        self._last_mapping = -1
        self._failed: list[tuple[Run | None, KafkaError]] = []
        self._stamps: list[tuple[int, int]] = []
        """Of some records of it, the newest one's timestamp, and how many they are."""
        self._shared: set[str] = set()
        """Topics into which another writer's records came: where the next ones will lie is not predicted."""
        self._alone: set[str] = set()
        """Topics whose next records go in batches of their own, since one of them is too large."""
        self._ends: dict[PartitionName, int] = {}
        """Of destination partitions that this producer committed to, the offset of the next record, if nobody
        else writes there."""
        self._mark = provenance.header(plan.cluster) if plan.provenance else None

    def has_producer(self) -> bool:
        return self._producer is not None

    def use(self, fencing: FencingProducer, mappings_known: tuple[int, int | None]) -> None:
        """Go on with a producer that has fenced all others, and from what is known of the mappings."""
        self.mappings_known = mappings_known
        self._fencing, self._producer = fencing, fencing.client

    def begin(self) -> None:
        if self.open:
            return
        assert self._fencing is not None
        self._fencing.client.begin_transaction()
        self._failed, self._stamps = [], []
        self.open = True
        self._opened = ports.monotonic()
        self.bytes = self._runs = 0

    def full(self, now: float) -> bool:
        return (
            self._linger.over(now - self._opened, self.bytes)
            or self.bytes >= TRANSACTION_BYTES
            or self._runs >= TRANSACTION_RUNS
        )

    def waits_s(self, now: float) -> float:
        """How long to wait for one more frame before it ends."""
        return self._linger.waits_s(now - self._opened, self.bytes) if self.open else 0.0

    def written(self) -> set[PartitionName]:
        """The partitions, of destinations and of dead letters, that it has records for."""
        return set[PartitionName]().union(*(moved.written for moved in self.moved.values()))

    def refused(self) -> dict[PartitionName, KafkaError]:
        """The partitions for which it could not go on."""
        return {} if self._fencing is None else self._fencing.refused

    def drop(self) -> None:
        """Drop the producer, with whatever it has under way."""
        fencing, self._fencing, self._producer = self._fencing, None, None
        self.moved, self._ends = {}, {}
        was_open, self.open = self.open, False
        self.state.aborted += was_open
        if self.trace is not None:
            self.trace.dropped()
        if fencing is not None:
            fencing.drop(was_open)

    # records

    def takes_whole(self, wholes: BatchFrame, destination: Destination) -> bool:
        """Whether batches may go to a destination as they are."""
        return (
            self._mark is None
            and not destination.compacted
            and destination.topic not in self._alone
            and all(header.size <= destination.max_message_bytes for _, header in wholes.batches)
        )

    def produce(
        self,
        moved: Moved,
        rows: Rows | BatchFrame,
        to: Destination | None = None,
        partition: int | None = None,
    ) -> None:
        """Produce records of a source partition to the same partition of its destination, or of another topic
        that a stage takes them to, or to this `partition` there."""
        assert self._producer is not None
        if isinstance(rows, BatchFrame):
            self._produce_wholes(self._producer, moved, rows)
        else:
            self._produce_batches(moved, rows, to or moved.destination, partition)

    def _produce_batches(self, moved: Moved, rows: Rows, to: Destination, partition: int | None) -> None:
        place, most_bytes = (to.topic, partition), to.max_message_bytes
        its, at = moved.runs_in(place), moved.partition(place)
        batches = encode_records(rows.batch, 1 if to.topic in self._alone else self.batch_bytes, self._mark)
        for records, runs in self._sent(at, rows.offsets, batches, most_bytes):
            self._stamps.append((records.max_timestamp, records.count))
            its += runs

    def produce_letters(
        self, moved: Moved, frame: Frame, failed: Rows, topic: control_kinds.DeadLetters
    ) -> None:
        """Produce a dead letter for each of a frame's records that a stage failed on: they are there if the
        rest of the frame is, and no other time."""
        most = 1 if moved.destination.topic in self._alone else batch_within(topic.max_message_bytes)
        batches = encode_records(letters(self.plan.link, frame, failed, int(time.time() * 1000)), most)
        at = moved.letters_to = (topic.topic, self.state.partition)
        for _, runs in self._sent(at, failed.offsets, batches, topic.max_message_bytes):
            moved.letters += runs

    def _sent(
        self, at: PartitionName, offsets: Sequence[int], batches: Iterable[Records], most_bytes: int
    ) -> Iterator[tuple[Records, list[Run]]]:
        """Produce records in batches, each as it is asked for: the broker tells where each lies, and nobody's
        records come into one."""
        assert self._producer is not None
        begin = 0
        for records in batches:
            its = offsets[begin : begin + records.count]
            begin += records.count
            runs = [Run(its[first], end - first) for first, end in segments(its)]
            self._runs += len(runs)
            self._producer.produce_batch(*at, records, partial(self._batch_reported, runs), most_bytes)
            yield records, runs

    def _produce_wholes(self, producer: BatchProducer, moved: Moved, wholes: BatchFrame) -> None:
        topic, partition = moved.destination.topic, moved.frame.partition
        for header, batch in wholes.each():
            run = Run(header.base_offset, header.count)
            self._stamps.append((header.max_timestamp, header.count))
            moved.runs.append(run)
            self._runs += 1
            producer.produce_whole(topic, partition, header, batch, partial(self._batch_reported, [run]))

    def _batch_reported(self, runs: list[Run], error: KafkaError | None, base_offset: int) -> None:
        if error is not None:
            # Which of several records it is about is told by no broker.
            alone = len(runs) == 1 and runs[0].length == 1
            self._failed.append((runs[0] if alone else None, error))
            return
        for run, there in zip(runs, placed(runs, base_offset), strict=True):
            run.first = there.first

    def send_alone(self) -> None:
        """The next records of the topics moved here go in batches of their own: a report is about a batch,
        and one record is at fault."""
        self._alone |= set[str]().union(*(moved.topics for moved in self.moved.values()))

    # the end

    def commit(self) -> None:
        """Records are there; add mappings, now and then the group's offset, and commit. A KafkaException for
        a missing right is about the mappings."""
        assert self._producer is not None
        producer = self._producer
        begun, deadline = ports.monotonic(), Deadline(CALL_S)
        if self.moved:
            predicted = self._predicted()
            if predicted is not None:
                self._produce_mappings(predicted)
            while _flushed(producer, self.plan.mappings_topic, deadline.left(1.0)) > 0 and not self._failed:
                if deadline.passed():
                    producer.blame_unanswered()
                    raise UncleanTransaction("records were not acknowledged in time")
            self._check_reports(predicted)
            if predicted is None:
                self._produce_mappings([moved.runs for moved in self.moved.values()])
        now = ports.monotonic()
        with_position = not self.moved or now - self._position_sent >= POSITION_S
        if with_position:
            _send_position(producer, self.plan, self.state, deadline)
        producer.commit_transaction(max(1.0, deadline.left()))
        self.open = False
        if self.moved:
            # Where its report is still on its way, what lies between is read again, which changes nothing.
            self.mappings_known = (max(self.mappings_known[0], self._last_mapping + 1), self.state.position)
            self._remember_ends()
        self._linger.committed(ports.monotonic() - begun)
        _count(self.state, self.moved, self._stamps, ports.monotonic() - self._opened)
        if with_position:
            self.state.committed, self._position_sent = self.state.position, now
        self.moved, self._alone = {}, set()
        if self.trace is not None:
            self.trace.committed()

    def _predicted(self) -> list[list[Run]] | None:
        """The runs of all that is moved, with the offsets that they will have if nobody else writes to their
        destinations. None where that can't be said, or was wrong before.

        A mapping that need not wait for the reports of its records goes with them: two round trips less, for
        its partition is registered with the transaction meanwhile, too. It says what the reports must
        confirm, or nothing is committed.
        """
        if self._runs > PREDICTED_RUNS or any(m.letters or m.routed for m in self.moved.values()):
            return None
        ends = dict(self._ends)
        predicted = []
        for moved in self.moved.values():
            topic, at = moved.destination.topic, (moved.destination.topic, moved.frame.partition)
            runs: list[Run] = []
            if moved.runs:
                if at not in ends or topic in self._shared or self._has_several_sources(topic, False):
                    return None
                runs = placed(moved.runs, ends[at])
                ends[at] += sum(run.length for run in runs)
            predicted.append(runs)
        return predicted

    def _remember_ends(self) -> None:
        """Behind the last record of each destination partition stands the transaction's marker."""
        for moved in self.moved.values():
            for place in moved.routed:
                self._ends.pop(moved.partition(place), None)
            if moved.runs:
                last = moved.runs[-1]
                assert last.first is not None
                self._ends[moved.destination.topic, moved.frame.partition] = last.first + last.length + 1

    def _produce_mappings(self, runs: list[list[Run]]) -> None:
        assert self._producer is not None
        for moved, its_runs in zip(self.moved.values(), runs, strict=True):
            key, value = offset_mappings.encode(moved.mapping(its_runs, self.state.position))
            self._producer.produce(
                self.plan.mappings_topic,
                value,
                key,
                self.state.partition,
                on_delivery=self._mapping_reported,
            )

    def _check_reports(self, predicted: list[list[Run]] | None) -> None:
        """Raise unless each run was reported, and as `predicted`, where the mappings say so already."""
        if self._failed:
            run, error = self._failed[0]
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._too_large(run, error)
            raise UncleanTransaction(f"a record was not acknowledged: {error.str()}")
        for i, moved in enumerate(self.moved.values()):
            topic = moved.destination.topic
            if any(run.first is None for run in moved.each_run):
                raise UncleanTransaction(f"records of {topic}-{moved.frame.partition} were not all reported")
            if predicted is not None and predicted[i] != moved.runs:
                # Otherwise others are expected to write there.
                if self._mark is None and not self._has_several_sources(topic, True):
                    log.warning(
                        "%s-%d: another writer's records came between, and transactions take longer from now on. Nobody else should write to "
                        "a copied topic",
                        topic,
                        moved.frame.partition,
                    )
                self._shared.add(topic)
                raise Again("run of destination offsets broken by another writer")

    def _too_large(self, run: Run | None, error: KafkaError) -> None:
        for key, moved in self.moved.items():
            if run is not None and (topic := moved.topic_of(run)) is not None:
                where = f"{moved.frame.topic}-{moved.frame.partition}"
                self.bad[key] = (
                    run.source,
                    HaltReason.TOO_LARGE,
                    f"record {run.source} of {where} is larger than max.message.bytes of {topic} allows; raise it ({error.str()})",
                    topic,
                )
                self._alone = set()
                raise Again(f"a record of {where} is too large for {topic}")
        self.send_alone()
        raise Again("a record is too large for its destination")

    def _mapping_reported(self, error: KafkaError | None, message: Delivered) -> None:
        if error is not None:
            self._failed.append((None, error))
        elif (offset := message.offset()) is not None:
            self._last_mapping = offset
