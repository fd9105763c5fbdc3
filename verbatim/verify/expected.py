"""What `verbatim verify` expects of a link with pipelines: what each record's version makes of it, by
verbatim/verify/pipeline/, and what both sides are compared by. Pure.

A key or value that a stage may have put together anew is compared as JSON, to the digits of its numbers; if
no stage has touched it, to the byte as well. What a mask has made with a key that is not given can't be
compared: of such records the rest is.
"""

from __future__ import annotations

import importlib.util
from array import array
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import cast

import numpy as np

from verbatim.verify.comparison import Kind, PartitionReport, digest
from verbatim.verify.let_by import LetBy
from verbatim.verify.letters import Letter, LetterCheck, PartitionLetters
from verbatim.verify.mappings import Runs
from verbatim.verify.pipeline.avro import Texts
from verbatim.verify.pipeline.definition import Pipeline, Result
from verbatim.verify.pipeline.json_tree import Bad, tree, written
from verbatim.verify.pipeline.own_code import missing
from verbatim.verify.pipeline.records import Item, Json, Record, Tree, is_json, path
from verbatim.verify.pipeline.schema_ids import Ids
from verbatim.verify.pipeline.stages import hashed
from verbatim.verify.pipeline.unknown_keys import masked_parts
from verbatim.verify.provenance import Headers
from verbatim.verify.versions import Versions

_REMEMBERED = 500_000
_WORDS = {"header": "headers"}


@dataclass(frozen=True)
class Rules:
    """What a version does with a topic. `why`: it can't be told what, and why."""

    number: int
    pipeline: Pipeline | None = None
    flow: Json | None = None
    as_json: frozenset[str] = frozenset()
    """`key` and `value`, where a stage may have put them together anew."""
    masked: frozenset[str] = frozenset()
    """What has masks whose keys are not given."""
    why: str | None = None

    @property
    def on_error(self) -> str:
        said = (self.flow or {}).get("onError", "halt")
        return said if isinstance(said, str) else "dead-letter" if "dead-letter" in said else "skip"

    @property
    def payload(self) -> bool:
        """Whether dead letters have the records in them."""
        said = (self.flow or {}).get("onError")
        return isinstance(said, dict) and said.get("dead-letter", {}).get("payload", False) is True

    @property
    def tolerate(self) -> Json | None:
        """`records` of `per` offsets that a stage may fail on; None: any number."""
        said = (self.flow or {}).get("onError")
        return said.get("tolerate") if isinstance(said, dict) else None

    @property
    def drops(self) -> bool:
        """Whether a record may be left out, or go elsewhere, and no tombstone comes instead."""
        stages = (self.flow or {}).get("stages", ())
        filters = [stage["filter"] for stage in stages if "filter" in stage]
        if self.on_error != "halt" or any({"python", "sql", "route"} & stage.keys() for stage in stages):
            return True
        return any(one.get("otherwise") != "tombstone" for one in filters)

    def digest(self, timestamp_ms: int, key: Item, value: Item, headers: Headers) -> bytes:
        known = None if "header" in self.masked else headers
        return digest(timestamp_ms, self._shown("key", key), self._shown("value", value), known)

    def _shown(self, side: str, item: Item) -> bytes | None:
        if item is None:
            return None
        if side in self.masked:
            return b""
        if isinstance(item, Tree):
            return written(item.node).encode()
        if side not in self.as_json:
            return item
        try:
            return written(tree(item)).encode()
        except Bad:
            return item


