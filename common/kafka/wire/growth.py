"""How much to ask a broker for at once. Pure.

The next request goes out when the last one is answered. Over a line that is far away each answer therefore
costs a round trip in which nothing comes, unless answers are large. Near, larger ones only cost memory. So
more is tried, while there is more to be had, and kept where it makes what comes in faster; less is tried as
well, and kept where that makes it no slower.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOK_S, LOOK_ANSWERS = 0.5, 3
"""How long what comes is counted before it is judged; so many answers at least."""
BETTER = 1.08
"""By so much it must come faster, or what was tried is taken back."""
REST_S, MOST_REST_S = 10.0, 300.0
"""Until something is tried again, and at most, when it has doubled."""


@dataclass(slots=True)
class Growth:
    """`factor`: how many times as much as usual."""

    factor: int = 1
    _began: float = 0.0
    _bytes: int = 0
    _answers: int = 0
    _before: tuple[int, float] | None = None
    """While something is tried: the factor before, and what came in a second with that."""
    _more: bool = True
    """Whether more is tried next, or less."""
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
        if self._before is not None:
            factor, before = self._before
            if rate < (BETTER if self._more else 1 / BETTER) * before:
                self.factor, self._more = factor, not self._more
                self._rests_until, self._rest_s = now + self._rest_s, min(MOST_REST_S, 2 * self._rest_s)
        self._before = None
        if now >= self._rests_until:
            self._try_another(rate, most)
        self._count_from(now)

    def _try_another(self, rate: float, most: int) -> None:
        another = 2 * self.factor if self._more else self.factor // 2
        if not 1 <= another <= most:
            self._more = not self._more
            another = 2 * self.factor if self._more else self.factor // 2
        if 1 <= another <= most:
            self._before, self.factor = (self.factor, rate), another

    def _count_from(self, now: float) -> None:
        self._began, self._bytes, self._answers = now, 0, 0
