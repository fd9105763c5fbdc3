"""Kafka record batches of magic 2 (KIP-98): Arrow columns in, bytes out, and back. Pure; sending and fetching them is left to others.

What is written goes a frame at a time and without a step for each record. What is read is read for tests and for small topics: record by record,
with every length checked, since anybody may have written it.

    batch   = base offset 8, length 4, leader epoch 4, magic 1, CRC-32C 4, then what that covers:
              attributes 2, last offset delta 4, base timestamp 8, max timestamp 8, producer id 8, epoch 2, sequence 4, count 4, records
    record  = length, attributes 1, timestamp delta, offset delta, key length, key, value length, value, count of headers, headers
    header  = name length, name, value length, value

All numbers of a record are zigzag varints; a length of -1 stands for null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, cast

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.frame import MAX_UNPACKED_BYTES, Header

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""compression.type, and what a batch's attributes say of it."""
HEADER_BYTES = 61

_NAMES = {number: name for name, number in CODECS.items()}
_LEVELS = {"gzip": 6, "zstd": 3}
"""Kafka's own defaults; Arrow's are 9 and 1."""
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_MAGIC = 2
_LENGTH_FROM = 12
"""A batch's length counts what follows it."""
_CHECKED_FROM = 21
_PREFIX = struct.Struct(">qiibI")
_CHECKED = struct.Struct(">hiqqqhii")
_HEADER = struct.Struct(">qiibIhiqqqhii")

_LZ4_HEAD = bytes.fromhex("04224d18 60 40 82")
"""Magic, independent blocks without checksums, of 64 KiB at most, and the checksum of these two bytes."""
_LZ4_END = bytes(4)
_LZ4_PLAIN = 1 << 31
"""Beside a block's size: it is not compressed."""
_LZ4_BLOCK = 64 << 10
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEAD = _XERIAL + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 << 10

_FEW = 120
"""So many records are encoded sooner one by one: to begin with all at once takes 0.2 ms."""
_FEW_OF_MANY = 25
"""The same where there are several sections of so many."""
_MOST_AT_ONCE = 1 << 30
"""Arrow's offsets have 31 bits."""
_READ_BYTES = 256 << 10

Piece = bytes | Any
"""bytes or a pa.Buffer. A memoryview is none: google_crc32c would not take it."""
_Ints = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]
_Lengths = _Ints | int
"""One for all, or one for each."""


class BatchError(ValueError):
    """Bytes that are no record batch, or one that is damaged or older than magic 2."""


@dataclass(frozen=True, slots=True)
class Records:
    """The records section of one batch, not compressed: a pa.Buffer. Timestamps in ms; the base is that of the first record."""

    count: int
    base_timestamp: int
    max_timestamp: int
    data: Any


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What a batch says of itself, in the order in which it says it. `length` counts what follows it."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def codec(self) -> int:
        """One of `CODECS`, or 5 to 7, which Kafka has not given a meaning yet."""
        return self.attributes & _CODEC

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """A transaction's marker, not records."""
        return bool(self.attributes & _CONTROL)

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size(self) -> int:
        return _LENGTH_FROM + self.length


