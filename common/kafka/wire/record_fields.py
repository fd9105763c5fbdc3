"""The fields of many records at once: numpy reads the varint at each record's position and moves that on.
Pure; where records begin and end is found by common/kafka/wire/record_decoder.py.

Keys and values are told to Arrow as views of what was unpacked, and at the end it copies each byte once.
Positions only ever grow, so a record is well-formed if each length is at least -1 and its last field ends
where the record does: no field needs a look of its own at the record's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.kafka.wire.batch_runs import BatchRun, Ints, OneOrMany
from common.kafka.wire.record_batch import LOG_APPEND_TIME, BatchError
from common.kafka.wire.records import HEADERS, ROWS

PADDING = 64
"""Behind the unpacked records: the fields between two lengths take up to 26 bytes, and reading one takes up
to 16 from where it begins."""

_FEW_HEADERS = 12
"""So many records that still have a header to be read are read sooner one by one: to begin with all at once
takes 0.15 ms."""
_LEAST_HEADER = 2
_HEADER_FIELDS = list(HEADERS.value_type)
_INLINE = 12
"""Arrow's views hold up to so many bytes themselves, behind 4 of length; of more they say where these lie."""

Bounds = tuple[Ints, Ints]
"""Where each record begins, and where it ends."""
_Words = npt.NDArray[np.uint64]
_STOPS = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)
_SEVEN = np.uint64(0x7F)


def _tables() -> tuple[Ints, npt.NDArray[np.int8]]:
    """Of any two bytes: the varint that they begin with, and its size; 3 where it goes on."""
    pairs = np.arange(1 << 16)
    sizes = np.where(pairs & 0x80, np.where(pairs & 0x8000, 3, 2), 1)
    zigzag = np.where(sizes == 1, pairs & 0x7F, pairs & 0x7F | pairs >> 1 & 0x3F80)
    return (zigzag >> 1) ^ -(zigzag & 1), sizes.astype(np.int8)


_VALUES, _SIZES = _tables()


class IllFormedError(Exception):
    """A record that is not as it must be: its number among all records, and what is wrong."""

    def __init__(self, record: int, what: str) -> None:
        super().__init__(what)
        self.record = record


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Some rows of a column of bytes, as views of what was unpacked."""

    views: npt.NDArray[np.uint32]
    nulls: npt.NDArray[np.bool_]
    null_count: int


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows, column by column."""

    offsets: Ints
    timestamps: Ints
    types: npt.NDArray[np.int8]
    keys: _Pieces
    values: _Pieces
    headers: pa.Array


def rows_of(parts: list[Part], unpacked: pa.Buffer) -> pa.RecordBatch:
    headers = [part.headers for part in parts]
    return pa.RecordBatch.from_arrays(
        [
            _array(pa.int64(), [part.offsets for part in parts]),
            _array(pa.int64(), [part.timestamps for part in parts]),
            _array(pa.int8(), [part.types for part in parts]),
            _binary([part.keys for part in parts], unpacked),
            _binary([part.values for part in parts], unpacked),
            headers[0] if len(headers) == 1 else pa.concat_arrays(headers),
        ],
        schema=ROWS,
    )


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _array(kind: pa.DataType, parts: list[Any]) -> pa.Array:
    values = _joined(parts)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], null_count=0)


def _validity(nulls: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))


def _binary(parts: list[_Pieces], unpacked: pa.Buffer) -> pa.Array:
    views = _joined([part.views for part in parts])
    count, null_count = len(views), sum(part.null_count for part in parts)
    if null_count == count:
        return pa.nulls(count, pa.binary())
    validity = _validity(_joined([part.nulls for part in parts])) if null_count else None
    buffers = [validity, pa.py_buffer(views), unpacked]
    array = pa.Array.from_buffers(pa.binary_view(), count, buffers, null_count=null_count)
    return array.cast(pa.binary())


