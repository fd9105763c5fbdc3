"""What a round left behind, judged by itself: records, mappings and transactions as the brokers hold them.

Nothing here knows frames, state or mappings from the project's code: a consumer reads, json decodes, tests
compare.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from tests.support.brokers import Seen, end_offsets, read_all, topics

Partition = tuple[str, int]


@dataclass
class Verdict:
    """What was found; good without `problems`."""

    problems: list[str] = field(default_factory=list)
    records: int = 0
    mappings: int = 0
    runs: int = 0


@dataclass(frozen=True)
class Mapped:
    """One mapping record, as JSON says."""

    start: int
    next: int
    destination: Partition
    runs: list[list[int]]
    records: int
    pipeline: int = 0
    routed: dict[str, list[list[int]]] = field(default_factory=dict)
    """Runs by topic, of records that go elsewhere."""

    def elsewhere(self, topic: str) -> Mapped:
        """What it says of one of those topics."""
        runs = self.routed.get(topic, [])
        count = sum(length for *_, length in runs)
        return Mapped(self.start, self.next, (topic, self.destination[1]), runs, count, self.pipeline)


def read_mappings(target: str, mappings_topic: str) -> dict[Partition, list[Mapped]]:
    """Source partition -> its committed mapping records, in the order of the log."""
    found: dict[Partition, list[Mapped]] = {}
    for partition in read_all(target, mappings_topic, timeout_s=60):
        for record in partition:
            m: dict[str, Any] = json.loads(record.value or b"")
            routed = {of["topic"]: of["runs"] for of in m.get("routed", ())}
            found.setdefault((m["topic"], m["partition"]), []).append(
                Mapped(
                    m["start"],
                    m["next"],
                    (m["destination_topic"], m["destination_partition"]),
                    m["runs"],
                    m["records"] - sum(length for runs in routed.values() for *_, length in runs),
                    m.get("pipeline", 0),
                    routed,
                )
            )
    return found


class Tail:
    """Follows the mappings, to tell when to look: how far each source partition is said to be delivered. It
    judges nothing."""

    def __init__(self, target: str, mappings_topic: str) -> None:
        self._topic = mappings_topic
        self._lock = threading.Lock()
        self._next: dict[Partition, int] = {}
        self._count = 0
        self._assigned = False
        self._consumer = Consumer(
            {
                "bootstrap.servers": target,
                "group.id": "tests.tail",
                "isolation.level": "read_committed",
                "enable.auto.commit": "false",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )

    def reached(self) -> dict[Partition, int]:
        """Source partition -> next."""
        with self._lock:
            self._take()
            return dict(self._next)

    def count(self) -> int:
        """Mapping records seen: it grows when something is delivered."""
        with self._lock:
            self._take()
            return self._count

    def close(self) -> None:
        with self._lock:
            self._consumer.close()

    def _take(self) -> None:
        if not self._assigned:
            try:
                partitions = self._consumer.list_topics(self._topic, timeout=5).topics[self._topic].partitions
            except KafkaException:
                return
            if not partitions:
                time.sleep(0.3)
                return
            self._consumer.assign([TopicPartition(self._topic, p, OFFSET_BEGINNING) for p in partitions])
            self._assigned = True
        while messages := self._consumer.consume(1000, 0.2):
            for message in messages:
                if message.error() is None:
                    m = json.loads(message.value() or b"")
                    self._next[(m["topic"], m["partition"])] = m["next"]
                    self._count += 1
            if len(messages) < 1000:
                return


Made = Callable[[str, list[Seen], list[Mapped]], tuple[list[Seen], list[str]]]
"""What is to be at the destination of a topic's partition, and what is wrong with its mappings."""


Elsewhere = Callable[[str, list[Seen], list[Mapped]], dict[str, list[Seen]]]
"""By topic, what of a topic's partition is to be there instead."""


def nowhere(*_: object) -> dict[str, list[Seen]]:
    return {}


def as_they_are(_: str, there: list[Seen], __: list[Mapped]) -> tuple[list[Seen], list[str]]:
    return there, []


def check(
    source: str,
    target: str,
    link: str,
    wanted: Sequence[str],
    settle_s: float = 20.0,
    made: Made = as_they_are,
    elsewhere: Elsewhere = nowhere,
) -> Verdict:
    """Every record of the topics, or what is `made` of it, exactly once at the destination, in order, in its
    partition and byte for byte; mappings that take each to its equal, in order; no transaction left open;
    nothing halted."""
    verdict = Verdict()
    mapped = read_mappings(target, f"{link}.offset-mappings")
    there_now = topics(target)
    for topic in wanted:
        there = read_all(source, topic, timeout_s=60)
        verdict.records += sum(map(len, there))
        if topic not in there_now:
            if any(there):
                verdict.problems.append(f"{topic}: no such topic at the destination")
            continue
        here = read_all(target, topic, timeout_s=60)
        if len(here) != len(there):
            verdict.problems.append(
                f"{topic}: {len(here)} partitions at the destination, {len(there)} at the source"
            )
        for number, (of, b) in enumerate(zip(there, here, strict=False)):
            records = mapped.get((topic, number), [])
            a, wrong = made(topic, of, records)
            verdict.problems += [f"{topic}-{number}: {what}" for what in wrong]
            verdict.problems += compare(f"{topic}-{number}", a, b)
            verdict.mappings += len(records)
            verdict.runs += sum(len(m.runs) for m in records)
            verdict.problems += compare_mapped((topic, number), records, a, b)
            for name, away in elsewhere(topic, of, records).items():
                found = read_all(target, name, timeout_s=60)[number] if name in there_now else []
                verdict.problems += compare(f"{name}-{number}", away, found)
                its = [m.elsewhere(name) for m in records]
                verdict.problems += compare_mapped((name, number), its, away, found)
    verdict.problems += open_transactions(
        target, [t for t in there_now if t in wanted or t.startswith(f"{link}.")], settle_s
    )
    verdict.problems += halted(target, link)
    return verdict


