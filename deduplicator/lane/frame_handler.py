"""What becomes of one frame: seen, delivered in whole or in part, skipped, or left out. The rule is in
deduplicator/lane/dedup.py.

What is delivered goes into the transaction under way; when that is committed, and where frames come from, is
left to others.
"""

from __future__ import annotations

import logging

from confluent_kafka import KafkaError, KafkaException

from common.app.lane_term import LaneTerm
from common.errors import FrameError, ImpossibleFrame, VerbatimError, what_and_where
from common.kafka.client.clients import Received
from common.kafka.wire.record_batch import BatchError
from common.kafka.wire.records import MAX_RECORDS, Rows
from common.link import batch_frame
from common.link.batch_frame import BatchFrame
from common.link.control_records import DEDUPLICATOR, Destination
from common.link.frame import Frame, decode_headers, decode_rows
from common.link.frame_errors import failed_of, split
from common.link.frame_routes import parted
from common.link.halt_reasons import HaltReason
from common.partitions import PartitionId
from deduplicator.lane.blocked_partitions import BlockedPartitions
from deduplicator.lane.dedup import Action, Decision, decide
from deduplicator.lane.frame_destinations import FrameDestinations, To
from deduplicator.lane.letting_go import LettingGo
from deduplicator.lane.moved import Moved
from deduplicator.lane.partition_state import StagingPartitionState
from deduplicator.lane.transaction import Again, Transaction
from deduplicator.lane.unavailable import Unavailable, Waiting
from deduplicator.lane_plan import DeduplicatorPlan

log = logging.getLogger(__name__)

Bad = tuple[int, str, str, str]
"""A record that can't be delivered: source offset, reason, detail, and the topic that does not take it."""
Parts = list[tuple[To, Rows | BatchFrame]]
"""What goes where."""


class CommitFirst(Waiting):
    """What was gathered of the frame's partition is of another pipeline, or has its dead letters elsewhere,
    and a mapping is of one."""


class GoBack(Exception):
    """Commit what was gathered, then read again from `position`: what was skipped comes now, in order."""

    def __init__(self, why: str, position: int) -> None:
        super().__init__(why)
        self.position = position


