"""The stage `schema-ids`: the id in front of keys and values becomes that of the same schema at the target;
all behind it stays as it is. Pure; who knows the ids is elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from common.pipeline.batch import Awaited, Batch, Done, Run, flags
from common.pipeline.columns import Column, Flags, Ints
from common.pipeline.paths import Side
from common.pipeline.wire import ID_BYTES, SchemaIds, Wire

Targets = Callable[[str, int], int | None]
"""Context and id of a schema at the source -> its id at the target; None: not known yet. An answer stays."""
FRAMED = 1 + ID_BYTES["confluent"]
"""Bytes in front: 0, and the id."""
HEADERS = {"key": "__key_schema_id", "value": "__value_schema_id"}
"""In which newer serializers name a schema by its GUID, with nothing in front."""
SIDES: tuple[Side, ...] = ("key", "value")


def unknown(context: str, schema_id: int) -> int | None:
    """Targets of whoever knows none: all waits."""
    return None


def mapping_ids(options: SchemaIds, wire: Wire, targets: Targets) -> Run:
    sizes = {side: ID_BYTES[kind] for side in SIDES if (kind := getattr(wire, side)) is not None}

    def run(batch: Batch) -> Done:
        done = Done(batch, flags(len(batch)))
        for side, size in sizes.items():
            done = _mapped(done, side, size, options, targets)
        for row in done.failed.keys() & done.waits.keys():
            # It fails, whatever becomes known.
            del done.waits[row]
        return done

    return run


def _mapped(done: Done, side: Side, size: int, options: SchemaIds, targets: Targets) -> Done:
    batch = done.batch
    column = batch.side(side)
    there = np.ones(len(batch), np.bool_) if column.present is None else column.present
    rows, places, ids = in_front(column, there & ~_named_by_header(batch, side), size)
    if options.on_unframed == "halt" and len(rows) < np.count_nonzero(there):
        reason = f"the {side} has no schema's id in front of it (docs: guides/schemas#ids-in-records)"
        bad = np.setdiff1d(np.flatnonzero(there), rows)
        done.failed.update(dict.fromkeys(bad.tolist(), reason))
    if not rows.size:
        return done
    known, which = np.unique(ids, return_inverse=True)
    found = [targets(options.context, int(schema_id)) for schema_id in known]
    for number, schema_id in enumerate(known.tolist()):
        if found[number] is None:
            why = f"schema {schema_id} of the {side} has no id at the target yet"
            done.let_wait(rows[which == number], why, Awaited(options.context, schema_id))
    after = [old if to is None else to for old, to in zip(known.tolist(), found, strict=True)]
    new = np.array(after, f">u{size}")
    other = (new != known)[which]
    if not other.any():
        return done
    written = np.frombuffer(column.data, np.uint8).copy()
    written[places[other]] = new[which[other]].view(np.uint8).reshape(-1, size)
    done.changed[rows[other]] = True
    return replace(done, batch=batch.with_side(side, Column(written.data, column.bounds, column.present)))


def front_of(schema_id: int, size: int = FRAMED - 1) -> bytes:
    """What stands in front of what is of that schema, with an id of so many bytes."""
    return b"\0" + schema_id.to_bytes(size, "big")


def in_front(
    column: Column, looked_at: Flags | None = None, size: int = FRAMED - 1
) -> tuple[Ints, Ints, npt.NDArray[Any]]:
    """The rows with an id of so many bytes in front, the places of these in each, and the ids. `looked_at`:
    which rows; None: all that are not null."""
    if looked_at is None:
        looked_at = column.present
    long_enough = np.diff(column.bounds) > size
    rows = np.flatnonzero(long_enough if looked_at is None else long_enough & looked_at)
    places = column.bounds[rows][:, None] + np.arange(1 + size)
    if not rows.size:
        return rows, places[:, 1:], rows
    front = np.frombuffer(column.data, np.uint8)[places]
    # No schema has the id 0: of 4 bytes, it is the first half of one of 8.
    framed = (front[:, 0] == 0) & front[:, 1:].any(axis=1)
    ids = front[framed, 1:].view(f">u{size}").ravel().astype(np.uint64)
    return rows[framed], places[framed, 1:], ids


def _named_by_header(batch: Batch, side: Side) -> Flags | npt.NDArray[np.bool_]:
    """Which records have the header that deserializers look at first."""
    headers = batch.rows.column(5)
    if headers.null_count == len(batch):
        return np.zeros(len(batch), np.bool_)
    named = batch.headers.named(HEADERS[side].__eq__)
    given = batch.headers.values.is_valid().to_numpy(zero_copy_only=False)
    return flags(len(batch), cast("list[int]", batch.headers.rows[named & given].tolist()))
