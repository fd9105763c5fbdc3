"""Kafka record batches of magic 2 (KIP-98): sealed, told apart, and read. Pure; their records are written by
common/kafka/wire/record_encoder.py, and read many at a time by common/kafka/wire/record_decoder.py. What is
read here is read record by record, with every length checked, since anybody may have written it. Messages of
the formats before (magic 0 and 1) are only told apart here; common/kafka/wire/message_sets.py reads them.

    batch   = base offset 8, length 4, leader epoch 4, magic 1, CRC-32C 4, then what that covers:
              attributes 2, last offset delta 4, base timestamp 8, max timestamp 8, producer id 8, epoch 2,
              sequence 4, count 4, records
    record  = length, attributes 1, timestamp delta, offset delta, key length, key, value length, value, count
    of headers, headers header  = name length, name, value length, value

All numbers of a record are zigzag varints; a length of -1 stands for null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from fastcrc.crc32 import iscsi as crc32c
from fastcrc.crc32 import iso_hdlc as crc32

from common.kafka.wire.compression import CODECS as CODECS
from common.kafka.wire.compression import XERIAL_HEAD, unpacked
from common.kafka.wire.compression import BatchError as BatchError
from common.kafka.wire.compression import TooManyAtOnce as TooManyAtOnce
from common.kafka.wire.records import MAX_OFFSET, Header

HEADER_BYTES = 61
NO_EPOCH = -1
NO_TIMESTAMP = -1
"""What Kafka has for a record of magic 0."""

_LEVELS = {"gzip": 6, "zstd": 3}
"""Kafka's own defaults; Arrow's are 9 and 1."""
_GREATEST = {"gzip": 9, "zstd": 22}
"""A higher level counts as this, as in the client library."""
HARDER = (("zstd", None), ("gzip", 9), ("zstd", 19))
"""What a record that is too large is compressed with before it is refused. The last takes a second for each
megabyte or two."""
CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
MAGIC = 2
LENGTH_FROM = 12
"""A batch's length counts what follows it."""
_CHECKED_FROM = 21
_OLD_CHECKED_FROM = 16
_OLD_LEAST = (14, 22)
"""What an old message's length is at least: checksum, magic, attributes, with magic 1 the time, and the
lengths of key and value."""
_OLD_HEADER = struct.Struct(">qiIbb")
_OLD_TIME = struct.Struct(">q")
_PREFIX = struct.Struct(">qiibI")
_CHECKED = struct.Struct(">hiqqqhii")
_HEADER = struct.Struct(">qiibIhiqqqhii")

_LZ4_HEADS = {64 << 10: bytes.fromhex("04224d18 60 40 82"), 256 << 10: bytes.fromhex("04224d18 60 50 fb")}
"""The largest size of a block -> magic, independent blocks without checksums, of that size at most, and the
checksum of these two bytes. In a block of no more than 64 KiB LZ4 looks for matches of another kind: where
there are few, as in digits at random, that takes three times as long."""
_LZ4_END = bytes(4)
_LZ4_PLAIN = 1 << 31
"""Beside a block's size: it is not compressed."""
_XERIAL_BLOCK = 32 << 10

BatchBuffer = bytes | Any
"""bytes or a pa.Buffer."""


@dataclass(frozen=True, slots=True)
class Records:
    """The records section of one batch, not compressed: a pa.Buffer. Timestamps in ms; the base is that of
    the first record."""

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
        return self.attributes & CODEC

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """A transaction's marker, not records."""
        return bool(self.attributes & CONTROL)

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size(self) -> int:
        return LENGTH_FROM + self.length


class Record(NamedTuple):
    """A record that was read. Timestamp in ms; its type is 1 CreateTime or 2 LogAppendTime; headers are None
    where there are none."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[Header] | None


def int64(number: int) -> int:
    """As Java's long would have it: timestamps that lie far apart have a delta that wraps, and adding it
    wraps back."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


# Writing: records sections to batches.