class Record(NamedTuple):
    """A record that was read. Timestamp in ms; its type is 1 CreateTime or 2 LogAppendTime; headers are None where there are none."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[Header] | None


# Writing: columns to records sections.


def encode_records(rows: pa.RecordBatch, most_bytes: int, extra: Header | None = None) -> Iterator[Records]:
    """Rows of `common.frame.ROWS` as records sections of at most `most_bytes`, but for a single record that is larger.

    In order, and each section as long as may be. Offset deltas count from 0, whatever the rows' offsets are. `extra` is a header that each record
    gets behind its own ones. Null and empty lists of headers are the same to Kafka.
    """
    count = len(rows)
    if count <= _FEW or most_bytes * count < _FEW_OF_MANY * rows.nbytes:
        yield from _one_by_one(rows, most_bytes, extra)
    elif 2 * rows.nbytes + (64 + _size(extra)) * count > _MOST_AT_ONCE:
        for part in (rows.slice(0, count // 2), rows.slice(count // 2)):
            yield from encode_records(part, most_bytes, extra)
    else:
        yield from _at_once(rows, most_bytes, extra)


def _size(header: Header | None) -> int:
    """About what it takes, and no less."""
    return 0 if header is None else 4 * len(header[0]) + len(header[1] or b"") + 10


def _varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


_NULL = _varint(-1)
_SMALL = [_varint(number) for number in range(1024)]


def _number(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < 1024 else _varint(number)


def _int64(number: int) -> int:
    """As Java's long would have it: timestamps that lie far apart have a delta that wraps, and adding it wraps back."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _one_by_one(rows: pa.RecordBatch, most_bytes: int, extra: Header | None) -> Iterator[Records]:
    """For a few records, where the other way would spend its time on beginning; and for whatever it can't do."""
    timestamps = cast("list[int]", rows.column(1).to_pylist())
    keys, values, headers = _items(rows.column(3)), _items(rows.column(4)), _header_pieces(rows, extra)
    sections: list[bytes] = []
    size = count = base = largest = 0
    for timestamp, key, value, tail in zip(timestamps, keys, values, headers, strict=True):
        pieces = [_NULL] if key is None else [_number(len(key)), key]
        if value is None:
            pieces.append(_NULL)
        else:
            pieces += (_number(len(value)), value)
        pieces += tail
        fixed = sum(map(len, pieces))
        if count:
            head = b"\0" + _number(_int64(timestamp - base)) + _number(count)
            length = _number(len(head) + fixed)
            if size + len(length) + len(head) + fixed > most_bytes:
                yield Records(count, base, largest, pa.py_buffer(b"".join(sections)))
                sections = []
                size = count = 0
        if not count:
            base = largest = timestamp
            head = b"\0\0\0"
            length = _number(len(head) + fixed)
        sections += (length, head, *pieces)
        size += len(length) + len(head) + fixed
        count += 1
        largest = max(largest, timestamp)
    if count:
        yield Records(count, base, largest, pa.py_buffer(b"".join(sections)))


def _items(column: pa.Array) -> list[Any]:
    """A binary column's elements: None, bytes, or views of larger ones."""
    buffers = column.buffers()
    if column.null_count == len(column) or buffers[2] is None or buffers[2].size < 4096:
        return cast("list[Any]", column.to_pylist())
    bounds = np.frombuffer(buffers[1], np.int32, len(column) + 1, 4 * column.offset).tolist()
    data = memoryview(buffers[2])
    found: list[Any] = [data[begin:end] for begin, end in pairwise(bounds)]
    if column.null_count:
        valid = column.is_valid().to_pylist()
        found = [item if ok else None for item, ok in zip(found, valid, strict=True)]
    return found


def _header_pieces(rows: pa.RecordBatch, extra: Header | None) -> list[list[bytes]]:
    """What stands behind each record's value: the count of headers, and these."""
    added = [] if extra is None else [_encoded_header(extra[0].encode(), extra[1])]
    bounds, flat = _flat_headers(rows.column(5))
    if not len(flat):
        return [[_number(len(added)), *added]] * len(rows)
    names = flat.field(0).cast(pa.binary()).to_pylist()
    encoded = list(map(_encoded_header, names, flat.field(1).to_pylist()))
    return [
        [_number(end - begin + len(added)), *encoded[begin:end], *added]
        for begin, end in pairwise(bounds.tolist())
    ]


def _encoded_header(name: bytes, value: bytes | None) -> bytes:
    rest = _NULL if value is None else _number(len(value)) + value
    return _number(len(name)) + name + rest


def _flat_headers(column: pa.Array) -> tuple[_Ints, pa.StructArray]:
    """All headers one behind the other, and where those of each row begin and end (a bound more than rows)."""
    count = len(column)
    if column.null_count == count:
        return np.zeros(count + 1, np.int64), column.values.slice(0, 0)
    bounds = np.frombuffer(column.buffers()[1], np.int32, count + 1, 4 * column.offset).astype(np.int64)
    if column.null_count:
        lengths = np.diff(bounds)
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = 0
        if lengths.sum() != bounds[-1] - bounds[0]:
            # A null that has elements all the same: Arrow allows it.
            return np.concatenate([[0], np.cumsum(lengths)]), column.flatten()
    return bounds - bounds[0], column.values.slice(bounds[0], bounds[-1] - bounds[0])


