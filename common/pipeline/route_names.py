"""What a pipeline's definition tells of its stages, and of the topics that `route` names: without the engine,
which takes its time to be imported. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from common.config.topic_names import check_topic_name, is_name

MOST_PLACES = (1 << 15) - 1
"""That records of a flow may go to."""
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


def place(topic: str, partition: int | None) -> str:
    """A topic, or one of its partitions, as one text: no topic has a slash."""
    return topic if partition is None else f"{topic}/{partition}"


def topic_and_partition(place: str) -> tuple[str, int | None]:
    """Raises ValueError for a text that stands for none."""
    topic, slash, partition = place.partition("/")
    if slash and re.fullmatch(r"0|[1-9][0-9]{0,8}", partition) is None:
        raise ValueError(f"{place!r} is no partition")
    return check_topic_name(topic), int(partition) if slash else None


@lru_cache(maxsize=4096)
def routed_topics(definition: str, topic: str, link: str) -> Mapping[str, int | None]:
    """Where a pipeline of this definition may take records of a source topic instead of the link's own
    destination; of each, over how many partitions by their keys, None: to those of the same number."""
    flow: dict[str, Any] = next(
        (flow for flow in orjson.loads(definition)["flows"] if takes(flow["topics"], topic)), {"stages": []}
    )
    return {
        filled(template, topic, link): _count(stage["route"])
        for stage in flow["stages"]
        if "route" in stage
        for template in _templates(stage["route"])
    }


def spread_over(definitions: Iterable[str], topic: str, link: str, destination: str) -> int:
    """Over how many partitions of a destination these versions take records of a source topic by their keys,
    at most; 0: none does."""
    return max((routed_topics(each, topic, link).get(destination) or 0 for each in definitions), default=0)


def _count(route: dict[str, Any]) -> int | None:
    how = route.get("partition")
    return how["hash"] if isinstance(how, dict) else None


def has_stage(definition: str, name: str) -> bool:
    """Whether a flow of this definition has a stage of this name."""
    return any(name in stage for flow in orjson.loads(definition)["flows"] for stage in flow["stages"])


def asks_for_schemas(definition: str) -> bool:
    """Whether it takes ids or texts of schemas from what `schemas` has written down."""
    flows = orjson.loads(definition)["flows"]
    return has_stage(definition, "schema-ids") or any(
        "avro" in (flow.get("key"), flow.get("value")) for flow in flows
    )


def _templates(route: dict[str, Any]) -> Iterator[str]:
    yield from (route[name] for name in ("topic", "else") if name in route)
    yield from (case["topic"] for case in route.get("cases", ()))
