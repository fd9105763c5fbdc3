"""The replicator's lane: moves records of its source partitions into frames on the staging topic, for one
epoch.

A thin loop round replicator/lane/partition_copy.py:

    source consumer -> pending records -> frames -> topic id confirmed -> staging producer -> acknowledged ->
    position written

It decides nothing about duplicates. A delivery error ends the lane's writer: frames after a missing one must
not be appended.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError

from common import ports
from common.app.lane_term import LaneTerm, run_lane
from common.errors import what_and_where
from common.kafka.errors import NO_RIGHTS, denied, retriable
from common.kafka.wire.batch_consumer import Event
from common.kafka.wire.chunks import Chunk
from common.kafka.wire.record_batch import BatchError
from common.link import provenance
from common.link.control_log import ControlLog
from common.link.control_records import REPLICATOR
from common.link.halt_reasons import HaltReason
from common.link.lane_counters import Counters
from common.link.lane_progress import Done, PartitionPaused, Row
from common.link.lane_work import Work
from common.partitions import PartitionName
from common.ports import Deadline
from replicator.lane.batching_delay import BatchingDelay
from replicator.lane.flows import Flows
from replicator.lane.frame_packer import FramePacker
from replicator.lane.frame_trace import FrameTrace
from replicator.lane.halts import Halts
from replicator.lane.partition_copy import CutFrame, Loop, PartitionCopy, Status
from replicator.lane.resend_requests import ResendRequests, no_longer_there
from replicator.lane.schema_ids import SchemaIds
from replicator.lane.source_reader import Source
from replicator.lane.staging_writer import HELD_S, Writer, WriterFailed
from replicator.lane.throttle import Throttle
from replicator.lane.through_flow import StageFailed
from replicator.lane.topic_id_check import TopicIdCheck
from replicator.lane.unreadable import Unreadable
from replicator.lane_plan import ReplicatorPlan

if TYPE_CHECKING:
    from common.app.otel.spans import Spans

log = logging.getLogger(__name__)

POLL_S, IDLE_POLL_S = 0.05, 0.25
"""How long to wait for a record, the second where nothing else is waited for: it comes as soon as it is
there, and what turns take is all that a lane without traffic takes."""
ANSWER_S = 0.01
"""How long to wait for the answer to a question before looking round."""
MANY, MANY_BYTES = 1000, 768 << 10
"""So many records read at once, or so much, show that more is there. Of a partition no more than a megabyte
is asked for at first."""
ANSWER_TIMES = 3
"""So many times what a broker takes for an answer, it is waited for before frames are cut without it: what it
has would wait for another rest then."""
POSITION_INTERVAL_S = 1.0
STOP_S = 5.0
CALL_S = 30.0
_SUMMED = ("records", "left_out", "filtered", "skipped", "lag")
"""What partitions add up to."""


def run(plan: dict[str, Any]) -> Iterator[str]:
    """Run a lane for one epoch and yield its progress rows, as JSON."""
    return run_lane(plan, lambda found, spans: Lane(ReplicatorPlan.from_json(found), spans))


class Lane:
    """One epoch of one lane."""

    def __init__(self, plan: ReplicatorPlan, spans: Spans | None = None) -> None:
        self.plan = plan
        self.trace = None if spans is None else FrameTrace(spans)
        self.bounded: bool = plan.bounded
        self.control = ControlLog.in_lane(plan)
        self.term = LaneTerm(plan, self.control)
        self.counters = Counters(REPLICATOR, plan.term, plan.epoch, plan.lane, plan.positions_topic)
        mark = provenance.header(plan.target_cluster)
        packer = FramePacker.of(plan.staging_producer, plan.provenance)
        self.pipeline = Flows(plan.pipeline, plan.link, SchemaIds.of(plan))
        writer = f"{plan.instance}/{plan.term}.{plan.epoch}.{plan.lane}.{uuid.uuid4().hex[:6]}"
        self.copies = {
            (p.topic, p.partition): PartitionCopy(
                plan.cluster,
                p.topic,
                p.topic_id,
                p.partition,
                writer,
                p.origin,
                p.position if p.position is not None else p.origin,
                p.leader_epoch,
                p.handled,
                p.end,
                mark if plan.provenance else None,
                mark if p.same_name else None,
                packer,
                self.pipeline.number,
                self.pipeline.of(p.topic, p.partition),
                self.pipeline.tolerated(p.topic, p.tolerated),
            )
            for p in plan.partitions
        }
        self.new = {
            c.key for c, p in zip(self.copies.values(), plan.partitions, strict=True) if p.position is None
        }
        self.halts = Halts(self.term, self.copies.values())
        self.source = Source(plan, self.copies.values(), self.trace)
        self.topic_id_check = TopicIdCheck(self.source, self._send)
        self.writer = Writer(plan, self.term, self.halts, self.trace)
        self.resend_requests = ResendRequests(
            self.copies.values(), self.term, self.source, self.halts, self.topic_id_check.hold_back
        )
        self.throttle = Throttle(plan, self.copies.values(), self.source)
        self.positions_written = 0.0
        self.uncut: dict[PartitionName, PartitionCopy] = {}
        """The copies of which something was read that is not in a frame yet."""
        self.held_back = False
        """Whether all of them wait for a limit."""
        self.unreadable = Unreadable(self.source, self.halts, self.pipeline.schema_ids)
        self.rest = BatchingDelay()
        self.many = False
        self.flows = False
        """Whether frames have left since it was read last: more comes, most likely."""

    def run(self) -> Iterator[Row]:
        self.control.refresh(Deadline(CALL_S))
        if self.term.again:
            yield self.term.plan_anew()
            return
        try:
            for copy in self.copies.values():
                # The frame of a position holds nothing: if staging was cut, it shows the deduplicator that
                # frames before it are missing, even when no record ever comes again.
                self.topic_id_check.hold_back(
                    copy.origin_frame() if copy.key in self.new else copy.position_frame()
                )
            self.resend_requests.answer()
            self.throttle.follow(self.control.state.steering, ports.monotonic())
            self.source.read_from_positions()
            while not self._step():
                pass
        except WriterFailed as error:
            log.warning("%s", error)
        self._finish()
        for copy in self.copies.values():
            if copy.status is Status.ASKING:
                detail = f"{no_longer_there(copy)}; the deduplicator has not said how far the destination is: run it"
                self.halts.row_halted(copy, detail)
            elif self.bounded and copy.paused and not copy.done():
                self.halts.rows.append(PartitionPaused(copy.topic, copy.partition))
        yield from self.halts.rows
        yield Done(self._work())

    def close(self) -> None:
        self.source.close()
        self.pipeline.schema_ids.close()
        self.control.close()

    # the loop

    def _step(self) -> bool:
        """One turn; whether the lane is done."""
        self._consume()
        self._frame()
        self.writer.poll()
        self.unreadable.look()
        now = ports.monotonic()
        self._write_positions(now)
        if self.term.look(now):
            self.resend_requests.answer()
            self.resend_requests.ask_again(now)
            if self.throttle.follow(self.control.state.steering, now):
                for copy in self.throttle.gone_on:
                    self.topic_id_check.hold_back(copy.position_frame())
                self.source.read_from_positions()
        return self.term.over(now) or (self.bounded and self._all_done())

    def _consume(self) -> None:
        """Read what is there into the copies."""
        if self.topic_id_check.full() or self.throttle.enough(self.uncut.values()):
            self._pass_time()
            return
        came = self.source.read(self._wait())
        if not came:
            for topic, part in self.source.silent():
                nothing = f"nothing comes from offset {self.copies[topic, part].read} on"
                self.halts.replan(f"{topic}-{part}: {nothing}, though there is more")
        now = ports.monotonic()
        self.many = (
            sum(piece.count for piece in came) >= MANY or sum(piece.bytes for piece in came) >= MANY_BYTES
        )
        if not self.many:
            self.rest.no_more(now)
        self._take_pieces(came, now)
        self.throttle.hold_and_release(self.uncut.values())

    def _take_pieces(self, pieces: list[Chunk | Event], now: float) -> None:
        begun = self.source.begun
        for piece in pieces:
            if isinstance(piece, Event):
                self._on_event(piece, now)
            elif self.source.begun == begun:
                # An event may have begun reading anew, from where the copies were before this.
                self._take_chunk(piece)

    def _take_chunk(self, chunk: Chunk) -> None:
        copy = self.copies.get((chunk.topic, chunk.partition))
        if copy is not None:
            try:
                copy.take_chunk(chunk)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is about this partition
                self._confine(copy, error)
                return
            self.uncut[copy.topic, copy.partition] = copy
            self.held_back = False

    def _pass_time(self) -> None:
        if self.topic_id_check.asking():
            self.topic_id_check.wait(ANSWER_S)
        else:
            ports.sleep(ANSWER_S)

    def _wait(self) -> float:
        """How long to wait for a record now; waits itself for anything else that is to come first."""
        if self.many:
            return ANSWER_S if self.source.more_comes() else 0.0
        if self.topic_id_check.asking():
            self.topic_id_check.wait(ANSWER_S)
            return 0.0
        if (self.uncut and not self.held_back) or self.topic_id_check.waits() or self.flows:
            # Who waited for a record of a partition that has many would be handed the next one alone, and ask
            # again for the others.
            self.flows = False
            left = max(0.0, self.rest.until - ports.monotonic())
            if self.source.more_comes():
                return left
            ports.sleep(left)
            return ANSWER_TIMES * self.source.answer_s()
        if self.writer.holds():
            self.writer.poll(HELD_S)
            return 0.0
        return POLL_S if self.bounded or self.uncut or self.writer.awaits() else IDLE_POLL_S

    def _on_event(self, event: Event, now: float) -> None:
        error, code = event.error, event.error.code()
        copy = self.copies.get((event.topic, event.partition))
        if code in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION):
            if copy is not None and copy.status is Status.RUNNING:
                self.resend_requests.lost_position(copy, error, now)
        elif code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            # Deleted, or not known yet to the broker asked: the next plan tells.
            self.halts.replan(f"{event.topic}: {error.str()}")
        elif code == KafkaError._BAD_MSG:
            if copy is not None and copy.status is Status.RUNNING:
                self.unreadable.found(copy, error.str(), copy.read)
        elif code in NO_RIGHTS:
            refused = denied("reading the source", error, right="READ")
            for other in self.copies.values():
                if event.topic in (other.topic, "") and other.status is Status.RUNNING:
                    self.halts.halt(other, HaltReason.NOT_AUTHORIZED, str(refused), None, None)
        elif not retriable(error):
            log.warning("source: %s", error.str())

    def _confine(self, copy: PartitionCopy, error: Exception) -> None:
        """Stop one partition for an error that nobody expected; it is tried again with the next epoch. What
        was cut of it before is sent again."""
        if isinstance(error, MemoryError):
            raise error  # of the whole process
        detail = (
            f"{copy.name}: {what_and_where(error)}, a bug: please report it with the traceback in the log"
        )
        self.halts.internal(copy, detail, error)

    def _frame(self) -> None:
        """Send the frames whose topic is confirmed; cut the next ones, and ask for theirs."""
        begun = ports.monotonic()
        answers = self.topic_id_check.answers(begun)
        for cut, still_the_same in answers:
            if still_the_same:
                self._send(cut)
            else:
                self.halts.recreated(cut.frame.topic)
        rested = (begun >= self.rest.until or self.topic_id_check.full()) and not self.topic_id_check.asking()
        if rested:
            self._cut(True)
            self.topic_id_check.ask(begun)
        elif self.many:
            self._cut(False)
        if answers or rested:
            answer_s = max(self.topic_id_check.answer_s, self.source.answer_s())
            self.rest.after(begun, ports.monotonic(), self.many, answer_s)

    def _send(self, cut: CutFrame) -> None:
        frame = cut.frame
        self.flows = True
        self.rest.rate.came(frame.count)
        self.writer.send(self.copies[frame.topic, frame.partition], cut)

    def _cut(self, all_of_it: bool) -> None:
        """Cut what was read into frames: full ones, or all of it; of what is limited, as much as may go."""
        now = ports.monotonic()
        waiting = 0
        for at, copy in list(self.uncut.items()):
            limited, most = self.throttle.limits(copy), None
            if self.unreadable.next_of(copy):
                continue
            if copy.status is Status.RUNNING and (all_of_it or (copy.full() and not limited)):
                most = self.throttle.affordable(copy, now) if limited else None
                cuts: list[CutFrame] = []
                try:
                    cuts = copy.cut(all_of_it, most)
                except BatchError as error:
                    self.unreadable.found(copy, str(error), copy.cut_at)
                except StageFailed as failed:
                    self.unreadable.stage_failed(copy, failed)
                except Loop as error:
                    why = f"{error}; set PROVENANCE_HEADERS on both links"
                    self.halts.halt(copy, HaltReason.LOOP, why, copy.cut_at, None)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is about this partition
                    self._confine(copy, error)
                for cut in cuts:
                    if self.trace is not None:
                        self.trace.cut(cut.frame)
                    self.topic_id_check.hold_back(cut)
                    self.throttle.spend(cut)
            if copy.status is not Status.RUNNING or copy.cut_at >= copy.read:
                del self.uncut[at]
            elif limited and all_of_it:
                waiting += 1
                if most != 0:
                    # Behind those that got nothing: what the link's limit lets through is shared out in
                    # turns.
                    self.uncut[at] = self.uncut.pop(at)
        self.held_back = self.throttle.holds_back(waiting, len(self.uncut), all_of_it, now)

    def _write_positions(self, now: float, force: bool = False) -> None:
        if not force and now - self.positions_written < POSITION_INTERVAL_S:
            return
        self.positions_written = now
        self.writer.write_positions(self.copies.values())
        if force or self.counters.due(now):
            self.writer.write_counters(self.counters, now, self._work())

    # the end

    def _finish(self) -> None:
        """Wait for what is in flight, then remember the positions. Frames not yet released are simply read
        again."""
        deadline = Deadline(STOP_S)
        if self.writer.flush(deadline.left()):
            self._write_positions(ports.monotonic(), force=True)
            self.writer.flush(deadline.left())
        self.writer.close()

    def _all_done(self) -> bool:
        if self.topic_id_check.waits() or self.topic_id_check.asking():
            return False
        return all(c.status is not Status.RUNNING or c.paused or c.done() for c in self.copies.values())

    def _work(self) -> Work:
        ends, found = self.source.ends(), Work(self.throttle.counts())
        for at, copy in self.copies.items():
            of = found.of[at] = _counts(copy, ends.get(at), self.plan.provenance)
            found.counts.update(frames=copy.frames, bytes=copy.frame_bytes)
            found.counts.update({name: of[name] for name in _SUMMED if name in of})
        return found


def _counts(copy: PartitionCopy, end: int | None, provenance: bool) -> Counter[str]:
    found = Counter(records=copy.records, staged_offset=copy.acked)
    if provenance:
        found["left_out"] = copy.left_out
    if copy.flow is not None:
        found.update(filtered=copy.filtered, skipped=copy.skipped)
    if end is not None:
        found.update(end_offset=end, lag=max(0, end - copy.acked))
    return found
