"""Ids of schemas for the second implementation of pipelines: the records of `<link>.schemas`, and what they
make of a record. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import orjson

from common.errors import VerbatimError
from verbatim.verify.pipeline.json_tree import Bad
from verbatim.verify.pipeline.records import Json, Record

Ids = Mapping[tuple[str, int], int]
"""Context and id at the source -> id at the target."""


class Waits(Exception):
    """A record whose schema has no id at the target yet."""


@dataclass
class SchemaMap:
    """The topic, read up to `position`."""

    position: int = 0
    ids: dict[tuple[str, int], int] = field(default_factory=dict)
    texts: dict[tuple[str, int], tuple[str, bool]] = field(default_factory=dict)

    def add(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take in a record: of an id the first counts. Raises VerbatimError for a damaged one."""
        try:
            name = orjson.loads(key or b"")
            if value is not None and "id" in name:
                told = orjson.loads(value)
                target = told["target"]
                if isinstance(text := told.get("avro"), str):
                    self.texts.setdefault((name["context"], name["id"]), (text, bool(told["references"])))
                if type(target) is not int:
                    raise TypeError(f"{target!r} is no id")
                self.ids.setdefault((name["context"], name["id"]), target)
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise VerbatimError(f"schema's record at offset {offset}: damaged ({error!r})") from None


def ask_for_ids(definitions: Iterable[str]) -> bool:
    """Whether one of these pipelines has the stage, or reads by schemas."""
    flows = (flow for text in definitions for flow in orjson.loads(text)["flows"])
    return any(
        "avro" in (flow.get("key"), flow.get("value"))
        or any("schema-ids" in stage for stage in flow["stages"])
        for flow in flows
    )


def mapped(options: Json, record: Record, flow: Json, ids: Ids) -> Record:
    """With the target's ids. Raises Bad, Waits."""
    waits = False
    for side, kind in flow["wire"].items():
        end = 9 if kind == "apicurio" else 5
        item = record.side(side)
        if item is None:
            continue
        in_header = any(name == f"__{side}_schema_id" and given is not None for name, given in record.headers)
        framed = isinstance(item, bytes) and len(item) >= end and item[0] == 0 and any(item[1:end])
        if not isinstance(item, bytes) or not framed or in_header:
            if options.get("onUnframed") == "keep":
                continue
            raise Bad("no id")
        context, schema_id = options.get("context", "."), int.from_bytes(item[1:end], "big")
        if (context, schema_id) in ids:
            target = ids[context, schema_id].to_bytes(end - 1, "big")
            record = record.with_side(side, b"\0" + target + item[end:])
        else:
            waits = True
    if waits:
        raise Waits
    return record
