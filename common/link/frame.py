"""Frames: one record of the staging topic holds a run of records of one source partition. Pure: bytes in,
bytes out.

A frame's Kafka headers say where its records come from and which source offsets `[start, next)` it covers;
its value is one Arrow IPC record batch of `ROWS`, without the schema, which the frame version fixes. Its
buffers may be compressed, as Arrow does it: then no broker unpacks them, as it does with what a Kafka batch
has compressed. Reading and writing Kafka is left to others.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from fastcrc.crc32 import iso_hdlc as crc32

from common.errors import FrameError, ImpossibleFrame
from common.kafka.wire.records import (
    MAX_OFFSET,
    MAX_RECORDS,
    MAX_UNPACKED_BYTES,
    NO_ROWS,
    ROWS,
    Header,
    Rows,
)
from common.link import frame_routes
from common.link.frame_errors import ROWS_AND_FAILED, Failed, check
from common.link.frame_routes import ROWS_AND_ROUTES

VERSION = b"1"
BATCHES_VERSION = b"2"
"""Of a frame whose value is record batches as they were at the source (common/link/batch_frame.py)."""
FAILED_VERSION = b"3"
"""Of a frame that also holds records that a stage failed on (common/link/frame_errors.py). Read as one of
version 1, these would pass for others."""
_VERSIONS = (VERSION, BATCHES_VERSION, FAILED_VERSION)
_PADDING = 4096
"""More than Arrow pads a frame's buffers with."""
COMPRESSED_FROM_BYTES = 64 << 10
"""A smaller one is not: it is of a partition with little traffic, where Arrow's compression costs more time
than its bytes would."""

MAX_PARTITION = 2**31 - 1

_SCHEMA_BYTES = {len(schema): schema.serialize().size for schema in (ROWS, ROWS_AND_FAILED, ROWS_AND_ROUTES)}
"""What a stream begins with, by the number of columns."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a frame says of itself in its Kafka headers.

    `start` and `next` are positions at the source, before and after. `origin` marks the first frame of a
    partition on a link, `gap` a loss that an operator accepted, with its `reason`. `batches`: its value is
    record batches as they were at the source. `pipeline`: the number of the pipeline that has decided what it
    holds, 0 where the link never had one. `failed`: what else it holds, which `count` does not count.
    `routes`: the topics that some of its records go to instead of the link's own destination, or partitions
    of these (common/pipeline/route_names.py).
    """

    cluster: str
    topic: str
    topic_id: str
    partition: int
    start: int
    next: int
    count: int
    writer: str
    origin: bool = False
    gap: bool = False
    reason: str | None = None
    batches: bool = False
    pipeline: int = 0
    failed: Failed | None = None
    routes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """How many its value has."""
        return self.count + (0 if self.failed is None else self.failed.count)

    @property
    def source(self) -> tuple[str, str, int]:
        """The source partition's identity: cluster id, topic id, partition."""
        return (self.cluster, self.topic_id, self.partition)


def pack(rows: pa.RecordBatch, codec: pa.Codec | None = None) -> pa.Buffer:
    """A frame's value, compressed where that is worth it. The buffer can be produced as it is, without a
    copy."""
    if not len(rows):
        return pa.py_buffer(b"")
    if rows.num_columns == len(ROWS_AND_ROUTES):
        return pa.py_buffer(b"".join((frame_routes.MARK, memoryview(_packed(rows, codec)))))
    return _packed(rows, codec)


def _packed(rows: pa.RecordBatch, codec: pa.Codec | None) -> pa.Buffer:
    if codec is None or not COMPRESSED_FROM_BYTES <= rows.nbytes <= MAX_UNPACKED_BYTES:
        return rows.serialize()
    sink = pa.BufferOutputStream()
    # Arrow offers compression to streams and files only.
    stream = pa.ipc.new_stream(
        sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    )
    stream.write_batch(rows)
    return sink.getvalue().slice(_SCHEMA_BYTES[rows.num_columns])


def staging_key(topic: str, partition: int) -> bytes:
    """The staging record's key. It is for people; nothing reads it back."""
    return f"{topic}/{partition}".encode()