class Pipelines:
    """All versions of a link. `keys`: those that are given, by name."""

    def __init__(
        self,
        definitions: Mapping[int, str],
        keys: Mapping[str, bytes],
        link: str,
        ids: Ids | None = None,
        texts: Texts | None = None,
    ) -> None:
        """`ids`: of schemas at the target, `texts`: theirs, which may become more while records are read."""
        self._all = {n: Pipeline.of(text.encode(), keys, ids, texts) for n, text in definitions.items()}
        self._rules: dict[tuple[str, int], Rules | None] = {}
        self.newest = next(reversed(self._all), 0)
        self.link = link

    def touch(self, topic: str) -> bool:
        """Whether a version has a flow for the topic."""
        return any(pipeline.flow_of(topic) is not None for pipeline in self._all.values())

    def drop(self, topic: str) -> bool:
        """Whether a version may leave records of the topic out."""
        return any(rules is not None and rules.drops for n in self._all for rules in [self.rules(topic, n)])

    def targets(self, topic: str) -> set[str]:
        """Where versions may take records of the topic instead of the link's own destination: topics, or
        partitions of such, as `topic/partition`."""
        return set[str]().union(*(pipeline.targets(topic, self.link) for pipeline in self._all.values()))

    def rules(self, topic: str, number: int) -> Rules | None:
        """None: the version copies the topic as it is."""
        if (topic, number) not in self._rules:
            self._rules[topic, number] = self._made(topic, number)
        return self._rules[topic, number]

    def _made(self, topic: str, number: int) -> Rules | None:
        if number == 0:
            return None
        pipeline = self._all.get(number)
        if pipeline is None:
            return Rules(number, why="the control topic has no such version")
        flow = pipeline.flow_of(topic)
        if flow is None:
            return None
        why = _lacking(flow["stages"]) or missing(flow, pipeline.definition.get("code", {}))
        if why is not None:
            return Rules(number, why=why)
        try:
            masked = masked_parts(flow, pipeline.keys)
        except LookupError:
            return Rules(
                number, why="what was masked with a key that is not given decides what becomes of records"
            )
        return Rules(number, pipeline, flow, frozenset(_put_together(flow)), masked)


def _lacking(stages: list[Json]) -> str | None:
    """What they need that is not installed here."""
    if any("validate" in s for s in stages) and importlib.util.find_spec("jsonschema") is None:
        return "its stage validate needs the extra `validate`"
    encrypts = any("encrypt" in s.get("mask", {"fields": {}})["fields"].values() for s in stages)
    if encrypts and importlib.util.find_spec("cryptography") is None:
        return "its method encrypt needs the extra `encrypt`"
    return None


def _put_together(flow: Json) -> set[str]:
    """The sides that a stage may have put together anew."""
    found = set()
    for stage in flow["stages"]:
        if "mask" in stage:
            side = stage["mask"].get("side", "value")
            found |= {root for text in stage["mask"]["fields"] if is_json(root := path(text, side)[0], flow)}
        elif "fields" in stage:
            found.add(stage["fields"].get("side", "value"))
    return found


@dataclass(frozen=True)
class Place:
    """The partition that is read. `next`: where its mappings end; what lies behind is of the newest
    version. `routed_to`: the topic that is looked at, or `topic/partition`, where it is not the
    `own` destination."""

    topic: str
    partition: int
    next: int
    versions: Versions
    compacted: bool = False
    own: str = ""
    routed_to: str | None = None