def compare(where: str, there: list[Seen], here: list[Seen]) -> list[str]:
    """The destination's partition is the source's, record by record."""
    a, b = [frozen(r) for r in there], [frozen(r) for r in here]
    if a == b:
        return []
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    lost, twice = Counter(a) - Counter(b), Counter(b) - Counter(a)
    at = there[first].offset if first < len(there) else "the end"
    found = f"{sum(lost.values())} missing, {sum(twice.values())} too many or altered"
    counts = f"{len(a)} records at the source, {len(b)} at the destination"
    return [f"{where}: {counts}; {found}; first difference at record {first}, source offset {at}"]


def frozen(record: Seen) -> tuple[Any, ...]:
    """All that must be equal on both sides, as something to count by."""
    headers = None if record.headers is None else tuple(record.headers)
    return (record.key, record.value, headers, record.timestamp, record.timestamp_type)


def compare_mapped(where: Partition, mapped: list[Mapped], there: list[Seen], here: list[Seen]) -> list[str]:
    """Mappings cover the source's records without gap or overlap, strictly upwards, and point at equal
    records."""
    name = f"{where[0]}-{where[1]}"
    if not mapped:
        return [f"{name}: no mappings"] if there else []
    problems = []
    for before, after in pairwise(mapped):
        if after.start != before.next:
            problems.append(
                f"{name}: mapping [{after.start}, {after.next}) follows one that ends at {before.next}"
            )
    pairs: list[tuple[int, int]] = []
    for m in mapped:
        run = [(s + i, d + i) for s, d, length in m.runs for i in range(length)]
        if m.destination != where:
            problems.append(f"{name}: mapped to {m.destination}")
        if len(run) != m.records or any(not m.start <= s < m.next for s, _ in run):
            problems.append(f"{name}: the runs of mapping [{m.start}, {m.next}) are not its records")
        pairs += run
    if [s for s, _ in pairs] != [r.offset for r in there]:
        problems.append(
            f"{name}: {len(pairs)} source offsets are mapped, which are not those of the {len(there)} records"
        )
    if any(x[1] >= y[1] for x, y in pairwise(pairs)):
        problems.append(f"{name}: destination offsets of the mappings do not go upwards")
    held = {r.offset: frozen(r) for r in here}
    source = {r.offset: frozen(r) for r in there}
    wrong = [(s, d) for s, d in pairs if held.get(d) != source.get(s)]
    if wrong:
        (s, d), (t, e) = wrong[0], wrong[-1]
        empty = sum(d not in held for _, d in wrong)
        problems.append(
            f"{name}: {len(wrong)} mappings point at another record, {empty} of them at none: first {s} at {d}, last {t} at {e}"
        )
    return problems


def open_transactions(bootstrap: str, wanted: Sequence[str], settle_s: float) -> list[str]:
    """Partitions whose last stable offset stays below their end. A delivery at work has one open for moments
    only."""
    deadline = time.monotonic() + settle_s
    waiting: dict[Partition, int] = {}
    for topic in wanted:
        for partition, end in end_offsets(bootstrap, topic, "read_uncommitted").items():
            waiting[(topic, partition)] = end
    while True:
        for topic in {t for t, _ in waiting}:
            for partition, stable in end_offsets(bootstrap, topic).items():
                if stable >= waiting.get((topic, partition), stable + 1):
                    del waiting[(topic, partition)]
        if not waiting or time.monotonic() > deadline:
            return [
                f"{t}-{p}: a transaction is open below offset {end}"
                for (t, p), end in sorted(waiting.items())
            ]
        time.sleep(0.3)


def halted(target: str, link: str) -> list[str]:
    """Partitions that stand still by name: none of a round's faults loses anything."""
    return [
        f"{said['topic']}-{said['partition']} is halted: {said['reason']}: {said['detail']}"
        for said in halts(target, link)
    ]


def halts(target: str, link: str) -> list[dict[str, Any]]:
    """What the control topic says of those that stand still."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in read_all(target, f"{link}.control")[0]:
        said = json.loads(record.value or b"")
        if said["kind"] in ("halted", "resumed"):
            where = (said["application"], said["topic_id"], said["partition"])
            found.pop(where, None)
            if said["kind"] == "halted":
                found[where] = said
    return list(found.values())