# All at once. A section is a row of pieces: a record's numbers, its key, more numbers, its value, and so on. Each piece becomes 16 bytes of an Array
# of Arrow's binary_view, which holds up to 12 bytes itself and says of more where they lie: so numpy lays the pieces out, and Arrow, casting that
# to binary, copies each byte once. Views: https://arrow.apache.org/docs/format/Columnar.html#variable-size-binary-view-layout

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


def _at_once(rows: pa.RecordBatch, most_bytes: int, extra: Header | None) -> Iterator[Records]:
    count = len(rows)
    timestamps = rows.column(1).to_numpy()
    keys, values = rows.column(3), rows.column(4)
    key_lengths, value_lengths = _binary_lengths(keys), _binary_lengths(values)
    key_sizes, value_sizes = _payload(key_lengths, keys), _payload(value_lengths, values)
    own = _OwnHeaders(rows.column(5))
    added = b"" if extra is None else _encoded_header(extra[0].encode(), extra[1])
    counts = own.counts + (extra is not None)

    keyed, valued, counted = _varints(key_lengths), _varints(value_lengths), _varints(counts)
    # What a record takes but for its length and its deltas.
    fixed = 1 + keyed.sizes + key_sizes + valued.sizes + value_sizes + counted.sizes + own.sizes + len(added)
    fixed = np.broadcast_to(np.asarray(fixed, np.int64), count)
    starts = _starts(fixed, timestamps, most_bytes)
    first = np.repeat(starts, np.diff(starts, append=count)) if len(starts) > 1 else 0
    numbers = np.arange(count) - first
    try:
        times, places = _varints(timestamps - timestamps[first]), _varints(numbers)
    except _TooWide:
        yield from _one_by_one(rows, most_bytes, extra)
        return
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
        self.bounds, self.flat = _flat_headers(column)
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
    """Columns of varints that stand side by side as few columns of views: one, but where they might not fit into it."""
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


# Writing: records sections to batches.


