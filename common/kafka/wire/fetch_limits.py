"""How much a broker is asked for, and how long it may wait for it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from common.kafka.wire.fetch_answers import UNPACKED_BYTES, Budget

FETCH_BYTES, PARTITION_BYTES = 8 << 20, 1 << 20
GROWN_BYTES = 48 << 20
"""What all brokers together are asked for at most, however far away. (A broker gives 55 MiB at once, unless
it is told to give more.)"""
LEAST_FETCH_BYTES = 64 << 10
WAIT_MS, SHORT_WAIT_MS = 5_000, 500
"""How long a broker may wait for records, unless its user says otherwise; it answers as soon as there is one.
The second for HELD_S after a partition was held, which is asked for again only when what is under way is
answered."""
HELD_S = 60.0


class FetchLimits:
    """`held_at`: when a partition was held last, or released. `least_bytes`: what a broker waits for.
    `most_factor`: how many times as much as usual a broker may be asked for."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.held_at = -math.inf
        self.least_bytes = int(config.get("fetch.min.bytes", 1))
        given = {"fetch.max.bytes", "max.partition.fetch.bytes"} & config.keys()
        self.most_factor = 1 if given else GROWN_BYTES // PARTITION_BYTES
        self._given_wait_ms = config.get("fetch.wait.max.ms")
        self._most_bytes = int(config.get("fetch.max.bytes", FETCH_BYTES))
        self._partition_bytes = int(config.get("max.partition.fetch.bytes", PARTITION_BYTES))
        self._grown_bytes = self._most_bytes if given else GROWN_BYTES
        self._unpackable_bytes = self._grown_bytes
        """So much can be unpacked at once."""

    def wait_ms(self, now: float) -> int:
        if self._given_wait_ms is not None:
            return int(self._given_wait_ms)
        return SHORT_WAIT_MS if now - self.held_at < HELD_S else WAIT_MS

    def bytes(self, factor: int, brokers: int) -> tuple[int, int]:
        """How much to ask one of so many brokers for: of one partition, and in all. `factor`: how many times
        as much as usual."""
        of_each = max(self._most_bytes, self._grown_bytes // brokers)
        most = min(self._most_bytes * factor, of_each, self._unpackable_bytes)
        return min(self._partition_bytes * factor, max(most, self._partition_bytes)), most

    def ask_for_less(self, spent: Budget) -> None:
        """Ask for as much as can be unpacked at once, going by how this has: what is beyond that would only
        be sent again."""
        if spent.exceeded:
            packed = UNPACKED_BYTES * spent.packed // max(1, spent.unpacked)
            self._unpackable_bytes = max(LEAST_FETCH_BYTES, packed)
        elif spent.packed:
            self._unpackable_bytes += self._unpackable_bytes // 8
        self._unpackable_bytes = min(self._unpackable_bytes, self._grown_bytes)
