"""Frames whose value is record batches, one behind the other: as they were at the source, or made of smaller
ones, for the destination to take as they are. Pure: bytes in, batches or rows out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import pyarrow as pa

from common.errors import FrameError
from common.kafka.wire import record_batch
from common.kafka.wire.record_batch import BatchError, BatchHeader
from common.kafka.wire.record_decoder import TooManyAtOnce, columns
from common.kafka.wire.record_encoder import encode_sections
from common.kafka.wire.records import NO_ROWS, Rows
from common.link.frame import Frame, must_match


@dataclass(frozen=True, slots=True)
class BatchFrame:
    """Batches in which no offset is missing, as a frame has them: where they lie in its value, and their
    headers."""

    value: pa.Buffer
    batches: list[tuple[int, BatchHeader]]

    @property
    def unpacked(self) -> int:
        """Nothing is."""
        return 0

    @property
    def count(self) -> int:
        return sum(header.count for _, header in self.batches)

    def each(self) -> list[tuple[BatchHeader, pa.Buffer]]:
        return [(header, self.value.slice(at, header.size)) for at, header in self.batches]

    def begin_at(self, offset: int) -> bool:
        """Whether no record is below an offset."""
        return not self.batches or self.batches[0][1].base_offset >= offset

    def rows(self) -> Rows:
        """The records. Raises BatchError where their producer wrote what can't be taken apart: another frame
        would hold the same."""
        if not self.batches:
            return NO_ROWS
        batch = _columns(self.value, self.batches)
        spans = [range(header.base_offset, header.next_offset) for _, header in self.batches]
        dense = all(a.stop == b.start for a, b in pairwise(spans))
        offsets: Sequence[int] = (
            range(spans[0].start, spans[-1].stop) if dense else list(chain.from_iterable(spans))
        )
        return Rows.of(offsets, batch)


def pack(
    rows: pa.RecordBatch, starts: Sequence[int], codec: str, level: int | None
) -> list[pa.Buffer | None]:
    """The values of frames with these rows of `common.kafka.wire.records.ROWS`, one batch each; the frames
    begin at the rows `starts`, the first of which is 0. codec, level: `record_batch.seal`'s. None where no
    batch holds a frame's: there are none, or offsets are missing between them."""
    offsets = rows.column(0).to_numpy()
    parts = list(pairwise([*starts, len(rows)]))
    if not all(begin < end and offsets[end - 1] - offsets[begin] == end - begin - 1 for begin, end in parts):
        if len(parts) == 1:
            return [None]
        return [pack(rows.slice(at, end - at), [0], codec, level)[0] for at, end in parts]
    try:
        sections = encode_sections(rows, starts)
    except ValueError:
        return [None] * len(parts)
    return [
        pa.py_buffer(b"".join(record_batch.seal(records, codec, level, base_offset=int(offsets[begin]))))
        for records, begin in zip(sections, starts, strict=True)
    ]


def _columns(value: pa.Buffer, batches: list[tuple[int, BatchHeader]]) -> pa.RecordBatch:
    try:
        return columns(value, batches)
    except TooManyAtOnce:
        half = len(batches) // 2
        return pa.concat_batches([_columns(value, batches[:half]), _columns(value, batches[half:])])


def decode(frame: Frame, crc: int, value: bytes | None) -> BatchFrame:
    """The batches of a frame. Raises FrameError unless its checksum, the batches' own, their offsets and
    counts are as they must be."""
    value = value or b""
    must_match(frame, crc, value)
    data = pa.py_buffer(value)
    try:
        batches = list(record_batch.headers(data))
    except BatchError as error:
        raise _wrong(frame, str(error)) from None
    end, position, count = 0, frame.start, 0
    for at, header in batches:
        if header.base_offset < position or header.next_offset > frame.next:
            raise _wrong(frame, f"holds a batch of [{header.base_offset}, {header.next_offset})")
        if header.count != header.last_offset_delta + 1 or header.control or header.log_append_time:
            raise _wrong(frame, f"holds a batch at {header.base_offset} that can't go as it is")
        if not record_batch.intact(data, at, header):
            raise _wrong(frame, f"holds a batch at {header.base_offset} that fails its checksum")
        end, position, count = at + header.size, header.next_offset, count + header.count
    if end != len(data) or count != frame.count:
        raise _wrong(
            frame, f"says {frame.count} records and holds {count}, {len(data) - end} bytes left over"
        )
    return BatchFrame(data, batches)


def _wrong(frame: Frame, what: str) -> FrameError:
    return FrameError(f"frame of {frame.topic}-{frame.partition} [{frame.start}, {frame.next}) {what}")
