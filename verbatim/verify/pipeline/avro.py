"""Avro for the second implementation of pipelines: a record read by its schema, one thing after the other.
Pure, and shares nothing with what it verifies."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from verbatim.verify.pipeline.json_tree import Bad, Members, Number

Texts = Mapping[tuple[str, int], tuple[str, bool]]
"""Context and id at the source -> text, and whether it refers to others."""
FRONT = 5
DEEP = 64
BUILT = ("array", "enum", "error", "fixed", "map", "record")
SIMPLE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


@dataclass(frozen=True)
class Thing:
    """What is at `place`: names, and None for an element; from `start` on with the number of its branch.
    `null`: the number of its union's null."""

    place: tuple[str | None, ...]
    kind: str
    value: Any
    start: int
    end: int
    branch: int | None
    null: int | None
    logical: bool


def schema_of(item: Any) -> int | None:
    """The id in front; None: there is none."""
    framed = isinstance(item, bytes) and len(item) >= FRONT and item[0] == 0 and item[1:FRONT] != bytes(4)
    return int.from_bytes(item[1:FRONT], "big") if framed else None


def schema(texts: Texts, context: str, schema_id: int) -> tuple[Any, dict[str, Any]]:
    """One that is known, and by their full names all in it that have one. Raises Bad."""
    text, refers = texts[context, schema_id]
    if refers or not text:
        raise Bad("no schema to read by")
    try:
        return _parsed(text)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise Bad("no schema") from None


def things(item: bytes, texts: Texts, context: str) -> list[Thing]:
    """Each behind what is in it. Raises Bad."""
    schema_id = schema_of(item)
    if schema_id is None:
        raise Bad("no id")
    whole, names = schema(texts, context, schema_id)
    reader = _Reader(item)
    try:
        reader.read(whole, names, (), 0, FRONT, None, None)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error, RecursionError):
        raise Bad("ill-formed") from None
    if reader.at != len(item):
        raise Bad("bytes left over")
    return reader.found


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[Any, dict[str, Any]]:
    """A schema, and by their full names all that have one."""
    names: dict[str, Any] = {}
    given = json.loads(text)
    json.dumps(given, ensure_ascii=False).encode()
    schema = _named(given, "", names, 0)
    known: dict[str, int] = {}
    for name in names:
        _fields(name, names, (), known)
    _must_end(schema, names, set())
    return schema, names


def _named(given: Any, space: str, names: dict[str, Any], depth: int) -> Any:
    """With full names, each schema that has one in `names`; JSON otherwise as it is."""
    if depth > DEEP:
        raise Bad("too deep")
    if isinstance(given, list):
        return [_named(one, space, names, depth + 1) for one in given]
    if isinstance(given, str):
        if given in SIMPLE:
            return {"type": given}
        full = f"{space}.{given}" if space and "." not in given else given
        if full in names:
            return full
        return given if given in names else names[given]
    kind = given["type"]
    if kind not in BUILT:
        inner = _named(kind, space, names, depth + 1)
        return {**inner, "logicalType": 1} if isinstance(inner, dict) and "logicalType" in given else inner
    if kind in ("array", "map"):
        name = "items" if kind == "array" else "values"
        return {"type": kind, "of": _named(given[name], space, names, depth + 1)}
    full = given["name"]
    if "." not in full:
        space = given.get("namespace", space) or ""
        full = f"{space}.{full}" if space else full
    made: dict[str, Any] = {"type": "record" if kind == "error" else kind}
    first = names.setdefault(full, made)
    if kind == "enum":
        made["symbols"] = list(map(str, given["symbols"]))
    elif kind == "fixed":
        made["size"] = int(given["size"])
        if made["size"] < 0:
            raise Bad("size")
    else:
        within = full.rpartition(".")[0]
        made["fields"] = [
            (str(one["name"]), _named(one["type"], within, names, depth + 1)) for one in given["fields"]
        ]
        made["defaults"] = {str(one["name"]): one["default"] for one in given["fields"] if "default" in one}
    if first != made:
        raise Bad("defined twice")
    return full


def _fields(schema: Any, names: dict[str, Any], within: tuple[str, ...], known: dict[str, int]) -> int:
    """How many fields a record has with those in it: none holds itself, and there is an end. Raises Bad."""
    if not isinstance(schema, str) or "fields" not in names[schema]:
        return 1
    if schema in within:
        raise Bad("holds itself")
    if schema not in known:
        fields = names[schema]["fields"]
        known[schema] = 1 + sum(_fields(one, names, (*within, schema), known) for _, one in fields)
    if known[schema] > 10_000:
        raise Bad("too many fields")
    return known[schema]


def _must_end(schema: Any, names: dict[str, Any], seen: set[str]) -> None:
    """No array is of what takes no bytes. Raises Bad."""
    if isinstance(schema, str):
        if schema in seen:
            return
        seen.add(schema)
        schema = names[schema]
    if isinstance(schema, list):
        inner = schema
    else:
        inner = [one for _, one in schema.get("fields", ())] + ([schema["of"]] if "of" in schema else [])
        if schema["type"] == "array" and _is_nothing(schema["of"], names, ()):
            raise Bad("an array of nothing")
    for one in inner:
        _must_end(one, names, seen)


