"""Avro for tests: records of any schema, as fastavro writes and reads them, and such as are none."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import fastavro
from hypothesis import strategies as st

AVRO = {"value": "avro"}
_NAMES = ["a", "b", "x"]


def written(schema: Any, value: Any, schema_id: int = 7) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def read(schema: Any, item: bytes | None) -> Any:
    assert item is not None
    behind = io.BytesIO(item[5:])
    found = fastavro.schemaless_reader(behind, fastavro.parse_schema(schema), None)
    assert not behind.read()
    return found


primitives = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=9),
    "string": st.text(max_size=9) | st.sampled_from(["a", "5", "x" * 200]),
}


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3, union: bool = True) -> Any:
    """A schema, and what makes values of it."""
    kinds = [*primitives, "string", "string"]
    if depth:
        kinds += ["record", "array", "map", "enum", "fixed"] + (["union"] * 3 if union else [])
    kind = draw(st.sampled_from(kinds))
    name = "T"
    if kind in primitives:
        return kind, primitives[kind]
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["a", "B"]}, st.sampled_from(["a", "B"])
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": 3}, st.binary(min_size=3, max_size=3)
    if kind == "union":
        inner, value = draw(schemas(depth - 1, union=False))
        if inner == "null":
            return ["null"], st.none()
        both = ["null", inner] if draw(st.booleans()) else [inner, "null"]
        return both, st.none() | value
    if kind == "record":
        return draw(records(depth))
    inner, value = draw(schemas(depth - 1).filter(lambda one: one[0] != "null" and not empty(one[0])))
    if kind == "array":
        many = draw(st.integers(0, 9)) == 0
        return {"type": "array", "items": inner}, st.lists(
            value, min_size=30 * many, max_size=40 if many else 3
        )
    return {"type": "map", "values": inner}, st.dictionaries(st.sampled_from(_NAMES), value, max_size=3)


def empty(schema: Any) -> bool:
    return schema == "null" or (
        isinstance(schema, dict)
        and schema["type"] == "record"
        and all(empty(f["type"]) for f in schema["fields"])
    )


@st.composite
def records(draw: st.DrawFn, depth: int = 3) -> Any:
    names = draw(st.lists(st.sampled_from(_NAMES), max_size=3, unique=True))
    fields = [(name, *draw(schemas(depth - 1))) for name in names]
    made = {
        "type": "record",
        "name": "T",
        "fields": [{"name": name, "type": inner} for name, inner, _ in fields],
    }
    return made, st.fixed_dictionaries({name: value for name, _, value in fields})


def name_each(schema: Any, numbers: Iterator[int]) -> None:
    """Otherwise than others of the schema."""
    for one in schema if isinstance(schema, list) else []:
        name_each(one, numbers)
    if isinstance(schema, dict):
        if "name" in schema:
            schema["name"] = f"T{next(numbers)}"
        for one in [
            *(f["type"] for f in schema.get("fields", ())),
            schema.get("items"),
            schema.get("values"),
        ]:
            name_each(one, numbers)


@st.composite
def batches(draw: st.DrawFn) -> tuple[dict[int, str], list[Any]]:
    made = {n: draw(records()) for n in range(1, draw(st.integers(2, 3)) + 1)}
    for schema, _ in made.values():
        name_each(schema, itertools.count())
    count = draw(st.sampled_from([1, 3, 20]))
    items: list[bytes | None] = []
    for _ in range(count):
        n = draw(st.sampled_from(list(made)))
        item = written(made[n][0], draw(made[n][1]), n)
        if draw(st.integers(0, 5)) == 0:
            at = draw(st.integers(0, len(item)))
            item = item[:at] + draw(st.binary(max_size=12)) + item[at + draw(st.integers(0, 3)) :]
        items.append(draw(st.sampled_from([None, b"", b"x"])) if draw(st.integers(0, 9)) == 0 else item)
    return {n: json.dumps(schema) for n, (schema, _) in made.items()}, [
        (None, item, None, 0) for item in items
    ]


def of_one(kind: Any) -> dict[int, str]:
    """Texts: of a record with nothing but one of these."""
    return {7: json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})}
