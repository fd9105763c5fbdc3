"""What pipelines make of records that are really there, and where two of them differ. Pure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from common.kafka.wire.records import Item, headers_of
from common.partitions import PartitionName
from common.pipeline.batch import Origin
from common.pipeline.engine import Engine, Outcome
from common.pipeline.tolerating import Tolerated
from verbatim.pipeline.twice import must_be_pure

Rows = Mapping[PartitionName, pa.RecordBatch]
"""Source topic and partition -> records of `common.kafka.wire.records.ROWS`, in order."""
Contents = dict[str, Any]
"""Of a record: timestamp in ms, key, value, and headers as pairs; text, or null."""
LONGEST = 2_000
"""Characters of a key, value or header that are shown."""
WORDS = {outcome: outcome.name.lower().replace("_", "-") for outcome in Outcome}
FAILED = {"halt": WORDS[Outcome.FAILED], "skip": "skipped", "dead-letter": "dead-letter"}
"""What becomes of a record that a stage fails on, by the flow's `onError`."""


@dataclass
class Tried:
    """A record, what becomes of it and, if it goes on, as what. `why`: where a stage fails; `topic`: where a
    stage takes it, None for the link's own destination."""

    partition: int
    offset: int
    outcome: str
    before: Contents
    after: Contents | None
    why: str | None = None
    topic: str | None = None

    @property
    def result(self) -> Any:
        """Whether two of these are the same: what goes on, and where, or what else becomes of it."""
        return self.outcome if self.after is None else (self.after, self.topic)


Pair = tuple[Tried, Tried]
"""A record as one pipeline leaves it, and as another does."""


@dataclass
class TopicTried:
    """A topic's records. `us`: of each, on average, in the engine; `halts`: whether a failure halts a
    partition."""

    topic: str
    records: list[Tried] = field(default_factory=list)
    us: float = 0.0
    halts: bool = False

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(record.outcome for record in self.records)


def tried(engine: Engine | None, link: str, rows: Rows) -> dict[str, TopicTried]:
    """What becomes of the records, topic by topic; without a flow, or an engine, they are kept. Raises
    SettingsError where that is not the same when it is done again."""
    found: dict[str, TopicTried] = {}
    for (topic, partition), batch in sorted(rows.items(), key=lambda item: item[0]):
        flow = None if engine is None else engine.flow_of(topic)
        halts = flow is not None and (flow.on_error == "halt" or flow.tolerate is not None)
        into = found.setdefault(topic, TopicTried(topic, halts=halts))
        before = after = _contents(batch)
        to: dict[int, str | None] = {}
        outcomes, failed = [Outcome.KEPT] * len(batch), dict[int, str]()
        one_too_many: set[int] = set()
        words = WORDS
        if flow is not None:
            began = time.perf_counter()
            applied = flow.apply(batch, Origin(link, topic, partition))
            into.us += (time.perf_counter() - began) * 1e6
            must_be_pure(flow, batch, Origin(link, topic, partition), applied)
            words = WORDS | {Outcome.FAILED: FAILED[applied.on_error]}
            into.halts |= applied.on_error == "halt"
            after, outcomes = _contents(applied.rows), list(map(Outcome, applied.outcomes))
            to = dict(zip(after, applied.topics, strict=True))
            stopped = applied.failures + applied.waits
            failed = {failure.offset: f"{failure.stage}: {failure.reason}" for failure in stopped}
            if flow.tolerate is not None:
                offsets = [failure.offset for failure in applied.failures]
                let_by = Tolerated(flow.tolerate).take(offsets)
                one_too_many = {*offsets[let_by : let_by + 1]}
        into.records += [
            Tried(
                partition,
                offset,
                WORDS[Outcome.FAILED] if offset in one_too_many else words[outcome],
                one,
                after.get(offset),
                failed.get(offset),
                to.get(offset),
            )
            for (offset, one), outcome in zip(before.items(), outcomes, strict=True)
        ]
    for tried_ in found.values():
        tried_.us /= len(tried_.records) or 1
    return found


def _contents(rows: pa.RecordBatch) -> dict[int, Contents]:
    """By offset."""
    offsets, timestamps, keys, values = (rows.column(n).to_pylist() for n in (0, 1, 3, 4))
    columns = zip(offsets, timestamps, keys, values, headers_of(rows), strict=True)
    return {
        offset: {
            "timestamp": timestamp,
            "key": _text(key),
            "value": _text(value),
            "headers": [[name, _text(item)] for name, item in headers or ()],
        }
        for offset, timestamp, key, value, headers in columns
    }


def _text(item: Item) -> str | None:
    return None if item is None else item.decode(errors="backslashreplace")


def record_lines(topic: str, record: Tried) -> Iterator[str]:
    """A record, what becomes of it and why, for people."""
    why = f" ({record.why})" if record.why else ""
    place = f"{topic}/{record.partition} offset {record.offset}: {record.outcome}{_to(record)}{why}"
    return lines(place, record.before, record.after)


def _to(record: Tried) -> str:
    return "" if record.topic is None else f", to {record.topic}"


def lines(place: str, before: Contents, after: Contents | None) -> Iterator[str]:
    """A record before and after for people, the parts that differ."""
    yield place
    there: Contents = {} if after is None else after
    for part in ("timestamp", "key", "value"):
        if after is None or before[part] != there[part]:
            yield f"  - {part} {_shown(before[part])}"
            yield from [] if after is None else [f"  + {part} {_shown(there[part])}"]
    old, new = ([(name, item) for name, item in one.get("headers", ())] for one in (before, there))
    if old != new:
        yield from (f"  - header {name} {_shown(item)}" for name, item in old if (name, item) not in new)
        yield from (f"  + header {name} {_shown(item)}" for name, item in new if (name, item) not in old)


def _shown(item: Any) -> str:
    text = "(null)" if item is None else str(item)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} characters)"


def differing(one: TopicTried, other: TopicTried) -> list[Pair]:
    """The records that come out differently, of the same ones tried twice."""
    return [pair for pair in zip(one.records, other.records, strict=True) if pair[0].result != pair[1].result]
