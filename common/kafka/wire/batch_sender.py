"""Batches on their way to the leaders of their partitions: what waits, what is in flight, what was not taken.
Knows nothing of transactions.

Nothing is sent twice that may have been taken: a request whose answer does not come ends the producer. Only
what an answer says was not done is sent again: by a broker that does not lead a partition, or has not heard
of it yet. A batch keeps its number in its partition's sequence then, so those behind it that were on their
way are refused until it comes; and a broker that has it already knows it by that number.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.kafka.wire import protocol
from common.kafka.wire.broker_backoff import DATA, TRIES
from common.kafka.wire.broker_connections import BrokerConnections, Line
from common.kafka.wire.connection import Connection
from common.kafka.wire.protocol import Address, Buffer
from common.partitions import PartitionName
from common.ports import Deadline

SEND_BYTES = 256 << 10
"""So much is sent at once; what is less waits for the flush."""
REQUEST_BYTES = 8 << 20
REQUEST_S = 30.0
PATIENCE_S = 5.0
"""How long a partition without a leader, a broker that can't be reached, or a transaction that is being
completed is waited for: longer than an election takes. All that goes with it stands still meanwhile."""
AGAIN_S = 0.05
"""Before what a broker did not take is sent to whoever leads now."""

Reported = Callable[[KafkaError | None, int], None]
"""Told of a batch: what went wrong, or the offset of its first record."""


_ELSEWHERE = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
"""Said by a broker that does not lead the partition, or does no longer: then it may have appended the batch
before, and the next leader may have copied it (a request that waits for its replicas is answered so when the
leader changes). What is sent again has the same sequence number, so whoever has it answers with its offset
and appends nothing, as long as it is one of the producer's last five; of an older one it says OUT_OF_ORDER,
which is an unclean end."""
_OUT_OF_ORDER = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER


@dataclass(slots=True)
class Batch:
    at: PartitionName
    pieces: Sequence[Buffer]
    bytes: int
    reported: Reported
    tried: str = ""
    """What it was compressed with, where it is too large all the same."""


class BatchSender:
    """For one thread. `register` makes partitions part of the transaction; `end` ends the producer, and gives
    what to raise."""

    def __init__(
        self,
        brokers: BrokerConnections,
        transactional_id: str | None,
        register: Callable[[Collection[PartitionName], Deadline], None],
        end: Callable[[KafkaError], KafkaException],
    ) -> None:
        self._brokers = brokers
        self._id = transactional_id
        self._register = register
        self._end = end
        self._waiting: dict[PartitionName, deque[Batch]] = {}
        self._waiting_bytes = 0
        self._sent: dict[Line, deque[list[Batch]]] = {}
        """What is in flight to each broker, by request."""
        self._again: dict[PartitionName, deque[Batch]] = {}
        """What was not taken, in order; nothing else goes to these partitions meanwhile."""
        self._again_at = 0.0
        self._again_since: dict[PartitionName, float] = {}
        self._by: dict[PartitionName, Connection] = {}
        """By which connection something went to a partition last."""
        self.refusal: KafkaError | None = None
        """Of the first batch of this transaction that was refused: reports go to their batches, and a commit
        must know without them."""
        self.refused: dict[PartitionName, KafkaError] = {}
        """The partitions for which it has ended, or could not begin, a transaction: what was said of each."""

    def __len__(self) -> int:
        """Batches that are not acknowledged."""
        waiting = sum(len(some) for of in (self._waiting, self._again) for some in of.values())
        return waiting + sum(len(batches) for sent in self._sent.values() for batches in sent)

    @property
    def in_flight(self) -> bool:
        return bool(self._sent)

    @property
    def unsettled(self) -> bool:
        """Whether something is in flight, or to be sent again."""
        return bool(self._sent or self._again)

    def add(self, batch: Batch) -> None:
        """Behind all that was added for its partition before; sent at once where much waits."""
        self._waiting.setdefault(batch.at, deque()).append(batch)
        self._waiting_bytes += batch.bytes
        if self._waiting_bytes >= SEND_BYTES:
            self._send(Deadline(REQUEST_S))
            self.take_answers()

    def send(self, timeout: float) -> None:
        """Send what waits."""
        if self._waiting:
            self._send(Deadline(max(timeout, REQUEST_S)))

    def forget(self) -> bool:
        """Forget what was not sent, without a report; whether there was any."""
        some = bool(self._waiting or self._again)
        self._waiting, self._waiting_bytes, self._again = {}, 0, {}
        return some

    def close(self) -> None:
        self._sent = {}

    def blame_unanswered(self) -> None:
        """Those who wait have waited long enough for the answers that are due: `refused` has their
        partitions."""
        due = [batch.at for sent in self._sent.values() for some in sent for batch in some]
        self.blame([*due, *self._again], KafkaError(KafkaError._TIMED_OUT, "was not acknowledged in time"))

    def blame(self, partitions: Iterable[PartitionName], error: KafkaError) -> None:
        for at in partitions:
            self.refused.setdefault(at, error)

    def reach_leaders(self, partitions: Collection[PartitionName], deadline: Deadline) -> None:
        """Find the leaders, and connect to them."""
        brokers, deadline = self._brokers, Deadline(deadline.left(PATIENCE_S))
        try:
            brokers.find_leaders(partitions, deadline)
        except KafkaException as exception:
            error: KafkaError = exception.args[0]
            if error.code() in _ELSEWHERE:
                self.blame((at for at in partitions if brokers.leader(at) is None), error)
            raise self._end(error) from None
        for leader in {address for at in partitions if (address := brokers.leader(at)) is not None}:
            try:
                brokers.connected((leader, DATA), deadline)
            except KafkaException as exception:
                self.blame((at for at in partitions if brokers.leader(at) == leader), exception.args[0])
                raise self._end(exception.args[0]) from None

    def reconnected(self, partitions: Iterable[PartitionName]) -> list[PartitionName]:
        """Those whose leader was reached by another connection the last time something went there."""
        return [at for at in partitions if at in self._by and self._by[at] is not self._connection_to(at)]

    def _connection_to(self, at: PartitionName) -> Connection | None:
        """The one that there is to a partition's leader."""
        leader = self._brokers.leader(at)
        line = None if leader is None else (leader, DATA)
        return self._brokers[line] if line is not None and self._brokers.has(line) else None

    def _send(self, deadline: Deadline) -> None:
        """Send all batches that wait: of each partition one a request, as Kafka wants it."""
        # First: once one is registered that takes no marker, the transaction can't end, and with it none of
        # this transactional id begins.
        self.reach_leaders(self._waiting, deadline)
        self._register(self._waiting, deadline)
        while ready := [(at, some) for at, some in self._waiting.items() if at not in self._again]:
            by_leader: dict[Address, list[Batch]] = {}
            sizes: dict[Address, int] = {}
            for at, batches in ready:
                leader = self._brokers.leader(at)
                assert leader is not None
                size = sizes.get(leader, 0) + batches[0].bytes
                if leader in sizes and size > REQUEST_BYTES:
                    continue
                sizes[leader] = size
                by_leader.setdefault(leader, []).append(batches.popleft())
                if not batches:
                    del self._waiting[at]
            for leader, some in by_leader.items():
                self._send_to(leader, some, deadline)
        self._waiting_bytes = sum(batch.bytes for some in self._waiting.values() for batch in some)

    def _send_again(self) -> None:
        """Send what was not taken, once nothing of these partitions is on its way."""
        if ports.monotonic() < self._again_at or any(
            batch.at in self._again for sent in self._sent.values() for some in sent for batch in some
        ):
            return
        again, self._again = self._again, {}
        for at, batches in again.items():
            self._brokers.forget_leader_of(at)
            self._waiting[at] = batches + self._waiting.get(at, deque())
        self._send(Deadline(REQUEST_S))

    def _send_to(self, address: Address, batches: list[Batch], deadline: Deadline) -> None:
        body = protocol.produce(
            self._id, int(REQUEST_S * 1000), {batch.at: batch.pieces for batch in batches}
        )
        line = (address, DATA)
        try:
            connection = self._brokers.connected(line, deadline)
            connection.send(protocol.PRODUCE, body, deadline)
        except KafkaException as exception:
            self.blame((batch.at for batch in batches), exception.args[0])
            raise self._end(exception.args[0]) from None
        self._by.update((batch.at, connection) for batch in batches)
        self._sent.setdefault(line, deque()).append(batches)

    def take_answers(self) -> None:
        """Take in what has come."""
        for line in list(self._sent):
            while line in self._sent and self._brokers[line].complete():
                self._take_answer(line)

    def wait(self, timeout: float) -> None:
        """Wait for an answer, and take in what has come."""
        connections = [self._brokers[line] for line in self._sent]
        if self._again:
            timeout = min(timeout, max(0.001, self._again_at - ports.monotonic()))
        if not any(connection.complete() for connection in connections):
            poll = select.poll()
            for connection in connections:
                poll.register(connection, select.POLLIN)
            poll.poll(timeout * 1000)
        self.take_answers()
        if self._again:
            self._send_again()

    def _take_answer(self, line: Line) -> None:
        """Take in the next answer."""
        try:
            answers = protocol.produced(self._brokers[line].received())
        except KafkaException as exception:
            self._brokers.lost(line, exception)
            due = (batch.at for some in self._sent[line] for batch in some)
            self.blame(due, exception.args[0])
            raise self._end(exception.args[0]) from None
        TRIES.worked(*line)
        batches = self._sent[line].popleft()
        if not self._sent[line]:
            del self._sent[line]
        for batch in batches:
            answer = answers.get(batch.at)
            code = KafkaError._TRANSPORT if answer is None else answer.error
            if (code in _ELSEWHERE and self._patient(batch.at)) or (
                code == _OUT_OF_ORDER and batch.at in self._again
            ):
                self._again.setdefault(batch.at, deque()).append(batch)
                self._again_at = ports.monotonic() + AGAIN_S
            elif code or answer is None:
                topic, partition = batch.at
                words = (answer.words if answer is not None else None) or KafkaError(code).str()
                if batch.tried:
                    words += f" ({batch.tried}; its source may have compressed it better)"
                refusal = KafkaError(code, f"{topic}-{partition}: {words}")
                self.refusal = self.refusal or refusal
                self.blame([batch.at], refusal)
                batch.reported(refusal, -1)
            else:
                self._again_since.pop(batch.at, None)
                batch.reported(None, answer.base_offset)

    def _patient(self, at: PartitionName) -> bool:
        """Whether one that nobody takes anything for may still be waited for."""
        now = ports.monotonic()
        return now - self._again_since.setdefault(at, now) < PATIENCE_S
