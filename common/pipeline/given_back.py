"""What code that is not the pipeline's own gets of records, and what it may give back: the same rows, or
fewer. Pure.

What is no such batch is a mistake in that code and not in a record: Broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.kafka.wire.records import HEADERS
from common.pipeline.batch import Batch, Broken, Done, flags
from common.pipeline.columns import Flags, Ints
from common.pipeline.header_column import HeaderColumn
from common.pipeline.options import OWN_HEADERS

GIVEN = pa.schema(
    [
        pa.field("offset", pa.int64(), False),
        pa.field("timestamp", pa.int64(), False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)
"""Schema of what a function gets: each record's offset at the source, timestamp in ms since 1970 (-1: none),
key, value, and headers in order (null: none)."""
_TEXTS = (pa.string(), pa.large_string(), pa.large_binary())
_LEAST_TIMESTAMP = -1


def shown(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Of records as `GIVEN` has them."""
    return pa.RecordBatch.from_arrays([rows.column(field.name) for field in GIVEN], schema=GIVEN)


def must_be_some_of(given: Ints, found: Ints) -> None:
    """Offsets that come back. Raises Broken."""
    if len(found) > 1 and not (np.diff(found) > 0).all():
        raise Broken("gives rows back in another order, or one twice")
    if not np.isin(found, given).all():
        raise Broken("gives back an offset that it was not given")


def fitting(given: pa.RecordBatch, made: Any) -> pa.RecordBatch:
    """What a function has made, of `GIVEN`. Raises Broken for what no function may make."""
    try:
        found = _of_schema(made)
        found.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise Broken(f"gives back what is no batch: {type(error).__name__}") from None
    offsets = found.column(0).to_numpy()
    must_be_some_of(given.column(0).to_numpy(), offsets)
    if len(offsets) and found.column(1).to_numpy().min() < _LEAST_TIMESTAMP:
        raise Broken("gives back a timestamp below -1")
    return found


def _of_schema(made: Any) -> pa.RecordBatch:
    if not isinstance(made, pa.RecordBatch):
        raise Broken(f"gives back a {type(made).__name__}, not a RecordBatch")
    if sorted(made.schema.names) != sorted(GIVEN.names):
        raise Broken(f"gives back columns other than {', '.join(GIVEN.names)}")
    columns = []
    for field in GIVEN:
        column = made.column(field.name)
        if (column.type in _TEXTS or pa.types.is_null(column.type)) and field.type == pa.binary():
            column = column.cast(pa.binary())
        elif field.type == HEADERS:
            column = as_headers(column)
        if column.type != field.type:
            raise Broken(f"gives back {field.name} as {column.type}, not as {field.type}")
        if column.null_count and not field.nullable:
            raise Broken(f"gives back no {field.name}")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=GIVEN)


def as_headers(column: pa.Array) -> pa.Array:
    """As they are elsewhere: null where a record has none. Also as Python makes them of lists."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), HEADERS)
    named = pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)
    if not named or [field.name for field in kind.value_type] != ["key", "value"]:
        raise Broken(f"gives back headers as {kind}, not as {HEADERS}")
    flat = column.flatten()
    names, values = flat.field(0), flat.field(1)
    if values.type in _TEXTS or pa.types.is_null(values.type):
        values = values.cast(pa.binary())
    if (names.type, values.type) != (pa.string(), pa.binary()):
        raise Broken(f"gives back headers as {kind}, not as {HEADERS}")
    if flat.null_count or names.null_count:
        raise Broken("gives back a header without a name")
    bounds = np.zeros(len(column) + 1, np.int64)
    np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy(), out=bounds[1:])
    return HeaderColumn(bounds, names, values).to_arrow()


def done(
    batch: Batch, given: pa.RecordBatch, pieces: Sequence[pa.RecordBatch], failed: dict[int, str]
) -> Done:
    """The batch with what was made of it; of a row that does not go on, nothing."""
    made = pa.concat_batches(pieces) if pieces else given.slice(0, 0)
    if len(made) == len(given):
        changed = _changed(given, made)
        return Done(_with(batch, made), changed)
    offsets, there = made.column(0).to_numpy(), given.column(0).to_numpy()
    goes_on = np.isin(there, offsets)
    at = pa.array(np.searchsorted(offsets, there), mask=~goes_on)
    changed = flags(len(given))
    changed[goes_on] = _changed(given.filter(pa.array(goes_on)), made)
    left_out = ~goes_on
    left_out[list(failed)] = False
    gone = pa.RecordBatch.from_arrays(
        [given.column(0), pc.if_else(pa.array(goes_on), made.column(1).take(at), given.column(1))]
        + [column.take(at) for column in made.columns[2:]],
        schema=GIVEN,
    )
    return Done(_with(batch, gone), changed, left_out, failed)


def _with(batch: Batch, made: pa.RecordBatch) -> Batch:
    rows = batch.rows
    columns = [rows.column(0), made.column(1), rows.column(2), *made.columns[2:]]
    return replace(batch, rows=pa.RecordBatch.from_arrays(columns, schema=rows.schema))


def _changed(given: pa.RecordBatch, made: pa.RecordBatch) -> Flags:
    """Which rows are others than they were. Raises Broken where a header of the program's own is one."""
    changed: Flags = given.column(1).to_numpy() != made.column(1).to_numpy()
    for number in (2, 3):
        old, new = given.column(number), made.column(number)
        same = pc.fill_null(pc.equal(old, new), False)
        both_null = pc.and_(old.is_null(), new.is_null())
        changed |= ~pc.or_(same, both_null).to_numpy(zero_copy_only=False)
    if not given.column(4).equals(made.column(4)):
        for row, (old, new) in enumerate(zip(_headers_of(given), _headers_of(made), strict=True)):
            if old != new:
                changed[row] = True
                if _own(old) != _own(new):
                    raise Broken(f"changes headers that begin with {OWN_HEADERS}")
    return changed


def _headers_of(rows: pa.RecordBatch) -> list[list[tuple[str, bytes | None]]]:
    return [[(h["key"], h["value"]) for h in row or ()] for row in rows.column(4).to_pylist()]


def _own(headers: list[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    return [one for one in headers if one[0].startswith(OWN_HEADERS)]
