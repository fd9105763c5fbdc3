"""Records for the second implementation of pipelines: what is at a path, and whether conditions hold. Pure.

What a record means is known here, not how it is written: JSON that a stage has put together is a tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from verbatim.verify.pipeline import avro
from verbatim.verify.pipeline.json_tree import Bad, Members, Number, copied, tree

Json = dict[str, Any]
EACH = object()


@dataclass(frozen=True)
class Tree:
    """JSON that a stage has put together."""

    node: Any


Item = bytes | None | Tree


@dataclass(frozen=True)
class Record:
    """A record on its way. `size`: of key and value, as they came; `to`: the topic that a stage takes it to,
    None for the link's own destination of its topic."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Item
    value: Item
    headers: tuple[tuple[str, bytes | None], ...] = ()
    link: str = ""
    size: int = 0
    to: str | None = None
    among: int | None = None
    """Over how many partitions of `to` keys are spread; None: it keeps its own."""
    texts: avro.Texts = field(default_factory=dict, compare=False)
    """Of the schemas that are known, for keys and values that are Avro."""

    def side(self, root: str) -> Item:
        return self.key if root == "key" else self.value

    def with_side(self, root: str, item: Item) -> Record:
        return replace(self, key=item) if root == "key" else replace(self, value=item)


@lru_cache(maxsize=4096)
def path(text: str, side: str = "value") -> tuple[str, list[Any]]:
    """The root, and names and EACH."""
    if text in ("timestamp", "size"):
        return text, []
    if text.startswith("header."):
        return "header", [text[len("header.") :]]
    steps: list[Any] = []
    for quoted, bare, each in re.findall(r'"([^"]*)"|([^."\[\]]+)|(\[\*\])', text):
        steps.append(EACH if each else quoted or bare)
    if steps and steps[0] in ("value", "key") and not text.startswith('"'):
        return steps[0], steps[1:]
    return side, steps


def is_json(root: str, flow: Json) -> bool:
    return root in ("value", "key") and flow.get(root, "bytes") == "json"


def context_of(flow: Json) -> str:
    """Of the registry whose ids are in front of keys and values."""
    ids = [stage["schema-ids"] for stage in flow["stages"] if "schema-ids" in stage]
    return str(ids[0].get("context", ".")) if ids else "."


def avro_of(item: Item, record: Record, flow: Json) -> list[avro.Thing]:
    """What is there. Raises Bad."""
    assert isinstance(item, bytes)
    return avro.things(item, record.texts, context_of(flow))


def without_each(steps: list[Any]) -> list[Any]:
    return [None if step is EACH else step for step in steps]


def node_of(item: Item) -> Any:
    """The tree of what is there. Raises Bad."""
    return copied(item.node) if isinstance(item, Tree) else tree(item or b"")


def places(node: Any, steps: list[Any], must_fit: bool, once: bool = True) -> Iterator[tuple[Any, Any]]:
    """What holds each thing at a path, and its place there. Of a name that is there twice the last
    counts, or, if it must be there once, Bad is raised; and, if it must fit, where something else than an
    object or an array is on the way."""
    if not steps:
        return
    first, rest = steps[0], steps[1:]
    if first is EACH and isinstance(node, list) and not isinstance(node, Members):
        at = list(range(len(node)))
    elif first is not EACH and isinstance(node, Members):
        at = [number for number, (name, _) in enumerate(node) if name == first]
        if len(at) > 1 and once:
            raise Bad("twice")
        del at[:-1]
    elif must_fit and node is not None:
        raise Bad("something else")
    else:
        return
    for number in at:
        if not rest:
            yield node, number
        else:
            yield from places(value_at(node, number), rest, must_fit, once)


def value_at(holder: Any, number: int) -> Any:
    return holder[number][1] if isinstance(holder, Members) else holder[number]


def put(holder: Any, number: int, value: Any) -> None:
    holder[number] = (holder[number][0], value) if isinstance(holder, Members) else value


def _looked_up(text: str, record: Record, flow: Json) -> list[Any]:
    """What conditions find at a path. Raises Bad."""
    root, steps = path(text)
    if root in ("timestamp", "size"):
        return [Number(getattr(record, root))]
    if root == "header":
        return [text_of(value) for name, value in record.headers if name == steps[0]][-1:]
    item = record.side(root)
    if item is None:
        return []
    if flow.get(root) == "avro":
        return avro.looked_up(avro_of(item, record, flow), without_each(steps))
    if not is_json(root, flow):
        return [text_of(item)]
    node = node_of(item)
    return [value_at(*place) for place in places(node, steps, False, once=False)] if steps else [node]


def text_of(item: Item) -> str | None:
    """Of what is no JSON to the flow."""
    assert not isinstance(item, Tree)
    return None if item is None else item.decode("utf-8", "surrogateescape")


def holds(conditions: Any, record: Record, flow: Json) -> bool:
    """Whatever is named is looked up, and can be bad, also where the rest decides. Raises Bad."""
    found = conditions if isinstance(conditions, list) else [conditions]
    held = [[_test(text, test, record, flow) for text, test in one.items()] for one in found]
    return any(map(all, held))


def _test(text: str, test: Any, record: Record, flow: Json) -> bool:
    if isinstance(test, dict) and "is" in test:
        return record.value is None
    found = _looked_up(text, record, flow)
    operators = test if isinstance(test, dict) else {"in": [test]}
    if operators.get("exists") is False:
        return not found
    return any(all(_operator(o, operand, value) for o, operand in operators.items()) for value in found)


def _operator(name: str, operand: Any, value: Any) -> bool:
    match name:
        case "exists":
            return True
        case "in":
            return any(_equal(value, one) for one in operand)
        case "matches":
            return _is_text(value) and re.fullmatch(operand, value, re.DOTALL) is not None
        case "prefix":
            return _is_text(value) and value.startswith(operand)
    sign = _compared(value, operand)
    return sign is not None and (sign < 0 if name == "lt" else sign > 0)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, Number)


def _equal(value: Any, operand: Any) -> bool:
    if operand is None or isinstance(operand, bool):
        return value is operand
    return _compared(value, operand) == 0


def _compared(value: Any, operand: Any) -> int | None:
    if isinstance(operand, str):
        return (value > operand) - (value < operand) if _is_text(value) else None
    if not isinstance(value, Number):
        return None
    try:
        difference = Decimal(value), Decimal(str(operand))
    except InvalidOperation:
        return None
    return (difference[0] > difference[1]) - (difference[0] < difference[1])
