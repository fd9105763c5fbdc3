"""What a pipeline makes of a record, in a second implementation: from the definition as the control topic
would have it. JSON that a stage has changed is compared as a tree, all else to the byte. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from verbatim.verify.pipeline.avro import Texts, schema_of
from verbatim.verify.pipeline.converting import converted
from verbatim.verify.pipeline.json_tree import Bad, same, tree
from verbatim.verify.pipeline.records import Item, Json, Record, Tree, context_of, holds
from verbatim.verify.pipeline.schema_ids import Ids, Waits, mapped
from verbatim.verify.pipeline.stages import STAGES, filled, key_id


@dataclass(frozen=True)
class Result:
    """What becomes of a record: `kept`, `tombstone`, `left-out`; or `failed` or `waits` at a stage (from
    1)."""

    outcome: str
    record: Record
    stage: int = 0

    def is_copied_as(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Any) -> bool:
        """Whether what the destination has is this record."""
        mine = self.record
        return (
            timestamp == mine.timestamp
            and _same_item(mine.key, key)
            and _same_item(mine.value, value)
            and tuple(headers or ()) == mine.headers
        )


def _same_item(mine: Item, other: bytes | None) -> bool:
    if not isinstance(mine, Tree):
        return mine == other
    try:
        return other is not None and same(mine.node, tree(other))
    except Bad:
        return False


@dataclass(frozen=True)
class Pipeline:
    """A definition, those of its keys that are there, and the ids of schemas that are known."""

    definition: Json
    keys: Mapping[str, bytes] = field(default_factory=dict)
    ids: Ids = field(default_factory=dict)
    texts: Texts = field(default_factory=dict)

    @classmethod
    def of(
        cls, definition: bytes, keys: Mapping[str, bytes], ids: Ids | None = None, texts: Texts | None = None
    ) -> Pipeline:
        """`keys`: by name; one that has another id than the definition says is not its own."""
        told = json.loads(definition)
        own = {name: key for name, key in keys.items() if told["keys"].get(name) == key_id(key)}
        return cls(told, own, {} if ids is None else ids, {} if texts is None else texts)

    def flow_of(self, topic: str) -> Json | None:
        return next((flow for flow in self.definition["flows"] if _takes(flow, topic)), None)

    def targets(self, topic: str, link: str) -> set[str]:
        """Where its stages may take records of a source topic instead of the link's own destination: topics,
        or, as `topic/partition`, partitions over which keys are spread."""
        flow, place = self.flow_of(topic), Record(topic, 0, 0, 0, None, None, link=link)
        routes = [stage["route"] for stage in (flow or {"stages": []})["stages"] if "route" in stage]
        found: set[str] = set()
        for route in routes:
            templates = {route[name] for name in ("topic", "else") if name in route}
            templates |= {case["topic"] for case in route.get("cases", ())}
            names, how = {filled(template, place) for template in templates}, route.get("partition")
            found |= (
                {f"{n}/{p}" for n in names for p in range(how["hash"])} if isinstance(how, dict) else names
            )
        return found

    def apply(self, record: Record) -> Result:
        flow = self.flow_of(record.topic)
        if flow is None:
            return Result("kept", record)
        size = sum(len(i) for i in (record.key, record.value) if isinstance(i, bytes))
        record = replace(record, size=size, texts=self.texts)
        for side in ("key", "value"):
            schema_id = schema_of(record.side(side)) if flow.get(side) == "avro" else None
            if schema_id is not None and (context_of(flow), schema_id) not in self.texts:
                return Result("waits", record)
        had_value = record.value is not None
        for number, stage in enumerate(flow["stages"], 1):
            try:
                if "when" in stage and not holds(stage["when"], record, flow):
                    continue
                name = next(name for name in stage if name != "when")
                if name == "schema-ids":
                    after: Record | None = mapped(stage[name], record, flow, self.ids)
                elif name == "convert":
                    after, flow = converted(stage[name], record, flow)
                else:
                    after = STAGES[name](stage[name], record, flow, self.keys)
            except Bad:
                return Result("failed", record, number)
            except Waits:
                return Result("waits", record, number)
            if after is None:
                return Result("left-out", record, number)
            record = after
        return Result("tombstone" if had_value and record.value is None else "kept", record)


def _takes(flow: Json, topic: str) -> bool:
    return any(
        topic == entry
        if re.fullmatch(r"[A-Za-z0-9._-]+", entry)
        else re.fullmatch(entry, topic, re.DOTALL) is not None
        for entry in flow["topics"]
    )
