"""What a lane's copies can't go beyond: each partition halts there, but what is before that first goes on its
way."""

from __future__ import annotations

from typing import NamedTuple

from common.link.halt_reasons import HaltReason
from common.partitions import PartitionName
from replicator.lane.halts import Halts
from replicator.lane.partition_copy import PartitionCopy, StageFailed, Status
from replicator.lane.source_reader import Source


class _Found(NamedTuple):
    """`at`: the position before it; `reason` and `available` as in Halt; `generation` and `begun` as they
    were when it was found."""

    copy: PartitionCopy
    what: str
    at: int
    reason: HaltReason
    available: int | None
    generation: int
    begun: int


class Unreadable:
    """One lane's."""

    def __init__(self, source: Source, halts: Halts) -> None:
        self._source = source
        self._halts = halts
        self._found: dict[PartitionName, _Found] = {}

    def found(
        self,
        copy: PartitionCopy,
        what: str,
        at: int,
        reason: HaltReason = HaltReason.UNREADABLE,
        available: int | None = None,
    ) -> None:
        begun = self._source.begun
        self._found[copy.topic, copy.partition] = _Found(
            copy, what, at, reason, available, copy.generation, begun
        )

    def stage_failed(self, copy: PartitionCopy, failed: StageFailed) -> None:
        at = failed.offset
        self.found(copy, str(failed), at, HaltReason.STAGE_FAILED, at + 1)

    def next_of(self, copy: PartitionCopy) -> bool:
        """Whether it comes next of what was read of this copy."""
        bad = self._found.get((copy.topic, copy.partition))
        return bad is not None and bad.at <= copy.cut_at < copy.read

    def halt(self) -> None:
        """Halt the partitions of which all that is before it is acknowledged."""
        for key, bad in list(self._found.items()):
            copy = bad.copy
            turned_back = bad.begun != self._source.begun or bad.generation != copy.generation
            if turned_back or copy.status is not Status.RUNNING:
                # What is still there will be found again.
                del self._found[key]
            elif copy.acked >= bad.at:
                del self._found[key]
                if not self._source.by_id() and not self._source.still_the_same(copy):
                    # Batches of a topic that was made again don't fit behind the old one's.
                    self._halts.recreated(copy.topic)
                    continue
                self._halts.halt(copy, bad.reason, f"{copy.name}: {bad.what}", bad.at, bad.available)
