"""Avro's schemas, ready to walk records by: types by number of branch, field and element. Pure.

Logical types are what they are written as. A schema that refers to others is refused, as their texts are not
at hand, and so are arrays and maps of what takes no bytes: a few bytes would say that there are 2^60.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

PRIMITIVE = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "enum", "fixed"})
MOST_DEEP = 64
"""Types in one another: of a record that goes deeper a stage makes nothing."""


MOST_FIELDS = 10_000
"""Of a record, with those of records in it: such as hold each other twice may be without end."""


class NotWalked(Exception):
    """A schema that records can't be read by, why."""


@dataclass(eq=False, slots=True)
class Type:
    """`inner`: of a record its fields' types, of a union its branches, of an array or a map the elements'.
    `names`: of a record its fields', of an enum its symbols. `defaults`: of its fields, as JSON. `size`: of a
    fixed. `logical`: whether it stands for something else."""

    kind: str
    inner: list[Type] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    defaults: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    logical: bool = False


def parsed(text: str) -> Type:
    """Raises NotWalked."""
    named: dict[str, Type] = {}
    try:
        given = json.loads(text)
        # Half a surrogate pair is in no name.
        json.dumps(given, ensure_ascii=False).encode()
        found = _type(given, "", named, 0)
        extents: dict[int, int] = {}
        for one in named.values():
            _extent(one, extents, ())
        _refuse_nothing(found, set())
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise NotWalked("is none of Avro's") from None
    return found


def _extent(of: Type, known: dict[int, int], within: tuple[int, ...]) -> int:
    """How many fields a record has, with those of records in it. Raises NotWalked."""
    if of.kind != "record":
        return 1
    if id(of) in within:
        raise NotWalked("has a record that holds itself")
    if id(of) not in known:
        known[id(of)] = 1 + sum(_extent(inner, known, (*within, id(of))) for inner in of.inner)
    if known[id(of)] > MOST_FIELDS:
        raise NotWalked("has too many fields")
    return known[id(of)]


def _type(given: Any, space: str, named: dict[str, Type], depth: int) -> Type:
    if depth > MOST_DEEP:
        raise NotWalked("is nested too deeply")
    if isinstance(given, list):
        return Type("union", [_type(one, space, named, depth + 1) for one in given])
    if isinstance(given, str):
        if given in PRIMITIVE:
            return Type(given)
        found = named.get(_full(given, space)) or named.get(given)
        if found is None:
            raise NotWalked("refers to another one")
        return found
    kind = given["type"]
    if not isinstance(kind, str) or kind not in ("record", "error", "enum", "fixed", "array", "map"):
        found = _type(kind, space, named, depth + 1)
        if "logicalType" in given and found.kind in PRIMITIVE:
            found.logical = True
        return found
    if kind in ("array", "map"):
        elements = given["items" if kind == "array" else "values"]
        return Type(kind, [_type(elements, space, named, depth + 1)])
    return _definition(given, kind, space, named, depth)


def _definition(given: Any, kind: str, space: str, named: dict[str, Type], depth: int) -> Type:
    """A name may be defined again, if it says the same (Avro 1.12)."""
    name = _full(given["name"], given.get("namespace") or ("" if "namespace" in given else space))
    found = Type("record" if kind == "error" else kind)
    first = named.setdefault(name, found)
    if kind == "fixed":
        found.size = int(given["size"])
        if found.size < 0:
            raise ValueError(found.size)
    elif kind == "enum":
        found.names = [str(symbol) for symbol in given["symbols"]]
    else:
        for one in given["fields"]:
            found.names.append(str(one["name"]))
            if "default" in one:
                found.defaults[found.names[-1]] = one["default"]
            found.inner.append(_type(one["type"], name.rpartition(".")[0], named, depth + 1))
    if first is not found and _said(first) != _said(found):
        raise NotWalked(f"defines {name} twice")
    return first


def _said(of: Type) -> list[Any]:
    """What a definition says; of types in it that have names, which ones."""
    inner = [id(one) if one.kind in NAMED else _said(one) for one in of.inner]
    return [of.kind, of.names, of.defaults, of.size, of.logical, inner]


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _refuse_nothing(found: Type, seen: set[int]) -> None:
    if id(found) in seen:
        return
    seen.add(id(found))
    if found.kind == "array" and _takes_nothing(found.inner[0], ()):
        raise NotWalked("has an array of what takes no bytes")
    for inner in found.inner:
        _refuse_nothing(inner, seen)


def _takes_nothing(of: Type, within: tuple[Type, ...]) -> bool:
    """Whether nothing is ever written of it. A record within itself has no end."""
    if of.kind == "record":
        return of in within or all(_takes_nothing(inner, (*within, of)) for inner in of.inner)
    return of.kind == "null" or (of.kind == "fixed" and not of.size)
