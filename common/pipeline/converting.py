"""The stage `convert`: keys or values that are Avro become JSON, or JSON becomes Avro. Pure.

What is made of JSON has the id of a schema of the source's registry in front, as if it had been written
there: the text of that id never changes, and a stage behind gives it the target's.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from common.kafka.wire.records import Item
from common.pipeline.avro_of_json import Writer, loaded
from common.pipeline.avro_schema import Type
from common.pipeline.avro_values import AvroShape
from common.pipeline.batch import Awaited, Batch, Done, Run, flags
from common.pipeline.json_fields import NO_JSON, NO_UTF8
from common.pipeline.json_of_avro import Misfit, Read, reader
from common.pipeline.paths import Side
from common.pipeline.schema_ids import front_of
from common.pipeline.stages import Convert


def converting(options: Convert, context: str) -> Run:
    """`context`: that of the schema."""
    if options.id is None:
        return _to_json(options.side)
    return _to_avro(options.side, context, options.id)


def _to_json(side: Side) -> Run:
    whole = AvroShape([()])
    known: dict[Type, Read] = {}

    def run(batch: Batch) -> Done:
        seen = whole.look(batch, side)
        failed = dict(seen.bad)
        items: list[Item] = [None] * len(batch)
        data = bytes(batch.side(side).data)
        for one in seen.fields:
            read = reader(one.union or one.type, known)
            for row, start in zip(one.rows.tolist(), one.starts.tolist(), strict=True):
                try:
                    items[row], _ = read(data, start)
                except UnicodeDecodeError:
                    failed[row] = NO_UTF8
                except Misfit as error:
                    failed[row] = f"can't be JSON: {error.why}"
        return _done(batch, side, items, failed)

    return run


def _to_avro(side: Side, context: str, schema_id: int) -> Run:
    front = front_of(schema_id)
    writers: list[Writer] = []

    def run(batch: Batch) -> Done:
        column, schemas = batch.side(side), batch.schemas
        assert schemas is not None
        of = schemas.of(schema_id)
        if of is None:
            done = Done(batch, flags(len(batch)))
            why = f"schema {schema_id}, which the {side} is to have, is not written down yet"
            done.let_wait(np.array(column.rows, np.int64), why, Awaited(context, schema_id, text=True))
            return done
        failed: dict[int, str] = {}
        items: list[Item] = [None] * len(batch)
        if isinstance(of, str):
            failed = dict.fromkeys(column.rows, f"can't have schema {schema_id}, which {of}")
            return _done(batch, side, items, failed)
        if not writers:
            writers.append(Writer(of))
        for row, text in zip(column.rows, column.texts, strict=True):
            try:
                items[row] = front + writers[0].write(loaded(bytes(text)))
            except UnicodeDecodeError:
                failed[row] = NO_UTF8
            except (ValueError, RecursionError):
                failed[row] = NO_JSON
            except Misfit as error:
                at = f", {'.'.join(error.place)}" if error.place else ""
                failed[row] = f"does not fit schema {schema_id}{at}: {error.why}"
        return _done(batch, side, items, failed)

    return run


def _done(batch: Batch, side: Side, items: list[Item], failed: dict[int, str]) -> Done:
    changed = flags(len(batch), [row for row, item in enumerate(items) if item is not None])
    told = {row: f"the {side} {why}" for row, why in failed.items()}
    return Done(batch.with_column(side, pa.array(items, pa.binary())), changed, failed=told)
