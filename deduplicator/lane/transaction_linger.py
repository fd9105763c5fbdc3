"""How long a transaction gathers records before it is committed. Pure; times are in seconds.

Each costs the brokers as much as megabytes of records, however little it holds. Where these are busy, or
this machine is, as with fifty links at once, its requests queue with the others', and a commit takes longer
than the quickest one took. In that measure a transaction that holds much lasts longer, so that there are
fewer, and the queue gets shorter. A long way to the cluster does not count: the quickest one went it, too.
"""

from __future__ import annotations

import math

TRANSACTION_S = 0.25
"""A transaction that still has input ends after so long."""
MUCH_BYTES = 256 << 10
"""So much is worth a transaction's requests: where it waits, the next one begins at once."""
MUCH_S, LINGER_S = 0.1, 0.03
"""One that holds as much, where all that was there is in it, waits for more: for the one time in all, the
other for each frame. The transactions of a delivery that is faster than what comes would be small ones
otherwise."""
MOST_MUCH_S, QUEUED_TIMES = 1.0, 10
"""Either is longer, in the same measure, where commits queue: so many times as long as they do, up to the
first. Fifty links on two cores with both clusters, whose commits took 0.1 to 0.4 s and not 0.01, copied 1.5
to 2.3 million records/s of 200 B so, and 0.5 and 0.6 million otherwise."""
ALONE_S = 0.1
"""What one commit alone is longer by may be a broker's garbage collection, and be over. They take less than
that."""


class TransactionLinger:
    """Of a staging partition's transactions, as long as a lane owns it."""

    def __init__(self) -> None:
        self.much_s = MUCH_S
        """How long one that holds much gathers in all."""
        self._quickest_s = math.inf
        self._took_s = 0.0

    def committed(self, took_s: float) -> None:
        """A commit took so long, with what it had to wait for before. One of a position alone counts, too:
        while nothing comes, these are the quickest."""
        self._quickest_s = min(self._quickest_s, took_s)
        usual, self._took_s = max(min(took_s, self._took_s), took_s - ALONE_S), took_s
        self.much_s = min(MOST_MUCH_S, max(MUCH_S, QUEUED_TIMES * (usual - self._quickest_s)))

    def over(self, lasts_s: float, held_bytes: int) -> bool:
        """Whether one that has lasted so long ends, though there is more input."""
        return lasts_s >= (TRANSACTION_S if held_bytes < MUCH_BYTES else max(TRANSACTION_S, self.much_s))

    def waits_s(self, lasts_s: float, held_bytes: int) -> float:
        """How long one for which there is no more input waits for it before it ends."""
        if held_bytes < MUCH_BYTES:
            return 0.0
        return max(0.0, min(LINGER_S * self.much_s / MUCH_S, self.much_s - lasts_s))
