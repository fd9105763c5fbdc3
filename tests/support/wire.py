"""Writes records that librdkafka can't write, such as with a timestamp of 0: one Produce request, by hand, to
a broker without authentication."""

from __future__ import annotations

import socket
import struct

import google_crc32c
from confluent_kafka.admin import AdminClient

from common.kafka.wire.record_batch import CODECS

_TIMEOUT_S = 10.0
NOW = 1_700_000_000_000


def produce_at(bootstrap: str, topic: str, values: list[bytes], timestamp: int, partition: int = 0) -> int:
    """Write records of one timestamp (ms since 1970) as one batch; the offset of the first. Raises OSError,
    AssertionError."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    metadata = admin.list_topics(topic, timeout=_TIMEOUT_S)
    leader = metadata.brokers[metadata.topics[topic].partitions[partition].leader]
    batch = _batch(values, timestamp)
    body = struct.pack(">hhi", -1, -1, int(_TIMEOUT_S * 1000))  # no transaction, acks=all
    body += struct.pack(">i", 1) + _text(topic) + struct.pack(">iii", 1, partition, len(batch)) + batch
    header = struct.pack(">hhi", 0, 3, 7) + _text("tests")  # Produce, version 3
    with socket.create_connection((leader.host, leader.port), _TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(header + body)) + header + body)
        answer = _read(connection, struct.unpack(">i", _read(connection, 4))[0])
    # Correlation id, one topic, one partition: its number, error, first offset.
    at = 4 + 4 + 2 + len(topic.encode()) + 4 + 4
    error, offset = struct.unpack_from(">hq", answer, at)
    assert error == 0, f"the broker refused it with error {error}"
    return int(offset)


def _batch(values: list[bytes], timestamp: int) -> bytes:
    """A record batch of magic 2 (KIP-98), neither compressed nor of a producer that is known."""
    records = b""
    for number, value in enumerate(values):
        record = b"\0" + _varint(0) + _varint(number) + _varint(-1) + _varint(len(value)) + value + _varint(0)
        records += _varint(len(record)) + record
    last = len(values) - 1
    checked = struct.pack(">hiqqqhii", 0, last, timestamp, timestamp, -1, -1, -1, len(values)) + records
    rest = struct.pack(">ibI", -1, 2, _crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(rest)) + rest


def sealed(data: bytes, codec: str = "none", count: int = 1, last: int | None = None, **header: int) -> bytes:
    """A batch around any bytes, with a right checksum."""
    checked = struct.pack(
        ">hiqqqhii",
        CODECS[codec] | header.get("flags", 0),
        count - 1 if last is None else last,
        header.get("base", NOW),
        header.get("largest", NOW),
        -1,
        -1,
        -1,
        count,
    )
    checked += data
    prefix = struct.pack(
        ">qiibI", header.get("offset", 1000), 9 + len(checked), 5, 2, google_crc32c.value(checked)
    )
    return prefix + checked


def _varint(number: int) -> bytes:
    """Zigzag, seven bits a byte."""
    left = (number << 1) ^ (number >> 63)
    out = b""
    while left > 0x7F:
        out += bytes([left & 0x7F | 0x80])
        left >>= 7
    return out + bytes([left])


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _read(connection: socket.socket, count: int) -> bytes:
    out = b""
    while len(out) < count:
        got = connection.recv(count - len(out))
        if not got:
            raise ConnectionError("the broker hung up")
        out += got
    return out
