"""The stage `sql`: a SELECT by DuckDB, record by record. Needs the extra `sql`.

What DuckDB says of an error may be of a record: its type is told, and nothing else. A batch on which it fails
is cut in halves, down to the records that it fails on. Columns that are not replaced are never taken from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import SettingsError
from common.pipeline.batch import Batch, Done, Origin, Run, flags
from common.pipeline.conditions import Formats
from common.pipeline.given_back import GIVEN, as_headers, done, must_be_some_of, shown
from common.pipeline.json_fields import Shape
from common.pipeline.paths import Side
from common.pipeline.select_tree import TABLE, SelectTree, connection

CODE = "duckdb"
"""What stands for it in a definition."""
_TEXT = ("BLOB", "VARCHAR", "JSON")
_TYPES = {
    "key": _TEXT,
    "value": _TEXT,
    "timestamp": ("BIGINT", "INTEGER"),
    "headers": ('STRUCT("key" VARCHAR, "value" BLOB)[]', 'STRUCT("key" VARCHAR, "value" VARCHAR)[]'),
}
"""Of what is replaced."""
_NODES = {"PROJECTION", "FILTER", "PYTHON_ARROW_SCAN"}
_NONE = pa.RecordBatch.from_pylist([], GIVEN)
_SIDES: tuple[Side, Side] = ("key", "value")


def check(text: str, formats: Formats) -> None:
    """Raises ValueError, which says why it is none that can be run. Without the extra it is not looked at."""
    with suppress(ImportError):
        _check(text, *(getattr(formats, side) == "json" for side in _SIDES))


@lru_cache(maxsize=256)
def _check(text: str, *are_json: bool) -> None:
    import duckdb

    tree, asked = SelectTree(text), connection()
    asked.register(TABLE, _table(_NONE, Origin("", "", 0), tree.columns, are_json))
    try:
        plan = json.loads(asked.execute(f"EXPLAIN (FORMAT JSON) {text}").fetchall()[0][1])
        described = asked.execute(f"DESCRIBE {text}").fetchall()
    except duckdb.Error as error:
        raise ValueError(f"as DuckDB says: {error}".partition("\n")[0]) from None
    types = dict(zip(tree.columns, (row[1] for row in described), strict=True))
    for node in _nodes(plan):
        if node not in _NODES:
            raise ValueError(f"not row by row: {node}")
    for name in sorted(tree.replaced):
        if types[name] not in _TYPES[name]:
            raise ValueError(f"{name} would be {types[name]}, not {' or '.join(_TYPES[name])}")


def _nodes(plan: list[dict[str, Any]]) -> Iterator[str]:
    for node in plan:
        yield node["name"].strip()
        yield from _nodes(node["children"])


def selecting(text: str, formats: Formats, stage: str) -> tuple[Run, str]:
    """The stage, and DuckDB's version. Raises SettingsError, which names the stage."""
    try:
        import duckdb
    except ImportError:
        raise SettingsError(f"{stage} needs the extra sql: install verbatim-kafka[sql]") from None
    try:
        check(text, formats)
        return _Select(text, formats).run, duckdb.__version__
    except ValueError as error:
        raise SettingsError(f"{stage}: {error}") from None


class _Select:
    def __init__(self, text: str, formats: Formats) -> None:
        self._text = text
        self._are_json = tuple(getattr(formats, side) == "json" for side in _SIDES)
        self._tree = SelectTree(text)
        self._connection = connection()
        self._whole = Shape([()])

    def run(self, batch: Batch) -> Done:
        given, failed = shown(batch.rows), dict[int, str]()
        for side, is_json in zip(_SIDES, self._are_json, strict=True):
            if is_json:
                bad = self._whole.look(batch.side(side)).bad
                failed |= {row: f"the {side} {why}" for row, why in bad.items()}
        rows = given.filter(pa.array(~flags(len(given), failed))) if failed else given
        pieces = list(self._made(rows, batch.origin, given, failed)) if len(rows) else []
        return done(batch, given, pieces, failed)

    def _made(
        self, rows: pa.RecordBatch, origin: Origin, given: pa.RecordBatch, failed: dict[int, str]
    ) -> Iterable[pa.RecordBatch]:
        """What comes of rows. `failed`: gets those of `given` that it fails on."""
        import duckdb

        try:
            found = self._selected(rows, origin)
        except (duckdb.OutOfMemoryException, duckdb.FatalException, duckdb.InternalException):
            raise  # of the whole process
        except duckdb.Error as error:
            if len(rows) > 1:
                half = len(rows) // 2
                yield from self._made(rows.slice(0, half), origin, given, failed)
                yield from self._made(rows.slice(half), origin, given, failed)
            else:
                failed[_row(given, rows.column(0)[0].as_py())] = f"raises {type(error).__name__}"
            return
        if "timestamp" in self._tree.replaced:
            timed = pc.fill_null(pc.greater_equal(found.column("timestamp"), -1), False)
            for offset in found.column("offset").filter(pc.invert(timed)).to_pylist():
                failed[_row(given, offset)] = "the timestamp is null, or below -1"
            found = found.filter(timed)
        yield self._fitting(rows, found)

    def _selected(self, rows: pa.RecordBatch, origin: Origin) -> pa.Table:
        self._connection.register(TABLE, _table(rows, origin, self._tree.columns, self._are_json))
        found = self._connection.sql(self._text).to_arrow_table()
        return found.rename_columns(list(self._tree.columns))

    def _fitting(self, rows: pa.RecordBatch, found: pa.Table) -> pa.RecordBatch:
        """Raises Broken."""
        offsets, there = found.column("offset").to_numpy(), rows.column(0).to_numpy()
        must_be_some_of(there, offsets)
        kept = rows if len(offsets) == len(there) else rows.take(pa.array(np.searchsorted(there, offsets)))
        columns = [
            _column(found.column(field.name), field.type) if field.name in self._tree.replaced else column
            for field, column in zip(GIVEN, kept.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=GIVEN)


def _row(given: pa.RecordBatch, offset: int) -> int:
    return int(np.searchsorted(given.column(0).to_numpy(), offset))


def _table(
    rows: pa.RecordBatch, origin: Origin, columns: tuple[str, ...], are_json: tuple[bool, ...]
) -> pa.Table:
    """What the SELECT reads, of the columns that it takes. `are_json`: of key and value."""
    count = len(rows)
    made = {
        "topic": pa.repeat(pa.scalar(origin.topic, pa.string()), count),
        "partition": pa.repeat(pa.scalar(origin.partition, pa.int32()), count),
    }
    for name in columns:
        if name not in made:
            column = rows.column(name)
            is_text = name in _SIDES and are_json[_SIDES.index(name)]
            made[name] = column.cast(pa.string()) if is_text else column
    return pa.table({name: made[name] for name in columns})


def _column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    found = column.combine_chunks()
    if isinstance(found, pa.ChunkedArray):
        found = pa.concat_arrays(found.chunks) if found.num_chunks else pa.array([], found.type)
    if isinstance(found, pa.ExtensionArray):
        found = found.storage
    return as_headers(found) if pa.types.is_list(kind) else found.cast(kind)