def _is_nothing(schema: Any, names: dict[str, Any], within: tuple[str, ...]) -> bool:
    if isinstance(schema, str):
        if schema in within:
            return True
        within, schema = (*within, schema), names[schema]
    if isinstance(schema, list):
        return False
    if schema["type"] == "record":
        return all(_is_nothing(one, names, within) for _, one in schema["fields"])
    return bool(schema["type"] == "null" or schema.get("size") == 0)


class _Reader:
    def __init__(self, item: bytes) -> None:
        self.item, self.at = item, FRONT
        self.found: list[Thing] = []

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.item) - self.at:
            raise Bad("cut off")
        self.at += count
        return self.item[self.at - count : self.at]

    def long(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
            if shift == 70:
                raise Bad("no end")
        if value >= 2**64:
            raise Bad("too large")
        return value // 2 if value % 2 == 0 else -(value // 2) - 1

    def read(
        self, schema: Any, names: dict[str, Any], place: tuple[str | None, ...], depth: int,
        start: int, branch: int | None, null: int | None,
    ) -> None:  # fmt: skip
        if depth > DEEP:
            raise Bad("too deep")
        schema = names[schema] if isinstance(schema, str) else schema
        if isinstance(schema, list):
            which = self.long()
            if not 0 <= which < len(schema):
                raise Bad("no such branch")
            nulls = [n for n, one in enumerate(schema) if isinstance(one, dict) and one["type"] == "null"]
            self.read(schema[which], names, place, depth + 1, start, which, nulls[0] if nulls else None)
            return
        kind = schema["type"]
        value: Any = None
        if kind == "record":
            value = Members()
            for name, one in schema["fields"]:
                self.read(one, names, (*place, name), depth + 1, self.at, None, None)
        elif kind in ("array", "map"):
            value = [] if kind == "array" else Members()
            for _ in self.counted():
                name = self.text(self.take(self.long())) if kind == "map" else None
                self.read(schema["of"], names, (*place, name), depth + 1, self.at, None, None)
        else:
            value = self.scalar(kind, schema)
        logical = "logicalType" in schema
        self.found.append(Thing(place, kind, value, start, self.at, branch, null, logical))

    def scalar(self, kind: str, schema: Any) -> Any:
        value: Any = None
        if kind in ("string", "bytes"):
            value = self.take(self.long())
        elif kind in ("int", "long"):
            value = Number(str(self.long()))
        elif kind == "enum":
            which = self.long()
            if not 0 <= which < len(schema["symbols"]):
                raise Bad("no such symbol")
            value = schema["symbols"][which]
        elif kind == "boolean":
            value = {b"\0": False, b"\1": True}[self.take(1)]
        elif kind in ("float", "double"):
            size, form = (4, "<f") if kind == "float" else (8, "<d")
            (number,) = struct.unpack(form, self.take(size))
            value = Number(repr(number)) if math.isfinite(number) else Members()
        elif kind == "fixed":
            value = self.take(schema["size"])
        return value

    def counted(self) -> Iterator[None]:
        while count := self.long():
            if count < 0:
                count = -count
                self.long()
            if count > len(self.item) - self.at:
                raise Bad("more elements than bytes")
            for _ in range(count):
                yield

    @staticmethod
    def text(given: bytes) -> str:
        return given.decode("utf-8", "surrogateescape")


def looked_up(found: list[Thing], steps: list[Any]) -> list[Any]:
    """What conditions find at a path of names and None. Raises Bad."""
    return [_compared(thing) for thing in found if thing.place == tuple(steps)]


def _compared(thing: Thing) -> Any:
    if thing.kind == "string":
        return _must_be_text(thing.value)
    return Members() if thing.kind in ("bytes", "fixed") else thing.value


def _must_be_text(given: bytes) -> str:
    try:
        return given.decode()
    except UnicodeDecodeError:
        raise Bad("no UTF-8") from None


def must_fit(found: list[Thing], steps: list[Any]) -> None:
    """Raises Bad where the path goes on in what it can't go on in."""
    for thing in found:
        at = len(thing.place)
        if at < len(steps) and thing.place == tuple(steps[:at]):
            fits = ("array", "null") if steps[at] is None else ("record", "map", "null")
            if thing.kind not in fits:
                raise Bad("something else")


def masked(item: bytes, found: list[Thing], hides: list[tuple[list[Any], Any, Any]]) -> bytes:
    """`hides`: a path, a method and what it makes of a text. Raises Bad."""
    edits = []
    for steps, method, hide in hides:
        must_fit(found, steps)
        for thing in found:
            if thing.place != tuple(steps) or thing.kind == "null":
                continue
            if thing.kind == "string":
                _must_be_text(thing.value)
            edits.append((thing.start, thing.end, _hidden(thing, method, hide)))
    for start, end, new in sorted(edits, reverse=True):
        item = item[:start] + new + item[end:]
    return item


def _hidden(thing: Thing, method: Any, hide: Any) -> bytes:
    if method == "null":
        if thing.null is None:
            raise Bad("can't be null")
        return long(thing.null)
    kinds = ("string",) if method == "encrypt" else ("string", "bytes")
    if thing.kind not in kinds or thing.logical:
        raise Bad("can't hold it")
    new: bytes = hide(thing.value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return (b"" if thing.branch is None else long(thing.branch)) + long(len(new)) + new


def long(value: int) -> bytes:
    """As it is written."""
    value, found = 2 * value if value >= 0 else -2 * value - 1, b""
    while value > 127:
        found += bytes([value % 128 + 128])
        value //= 128
    return found + bytes([value])
