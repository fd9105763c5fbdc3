"""Fetched record batches to Arrow columns, without a Python object for each record. Pure; which batches count
is left to the caller.

A batch at a time: its checksum, its records unpacked behind those of the batches before, and where each
record begins, which is the only step for each record. Then all records of several batches at once, field by
field (common/kafka/wire/record_fields.py). What is refused is what `common.kafka.wire.record_batch.decode`
refuses. The format: `common.kafka.wire.record_batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from common.kafka.wire.batch_runs import BatchRun, Found, Ints, OneOrMany, each
from common.kafka.wire.compression import allow, codec_name, pieces, unsnapped
from common.kafka.wire.record_batch import (
    CODEC,
    HEADER_BYTES,
    BatchError,
    BatchHeader,
    Record,
    decode,
    must_be_sound,
)
from common.kafka.wire.record_batch import TooManyAtOnce as TooManyAtOnce
from common.kafka.wire.record_fields import PADDING, Bounds, Part, bounds_of, part_of, rows_of
from common.kafka.wire.records import MAX_OFFSET, MAX_UNPACKED_BYTES, NO_ROWS, encode_rows

MOST_TOGETHER_BYTES = 2 * MAX_UNPACKED_BYTES
"""What several batches may unpack into. One may do so into half of that, a fetch holds hundreds, and a
hostile one has 250 times its size."""
UNPACKED_BYTES = 32 << 20
"""What is unpacked at once where there is more time than memory, as `leading` counts it. A lane's memory goes
by that, some three or four times."""
RECORD_BYTES = 100
"""What a record counts for beside its bytes where there is a limit: about what numpy's and Arrow's arrays
take for it on the way."""

_FEW = 32
"""So many records and batches together are read sooner one by one: to begin with all at once takes 0.15
ms."""
_PART = 8192
"""After so many records their fields are read, while what was unpacked is still in the processor's cache."""
_LEAST_RECORD = 7
_MOST_ALONE_BYTES = (1 << 31) - 4096
"""Arrow's offsets have 31 bits. Of a single batch only one that is not compressed could come near."""
_EXPANSION = 3
"""About what codecs achieve. More is found room for when it comes."""

# A length of two bytes, and these: what each of them adds. Python adds sooner than it shifts.
_LOW = [2 + ((byte & 0x7F) >> 1) for byte in range(0x100)]
_HIGH = [byte << 6 for byte in range(0x80)]

Batches = Sequence[tuple[int, BatchHeader]]
"""Where each begins, and its header, as `record_batch.headers` has them."""


def columns(data: pa.Buffer | bytes | memoryview, batches: Batches) -> pa.RecordBatch:
    """The records of whole batches as one batch of `common.kafka.wire.records.ROWS`, in order.

    Control batches and aborted ones are for the caller to leave out; a batch without records adds none.

    Timestamps in ms, of type 1 CreateTime or 2 LogAppendTime; the latter are the batch's. Headers are null
    where a record has none.

    Raises BatchError where any batch is damaged, and TooManyAtOnce.
    """
    buffer = pa.py_buffer(data)
    for at, header in batches:
        if at < 0 or at + header.size > buffer.size:
            raise BatchError(f"batch at offset {header.base_offset} reaches beyond what was fetched")
        if header.base_offset + header.last_offset_delta > MAX_OFFSET:
            raise BatchError(f"batch at offset {header.base_offset} reaches beyond the last offset there is")
    return (_one_by_one if _few(batches) else _at_once)(buffer, batches)


