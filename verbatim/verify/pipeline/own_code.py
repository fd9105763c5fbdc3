"""Stages of pipelines that run what is not the pipeline's own, in the second implementation: record by
record, each in a batch of one. Whether it is what a version has run is asked first.

What is shown to a function or a SELECT of JSON that a stage before has put together is written anew.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from verbatim.verify.pipeline.json_tree import Bad, tree, written
from verbatim.verify.pipeline.records import Item, Json, Record, Tree, is_json

_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary())]))
_GIVEN = pa.schema(
    [
        pa.field("offset", pa.int64(), False),
        pa.field("timestamp", pa.int64(), False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", _HEADERS),
    ]
)
_running: dict[str, ModuleType] = {}


def missing(flow: Json, code: Mapping[str, str]) -> str | None:
    """Why a version's flow can't be run here; `code`: what its definition says of what it runs."""
    for stage in flow["stages"]:
        if "python" in stage:
            name = stage["python"].partition(":")[0]
            here = _module_here(name)
            if here != code.get(name):
                return f"its module {name} is {'another one' if here else 'not there'} here"
        elif "sql" in stage:
            try:
                here = importlib.metadata.version("duckdb")
            except importlib.metadata.PackageNotFoundError:
                return "its stage sql needs the extra `sql`"
            if here != code.get("duckdb"):
                return f"its stage sql was run by DuckDB {code.get('duckdb')}, and here is {here}"
    return None


def _module_here(name: str) -> str | None:
    """What tells the module that is here from others; it is what runs from now on."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            return None
        text = Path(spec.origin).read_bytes()
        _running[name] = _loaded(name, spec.origin, text)
    except Exception:  # noqa: BLE001 - whatever its import raises
        return None
    packages = _distributions().get(name.partition(".")[0], [])
    told = [f"{one} {importlib.metadata.version(one)}" for one in sorted(packages)]
    return ", ".join([*told, f"sha256 {hashlib.sha256(text).hexdigest()}"])


@lru_cache(maxsize=1)
def _distributions() -> Mapping[str, list[str]]:
    """Of each package that can be imported; reads what every distribution says of itself."""
    return importlib.metadata.packages_distributions()


@lru_cache(maxsize=64)
def _loaded(name: str, path: str, text: bytes) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[name] = module
    exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102  as a lane does
    return module


def python(text: str, record: Record, flow: Json, keys: Any) -> Record | None:
    """Raises Bad where the function raises."""
    module, _, function = text.partition(":")
    headers = [{"key": name, "value": value} for name, value in record.headers] or None
    key, value = _bytes(record.key), _bytes(record.value)
    row = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": key,
        "value": value,
        "headers": headers,
    }
    if module not in _running:
        _module_here(module)
    called = getattr(_running[module], function)
    try:
        made = called(pa.RecordBatch.from_pylist([row], _GIVEN)).to_pylist()
    except Exception:  # noqa: BLE001 - whatever the operator's function raises
        raise Bad("raises") from None
    if not made:
        return None
    (after,) = made
    given = tuple((header["key"], _plain(header["value"])) for header in after["headers"] or ())
    return replace(
        record,
        timestamp=after["timestamp"],
        key=_same_or(record.key, key, after["key"]),
        value=_same_or(record.value, value, after["value"]),
        headers=given,
    )


def _bytes(item: Item) -> bytes | None:
    return written(item.node).encode() if isinstance(item, Tree) else item


def _plain(item: str | bytes | None) -> bytes | None:
    return item.encode() if isinstance(item, str) else item


def _same_or(before: Item, given: bytes | None, after: str | bytes | None) -> Item:
    """What it has let be is still the tree that it was."""
    return before if given == _plain(after) else _plain(after)


@lru_cache(maxsize=64)
def _select(text: str) -> tuple[Any, tuple[str, ...]]:
    """A connection for it, and the columns that it replaces."""
    import duckdb

    asked = duckdb.connect(":memory:")
    told = json.loads(asked.execute("SELECT json_serialize_sql(?)", [text]).fetchall()[0][0])
    (star,) = told["statements"][0]["node"]["select_list"]
    asked.execute("SET enable_external_access = false")
    asked.execute("SET TimeZone = 'UTC'")
    asked.execute("SET threads = 1")
    asked.execute("PRAGMA disable_optimizer")
    return asked, tuple(one["key"].lower() for one in star["replace_list"])


def sql(text: str, record: Record, flow: Json, keys: Any) -> Record | None:
    """Raises Bad where DuckDB raises."""
    import duckdb

    asked, replaced = _select(text)
    row: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    row |= {"timestamp": record.timestamp}
    kinds = [pa.string(), pa.int32(), pa.int64(), pa.int64()]
    for side in ("key", "value"):
        item = _bytes(record.side(side))
        if is_json(side, flow) and item is not None:
            tree(item)
        row[side] = item.decode() if is_json(side, flow) and item is not None else item
        kinds.append(pa.string() if is_json(side, flow) else pa.binary())
    row["headers"] = [{"key": name, "value": value} for name, value in record.headers] or None
    schema = pa.schema([*zip(row, [*kinds, _HEADERS], strict=True)])
    asked.register("records", pa.Table.from_pylist([row], schema))
    try:
        found = asked.execute(text).fetchall()
    except duckdb.Error:
        raise Bad("raises") from None
    if not found:
        return None
    after = dict(zip(row, found[0], strict=True))
    if "timestamp" in replaced and (after["timestamp"] is None or after["timestamp"] < -1):
        raise Bad("no time")
    for name in replaced:
        if name == "headers":
            given = tuple((one["key"], _plain(one["value"])) for one in after[name] or ())
            record = replace(record, headers=given)
        elif name == "timestamp":
            record = replace(record, timestamp=after[name])
        else:
            record = record.with_side(name, _same_or(record.side(name), _plain(row[name]), after[name]))
    return record
