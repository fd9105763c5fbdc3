"""Delivery from one staging partition: frames in, transactions out, exactly once.

A thread runs one Delivery: take frames, have them judged (deduplicator/lane/frame_handler.py), which produces
what is new, then commit it with the mappings and the staging position (deduplicator/lane/transaction.py).
Blocking calls are welcome here; while one transaction commits, the next frames gather in the inbox, so
transactions grow with the load by themselves.

An unclean outcome is never judged from an exception: the producer is dropped, and state and position are
loaded again, together.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from common import ports
from common.app.lane_term import LaneTerm
from common.errors import Deposed, KafkaTimeout, LinkRefused, UncleanTransaction
from common.kafka.client.clients import Received
from common.kafka.errors import NO_RIGHTS, denied, kafka_error
from common.partitions import PartitionId
from common.ports import Deadline
from deduplicator.lane.blocked_partition import BlockedPartition
from deduplicator.lane.blocked_partitions import BlockedPartitions
from deduplicator.lane.fencing import FencingProducer
from deduplicator.lane.frame_handler import FrameHandler, GoBack
from deduplicator.lane.frame_trace import FrameTrace
from deduplicator.lane.hanging import Unsettled, Watch, close_hanging, own_destinations
from deduplicator.lane.inbox import Inbox
from deduplicator.lane.partition_state import StagingPartitionState
from deduplicator.lane.recovery import Recovered, Snapshot, StalePlan, recover
from deduplicator.lane.transaction import MAX_BATCH_BYTES, Again, Transaction, batch_within
from deduplicator.lane.transaction_linger import MUCH_BYTES
from deduplicator.lane.transactional_ids import TransactionalIds
from deduplicator.lane.unavailable import Unavailable, Waiting
from deduplicator.lane_plan import DeduplicatorPlan, StagingPartition

if TYPE_CHECKING:
    from common.app.otel.spans import Spans

log = logging.getLogger(__name__)

LOOK_S, IDLE_S = 0.2, 1.0
"""How long to wait for a frame before looking round, the second where there is nothing to look for."""
RECOVERY_S = 60.0
CALL_S = 30.0
IDLE_POSITION_S = 5.0
"""After so long without a transaction, one commits the group's offset alone: whoever waits until all is
delivered goes by it."""
KEEP_OFFSETS_S = 3600.0
LEAST_REST_S, MOST_REST_S = 0.003, 0.025
"""After a transaction a delivery rests as long as that or the one before took, whichever was shorter, within
these bounds, unless more than MUCH_BYTES wait: each costs several requests, however little it holds, so on a
busy machine there are fewer and larger ones."""


class Delivery:
    """One staging partition, owned by one lane.

    `read_from` gets (generation, offset) when the lane is to read from there."""

    def __init__(
        self,
        plan: DeduplicatorPlan,
        share: StagingPartition,
        term: LaneTerm,
        admin: AdminClient,
        spans: Spans | None = None,
    ) -> None:
        self.plan = plan
        self.partition = share.partition
        self.end = share.end
        self.snapshot = share.snapshot
        self.term = term
        self.inbox = Inbox()
        self.read_from: deque[tuple[int, int]] = deque()
        self.restart = False
        """Set by the lane when staging no longer has what it is reading."""
        self.failure: BaseException | None = None
        self.refusal: str | None = None
        self.stale = False
        """Whether it can't begin with its plan, and needs another one."""
        self.left: Snapshot | None = None
        """What is known of the partition at the end, where nothing was under way then."""
        self.stopping = False
        self.turned = ports.monotonic()
        """When it last began to gather a transaction or to recover: each of its calls is bounded, so it does
        so again before long."""
        self.state = StagingPartitionState(f"{plan.staging_topic}-{self.partition}", self.partition)
        self._admin = admin
        trace = None if spans is None else FrameTrace(spans)
        self._transaction = Transaction(plan, self.state, self._has_several_sources, trace)
        self._ids = TransactionalIds(term.control)
        self._unavailable = Unavailable(admin, self._topic_id)
        self._blocked = BlockedPartitions(plan, term, self.state, admin, self._unavailable)
        self._frame_handler = FrameHandler(
            plan, term, self.state, self._transaction, self._blocked, self._unavailable
        )
        self._watch: Watch
        self._committed_at = ports.monotonic()
        self._pending: Received | None = None
        self._pause = 0.1
        self._took_s = 0.0
        """How long the last transaction took."""
        self._resume_at: int | None = None
        """Where to read from after the next recovery, when that is not where the last transaction ended."""
        self.thread = ports.thread(self._main, f"delivery-{self.partition}")

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def stuck(self) -> dict[PartitionId, BlockedPartition]:
        """The source partitions that can't go on for now."""
        return self._blocked.stuck

    def done(self) -> bool:
        """In a bounded run: whether everything up to the end it was given is committed, and all questions are
        answered."""
        return (
            self.end is not None
            and self.state.position >= self.end
            and self.state.committed >= self.end
            and not self._blocked.asked()
            and not self._unavailable.to_be_looked_at()
        )

    def _has_several_sources(self, destination: str, ask: bool) -> bool:
        state = self.term.control.refresh(Deadline(CALL_S)) if ask else self.term.state
        return state.has_several_sources(destination)

    def _topic_id(self, destination: str) -> str | None:
        return self.term.state.settled_id(destination)

    # the thread

    def _main(self) -> None:
        try:
            while not self.stopping:
                self.turned = ports.monotonic()
                try:
                    if not self._transaction.has_producer():
                        self._recover()
                    self._turn()
                except Again as again:
                    log.info("%s: %s", self.name, again)
                    self._resume_at = again.position
                    self._abandon()
                except LinkRefused as refused:
                    self.refusal = str(refused)
                    self.stopping = True
                except StalePlan as stale:
                    log.info("%s: %s", self.name, stale)
                    self.stale = self.stopping = True
                except (UncleanTransaction, KafkaException, KafkaTimeout) as error:
                    self._ride_out(error)
            self.left = self._leave()
        except Deposed as error:
            log.info("%s: %s", self.name, error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the lane must hear of it
            self.failure = error
        finally:
            self._abandon()

    def _leave(self) -> Snapshot | None:
        """What the next owner may begin with, so that it need not read the mappings from the table's M on.
        Not where a transaction is under way, whose outcome only the mappings will tell: `next` in memory has
        what it would have moved."""
        if self._transaction.open or not self._transaction.has_producer():
            return None
        if not self.state.complete:
            # Its plan was older than what the mappings begin with by now; the table may know all again.
            return None
        folded, staging_offset = self._transaction.mappings_known
        return Snapshot(folded, self.state.complete, staging_offset, self.state.next, self.state.pipelines)

    def _ride_out(self, error: Exception) -> None:
        reason = kafka_error(error)
        if reason is not None and reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            # A report is about a batch: do it again, each record by itself, to learn which one it is.
            self._transaction.send_alone()
        refused = self._transaction.refused()
        if isinstance(error, Unsettled):
            refused |= error.refused
        # Recovery has transactions, too.
        self.state.aborted += not self._transaction.open
        self._abandon()
        self._blocked.stay(self._unavailable.refused(refused, (self.plan.mappings_topic,)))
        if not self.stopping:
            log.warning("%s: transaction given up, going through recovery: %s", self.name, error)
            ports.sleep(self._pause)
            self._pause = min(5.0, self._pause * 2)

    def _turn(self) -> None:
        """Gather one transaction and commit it."""
        if self.restart:
            raise Again("staging was cut under the reader")
        self._frame_handler.letting_go.answer()
        self._blocked.answer_asks()
        self._blocked.go_back_where_cleared()
        self._unavailable.gone_back()
        if (hangs := self._watch.hangs(self._unavailable.aside, ports.monotonic())) is not None:
            raise Again(f"{hangs[0]}-{hangs[1]}: a transaction that has ended lacks its marker there")
        # A message with an empty value counts as false.
        message = self._pending if self._pending is not None else self.inbox.take(self._idle_s())
        self._pending = None
        begun = ports.monotonic()
        if message is None:
            self._when_idle(begun)
            return
        while message is not None:
            try:
                self._frame_handler.take(message)
            except Waiting:
                self._pending = message
                break
            except GoBack as back:
                self._commit()
                raise Again(str(back), back.position) from None
            now = ports.monotonic()
            if self._full(now):
                break
            message = self.inbox.take(self._transaction.waits_s(now))
        if self._transaction.open:
            self._commit()
            self._rest(ports.monotonic() - begun)
        else:
            self._blocked.settle()
            if self.state.position != self.state.committed:
                self._when_idle(ports.monotonic())
            if self._pending is not None:
                ports.sleep(0.1)

    def _idle_s(self) -> float:
        waited_for = self.end is not None or self.stuck or self._unavailable.to_be_looked_at()
        return LOOK_S if waited_for or self.state.position != self.state.committed else IDLE_S

    def _rest(self, took_s: float) -> None:
        # What slowed one down alone, such as a broker's garbage collection, is over.
        usual, self._took_s = min(took_s, self._took_s), took_s
        if self.inbox.bytes < MUCH_BYTES and not self.stopping:
            ports.sleep(min(MOST_REST_S, max(LEAST_REST_S, usual)))

    def _full(self, now: float) -> bool:
        return self.stopping or (self._transaction.open and self._transaction.full(now))

    def _when_idle(self, now: float) -> None:
        """Commit a position that the last transaction left behind, or that moved over duplicates only; and
        from time to time the same one again: a group without members loses its offsets after some days."""
        since = now - self._committed_at
        moved = self.state.position != self.state.committed
        at_end = self.end is not None and self.state.position >= self.end
        if (moved and (since > IDLE_POSITION_S or at_end)) or since > KEEP_OFFSETS_S:
            self._transaction.begin()
            self._commit()

    def _commit(self) -> None:
        """Commit what was gathered."""
        taken = self._transaction.written()
        try:
            self._transaction.commit()
        except KafkaException as exception:
            error = kafka_error(exception)
            if error is not None and error.code() in NO_RIGHTS:
                raise denied(f"writing to {self.plan.mappings_topic}", error, right="WRITE") from None
            raise
        self._committed_at = ports.monotonic()
        self._pause = 0.1
        self._unavailable.took(taken)
        self._watch.wrote(taken)
        self._blocked.settle()

    # recovery

    def _recover(self) -> None:
        """Fence, then load state and position."""
        plan = self.plan
        deadline = Deadline(RECOVERY_S)
        self._abandon()
        self.state.recoveries += 1
        self.term.must_lead(deadline)
        destinations = self.term.state.all_destinations()
        limits = [d.max_message_bytes for _, d in destinations if d.refused is None]
        self._transaction.batch_bytes = min([MAX_BATCH_BYTES, *(batch_within(limit) for limit in limits)])
        fencing = FencingProducer(plan, self.partition, self.name, self._ids)
        try:
            until = fencing.fence(deadline)
            found = recover(
                self.snapshot,
                plan.mappings_topic,
                plan.staging_topic,
                self.partition,
                until,
                plan.reader,
                plan.group,
                self._admin,
                deadline,
            )
        except BaseException:
            fencing.drop(False)
            raise
        self._transaction.use(fencing, (until + 1, found.staging_offset))
        self._watch = Watch(fencing)
        self.state.next = found.next
        self.state.pipelines = found.pipelines
        self.state.reached = dict(found.next)
        self.state.complete = found.complete
        self._blocked.inherit_holds(found.position)
        self._blocked.stay(self._unavailable.without_marker(fencing.unmarked, plan.mappings_topic))
        self._close_hanging(fencing, found, until, deadline)
        start = found.position
        if self._resume_at is not None:
            start = min(start, self._resume_at)
        start = self._blocked.first_returning(start)
        self._resume_at = None
        # Not the start of staging as it is by now: it moves with what another owner delivers, who may have
        # fenced this one since.
        start = max(start, found.staging_start)
        self.state.position = start
        # A bounded run commits the group's offset at its end whatever it was: the driver goes by that.
        self.state.committed = found.position if self.end is None else -1
        self.restart = False
        self.read_from.append((self.inbox.restart(), start))
        log.info("%s: owned, %d partitions known, reading from %d", self.name, len(self.state.next), start)

    def _close_hanging(
        self, fencing: FencingProducer, found: Recovered, until: int, deadline: Deadline
    ) -> None:
        """Before anything is written. What is described later than that, no earlier owner can have written
        to."""
        state = self.term.control.refresh(deadline)
        own = own_destinations(self.plan, self.partition, state, found)
        words = "it was set aside, and what is open there has not been asked since"
        aside = {at: KafkaError(one.code, words) for at, one in self._unavailable.aside.items() if at in own}
        asked = {at: delivered for at, delivered in own.items() if at not in aside}
        unsettled = close_hanging(self.plan, self.partition, fencing, asked, until, self._admin, deadline)
        self._unavailable.unsettled = aside | unsettled
        fencing.keep_to_one()

    def _abandon(self) -> None:
        """Drop the producer, and with it all that is not committed."""
        transaction = self._transaction
        self._pending = None
        self._blocked.forget_closing()
        transaction.drop()