def bounds_of(begins: Ints, ends: Ints, counts: Ints, buffer: pa.Buffer, size: int) -> Bounds:
    """The bounds of the records of many sections, from where each of these begins and ends, and how many are
    in it: the first of all, then the second of each that has one, and so on. Raises BatchError."""
    if counts.max() == 1:
        return begins, ends
    plain = _Plain(buffer, size)
    firsts = np.cumsum(counts) - counts
    found = np.empty((2, int(counts.sum())), np.int64)
    at, left = begins, np.arange(len(counts))
    for turn in range(int(counts.max())):
        reader = _Reader(plain, at, left)
        lengths = reader.numbers()
        behind = reader.at + lengths
        if np.any((lengths < 0) | (behind > ends[left])):
            raise BatchError("a record is cut off")
        to = firsts[left] + turn
        found[0, to], found[1, to] = at, behind
        more = counts[left] > turn + 1
        at, left = behind[more], left[more]
    if np.any(found[1, firsts + counts - 1] != ends):
        raise BatchError("records that don't end where their batch does")
    return found[0], found[1]


def part_of(kept: Sequence[OneOrMany], bounds: list[Bounds], buffer: pa.Buffer, size: int) -> Part:
    """The records of these batches, with their bounds in a buffer of which so many bytes count, and as many
    as `PADDING` lie behind. Raises BatchError."""
    try:
        return _read(kept, bounds, _Plain(buffer, size))
    except IllFormedError as error:
        counts = np.cumsum(_of_each(kept, "count"))
        base = _of_each(kept, "base_offset")[np.searchsorted(counts, error.record, "right")]
        raise BatchError(f"batch at offset {base}: {error}") from None


def _of_each(kept: Sequence[OneOrMany], name: str) -> Ints:
    """A field of each batch's header."""
    if len(kept) == 1 and isinstance(run := kept[0], BatchRun):
        return run.column(name)
    values: list[int] = []
    for one in kept:
        if isinstance(one, BatchRun):
            values += one.column(name).tolist()
        else:
            values.append(getattr(one, name))
    return np.array(values, np.int64)


def _read(kept: Sequence[OneOrMany], bounds: list[Bounds], plain: _Plain) -> Part:
    """Raises IllFormedError."""
    counts = _of_each(kept, "count")
    one = len(counts) == 1
    firsts = np.cumsum(counts) - counts
    begins = _joined([each[0] for each in bounds])
    ends = _joined([each[1] for each in bounds])
    count = len(begins)

    def spread(name: str) -> Any:
        """A field of each batch's header, for its records."""
        values = _of_each(kept, name)
        return values[0] if one else np.repeat(values, counts)

    reader = _Reader(plain, begins, np.arange(count))
    lengths = reader.numbers()
    # Where they begin and end was found as if none were negative.
    reader.refuse(reader.at + lengths != ends, "a length below 0")
    reader.at = reader.at + 1
    timestamps = reader.numbers(10)
    deltas = reader.numbers()
    steps = np.empty(count, np.int64)
    np.subtract(deltas[1:], deltas[:-1], out=steps[1:])
    steps[firsts] = deltas[firsts] + 1
    reader.refuse(steps <= 0, "a record's place does not ascend")
    reader.refuse(deltas > spread("last_offset_delta"), "a record's place is behind the last")
    keys = reader.blobs()
    values = reader.blobs()
    headers = _headers(reader, ends)
    reader.refuse(reader.at != ends, "a record with bytes left over or missing")

    # Two's complement: a delta that wraps, wraps back.
    timestamps = timestamps + spread("base_timestamp")
    types: npt.NDArray[np.int8]
    appended = (_of_each(kept, "attributes") & LOG_APPEND_TIME) > 0
    if appended.any():
        late = np.repeat(appended, counts)
        timestamps = np.where(late, spread("max_timestamp"), timestamps)
        types = np.where(late, np.int8(2), np.int8(1))
    else:
        types = np.ones(count, np.int8)
    offsets = deltas + spread("base_offset")
    return Part(offsets, timestamps, types, _pieces(plain, *keys), _pieces(plain, *values), headers)


class _Plain:
    """What was unpacked, and how many bytes of it count."""

    def __init__(self, buffer: pa.Buffer, size: int) -> None:
        self.buffer, self.size = buffer, size
        self.bytes = np.frombuffer(buffer, np.uint8, size + PADDING)
        # So many bytes from any place on. They are of a type without an alignment, so numpy gathers them as
        # fast as others.
        self.pairs = self._gathered(2)
        self.words = self._gathered(8)
        self.views = self._gathered(16)

    def _gathered(self, width: int) -> Any:
        return np.ndarray((len(self.bytes) - width + 1,), f"V{width}", self.bytes, 0, (1,))


