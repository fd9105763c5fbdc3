"""The stage `convert` in the second implementation: a tree of JSON from what is found in Avro, and Avro from
a tree. Pure, and shares nothing with what it verifies."""

from __future__ import annotations

import math
import struct
from typing import Any

from verbatim.verify.pipeline import avro
from verbatim.verify.pipeline.json_tree import Bad, Members, Number, planted
from verbatim.verify.pipeline.records import Json, Record, Tree, avro_of, context_of, node_of
from verbatim.verify.pipeline.schema_ids import Waits


def converted(options: Json, record: Record, flow: Json) -> tuple[Record, Json]:
    """The record, and what the flow is behind the stage. Raises Bad, Waits."""
    side = options.get("side", "value")
    item, behind = record.side(side), {**flow, side: options["to"]}
    if item is None:
        return record, behind
    if options["to"] == "json":
        assert isinstance(item, bytes)
        return record.with_side(side, Tree(_tree(item, avro_of(item, record, flow)))), behind
    schema_id = options["id"]
    if (context_of(flow), schema_id) not in record.texts:
        raise Waits
    schema, names = avro.schema(record.texts, context_of(flow), schema_id)
    made = _Writing(names).written(node_of(item), schema, 0)
    return record.with_side(side, b"\0" + schema_id.to_bytes(4, "big") + made), behind


def _tree(item: bytes, things: list[avro.Thing]) -> Any:
    """Things come behind what is in them. Raises Bad."""
    open_: list[tuple[avro.Thing, Any]] = []
    for thing in things:
        node: Any = None
        if thing.kind in ("record", "array", "map"):
            at = len(open_)
            while at and len(open_[at - 1][0].place) > len(thing.place):
                at -= 1
            inner = open_[at:]
            del open_[at:]
            if thing.kind == "array":
                node = [one for _, one in inner]
            else:
                node = Members([(str(of.place[-1]), one) for of, one in inner])
                if len({name for name, _ in node}) < len(node):
                    raise Bad("twice")
                for name, _ in node:
                    _utf8(name)
        else:
            node = _leaf(item, thing)
        open_.append((thing, node))
    ((_, whole),) = open_
    return whole


def _leaf(item: bytes, thing: avro.Thing) -> Any:
    if thing.kind == "string":
        try:
            return thing.value.decode()
        except UnicodeDecodeError:
            raise Bad("no UTF-8") from None
    if thing.kind in ("bytes", "fixed"):
        return thing.value.decode("latin-1")
    if isinstance(thing.value, Members):
        raise Bad("no number of JSON")
    return thing.value


class _Writing:
    """`names`: schemas by their full names. Raises Bad for what does not fit. Of what a union holds it is
    remembered what it made."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.unions: dict[tuple[int, int, int], bytes | None] = {}
        self.planted: list[Any] = []

    def written(self, node: Any, schema: Any, depth: int) -> bytes:
        if depth > avro.DEEP:
            raise Bad("too deep")
        if isinstance(schema, list):
            return self.of_union(node, schema, depth)
        if isinstance(schema, str):
            schema = self.names[schema]
        kind = schema["type"]
        if kind == "record":
            return self.of_record(node, schema, depth)
        if kind == "array":
            if not isinstance(node, list) or isinstance(node, Members):
                raise Bad("no array")
            return _counted([self.written(one, schema["of"], depth + 1) for one in node])
        if kind == "map":
            names = self.once(node)
            return _counted(
                [
                    _blob(_utf8(name)) + self.written(one, schema["of"], depth + 1)
                    for name, one in names.items()
                ]
            )
        return _scalar(node, kind, schema)

    def of_union(self, node: Any, schema: list[Any], depth: int) -> bytes:
        place = (id(node), id(schema), depth) if isinstance(node, list) else None
        if place is None or place not in self.unions:
            found = None
            for number, branch in enumerate(schema):
                try:
                    found = avro.long(number) + self.written(node, branch, depth + 1)
                    break
                except Bad:
                    continue
            if place is None:
                if found is None:
                    raise Bad("no branch")
                return found
            self.unions[place] = found
        kept = self.unions[place]
        if kept is None:
            raise Bad("no branch")
        return kept

    def of_record(self, node: Any, schema: Any, depth: int) -> bytes:
        given, made = self.once(node), b""
        fields = [name for name, _ in schema["fields"]]
        if len(set(fields)) < len(fields) or not set(given) <= set(fields):
            raise Bad("other fields")
        for name, of in schema["fields"]:
            if name in given:
                made += self.written(given[name], of, depth + 1)
            elif name in schema["defaults"]:
                # Kept, or another node might be taken for it.
                self.planted.append(planted(schema["defaults"][name]))
                made += self.written(self.planted[-1], of, depth + 1)
            else:
                raise Bad("not there")
        return made

    @staticmethod
    def once(node: Any) -> dict[str, Any]:
        """An object, no name twice."""
        if not isinstance(node, Members):
            raise Bad("no object")
        found = dict(node)
        if len(found) < len(node):
            raise Bad("twice")
        return found


def _counted(items: list[bytes]) -> bytes:
    return (avro.long(len(items)) if items else b"") + b"".join(items) + b"\0"


def _blob(found: bytes) -> bytes:
    return avro.long(len(found)) + found


def _scalar(node: Any, kind: str, schema: Any) -> bytes:
    if kind == "null" and node is None:
        return b""
    if kind == "boolean" and isinstance(node, bool):
        return bytes([node])
    if isinstance(node, Number):
        if kind in ("int", "long") and _is_whole(node) and len(node) <= 20:
            limit = 2**31 if kind == "int" else 2**63
            if -limit <= (value := int(node)) < limit:
                return avro.long(value)
        if kind in ("float", "double"):
            return _number(node, "<f" if kind == "float" else "<d")
    elif isinstance(node, str):
        if kind == "string":
            return _blob(_utf8(node))
        if kind == "bytes":
            return _blob(_latin(node))
        if kind == "fixed" and len(found := _latin(node)) == schema["size"]:
            return found
        if kind == "enum" and node in schema["symbols"]:
            return avro.long(len(schema["symbols"]) - 1 - schema["symbols"][::-1].index(node))
    raise Bad("does not fit")


def _is_whole(number: Number) -> bool:
    return not set(number) & set(".eE")


def _number(node: Number, form: str) -> bytes:
    try:
        value = int(node) if _is_whole(node) else float(node)
        made = struct.pack(form, float(value))
    except (ValueError, OverflowError):
        raise Bad("too large") from None
    (kept,) = struct.unpack(form, made)
    if not math.isfinite(kept) or (isinstance(value, int) and kept != value):
        raise Bad("can't be kept")
    return made


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Bad("no characters") from None


def _latin(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise Bad("no bytes") from None
