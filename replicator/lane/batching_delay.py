"""How long a lane rests between frames. Pure; times are of the monotonic clock, in seconds.

Frames are small and leave soon when there is little to do, and grow by themselves with the load of this
machine, whatever it comes from. Each costs a request to the source, one to the target, and a part of a
transaction, however many records it holds.
"""

from __future__ import annotations

import math

REST = 3
LEAST_REST_S, MOST_REST_S = 0.013, 0.025
"""Between frames a lane rests REST times as long as the last ones took it, within these bounds.

The least is long enough for a transaction and the delivery's rest after it. A delivery to which frames come
sooner lets them wait: with 8 ms, a record waited for two clocks that knew nothing of each other, and took
longer although each of them ticked faster."""
BUSY_PER_S = 600
"""Where fewer records a second go through a lane, the least is less, in the same measure: most transactions
hold a record or two then, rest or no rest, and a delivery is ready again before the next one comes. 100
records/s over four partitions take 3 ms in the middle and 7 at p99 instead of 12 and 22, at no more CPU."""
MANY_REST_S = 0.1
"""How long where more is there than is read at once. Full frames are cut all the time then, and most of what
else there is to cut fills none: with a question every 25 ms, 200 B a record took 7 % more CPU in both
applications together."""
ANSWER_REST, MANY_ANSWER_REST = 10, 30
"""And at least so many times what the answers cost, the second where there is more than is read at once. A
topic of 1,000 partitions costs 8 ms: asked after each 25 ms that took a quarter of a CPU, and of a CPU's time
with the interpreter's lock, for which the lane waits. Of 5,000 partitions that are read of it an answer costs
a broker 20 ms: asked as often as that, it did little else."""
WINDOW_S = 0.5


class Rate:
    """Records a second in the last window that is over; infinite before one is."""

    def __init__(self) -> None:
        self.per_s = math.inf
        self._since: float | None = None
        self._came = 0

    def came(self, records: int) -> None:
        self._came += records

    def look(self, now: float) -> None:
        """Begin another window where one is over."""
        if self._since is None:
            self._since = now
        if (passed := now - self._since) >= WINDOW_S:
            self.per_s = self._came / passed
            self._since, self._came = now, 0


class BatchingDelay:
    """When a lane may ask for the topics of its frames again, and cut what doesn't fill one."""

    def __init__(self) -> None:
        self.until = 0.0
        self.rate = Rate()
        self._answer_s = 0.0

    def after(self, begun: float, now: float, many: bool, answer_s: float) -> None:
        """Frames were asked for, or sent, from `begun` to `now`; `many`: there is more than is read at once.
        `answer_s`: CPU time that another thread spent on the last answers, or a broker."""
        self._answer_s = answer_s
        self.rate.look(now)
        if many:
            rest = max(MANY_REST_S, MANY_ANSWER_REST * answer_s)
        else:
            least = LEAST_REST_S * min(1.0, self.rate.per_s / BUSY_PER_S)
            rest = max(min(MOST_REST_S, max(least, REST * (now - begun))), ANSWER_REST * answer_s)
        self.until = now + rest

    def no_more(self, now: float) -> None:
        """What was read just now was all that is there."""
        self.until = min(self.until, now + max(MOST_REST_S, ANSWER_REST * self._answer_s))
