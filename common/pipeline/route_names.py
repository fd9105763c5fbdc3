"""What a pipeline's definition tells of its stages, and of the topics that `route` names: without the engine,
which takes its time to be imported. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from common.config.topic_names import is_name

PLACES = ("topic", "link")
"""What a name may have in braces: what is the same for all records of a source topic."""


def takes(entries: Sequence[str], topic: str) -> bool:
    """Whether a flow with these `topics` takes one."""
    return any(
        topic == entry if is_name(entry) else re.compile(entry, re.DOTALL).fullmatch(topic) is not None
        for entry in entries
    )


def filled(template: str, topic: str, link: str) -> str:
    """The name of a destination, for the records of a source topic."""
    return template.format(topic=topic, link=link)


def routed_topics(definition: str, topic: str, link: str) -> frozenset[str]:
    """Where a pipeline of this definition may take records of a source topic instead of the link's own
    destination."""
    flow: dict[str, Any] = next(
        (flow for flow in orjson.loads(definition)["flows"] if takes(flow["topics"], topic)), {"stages": []}
    )
    return frozenset(
        filled(template, topic, link)
        for stage in flow["stages"]
        if "route" in stage
        for template in _templates(stage["route"])
    )


def has_stage(definition: str, name: str) -> bool:
    """Whether a flow of this definition has a stage of this name."""
    return any(name in stage for flow in orjson.loads(definition)["flows"] for stage in flow["stages"])


def _templates(route: dict[str, Any]) -> Iterator[str]:
    yield from (route[name] for name in ("topic", "else") if name in route)
    yield from (case["topic"] for case in route.get("cases", ()))
