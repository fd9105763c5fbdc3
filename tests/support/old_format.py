"""Writes messages of the formats before record batches (magic 0 and 1), as the clients and brokers of that
time did. By hand: nothing else does any more."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import pyarrow as pa

from common.kafka.wire.message_sets import _xxh32
from common.kafka.wire.record_batch import CODECS, _compressed

NOW = 1_700_000_000_000


@dataclass(frozen=True)
class Old:
    """A record. `stamp` counts with magic 1."""

    key: bytes | None
    value: bytes | None
    stamp: int = NOW


def message(offset: int, record: Old, magic: int, attributes: int = 0) -> bytes:
    """One message as it lies in a segment."""
    body = struct.pack(">bb", magic, attributes)
    if magic:
        body += struct.pack(">q", record.stamp)
    for part in (record.key, record.value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, 4 + len(body), crc32(body)) + body


def compressed(
    offset: int,
    records: Sequence[Old],
    magic: int,
    codec: str,
    attributes: int = 0,
    stamp: int = NOW,
    xerial: bool = True,
    places: Sequence[int] | None = None,
) -> bytes:
    """Records from an offset on, as one message of the last one's offset. `places` are theirs, from 0 on,
    where compaction has left gaps."""
    places = range(len(records)) if places is None else places
    inner = b"".join(
        message(place + (0 if magic else offset), record, magic)
        for place, record in zip(places, records, strict=True)
    )
    outer = Old(None, packed(inner, codec, magic, xerial), stamp)
    return message(offset + places[-1], outer, magic, attributes | CODECS[codec])


def packed(data: bytes, codec: str, magic: int, xerial: bool = True) -> bytes:
    if codec == "snappy" and not xerial:
        return bytes(pa.Codec("snappy").compress(data))
    out = b"".join(map(bytes, _compressed(pa.py_buffer(data), codec, None)))
    if codec == "lz4" and not magic:
        # As Java's clients reckoned it: over the magic number too (KAFKA-3160).
        out = out[:6] + bytes([_xxh32(out[:6]) >> 8 & 0xFF]) + out[7:]
    return out
