"""When frames were taken from staging, and their records produced: for their spans, once that is
committed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from common.link.frame import Frame

if TYPE_CHECKING:
    from common.app.otel.spans import Spans


class FrameTrace:
    """Of a staging partition. Times are in ns since 1970."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._taken: tuple[Frame, int, int] | None = None
        """A sampled frame, its trace, and when it was taken."""
        self._produced: list[tuple[Frame, int, int, int, int]] = []
        """Of the transaction under way: the same, then the size of its value and when it was produced."""

    def taken(self, frame: Frame) -> None:
        trace = self._spans.sampled(frame) if frame.count else None
        self._taken = None if trace is None else (frame, trace, time.time_ns())

    def produced(self, size: int) -> None:
        """What was new of the frame taken last is in the transaction. size: of its value, in bytes."""
        if self._taken is not None:
            self._produced.append((*self._taken, size, time.time_ns()))
            self._taken = None

    def committed(self) -> None:
        now = time.time_ns()
        for frame, trace, taken, size, produced in self._produced:
            self._spans.delivered(frame, trace, size, taken, produced, now)
        self.dropped()

    def dropped(self) -> None:
        """The transaction was given up: its frames are taken again."""
        self._taken, self._produced = None, []
