"""Tells the records of several source topics in one destination apart, for `verbatim verify`: by the offset
mappings, and by nothing else.

Pure: runs and batches in, batches and findings out. What no mapping leads to belongs to none of the sources:
somebody else wrote it, or it was delivered twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from verbatim.verify.common_part import Plan
from verbatim.verify.comparison import Batch, Kind, PartitionReport
from verbatim.verify.mappings import Column, Runs


class Claims:
    """The offsets of a destination partition that the runs of one or more source partitions lead to."""

    def __init__(self, runs: Iterable[Runs]) -> None:
        found = [(r.destination, r.length) for r in runs if len(r)]
        begins = np.concatenate([b for b, _ in found]) if found else np.empty(0, dtype=np.int64)
        lengths = np.concatenate([n for _, n in found]) if found else np.empty(0, dtype=np.int64)
        order = np.argsort(begins, kind="stable")
        self._begins: Column = begins[order]
        self._reach: Column = np.maximum.accumulate(self._begins + lengths[order])

    def hold(self, offsets: list[int]) -> list[bool]:
        """Of each offset, whether a run leads to it."""
        if not len(self._begins):
            return [False] * len(offsets)
        wanted = np.array(offsets, dtype=np.int64)
        at = np.searchsorted(self._begins, wanted, side="right") - 1
        found = (at >= 0) & (wanted < self._reach[np.maximum(at, 0)])
        return [bool(one) for one in found]

    def check_apart(self, report: PartitionReport) -> None:
        """Reports each run that begins where another one has not ended: two records can't be at one
        offset."""
        for at in (np.flatnonzero(self._begins[1:] < self._reach[:-1]) + 1).tolist():
            report.add(Kind.MAPPING, None, int(self._begins[at]), "several source records are mapped to it")


def claimed(batches: Iterable[Batch], claims: Claims) -> Iterator[Batch]:
    """The records that the claims hold."""
    for offsets, digests in batches:
        held = claims.hold(offsets)
        if all(held):
            yield offsets, digests
        elif any(held):
            yield (
                [o for o, mine in zip(offsets, held, strict=True) if mine],
                [d for d, mine in zip(digests, held, strict=True) if mine],
            )


def report_unclaimed(
    batches: Iterable[Batch], claims: Claims, known_from: int | None, report: PartitionReport
) -> None:
    """Reports the records that no run leads to. Below `known_from` (None: everywhere) their mappings may have
    expired."""
    unmapped, first = 0, 0
    for offsets, _ in batches:
        for offset, mine in zip(offsets, claims.hold(offsets), strict=True):
            if mine:
                continue
            if known_from is None or offset < known_from:
                first = first if unmapped else offset
                unmapped += 1
            else:
                report.add(Kind.FOREIGN, None, offset, "no mapping of any source topic leads to it")
    if unmapped:
        report.note(
            f"{unmapped:,} destination records, from offset {first} on, have no mapping that is still there: whose they are can't be told"
        )


def leave_out_unmapped(
    plan: Plan, runs: Runs | None, known_from: int | None, report: PartitionReport
) -> None:
    """Where mappings may have expired, what lies before the first that is there can't be told from others'
    records."""
    if known_from == 0:
        return
    begin = plan.source[1] if runs is None else max(plan.source[0], runs.start)
    if begin > plan.source[0]:
        report.note(
            f"no offset mappings below source offset {begin}: which record is whose can't be told, so not compared"
        )
        plan.source = (begin, plan.source[1])


def visible_below(runs: Runs, stable: int, end: int, report: PartitionReport) -> int:
    """The source offset below which all is to be seen at the destination, whose last stable offset and end
    are given: what lies behind an open transaction of another source is committed, and nobody sees it yet."""
    hidden = runs.first_source_at_or_after(stable)
    # Behind the end it is not hidden but gone, with its log.
    if hidden is None or int(runs.destination[-1] + runs.length[-1]) > end:
        return runs.next
    report.note(
        f"another source's transaction is open at destination offset {stable}: what lies behind it can't be read yet, and counts as behind"
    )
    return hidden
