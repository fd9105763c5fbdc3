"""JSON as Avro, a record at a time: a function for each type of a schema, made once. Pure. JSON is as
common/pipeline/json_of_avro.py makes it."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any

from common.kafka.wire.record_by_record import varint
from common.pipeline.avro_schema import MOST_DEEP, Type
from common.pipeline.json_of_avro import NUMBERS, Misfit, refusing

Write = Callable[[Any, int], bytes]
"""A value, as json.loads has it, and how many types it lies in -> Avro."""
_INT, _LONG = 1 << 31, 1 << 63
_HOLD: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    **dict.fromkeys(("string", "bytes", "fixed", "enum"), (str,)),
    "array": (list,),
    **dict.fromkeys(("record", "map"), (dict,)),
}
"""What each may hold, as json.loads has it."""
_ALL = {kind: None for kinds in _HOLD.values() for kind in kinds}


def loaded(text: bytes) -> Any:
    """JSON, as a Writer takes it. Raises ValueError and RecursionError, and Misfit for a name that is there
    twice."""
    return json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_constant)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Misfit("has a name twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(name)


class Writer:
    """Of one type."""

    def __init__(self, of: Type) -> None:
        self._known: dict[Type, Write] = {}
        self._tried: dict[tuple[int, int, int], bytes | Misfit] = {}
        self._write = self._of(of)

    def write(self, value: Any) -> bytes:
        """Raises Misfit."""
        self._tried.clear()
        return self._write(value, 0)

    def _of(self, of: Type) -> Write:
        if of not in self._known:
            self._known[of] = lambda value, depth: made(value, depth)
            made = self._known[of] = self._made(of)
        return self._known[of]

    def _made(self, of: Type) -> Write:
        inner = [self._of(one) for one in of.inner]
        if of.kind == "record":
            return _record_writer(of, inner)
        if of.kind == "union":
            return self._union(of, inner)
        if of.kind == "array":
            return _array_writer(inner[0])
        if of.kind == "map":
            return _map_writer(inner[0])
        return _scalar_writer(of)

    def _union(self, of: Type, inner: list[Write]) -> Write:
        """The first branch that can hold it. What holds much is tried once by each, or unions in unions would
        take for ever."""
        branches: dict[type, list[tuple[bytes, Write]]] = {}
        for number, (one, write) in enumerate(zip(of.inner, inner, strict=True)):
            for kind in _HOLD.get(one.kind, _ALL):
                branches.setdefault(kind, []).append((varint(number), write))
        tried = self._tried

        def written(value: Any, depth: int) -> bytes:
            _must_go_deeper(depth)
            known = isinstance(value, dict | list)
            place = (id(value), id(of), depth)
            if known and place in tried:
                found = tried[place]
            else:
                found = Misfit("fits no type of its union")
                for number, write in branches.get(type(value), ()):
                    try:
                        found = number + write(value, depth + 1)
                        break
                    except Misfit:
                        pass
                if known:
                    tried[place] = found
            if isinstance(found, Misfit):
                raise found
            return found

        return written


def _must_go_deeper(depth: int) -> None:
    if depth >= MOST_DEEP:
        raise Misfit("is nested too deeply")


def _record_writer(of: Type, inner: list[Write]) -> Write:
    if len(set(of.names)) < len(of.names):
        return refusing("its schema names a field twice")
    fields = list(zip(of.names, inner, strict=True))
    defaults = of.defaults

    def write(value: Any, depth: int) -> bytes:
        if not isinstance(value, dict):
            raise Misfit("is no object")
        if fields:
            _must_go_deeper(depth)
        found = []
        count = len(value)
        for name, one in fields:
            if name in value:
                count -= 1
                item = value[name]
            elif name in defaults:
                item = defaults[name]
            else:
                raise Misfit("is not there, and has no default", name)
            try:
                found.append(one(item, depth + 1))
            except Misfit as error:
                raise error.within(name) from None
        if count:
            raise Misfit("has a field that the schema has not")
        return b"".join(found)

    return write


def _array_writer(element: Write) -> Write:
    def write(value: Any, depth: int) -> bytes:
        if not isinstance(value, list):
            raise Misfit("is no array")
        if not value:
            return b"\0"
        _must_go_deeper(depth)
        try:
            items = b"".join([element(one, depth + 1) for one in value])
        except Misfit as error:
            raise error.within("[*]") from None
        return varint(len(value)) + items + b"\0"

    return write


def _map_writer(element: Write) -> Write:
    def write(value: Any, depth: int) -> bytes:
        if not isinstance(value, dict):
            raise Misfit("is no object")
        if not value:
            return b"\0"
        _must_go_deeper(depth)
        try:
            found = [_sized(_utf8(name)) + element(one, depth + 1) for name, one in value.items()]
        except Misfit as error:
            raise error.within("[*]") from None
        return varint(len(value)) + b"".join(found) + b"\0"

    return write


def _scalar_writer(of: Type) -> Write:
    match of.kind:
        case "fixed":
            return _fixed_writer(of.size)
        case "enum":
            return _enum_writer(of)
        case "int" | "long":
            return _whole_writer(_INT if of.kind == "int" else _LONG)
        case "float" | "double":
            return _number_writer(NUMBERS[of.kind])
    return _WRITERS[of.kind]


def _null(value: Any, depth: int) -> bytes:
    if value is not None:
        raise Misfit("is not null")
    return b""


_WRITERS: dict[str, Write] = {
    "string": lambda value, depth: _sized(_utf8(_of(str, value, "text"))),
    "bytes": lambda value, depth: _sized(_latin(_of(str, value, "text"))),
    "boolean": lambda value, depth: b"\1" if _of(bool, value, "boolean") else b"\0",
    "null": _null,
}


def _fixed_writer(size: int) -> Write:
    def write(value: Any, depth: int) -> bytes:
        if len(found := _latin(_of(str, value, "text"))) != size:
            raise Misfit("has another length than its schema says")
        return found

    return write


def _enum_writer(of: Type) -> Write:
    numbers = {name: varint(number) for number, name in enumerate(of.names)}

    def write(value: Any, depth: int) -> bytes:
        if (found := numbers.get(_of(str, value, "text"))) is None:
            raise Misfit("is no symbol of its enum")
        return found

    return write


def _whole_writer(limit: int) -> Write:
    def write(value: Any, depth: int) -> bytes:
        if not -limit <= _of(int, value, "whole number") < limit:
            raise Misfit("is too large")
        return varint(value)

    return write


def _number_writer(form: struct.Struct) -> Write:
    def write(value: Any, depth: int) -> bytes:
        if type(value) not in (int, float):
            raise Misfit("is no number")
        try:
            found = form.pack(float(value))
        except OverflowError:
            raise Misfit("is too large") from None
        (kept,) = form.unpack(found)
        if type(value) is int and kept != value:
            raise Misfit("has more digits than its type keeps")
        if not math.isfinite(kept):
            raise Misfit("is too large")
        return found

    return write


def _of(kind: type, value: Any, word: str) -> Any:
    """Raises Misfit."""
    if type(value) is not kind:
        raise Misfit(f"is no {word}")
    return value


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Misfit("has half a surrogate pair") from None


def _latin(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise Misfit("has a character that stands for no byte") from None


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data
