"""A transactional producer of record batches. What goes into its transactions, and when they are clean, is
left to others.

A frame's records become a batch at once (common/kafka/wire/record_batch.py), which goes into a socket as it
is (common/kafka/wire/batch_sender.py); the broker's answer tells where it lies. The calls have the names and
errors of `confluent_kafka.Producer`.

Nothing is sent twice that may have been taken. A request whose answer does not come ends the producer, and so
does a commit of what was refused in part: its transaction is unclean, and the next producer fences it, after
which the broker takes nothing more that was sent by this one. Only what an answer says was not done is asked
for again: by a coordinator that is not ready or could not be connected to, while a transaction before this
one is being completed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from common.config.client_properties import compression
from common.kafka.errors import NO_RIGHTS
from common.kafka.wire import protocol, record_batch
from common.kafka.wire.batch_sender import PATIENCE_S, REQUEST_BYTES, Batch, BatchSender, Reported
from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.coordinators import Coordinators
from common.kafka.wire.open_transactions import OpenTransactions, left_open, open_transactions
from common.kafka.wire.protocol import Buffer, KnownTransaction
from common.kafka.wire.record_batch import BatchHeader, Records
from common.kafka.wire.record_encoder import encode_records
from common.kafka.wire.records import encode_rows
from common.partitions import PartitionName
from common.ports import Deadline

SEQUENCES = 1 << 31

_FENCED = frozenset({KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.INVALID_PRODUCER_ID_MAPPING})


class Refused(KafkaException):
    """Partitions of these topics may not be written."""

    def __init__(self, error: KafkaError, topics: list[str]) -> None:
        super().__init__(error)
        self.error = error
        self.topics = topics


@dataclass(slots=True)
class Delivered:
    """What a delivery report tells of one record, as `confluent_kafka.Message` does."""

    _offset: int | None

    def offset(self) -> int | None:
        return self._offset


@dataclass(slots=True)
class _Single:
    """Records that were produced one by one, until they are sent as one batch."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    reports: list[Callable[..., None] | None] = field(default_factory=list)