def seal(
    records: Records,
    codec: str,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    base_offset: int = 0,
) -> list[BatchBuffer]:
    """A batch as pieces, to be written one behind the other: bytes and buffers, none of which is copied.

    codec: one of `CODECS`; what it does not make smaller is left as it is. level: gzip's or zstd's.
    base_offset: a broker gives it another one.
    """
    body = _compressed(records.data, codec, level)
    if (size := sum(map(len, body))) >= len(records.data):
        codec, body, size = "none", [records.data], len(records.data)
    checked = _CHECKED.pack(
        CODECS[codec] | (TRANSACTIONAL if transactional else 0),
        records.count - 1,
        records.base_timestamp,
        records.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records.count,
    )
    crc = crc32c(checked)
    for piece in body:
        crc = crc32c(piece, crc)
    length = HEADER_BYTES - LENGTH_FROM + size
    return [_PREFIX.pack(base_offset, length, -1, MAGIC, crc) + checked, *body]


def seal_within(
    most_bytes: int | None,
    ways: Iterable[tuple[str, int | None]],
    records: Records,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> tuple[list[BatchBuffer], str]:
    """`seal`, for a transaction, with the first of these codecs and levels that makes it no larger than so
    many bytes, or the last; and, where none does, what has been tried."""
    pieces: list[BatchBuffer] = []
    tried = [f"{len(records.data)} bytes"]
    for codec, level in ways:
        pieces = seal(records, codec, level, producer_id, producer_epoch, base_sequence, transactional=True)
        size = sum(map(len, pieces))
        if most_bytes is None or size <= most_bytes:
            return pieces, ""
        tried.append(f"{size} with {codec}")
    return pieces, ", ".join(tried)


def reseal(
    header: BatchHeader, batch: pa.Buffer, producer_id: int, producer_epoch: int, base_sequence: int
) -> list[BatchBuffer]:
    """A batch that another producer has sealed, as one of a transaction of this producer: its records are as
    they were, to the byte."""
    records = batch.slice(HEADER_BYTES)
    checked = _CHECKED.pack(
        header.codec | TRANSACTIONAL,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        header.count,
    )
    crc = crc32c(records, crc32c(checked))
    return [_PREFIX.pack(0, header.length, -1, MAGIC, crc) + checked, records]


def _compressed(data: pa.Buffer, codec: str, level: int | None) -> list[BatchBuffer]:
    if codec == "none":
        return [data]
    if codec == "lz4":
        return _lz4(data)
    if codec == "snappy":
        return _snappy(data)
    # Not kept: a codec of Arrow's has a state, and these are called from several threads.
    level = _LEVELS[codec] if level is None else min(level, _GREATEST[codec])
    return [pa.Codec(codec, compression_level=level).compress(data)]


def _lz4(data: pa.Buffer) -> list[BatchBuffer]:
    """An LZ4 frame. Its blocks do not refer to each other, since Java's consumers (KafkaLZ4BlockInputStream)
    refuse those that do, as Arrow's would."""
    codec = pa.Codec("lz4_raw")
    pieces: list[BatchBuffer] = []
    most = next((size for size in _LZ4_HEADS if len(data) <= size), max(_LZ4_HEADS))
    head = _LZ4_HEADS[most]
    for begin in range(0, len(data), most):
        block = data.slice(begin, min(most, len(data) - begin))
        packed = codec.compress(block)
        if len(packed) < len(block):
            pieces += (head + len(packed).to_bytes(4, "little"), packed)
        else:
            pieces += (head + (len(block) | _LZ4_PLAIN).to_bytes(4, "little"), block)
        head = b""
    return [*pieces, _LZ4_END]


def _snappy(data: pa.Buffer) -> list[BatchBuffer]:
    """Blocks as Java's producers frame them; its consumers read no other."""
    codec = pa.Codec("snappy")
    pieces: list[BatchBuffer] = []
    head = XERIAL_HEAD
    for begin in range(0, len(data), _XERIAL_BLOCK):
        packed = codec.compress(data.slice(begin, min(_XERIAL_BLOCK, len(data) - begin)))
        pieces += (head + len(packed).to_bytes(4, "big"), packed)
        head = b""
    return pieces


# Reading.


def headers(data: Any, old: bool = False, at: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Where each batch begins, from `at` on, and its header; the last one is left out where it was cut off,
    as what is fetched may be.

    data: bytes or any buffer. old: messages of magic 0 and 1 count as batches of one record, whose offset is
    the last one of what a compressed one holds. Raises BatchError for an older magic, and for what can't be a
    batch.
    """
    end = len(data)
    while end - at >= _CHECKED_FROM:
        offset, length, _, magic, _ = _PREFIX.unpack_from(data, at)
        least = HEADER_BYTES - LENGTH_FROM
        if magic != MAGIC:
            if not old or magic not in (0, 1):
                raise BatchError(
                    f"batch at offset {offset} is of magic {magic}; {'0 to 2 are' if old else f'only {MAGIC} is'} read"
                )
            least = _OLD_LEAST[magic]
        if length < least:
            raise BatchError(f"batch at offset {offset} says that it has {length} bytes")
        if end - at < LENGTH_FROM + length:
            return
        yield at, BatchHeader(*_HEADER.unpack_from(data, at)) if magic == MAGIC else _old_header(data, at)
        at += LENGTH_FROM + length


def _old_header(data: Any, at: int) -> BatchHeader:
    offset, length, crc, magic, attributes = _OLD_HEADER.unpack_from(data, at)
    time = _OLD_TIME.unpack_from(data, at + _OLD_HEADER.size)[0] if magic else NO_TIMESTAMP
    return BatchHeader(offset, length, -1, magic, crc, attributes, 0, time, time, -1, -1, -1, 1)


def cut_off(data: Any) -> BatchError:
    """What to say of an answer that has no whole batch, though brokers send no others."""
    if len(data) < LENGTH_FROM:
        return BatchError(f"{len(data)} bytes, which are no batch")
    offset, length = struct.unpack_from(">qi", data)
    return BatchError(
        f"batch at offset {offset} says that it has {length} bytes, of which {len(data) - LENGTH_FROM} have come"
    )


def intact(data: pa.Buffer, at: int, header: BatchHeader) -> bool:
    """Whether the batch that begins there is what its checksum is of."""
    if header.magic < MAGIC:
        checked = data.slice(at + _OLD_CHECKED_FROM, header.size - _OLD_CHECKED_FROM)
        return bool(crc32(checked) == header.crc)
    return checksum(data, at, header.size) == header.crc


def checksum(data: pa.Buffer, at: int, size: int) -> int:
    """Of the batch that begins there and is so large; what it says itself is in its header."""
    return crc32c(data.slice(at + _CHECKED_FROM, size - _CHECKED_FROM))


def must_be_sound(data: pa.Buffer, at: int, header: BatchHeader) -> None:
    """Raises BatchError unless a batch is what its checksum is of, and counts as it may. What lies before
    that (base offset, length, leader epoch) the checksum does not cover: its length has been believed by
    then, its offset is for whoever knows what is before and behind it."""
    where = f"batch at offset {header.base_offset}"
    if not intact(data, at, header):
        raise BatchError(f"{where} fails its checksum")
    if not 0 <= header.count <= header.last_offset_delta + 1 or header.last_offset_delta < 0:
        raise BatchError(f"{where} of {header.count} records up to {header.next_offset - 1}")
    if not 0 <= header.base_offset <= MAX_OFFSET - header.last_offset_delta:
        raise BatchError(f"{where} reaches beyond the offsets there are")
    if header.leader_epoch < NO_EPOCH:
        raise BatchError(f"{where} is of leader epoch {header.leader_epoch}")


def decode(data: Any, most_bytes: int | None = None) -> list[Record]:
    """The records of one whole batch: bytes or any buffer. Raises BatchError where anything in it is not as
    it must be, and TooManyAtOnce where its records unpack into more than so many bytes."""
    buffer = pa.py_buffer(data)
    header = next((header for _, header in headers(buffer)), None)
    if header is None or header.size != len(buffer):
        raise BatchError(f"{len(buffer)} bytes, which are not one whole batch")
    must_be_sound(buffer, 0, header)
    packed = buffer.slice(HEADER_BYTES)
    if not header.count and not len(packed):
        return []  # Compaction keeps one without records for its producer's sequence.
    try:
        return _records(header, unpacked(packed, header.codec, most_bytes))
    except TooManyAtOnce:
        raise
    except BatchError as error:
        raise BatchError(f"batch at offset {header.base_offset}: {error}") from None
    except Exception as error:  # noqa: BLE001 - hostile bytes: whatever a codec makes of them, it is no batch
        raise BatchError(f"batch at offset {header.base_offset} does not decode: {error}") from None


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
        timestamp = int64(header.base_timestamp + reader.number(10))
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
