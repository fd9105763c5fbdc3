"""What conditions and masks find in Avro: records of many schemas in one column, each with its schema's id in
front. Pure; who knows the texts of schemas is elsewhere.

Conditions compare what they find as if it were JSON: strings and symbols of enums as text, numbers by their
value. Bytes, fixed, and floats that are no numbers are there, and equal nothing.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np

from common.pipeline.avro_fields import Fields, Node, Walk
from common.pipeline.avro_schema import NotWalked, Type, parsed
from common.pipeline.batch import Awaited, Batch, Done, Run, flags
from common.pipeline.json_fields import MISPLACED, NO_UTF8, Found
from common.pipeline.paths import Side, Step
from common.pipeline.schema_ids import FRAMED, in_front

ILL = "is not as its schema says"
UNFRAMED = "has no schema's id in front of it (docs: guides/schemas#ids-in-records)"
_NOTHING_EQUAL = b"[]"


class Written(Protocol):
    """What the map of schemas says of one."""

    @property
    def avro(self) -> str | None: ...
    @property
    def references(self) -> Sequence[object]: ...


Texts = Callable[[str, int], Written | None]
"""Context and id of a schema at the source -> its text and references; None: not known yet. An answer
stays."""


def no_texts(context: str, schema_id: int) -> Written | None:
    """Texts of whoever knows none: all waits."""
    return None


class Schemas:
    """Those of a context, ready to read by."""

    def __init__(self, texts: Texts, context: str) -> None:
        self._texts, self.context = texts, context
        self._ready: dict[int, Type | str] = {}

    def of(self, schema_id: int) -> Type | str | None:
        """Why records can't be read by it, where that is so; None: it is not known yet."""
        if schema_id not in self._ready:
            found = self._texts(self.context, schema_id)
            if found is None:
                return None
            self._ready[schema_id] = _ready(found)
        return self._ready[schema_id]


def _ready(found: Written) -> Type | str:
    if not found.avro:
        return "is none of Avro's, or longer than what is written down"
    if found.references:
        return "refers to others"
    try:
        return parsed(found.avro)
    except NotWalked as error:
        return str(error)


def waiting(schemas: Schemas, sides: list[Side]) -> Run:
    """Records wait whose schemas are not known yet, whatever stages look at."""

    def run(batch: Batch) -> Done:
        done = Done(batch, flags(len(batch)))
        for side in sides:
            rows, _, ids = in_front(batch.side(side))
            for schema_id in np.unique(ids).tolist():
                if schemas.of(schema_id) is None:
                    why = f"schema {schema_id} of the {side} is not written down yet"
                    done.let_wait(rows[ids == schema_id], why, Awaited(schemas.context, schema_id, text=True))
        return done

    return run


@dataclass(slots=True)
class Seen:
    """`fields` of sound rows, by schema and path. `bad`: row -> why it can't be looked at; `misplaced`: rows
    where a path goes on in what is nothing that it could go on in."""

    fields: list[Fields] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    misplaced: list[int] = field(default_factory=list)

    @property
    def failed(self) -> dict[int, str]:
        """For a stage that changes what it finds."""
        return dict.fromkeys(self.misplaced, MISPLACED) | self.bad


class AvroShape:
    """What is looked for in Avro: paths, each the steps from its root on."""

    def __init__(self, paths: Sequence[Sequence[Step]]) -> None:
        self._asked, self._count = Node.of(paths), len(paths)

    def look(self, batch: Batch, side: Side) -> Seen:
        """At all rows that are not null."""
        column, schemas = batch.side(side), batch.schemas
        assert schemas is not None
        rows, _, ids = in_front(column)
        seen = Seen()
        if len(rows) < len(column.rows):
            seen.bad = dict.fromkeys(np.setdiff1d(np.array(column.rows), rows).tolist(), UNFRAMED)
        walk = Walk(column.data, column.bounds[1:])
        for schema_id in np.unique(ids).tolist():
            of, some = schemas.of(schema_id), rows[ids == schema_id]
            if isinstance(of, Type):
                walk.walk(of, self._asked, some, column.bounds[some] + FRAMED)
            else:
                why = f"has schema {schema_id}, which {of or 'is not written down'}"
                seen.bad |= dict.fromkeys(some.tolist(), why)
        seen.bad |= dict.fromkeys(np.flatnonzero(walk.bad).tolist(), ILL)
        seen.misplaced = np.flatnonzero(walk.misplaced & ~walk.bad).tolist()
        seen.fields = [one.sound(walk.bad) for one in walk.found] if walk.bad.any() else walk.found
        return seen

    def found(self, batch: Batch, side: Side) -> tuple[list[Found], dict[int, str]]:
        """Of each path what is there, as JSON; and rows that are bad."""
        seen = self.look(batch, side)
        data = batch.side(side).data
        rows: list[list[int]] = [[] for _ in range(self._count)]
        jsons: list[list[bytes]] = [[] for _ in range(self._count)]
        for one in seen.fields:
            make = _JSON.get(one.type.kind, _other)
            for row, begin, end in one.places():
                try:
                    jsons[one.path].append(make(bytes(data[begin:end]), one.type))
                    rows[one.path].append(row)
                except UnicodeDecodeError:
                    seen.bad[row] = NO_UTF8
        return [Found(*both) for both in zip(rows, jsons, strict=True)], seen.bad


def long_of(data: bytes) -> int:
    value = 0
    for group, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * group
    return (value >> 1) ^ -(value & 1)


def _string(data: bytes, of: Type) -> bytes:
    return msgspec.json.encode(str(data, "utf-8"))


def _float(data: bytes, of: Type) -> bytes:
    (value,) = struct.unpack("<f" if of.kind == "float" else "<d", data)
    return repr(value).encode() if math.isfinite(value) else _NOTHING_EQUAL


def _other(data: bytes, of: Type) -> bytes:
    return _NOTHING_EQUAL


_JSON: dict[str, Callable[[bytes, Type], bytes]] = {
    "null": lambda data, of: b"null",
    "boolean": lambda data, of: b"true" if data == b"\1" else b"false",
    "int": lambda data, of: b"%d" % long_of(data),
    "long": lambda data, of: b"%d" % long_of(data),
    "enum": lambda data, of: msgspec.json.encode(of.names[long_of(data)]),
    "float": _float,
    "double": _float,
    "string": _string,
}
