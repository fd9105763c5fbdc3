"""Which part of a source partition and of its destination can be compared, and windows of it for a sample.
Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from verbatim.verify.comparison import PartitionReport
from verbatim.verify.link_mappings import PartitionMappings
from verbatim.verify.mappings import Runs

SAMPLE_OFFSETS = 50_000


@dataclass
class Plan:
    """What is to be read of one partition, and what the comparison may overlook at its head."""

    source: tuple[int, int]
    destination: tuple[int, int]
    lenient_source: bool = False
    lenient_destination: bool = False
    gone: tuple[int, int] = (0, 0)
    """Source offsets that the destination has no more."""


def common_part(
    report: PartitionReport,
    ours: tuple[int, int],
    theirs: tuple[int, int],
    entry: PartitionMappings,
    origin: int | None,
    earliest: bool,
    others: Collection[str],
    accepted: bool = False,
) -> Plan:
    """What of both sides can be compared, and notes of what can't. `ours` and `theirs` are (log start, end)
    of source and destination; `origin` where copying began, if that is known; `earliest`: it began at the
    log's start, where nothing else was said; `others`: earlier ids of the topic; `accepted`: the destination
    was let in with the records of others."""
    if origin is None and entry.complete:
        origin = entry.start
    begin, target_begin = max(ours[0], origin or 0), theirs[0]
    if begin > ours[0]:
        report.note(f"copying began at source offset {origin}: what lies below is not compared")
    trimmed = ours[0] > (origin or 0)
    if trimmed:
        report.note(f"the source begins at offset {ours[0]}: what was deleted there is not compared")
    if theirs[0] > 0:
        report.note(f"the destination begins at offset {theirs[0]}: what was deleted there is not compared")
    if others:
        report.note(
            "the source topic was deleted and made again: only the records of the present one can be compared"
        )
    # MirrorMaker 2, say: what it has copied lies below the origin.
    continued = accepted and bool(origin)
    if continued:
        report.note(
            "the destination was somebody else's: what stands before this link's records is not compared"
        )
    unknown = origin is None and not earliest
    if unknown:
        report.note(
            "the origin is not known: source records before the first that is at the destination are not compared"
        )
    return Plan(
        (begin, ours[1]),
        (target_begin, theirs[1]),
        theirs[0] > 0 or unknown,
        trimmed or bool(others) or continued,
    )


def of_known_versions(
    report: PartitionReport, plan: Plan, entry: PartitionMappings, runs: Runs | None, newest: int
) -> None:
    """Only the mappings tell by which version of the pipeline a record was copied: cuts off what they say
    nothing of. `runs`: if they can be searched."""
    copied = plan.destination[1] > 0
    start = entry.start if entry.start is not None else plan.source[1] if copied else plan.source[0]
    if start > plan.source[0]:
        report.note(
            f"no offset mappings below source offset {start}: which version of the pipeline records are of can't be told, so not compared"
        )
        first = None if runs is None else runs.first_at_or_after(start)
        begin = plan.destination[1] if first is None else max(first, plan.destination[0])
        plan.lenient_source, plan.lenient_destination = first is not None and begin > first, False
        plan.source, plan.destination = (start, plan.source[1]), (begin, plan.destination[1])
    if entry.versions.last not in (None, newest) and plan.source[1] > entry.next:
        report.note(
            f"version {newest} of the pipeline is new: destination records without a mapping are not compared"
        )
        reached = 0 if runs is None or not len(runs) else int(runs.destination[-1] + runs.length[-1])
        begin, end = plan.destination
        plan.destination = begin, max(begin, min(end, reached))


def can_sample(report: PartitionReport, plan: Plan, runs: Runs | None) -> bool:
    """Whether mappings lead from each source offset to its counterpart; a note where they don't."""
    covered = (
        runs is not None
        and runs.start <= plan.source[0]
        and not plan.lenient_source
        and not plan.lenient_destination
    )
    if not covered:
        report.note(
            "read whole: only mappings that reach back to the beginning tell where a sample's counterpart lies"
        )
    return covered


def windows(report: PartitionReport, plan: Plan, runs: Runs, fraction: float, seed: int) -> Iterator[Plan]:
    """A share of the source's offsets, SAMPLE_OFFSETS at a time, and what of the destination belongs to each;
    one at least."""
    # A sample that can be drawn again, from the seed that was printed.
    chance = random.Random(f"{seed}/{report.topic}/{report.partition}")  # noqa: S311
    begins = range(plan.source[0], plan.source[1], SAMPLE_OFFSETS)
    chosen = [begin for begin in begins if chance.random() < fraction] or (
        [chance.choice(begins)] if begins else []
    )
    for begin in chosen:
        end = min(begin + SAMPLE_OFFSETS, plan.source[1])
        first, last = runs.first_at_or_after(begin), runs.first_at_or_after(end)
        target_end = plan.destination[1]
        target = (target_end if first is None else first, target_end if last is None else last)
        if begin == plan.source[0]:
            target = (plan.destination[0], target[1])
        yield Plan((begin, end), target)
