"""The transactional producer of a staging partition: made, fencing its predecessors, and used only while it is above suspicion.

What goes into its transactions is left to deduplicator/transaction.py.
"""

from __future__ import annotations

import logging
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from common import kafka, outside
from common.batch_producer import BatchProducer, Refused
from common.errors import UncleanTransaction
from common.kafka import Deadline
from common.protocol import KnownTransaction
from deduplicator.transactional_ids import MOST, TransactionalIds, transactional_id

log = logging.getLogger(__name__)

STUCK_S = 5.0
"""So long an id may refuse to be fenced before it is looked at why: its last transaction is being completed, which takes milliseconds."""
SLOW_COMMIT_S = 5.0
"""Past this, librdkafka may have sent EndTxn again: the first request, delayed, could end this producer's next transaction."""
LINGER_MS = 10_000
"""Longer than any transaction: full batches go at once, the others with the flush before the commit. librdkafka's thread polls without a
pause while a batch has lingered that may not go before the one in flight is acknowledged."""


COORDINATOR = "[thrd:TxnCoordinator]"
"""What librdkafka's log lines about the connection to the transaction coordinator begin with."""


class Trouble:
    """Whether a producer's connection to its transaction coordinator broke, or could not be made. Apart from what holds the producer: a
    cycle would keep its threads alive.

    librdkafka tells the error callback of connections that can't be made, not of those that break: these it logs only, and not even that
    where one like it broke within 30 s. Its debugging log of brokers has each, in order with what the producer's calls return: it is
    queued before the request is sent again, and served by `poll`. (A few lines a transaction, found out with librdkafka 2.16.)
    """

    def __init__(self, debugging: bool = False) -> None:
        """`debugging`: an operator has asked for librdkafka's debugging log, so it is passed on."""
        self.seen = False
        self._least = logging.DEBUG if debugging else logging.INFO

    def saw(self, _: KafkaError) -> None:
        self.seen = True

    def log(self, level: int, form: str, facility: str, client: str, text: str) -> None:
        """Called by the client in place of a logger's method."""
        if facility == "FAIL" and text.startswith(COORDINATOR):
            self.seen = True
        if level >= self._least:
            kafka.client_log.log(level, form, facility, client, text)


