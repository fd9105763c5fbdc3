"""What a rehearsed cutover makes of a link that is in use: how much is to be drained, what no wait mends,
which groups would be in the way. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from common.partitions import PartitionId, PartitionName
from offsets.commit_rule import Outcome
from offsets.survey import Row
from verbatim.moves import cutover_rules
from verbatim.moves.link_progress import Link

PASSING: frozenset[Outcome] = frozenset({"written", "in-step", "kept"})
"""Outcomes of a group's partition that another look may change, once more is copied."""

OVERTAKEN: frozenset[Outcome] = frozenset({"target-ahead", "kept"})
"""What a look finds, too, at a group whose consumers run and that `offsets` moves on meanwhile."""


@dataclass(frozen=True, slots=True)
class Lag:
    """`offsets`: so many source offsets are not delivered yet; `never`: partitions that no wait mends;
    `late`: the others of which something is not delivered."""

    offsets: int
    never: list[str]
    late: list[str]


def as_of(first: Link, now: Link) -> Link:
    """A later look, judged by what was staged at the first: under load the deduplicator is never at the end
    of staging, yet it passes the end that staging had then."""
    partitions = {
        key: replace(standing, staged=before.staged)
        if standing.mapped is None and (before := first.partitions.get(key)) is not None
        else standing
        for key, standing in now.partitions.items()
    }
    staging = {p: (reached, first.staging.get(p, (0, end))[1]) for p, (reached, end) in now.staging.items()}
    return Link(partitions, staging)


def lag(link: Link, ends: Mapping[PartitionId, int], names: Mapping[PartitionId, str]) -> Lag:
    """What is left to deliver below `ends`."""
    halted = {key for key in ends if (at := link.partitions.get(key)) is not None and at.stuck is not None}
    offsets = 0
    for key, end in ends.items():
        if key in halted or (known := link.partitions.get(key)) is None:
            continue
        delivered = known.delivered(link.drained)
        if delivered is None:
            delivered = known.origin if known.staged is None else known.staged
        offsets += max(0, end - delivered)
    rest = {key: end for key, end in ends.items() if key not in halted}
    return Lag(
        offsets,
        cutover_rules.behind(link, {key: ends[key] for key in ends if key in halted}, names),
        cutover_rules.behind(link, rest, names),
    )


def seconds_left(before: int, after: int, seconds: float) -> float | None:
    """How long `after` offsets take, where `before - after` took so many seconds; None: nothing was
    delivered."""
    return after * seconds / (before - after) if before > after and seconds > 0 else None


def held_open(
    before: Mapping[PartitionName, int],
    stable_before: Mapping[PartitionName, int],
    stable_after: Mapping[PartitionName, int],
) -> list[str]:
    """Partitions where one transaction was open from one look (their ends: `before`) to the other."""
    return [
        f"{topic}-{p}: a transaction is open from offset {stable} all the time: a cutover waits until it ends"
        for (topic, p), stable in sorted(stable_before.items())
        if stable < before[(topic, p)] and stable_after.get((topic, p)) == stable
    ]


def drained_first(rows: Iterable[Row], behind: Iterable[bool]) -> tuple[list[Row], list[Row]]:
    """Rows that count as they are, and those that are translated once the lag is drained. `behind`: of each,
    whether its offset is not copied yet."""
    now: list[Row] = []
    later: list[Row] = []
    for row, is_late in zip(rows, behind, strict=True):
        (later if is_late and row.record.outcome in PASSING else now).append(row)
    return now, later


def passed(first: Row, second: Row | None) -> bool:
    """Whether the source's group of a later look has come past where the target's group stood at the first:
    that was not ahead then. `offsets` has moved it on after the source's was looked at."""
    there = None if second is None else second.record.offset
    return (
        first.record.outcome in OVERTAKEN
        and first.committed is not None
        and there is not None
        and first.committed <= there
    )
