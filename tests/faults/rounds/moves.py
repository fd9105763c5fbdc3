"""How a link may end: its consumers are moved to the target, by a cutover or, the source being cut off, by a
failover, while faults befall what is left. Then none of them misses anything, and what the command told is
so. Or one of its topics is promoted: the link goes on with the others."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.rounds import checker, groups
from tests.faults.rounds.checker import Mapped, Partition
from tests.faults.rounds.groups import Place
from tests.faults.rounds.proxy import wait_for
from tests.faults.rounds.world import NODES, OFFSETS, Link, Side
from tests.support.brokers import Record, Seen, end_offsets, produce, read_all

CUTOVER, FAILOVER, PROMOTE = "cutover", "failover", "promote"
AMID: dict[str, Sequence[str]] = {
    CUTOVER: (
        "broker/kill-source",
        "broker/kill-source-first",
        "broker/pause-source-past-session",
        "broker/kill-leader",
        "broker/kill-transaction-coordinator",
        "broker/kill-group-coordinator",
        "broker/pause-group-coordinator-past-session",
        "broker/pause-controller-past-session",
        "app/kill-replicator",
        "app/kill-replicator-worker",
        "app/kill-deduplicator",
        "app/kill-deduplicator-driver",
        "app/kill-deduplicator-worker",
        "app/pause-deduplicator-past-session",
        "app/kill-offsets",
        "app/pause-offsets-past-session",
        "net/reset-source",
        "net/stall-target",
        "net/unreachable-target",
    ),
    FAILOVER: (
        "broker/kill-leader",
        "broker/kill-transaction-coordinator",
        "broker/kill-group-coordinator",
        "broker/kill-controller",
        "broker/pause-group-coordinator-past-session",
        "broker/pause-transaction-coordinator-past-session",
        "app/kill-deduplicator",
        "app/kill-deduplicator-driver",
        "app/pause-deduplicator-past-session",
        "net/reset-target",
        "net/stall-target",
        "net/unreachable-target",
    ),
}
AMID[PROMOTE] = AMID[CUTOVER]
"""What may befall a link meanwhile: no load is needed for it."""
FORGOTTEN = b"written where nobody reads any more"
TRIES = 8
COPIED_ON_S = 60.0
GONE_ON_S = 2.0
"""For so long the source still gets records that the link can't see any more."""


@dataclass
class Moved:
    """What came of a command that was run until it said ok: each refusal, and its last report."""

    refused: list[str] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return bool(self.report.get("ok"))


def run(link: Link, move: str, topic: str, tries: int = TRIES) -> Moved:
    """The command, again and again: whatever it refuses is over some time. `topic`: the one to promote."""
    moved = Moved()
    words = [FAILOVER] if move == FAILOVER else [CUTOVER, "--quiet", "2s"]
    words += [*(["--topic", topic] if move == PROMOTE else []), "--output", "json", "--wait", "60s"]
    for _ in range(tries):
        ended = link.command(*words)
        moved.report = json.loads(ended.stdout or "{}")
        if ended.returncode == 0 and moved.ok:
            return moved
        why = moved.report.get("refused") or ended.stderr.strip().splitlines()[-1:]
        moved.report = {}
        moved.refused.append(f"{ended.returncode}: {why}"[:300])
        time.sleep(1)
    return moved


def cut_off(source: Side) -> None:
    """From now on nobody who goes by the proxy gets through to the source."""
    source.proxy.unreachable.update(range(1, NODES + 1))
    source.proxy.cut(True)


def let_back(source: Side) -> None:
    source.proxy.unreachable.clear()


def stop_reading(link: Link) -> None:
    """As an operator does before a failover; one of the two without a chance to say goodbye."""
    link.retire("replicator", gently=False)
    link.retire(OFFSETS, gently=True)


def beyond(reached: Mapping[Partition, int], ends: Mapping[Partition, int]) -> bool:
    if all(reached.get(where, -1) >= end for where, end in ends.items()):
        return True
    time.sleep(0.2)
    return False


