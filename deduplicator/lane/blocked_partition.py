"""Source partitions that can't go on for now: why, what was skipped, when to ask again. Pure.

Their frames are dropped, so staging must not be trimmed past the first one (it may hold the only copy), and
when the partition goes on by consent or because the obstacle is gone, reading goes back to that first one.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.partitions import PartitionName

FIRST_ASK_AGAIN_S = 5.0
LAST_ASK_AGAIN_S = 600.0


@dataclass(slots=True)
class BlockedPartition:
    """`held` is the staging offset of the first frame skipped and `held_start` where that frame begins at the
    source; `held_end` is where the skipped frames end; `until` the staging position that must be reached
    again before they may be trimmed; `returning` says that they are being read again, and must be once more
    after a recovery. `to`: the topic and partition for which it stands still, where that is known."""

    reason: str
    held: int
    held_start: int
    held_end: int
    until: int = 0
    returning: bool = False
    to: PartitionName | None = None
    ask_at: float = 0.0
    pause_s: float = FIRST_ASK_AGAIN_S

    def asks_now(self, now: float) -> bool:
        """Whether to ask the replicator (again) now; each time it waits longer."""
        if now < self.ask_at:
            return False
        self.ask_at = now + self.pause_s
        self.pause_s = min(LAST_ASK_AGAIN_S, self.pause_s * 2)
        return True

    def closed(self, next_offset: int, position: int) -> bool:
        """Whether what was skipped has been delivered, so that nothing needs to be held any more."""
        return next_offset >= self.held_end and position >= self.until
