"""The offset mappings of a link, read once for `verbatim verify`. Judges nothing, and takes no code for
mappings from the applications it checks: the JSON is parsed here by itself."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson

from common.errors import VerbatimError
from common.partitions import PartitionName
from verbatim.verify.control import plain_id
from verbatim.verify.mappings import Column, Runs
from verbatim.verify.reading import Cluster
from verbatim.verify.versions import Versions

Topics = dict[str, tuple[str, tuple[str, ...]]]
"""Source topic -> its current topic id, and where its records go: its destination first; `topic/partition`
where keys are spread over partitions."""
_SPILL_RUNS = 1_000_000
_LONGEST_TRANSACTION_MS = 120_000


def place_of(target: str, partition: int) -> PartitionName:
    """A topic, or `topic/partition`, as the partition that records of a source partition of this number go
    to."""
    topic, _, number = target.partition("/")
    return topic, int(number) if number else partition


def _text(topic: str, partition: int | None) -> str:
    return topic if partition is None else f"{topic}/{partition}"


@dataclass
class PartitionMappings:
    """What the mapping records say of one source partition under its current topic id."""

    start: int | None = None
    next: int = 0
    complete: bool = False
    other_topic_ids: set[str] = field(default_factory=set)
    other_destinations: set[str] = field(default_factory=set)
    holes: list[tuple[int, int]] = field(default_factory=list)
    accepted_loss: int = 0
    versions: Versions = field(default_factory=Versions)
    columns: tuple[array[int], array[int], array[int]] = field(
        default_factory=lambda: (array("q"), array("q"), array("q"))
    )
    spilled: int = 0


class Mappings:
    """All offset mappings of a link, read once. Runs beyond a million are spilled to temporary files, and
    searched there."""

    def __init__(self, cluster_id: str, topics: Topics, several: bool = False) -> None:
        """`several`: what other source topics have in these destinations is wanted too."""
        self._cluster_id = cluster_id
        self._topics = topics
        self.several = several
        self._destinations = {name for _, names in topics.values() for name in names}
        self._others: dict[PartitionName, dict[PartitionName, str]] = {}
        """Destination topic and partition -> where the runs lie of what is not compared there -> its source
        topic."""
        self.whole_from_ms = 0.0
        """None of the records written since then has expired."""
        self._whole_from: dict[PartitionName, int] = {}
        self.with_letters: list[dict[str, Any]] = []
        """What mappings say of dead letters: their source partition, and where they are."""
        self._partitions: dict[PartitionName, PartitionMappings] = {}
        self._directory = tempfile.TemporaryDirectory(prefix="verbatim-verify-")
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    def add(self, value: bytes, first_of_log: bool, time_ms: int = 0) -> None:
        """Takes one mapping record, written at `time_ms`. `first_of_log`: the mappings partition still begins
        at its first offset."""
        m = orjson.loads(value)
        if m["cluster"] != self._cluster_id:
            return
        if "dead_letters" in m:
            self.with_letters.append({k: m[k] for k in ("topic", "topic_id", "partition", "dead_letters")})
        runs = {m["destination_topic"]: m["runs"]}
        runs |= {
            _text(routed["topic"], routed.get("partition")): routed["runs"] for routed in m.get("routed", ())
        }
        known = self._topics.get(m["topic"])
        for target in known[1] if known is not None else ():
            self._add_own(m, target, runs.get(target), first_of_log)
        for target in runs.keys() & self._destinations if self.several else ():
            if runs[target]:
                self._add_of_several(m, target, runs[target], time_ms)

    def _add_of_several(self, m: dict[str, Any], target: str, runs: list[list[int]], time_ms: int) -> None:
        at, topic_id = place_of(target, m["destination_partition"]), plain_id(m["topic_id"])
        known = self._topics.get(m["topic"])
        if known is None or known[0] != topic_id or target not in known[1]:
            # No topic is called so: its name has a character that none has.
            place = f"{m['topic']}~{topic_id}~{target}", m["partition"]
            entry = self._partitions.setdefault(place, PartitionMappings(start=0))
            self._others.setdefault(at, {})[place] = m["topic"]
            self._add_runs(entry, runs)
        if time_ms >= self.whole_from_ms:
            first = min(d for _, d, _ in runs)
            self._whole_from[at] = min(first, self._whole_from.get(at, first))

    def others(self, destination: str, partition: int) -> list[Runs]:
        """The runs in a destination partition of what is no source topic any more, or goes elsewhere by
        now."""
        places = sorted(self._others.get((destination, partition), ()))
        return [runs for place in places if (runs := self.runs(*place)) is not None]

    def topics_in(self, destination: str) -> set[str]:
        """Source topics that have, or had, records in a destination, and are not compared with it."""
        return {
            topic for at, places in self._others.items() if at[0] == destination for topic in places.values()
        }

    def all_into(self, topic: str, target: str) -> list[Runs]:
        """The runs of each partition of a source topic into one of the topics it goes to."""
        name = self._place(topic, 0, target)[0]
        found = (
            self.runs(topic, partition, target) for at, partition in sorted(self._partitions) if at == name
        )
        return [runs for runs in found if runs is not None]

    def known_from(self, destination: str, partition: int) -> int | None:
        """The offset of a destination partition from which on no mapping has expired; None where that is not
        known."""
        return self._whole_from.get((destination, partition)) if self.whole_from_ms else 0

    def _place(self, topic: str, partition: int, target: str | None) -> PartitionName:
        """Where it is kept what mappings say of a source partition and one of the topics it goes to; None:
        its destination."""
        known = self._topics.get(topic)
        own = target is None or known is None or target == known[1][0]
        return (topic, partition) if own else (f"{topic}~~{target}", partition)

    def _add_own(
        self, m: dict[str, Any], target: str, runs: list[list[int]] | None, first_of_log: bool
    ) -> None:
        """`runs`: in this topic; None: it is not the one that the link took for its destination then."""
        topic_id, targets = self._topics[m["topic"]]
        place = self._place(m["topic"], m["partition"], target)
        entry = self._partitions.setdefault(place, PartitionMappings())
        if plain_id(m["topic_id"]) != topic_id:
            entry.other_topic_ids.add(plain_id(m["topic_id"]))
            return
        if m["destination_partition"] != m["partition"] or (runs is None and target == targets[0]):
            entry.other_destinations.add(f"{m['destination_topic']}/{m['destination_partition']}")
            return
        if entry.start is None:
            entry.start = m["start"]
            entry.complete = first_of_log or (m["start"] == m["next"] and not m["runs"])
        elif m["start"] != entry.next:
            entry.holes.append((entry.next, m["start"]))
        entry.next = m["next"]
        entry.accepted_loss += m.get("lost", 0)
        entry.versions.add(m["start"], runs or [], m.get("pipeline", 0))
        self._add_runs(entry, runs or [])

    def _add_runs(self, entry: PartitionMappings, runs: list[list[int]]) -> None:
        source, destination, length = entry.columns
        for s, d, count in runs:
            if source and source[-1] + length[-1] == s and destination[-1] + length[-1] == d:
                length[-1] += count
                continue
            source.append(s)
            destination.append(d)
            length.append(count)
            self._held += 1
        if self._held > _SPILL_RUNS:
            for each in self._partitions:
                self._spill(each)

    def _spill(self, place: PartitionName) -> None:
        entry = self._partitions[place]
        for name, column in zip("sdl", entry.columns, strict=True):
            with self._file(place, name).open("ab") as file:
                column.tofile(file)
        entry.spilled += len(entry.columns[0])
        self._held -= len(entry.columns[0])
        entry.columns = array("q"), array("q"), array("q")

    def _file(self, place: PartitionName, column: str) -> Path:
        return Path(self._directory.name) / f"{place[0].replace('/', '~~~')}.{place[1]}.{column}"

    def of(self, topic: str, partition: int, target: str | None = None) -> PartitionMappings:
        """Of a source partition and one of the topics it goes to; None: its destination."""
        return self._partitions.get(self._place(topic, partition, target), PartitionMappings())

    def runs(self, topic: str, partition: int, target: str | None = None) -> Runs | None:
        entry = self.of(topic, partition, target)
        if entry.start is None:
            return None
        place = self._place(topic, partition, target)
        if entry.spilled:
            self._spill(place)
            loaded: Iterable[Column] = (
                np.memmap(self._file(place, c), dtype=np.int64, mode="r") for c in "sdl"
            )
        else:
            loaded = (np.frombuffer(column, dtype=np.int64) for column in entry.columns)
        source, destination, length = loaded
        return Runs(source, destination, length, entry.start, entry.next, entry.complete)


def read_mappings(cluster: Cluster, topic: str, mappings: Mappings) -> None:
    state = cluster.topic(topic)
    partitions = range(state.partitions if state else 0)
    bounds = {p: cluster.bounds(topic, p) for p in partitions}
    if mappings.several:
        # Records may be visible at their destination a moment before their mapping is: what is pending there
        # is waited for.
        bounds = {p: (bounds[p][0], cluster.high_watermark(topic, p)) for p in partitions}
        starts = [_written_from(cluster, topic, p, *bounds[p]) for p in partitions if bounds[p][0] > 0]
        mappings.whole_from_ms = max(starts, default=0.0)
    for partition, (begin, end) in bounds.items():
        for messages in cluster.messages(topic, partition, begin, end):
            for message in messages:
                value = message.value()
                if value is None:
                    continue
                try:
                    mappings.add(value, begin == 0, message.timestamp()[1])
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    where = f"{topic}-{partition} offset {message.offset()}"
                    raise VerbatimError(f"{where}: no mapping record that can be read ({error!r})") from None


def _written_from(cluster: Cluster, topic: str, partition: int, begin: int, end: int) -> float:
    """When the first record of a partition was written that is still there, and well after; infinite where
    there is none."""
    first = next(iter(cluster.messages(topic, partition, begin, end)), None)
    # A transaction that began earlier may have been written down later.
    return first[0].timestamp()[1] + _LONGEST_TRANSACTION_MS if first else float("inf")
