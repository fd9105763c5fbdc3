"""What can't be told of a flow's records by whoever has not all of its keys. Pure."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from verbatim.verify.pipeline.records import Json, path

Place = tuple[str, tuple[Any, ...]]


def masked_parts(flow: Json, keys: Container[str]) -> frozenset[str]:
    """`value`, `key` and `header`: those that have, or may have, what was masked with a key that is not
    there. Raises LookupError where such a mask also decides what becomes of a record."""
    masked: set[Place] = set()
    for stage in flow["stages"]:
        if any(_meet(asked, one) for asked in _asked(stage) for one in masked):
            raise LookupError
        if masked and ("python" in stage or "sql" in stage):
            raise LookupError  # it looks at all there is
        if "mask" in stage:
            options = stage["mask"]
            if options.get("key") not in keys:
                side = options.get("side", "value")
                keyed = [text for text, how in options["fields"].items() if how in ("hmac", "encrypt")]
                masked |= {_place(text, side) for text in keyed}
        elif "fields" in stage:
            # Whatever it has moved.
            side = stage["fields"].get("side", "value")
            masked |= {(root, ()) for root, _ in masked if root == side}
        elif "key" in stage:
            taken = any(_meet(_place(stage["key"]), one) for one in masked)
            masked = {one for one in masked if one[0] != "key"} | ({("key", ())} if taken else set())
    return frozenset(root for root, _ in masked)


def _asked(stage: Json) -> list[Place]:
    """The places that decide what becomes of a record. Not that of `timestamp`: no mask looks like a time."""
    filtering = stage.get("filter", {})
    given = [stage.get("when"), filtering.get("keep"), filtering.get("drop")]
    given += [case["when"] for case in stage.get("route", {}).get("cases", ())]
    alternatives = [one for c in given if c is not None for one in (c if isinstance(c, list) else [c])]
    places = [_place(text) for one in alternatives for text in one]
    if "validate" in stage:
        places.append((stage["validate"].get("side", "value"), ()))
    if stage.get("convert", {}).get("to") == "avro":
        places.append((stage["convert"].get("side", "value"), ()))
    if isinstance(stage.get("route", {}).get("partition"), dict):
        places.append(("key", ()))
    if "schema-ids" in stage:
        places += [("key", ()), ("value", ())]
    return places


def _place(text: str, side: str = "value") -> Place:
    root, steps = path(text, side)
    return root, tuple(steps)


def _meet(one: Place, other: Place) -> bool:
    """Whether one lies in the other."""
    shorter = min(len(one[1]), len(other[1]))
    return one[0] == other[0] and one[1][:shorter] == other[1][:shorter]
