"""Arrow columns to the records sections of Kafka record batches, a record at a time. Pure.

For a few records, where all at once (common/kafka/wire/record_encoder.py) would spend its time on beginning;
and for whatever that can't do.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.kafka.wire.protocol import unsigned
from common.kafka.wire.record_batch import Records, int64
from common.kafka.wire.records import Header

_Ints = npt.NDArray[np.int64]


_SMALL = [unsigned(number << 1) for number in range(1024)]


def varint(number: int) -> bytes:
    """Zigzag, seven bits a byte: of an int64."""
    return _SMALL[number] if 0 <= number < 1024 else unsigned((number << 1) ^ (number >> 63))


_NULL = varint(-1)


def one_by_one(rows: pa.RecordBatch, most_bytes: int, extra: Header | None) -> Iterator[Records]:
    """As `record_encoder.encode_records`."""
    timestamps = cast("list[int]", rows.column(1).to_pylist())
    keys, values, headers = _items(rows.column(3)), _items(rows.column(4)), _header_pieces(rows, extra)
    sections: list[bytes] = []
    size = count = base = largest = 0
    for timestamp, key, value, tail in zip(timestamps, keys, values, headers, strict=True):
        pieces = [_NULL] if key is None else [varint(len(key)), key]
        if value is None:
            pieces.append(_NULL)
        else:
            pieces += (varint(len(value)), value)
        pieces += tail
        fixed = sum(map(len, pieces))
        if count:
            head = b"\0" + varint(int64(timestamp - base)) + varint(count)
            length = varint(len(head) + fixed)
            if size + len(length) + len(head) + fixed > most_bytes:
                yield Records(count, base, largest, pa.py_buffer(b"".join(sections)))
                sections = []
                size = count = 0
        if not count:
            base = largest = timestamp
            head = b"\0\0\0"
            length = varint(len(head) + fixed)
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
    added = [] if extra is None else [encoded_header(extra[0].encode(), extra[1])]
    bounds, flat = flat_headers(rows.column(5))
    if not len(flat):
        return [[varint(len(added)), *added]] * len(rows)
    names = flat.field(0).cast(pa.binary()).to_pylist()
    encoded = list(map(encoded_header, names, flat.field(1).to_pylist()))
    return [
        [varint(end - begin + len(added)), *encoded[begin:end], *added]
        for begin, end in pairwise(bounds.tolist())
    ]


def encoded_header(name: bytes, value: bytes | None) -> bytes:
    rest = _NULL if value is None else varint(len(value)) + value
    return varint(len(name)) + name + rest


def flat_headers(column: pa.Array) -> tuple[_Ints, pa.StructArray]:
    """All headers one behind the other, and where those of each row begin and end (a bound more than
    rows)."""
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