def promotion_problems(link: Link, source: str, target: str, topics: Sequence[str]) -> list[str]:
    """Of the first topic, which is promoted, nothing more is copied; of the others all is."""
    promoted, *others = topics
    before = end_offsets(target, promoted, "read_uncommitted")
    for topic in topics:
        produce(source, topic, [Record(FORGOTTEN, b"key", partition=p) for p in before])
    ends = {(t, p): end for t in others for p, end in end_offsets(source, t, "read_uncommitted").items()}
    copied = wait_for(lambda: beyond(link.tail.reached(), ends), COPIED_ON_S)
    problems = [] if copied else [f"after {promoted} was promoted the others are not copied any more"]
    if end_offsets(target, promoted, "read_uncommitted") != before:
        problems.append(f"{promoted} was promoted, and is copied all the same")
    return problems


def failover_problems(
    source: str, target: str, link: str, topics: Sequence[str], committed: Mapping[Place, int], moved: Moved
) -> list[str]:
    """Of each partition the destination has what the source had below the offset that was told, and no more;
    each group stands where it was said to, and never beyond what it has read."""
    mapped = checker.read_mappings(target, f"{link}.offset-mappings")
    told = {(m["topic"], m["partition"]): m for m in moved.report["missing"]}
    problems: list[str] = []
    for topic in topics:
        for number, (there, here) in enumerate(
            zip(read_all(source, topic), read_all(target, topic, timeout_s=60), strict=True)
        ):
            at = (topic, number)
            problems += partition_problems(at, told.get(at, {}), mapped.get(at, []), there, here)
    places = {(g["group"], g["topic"], g["partition"]): g for g in moved.report["groups"]}
    mine = {at: row for at, row in places.items() if at in committed}
    ends = {topic: end_offsets(target, topic, "read_uncommitted") for topic in topics}
    problems += group_problems(mine, committed, groups.committed_at(target, mine), mapped, ends)
    if not mine:
        problems.append("no group was moved")
    problems += checker.open_transactions(target, list(topics), 20.0)
    return problems + checker.halted(target, link)


def partition_problems(
    at: Partition, told: Mapping[str, Any], mapped: list[Mapped], there: list[Seen], here: list[Seen]
) -> list[str]:
    """What is wrong with one partition, of which that was told. Pure."""
    name = f"{at[0]}-{at[1]}"
    delivered = told.get("delivered")
    if delivered is None:
        return [f"{name}: nobody was told how far it is delivered"] if here else []
    below = [record for record in there if record.offset < delivered]
    end = there[-1].offset + 1 if there else 0
    problems = checker.compare(name, below, here) + checker.compare_mapped(at, mapped, below, here)
    if told["at_least"] > max(0, end - delivered):
        problems.append(f"{name}: {told['at_least']} offsets are said to be missing of {end - delivered}")
    return problems


def group_problems(
    rows: Mapping[Place, Mapping[str, Any]],
    committed: Mapping[Place, int],
    found: Mapping[Place, int],
    mapped: Mapping[Partition, list[Mapped]],
    ends: Mapping[str, Mapping[int, int]],
) -> list[str]:
    """What is wrong with groups: `rows` are what was told of them, `committed` what they had at the source,
    `found` what they have at the target. Pure."""
    problems = []
    for at, row in rows.items():
        group, topic, partition = at
        name = f"group {group}, {topic}-{partition}"
        if row["source_offset"] > committed[at]:
            problems.append(f"{name}: {row['source_offset']} was told, it stood at {committed[at]}")
        least, most = groups.bounds(
            mapped.get((topic, partition), []), row["source_offset"], ends[topic][partition]
        )
        if not least <= found.get(at, -1) <= most:
            problems.append(
                f"{name}: {row['source_offset']} at the source, {found.get(at)} at the target, not from {least} to {most}"
            )
    return problems
