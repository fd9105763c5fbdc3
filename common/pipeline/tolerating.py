"""`onError: tolerate`: whether one more record that a stage fails on is one too many. Only that: what becomes
of a record, as long as none is, depends on nothing but the record and the pipeline. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from common.pipeline.models import Tolerate


class Tolerated:
    """The records of one source partition that a stage has failed on and that were let by.

    Offsets are counted, not events: a record that is read again counts once, in whatever order frames are cut
    again.
    """

    def __init__(self, options: Tolerate, offsets: Iterable[int] = ()) -> None:
        """`offsets`: of the window in which reading begins, those that are known."""
        self._most, self._per = options.records, options.per
        self._offsets = sorted(offsets)

    def take(self, failed: Sequence[int]) -> int:
        """How many of these offsets, which ascend, are let by before one is too many, or all of them."""
        for number, offset in enumerate(failed):
            at = bisect_left(self._offsets, offset)
            if at - bisect_left(self._offsets, self.window(offset)) >= self._most:
                return number
            if self._offsets[at : at + 1] != [offset]:
                insort(self._offsets, offset)
        return len(failed)

    def window(self, offset: int) -> int:
        """Where the window of an offset begins."""
        return offset - offset % self._per

    def below(self, position: int) -> list[int]:
        """What who goes on at this position has to know; forgets what lies in windows before that."""
        del self._offsets[: bisect_left(self._offsets, self.window(position))]
        return self._offsets[: bisect_left(self._offsets, position)]

    def why(self, offset: int) -> str:
        """Of an offset that is one too many."""
        return f"of the offsets from {self.window(offset)} on, {self._most} of {self._per} are tolerated, and were let by"