class FrameHandler:
    """Judges the frames of one staging partition, in order."""

    def __init__(
        self,
        plan: DeduplicatorPlan,
        term: LaneTerm,
        state: StagingPartitionState,
        transaction: Transaction,
        troubles: BlockedPartitions,
        unavailable: Unavailable,
    ) -> None:
        self.plan = plan
        self.term = term
        self.state = state
        self._transaction = transaction
        self._blocked = troubles
        self._refused: dict[PartitionId, tuple[int, int]] = {}
        """Of each partition, the frame that could not be read last: the staging offset from which on it may
        have been sent again, and its checksum. There may be copies of it from before."""
        self._destinations = FrameDestinations(term, transaction, troubles, unavailable)
        self.letting_go = LettingGo(term, state, plan.staging_partitions)
        self._bugs: dict[tuple[PartitionId, int], str] = {}
        """Partition and start of frames that an unexpected error is about, and what is said of it."""

    def take(self, message: Received) -> None:
        """Judge a message, and move the position past it: but not where it raises Waiting, GoBack or
        Again."""
        offset = message.offset()
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self.state.position = max(self.state.position, offset)
            return
        if offset < self.state.position:
            return
        self._judge(message)
        self.state.position = offset + 1
        self.state.frames += 1
        self.state.bytes += len(message)

    def _judge(self, message: Received) -> None:
        offset = message.offset()
        try:
            frame, crc = decode_headers(message.headers())
        except ImpossibleFrame as error:
            if _needed(self.plan, self.state, error.frame):
                self._refuse(error.frame, error.crc, offset, error)
            else:
                log.error("%s offset %d: %s; left out", self.state.name, offset, error)
            return
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            known = isinstance(error, FrameError | UnicodeDecodeError)
            log.error(
                "%s offset %d: %s; left out: if it was a frame, its records will be asked for again",
                self.state.name,
                offset,
                error if known else what_and_where(error),
                exc_info=None if known else error,
            )
            return
        key = (frame.topic_id, frame.partition)
        if frame.cluster != self.plan.cluster:
            log.error(
                "%s offset %d: frame of cluster %s, which is not this link's source; left out",
                self.state.name,
                offset,
                frame.cluster,
            )
            return
        if (bug := self._bugs.get((key, frame.start))) is not None:
            self._blocked.skip(key, frame, offset, HaltReason.INTERNAL, bug)
            return
        try:
            self._judge_frame(key, frame, crc, message)
        except (Waiting, GoBack, Again, VerbatimError, KafkaException, MemoryError):
            raise
        except Exception as error:
            # What is under way may have a part of it: once all is given up, the frame is left out.
            where = f"{frame.topic}-{frame.partition} [{frame.start}, {frame.next})"
            bug = f"{where}: {what_and_where(error)}, a bug: please report it with the traceback in the log"
            self._bugs[key, frame.start] = bug
            halt = self.term.state.halts.get((DEDUPLICATOR, key))
            if halt is None or halt.detail != bug:
                log.exception("%s offset %d: %s", self.state.name, offset, bug)
            raise Again(f"an unexpected error at offset {offset}: going on without {where}") from error

    def _judge_frame(self, key: PartitionId, frame: Frame, crc: int, message: Received) -> None:
        offset, trace = message.offset(), self._transaction.trace
        if trace is not None:
            trace.taken(frame)
        if self.letting_go.leaves_out(key, frame):
            return
        delivered = self.state.pipelines.get(key, 0)
        decision = decide(self.state.next.get(key), frame, self.state.complete, delivered)
        if decision.action is Action.SEEN:
            self.state.count(frame.topic, frame.partition, duplicates=frame.count)
            if key in self._transaction.moved:
                self._transaction.moved[key].duplicates += frame.count
            self._close_gap(key)
            return
        if decision.action in (Action.HOLE, Action.OUTDATED):
            why = _missing(frame, decision.action, delivered)
            self._blocked.skip(key, frame, offset, HaltReason.MISSING, why)
            return
        if decision.action is Action.UNKNOWN:
            self._unknown(key, frame, offset)
            return
        under_way = self._transaction.moved.get(key)
        if under_way is not None and not under_way.goes_with(frame, self._blocked.letter_topic.at):
            raise CommitFirst
        destination = self._destinations.own(key, frame, offset)
        if destination is None:
            return
        if under_way is not None:
            # Its mapping names one destination: another name counts from the next transaction on.
            destination = under_way.destination
        try:
            destinations = self._all_take(key, frame, offset, destination)
            if destinations is None:
                return
            rows = self._decoded(key, frame, crc, message.value(), decision.from_offset, destination)
        except FrameError as error:
            self._refuse(frame, crc, offset, error)
            return
        except BatchError as error:
            name = f"{frame.topic}-{frame.partition}"
            why = f"a batch of {name} in [{frame.start}, {frame.next}) can't be taken apart, which {destination.topic} needs: {error}"
            self._blocked.skip(key, frame, offset, HaltReason.UNREADABLE, why)
            return
        self._deliver(key, frame, rows, decision, destinations, offset)
        self._transaction.bytes += max(len(message), rows.unpacked)
        if trace is not None:
            trace.produced(len(message))

    def _all_take(self, key: PartitionId, frame: Frame, offset: int, own: Destination) -> list[To] | None:
        """The link's own destination, and those of the frame's routes; None: one of them, or the topic of
        dead letters, takes nothing, and the frame is held."""
        routes = self._destinations.routes(key, frame, offset, own)
        if routes is None:
            return None
        if frame.failed is not None and (no := self._blocked.letter_topic.refusal(frame)) is not None:
            self._blocked.skip(key, frame, offset, HaltReason.DEAD_LETTERS, no)
            return None
        return [(own, None), *routes]

    def _refuse(self, frame: Frame, crc: int, offset: int, error: FrameError) -> None:
        """Ask for a frame again that can't be read; where the same has come again since, it would for ever,
        and the partition halts."""
        key = (frame.topic_id, frame.partition)
        asked_at, before = self._refused.get(key, (0, None))
        if before != crc:
            self._refused[key] = (self._blocked.staging_end(), crc)
        elif offset >= asked_at:
            why = f"{error}; sent again, it was the same (checksum {crc:08x}): the replicator is of another release, or has a fault"
            self._blocked.skip(key, frame, offset, HaltReason.UNREADABLE, why)
            return
        log.error("%s offset %d: %s; asking for it again", self.state.name, offset, error)
        self._blocked.skip(key, frame, offset, HaltReason.MISSING, str(error))

    def _decoded(
        self,
        key: PartitionId,
        frame: Frame,
        crc: int,
        value: bytes | None,
        from_offset: int,
        destination: Destination,
    ) -> Rows | BatchFrame:
        """A frame's records from an offset on; as whole batches, if they are, and can go as they are. Raises
        FrameError; BatchError where batches that are as they were at the source must be taken apart, and
        can't be."""
        if not frame.batches:
            return decode_rows(frame, crc, value).from_offset(from_offset)
        wholes = batch_frame.decode(frame, crc, value)
        if (
            wholes.begin_at(from_offset)
            and key not in self._transaction.bad
            and self._transaction.takes_whole(wholes, destination)
        ):
            return wholes
        return wholes.rows().from_offset(from_offset)

    def _unknown(self, key: PartitionId, frame: Frame, offset: int) -> None:
        if self.state.complete:
            # Its origin frame was lost from staging: everything from the origin is asked for.
            self._blocked.skip(
                key,
                frame,
                offset,
                HaltReason.MISSING,
                "the first frame of the partition is missing from staging",
            )
            return
        self._blocked.skip(
            key,
            frame,
            offset,
            HaltReason.STATE_LOST,
            f"nothing is known of {frame.topic}-{frame.partition}: the mappings were cut before the Delta table had them, so how far it was "
            f"delivered can't be known; find its last delivered source offset and run: verbatim accept-loss {frame.topic} {frame.partition} "
            "--next OFFSET",
        )

    def _deliver(
        self,
        key: PartitionId,
        frame: Frame,
        rows: Rows | BatchFrame,
        decision: Decision,
        destinations: list[To],
        offset: int,
    ) -> None:
        """`destinations`: the link's own, and those of the frame's routes."""
        assert decision.next is not None
        reached = decision.next
        bad = None
        failed = None
        parts: Parts
        if isinstance(rows, Rows):
            parts, failed, bad = self._deliverable(key, frame, rows, destinations)
        else:
            parts = [(destinations[0], rows)]
        count = sum(part.count for _, part in parts)
        if bad is not None:
            reached = bad[0]
        if bad is None or decision.first or reached > self.state.next.get(key, -1):
            self._transaction.begin()
            moved = self._transaction.moved.get(key)
            if moved is None:
                start = self.state.next.get(key, frame.start)
                moved = self._transaction.moved[key] = Moved(frame, start, reached, destinations[0][0])
            moved.next = reached
            moved.records += count
            if bad is None:
                # Of a frame that was seen in part.
                moved.duplicates += frame.count - count
                self.state.count(frame.topic, frame.partition, duplicates=frame.count - count)
            moved.lost += decision.lost
            self.state.next[key] = reached
            if frame.pipeline:
                self.state.pipelines[key] = frame.pipeline
            for to, part in parts:
                if part.count:
                    self._transaction.produce(moved, part, *to)
            if failed is not None:
                self._transaction.produce_letters(moved, frame, failed, self._blocked.letter_topic.found())
        if bad is not None:
            self._blocked.skip(key, frame, offset, bad[1], bad[2], bad[0] + 1, (bad[3], frame.partition))
        elif frame.gap and key in self._blocked.stuck:
            trouble = self._blocked.stuck[key]
            trouble.until = max(trouble.until, offset)
            trouble.returning = True
            self._transaction.bad.pop(key, None)
            raise GoBack(
                f"going back to offset {trouble.held} for {frame.topic}-{frame.partition}", trouble.held
            )
        else:
            self._close_gap(key)

    def _deliverable(
        self, key: PartitionId, frame: Frame, rows: Rows, destinations: list[To]
    ) -> tuple[Parts, Rows | None, Bad | None]:
        """The rows up to the first one that can't be delivered, those that a stage failed on by themselves,
        and why that one can't."""
        own, *routes = destinations
        (parts, failed), bad = _parts(rows, own, routes), self._transaction.bad.get(key)
        found = [one for to, part in parts if (one := _missing_key(frame, part, to[0])) is not None]
        bad = min([*found, *([] if bad is None else [bad])], default=None)
        if bad is None or not rows.offsets or bad[0] > rows.offsets[-1] or bad[0] < rows.offsets[0]:
            return [*parts], failed, None
        parts, failed = _parts(rows.below(bad[0]), own, routes)
        return [*parts], failed, bad

    def _close_gap(self, key: PartitionId) -> None:
        moved = self._transaction.moved.get(key)
        self._blocked.close_gap(key, moved.frame.topic if moved is not None else "")


