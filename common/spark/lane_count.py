"""How many lanes an application runs while executors come and go, and how several share the slots. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

SETTLED_S = 15.0
"""Executors come and go one by one, and each change of plans stops the flow for a moment."""


class LaneCount:
    """The number of lanes, at least one, and from when on there have been slots for another number."""

    def __init__(self, lanes: int, most: int | None, extra_slots: int) -> None:
        """`lanes` for a start; at most `most` (PARALLELISM) if given; so many slots are for other queries."""
        self.lanes = lanes
        self._most = math.inf if most is None else most
        self._extra_slots = extra_slots
        self._seen = lanes
        self._since = -math.inf

    def follow(self, slots: int, now: float) -> bool:
        """Take in how many slots there are at this moment; whether the number of lanes is another one now."""
        found = int(max(1, min(self._most, slots - self._extra_slots)))
        if found != self._seen:
            self._seen, self._since = found, now
        if self._seen == self.lanes or now - self._since < SETTLED_S:
            return False
        self.lanes = self._seen
        return True


def shares(slots: int, wanted: Sequence[int]) -> list[int]:
    """How many of these slots each has that wants so many: one each, the first first, then one more each in
    turn, until all have what they want or no slot is left."""
    found = [0] * len(wanted)
    for turn in range(max(wanted, default=0)):
        for index, most in enumerate(wanted):
            if turn < most and slots > 0:
                found[index] += 1
                slots -= 1
    return found
