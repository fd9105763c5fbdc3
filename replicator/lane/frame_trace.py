"""When the records of frames on their way were read, and the frames cut: for their spans, once staging has
them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from common.kafka.wire.batch_consumer import Event
from common.kafka.wire.chunks import Chunk
from common.link.frame import Frame
from common.partitions import PartitionName

if TYPE_CHECKING:
    from common.app.otel.spans import Spans

_Begun = tuple[int, int, int]
"""A frame's trace; when its first record was read, and when it was cut."""


class FrameTrace:
    """Of a lane. Times are in ns since 1970."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._read: dict[PartitionName, deque[tuple[int, int]]] = {}
        """Of what was read and is in no frame yet: the position behind it, and when."""
        self._cut: dict[tuple[str, int, int], _Begun] = {}
        """Of sampled frames on their way, by topic id, partition and first offset. One that is given up is
        cut anew."""

    def read(self, came: Iterable[Chunk | Event]) -> None:
        """Fetches were answered."""
        for chunk in came:
            if isinstance(chunk, Chunk):
                reads = self._read.setdefault((chunk.topic, chunk.partition), deque())
                if reads and reads[-1][0] >= chunk.next:
                    # Reading has gone back.
                    reads.clear()
                reads.append((chunk.next, time.time_ns()))

    def cut(self, frame: Frame) -> None:
        reads = self._read.get((frame.topic, frame.partition))
        while reads and reads[0][0] <= frame.start:
            reads.popleft()
        if frame.count and (trace := self._spans.sampled(frame)) is not None:
            now = time.time_ns()
            self._cut[_key(frame)] = trace, reads[0][1] if reads else now, now

    def staged(self, frame: Frame, size: int) -> None:
        """It was acknowledged. size: of its value, in bytes."""
        # That of an origin or a position is empty, and begins where the next one does.
        if frame.count and (begun := self._cut.pop(_key(frame), None)) is not None:
            self._spans.replicated(frame, begun[0], size, begun[1], begun[2], time.time_ns())


def _key(frame: Frame) -> tuple[str, int, int]:
    return frame.topic_id, frame.partition, frame.start
