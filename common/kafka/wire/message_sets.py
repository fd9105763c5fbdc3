"""Messages of the formats before record batches (magic 0 and 1) to Arrow columns. Pure; they are told apart
by `common.kafka.wire.record_batch.headers`.

    message = offset 8, length 4, CRC-32 4, then what that covers:
              magic 1, attributes 1, with magic 1 a timestamp 8, key length 4, key, value length 4, value

Segments written before Kafka 0.11 have them, and topics whose message.format.version was older. The value of
a compressed one is such messages, and its offset that of the last one; with magic 1 theirs count from 0, with
magic 0 they are as in the log. (Kafka's AbstractLegacyRecordBatch.)

Of these a step is made for each record: nobody writes them any more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pyarrow as pa

from common.kafka.wire.compression import codec_name, unpacked
from common.kafka.wire.record_batch import (
    CODECS,
    NO_TIMESTAMP,
    BatchError,
    BatchHeader,
    Record,
    headers,
    must_be_sound,
)
from common.kafka.wire.record_decoder import RECORD_BYTES
from common.kafka.wire.records import NO_ROWS, encode_rows

_HEAD = 12
"""Offset and length."""
_KEY_FROM = (18, 26)
"""Where the key's length stands, by magic."""
_TYPES = (1, 2)
"""CreateTime, and LogAppendTime where the attributes say so. A message of magic 0 has neither."""
_LZ4_MAGIC = bytes.fromhex("04224d18")


def leading(
    data: pa.Buffer,
    messages: Sequence[tuple[int, BatchHeader]],
    position: int,
    most_bytes: int,
    floor: int = 0,
) -> tuple[pa.RecordBatch, int, int]:
    """As `common.kafka.wire.record_decoder.leading`. A timestamp is -1 and its type 0 where a message has
    none.

    floor: what the first record's offset may not be below, for what a compressed message says of its own
    offset is not checked otherwise.
    """
    records: list[Record] = []
    size, end = 0, position
    for at, header in messages:
        try:
            for record in _records(data.slice(at, header.size), header, floor):
                if record.offset < position:
                    continue
                if records and size >= most_bytes:
                    return _rows(records), end, size
                records.append(record)
                end = record.offset + 1
                size += len(record.key or b"") + len(record.value or b"") + RECORD_BYTES
        except BatchError as error:
            if records:
                return _rows(records), end, size
            raise BatchError(f"message at offset {header.base_offset}: {error}") from None
        except Exception as error:  # noqa: BLE001 - hostile bytes: whatever a codec makes of them, it is no message
            raise BatchError(f"message at offset {header.base_offset} does not decode: {error}") from None
        end = max(end, header.next_offset)
        floor = header.next_offset
    return _rows(records), end, size


def _rows(records: list[Record]) -> pa.RecordBatch:
    if not records:
        return NO_ROWS.batch
    offsets, timestamps, types, keys, values, _ = zip(*records, strict=True)
    return encode_rows(offsets, timestamps, types, keys, values, None)


def _records(message: pa.Buffer, header: BatchHeader, floor: int) -> Iterator[Record]:
    """Of one message, or of those that it holds. Raises BatchError, and whatever Arrow does."""
    if not header.codec:
        yield _record(memoryview(message), 0, header, header.base_offset, None)
        return
    inner = pa.py_buffer(_inner(message, header))
    first = last = -1
    # Twice: where those with offsets of their own count from is told by the last of them.
    for _, own in _sound(inner, header.magic):
        if own.base_offset <= last:
            raise BatchError("the messages that it holds do not ascend")
        last = own.base_offset
        first = last if first < 0 else first
    base = header.base_offset - last if header.magic else 0
    if first < 0 or base + first < floor or base + last != header.base_offset:
        raise BatchError(
            f"it holds messages [{base + first}, {base + last}] where they begin at {floor} at least"
        )
    view = memoryview(inner)
    for at, own in _sound(inner, header.magic):
        yield _record(view, at, own, base + own.base_offset, header)


def _sound(inner: pa.Buffer, magic: int) -> Iterator[tuple[int, BatchHeader]]:
    end = 0
    for at, header in headers(inner, old=True):
        if header.codec or header.magic != magic:
            raise BatchError("what it holds are no messages of its own format")
        must_be_sound(inner, at, header)
        end = at + header.size
        yield at, header
    if end != len(inner):
        raise BatchError(f"{len(inner) - end} bytes left over in it")


def _record(data: memoryview, at: int, header: BatchHeader, offset: int, outer: BatchHeader | None) -> Record:
    """The message that begins there; the times of one inside of another are the other's where a broker has
    set them."""
    key, place = _blob(data, at + _KEY_FROM[header.magic], at + header.size)
    value, place = _blob(data, place, at + header.size)
    if place != at + header.size:
        raise BatchError(f"{at + header.size - place} bytes left over")
    if not header.magic:
        return Record(offset, NO_TIMESTAMP, 0, key, value, None)
    told = header if outer is None else outer
    time = told.max_timestamp if told.log_append_time else header.max_timestamp
    return Record(offset, time, _TYPES[told.log_append_time], key, value, None)


def _blob(data: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    """A length and so many bytes; what is behind them."""
    if at + 4 > end:
        raise BatchError("it is cut off")
    (length,) = struct.unpack_from(">i", data, at)
    at += 4
    if length == -1:
        return None, at
    if not 0 <= length <= end - at:
        raise BatchError(f"a length of {length} with {end - at} bytes left")
    return bytes(data[at : at + length]), at + length


def _inner(message: pa.Buffer, header: BatchHeader) -> bytes:
    """What a compressed message holds. Raises BatchError, and whatever Arrow does."""
    data = memoryview(message)
    _, place = _blob(data, _KEY_FROM[header.magic], len(data))
    packed, place = _blob(data, place, len(data))
    if packed is None or place != len(data):
        raise BatchError("a compressed message that holds nothing, or something behind it")
    name = codec_name(header.codec)
    if name == "zstd":
        raise BatchError("a codec that its format did not have")
    if name == "lz4" and not header.magic:
        packed = _mended(packed)
    return unpacked(pa.py_buffer(packed), CODECS[name])


def _mended(packed: bytes) -> bytes:
    """An LZ4 frame with the header's checksum as it should be: Java's clients of that time reckoned the magic
    number in (KAFKA-3160)."""
    if len(packed) < 7 or packed[:4] != _LZ4_MAGIC:
        raise BatchError("an LZ4 frame without its beginning")
    end = 6 + (8 if packed[4] & 0x08 else 0)
    return packed[:end] + bytes([_xxh32(packed[4:end]) >> 8 & 0xFF]) + packed[end + 1 :]


def _xxh32(data: bytes) -> int:
    """Of less than 16 bytes, with a seed of 0 (xxHash's specification)."""
    one, two, three, four, five = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF

    def rotated(number: int, by: int) -> int:
        return (number << by | number >> (32 - by)) & mask

    found = five + len(data)
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        found = rotated((found + word * three) & mask, 17) * four & mask
    for byte in data[whole:]:
        found = rotated((found + byte * five) & mask, 11) * one & mask
    found = (found ^ found >> 15) * two & mask
    found = (found ^ found >> 13) * three & mask
    return found ^ found >> 16
