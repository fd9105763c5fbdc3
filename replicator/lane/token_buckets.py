"""Rate limits of a lane: how many records may go into frames now. Pure: no clients, the clock is handed in.

Accounts are kept by frame, never by record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common.link.throttling import Limit, Steering

BURST_S = 1.0
"""What was not used is saved for so long: a topic that was quiet may go so far above its limit."""


class Bucket:
    """Tokens that come at a steady rate. More may be spent than there are; then nothing goes until the debt
    is paid."""

    def __init__(self, per_second: float, now: float) -> None:
        self.per_second = per_second
        self._level = 0.0
        self._at = now
        self._most = max(1.0, per_second * BURST_S)

    def level(self, now: float) -> float:
        """Tokens there now; negative: a debt."""
        if now > self._at:
            self._level = min(self._most, self._level + (now - self._at) * self.per_second)
            self._at = now
        return self._level

    def spend(self, tokens: float) -> None:
        self._level -= tokens


class Pace:
    """A lane's `share` (0 to 1) of one limit."""

    def __init__(self, limit: Limit, share: float, now: float) -> None:
        self.limit = limit
        self.share = share
        by_bytes, by_records = limit.bytes_per_second, limit.records_per_second
        self._bytes = None if by_bytes is None else Bucket(by_bytes * share, now)
        self._records = None if by_records is None else Bucket(by_records * share, now)

    def affordable(self, mean_bytes: float, now: float) -> int | None:
        """How many records of such a size may go now; None: any number."""
        found: int | None = None
        if self._records is not None:
            found = max(0, int(self._records.level(now)))
        if self._bytes is not None:
            level = self._bytes.level(now)
            # One at least, however large: its debt is paid afterwards, and it would never go otherwise.
            fit = max(1, int(level / max(1.0, mean_bytes))) if level > 0 else 0
            found = fit if found is None else min(found, fit)
        return found

    def spend(self, size: int, records: int) -> None:
        if self._bytes is not None:
            self._bytes.spend(size)
        if self._records is not None:
            self._records.spend(records)


class Pacing:
    """All limits that concern a lane.

    A lane's share of a limit is its share of the partitions: those of the topic, or all of the link's. So the
    lanes together keep to it without asking each other; a topic whose traffic is in few of its partitions
    gets less than its limit, never more.
    """

    def __init__(self, mine: Mapping[str, int], planned: Mapping[str, int], in_all: int) -> None:
        """`mine`: topic -> how many of its partitions this lane has; `planned`: how many all lanes have;
        `in_all`: of all topics."""
        self._shares = {topic: count / planned[topic] for topic, count in mine.items()}
        self._share = sum(mine.values()) / in_all if in_all else 0.0
        self._topics: dict[str, Pace] = {}
        self._link: Pace | None = None

    def follow(self, steering: Steering, now: float) -> None:
        """Take over what is in force now. A limit that stays keeps its account."""
        self._link = _kept(self._link, steering.link_limit, self._share, now)
        paces = {
            topic: _kept(self._topics.get(topic), steering.limit_of(topic), share, now)
            for topic, share in self._shares.items()
        }
        self._topics = {topic: pace for topic, pace in paces.items() if pace is not None}

    def limits(self, topic: str) -> bool:
        """Whether any limit concerns this topic."""
        return self._link is not None or topic in self._topics

    def limits_itself(self, topic: str) -> bool:
        """Whether it has a limit of its own."""
        return topic in self._topics

    def limited(self) -> Iterable[str]:
        """The topics of this lane that have a limit of their own."""
        return self._topics.keys()

    def limits_link(self) -> bool:
        return self._link is not None

    def affordable(self, topic: str, mean_bytes: float, now: float) -> int | None:
        """How many of its records may go now; None: any number."""
        counts = [pace.affordable(mean_bytes, now) for pace in (self._topics.get(topic), self._link) if pace]
        known = [count for count in counts if count is not None]
        return min(known) if known else None

    def spend(self, topic: str, size: int, records: int) -> None:
        """A frame was cut: its size in bytes, and its records."""
        for pace in (self._topics.get(topic), self._link):
            if pace is not None:
                pace.spend(size, records)


def _kept(pace: Pace | None, limit: Limit, share: float, now: float) -> Pace | None:
    if not limit:
        return None
    return pace if pace is not None and pace.limit == limit else Pace(limit, share, now)
