"""The transactional producer of a staging partition: made, fencing its predecessors, and used only while it
is above suspicion.

What goes into its transactions is left to deduplicator/lane/transaction.py.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from confluent_kafka import KafkaError, KafkaException

from common.errors import UncleanTransaction
from common.kafka.errors import NO_RIGHTS, TRANSACTION_TIMEOUT_MS, denied, kafka_error, retrying, too_short
from common.kafka.model import GROUPS_TOPIC
from common.kafka.wire.batch_producer import BatchProducer, Delivered, Refused
from common.kafka.wire.protocol import KnownTransaction
from common.partitions import PartitionName
from common.ports import Deadline
from deduplicator.lane.transactional_ids import MOST, TransactionalIds, transactional_id
from deduplicator.lane_plan import DeduplicatorPlan

log = logging.getLogger(__name__)

MARK_S = 30.0
STUCK_S = 5.0
"""So long an id may refuse to be fenced before it is looked at why: its last transaction is being completed,
which takes milliseconds."""


class FencingProducer:
    """A producer with the transactional id of a staging partition: a new one fences all before it."""

    def __init__(
        self,
        plan: DeduplicatorPlan,
        partition: int,
        name: str,
        ids: TransactionalIds,
    ) -> None:
        self._plan = plan
        self._ids = ids
        self.fenced: dict[str, BatchProducer] = {}
        """By transactional id, those that fenced it; the first is the one that is used."""
        self.ids_of: dict[int, str] = {}
        """By producer id, the transactional id; of those too that could not be fenced."""
        self.unmarked: set[PartitionName] = set()
        """Partitions without a leader, most likely: transactions can't be completed for want of their
        markers."""
        self._mappings_topic: str = plan.mappings_topic
        self._partition = partition
        self._name = name
        self.id = transactional_id(plan.link, partition, 0)
        self.client = self._with_id(transactional_id(plan.link, partition, 0))

    def _with_id(self, tid: str) -> BatchProducer:
        return BatchProducer(
            self._plan.producer,
            tid,
            TRANSACTION_TIMEOUT_MS,
            self._plan.group,
            [(self._mappings_topic, self._partition)],
        )

    def _fence_ids(self, deadline: Deadline) -> None:
        """Fence all ids of the partition, or see that they are nobody's; the first that could be fenced is
        used from then on."""
        first = self.client
        nobodys: dict[str, KnownTransaction] = {}
        for number in range(MOST):
            tid = transactional_id(self._plan.link, self._partition, number)
            known = self._known(first, tid, deadline)
            if known is None and self.fenced:
                break
            if known is not None and self._closes_as_committed(known):
                self._commit_of_predecessor(tid, known, deadline)
            producer = self._with_id(tid) if number else first
            if self._fenced(producer, tid, deadline):
                self.fenced[tid] = producer
                self.ids_of[producer.id[0]] = tid
            else:
                if number:
                    producer.close()
                nobodys[tid] = self._nobodys(tid, known, self._known(first, tid, deadline))
                self.ids_of[nobodys[tid].number] = tid
        if not self.fenced:
            raise UncleanTransaction(
                f"fencing {self._name}: transactions of all its transactional ids are being completed"
            )
        self.id, self.client = next(iter(self.fenced.items()))
        for tid, known in nobodys.items():
            now = self._known(first, tid, deadline)
            if now is None or (now.number, now.epoch) != (known.number, known.epoch):
                raise UncleanTransaction(
                    f"fencing {self._name}: transactional id {tid} has been taken meanwhile"
                )
        if self.client is not first:
            log.warning("%s: going on with another transactional id than %s", self._name, ", ".join(nobodys))
            first.close()

    def _closes_as_committed(self, known: KnownTransaction) -> bool:
        """Whether it is one that puts the marker of a commit where one is missing: fencing would abort it,
        and take what was committed. All others have the mappings in them, or none but the group's offset."""
        topics = {topic for topic, _ in known.partitions}
        return (
            known.state == "Ongoing"
            and bool(topics)
            and topics.isdisjoint((self._mappings_topic, GROUPS_TOPIC))
        )

    def _commit_of_predecessor(self, tid: str, known: KnownTransaction, deadline: Deadline) -> None:
        log.warning("%s: %s was closing what hangs when its owner ended; it is committed", self._name, tid)
        producer = self._with_id(tid)
        try:
            producer.commit_of_predecessor(known.number, known.epoch, deadline.left(MARK_S))
        finally:
            producer.close()

    def _known(self, client: BatchProducer, tid: str, deadline: Deadline) -> KnownTransaction | None:
        return retrying(
            f"looking up transactional id {tid}", lambda t: client.known_transaction(tid, t), deadline
        )

    def _fenced(self, producer: BatchProducer, tid: str, deadline: Deadline) -> bool:
        """Whether the id was fenced: not where its last transaction is still being completed after
        STUCK_S."""

        def ask(timeout: float) -> bool:
            try:
                producer.init_transactions(min(timeout, STUCK_S))
            except KafkaException as exception:
                error = kafka_error(exception)
                if error is None or error.code() != KafkaError.CONCURRENT_TRANSACTIONS:
                    raise
                return False
            self._ids.have(tid, *producer.id)
            return True

        return retrying(f"fencing {self._name} as transactional id {tid}", ask, deadline)

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
        """Fence, and find the end of the mappings: an offset below which all stands that a predecessor
        committed.

        A record of our own shows where the log really ends: acknowledged by all replicas, it stands behind
        every commit of a predecessor, some of which may not be visible yet. Its transaction is aborted, so
        that nobody ever reads it.
        """
        try:
            self._fence_ids(deadline)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise too_short() from None
            raise
        producer = self.client
        fence: list[int] = []
        denials: list[KafkaError] = []
        producer.begin_transaction()

        def fenced(error: KafkaError | None, message: Delivered) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                fence.append(offset)
            elif error is not None and error.code() in NO_RIGHTS:
                denials.append(error)

        producer.produce(self._mappings_topic, b"fence", None, self._partition, on_delivery=fenced)
        try:
            producer.flush(deadline.left())
        except Refused as refused:
            denials.append(refused.error)
        if denials:
            raise denied(f"writing to {self._mappings_topic}", denials[0], right="WRITE")
        if not fence:
            raise UncleanTransaction("the end of the mappings could not be found")
        producer.abort_transaction(max(1.0, deadline.left()))
        return fence[0]

    @property
    def refused(self) -> dict[PartitionName, KafkaError]:
        """The partitions for which it could not go on, with whatever id."""
        return {at: error for producer in self.fenced.values() for at, error in producer.refused.items()}

    def mark(self, tid: str, partitions: Collection[PartitionName], committed: bool) -> None:
        """Put a marker of this id into partitions, by a transaction without records. Who ends in the middle
        of a commit has it committed by whoever comes next, who knows it by the mappings that are not in
        it."""
        producer = self.fenced[tid]
        producer.begin_transaction()
        producer.take_part(partitions, MARK_S, in_each=not committed)
        if committed:
            producer.commit_transaction(MARK_S)
        else:
            producer.abort_transaction(MARK_S)

    def keep_to_one(self) -> None:
        """The other ids have been fenced, and are needed no more."""
        for tid, producer in self.fenced.items():
            if tid != self.id:
                producer.close()

    def drop(self, transaction_open: bool) -> None:
        """Its transaction is aborted if that is easy; else the next owner's fencing does it."""
        try:
            self.client.purge()
            if transaction_open:
                self.client.abort_transaction(5.0)
        except KafkaException as error:
            log.debug("%s: aborting: %s", self._name, error)
        self.client.close()
        self.keep_to_one()