def leading(
    data: pa.Buffer, batches: Sequence[Found], position: int, most_bytes: int
) -> tuple[pa.RecordBatch, int, int]:
    """The first records at or behind a position, of whole batches that are known to be sound: as many as
    unpack into about so many bytes, but one at least; the position behind them; and about what they took,
    unpacked.

    Of a batch that alone is more, a part: its other records come when it is read again from that position.
    Raises BatchError where the first batch is ill-formed; what is sound before another one comes first.
    """
    while True:
        try:
            rows, taken, size = (_first_one_by_one if _few(batches) else _first_at_once)(
                data, batches, most_bytes
            )
        except BatchError as error:
            if any(isinstance(one, BatchRun) for _, one in batches):
                batches = list(each(batches))
                continue
            if isinstance(error, TooManyAtOnce):
                return _windowed(data, *next(each(batches)), position, most_bytes)
            if len(batches) == 1:
                raise
            batches = batches[: len(batches) // 2]
            continue
        return _from(rows, position), batches[taken - 1][1].next_offset, size


def _from(rows: pa.RecordBatch, position: int) -> pa.RecordBatch:
    """A batch comes whole, also where the position is in the middle of it."""
    if not len(rows) or rows.column(0)[0].as_py() >= position:
        return rows
    return rows.slice(int(np.searchsorted(rows.column(0).to_numpy(), position)))


def _few(batches: Sequence[Found]) -> bool:
    return sum(1 + header.count for _, header in batches) <= _FEW


def _one_by_one(buffer: pa.Buffer, batches: Batches) -> pa.RecordBatch:
    """For a few records, where the other way would spend its time on beginning."""
    records = [record for at, header in batches for record in decode(buffer.slice(at, header.size))]
    return _encoded(records)


def _first_one_by_one(
    buffer: pa.Buffer, batches: Sequence[Found], most: int
) -> tuple[pa.RecordBatch, int, int]:
    """The records of as many batches as are not too many, of how many these are, and their bytes. Raises
    TooManyAtOnce where the first one is."""
    records: list[Record] = []
    size = 0
    for number, (at, header) in enumerate(each(batches)):
        try:
            some = decode(buffer.slice(at, header.size), max(most - size, 0))
        except TooManyAtOnce:
            if not number:
                raise
            return _encoded(records), number, size
        records += some
        size += sum(len(r.key or b"") + len(r.value or b"") + RECORD_BYTES for r in some)
    return _encoded(records), len(batches), size


def _encoded(records: Sequence[Record]) -> pa.RecordBatch:
    if not records:
        return NO_ROWS.batch
    offsets, timestamps, types, keys, values, headers = zip(*records, strict=True)
    return encode_rows(offsets, timestamps, types, keys, values, headers if any(headers) else None)


def _at_once(buffer: pa.Buffer, batches: Batches) -> pa.RecordBatch:
    for at, header in batches:
        must_be_sound(buffer, at, header)
    most = MOST_TOGETHER_BYTES if len(batches) > 1 else _MOST_ALONE_BYTES
    rows, taken, _ = _first_at_once(buffer, batches, most, _MOST_ALONE_BYTES)
    if taken < len(batches):
        raise TooManyAtOnce(f"batches that unpack into more than {most} bytes")
    return rows


def _first_at_once(
    buffer: pa.Buffer, batches: Sequence[Found], most: int, most_records: int | None = None
) -> tuple[pa.RecordBatch, int, int]:
    """As `_first_one_by_one`."""
    packed = sum(header.size for _, header in batches)
    room = _EXPANSION * packed if any(map(_packed, batches)) else packed
    unpacked = _Unpacked(room, most)
    left = most // RECORD_BYTES if most_records is None else most_records
    parts: list[Part] = []
    kept: list[OneOrMany] = []
    bounds: list[Bounds] = []
    records = taken = total = 0
    for at, header in batches:
        begin = unpacked.size
        if (total := total + header.count) > left:
            break
        try:
            if isinstance(header, BatchRun):
                found = _sections(buffer, header, unpacked)
            else:
                found = _section(buffer, at, header, unpacked)
        except TooManyAtOnce:
            unpacked.size = begin
            break
        except BatchError as error:
            raise BatchError(f"batch at offset {header.base_offset}: {error}") from None
        except Exception as error:  # noqa: BLE001 - hostile bytes: whatever a codec makes of them, it is no batch
            raise BatchError(f"batch at offset {header.base_offset} does not decode: {error}") from None
        taken += 1
        if header.count:
            kept.append(header)
            bounds.append(found)
            records += header.count
        if records >= _PART:
            parts.append(part_of(kept, bounds, unpacked.buffer, unpacked.size))
            kept, bounds, records = [], [], 0
    if batches and not taken:
        raise TooManyAtOnce(f"a batch of {batches[0][1].count} records")
    if kept:
        parts.append(part_of(kept, bounds, unpacked.buffer, unpacked.size))
    rows = rows_of(parts, unpacked.buffer) if parts else NO_ROWS.batch
    return rows, taken, unpacked.size + len(rows) * RECORD_BYTES


def _packed(batch: Found) -> bool:
    """Whether its records are compressed; of a run, those of its first batch."""
    header = batch[1]
    return bool((header.first if isinstance(header, BatchRun) else header).codec)


# A batch at a time.


class _Unpacked:
    """Records sections one behind the other in one buffer, which grows, up to `most` bytes."""

    def __init__(self, room: int, most: int) -> None:
        self.size, self.most = 0, most
        self._allocate(min(room, most))

    def _allocate(self, room: int) -> None:
        self.buffer = pa.allocate_buffer(room + PADDING)
        self.bytes = memoryview(self.buffer).cast("B")
        self.room = room

    def _grow(self) -> None:
        if self.room >= self.most:
            raise TooManyAtOnce(f"batches that unpack into more than {self.most} bytes")
        old = self.bytes[: self.size]
        self._allocate(min(2 * self.room + 4096, self.most))
        self.bytes[: self.size] = old

    def add(self, packed: pa.Buffer, codec: int) -> None:
        """Unpack a section. Raises BatchError, and whatever Arrow does."""
        name = codec_name(codec)
        if name == "none":
            self._append(packed)
        elif name == "snappy":
            for block in unsnapped(packed):
                self._append(block)
        else:
            begin = self.size
            with pa.CompressedInputStream(pa.BufferReader(packed), name) as stream:
                while self._read(stream):
                    if self.size - begin > MAX_UNPACKED_BYTES:
                        break
            allow(self.size - begin)

    def _append(self, plain: pa.Buffer | bytes) -> None:
        end = self.size + len(plain)
        while end > self.room:
            self._grow()
        self.bytes[self.size : end] = memoryview(plain).cast("B")
        self.size = end

    def _read(self, stream: Any) -> bool:
        """Whether there may be more: a stream gives less than it is asked for when it ends."""
        if self.size == self.room:
            self._grow()
        got: int = stream.readinto(self.bytes[self.size : self.room])
        self.size += got
        return self.size == self.room


def _section(buffer: pa.Buffer, at: int, header: BatchHeader, unpacked: _Unpacked) -> Bounds:
    """Unpack a batch's records; where each of them begins, and the last one ends. That these are their bounds
    is all that is sure yet.

    Raises BatchError, and whatever Arrow does.
    """
    size, count = header.size, header.count
    if not count and size == HEADER_BYTES:
        # Compaction keeps one without records for its producer's sequence.
        return np.empty(0, np.int64), np.empty(0, np.int64)
    begin = unpacked.size
    unpacked.add(buffer.slice(at + HEADER_BYTES, size - HEADER_BYTES), header.codec)
    size = unpacked.size - begin
    if size < _LEAST_RECORD * count or (size and not count):
        raise BatchError(f"{count} records in {size} bytes")
    try:
        bounds = np.fromiter(_bounds(unpacked.bytes, begin, count), np.int64, count + 1)
    except IndexError:
        raise BatchError("a record is cut off") from None
    if bounds[-1] != unpacked.size:
        raise BatchError(f"{count} records that don't end where it does")
    return bounds[:-1], bounds[1:]


def _sections(buffer: pa.Buffer, run: BatchRun, unpacked: _Unpacked) -> Bounds:
    """As `_section`, of all batches of a run."""
    codecs = run.column("attributes") & CODEC
    if codecs.any():
        ends = [unpacked.size]
        for (at, end), codec in zip(pairwise(run.bounds.tolist()), codecs.tolist(), strict=True):
            unpacked.add(buffer.slice(at + HEADER_BYTES, end - at - HEADER_BYTES), codec)
            ends.append(unpacked.size)
        bounds = np.array(ends)
        begins = bounds[:-1]
    else:
        # With the headers between them.
        bounds = run.bounds + (unpacked.size - run.bounds[0])
        begins = bounds[:-1] + HEADER_BYTES
        unpacked.add(buffer.slice(int(run.bounds[0]), run.size), 0)
    return bounds_of(begins, bounds[1:], run.column("count"), unpacked.buffer, unpacked.size)


def _bounds(data: memoryview, at: int, count: int) -> Iterator[int]:
    """Where so many records begin, and the last one ends, if their lengths are well-formed. Each is farther
    on, whatever the bytes are."""
    low, high = _LOW, _HIGH
    for _ in repeat(None, count):
        yield at
        first = data[at]
        if first < 0x80:
            at += 1 + (first >> 1)
            continue
        second = data[at + 1]
        if second < 0x80:
            at += low[first] + high[second]
            continue
        length = first & 0x7F | (second & 0x7F) << 7
        at += 2
        for group in (2, 3, 4):
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << 7 * group
            if byte < 0x80:
                break
        at += length >> 1
    yield at


# A part of a batch at a time.


def _windowed(
    buffer: pa.Buffer, at: int, header: BatchHeader, position: int, most: int
) -> tuple[pa.RecordBatch, int, int]:
    """As `leading`, of one batch, whose records are unpacked so many bytes at a time; those below the
    position are let go."""
    try:
        for rows, end, size in _windows(
            buffer.slice(at + HEADER_BYTES, header.size - HEADER_BYTES), header, most
        ):
            if end > position and len(rows := _from(rows, position)):
                return rows, end, size
        return NO_ROWS.batch, header.next_offset, 0
    except BatchError as error:
        raise BatchError(f"batch at offset {header.base_offset}: {error}") from None
    except Exception as error:  # noqa: BLE001 - hostile bytes: whatever a codec makes of them, it is no batch
        raise BatchError(f"batch at offset {header.base_offset} does not decode: {error}") from None


def _windows(packed: pa.Buffer, header: BatchHeader, most: int) -> Iterator[tuple[pa.RecordBatch, int, int]]:
    """All records of a batch, some at a time: rows, the position behind them, and their bytes."""
    coming = pieces(packed, header.codec)
    window = bytearray()
    done, end, room, more = 0, header.base_offset, most, True
    while done < header.count:
        while more and len(window) < room:
            piece = next(coming, None)
            more = piece is not None
            window += b"" if piece is None else memoryview(piece).cast("B")
        bounds = _complete(window, min(header.count - done, max(1, most // RECORD_BYTES)))
        count = len(bounds) - 1
        if not count and not more:
            raise BatchError("a record is cut off")
        if not count:
            # A record that is larger than the window: room is made for it alone.
            room *= 2
            continue
        rows = rows_of(*_part_of(replace(header, count=count), bounds, window))
        if rows.column(0)[0].as_py() < end:
            raise BatchError("a record's place does not ascend")
        size = int(bounds[-1])
        del window[:size]
        done, room = done + count, most
        end = rows.column(0)[-1].as_py() + 1 if done < header.count else header.next_offset
        if done == header.count and (window or next(coming, None) is not None):
            raise BatchError(f"{done} records that don't end where it does")
        yield rows, end, size + count * RECORD_BYTES


def _part_of(header: BatchHeader, bounds: Ints, window: bytearray) -> tuple[list[Part], pa.Buffer]:
    size = int(bounds[-1])
    plain = pa.py_buffer(bytes(memoryview(window)[:size]) + bytes(PADDING))
    return [part_of([header], [(bounds[:-1], bounds[1:])], plain, size)], plain


def _complete(window: bytearray, most: int) -> Ints:
    """The bounds of the records that are there whole, no more than so many."""
    found: list[int] = []
    size = len(window)
    with memoryview(window) as data:
        try:
            for at in _bounds(data, 0, most):
                if at > size:
                    break
                found.append(at)
        except IndexError:
            pass
    return np.array(found or [0], np.int64)