def seal(
    records: Records,
    codec: str,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> list[Piece]:
    """A batch as pieces, to be written one behind the other: bytes and buffers, none of which is copied.

    codec: one of `CODECS`; what it does not make smaller is left as it is. level: gzip's or zstd's.
    """
    body = _compressed(records.data, codec, level)
    if (size := sum(map(len, body))) >= len(records.data):
        codec, body, size = "none", [records.data], len(records.data)
    checked = _CHECKED.pack(
        CODECS[codec] | (_TRANSACTIONAL if transactional else 0),
        records.count - 1,
        records.base_timestamp,
        records.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records.count,
    )
    crc = google_crc32c.value(checked)
    for piece in body:
        crc = google_crc32c.extend(crc, piece)
    length = HEADER_BYTES - _LENGTH_FROM + size
    return [_PREFIX.pack(0, length, -1, _MAGIC, crc) + checked, *body]


def reseal(
    header: BatchHeader, batch: pa.Buffer, producer_id: int, producer_epoch: int, base_sequence: int
) -> list[Piece]:
    """A batch that another producer has sealed, as one of a transaction of this producer: its records are as they were, to the byte."""
    records = batch.slice(HEADER_BYTES)
    checked = _CHECKED.pack(
        header.codec | _TRANSACTIONAL,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        header.count,
    )
    crc = google_crc32c.extend(google_crc32c.value(checked), records)
    return [_PREFIX.pack(0, header.length, -1, _MAGIC, crc) + checked, records]


def _compressed(data: pa.Buffer, codec: str, level: int | None) -> list[Piece]:
    if codec == "none":
        return [data]
    if codec == "lz4":
        return _lz4(data)
    if codec == "snappy":
        return _snappy(data)
    # Not kept: a codec of Arrow's has a state, and these are called from several threads.
    return [pa.Codec(codec, compression_level=_LEVELS[codec] if level is None else level).compress(data)]


def _lz4(data: pa.Buffer) -> list[Piece]:
    """An LZ4 frame. Its blocks do not refer to each other, since Java's consumers (KafkaLZ4BlockInputStream) refuse those that do, as Arrow's would."""
    codec = pa.Codec("lz4_raw")
    pieces: list[Piece] = []
    head = _LZ4_HEAD
    for begin in range(0, len(data), _LZ4_BLOCK):
        block = data.slice(begin, min(_LZ4_BLOCK, len(data) - begin))
        packed = codec.compress(block)
        if len(packed) < len(block):
            pieces += (head + len(packed).to_bytes(4, "little"), packed)
        else:
            pieces += (head + (len(block) | _LZ4_PLAIN).to_bytes(4, "little"), block)
        head = b""
    return [*pieces, _LZ4_END]


def _snappy(data: pa.Buffer) -> list[Piece]:
    """Blocks as Java's producers frame them; its consumers read no other."""
    codec = pa.Codec("snappy")
    pieces: list[Piece] = []
    head = _XERIAL_HEAD
    for begin in range(0, len(data), _XERIAL_BLOCK):
        packed = codec.compress(data.slice(begin, min(_XERIAL_BLOCK, len(data) - begin)))
        pieces += (head + len(packed).to_bytes(4, "big"), packed)
        head = b""
    return pieces


# Reading.


def headers(data: Any) -> Iterator[tuple[int, BatchHeader]]:
    """Where each batch begins, and its header; the last one is left out where it was cut off, as what is fetched may be.

    data: bytes or any buffer. Raises BatchError for an older magic, and for what can't be a batch.
    """
    at, end = 0, len(data)
    while end - at >= _CHECKED_FROM:
        _, length, _, magic, _ = _PREFIX.unpack_from(data, at)
        if magic != _MAGIC:
            raise BatchError(f"batch of magic {magic} at byte {at}; only {_MAGIC} is read")
        if length < HEADER_BYTES - _LENGTH_FROM:
            raise BatchError(f"batch at byte {at} that says it has {length} bytes")
        if end - at < _LENGTH_FROM + length:
            return
        yield at, BatchHeader(*_HEADER.unpack_from(data, at))
        at += _LENGTH_FROM + length


def decode(data: Any) -> list[Record]:
    """The records of one whole batch: bytes or any buffer. Raises BatchError where anything in it is not as it must be."""
    buffer = pa.py_buffer(data)
    header = next((header for _, header in headers(buffer)), None)
    if header is None or header.size != len(buffer):
        raise BatchError(f"{len(buffer)} bytes, which are not one whole batch")
    if google_crc32c.value(buffer.slice(_CHECKED_FROM)) != header.crc:
        raise BatchError(f"batch at offset {header.base_offset} fails its checksum")
    packed = buffer.slice(HEADER_BYTES)
    if header.count < 0 or header.last_offset_delta < 0:
        raise BatchError(
            f"batch at offset {header.base_offset} of {header.count} records up to {header.next_offset - 1}"
        )
    if not header.count and not len(packed):
        return []  # Compaction keeps one without records for its producer's sequence.
    try:
        plain = _unpacked(packed, header.codec)
        return _records(header, plain)
    except BatchError as error:
        raise BatchError(f"batch at offset {header.base_offset}: {error}") from None
    except Exception as error:  # noqa: BLE001 - hostile bytes: whatever a codec makes of them, it is no batch
        raise BatchError(f"batch at offset {header.base_offset} does not decode: {error}") from None


def _unpacked(packed: pa.Buffer, codec: int) -> bytes:
    if codec not in _NAMES:
        raise BatchError(f"a codec {codec}, which this release does not know")
    name = _NAMES[codec]
    if name == "none":
        return bytes(packed)
    if name == "snappy":
        return b"".join(_unsnapped(packed))
    out, size = [], 0
    with pa.CompressedInputStream(pa.BufferReader(packed), name) as stream:
        while part := stream.read(_READ_BYTES):
            size += len(part)
            _allow(size)
            out.append(part)
    return b"".join(out)


def _unsnapped(packed: pa.Buffer) -> Iterator[bytes]:
    """Either framed as Java's producers do it, or one block as it is, as librdkafka does it."""
    codec = pa.Codec("snappy")
    if len(packed) < len(_XERIAL_HEAD) or bytes(packed.slice(0, len(_XERIAL))) != _XERIAL:
        size = _snappy_size(packed)
        _allow(size)
        yield codec.decompress(packed, size, asbytes=True)
        return
    at, total = len(_XERIAL_HEAD), 0
    while at < len(packed):
        length = int.from_bytes(bytes(packed.slice(at, min(4, len(packed) - at))), "big")
        at += 4
        if length > len(packed) - at:
            raise BatchError("a snappy block is cut off")
        block = packed.slice(at, length)
        total += (size := _snappy_size(block))
        _allow(total)
        yield codec.decompress(block, size, asbytes=True)
        at += length


def _snappy_size(block: pa.Buffer) -> int:
    """What a block says that it unpacks into: a varint, not zigzag."""
    size = 0
    for group, byte in enumerate(bytes(block.slice(0, min(5, len(block))))):
        size |= (byte & 0x7F) << 7 * group
        if byte < 0x80:
            return size
    raise BatchError("a snappy block without its size")


def _allow(size: int) -> None:
    if size > MAX_UNPACKED_BYTES:
        raise BatchError(f"it would unpack into more than {MAX_UNPACKED_BYTES} bytes")


class _Reader:
    """Reads what a record is made of. Whatever would reach beyond the end is a BatchError."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.end = data, 0, len(data)

    def number(self, most: int = 5) -> int:
        """A varint of at most so many bytes: of 5 for an int32, of 10 for an int64."""
        value = 0
        for group in range(most):
            if self.at >= self.end:
                raise BatchError("a record is cut off")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << 7 * group
            if byte < 0x80:
                break
        else:
            raise BatchError("a number that has no end")
        if value >> (32 if most == 5 else 64):
            raise BatchError("a number that is too large")
        return (value >> 1) ^ -(value & 1)

    def blob(self) -> bytes | None:
        length = self.number()
        if length == -1:
            return None
        if not 0 <= length <= self.end - self.at:
            raise BatchError(f"a length of {length} with {self.end - self.at} bytes left")
        self.at += length
        return self.data[self.at - length : self.at]


def _records(header: BatchHeader, data: bytes) -> list[Record]:
    reader = _Reader(data)
    kind = 2 if header.log_append_time else 1
    found = []
    last = -1
    for _ in range(header.count):
        length = reader.number()
        end = reader.at + length
        # Attributes, two deltas, two lengths and a count: less is no record.
        if length < 6 or end > len(data):
            raise BatchError(f"a record of {length} bytes with {len(data) - reader.at} left")
        reader.end, reader.at = end, reader.at + 1
        timestamp = _int64(header.base_timestamp + reader.number(10))
        delta = reader.number()
        if not last < delta <= header.last_offset_delta:
            raise BatchError(
                f"a record's place {delta} behind {last}, the last being {header.last_offset_delta}"
            )
        last = delta
        key, value = reader.blob(), reader.blob()
        named = [_header(reader) for _ in range(_header_count(reader))]
        if reader.at != end:
            raise BatchError(f"a record with {end - reader.at} bytes left over")
        reader.end = len(data)
        if kind == 2:
            timestamp = header.max_timestamp
        found.append(Record(header.base_offset + delta, timestamp, kind, key, value, named or None))
    if reader.at != len(data):
        raise BatchError(f"{len(data) - reader.at} bytes left over behind {header.count} records")
    return found


def _header_count(reader: _Reader) -> int:
    count = reader.number()
    if count < 0:
        raise BatchError(f"a record with {count} headers")
    return count


def _header(reader: _Reader) -> Header:
    name = reader.blob()
    if name is None:
        raise BatchError("a header without a name")
    return name.decode(), reader.blob()
