"""One source partition on its way into frames: what has been read, cut, sent and acknowledged. Pure: no
clients, no clock.

`position <= ...` invariants, in the order in which a record passes them:

    acked <= sent <= cut <= read        all are positions at the source

`read` is where the next record is expected, `cut` where the next frame begins, `sent` what has been handed to
the producer, and `acked` what the staging topic is known to hold. Only `acked` may be remembered as the
partition's position.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from common.kafka.wire.chunks import Chunk, Chunks, FrameContents, Whole
from common.kafka.wire.record_batch import BatchError
from common.kafka.wire.record_decoder import UNPACKED_BYTES, leading
from common.kafka.wire.records import Header, headers_of
from common.link.frame import Frame
from common.link.frame_errors import Failed
from common.link.provenance import came_from
from common.partitions import PartitionId
from replicator.lane.frame_packer import FramePacker, starts
from replicator.lane.through_flow import Flow, Kept, StageFailed, takes_apart, through_flow

if TYPE_CHECKING:
    from common.pipeline.batch import Awaited
    from common.pipeline.tolerating import Tolerated

MAX_FRAME_RECORDS = 10_000
MAX_FRAME_BYTES = 800 << 10
"""Of keys, values and headers. A batch of so much fits into a topic with Kafka's own max.message.bytes,
however badly it compresses: else the deduplicator would have to take it apart. Half of it cost a tenth more
CPU."""
FRAMES_TOGETHER = 4
"""So many frames' worth of rows is made into frames together: to begin costs as much as some hundred
records."""
LOOP_LOOK_FRAMES = 64


class Loop(Exception):
    """A record has come back: it was copied from the cluster, and the topic, that this link would take it
    to."""


class Status(Enum):
    RUNNING = "running"
    ASKING = "asking"
    """The source no longer has its position; the deduplicator is asked how far the destination is."""
    HALTED = "halted"


@dataclass(frozen=True, slots=True)
class CutFrame:
    """A frame ready to go, its value, and the leader epoch of its last record (None if unknown). `left_out`,
    `filtered`, `skipped`: records that are not in it, since they have been at the target, for a stage of the
    pipeline, and since one failed on them. `unpacked`: the value's bytes before compression."""

    frame: Frame
    value: pa.Buffer | bytes
    leader_epoch: int | None
    generation: int
    handled: int
    left_out: int = 0
    filtered: int = 0
    skipped: int = 0
    unpacked: int = 0


