"""What a lane does not read now, since an operator has paused or promoted it, or reads no faster than its
limit. Which rates those are is decided in common/link/throttling.py and replicator/lane/token_buckets.py.

A paused partition is left out of the consumer's assignment. Of a limited one the lane takes up what comes and
parks it, cutting frames of as many records as may go; when enough is parked, its fetching is suspended,
alone. Under a limit for the whole link nothing at all is taken from the consumer then, which stops fetching
by itself when its queue is full. Nothing sleeps, so nobody waits for somebody else's limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from common.kafka.quotas import THROTTLED
from common.link.throttling import Steering
from replicator.lane.partition_copy import CutFrame, PartitionCopy, Status
from replicator.lane.source_reader import Source
from replicator.lane.token_buckets import Pacing
from replicator.lane_plan import ReplicatorPlan

PARKED_BYTES = 64 << 20
PARKED_RECORDS = 200_000
"""The most that a lane parks, over all limited partitions."""
MOST_BYTES, MOST_RECORDS = 4 << 20, 20_000
"""The most of one partition. What its client has fetched beyond that is fetched again later, so it is several
fetches."""


class Throttle:
    """One lane's."""

    def __init__(self, plan: ReplicatorPlan, copies: Collection[PartitionCopy], source: Source) -> None:
        self._copies = copies
        self._source = source
        mine = Counter(copy.topic for copy in copies)
        self._pacing = Pacing(mine, plan.partitions_of, plan.partitions_in_all)
        self._steering = Steering()
        self._bytes, self._records = MOST_BYTES, MOST_RECORDS
        self._any = False
        self.gone_on: list[PartitionCopy] = []
        """Those that go on by what is in force now: of one that was promoted, what was on its way then was
        left out."""
        self.waited_s = 0.0
        """How long records that had been read waited for a limit."""
        self._waits_since: float | None = None
        self._before_ms = THROTTLED.own_ms, THROTTLED.library_ms
        """Of a lane before it in this process."""

    def counts(self) -> Counter[str]:
        """What has held the lane back: limits, and quotas of the source and of the target."""
        own_ms, library_ms = self._before_ms
        return Counter(
            limit_wait_ms=int(self.waited_s * 1000),
            source_throttle_ms=THROTTLED.own_ms - own_ms,
            target_throttle_ms=THROTTLED.library_ms - library_ms,
        )

    def holds_back(self, waiting: int, uncut: int, all_of_it: bool, now: float) -> bool:
        """Frames were cut, of all that may go or of what is full: whether all of the `uncut` partitions, of
        which something is left, are those `waiting` for a limit."""
        if all_of_it:
            if self._waits_since is not None:
                self.waited_s += now - self._waits_since
            self._waits_since = now if waiting else None
        return 0 < waiting == uncut

    def follow(self, steering: Steering, now: float) -> bool:
        """Take over what is in force now; whether other partitions are to be read than before.

        What was read of a paused partition and is in no frame yet is read again when it goes on.
        """
        if steering is self._steering:
            return False
        self._steering = steering
        self._pacing.follow(steering, now)
        limited = set(self._pacing.limited())
        self._any = bool(limited)
        count = max(1, sum(copy.topic in limited for copy in self._copies))
        self._bytes = min(MOST_BYTES, PARKED_BYTES // count)
        self._records = min(MOST_RECORDS, max(1, PARKED_RECORDS // count))
        changed, self.gone_on = False, []
        paused = {topic: steering.stops(topic) for topic in {c.topic for c in self._copies}}
        for copy in self._copies:
            if paused[copy.topic] != copy.paused:
                copy.paused = paused[copy.topic]
                changed = True
                if copy.paused:
                    copy.put_back()
                elif copy.status is Status.RUNNING:
                    self.gone_on.append(copy)
        return changed

    def limits(self, copy: PartitionCopy) -> bool:
        return self._pacing.limits(copy.topic)

    def affordable(self, copy: PartitionCopy, now: float) -> int | None:
        """How many of its pending records may go into frames now; None: all."""
        if not copy.waiting or not self._pacing.limits(copy.topic):
            return None
        return self._pacing.affordable(copy.topic, copy.pending_bytes / copy.waiting, now)

    def spend(self, cut: CutFrame) -> None:
        self._pacing.spend(cut.frame.topic, cut.unpacked, cut.frame.rows)

    def enough(self, uncut: Iterable[PartitionCopy]) -> bool:
        """Whether so much waits for the link's limit that no more is to be read."""
        if not self._pacing.limits_link():
            return False
        waiting = [copy for copy in uncut if not self._pacing.limits_itself(copy.topic)]
        return (
            sum(copy.pending_bytes for copy in waiting) >= MOST_BYTES
            or sum(copy.waiting for copy in waiting) >= MOST_RECORDS
        )

    def hold_and_release(self, uncut: Iterable[PartitionCopy]) -> None:
        """Suspend the fetching of partitions of which enough is parked, and go on with those of which little
        is left."""
        held = self._source.held
        if held:
            self._source.release([copy for copy in held.values() if not self._parked(copy, 2)])
        if not self._any:
            return
        full = [
            copy
            for copy in uncut
            if self._pacing.limits_itself(copy.topic)
            and (copy.topic, copy.partition) not in held
            and not copy.paused
            and self._parked(copy, 1)
        ]
        self._source.hold(full)

    def _parked(self, copy: PartitionCopy, part: int) -> bool:
        return copy.pending_bytes >= self._bytes // part or copy.waiting >= self._records // part
