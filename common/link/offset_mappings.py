"""Records of the offset-mappings topic: the changelog of what has been delivered. Pure.

One record for each source partition that a transaction moved or saw for the first time, in the same
transaction as its records. So the mappings up to their read-committed end say exactly what is at the
destination.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from common.errors import StateError
from common.partitions import PartitionId, PartitionName

VERSION = 1
ROUTED_VERSION = 2
"""Of a mapping whose records lie in several topics: a release that knows no routes would take those in the
others for left out."""
SPREAD_VERSION = 3
"""Of one whose records lie in other partitions than that of the source's number."""
VERSIONS = (VERSION, ROUTED_VERSION, SPREAD_VERSION)
"""That this release reads."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Letters:
    """Where the dead letters of a range lie: topic, partition, and runs of source offset, offset there,
    length."""

    topic: str
    partition: int
    runs: list[list[int]]


@dataclass(frozen=True, slots=True)
class Routed:
    """Where those records of a range lie that a stage took to another topic: to the partition there that has
    the number of the source's, or to this one, by their keys. Runs as in Mapping."""

    topic: str
    runs: list[list[int]]
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Mapping:
    """`[start, next)` is the source range covered; `staging_offset` the position in staging after the
    transaction; `runs` list [source offset, destination offset, length]; `lost` counts offsets skipped with
    an operator's consent; `pipeline`: the version by which all of the range was copied, 0 without one;
    `dead_letters`: where those are of the records on which one of its stages failed, if there are any.
    `runs` are those in the link's own destination, `routed` those in each other topic; `records` counts
    all."""

    cluster: str
    topic: str
    topic_id: str
    partition: int
    start: int
    next: int
    destination_topic: str
    destination_partition: int
    staging_offset: int
    records: int
    duplicates: int
    lost: int
    runs: list[list[int]]
    pipeline: int = 0
    dead_letters: Letters | None = None
    routed: tuple[Routed, ...] = ()

    @property
    def places(self) -> dict[PartitionName, list[list[int]]]:
        """Topic and partition -> the runs there."""
        own, found = (
            self.destination_partition,
            {(self.destination_topic, self.destination_partition): self.runs},
        )
        for one in self.routed:
            found[one.topic, own if one.partition is None else one.partition] = one.runs
        return found


def encode(mapping: Mapping) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    value: dict[str, Any] = {
        "v": _version(mapping),
        "cluster": mapping.cluster,
        "topic": mapping.topic,
        "topic_id": mapping.topic_id,
        "partition": mapping.partition,
        "start": mapping.start,
        "next": mapping.next,
        "destination_topic": mapping.destination_topic,
        "destination_partition": mapping.destination_partition,
        "staging_offset": mapping.staging_offset,
        "records": mapping.records,
        "duplicates": mapping.duplicates,
    }
    if mapping.lost:
        value["lost"] = mapping.lost
    if mapping.pipeline:
        value["pipeline"] = mapping.pipeline
    value["runs"] = mapping.runs
    if mapping.dead_letters:
        value["dead_letters"] = mapping.dead_letters
    if mapping.routed:
        value["routed"] = [_routed(one) for one in mapping.routed]
    return orjson.dumps({"topic": mapping.topic, "partition": mapping.partition}), orjson.dumps(value)


def _version(mapping: Mapping) -> int:
    if any(one.partition is not None for one in mapping.routed):
        return SPREAD_VERSION
    return ROUTED_VERSION if mapping.routed else VERSION


def _routed(one: Routed) -> dict[str, Any]:
    told: dict[str, Any] = {"topic": one.topic, "runs": one.runs}
    return told if one.partition is None else told | {"partition": one.partition}


def decode(value: bytes | None) -> Mapping:
    """Raises StateError for anything else than a mapping: the truth can't be guessed from the rest."""
    return _understood(value, _mapping)


def reached(value: bytes | None) -> tuple[PartitionId, int, int, int]:
    """Of a mapping what recovery goes by: the source partition, its `next`, its `pipeline`, the staging
    offset. Raises StateError as `decode` does, for what it looks at; there may be a hundred thousand to read
    before copying goes on."""
    return _understood(value, _reached)


def _understood(value: bytes | None, take: Callable[[dict[str, Any]], T]) -> T:
    try:
        r = orjson.loads(value or b"")
        if r["v"] not in VERSIONS:
            raise StateError(f"mapping record of version {r['v']}: a newer release wrote it")
        return take(r)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"mapping record that can't be understood: {error!r}") from None


def _mapping(r: dict[str, Any]) -> Mapping:
    mapping = Mapping(
        r["cluster"],
        r["topic"],
        r["topic_id"],
        r["partition"],
        r["start"],
        r["next"],
        r["destination_topic"],
        r["destination_partition"],
        r["staging_offset"],
        r["records"],
        r["duplicates"],
        r.get("lost", 0),
        r["runs"],
        r.get("pipeline", 0),
        Letters(**r["dead_letters"]) if "dead_letters" in r else None,
        tuple(Routed(**one) for one in r["routed"]) if r["v"] != VERSION else (),
    )
    _check(mapping)
    return mapping


def _reached(r: dict[str, Any]) -> tuple[PartitionId, int, int, int]:
    topic_id, partition, after, staging_offset = r["topic_id"], r["partition"], r["next"], r["staging_offset"]
    pipeline = r.get("pipeline", 0)
    _must_be_texts(topic_id)
    _must_be_numbers(partition, after, pipeline, staging_offset)
    return (topic_id, partition), after, pipeline, staging_offset


def _check(m: Mapping) -> None:
    _must_be_texts(m.cluster, m.topic, m.topic_id, m.destination_topic)
    numbers = [
        m.partition,
        m.start,
        m.next,
        m.destination_partition,
        m.staging_offset,
        m.records,
        m.duplicates,
        m.lost,
        m.pipeline,
    ]
    runs = m.runs
    if m.dead_letters is not None:
        _must_be_texts(m.dead_letters.topic)
        numbers.append(m.dead_letters.partition)
        runs = m.runs + m.dead_letters.runs
    for routed in m.routed:
        _must_be_texts(routed.topic)
        numbers += [] if routed.partition is None else [routed.partition]
        runs = runs + routed.runs
    if len(m.places) <= len(m.routed):
        raise ValueError("runs of one topic at two places")
    for source, destination, length in runs:
        numbers += (source, destination, length)
    _must_be_numbers(*numbers)


def _must_be_texts(*texts: Any) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is not a text")


def _must_be_numbers(*numbers: Any) -> None:
    for number in numbers:
        if type(number) is not int or number < 0:
            raise TypeError(f"{number!r} is not a number from 0")