@dataclass(slots=True)
class PartitionCopy:
    """The state of one source partition in a lane.

    `handled` is the control offset of the newest demand that this lane has turned to, `answered` that of the
    newest one whose answer staging is known to hold: only that may be remembered, or a crash in between would
    leave the demand unanswered.
    """

    cluster: str
    topic: str
    topic_id: str
    partition: int
    writer: str
    origin: int
    position: int
    leader_epoch: int | None = None
    handled: int = -1
    end: int | None = None
    leave_out: Header | None = None
    """Records with this provenance header are not copied: to the destination they are gaps, like those of
    compaction."""
    refuse: Header | None = None
    """A record with this provenance header shows that the link is part of a loop."""
    packer: FramePacker = field(default_factory=FramePacker)
    pipeline: int = 0
    """The number of the link's pipeline, which each frame says."""
    flow: Flow | None = None
    """None: its records are not looked at."""
    tolerated: Tolerated | None = None
    """Those that a stage has failed on, where it is counted how many may be."""
    status: Status = Status.RUNNING
    paused: bool = False
    """Whether an operator has paused its topic: it is not read, whatever its status."""
    gone: tuple[int, int, int] | None = None
    """While it is asking: the position that its source no longer has, and where the log there begins and
    ends."""
    generation: int = 0
    answered: int = field(init=False)
    read: int = field(init=False)
    read_epoch: int | None = field(init=False)
    """The leader epoch of the record before `read`, where it is known."""
    cut_at: int = field(init=False)
    cut_epoch: int | None = field(init=False)
    """The same of `cut_at`."""
    acked: int = field(init=False)
    recorded: int | None = None
    chunks: Chunks = field(default_factory=Chunks)
    """What was read that is in no frame yet."""
    failed: StageFailed | None = None
    """Why nothing more may be cut: everything before that is."""
    awaits: Awaited | None = None
    """The schema that it is halted for."""
    asked_since: float = 0.0
    records: int = 0
    left_out: int = 0
    filtered: int = 0
    skipped: int = 0
    frames: int = 0
    whole_frames: int = 0
    """Those that were cut of whole batches: the first of them is looked at for a loop, and some after it."""
    frame_bytes: int = 0

    def __post_init__(self) -> None:
        self.read = self.cut_at = self.acked = self.position
        self.read_epoch = self.cut_epoch = self.leader_epoch
        self.answered = self.handled

    @property
    def key(self) -> PartitionId:
        return (self.topic_id, self.partition)

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def waiting(self) -> int:
        """Records that are in no frame yet."""
        return self.chunks.count

    @property
    def pending_bytes(self) -> int:
        """About what these take."""
        return self.chunks.bytes

    def rewind(self, position: int, leader_epoch: int | None = None) -> None:
        """Read again from `position`. Acknowledgements of frames cut before no longer count."""
        self.generation += 1
        self.read = self.cut_at = self.acked = position
        self.leader_epoch = self.read_epoch = self.cut_epoch = leader_epoch
        self._drop_read()

    def put_back(self) -> None:
        """Read again what is in no frame yet. All frames keep their meaning."""
        self.read, self.read_epoch = self.cut_at, self.cut_epoch
        self._drop_read()

    def _drop_read(self) -> None:
        self.chunks.clear()
        self.failed = self.awaits = None

    @property
    def schema_awaited(self) -> Awaited | None:
        """What keeps it, or what is read of it, from going on: known to all who look, it is put back."""
        return self.awaits if self.failed is None else self.failed.schema

    def go_on(self) -> None:
        """Read again what it waited with."""
        if self.awaits is not None:
            self.status = Status.RUNNING
        self.put_back()

    def take_chunk(self, chunk: Chunk) -> None:
        """Take in what was just read."""
        if self.status is not Status.RUNNING or self.failed is not None or chunk.next <= self.read:
            return
        if chunk.count:
            self.chunks.add(chunk)
        self.read, self.read_epoch = chunk.next, chunk.leader_epoch

    def full(self) -> bool:
        return self.waiting >= MAX_FRAME_RECORDS or self.pending_bytes >= MAX_FRAME_BYTES

    def cut(self, all_of_it: bool, most: int | None = None) -> list[CutFrame]:
        """Cut pending records into frames: the full ones, or `all_of_it`, then with an empty frame for a tail
        without records. `most`: no more records than that (None: any number). Raises Loop, BatchError
        where a batch can't be taken apart, and StageFailed."""
        if self.failed is not None:
            raise self.failed
        cuts: list[CutFrame] = []
        left = self.waiting if most is None else most
        while self.waiting and left > 0 and (all_of_it or self.full()):
            try:
                found = self._cut_chunks(left, most is None, self._frames(all_of_it))
            except (BatchError, StageFailed):
                # It is met again, behind those that are cut already.
                if cuts:
                    return cuts
                raise
            cuts += found
            if self.failed is not None:
                return cuts
            left -= sum(cut.frame.rows for cut in found)
        if all_of_it and not self.waiting and self.cut_at < self.read:
            cuts.append(self._cut(self.read, 0, b"", None))
        return cuts

    def origin_frame(self) -> CutFrame:
        """The first frame of the partition on the link: empty, so that it can't be lost among records."""
        return CutFrame(
            self._frame(self.origin, self.origin, 0, origin=True), b"", None, self.generation, self.handled
        )

    def position_frame(self) -> CutFrame:
        """A frame that holds nothing, behind all that was cut, which is the position at first: whoever misses
        that will notice."""
        return CutFrame(
            self._frame(self.cut_at, self.cut_at, 0), b"", self.cut_epoch, self.generation, self.handled
        )

    def gap_frame(self, start: int, end: int, reason: str) -> CutFrame:
        """The frame that says that an operator has accepted the loss of [start, end)."""
        return CutFrame(
            self._frame(start, end, 0, gap=True, reason=reason), b"", None, self.generation, self.handled
        )

    def acknowledge(self, cut: CutFrame) -> None:
        """The staging topic holds this frame, and all that were cut before it."""
        self.records += cut.frame.count
        self.left_out += cut.left_out
        self.filtered += cut.filtered
        self.skipped += cut.skipped
        self.frames += 1
        self.frame_bytes += len(cut.value)
        if cut.generation != self.generation:
            return
        self.answered = max(self.answered, cut.handled)
        if cut.frame.next > self.acked:
            self.acked = cut.frame.next
            # An empty frame's last offsets may be of a later epoch than its last record: then nothing is
            # known of it, for a check against the older epoch would take a sound log for a truncated one.
            self.leader_epoch = cut.leader_epoch

    def done(self) -> bool:
        """In a bounded run: whether all up to the end it was given is safe."""
        return self.end is not None and self.acked >= self.end and not self.waiting

    def _frames(self, all_of_it: bool) -> int:
        """How many of rows are cut together."""
        if self.flow is not None and self.flow.by_frame:
            return 1
        full = max(self.pending_bytes // MAX_FRAME_BYTES, self.waiting // MAX_FRAME_RECORDS)
        return max(1, min(FRAMES_TOGETHER, full + all_of_it))

    def _cut_chunks(self, most: int, whole: bool, frames: int) -> list[CutFrame]:
        most_records = min(most, MAX_FRAME_RECORDS * frames)
        whole = whole and not takes_apart(self.flow)
        piece = self.chunks.cut(most_records, MAX_FRAME_BYTES, whole, frames)
        if piece.rows is None and self.flow is not None and not self.flow.keeps(piece.wholes):
            self._put_back(piece)
            piece = self.chunks.cut(most_records, MAX_FRAME_BYTES, False, frames)
        if piece.rows is None:
            self._look_for_a_loop(piece.wholes)
            batches = [batch for _, batch in piece.wholes]
            value = batches[0] if len(batches) == 1 else pa.py_buffer(b"".join(batches))
            count = sum(header.count for header, _ in piece.wholes)
            return [
                self._cut(piece.next, count, value, piece.leader_epoch, unpacked=len(value), batches=True)
            ]
        kept = self._not_from_target(piece.rows)
        if self.flow is not None and len(kept.rows):
            applied = self.flow(kept.rows)
            if applied.by_frame and frames > 1:
                self._put_back(piece)
                return self._cut_chunks(most, whole, 1)
            kept = through_flow(applied, self.tolerated, kept)
        end, epoch = piece.next, cast("int | None", piece.leader_epoch)
        if (failed := kept.failed) is not None:
            self.chunks.clear()
            self.failed, end = failed, failed.offset
            if end == self.cut_at:
                raise failed
            if end <= piece.rows.column(0)[0].as_py():
                epoch = None  # of offsets without records
        rows = kept.rows
        begin = [0] if frames == 1 else starts(rows, MAX_FRAME_RECORDS, MAX_FRAME_BYTES)
        ends = [*(rows.column(0)[row].as_py() for row in begin[1:]), end]
        cuts = [
            self._cut(end, of.count, of.value, epoch, of.unpacked, of.sealed, kept.dead, kept.routes)
            for of, end in zip(self.packer.pack(rows, begin), ends, strict=True)
        ]
        cuts[0] = replace(cuts[0], left_out=kept.left_out, filtered=kept.filtered, skipped=kept.skipped)
        return cuts

    def _put_back(self, piece: FrameContents) -> None:
        again = Chunk(self.topic, self.partition, piece.next, piece.leader_epoch, piece.wholes, piece.rows)
        self.chunks.add(again, in_front=True)

    def _look_for_a_loop(self, wholes: list[Whole]) -> None:
        """Raises Loop. In a loop all records come by, so those of a frame now and then will do: to look at
        them they have to be unpacked. Those that can't be go as they are."""
        if self.refuse is not None and self.whole_frames % LOOP_LOOK_FRAMES == 0:
            header, batch = wholes[-1]
            with contextlib.suppress(BatchError):
                self._refuse(leading(batch, [(0, header)], 0, UNPACKED_BYTES)[0])
        self.whole_frames += 1

    def _refuse(self, rows: pa.RecordBatch) -> None:
        if self.refuse is not None and came_from(headers_of(rows.slice(len(rows) - 1))[0], self.refuse):
            at = rows.column(0)[-1].as_py()
            raise Loop(f"record {at} of {self.name} came from the target cluster, and would go round")

    def _not_from_target(self, rows: pa.RecordBatch) -> Kept:
        """Raises Loop."""
        if not len(rows) or rows.column(5).null_count == len(rows):
            return Kept(rows)
        if (mark := self.leave_out) is None:
            self._refuse(rows)
            return Kept(rows)
        # Whether a record is left out depends on nothing but the record and the link: sent again, a frame
        # leaves out the same.
        kept = [not came_from(own, mark) for own in headers_of(rows)]
        return Kept(rows.filter(pa.array(kept, pa.bool_())), kept.count(False))

    def let_by(self, position: int) -> tuple[int, ...]:
        """The offsets that who goes on at a position has to have counted."""
        return () if self.tolerated is None else tuple(self.tolerated.below(position))

    def _cut(
        self,
        end: int,
        count: int,
        value: pa.Buffer | bytes,
        leader_epoch: int | None,
        unpacked: int = 0,
        batches: bool = False,
        dead: Failed | None = None,
        routes: tuple[str, ...] = (),
    ) -> CutFrame:
        count -= 0 if dead is None else dead.count
        frame = self._frame(self.cut_at, end, count, batches=batches, failed=dead, routes=routes)
        self.cut_at = end
        self.cut_epoch = leader_epoch
        return CutFrame(frame, value, leader_epoch, self.generation, self.handled, unpacked=unpacked)

    def _frame(
        self, start: int, end: int, count: int, **more: bool | str | Failed | tuple[str, ...] | None
    ) -> Frame:
        return Frame(
            self.cluster,
            self.topic,
            self.topic_id,
            self.partition,
            start,
            end,
            count,
            self.writer,
            pipeline=self.pipeline,
            **more,  # type: ignore[arg-type]
        )
