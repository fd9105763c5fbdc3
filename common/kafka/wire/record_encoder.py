"""Arrow columns to the records sections of Kafka record batches, a frame at a time and without a step for
each record. Pure; what a batch says of itself is left to common/kafka/wire/record_batch.py.

    record  = length, attributes 1, timestamp delta, offset delta, key length, key, value length, value, count
    of headers, headers header  = name length, name, value length, value

All numbers of a record are zigzag varints; a length of -1 stands for null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.kafka.wire.record_batch import Records
from common.kafka.wire.record_by_record import encoded_header, flat_headers, one_by_one
from common.kafka.wire.records import Header

_FEW = 120
"""So many records are encoded sooner one by one: to begin with all at once takes 0.2 ms."""
_FEW_OF_MANY = 25
"""The same where there are several sections of so many."""
_MOST_AT_ONCE = 1 << 30
"""Arrow's offsets have 31 bits."""
_Ints = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]
_Lengths = _Ints | int
"""One for all, or one for each."""


def encode_records(rows: pa.RecordBatch, most_bytes: int, extra: Header | None = None) -> Iterator[Records]:
    """Rows of `common.kafka.wire.records.ROWS` as records sections of at most `most_bytes`, but for a single
    record that is larger.

    In order, and each section as long as may be. Offset deltas count from 0, whatever the rows' offsets are.
    `extra` is a header that each record gets behind its own ones. Null and empty lists of headers are the
    same to Kafka.
    """
    count = len(rows)
    if count <= _FEW or most_bytes * count < _FEW_OF_MANY * rows.nbytes:
        yield from one_by_one(rows, most_bytes, extra)
    elif _too_many(rows, extra):
        for part in (rows.slice(0, count // 2), rows.slice(count // 2)):
            yield from encode_records(part, most_bytes, extra)
    else:
        try:
            yield from _at_once(rows, most_bytes, extra)
        except _TooWide:  # before it has yielded any
            yield from one_by_one(rows, most_bytes, extra)


def encode_sections(rows: pa.RecordBatch, starts: Sequence[int]) -> list[Records]:
    """The same rows as sections that begin at these of them, the first of which is 0. Raises ValueError where
    one would be more than a batch can hold."""
    if len(starts) > 1 and len(rows) > _FEW_OF_MANY * len(starts) and not _too_many(rows, None):
        with suppress(_TooWide):
            return list(_at_once(rows, starts, None))
    parts = [rows.slice(begin, end - begin) for begin, end in pairwise([*starts, len(rows)])]
    found = [list(encode_records(part, _MOST_AT_ONCE)) for part in parts]
    if any(len(sections) > 1 for sections in found):
        raise ValueError("more records than a batch can hold")
    return [records for sections in found for records in sections]


def _too_many(rows: pa.RecordBatch, extra: Header | None) -> bool:
    size: int = rows.nbytes
    return 2 * size + (64 + _size(extra)) * len(rows) > _MOST_AT_ONCE


def _size(header: Header | None) -> int:
    """About what it takes, and no less."""
    return 0 if header is None else 4 * len(header[0]) + len(header[1] or b"") + 10


# All at once. A section is a row of pieces: a record's numbers, its key, more numbers, its value, and so on.
# Each piece becomes 16 bytes of an Array of Arrow's binary_view, which holds up to 12 bytes itself and says
# of more where they lie: so numpy lays the pieces out, and Arrow, casting that to binary, copies each byte
# once. Views: https://arrow.apache.org/docs/format/Columnar.html#variable-size-binary-view-layout

_INLINE = 12
_GROUPS = np.array([1 << 7 * groups for groups in range(1, 10)], np.uint64)
"""From these on a varint has a byte more."""
_MORE = np.array([0] + [sum(0x80 << 8 * at for at in range(size - 1)) for size in range(1, 9)], np.uint64)
"""The bits that say of each byte but the last that another follows, by the varint's size."""


class _TooWide(Exception):
    """A varint of more than eight bytes: times that are millions of years apart."""


@dataclass(frozen=True, slots=True)
class _Varints:
    """Varints as little-endian words, and how many bytes of each word count."""

    words: _Words | int
    sizes: _Lengths
    largest: int
    """of the sizes"""


@dataclass(frozen=True, slots=True)
class _Views:
    """A column of pieces: the two halves of each view, or of the one that stands for all."""

    low: _Words | int
    high: _Words | int


class _Buffers:
    """What views refer to, by number."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def views(self, column: pa.Array) -> _Views:
        """Those of a binary or string column; empty where it is null."""
        cast_ = column.cast(pa.binary_view())
        _, halves, *data = cast_.buffers()
        both = np.frombuffer(halves, np.uint64, 2 * len(column), 16 * cast_.offset).reshape(-1, 2)
        low, high = both[:, 0], both[:, 1]
        first = len(self.all)
        self.all += data
        if first and data:
            # The high half of a long one begins with its buffer's number.
            long = (low & np.uint64(0xFFFFFFFF)) > _INLINE
            high = high + long * np.uint64(first)
        if column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            low, high = low * valid, high * valid
        return _Views(low, high)

    def view(self, piece: bytes) -> _Views:
        """One piece for all rows."""
        size = len(piece)
        if size <= _INLINE:
            low, high = struct.unpack("<QQ", struct.pack("<I12s", size, piece))
        else:
            low, high = struct.unpack("<QQ", struct.pack("<I4sII", size, piece[:4], len(self.all), 0))
            self.all.append(pa.py_buffer(piece))
        return _Views(low, high)


def _at_once(rows: pa.RecordBatch, most: int | Sequence[int], extra: Header | None) -> Iterator[Records]:
    """`most`: bytes of a section, or at which rows sections begin. Raises _TooWide before there is any."""
    count = len(rows)
    timestamps = rows.column(1).to_numpy()
    keys, values = rows.column(3), rows.column(4)
    key_lengths, value_lengths = _binary_lengths(keys), _binary_lengths(values)
    key_sizes, value_sizes = _payload(key_lengths, keys), _payload(value_lengths, values)
    own = _OwnHeaders(rows.column(5))
    added = b"" if extra is None else encoded_header(extra[0].encode(), extra[1])
    counts = own.counts + (extra is not None)

    keyed, valued, counted = _varints(key_lengths), _varints(value_lengths), _varints(counts)
    # What a record takes but for its length and its deltas.
    fixed = 1 + keyed.sizes + key_sizes + valued.sizes + value_sizes + counted.sizes + own.sizes + len(added)
    fixed = np.broadcast_to(np.asarray(fixed, np.int64), count)
    starts = _starts(fixed, timestamps, most) if isinstance(most, int) else np.array(most)
    first = np.repeat(starts, np.diff(starts, append=count)) if len(starts) > 1 else 0
    numbers = np.arange(count) - first
    times, places = _varints(timestamps - timestamps[first]), _varints(numbers)
    lengths = fixed + times.sizes + places.sizes
    length = _varints(lengths)

    buffers = _Buffers()
    pieces: list[_Views] = []
    pending = [length, _Varints(0, 1, 1), times, places, keyed]
    if keys.null_count < count:
        pieces += (*_packed(pending), buffers.views(keys))
        pending = []
    pending.append(valued)
    if values.null_count < count:
        pieces += (*_packed(pending), buffers.views(values))
        pending = []
    pending.append(counted)
    pieces += _packed(pending)
    behind = [buffers.view(added)] if added else []
    views = own.laid_out(buffers, pieces, behind)

    array = pa.Array.from_buffers(
        pa.binary_view(), len(views), [None, pa.py_buffer(views), *buffers.all], null_count=0
    )
    data = array.cast(pa.binary()).buffers()[2]
    ends = np.cumsum(lengths + length.sizes)
    largest = np.maximum.reduceat(timestamps, starts)
    bounds = [*starts.tolist(), count]
    begin = 0
    for section, (start, stop) in enumerate(pairwise(bounds)):
        end = int(ends[stop - 1])
        yield Records(
            stop - start, int(timestamps[start]), int(largest[section]), data.slice(begin, end - begin)
        )
        begin = end


def _starts(fixed: _Ints, timestamps: _Ints, most_bytes: int) -> _Ints:
    """At which rows a section begins."""
    count = len(fixed)
    # A length has up to 5 bytes, a timestamp's delta 10 and a place 5.
    if int(fixed.sum()) + 20 * count <= most_bytes:
        return np.zeros(1, np.int64)
    # A section can't reach farther than if each of these had one.
    least = np.cumsum(fixed + 3)
    found, start, before = [], 0, 0
    while start < count:
        found.append(start)
        stop = int(np.searchsorted(least, before + most_bytes, "right"))
        if stop > start + 1:
            lengths = fixed[start:stop] + _sizes(_zigzag(timestamps[start:stop] - timestamps[start]))
            lengths = lengths + _sizes(_zigzag(np.arange(stop - start)))
            ends = np.cumsum(lengths + _sizes(_zigzag(lengths)))
            stop = start + int(np.searchsorted(ends, most_bytes, "right"))
        start = max(stop, start + 1)
        before = int(least[start - 1])
    return np.array(found)


class _OwnHeaders:
    """The headers that the records have, all at once."""

    def __init__(self, column: pa.Array) -> None:
        self.rows = len(column)
        self.bounds, self.flat = flat_headers(column)
        self.counts: _Ints = np.diff(self.bounds)
        self.sizes: _Lengths = 0
        """What they take, by record."""
        if not len(self.flat):
            return
        self.names, self.values = self.flat.field(0), self.flat.field(1)
        names, values = _binary_lengths(self.names), _binary_lengths(self.values)
        self.named, self.valued = _varints(names), _varints(values)
        each = self.named.sizes + names + self.valued.sizes + _payload(values, self.values)
        ends = np.zeros(len(self.flat) + 1, np.int64)
        np.cumsum(each, out=ends[1:])
        self.sizes = ends[self.bounds[1:]] - ends[self.bounds[:-1]]

    def laid_out(self, buffers: _Buffers, ahead: list[_Views], behind: list[_Views]) -> _Words:
        """Views of all pieces in order: of each record those `ahead`, its headers, those `behind`."""
        of_record = len(ahead) + len(behind)
        if not len(self.flat):
            views = np.empty((self.rows, of_record, 2), np.uint64)
            _put(views, [*ahead, *behind])
            return views.reshape(-1, 2)
        pieces = [*_packed([self.named]), buffers.views(self.names)]
        pieces += [*_packed([self.valued]), buffers.views(self.values)]
        width = len(pieces)
        each = int(self.counts[0])
        if (self.counts == each).all():
            views = np.empty((self.rows, of_record + each * width, 2), np.uint64)
            _put(views, ahead)
            for at in range(each):
                of_these = [_Views(_every(v.low, at, each), _every(v.high, at, each)) for v in pieces]
                _put(views[:, len(ahead) + at * width :], of_these)
            _put(views[:, len(ahead) + each * width :], behind)
            return views.reshape(-1, 2)
        views = np.empty((self.rows * of_record + len(self.flat) * width, 2), np.uint64)
        records = np.arange(self.rows) * of_record + self.bounds[:-1] * width
        _scatter(views, records, ahead)
        _scatter(views, records + (len(ahead) + self.counts * width), behind)
        record = np.repeat(np.arange(self.rows), self.counts)
        _scatter(views, record * of_record + len(ahead) + np.arange(len(self.flat)) * width, pieces)
        return views


def _put(views: _Words, pieces: Sequence[_Views]) -> None:
    for at, piece in enumerate(pieces):
        views[:, at, 0] = piece.low
        views[:, at, 1] = piece.high


def _scatter(views: _Words, to: _Ints, pieces: Sequence[_Views]) -> None:
    for at, piece in enumerate(pieces):
        views[to + at, 0] = piece.low
        views[to + at, 1] = piece.high


def _every(words: _Words | int, at: int, step: int) -> _Words | int:
    return words if isinstance(words, int) else words[at::step]


def _binary_lengths(column: pa.Array) -> _Ints:
    """-1 for null."""
    bounds = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    lengths = np.diff(bounds).astype(np.int64)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths


def _payload(lengths: _Ints, column: pa.Array) -> _Lengths:
    if column.null_count == len(column):
        return 0
    return np.maximum(lengths, 0) if column.null_count else lengths


def _zigzag(numbers: _Ints) -> _Words:
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _sizes(zigzag: _Words) -> _Lengths:
    """How many bytes each takes."""
    least, most = np.searchsorted(_GROUPS, [zigzag.min(), zigzag.max()], "right").tolist()
    sizes: _Lengths = least + 1
    for groups in range(least, most):
        sizes = sizes + (zigzag >= _GROUPS[groups])
    return sizes


def _varints(numbers: _Ints) -> _Varints:
    """Raises _TooWide."""
    zigzag = _zigzag(numbers)
    sizes = _sizes(zigzag)
    largest = sizes if isinstance(sizes, int) else int(sizes.max())
    if largest > 8:
        raise _TooWide
    if largest == 1:
        return _Varints(zigzag, 1, 1)
    words = zigzag & np.uint64(0x7F)
    for group in range(1, largest):
        words |= (zigzag & np.uint64(0x7F << 7 * group)) << np.uint64(group)
    words |= _MORE[sizes]
    return _Varints(words, sizes, largest)


def _packed(columns: Sequence[_Varints]) -> list[_Views]:
    """Columns of varints that stand side by side as few columns of views: one, but where they might not fit
    into it."""
    packed: list[_Views] = []
    group: list[_Varints] = []
    largest = 0
    for column in columns:
        if largest + column.largest > _INLINE:
            packed.append(_in_one(group))
            group, largest = [], 0
        group.append(column)
        largest += column.largest
    packed.append(_in_one(group))
    return packed


def _in_one(columns: Sequence[_Varints]) -> _Views:
    # numpy shifts by 64 and more to nothing, Python doesn't: a shift that is the same for all is an int.
    low: Any = 0
    high: Any = 0
    size: Any = 0
    for column in columns:
        words, shift = column.words, 8 * size
        if isinstance(words, int):
            pass  # Only the attributes are the same for all, and they are 0.
        elif isinstance(shift, int):
            if shift < 64:
                low = low | words << np.uint64(shift)
            if shift >= 64:
                high = high | words << np.uint64(shift - 64)
            elif shift + 8 * column.largest > 64:
                high = high | words >> np.uint64(64 - shift)
        else:
            shift = shift.view(np.uint64)
            low = low | words << shift
            # One of these two shifts wraps round to more than 64.
            high = high | words >> (np.uint64(64) - shift) | words << (shift - np.uint64(64))
        size = size + column.sizes
    half = np.uint64(32)
    if not isinstance(size, int):
        size = size.view(np.uint64)
    return _Views(low << half | size, low >> half | high << half)