def encode_headers(frame: Frame, value: pa.Buffer | bytes) -> list[Header]:
    """The Kafka headers of a frame with this value."""
    rows_version = FAILED_VERSION if frame.failed is not None and not frame.routes else VERSION
    version = BATCHES_VERSION if frame.batches else rows_version
    headers: list[Header] = [
        ("v", version),
        ("cluster", frame.cluster.encode()),
        ("topic", frame.topic.encode()),
        ("topic_id", frame.topic_id.encode()),
        ("partition", b"%d" % frame.partition),
        ("start", b"%d" % frame.start),
        ("next", b"%d" % frame.next),
        ("count", b"%d" % frame.count),
        ("writer", frame.writer.encode()),
        ("crc", b"%08x" % crc32(value)),
    ]
    flags = b",".join(name for name, on in ((b"origin", frame.origin), (b"gap", frame.gap)) if on)
    if flags:
        headers.append(("flags", flags))
    if frame.reason is not None:
        headers.append(("reason", frame.reason.encode()))
    if frame.pipeline:
        headers.append(("pipeline", b"%d" % frame.pipeline))
    if frame.failed is not None:
        headers.append(("failed", frame.failed.to_json()))
    if frame.routes:
        headers.append((frame_routes.header(frame.routes), frame_routes.to_json(frame.routes)))
    return headers


def decode_headers(headers: Sequence[Header] | None) -> tuple[Frame, int]:
    """The frame that these Kafka headers describe, and the checksum its value must have.

    Raises FrameError when a header is missing, repeated or ill-formed, or says what no writer would.
    """
    fields: dict[str, bytes] = {}
    for name, value in headers or ():
        if name in fields or value is None:
            raise FrameError(f"staging record with a repeated or null header {name!r}")
        fields[name] = value
    if (version := fields.get("v")) not in _VERSIONS:
        raise FrameError(f"staging record of frame version {version!r}; this release reads {_VERSIONS}")
    try:
        routes = frame_routes.from_headers(fields)
        has_failed = version == FAILED_VERSION or (bool(routes) and "failed" in fields)
        flags = set(filter(None, fields.get("flags", b"").split(b",")))
        frame = Frame(
            cluster=fields["cluster"].decode(),
            topic=fields["topic"].decode(),
            topic_id=fields["topic_id"].decode(),
            partition=_number(fields["partition"], MAX_PARTITION),
            start=_number(fields["start"], MAX_OFFSET),
            next=_number(fields["next"], MAX_OFFSET),
            count=_number(fields["count"], MAX_OFFSET),
            writer=fields["writer"].decode(),
            origin=b"origin" in flags,
            gap=b"gap" in flags,
            reason=fields["reason"].decode() if "reason" in fields else None,
            batches=version == BATCHES_VERSION,
            pipeline=_number(fields["pipeline"], MAX_OFFSET, 1) if "pipeline" in fields else 0,
            failed=Failed.from_json(fields["failed"]) if has_failed else None,
            routes=routes,
        )
        crc = _checksum(fields["crc"])
    except (KeyError, ValueError, TypeError) as error:
        raise FrameError(f"staging record with a missing or ill-formed frame header: {error}") from None
    if routes and version != VERSION:
        raise FrameError(f"staging record of frame version {version!r} with routes")
    if flags - {b"origin", b"gap"}:
        raise FrameError(f"frame with unknown flags {sorted(flags)}; a newer release may have written it")
    if frame.next < frame.start or frame.rows > min(MAX_RECORDS, frame.next - frame.start):
        raise ImpossibleFrame(
            f"frame of {_where(frame)} covers [{frame.start}, {frame.next}) with {frame.rows} records",
            frame,
            crc,
        )
    if frame.gap and frame.rows:
        raise ImpossibleFrame(
            f"frame of {_where(frame)} [{frame.start}, {frame.next}) is an accepted loss and holds records",
            frame,
            crc,
        )
    return frame, crc


def decode_rows(frame: Frame, crc: int, value: bytes | None) -> Rows:
    """The records of a frame, those that a stage failed on among them. Raises FrameError unless checksum,
    schema, count and offsets are as the headers say."""
    value = value or b""
    must_match(frame, crc, value)
    schema = ROWS_AND_ROUTES if frame.routes else ROWS if frame.failed is None else ROWS_AND_FAILED
    if not frame.rows:
        if value:
            raise FrameError(
                f"frame of {_where(frame)} [{frame.start}, {frame.next}) has a value but no records"
            )
        return NO_ROWS
    try:
        message = pa.ipc.read_message(_without_mark(frame, pa.py_buffer(value)))
        if (unpacked := _unpacked_bytes(message)) > MAX_UNPACKED_BYTES + _PADDING:
            # A few kilobytes could unpack into gigabytes.
            raise FrameError(
                f"frame of {_where(frame)} [{frame.start}, {frame.next}) would unpack into {unpacked} bytes"
            )
        batch = pa.ipc.read_record_batch(message, schema)
        if batch.num_rows != frame.rows:
            raise FrameError(f"frame of {_where(frame)} says {frame.rows} records and holds {batch.num_rows}")
        batch.validate(full=True)
        # Arrow doesn't hold a batch to the schema's "not null".
        if any(
            column.null_count and not field.nullable
            for field, column in zip(schema, batch.columns, strict=True)
        ):
            raise FrameError(
                f"frame of {_where(frame)} [{frame.start}, {frame.next}) holds a null where none may be"
            )
        headers = batch.column(5)
        if headers.values.null_count or headers.values.field("key").null_count:
            raise ValueError("a header without a name")
        if frame.failed is not None:
            check(batch, frame.failed)
        elif frame.routes and batch.column("error").null_count != len(batch):
            raise ValueError("records that a stage failed on, which the header has not")
        if frame.routes:
            frame_routes.check(batch, frame.routes)
        rows = Rows.of(_ascending(frame, batch.column(0)), batch)
    except FrameError:
        raise
    except Exception as error:  # noqa: BLE001 - hostile bytes: whatever pyarrow makes of them, it is no frame
        raise FrameError(
            f"frame of {_where(frame)} [{frame.start}, {frame.next}) does not decode: {error}"
        ) from None
    return rows


