"""Avro as JSON, a record at a time: a function for each type of a schema, made once. Pure.

JSON here is what a reader of JSON expects: a union is what is there, without the name of its branch. `bytes`
and `fixed` are texts, a character for each byte, as Avro's own JSON has them; logical types are what they are
written as.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import NoReturn

import msgspec

from common.pipeline.avro_schema import Type

Read = Callable[[bytes, int], tuple[bytes, int]]
"""A record's bytes and a place there -> the JSON of what is there, and where it ends."""
NUMBERS = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}


class Misfit(Exception):
    """What can't be told in the other format. Shows nothing of a record but places that its schema names."""

    def __init__(self, why: str, *place: str) -> None:
        super().__init__(why)
        self.why, self.place = why, place

    def within(self, name: str) -> Misfit:
        return Misfit(self.why, name, *self.place)


def reader(of: Type, known: dict[Type, Read] | None = None) -> Read:
    """Of records that are as the type says: nothing is checked again. It raises Misfit, and
    UnicodeDecodeError. `known`: those of types that hold each other."""
    known = {} if known is None else known
    if of in known:
        return known[of]
    # A type that holds itself finds this, and what is there by the time that it is called.
    known[of] = lambda data, at: made(data, at)
    made = known[of] = _reader(of, known)
    return made


def _reader(of: Type, known: dict[Type, Read]) -> Read:
    inner = [reader(one, known) for one in of.inner]
    match of.kind:
        case "record":
            return _record_reader(of, inner)
        case "union":
            return _union_reader(inner)
        case "array":
            return _array_reader(inner[0])
        case "map":
            return _map_reader(inner[0])
        case "enum":
            return _enum_reader(of)
        case "fixed":
            return lambda data, at: (_characters(data[at : at + of.size]), at + of.size)
        case "float" | "double":
            return _number_reader(NUMBERS[of.kind])
    return _READERS[of.kind]


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _long(data, at)
    return msgspec.json.encode(str(data[at : at + length], "utf-8")), at + length


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _long(data, at)
    return _characters(data[at : at + length]), at + length


def _whole_number(data: bytes, at: int) -> tuple[bytes, int]:
    value, at = _long(data, at)
    return b"%d" % value, at


_READERS: dict[str, Read] = {
    "string": _string,
    "bytes": _bytes,
    "int": _whole_number,
    "long": _whole_number,
    "boolean": lambda data, at: (b"true" if data[at] else b"false", at + 1),
    "null": lambda data, at: (b"null", at),
}


def _union_reader(inner: list[Read]) -> Read:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        which, at = _long(data, at)
        return inner[which](data, at)

    return read


def _enum_reader(of: Type) -> Read:
    symbols = [msgspec.json.encode(name) for name in of.names]

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        which, at = _long(data, at)
        return symbols[which], at

    return read


def _record_reader(of: Type, inner: list[Read]) -> Read:
    if len(set(of.names)) < len(of.names):
        return refusing("its schema names a field twice")
    fields = [(msgspec.json.encode(name) + b":", one) for name, one in zip(of.names, inner, strict=True)]

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        found = []
        for name, one in fields:
            text, at = one(data, at)
            found.append(name + text)
        return b"{%b}" % b",".join(found), at

    return read


def refusing(why: str) -> Callable[..., NoReturn]:
    """A Read, and a Write, of what is in no record."""

    def refuse(*_: object) -> NoReturn:
        raise Misfit(why)

    return refuse


def _array_reader(element: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        found = []
        count, at = _count(data, at)
        while count:
            for _ in range(count):
                text, at = element(data, at)
                found.append(text)
            count, at = _count(data, at)
        return b"[%b]" % b",".join(found), at

    return read


def _map_reader(element: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        found: dict[bytes, bytes] = {}
        entries = 0
        count, at = _count(data, at)
        while count:
            for _ in range(count):
                length, at = _long(data, at)
                name = msgspec.json.encode(str(data[at : at + length], "utf-8"))
                found[name], at = element(data, at + length)
            entries += count
            count, at = _count(data, at)
        if len(found) < entries:
            raise Misfit("a map has a key twice")
        return b"{%b}" % b",".join(b"%b:%b" % both for both in found.items()), at

    return read


def _number_reader(form: struct.Struct) -> Read:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        (value,) = form.unpack_from(data, at)
        if not math.isfinite(value):
            raise Misfit("a number is none that JSON has")
        return repr(value).encode(), at + form.size

    return read


def _long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), at + 1


def _count(data: bytes, at: int) -> tuple[int, int]:
    """Of the next block."""
    count, at = _long(data, at)
    if count < 0:
        _, at = _long(data, at)
    return abs(count), at


def _characters(data: bytes) -> bytes:
    return msgspec.json.encode(data.decode("latin-1"))