class BatchProducer:
    """For one thread. Raises KafkaException from any call; then it has ended."""

    def __init__(
        self,
        config: Mapping[str, Any],
        transactional_id: str,
        transaction_timeout_ms: int,
        group: str,
        in_each: Sequence[PartitionName] = (),
    ) -> None:
        """`group` is whose offsets its transactions commit; `in_each` are partitions that each of them writes
        to which writes anything: they are registered with the first others, by one request."""
        self._brokers = BrokerConnections(config)
        self._codec, self._level = compression(config)
        self._may_choose = "compression.type" not in config
        """What an operator asks for is what is written."""
        self._id = transactional_id
        self._timeout_ms = transaction_timeout_ms
        self._group = group
        self._in_each = in_each
        self._number, self._epoch = -1, -1
        self._sequences: dict[PartitionName, int] = {}
        self._single: dict[PartitionName, _Single] = {}
        self._coordinators = Coordinators(self._brokers, transactional_id, group, self._end)
        self._batches = BatchSender(self._brokers, transactional_id, self._register_with_each, self._end)
        self._registered: set[PartitionName] = set()
        self._with_offsets = False
        self._gap = False
        """Whether batches with numbers were forgotten: those of a next transaction would be out of order."""
        self._ended: KafkaException | None = None

    def __len__(self) -> int:
        """Batches that are not acknowledged, and records of which no batch is made yet."""
        return len(self._batches) + sum(len(one.values) for one in self._single.values())

    # transactions

    @property
    def id(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self._number, self._epoch

    def init_transactions(self, timeout: float = 30.0) -> None:
        """Fence all that had the transactional id before, and end what they had open. May be tried again."""
        deadline = Deadline(timeout)
        body = [protocol.init_producer_id(self._id, self._timeout_ms)]

        def ask() -> int:
            answer = self._coordinators.ask(protocol.TRANSACTION, protocol.INIT_PRODUCER_ID, body, deadline)
            error, self._number, self._epoch = protocol.producer_id(answer)
            return error

        self._coordinators.until_ready("InitProducerId", ask, protocol.TRANSACTION, deadline)
        self._sequences = {}

    def begin_transaction(self) -> None:
        self._must_go_on()
        if self._gap:
            raise self._end(
                KafkaError(KafkaError._STATE, "a producer that has forgotten records is not used again")
            )
        # A broker closes what was idle for long. Nothing is in flight between transactions.
        self._brokers.renew()
        self._registered, self._with_offsets, self._batches.refusal = set(), False, None

    def commit_transaction(self, timeout: float = 30.0) -> None:
        """Raises KafkaException where it is not known to be committed."""
        deadline = Deadline(timeout)
        while self.flush(deadline.left()):
            if deadline.passed():
                self._batches.blame_unanswered()
                raise self._end(KafkaError(KafkaError._TIMED_OUT, "records were not acknowledged in time"))
        if self._batches.refusal is not None:
            # What was produced last, such as mappings, the flush above has sent: nobody else looks at its
            # reports.
            raise self._end(self._batches.refusal)
        self._finish(True, deadline)

    def abort_transaction(self, timeout: float = 30.0) -> None:
        deadline = Deadline(timeout)
        self.purge()
        # What is in flight would come into the next transaction.
        while self._batches.in_flight and not deadline.passed():
            self._batches.wait(deadline.left(1.0))
        self.purge()
        self._finish(False, deadline)

    def _finish(self, commit: bool, deadline: Deadline) -> None:
        self._must_go_on()
        if not self._registered and not self._with_offsets:
            return
        body = [protocol.end(self._id, self._number, self._epoch, commit)]
        try:
            error = protocol.throttled(
                self._coordinators.ask(protocol.TRANSACTION, protocol.END_TXN, body, deadline)
            )
        except KafkaException as exception:
            # Whether it has ended, and how, is not known: nothing more may be said of it.
            raise self._end(exception.args[0]) from None
        if error:
            raise self._end(KafkaError(error))

    def send_offsets_to_transaction(self, offsets: list[TopicPartition], timeout: float = 30.0) -> None:
        """Commit the group's offsets with the transaction."""
        self._must_go_on()
        deadline = Deadline(timeout)
        added = [protocol.add_offsets(self._id, self._number, self._epoch, self._group)]
        committed = [
            protocol.commit_offsets(
                self._id,
                self._group,
                self._number,
                self._epoch,
                {(at.topic, at.partition): at.offset for at in offsets},
            )
        ]

        def add() -> int:
            answer = self._coordinators.ask(
                protocol.TRANSACTION, protocol.ADD_OFFSETS_TO_TXN, added, deadline
            )
            return protocol.throttled(answer)

        def commit() -> int:
            answer = self._coordinators.ask(protocol.GROUP, protocol.TXN_OFFSET_COMMIT, committed, deadline)
            return next(filter(None, protocol.by_partition(answer).values()), 0)

        self._coordinators.until_ready("AddOffsetsToTxn", add, protocol.TRANSACTION, deadline)
        self._with_offsets = True
        self._coordinators.until_ready("TxnOffsetCommit", commit, protocol.GROUP, deadline)

    # records

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: Callable[..., None] | None = None,
    ) -> None:
        """Produce one record, of now, in a batch with what else comes for its partition until the flush."""
        self._must_go_on()
        single = self._single.setdefault((topic, partition), _Single())
        single.keys.append(key)
        single.values.append(value)
        single.reports.append(on_delivery)

    def produce_batch(
        self,
        topic: str,
        partition: int,
        records: Records,
        reported: Reported,
        most_bytes: int | None = None,
    ) -> None:
        """Produce records of a partition as one batch, behind all that were produced there before.
        `most_bytes`: what its topic takes; a batch that is larger is compressed in other ways, for the source
        may have taken a record because it was compressed well."""
        sequence = self._sequence((topic, partition), records.count)
        ways = [(self._codec, self._level), *(record_batch.HARDER if self._may_choose else ())]
        pieces, tried = record_batch.seal_within(
            most_bytes, ways, records, self._number, self._epoch, sequence
        )
        self._batches.add(_batch((topic, partition), pieces, reported, tried))

    def produce_whole(
        self, topic: str, partition: int, header: BatchHeader, batch: pa.Buffer, reported: Reported
    ) -> None:
        """The same with a batch that somebody else has made."""
        sequence = self._sequence((topic, partition), header.count)
        pieces = record_batch.reseal(header, batch, self._number, self._epoch, sequence)
        self._batches.add(_batch((topic, partition), pieces, reported))

    def _sequence(self, at: PartitionName, count: int) -> int:
        """The number of the first of so many records that come next."""
        self._must_go_on()
        sequence = self._sequences.get(at, 0)
        self._sequences[at] = (sequence + count) % SEQUENCES
        return sequence

    def take_part(self, partitions: Collection[PartitionName], timeout: float, in_each: bool) -> None:
        """Make partitions part of the transaction though nothing goes there: its end puts a marker there.
        `in_each`: those of each transaction too."""
        self._must_go_on()
        deadline = Deadline(timeout)
        self._batches.reach_leaders(partitions, deadline)
        self._register([*partitions, *(self._in_each if in_each else ())], deadline)

    def commit_of_predecessor(self, number: int, epoch: int, timeout: float) -> None:
        """Commit what an earlier producer of this transactional id has open, and that was not fenced yet."""
        self._coordinators.commit(number, epoch, timeout)

    def flush(self, timeout: float = 30.0) -> int:
        """Send what waits, and wait until all is acknowledged; how many batches are not in that time."""
        self._must_go_on()
        deadline = Deadline(timeout)
        self._batch_singles()
        self._batches.send(timeout)
        self._batches.take_answers()
        while self._batches.unsettled and not deadline.passed():
            self._batches.wait(deadline.left())
        return len(self)

    def purge(self) -> None:
        """Forget what was not sent, without a report."""
        self._gap |= self._batches.forget()
        self._single = {}

    def close(self) -> None:
        self._brokers.close()
        self._batches.close()

    @property
    def refused(self) -> dict[PartitionName, KafkaError]:
        """The partitions for which it has ended, or could not begin, a transaction: what was said of each."""
        return self._batches.refused

    def blame_unanswered(self) -> None:
        """What is due is waited for no longer: `refused` has the partitions of those who owe it."""
        self._batches.blame_unanswered()

    def known_transaction(self, transactional_id: str, timeout: float) -> KnownTransaction | None:
        """What the cluster knows of any transactional id; None: nothing, or nothing that may be told."""
        return self._coordinators.known_transaction(transactional_id, timeout)

    def open_transactions(self, partitions: Collection[PartitionName], timeout: float) -> OpenTransactions:
        """What the leaders of partitions know of transactions that are open there, of any producer."""
        return open_transactions(self._brokers, partitions, Deadline(timeout))

    # inside

    def _must_go_on(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _end(self, error: KafkaError) -> KafkaException:
        fenced = error.code() in _FENCED
        if fenced:
            error = KafkaError(error.code(), f"another producer has {self._id} now", True)
        self._ended = KafkaException(error)
        self.close()
        return self._ended

    def _batch_singles(self) -> None:
        single, self._single = self._single, {}
        for (topic, partition), some in single.items():
            for records, reports in _batches_of(some):
                self.produce_batch(topic, partition, records, _each(reports))

    def _register_with_each(self, partitions: Collection[PartitionName], deadline: Deadline) -> None:
        first = [] if self._registered else [at for at in self._in_each if at not in partitions]
        self._register([*partitions, *first], deadline)

    def _register(self, partitions: Iterable[PartitionName], deadline: Deadline) -> None:
        """Make partitions part of the transaction; the broker takes nothing for them before."""
        new = [at for at in partitions if at not in self._registered]
        if not new:
            return
        # Its leader may have died without the marker of the last transaction: the next one decides both.
        lost = self._batches.reconnected(new)
        for topic, partition in left_open(self._brokers, lost, self._number, deadline):
            words = "a transaction that has ended lacks its marker there, or may do so"
            raise self._end(KafkaError(KafkaError._STATE, f"{topic}-{partition}: {words}"))
        body = [protocol.add_partitions(self._id, self._number, self._epoch, new)]
        deadline = Deadline(deadline.left(PATIENCE_S))
        refused: dict[PartitionName, int] = {}

        def ask() -> int:
            answer = self._coordinators.ask(
                protocol.TRANSACTION, protocol.ADD_PARTITIONS_TO_TXN, body, deadline
            )
            refused.clear()
            refused.update((at, error) for at, error in protocol.by_partition(answer).items() if error)
            # Where one is refused, the others are said not to have been attempted.
            errors = [error for error in refused.values() if error != KafkaError.OPERATION_NOT_ATTEMPTED]
            if errors and errors[0] in NO_RIGHTS:
                raise self._refused(refused, errors[0])
            return next(iter(errors), 0)

        try:
            self._coordinators.until_ready("AddPartitionsToTxn", ask, protocol.TRANSACTION, deadline)
        except KafkaException:
            self._batches.blame(
                (at for at, error in refused.items() if error == KafkaError.UNKNOWN_TOPIC_OR_PART),
                KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART),
            )
            raise
        self._registered.update(new)

    def _refused(self, refused: Mapping[PartitionName, int], code: int) -> Refused:
        topics = sorted({topic for (topic, _), error in refused.items() if error == code})
        error = KafkaError(code, f"{KafkaError(code).str()} ({', '.join(topics)})")
        self._ended = Refused(error, topics)
        return self._ended


def _batch(at: PartitionName, pieces: Sequence[Buffer], reported: Reported, tried: str = "") -> Batch:
    return Batch(at, pieces, sum(map(len, pieces)), reported, tried)


def _batches_of(some: _Single) -> Iterator[tuple[Records, list[Callable[..., None] | None]]]:
    """Records of now, each batch with what is told of its records."""
    count, now = len(some.values), int(time.time() * 1000)
    rows = encode_rows(range(count), [now] * count, [1] * count, some.keys, some.values, None)
    begin = 0
    for records in encode_records(rows, REQUEST_BYTES // 16):
        yield records, some.reports[begin : begin + records.count]
        begin += records.count


def _each(reports: Sequence[Callable[..., None] | None]) -> Reported:
    """A batch's report for each of its records."""

    def reported(error: KafkaError | None, base_offset: int) -> None:
        for number, report in enumerate(reports):
            if report is not None:
                report(error, Delivered(None if error is not None else base_offset + number))

    return reported