class Expected:
    """One reading of both sides of a partition: by what each record is compared; and what was counted
    meanwhile."""

    def __init__(
        self, pipelines: Pipelines, place: Place, runs: Runs | None, letters: PartitionLetters | None = None
    ) -> None:
        """`runs`: if they can be searched; `letters`: the partition's."""
        self._pipelines = pipelines
        self._place = place
        self._runs = runs
        self._known: dict[int, Rules | None] = {}
        self._transformed = 0
        self._filtered = 0
        self._routed = 0
        self._masked: dict[int, int] = {}
        self._untold: dict[int, int] = {}
        """Source records by version."""
        self._failed: tuple[int, int] | None = None
        """Of those that a stage fails on, or waits with, and that should have halted the partition: the
        first, how many."""
        self._skipped = 0
        self._let_by = LetBy()
        self._letters = LetterCheck(letters or PartitionLetters())
        self._too_deep = 0
        self._left_out = array("q")
        self._delivered: tuple[int, int, int] | None = None
        """Of those that are left out and yet mapped: source and destination offset of the first, how many."""
        self._as_it_came: dict[int, bytes] = {}
        self._found: dict[int, bytes] = {}
        """Of records that no stage has touched, in a flow that may: how key and value are written."""

    def version_of_source(self, offset: int) -> int:
        if offset >= self._place.next:
            return self._pipelines.newest
        return self._place.versions.of_source(offset) or 0

    def version_of_destination(self, offset: int) -> int:
        found = self._place.versions.of_destination(offset)
        return self._pipelines.newest if found is None else found

    def source(
        self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> bytes | None:
        """The digest of what is to be at the destination; None: nothing is, or it can't be told."""
        try:
            return self._made(offset, timestamp_ms, key, value, headers)
        except RecursionError:
            self._too_deep += 1
            return None

    def _made(
        self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> bytes | None:
        rules = self._rules(self.version_of_source(offset))
        place, arrived = self._place, offset < self._place.next
        if rules is None:
            if place.routed_to is None:
                if arrived:
                    self._letters.must_not_be(offset)
                return digest(timestamp_ms, key, value, headers)
            self._leave_out(offset)
            return None
        if rules.pipeline is None:
            self._untold[rules.number] = self._untold.get(rules.number, 0) + 1
            return None
        record = Record(
            place.topic, place.partition, offset, timestamp_ms, key, value, tuple(headers or ()),
            self._pipelines.link,
        )  # fmt: skip
        result = rules.pipeline.apply(record)
        goes_on = result.outcome not in ("failed", "left-out", "waits")
        if place.routed_to is None:
            if not goes_on:
                return self._stopped(offset, rules, result, record)
            if arrived:
                self._letters.must_not_be(offset)
        to = None if result.record.to == place.own else self._target(offset, result.record)
        if goes_on and to == place.routed_to:
            return self._goes_on(offset, rules, result, record)
        self._routed += arrived and place.routed_to is None
        self._leave_out(offset)
        return None

    def _target(self, offset: int, made: Record) -> str | None:
        """Where it goes, as `targets` has it."""
        if made.to is None or made.among is None:
            return made.to
        if not isinstance(made.key, Tree):
            return f"{made.to}/{hashed(made.key, made.partition, made.among)}"
        # JSON that a stage has changed is known as a tree, not to the byte: the mapping tells.
        here, runs = self._place.routed_to, self._runs
        mine = here is not None and here.partition("/")[0] == made.to and runs is not None
        if mine and runs is not None and runs.destination_of(np.array([offset]))[0] >= 0:
            return here
        return f"{made.to}/"

    def _stopped(self, offset: int, rules: Rules, result: Result, given: Record) -> bytes | None:
        """A stage fails on it, leaves it out, or waits with it."""
        arrived, failed = offset < self._place.next, result.outcome == "failed"
        key, value = _as_it_came(given)
        headers = list(given.headers)
        if failed and rules.on_error == "dead-letter":
            if arrived:
                wanted = (key, value, headers) if rules.payload else (None, None, None)
                letter = Letter(rules.number, f"stage {result.stage}", digest(given.timestamp, *wanted))
                self._must_be(letter, offset, rules)
            return None
        if arrived:
            self._letters.must_not_be(offset)
        if result.outcome == "waits" or (failed and rules.on_error == "halt"):
            if not arrived:
                # It stands still there: what has not come is behind.
                return digest(given.timestamp, key, value, headers)
            self._give_up(offset)
            return None
        if arrived:
            self._filtered += 1
            self._skipped += failed
            self._let_by.count(rules.number, rules.tolerate, offset, failed)
            self._leave_out(offset)
        return None

    def _goes_on(self, offset: int, rules: Rules, result: Result, given: Record) -> bytes:
        made = result.record
        if offset < self._place.next:
            self._transformed += not result.is_copied_as(given.timestamp, *_as_it_came(given), given.headers)
            if rules.masked:
                self._masked[rules.number] = self._masked.get(rules.number, 0) + 1
        if (
            rules.as_json
            and not self._place.compacted
            and not any(isinstance(item, Tree) for item in (made.key, made.value))
        ):
            _remember(self._as_it_came, offset, made.key, made.value)
        return rules.digest(made.timestamp, made.key, made.value, list(made.headers))

    def destination(
        self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> bytes | None:
        """The digest of what is there; None: it can't be told whether it is right."""
        rules = self._rules(self.version_of_destination(offset))
        if rules is None:
            return digest(timestamp_ms, key, value, headers)
        if rules.pipeline is None:
            return None
        if rules.as_json and not self._place.compacted:
            _remember(self._found, offset, key, value)
        with suppress(RecursionError):
            return rules.digest(timestamp_ms, key, value, headers)
        return None

    def paired(self, report: PartitionReport, source: list[int], destination: list[int]) -> None:
        """Both are equal: what no stage has touched must be so to the byte."""
        if not self._found:
            return
        for ours, theirs in zip(source, destination, strict=True):
            found, wanted = self._found.pop(theirs, None), self._as_it_came.pop(ours, None)
            if None not in (found, wanted) and found != wanted:
                report.add(
                    Kind.ALTERED, ours, theirs, "the same JSON, but not to the byte, as no stage touches it"
                )

    def finish(self, report: PartitionReport, accepted_loss: int) -> None:
        """Puts into the report what was counted. `accepted_loss`: so many offsets an operator has let go."""
        self._check_left_out()
        report.transformed += self._transformed
        report.filtered += self._filtered
        report.dead_letters += self._letters.due
        report.routed += self._routed
        report.source_records += self._filtered + self._routed + self._letters.due
        self._letters.finish(report)
        if self._delivered is not None:
            source, destination, count = self._delivered
            report.add(Kind.MAPPING, source, destination, "a record that is left out is mapped", count)
        if self._failed is not None and self._failed[1] > accepted_loss:
            first, count = self._failed
            why = "a stage fails on it, or waits with it, and no operator has accepted its loss"
            report.add(Kind.LOST, first, None, why, count - accepted_loss)
        self._let_by.finish(report)
        if self._too_deep:
            report.note(f"{self._too_deep:,} source records are JSON nested too deeply to be compared")
        if self._skipped:
            report.note(f"{self._skipped:,} of the records that were left out are some that a stage fails on")
        for number, count in self._untold.items():
            rules = cast("Rules", self._rules(number))
            text = f"pipeline version {number}: {rules.why}"
            report.note(f"{text}: {count:,} source records, and what has become of them, were not compared")
        for number, count in self._masked.items():
            rules = cast("Rules", self._rules(number))
            parts = " and ".join(sorted(_WORDS.get(part, part) for part in rules.masked))
            report.note(
                f"pipeline version {number} masks with keys that are not given: {count:,} records were compared without their {parts}"
            )

    def tell_versions(self, report: PartitionReport) -> None:
        """Gives each finding the version that its first record is of."""
        for finding in report.findings.values():
            if finding.source_offset is not None:
                finding.version = self.version_of_source(finding.source_offset)
            elif finding.destination_offset is not None:
                finding.version = self.version_of_destination(finding.destination_offset)

    def _rules(self, number: int) -> Rules | None:
        if number not in self._known:
            rules = self._pipelines.rules(self._place.topic, number)
            if rules is not None and "key" in rules.masked and self._place.compacted:
                why = "it masks the keys of a compacted topic with a key that is not given"
                rules = replace(rules, pipeline=None, why=why)
            self._known[number] = rules
        return self._known[number]

    def _must_be(self, letter: Letter, offset: int, rules: Rules) -> None:
        """A record that is to be a dead letter, or that has halted its partition as one too many."""
        self._leave_out(offset)
        if rules.tolerate is not None and not self._letters.has(offset):
            self._give_up(offset)
            return
        self._let_by.count(rules.number, rules.tolerate, offset)
        self._letters.must_be(offset, letter)

    def _give_up(self, offset: int) -> None:
        """A record that is there neither as it is nor as a letter: an operator must have said so."""
        first, count = self._failed or (offset, 0)
        self._failed = first, count + 1

    def _leave_out(self, offset: int) -> None:
        """It is not to be here: no mapping may lead to it."""
        if offset >= self._place.next:
            return
        self._left_out.append(offset)
        if len(self._left_out) >= 100_000:
            self._check_left_out()

    def _check_left_out(self) -> None:
        """No mapping may lead anywhere from these."""
        offsets = np.frombuffer(self._left_out, dtype=np.int64)
        self._left_out = array("q")
        if self._runs is None or not len(offsets):
            return
        mapped = self._runs.destination_of(offsets)
        wrong = np.flatnonzero(mapped >= 0)
        if len(wrong):
            at = int(wrong[0])
            first = self._delivered or (int(offsets[at]), int(mapped[at]), 0)
            self._delivered = first[0], first[1], first[2] + len(wrong)


def _as_it_came(given: Record) -> tuple[bytes | None, bytes | None]:
    """Key and value of a record of the source, which are bytes, if they are there."""
    key, value = given.key, given.value
    assert not isinstance(key, Tree) and not isinstance(value, Tree)
    return key, value


def _remember(where: dict[int, bytes], offset: int, *items: Item) -> None:
    where[offset] = blake2b(repr(items).encode(), digest_size=8).digest()
    if len(where) > _REMEMBERED:
        del where[next(iter(where))]