class FencingProducer:
    """A producer with the transactional id of a staging partition: a new one fences all before it."""

    def __init__(
        self,
        plan: dict[str, Any],
        partition: int,
        name: str,
        batch_bytes: int,
        queue_kbytes: int,
        ids: TransactionalIds,
    ) -> None:
        self._plan = plan
        self._ids = ids
        self.unclosed: dict[tuple[str, int], bool] = {}
        """The partitions of the transaction that fencing has ended, or found being ended, and whether it was committed."""
        self.unmarked: set[tuple[str, int]] = set()
        """Partitions without a leader, most likely: transactions can't be completed for want of their markers."""
        self._mappings_topic: str = plan["mappings_topic"]
        self._partition = partition
        self._name = name
        self._transactional_id = transactional_id(plan["link"], partition, 0)
        self.client: Producer | BatchProducer
        self.whole_batches: bool = plan["whole_batches"]
        """Whether the client is a BatchProducer."""
        self._trouble: Trouble | None = None
        if self.whole_batches:
            self.client = self._with_id(self._transactional_id)
            return
        debug: str = plan["producer"].get("debug", "")
        self._trouble = Trouble(bool(debug))
        self.client = kafka.producer(
            plan["producer"],
            logger=self._trouble,
            debug=f"{debug},broker" if debug else "broker",
            transactional_id=self._transactional_id,
            transaction_timeout_ms=kafka.TRANSACTION_TIMEOUT_MS,
            batch_size=batch_bytes,
            linger_ms=LINGER_MS,
            queue_buffering_max_kbytes=queue_kbytes,
            error_cb=self._trouble.saw,
        )

    def _with_id(self, tid: str) -> BatchProducer:
        return BatchProducer(
            self._plan["producer"],
            tid,
            kafka.TRANSACTION_TIMEOUT_MS,
            self._plan["group"],
            [(self._mappings_topic, self._partition)],
        )

    def _fence_ids(self, deadline: Deadline) -> None:
        """Fence all ids of the partition, or see that they are nobody's; the first that could be fenced is used from then on."""
        first = cast("BatchProducer", self.client)
        usable: BatchProducer | None = None
        nobodys: dict[str, KnownTransaction] = {}
        for number in range(MOST):
            tid = transactional_id(self._plan["link"], self._partition, number)
            known = self._known(first, tid, deadline)
            if known is None and usable is not None:
                break
            producer = self._with_id(tid) if number else first
            if self._fenced(producer, tid, deadline):
                if usable is None:
                    usable = self.client = producer
                    if known is not None:
                        # Kafka has ended it; not so where it could not, which is as if it had.
                        how = known.state == "PrepareCommit"
                        own = (self._mappings_topic, "__consumer_offsets")
                        self.unclosed = {at: how for at in known.partitions if at[0] not in own}
                elif number:
                    producer.close()
            else:
                if number:
                    producer.close()
                nobodys[tid] = self._nobodys(tid, known, self._known(first, tid, deadline))
        if usable is None:
            raise UncleanTransaction(
                f"fencing {self._name}: transactions of all its transactional ids are being completed"
            )
        for tid, known in nobodys.items():
            now = self._known(first, tid, deadline)
            if now is None or (now.number, now.epoch) != (known.number, known.epoch):
                raise UncleanTransaction(
                    f"fencing {self._name}: transactional id {tid} has been taken meanwhile"
                )
        if usable is not first:
            log.warning("%s: going on with another transactional id than %s", self._name, ", ".join(nobodys))
            first.close()

    def _fence_spare_ids(self, deadline: Deadline) -> None:
        """Where the client library's producer follows one that had several ids. Asked after the first one was fenced: who goes on with another
        has said so before, and looks at the first one again afterwards."""
        for tid in self._ids.used(self._plan["link"], self._partition):
            spare = kafka.producer(self._plan["producer"], transactional_id=tid)
            kafka.patiently(
                f"fencing {self._name} as transactional id {tid}", spare.init_transactions, deadline
            )

    def _known(self, client: BatchProducer, tid: str, deadline: Deadline) -> KnownTransaction | None:
        return kafka.patiently(
            f"looking up transactional id {tid}", lambda t: client.known_transaction(tid, t), deadline
        )

    def _fenced(self, producer: BatchProducer, tid: str, deadline: Deadline) -> bool:
        """Whether the id was fenced: not where its last transaction is still being completed after STUCK_S."""

        def ask(timeout: float) -> bool:
            try:
                producer.init_transactions(min(timeout, STUCK_S))
            except KafkaException as exception:
                error = kafka.kafka_error(exception)
                if error is None or error.code() != KafkaError.CONCURRENT_TRANSACTIONS:
                    raise
                return False
            self._ids.have(tid, *producer.id)
            return True

        return kafka.patiently(f"fencing {self._name} as transactional id {tid}", ask, deadline)

    def _nobodys(
        self, tid: str, before: KnownTransaction | None, after: KnownTransaction | None
    ) -> KnownTransaction:
        where = set() if after is None else after.partitions
        if after is None or not self._ids.nobodys(tid, before, after):
            names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(where))
            raise UncleanTransaction(
                f"fencing {self._name}: the last transaction of {tid} is still being completed; without a marker: {names or 'none'}"
            )
        self._ids.give_up(tid, after)
        self.unmarked |= where
        return after

    def fence(self, deadline: Deadline) -> int:
        """Fence, and find the end of the mappings: an offset below which all stands that a predecessor committed.

        A record of our own shows where the log really ends: acknowledged by all replicas, it stands behind every commit of a
        predecessor, some of which may not be visible yet. Its transaction is aborted, so that nobody ever reads it.
        """
        producer = self.client
        fencing = f"fencing {self._name} as transactional id {self._transactional_id}"
        try:
            if self.whole_batches:
                self._fence_ids(deadline)
            else:
                kafka.connect(cast("Producer", producer), self._mappings_topic, deadline)
                kafka.patiently(fencing, lambda t: producer.init_transactions(t), deadline)
                self._fence_spare_ids(deadline)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise kafka.too_short() from None
            raise
        producer = self.client
        fence: list[int] = []
        denied: list[KafkaError] = []
        self.begin()

        def fenced(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                fence.append(offset)
            elif error is not None and error.code() in kafka.NO_RIGHTS:
                denied.append(error)

        producer.produce(self._mappings_topic, b"fence", None, self._partition, on_delivery=fenced)
        try:
            producer.flush(deadline.left())
        except Refused as refused:
            denied.append(refused.error)
        if denied:
            raise kafka.denied(f"writing to {self._mappings_topic}", denied[0], right="WRITE")
        if not fence:
            raise UncleanTransaction("the end of the mappings could not be found")
        began = outside.monotonic()
        producer.abort_transaction(max(1.0, deadline.left()))
        self.must_be_clean(outside.monotonic() - began)
        return fence[0]

    def begin(self) -> None:
        self.client.poll(0)
        if self._trouble is not None:
            self._trouble.seen = False
        self.client.begin_transaction()

    def must_be_clean(self, took_s: float) -> None:
        """Raise UncleanTransaction unless this producer may begin another transaction after one that ended well.

        librdkafka repeats EndTxn by itself: the first request, still on its way, could arrive within the next transaction of the same
        producer and commit it half done, or abort its first half and let the rest commit. A BatchProducer repeats nothing.
        """
        if self._trouble is None:
            return
        self.client.poll(0)
        if self._trouble.seen or took_s > SLOW_COMMIT_S:
            raise UncleanTransaction(
                f"its end took {took_s:.1f} s or saw a connection error; the producer is not used again"
            )

    def drop(self, transaction_open: bool) -> None:
        """Its transaction is aborted if that is easy; else the next owner's fencing does it."""
        try:
            self.client.purge()
            if transaction_open:
                self.client.abort_transaction(5.0)
        except KafkaException as error:
            log.debug("%s: aborting: %s", self._name, error)
        if self.whole_batches:
            cast("BatchProducer", self.client).close()
