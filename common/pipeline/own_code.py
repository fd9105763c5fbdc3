"""The stage `python`: a function of the operator's, from batch to batch. Its module's text is read, hashed
and run here, so that what runs is what the pipeline's definition names.

What a function gets and gives back is `GIVEN`. What it raises is known by its type, never by its words, which
may be a record's. A batch on which it raises is cut in halves, down to the records that it fails on. What is
no such batch, or has other rows than it was given, is a mistake in the function and not in a record.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import SettingsError
from common.kafka.wire.records import HEADERS
from common.pipeline.batch import Batch, Broken, Done, Run, flags
from common.pipeline.columns import Flags
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
Function = Callable[[pa.RecordBatch], Any]
_TEXTS = (pa.string(), pa.large_string(), pa.large_binary())
_LEAST_TIMESTAMP = -1


@dataclass(frozen=True)
class Module:
    """A module as it is here. `identity`: of its text, and of the package that it is of."""

    identity: str
    loaded: ModuleType


@lru_cache(maxsize=64)
def _loaded(name: str, path: str, text: bytes) -> ModuleType:
    """Not by an import, which would take what it has compiled before, or imported, for the text."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    code: CodeType = compile(text, path, "exec", dont_inherit=True)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)  # noqa: S102  what the pipeline's file asks for
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _text(name: str) -> tuple[str, bytes]:
    """Where it lies, and its text. Raises ImportError, OSError, ValueError."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ImportError("there is no such module with a text in Python")
    return spec.origin, spec.loader.get_data(spec.origin)  # type: ignore[union-attr]


def source_of(name: str) -> str | None:
    """The file that its text is in, if there is one."""
    try:
        return _text(name)[0]
    except (ImportError, OSError, ValueError, AttributeError):
        return None


def module(name: str, stage: str) -> Module:
    """Raises SettingsError, which names the stage."""
    try:
        path, text = _text(name)
        loaded = _loaded(name, path, text)
    except Exception as error:  # noqa: BLE001 - whatever its import raises
        what = str(error) if isinstance(error, ImportError) else type(error).__name__
        raise SettingsError(f"{stage}: module {name} can't be imported here: {what}") from None
    return Module(f"{_package(name)}sha256 {sha256(text).hexdigest()}", loaded)


@lru_cache(maxsize=64)
def _package(name: str) -> str:
    top = name.partition(".")[0]
    try:
        found = sorted(packages_distributions().get(top, ()))
        return "".join(f"{one} {version(one)}, " for one in found)
    except PackageNotFoundError:
        return ""


def running(code: Module, function: str, stage: str) -> Run:
    """Raises SettingsError where the module has no such function."""
    called = getattr(code.loaded, function, None)
    if not callable(called):
        raise SettingsError(f"{stage}: module {code.loaded.__name__} has no function {function}")

    def run(batch: Batch) -> Done:
        given = pa.RecordBatch.from_arrays([batch.rows.column(field.name) for field in GIVEN], schema=GIVEN)
        failed: dict[int, str] = {}
        return _done(batch, given, list(_made(called, given, 0, failed)), failed)

    return run


def _made(
    called: Function, given: pa.RecordBatch, first: int, failed: dict[int, str]
) -> Iterable[pa.RecordBatch]:
    """What comes of these rows, the first of which is the batch's row `first`."""
    try:
        made = called(given)
    except MemoryError:
        raise  # of the whole process
    except Exception as error:  # noqa: BLE001 - the operator's
        if len(given) == 1:
            failed[first] = f"raises {type(error).__name__}"
            return
        half = len(given) // 2
        yield from _made(called, given.slice(0, half), first, failed)
        yield from _made(called, given.slice(half), first + half, failed)
        return
    yield fitting(given, made)


def fitting(given: pa.RecordBatch, made: Any) -> pa.RecordBatch:
    """What a function has made, of `GIVEN`. Raises Broken for what no function may make."""
    try:
        found = _of_schema(made)
        found.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise Broken(f"gives back what is no batch: {type(error).__name__}") from None
    offsets, there = found.column(0).to_numpy(), given.column(0).to_numpy()
    if len(offsets) > 1 and not (np.diff(offsets) > 0).all():
        raise Broken("gives rows back in another order, or one twice")
    if not np.isin(offsets, there).all():
        raise Broken("gives back an offset that it was not given")
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
            column = _headers(column)
        if column.type != field.type:
            raise Broken(f"gives back {field.name} as {column.type}, not as {field.type}")
        if column.null_count and not field.nullable:
            raise Broken(f"gives back no {field.name}")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=GIVEN)


def _headers(column: pa.Array) -> pa.Array:
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


def _done(batch: Batch, given: pa.RecordBatch, pieces: list[pa.RecordBatch], failed: dict[int, str]) -> Done:
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