def _missing(frame: Frame, action: Action, delivered: int) -> str:
    if action is Action.OUTDATED:
        return f"a frame of pipeline {frame.pipeline} came after one of pipeline {delivered} was delivered"
    return f"frames before source offset {frame.start} are missing from staging"


def _needed(plan: DeduplicatorPlan, state: StagingPartitionState, frame: Frame) -> bool:
    """Whether a frame that can't be is the next one of its partition, with more records than any may have.
    Others are somebody's that have nothing to do here."""
    expected = state.next.get((frame.topic_id, frame.partition))
    ours = frame.cluster == plan.cluster and frame.start == expected
    return ours and MAX_RECORDS < frame.rows <= frame.next - frame.start


def _parts(rows: Rows, own: To, routes: list[To]) -> tuple[list[tuple[To, Rows]], Rows | None]:
    """What goes where, and those that a stage failed on."""
    if routes and rows.count:
        return parted(rows, own, routes), failed_of(rows)
    kept, failed = split(rows)
    return [(own, kept)], failed


def _missing_key(frame: Frame, rows: Rows, destination: Destination) -> Bad | None:
    """Kafka refuses a record without a key in a compacted topic, and with it the transaction, each time anew.
    The source may hold some from before it was compacted."""
    if not destination.compacted or not rows.batch.column("key").null_count:
        return None
    offset = rows.offsets[rows.keys.index(None)]
    why = f"has no key, and {destination.topic} is compacted (cleanup.policy), so it takes none without"
    detail = f"record {offset} of {frame.topic}-{frame.partition} {why}"
    return offset, HaltReason.NO_KEY, detail, destination.topic