def _without_mark(frame: Frame, value: pa.Buffer) -> pa.Buffer:
    if not frame.routes:
        return value
    size = len(frame_routes.MARK)
    if value.slice(0, size).to_pybytes() != frame_routes.MARK:
        raise ValueError("the mark of routes is missing")
    return value.slice(size)


def must_match(frame: Frame, crc: int, value: bytes) -> None:
    """Raises FrameError where a frame's value is not the one that its checksum is of."""
    if crc32(value) != crc:
        raise FrameError(f"frame of {_where(frame)} [{frame.start}, {frame.next}) fails its checksum")


def _ascending(frame: Frame, column: pa.Array) -> Sequence[int]:
    """The offsets of a frame's records. Raises FrameError unless they ascend, within the frame's range."""
    first, last = column[0].as_py(), column[-1].as_py()
    if first < frame.start or last >= frame.next:
        raise FrameError(f"frame of {_where(frame)} holds offsets outside [{frame.start}, {frame.next})")
    # Mostly none is missing: then there is no need for an object each.
    if last - first + 1 == len(column) and column.equals(pa.arange(first, last + 1)):
        return range(first, last + 1)
    offsets: list[int] = column.to_pylist()
    if any(a >= b for a, b in pairwise(offsets)):
        raise FrameError(f"frame of {_where(frame)} [{frame.start}, {frame.next}) holds offsets out of order")
    return offsets


def _unpacked_bytes(message: pa.Message) -> int:
    """What the buffers of a record batch message say that they unpack into; 0 when they are not compressed.
    pyarrow offers no way to ask before it unpacks them.

    Message.fbs of the Arrow format: the message's field 2 is its header, a RecordBatch, whose field 2 is the
    vector of buffers (where each lies in the body, and its length: two int64), and field 3 `compression`. A
    compressed buffer begins with its length as unpacked, -1 where it is stored as it is. pyarrow has verified
    the flatbuffer by now. Raises struct.error where a buffer lies outside the body.
    """
    data, body = memoryview(message.metadata), memoryview(message.body)

    def field(table: int, number: int) -> int:
        """Where a table's field lies, 0 if it is left out."""
        (back,) = struct.unpack_from("<i", data, table)
        vtable = table - back
        (size,) = struct.unpack_from("<H", data, vtable)
        at = 4 + 2 * number
        (offset,) = struct.unpack_from("<H", data, vtable + at) if at < size else (0,)
        return table + offset if offset else 0

    def target(at: int) -> int:
        """What an offset field points at."""
        return at + int(struct.unpack_from("<I", data, at)[0])

    header = field(target(0), 2)
    batch = target(header) if header else 0
    if not batch or not field(batch, 3):
        return 0
    buffers = target(field(batch, 2))
    (count,) = struct.unpack_from("<I", data, buffers)
    total = 0
    for offset, length in struct.iter_unpack("<qq", data[buffers + 4 : buffers + 4 + 16 * count]):
        if length:
            (unpacked,) = struct.unpack_from("<q", body, offset)
            if unpacked < -1 or offset < 0:
                raise ValueError("a buffer of a negative length")
            total += length if unpacked == -1 else unpacked
    return total


def _number(text: bytes, most: int, least: int = 0) -> int:
    if not text.isdigit() or len(text) > 19 or not least <= int(text) <= most:
        raise ValueError(f"{text[:32]!r} is no number between {least} and {most}")
    return int(text)


def _checksum(text: bytes) -> int:
    if re.fullmatch(rb"[0-9a-f]{8}", text) is None:
        raise ValueError(f"{text[:32]!r} is no checksum")
    return int(text, 16)


def _where(frame: Frame) -> str:
    return f"{frame.topic}-{frame.partition}"