class _Reader:
    """Reads a field of each record, and moves the positions on. `records` are their numbers, for errors.

    Only behind a length it makes sure not to leave what was unpacked, so what it reads may be padding or
    another record's. That a position left its own record is for the caller to find out, once.
    """

    def __init__(self, plain: _Plain, at: Ints, records: Ints) -> None:
        self.plain, self.at, self.records = plain, at, records

    def refuse(self, bad: Any, what: str) -> None:
        if np.count_nonzero(bad):
            raise IllFormedError(int(self.records[bad.argmax()]), what)

    def numbers(self, most: int = 5) -> Ints:
        """A varint of at most so many bytes: of 5 for an int32, of 10 for an int64.

        One of 5 bytes may have 35 bits. Then it is larger than any length, count or place that is let pass.
        """
        pairs = self.plain.pairs[self.at].view(np.uint16)
        sizes = _SIZES.take(pairs)
        if b"\3" in sizes.tobytes():
            return self._any_numbers(most)
        self.at = self.at + sizes
        values: Ints = _VALUES.take(pairs)
        return values

    def _any_numbers(self, most: int) -> Ints:
        words = self.plain.words[self.at].view(np.uint64)
        # The lowest bit that says of a byte that it is the last.
        stops = ~words & _STOPS
        lowest = stops & (~stops + _ONE)
        longest = int(lowest.max()).bit_length() // 8 if lowest.all() else 9
        if longest > most:
            self.refuse((lowest == 0) | (lowest >= np.uint64(1 << 8 * most)), "a number that has no end")
        below = words & (lowest - _ONE)
        zigzag = below & _SEVEN
        sizes = np.ones(len(words), np.int64)
        for group in range(1, min(longest, 8)):
            zigzag |= (below >> np.uint64(group)) & np.uint64(0x7F << 7 * group)
            sizes += lowest >= np.uint64(0x80 << 8 * group)
        if longest > 8:
            self._long(lowest == 0, zigzag, sizes)
        self.at = self.at + sizes
        values: Ints = ((zigzag >> _ONE) ^ (~(zigzag & _ONE) + _ONE)).view(np.int64)
        return values

    def _long(self, which: Any, zigzag: _Words, sizes: Ints) -> None:
        """Put in those of nine or ten bytes."""
        at = self.at[which]
        words = self.plain.words[at].view(np.uint64)
        low = np.zeros(len(at), np.uint64)
        for group in range(8):
            low |= (words >> np.uint64(group)) & np.uint64(0x7F << 7 * group)
        ninth, tenth = self.plain.bytes[at + 8], self.plain.bytes[at + 9]
        more = ninth >= 0x80
        bad = np.zeros(len(zigzag), bool)
        bad[which] = more & (tenth > 1)
        self.refuse(bad, "a number that is too large")
        low |= (ninth & np.uint8(0x7F)).astype(np.uint64) << np.uint64(56)
        low |= np.where(more, tenth, np.uint8(0)).astype(np.uint64) << np.uint64(63)
        zigzag[which] = low
        sizes[which] = 9 + more

    def blobs(self) -> tuple[Ints, Ints]:
        """Where each begins, and its length: -1 for null."""
        lengths = self.numbers()
        begins = self.at
        self.refuse(lengths < -1, "a length below 0")
        self.at = begins + np.maximum(lengths, 0)
        self.refuse(self.at > self.plain.size, "a record is cut off")
        return begins, lengths


