"""What is computed from measurements: percentiles, spreads, the steady part of a curve. Pure; measures
nothing itself."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

Curve = Sequence[tuple[float, float]]
"""A quantity that only grows: (time in s, value), in the order of time."""

STEADY_FROM, STEADY_TO = 0.10, 0.95
"""The steady part of a catch-up: between these shares of the records. Before it the copier starts up, after
it partitions run dry."""

PERCENTILES = (50.0, 95.0, 99.0, 99.9)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest of the values, sorted ascending, that at least `percent` % of them do not exceed (nearest
    rank).

    Raises ValueError when there is none.
    """
    if not len(ordered):
        raise ValueError("no values")
    # Rounded, for 99.9 % of 1,000 is a little more than 999 in binary.
    rank = math.ceil(round(percent / 100 * len(ordered), 6))
    return ordered[max(rank, 1) - 1]


@dataclass(frozen=True)
class Spread:
    """Of several repetitions: least, middle and greatest value."""

    least: float
    median: float
    greatest: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Raises ValueError when there is none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    half = len(ordered) // 2
    middle = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    return Spread(ordered[0], middle, ordered[-1], len(ordered))


def value_at(curve: Curve, time_s: float) -> float:
    """The value at a time, on a straight line between two points; beyond the ends, that of the end. Raises
    ValueError when empty."""
    if not curve:
        raise ValueError("no points")
    after = bisect.bisect_left(curve, time_s, key=lambda point: point[0])
    if after == 0:
        return curve[0][1]
    if after == len(curve):
        return curve[-1][1]
    (begin, low), (end, high) = curve[after - 1], curve[after]
    return high if end == begin else low + (high - low) * (time_s - begin) / (end - begin)


def time_of(curve: Curve, value: float) -> float:
    """When the curve first reached a value, on a straight line between two points. Raises ValueError if it
    never did."""
    for index, (end, high) in enumerate(curve):
        if high >= value:
            if index == 0:
                return end
            begin, low = curve[index - 1]
            return begin + (end - begin) * (value - low) / (high - low)
    raise ValueError(f"{value} was never reached")


@dataclass(frozen=True)
class Steady:
    """The steady part of a catch-up, in s, and how many records it saw through."""

    begin_s: float
    end_s: float
    records: float

    @property
    def records_per_s(self) -> float:
        return self.records / (self.end_s - self.begin_s)

    def per_record(self, curve: Curve) -> float:
        """By how much a curve (seconds of CPU, bytes) grew for each record of the steady part."""
        return (value_at(curve, self.end_s) - value_at(curve, self.begin_s)) / self.records


def steady(visible: Curve, records: int) -> Steady:
    """The steady part of a curve of offsets that ended with all of the records visible.

    A transaction's marker takes an offset too. How many there are shows at the end, and they are taken to be
    spread evenly. Raises ValueError when fewer offsets than records are visible.
    """
    if not visible or visible[-1][1] < records:
        raise ValueError(f"not all of the {records} records are visible")
    total = visible[-1][1]
    begin, end = time_of(visible, STEADY_FROM * total), time_of(visible, STEADY_TO * total)
    return Steady(begin, end, (STEADY_TO - STEADY_FROM) * records)


def longest_gap(times: Sequence[float]) -> float:
    """The longest time between two neighbours; the times are sorted ascending. Raises ValueError with fewer
    than two."""
    if len(times) < 2:
        raise ValueError("fewer than two times")
    return max(after - before for before, after in itertools.pairwise(times))
