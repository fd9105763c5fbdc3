"""What a Kafka batch's records are compressed with, and how they are unpacked: a piece at a time, and never
more than is allowed. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from common.kafka.wire.records import MAX_UNPACKED_BYTES

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""compression.type, and what a batch's attributes say of it."""
XERIAL = b"\x82SNAPPY\0"
XERIAL_HEAD = XERIAL + struct.pack(">ii", 1, 1)
"""Java's producers frame snappy blocks so: this, and behind it each block's length and the block."""

_NAMES = {number: name for name, number in CODECS.items()}
_READ_BYTES = 256 << 10


class BatchError(ValueError):
    """Bytes that are no record batch, or one that is damaged."""


class TooManyAtOnce(BatchError):
    """Each batch may be well, but they unpack into more than is allowed for now. Read fewer at once."""


def codec_name(codec: int) -> str:
    """Raises BatchError."""
    if codec not in _NAMES:
        raise BatchError(f"a codec {codec}, which this release does not know")
    return _NAMES[codec]


def allow(size: int) -> None:
    """Raises BatchError where a batch would unpack into more than anybody is to make room for."""
    if size > MAX_UNPACKED_BYTES:
        raise BatchError(f"it would unpack into more than {MAX_UNPACKED_BYTES} bytes")


def pieces(packed: pa.Buffer, codec: int) -> Iterator[Any]:
    """What records unpack into: bytes or buffers, one behind the other. Raises BatchError, and whatever Arrow
    does."""
    name = codec_name(codec)
    if name == "none":
        yield packed
    elif name == "snappy":
        yield from unsnapped(packed)
    else:
        size = 0
        with pa.CompressedInputStream(pa.BufferReader(packed), name) as stream:
            while part := stream.read(_READ_BYTES):
                size += len(part)
                allow(size)
                yield part


def unpacked(packed: pa.Buffer, codec: int, most: int | None = None) -> bytes:
    """All of it. Raises BatchError, TooManyAtOnce where it is more than `most` bytes, and whatever Arrow
    does."""
    out, size = [], 0
    for piece in pieces(packed, codec):
        size += len(piece)
        if most is not None and size > most:
            raise TooManyAtOnce(f"records that unpack into more than {most} bytes")
        out.append(piece)
    return bytes(out[0]) if len(out) == 1 else b"".join(out)


def unsnapped(packed: pa.Buffer) -> Iterator[bytes]:
    """Either framed as Java's producers do it, or one block as it is, as librdkafka does it."""
    codec = pa.Codec("snappy")
    if len(packed) < len(XERIAL_HEAD) or bytes(packed.slice(0, len(XERIAL))) != XERIAL:
        size = _snappy_size(packed)
        allow(size)
        yield codec.decompress(packed, size, asbytes=True)
        return
    at, total = len(XERIAL_HEAD), 0
    while at < len(packed):
        length = int.from_bytes(bytes(packed.slice(at, min(4, len(packed) - at))), "big")
        at += 4
        if length > len(packed) - at:
            raise BatchError("a snappy block is cut off")
        block = packed.slice(at, length)
        total += (size := _snappy_size(block))
        allow(total)
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