def _pieces(plain: _Plain, begins: Any, lengths: Any) -> _Pieces:
    """What begins there, and is so long; -1 for null."""
    count = len(lengths)
    nulls = lengths < 0
    null_count = int(np.count_nonzero(nulls))
    if null_count == count:
        return _Pieces(np.zeros((count, 4), np.uint32), nulls, count)
    sizes = np.maximum(lengths, 0) if null_count else lengths
    # Nobody will see these views, so they may lack what a cast has no use for: a long one's first bytes, and
    # zeros behind a short one.
    (short,) = (sizes <= _INLINE).nonzero()
    if len(short) == count:
        # At least the record's own length and its attributes lie before.
        views = plain.views[begins - 4].view(np.uint32).reshape(-1, 4)
        views[:, 0] = sizes
    else:
        halves = np.empty((count, 2), np.int64)
        halves[:, 0] = sizes
        halves[:, 1] = begins
        halves[:, 1] <<= 32
        views = halves.view(np.uint32)
        if len(short):
            inline = plain.views[begins[short] - 4].view(np.uint32).reshape(-1, 4)
            inline[:, 0] = sizes[short]
            views[short] = inline
    return _Pieces(views, nulls, null_count)


def _headers(reader: _Reader, ends: Ints) -> pa.Array:
    """The column of headers; the positions are behind them then."""
    counts = reader.numbers()
    count = len(counts)
    if not counts.any():
        return pa.nulls(count, HEADERS)
    reader.refuse(counts < 0, "a record with a negative number of headers")
    reader.refuse(counts > (ends - reader.at) // _LEAST_HEADER, "a record with more headers than bytes")
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    total = int(bounds[-1])
    # Where each name and each value begins, and its length, by header.
    spans = np.empty((4, total), np.int32)
    left = np.flatnonzero(counts)
    part = _Reader(reader.plain, reader.at[left], left)
    done = reader.at.copy()
    turn = 0
    # The first header of each record, then the second of each that has one, and so on.
    while len(left) > _FEW_HEADERS:
        to = bounds[left] + turn
        spans[0, to], spans[1, to] = part.blobs()
        spans[2, to], spans[3, to] = part.blobs()
        turn += 1
        done[left] = part.at
        more = counts[left] > turn
        if not more.all():
            left = left[more]
            part = _Reader(reader.plain, part.at[more], left)
    # With fewer it takes longer to begin than to read; and a record may have a million.
    for record in left.tolist():
        first, end = int(bounds[record]) + turn, int(bounds[record + 1])
        read = _header_spans(reader.plain, record, int(done[record]), end - first)
        spans[:, first:end] = np.fromiter(read, np.int32, 4 * (end - first)).reshape(-1, 4).T
        done[record] = spans[2, end - 1] + max(spans[3, end - 1], 0)
    reader.at = done
    names = _binary([_pieces(reader.plain, spans[0], spans[1])], reader.plain.buffer)
    if names.null_count:
        record = int(np.searchsorted(bounds, np.argmin(spans[1]), "right")) - 1
        raise IllFormedError(record, "a header without a name")
    values = _binary([_pieces(reader.plain, spans[2], spans[3])], reader.plain.buffer)
    structs = pa.StructArray.from_arrays([_text(names, bounds), values], fields=_HEADER_FIELDS)
    nulls = counts == 0
    null_count = int(np.count_nonzero(nulls))
    buffers = [_validity(nulls) if null_count else None, pa.py_buffer(bounds.astype(np.int32))]
    return pa.Array.from_buffers(HEADERS, count, buffers, null_count=null_count, children=[structs])


def _text(names: pa.Array, bounds: Ints) -> pa.Array:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    for at, name in enumerate(names):
        try:
            name.as_py().decode()
        except UnicodeDecodeError as error:
            record = int(np.searchsorted(bounds, at, "right")) - 1
            raise IllFormedError(record, f"a header's name is no text: {error}") from None
    raise BatchError("a header's name is no text")


def _header_spans(plain: _Plain, record: int, at: int, count: int) -> Iterator[int]:
    """Of each header of one record: where its name begins, its length, the same of its value."""
    data, size = memoryview(plain.buffer).cast("B"), plain.size
    for _ in range(2 * count):
        value = 0
        for group in range(5):
            if at >= size:
                raise IllFormedError(record, "a record is cut off")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << 7 * group
            if byte < 0x80:
                break
        else:
            raise IllFormedError(record, "a number that has no end")
        length = (value >> 1) ^ -(value & 1)
        if not -1 <= length <= size - at:
            raise IllFormedError(record, f"a length of {length}")
        yield at
        yield length
        at += max(length, 0)
