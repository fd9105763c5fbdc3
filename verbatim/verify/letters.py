"""The dead letters of a link, each held against the source record that it says it is of: which of them there
must be is decided in verbatim/verify/expected.py. Pure, and takes nothing from the applications that it
checks.

A letter's last headers are its own. Those before them, key and value are the record's, where the pipeline
asks for payload.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from verbatim.verify.comparison import Kind, PartitionReport, digest
from verbatim.verify.control import plain_id
from verbatim.verify.provenance import Headers

_OWN = (
    *("verbatim.link", "verbatim.source.cluster", "verbatim.source.topic", "verbatim.source.topic-id"),
    *("verbatim.source.partition", "verbatim.source.offset", "verbatim.source.timestamp"),
    *("verbatim.pipeline", "verbatim.stage", "verbatim.reason", "verbatim.payload"),
)


class Letter(NamedTuple):
    """`record`: the digest of what it holds, with the timestamp that it says its record has."""

    pipeline: int
    stage: str
    record: bytes


@dataclass
class PartitionLetters:
    """Of a source partition: by offset, the first letter; and the offsets of which there is another."""

    first: dict[int, Letter] = field(default_factory=dict)
    again: list[int] = field(default_factory=list)
    expired: set[int] = field(default_factory=set)
    """Offsets whose letters the topic has had, as the mappings say, and has no more."""


@dataclass
class Letters:
    """All of a link, as its topic has them. `strays`: records of the topic that are none."""

    link: str
    cluster: str
    strays: int = 0
    _of: dict[tuple[str, str, int], PartitionLetters] = field(default_factory=dict)
    """By topic, topic id and partition of the source."""

    def add(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Take in a record of the topic."""
        headers = headers or []
        own = {name: (item or b"").decode() for name, item in headers[-len(_OWN) :]}
        try:
            if tuple(own) != _OWN:
                raise ValueError("other headers")
            of = (own["verbatim.link"], own["verbatim.source.cluster"])
            offset, timestamp = int(own["verbatim.source.offset"]), int(own["verbatim.source.timestamp"])
            partition, pipeline = int(own["verbatim.source.partition"]), int(own["verbatim.pipeline"])
        except ValueError:
            self.strays += 1
            return
        if of != (self.link, self.cluster):
            self.strays += 1
            return
        at = self.of(own["verbatim.source.topic"], own["verbatim.source.topic-id"], partition)
        record = digest(timestamp, key, value, headers[: -len(_OWN)])
        if (
            at.first.setdefault(offset, letter := Letter(pipeline, own["verbatim.stage"], record))
            is not letter
        ):
            at.again.append(offset)

    def of(self, topic: str, topic_id: str, partition: int) -> PartitionLetters:
        return self._of.setdefault((topic, plain_id(topic_id), partition), PartitionLetters())


class LetterCheck:
    """One reading of a source partition."""

    def __init__(self, letters: PartitionLetters) -> None:
        self._letters = letters
        self.due = 0
        """Records that were to become dead letters."""
        self._expired = 0
        self._wrong: dict[tuple[Kind, str], list[int]] = {}
        """What was found: the first offset, how many."""

    def has(self, offset: int) -> bool:
        """Whether there is one, or was before it expired."""
        return offset in self._letters.first or offset in self._letters.expired

    def must_be(self, offset: int, wanted: Letter) -> None:
        """`wanted.stage`: the word that its stage begins with."""
        self.due += 1
        found = self._letters.first.get(offset)
        if found is None:
            if offset in self._letters.expired:
                self._expired += 1
            else:
                self._found(Kind.LOST, "a stage fails on it, and it has no dead letter", offset)
        elif found.pipeline != wanted.pipeline or not found.stage.startswith(f"{wanted.stage} "):
            self._found(
                Kind.ALTERED, f"its dead letter says {found.stage} of version {found.pipeline}", offset
            )
        elif found.record != wanted.record:
            self._found(Kind.ALTERED, "its dead letter is not of this record", offset)

    def must_not_be(self, offset: int) -> None:
        if offset in self._letters.first:
            self._found(Kind.FOREIGN, "it has a dead letter, and no stage fails on it so", offset)

    def finish(self, report: PartitionReport) -> None:
        for offset in self._letters.again:
            self._found(Kind.DUPLICATED, "it has more than one dead letter", offset)
        for (kind, detail), (first, count) in self._wrong.items():
            report.add(kind, first, None, detail, count)
        if self._expired:
            report.note(f"{self._expired:,} dead letters have expired, and are taken to have been there")

    def _found(self, kind: Kind, detail: str, offset: int) -> None:
        found = self._wrong.setdefault((kind, detail), [offset, 0])
        found[1] += 1


def expired(letters: Letters, mapping: dict[str, Any], starts: dict[tuple[str, int], int]) -> None:
    """Note down which letters of a mapping are gone. `starts`: where the topic's partitions begin now."""
    dead = mapping["dead_letters"]
    start = starts.get((dead["topic"], dead["partition"]), 1 << 63)
    at = letters.of(mapping["topic"], mapping["topic_id"], mapping["partition"])
    for source, offset, length in dead["runs"]:
        at.expired.update(range(source, source + max(0, min(length, start - offset))))
