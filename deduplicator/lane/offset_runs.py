"""Runs of an offset mapping: which source offsets became which destination offsets. Pure.

A run is `[source offset, destination offset, length]`: both sides count up by one. The destination offset is
what the broker told of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(slots=True)
class Run:
    """Consecutive source offsets produced in one batch. `first` is the destination offset of the first, once
    reported."""

    source: int
    length: int
    first: int | None = None


def segments(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """The maximal consecutive stretches of strictly increasing offsets, as index ranges [begin, end)."""
    if not offsets:
        return []
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        return [(0, len(offsets))]
    out = []
    begin = 0
    for i in range(1, len(offsets)):
        if offsets[i] != offsets[i - 1] + 1:
            out.append((begin, i))
            begin = i
    out.append((begin, len(offsets)))
    return out


def placed(runs: Sequence[Run], first: int) -> list[Run]:
    """The same runs as they lie one behind the other at the destination, from offset `first` on."""
    ends = accumulate((run.length for run in runs), initial=first)
    return [Run(run.source, run.length, at) for run, at in zip(runs, ends, strict=False)]


def merge(runs: list[Run]) -> list[list[int]]:
    """Runs as a mapping record lists them, neighbours that continue each other on both sides joined.

    Every run must have been reported.
    """
    out: list[list[int]] = []
    for run in runs:
        assert run.first is not None
        if out and out[-1][0] + out[-1][2] == run.source and out[-1][1] + out[-1][2] == run.first:
            out[-1][2] += run.length
        else:
            out.append([run.source, run.first, run.length])
    return out
