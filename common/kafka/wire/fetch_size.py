"""How much to ask a broker for at once. Pure.

The next request goes out when the last one is answered. Over a line that is far away each answer therefore
costs a round trip in which nothing comes, unless answers are large. Near, larger ones only cost memory. So
more is tried, while there is more to be had, and kept where it makes what comes in faster.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOK_S, LOOK_ANSWERS = 0.5, 3
"""How long what comes is counted before it is judged; so many answers at least."""
BETTER = 1.08
"""By so much it must come faster, or what was tried is taken back."""
REST_S, MOST_REST_S = 10.0, 300.0
"""Until more is tried again, and at most, when it has doubled."""


@dataclass(slots=True)
class FetchSize:
    """Of one broker. `factor`: how many times as much as usual a partition is asked for."""

    factor: int = 1
    _began: float = 0.0
    _bytes: int = 0
    _answers: int = 0
    _rate: float = 0.0
    """Before more was tried; 0: nothing is being tried."""
    _rest_s: float = REST_S
    _rests_until: float = 0.0

    def came(self, size: int, full: bool, most: int, now: float) -> None:
        """An answer of so many bytes, `full` where more is there than it may have had. The factor goes up to
        `most`."""
        if not full or not self._began:
            # Whoever has caught up waits for records, not for the line.
            self._count_from(now)
            return
        self._bytes += size
        self._answers += 1
        if now - self._began < LOOK_S or self._answers < LOOK_ANSWERS:
            return
        rate = self._bytes / (now - self._began)
        if self._rate and rate < BETTER * self._rate:
            self.factor //= 2
            self._rate, self._rests_until = 0.0, now + self._rest_s
            self._rest_s = min(MOST_REST_S, 2 * self._rest_s)
        elif now >= self._rests_until and 2 * self.factor <= most:
            self._rate = rate
            self.factor *= 2
        else:
            self._rate = 0.0
        self.factor = max(1, min(self.factor, most))
        self._count_from(now)

    def _count_from(self, now: float) -> None:
        self._began, self._bytes, self._answers = now, 0, 0
