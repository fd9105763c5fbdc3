"""Functions for the stage `python`, as operators write them: sound ones, and those that are not."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

SEEN: list[int] = []


@dataclass
class Row:
    """With annotations that a dataclass looks up in its module."""

    content: dict[str, Any]


def tidy(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Leaves records without a key out, fails on values that are no UTF-8, and changes the rest."""
    kept = []
    for row in (Row(content).content for content in rows.to_pylist()):
        text = None if row["value"] is None else row["value"].decode()
        if row["key"] is None:
            continue
        headers = [h for h in row["headers"] or () if h["key"] != "x-a"]
        if text == "":
            row["value"] = None
        elif text is not None and len(text) % 2:
            row["value"], row["timestamp"] = text.upper(), row["timestamp"] + 1
            headers.append({"key": "offset", "value": str(row["offset"])})
        kept.append({**row, "headers": headers or None})
    return pa.RecordBatch.from_pylist(kept, rows.schema)


def unchanged(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def upper(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Of the columns, without a row in Python."""
    value = pc.binary_replace_slice(rows.column("value"), 0, 0, b"+")
    return rows.set_column(3, "value", value)


def nothing(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.slice(0, 0)


def raises(rows: pa.RecordBatch) -> pa.RecordBatch:
    raise ZeroDivisionError(str(rows.column("value")[0]))


def backwards(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.take(pa.array(range(len(rows) - 1, -1, -1)))


def twice(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([rows.slice(0, 1), rows])


def elsewhere(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.set_column(0, "offset", pc.add(rows.column("offset"), 1000))


def a_table(rows: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([rows])


def without_a_column(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.select([0, 1, 2, 3])


def numbers(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.set_column(3, "value", rows.column("offset"))


def no_time(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.set_column(1, pa.field("timestamp", pa.int64()), pa.nulls(len(rows), pa.int64()))


def before_time(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.set_column(1, "timestamp", pa.array([-2] * len(rows), pa.int64()))


def our_headers(rows: pa.RecordBatch) -> pa.RecordBatch:
    own = [[{"key": "verbatim.x", "value": b"1"}]] * len(rows)
    return rows.set_column(4, "headers", pa.array(own, rows.schema.field("headers").type))


def nameless_headers(rows: pa.RecordBatch) -> pa.RecordBatch:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return rows.set_column(4, "headers", pa.array([[{"key": None, "value": b"1"}]] * len(rows), kind))


def drawn(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Not pure: by chance."""
    values = [b"%d" % random.getrandbits(60) for _ in range(len(rows))]
    return rows.set_column(3, "value", pa.array(values, pa.binary()))


def counted(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Not pure: by what was there before."""
    SEEN.extend(rows.column("offset").to_pylist())
    return rows.set_column(3, "value", pa.array([b"%d" % len(SEEN)] * len(rows), pa.binary()))


def among_others(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Not pure: by the records of the same batch."""
    return rows.set_column(3, "value", pa.array([b"%d" % len(rows)] * len(rows), pa.binary()))
