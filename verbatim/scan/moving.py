"""What moving topics takes, by the figures of docs/operations/sizing.md; money only by prices that are given.
Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

REPLICATOR_S_PER_MB, DEDUPLICATOR_S_PER_MB, TARGET_S_PER_MB = 0.0005, 0.0006, 0.0018
"""Of CPU, the most of what was measured; the target's brokers with one replica."""
STAGING_S = 75.0
"""What staging holds: as much as comes within a minute and a fold, of a small link LEAST_STAGING bytes, and a
segment for each of its partitions."""
LEAST_STAGING, SEGMENT = 4 << 30, 1 << 30
MB, GB = 1e6, 1e9


@dataclass(frozen=True)
class Given:
    """What is known of where topics go. `line_mbit`: of the way to the source, in Mbit/s; prices are in one
    currency: of what is read at the source and of what crosses zones for a GB, of disks for a GB and month;
    `copies`: replicas at the target, None: as many as at the source; `segment`: bytes of one of staging's."""

    line_mbit: float | None = None
    line_price: float | None = None
    zone_price: float | None = None
    disk_price: float | None = None
    copies: int | None = None
    staging_partitions: int = 8
    segment: int = SEGMENT


def moving(topics: Iterable[dict[str, Any]], given: Given) -> dict[str, Any]:
    """`topics` with `bytes`, `bytes_per_second` and `replication_factor`; what has no known size is in
    `unknown` and in no sum."""
    lines = list(topics)
    known = [t for t in lines if t["bytes"] is not None]
    copy = sum(t["bytes"] for t in known)
    inflow = sum(t["bytes_per_second"] or 0.0 for t in lines)

    def with_replicas(count: int) -> float:
        """Bytes, `count` of each topic's replicas left out."""
        return float(sum(t["bytes"] * ((given.copies or t["replication_factor"]) - count) for t in known))

    disk, followers = with_replicas(0), with_replicas(1)
    most_copies = given.copies or max((t["replication_factor"] for t in known), default=1)
    line = None if given.line_mbit is None else given.line_mbit * MB / 8
    pace = min(line or float("inf"), MB / max(REPLICATOR_S_PER_MB, DEDUPLICATOR_S_PER_MB))
    held = max(LEAST_STAGING, STAGING_S * (inflow if line is None else pace))
    between = 2 * followers
    prices = {
        "line": (given.line_price, copy),
        "zones": (given.zone_price, between),
        "disk_a_month": (given.disk_price, disk),
    }
    return {
        "copy_bytes": copy,
        "inflow_bytes_per_second": inflow,
        "disk_bytes": disk,
        "staging_bytes": (held + given.staging_partitions * given.segment) * most_copies,
        "line_mbit": given.line_mbit,
        "seconds": copy / (pace - inflow) if line is not None and pace > inflow else None,
        "keeps_up": None if line is None else pace > inflow,
        "cpu_seconds": {
            "replicator": copy / MB * REPLICATOR_S_PER_MB,
            "deduplicator": copy / MB * DEDUPLICATOR_S_PER_MB,
            "target_brokers": disk / MB * TARGET_S_PER_MB,
        },
        "target_written_bytes": 2 * disk,
        "between_replicas_bytes": between,
        "costs": {name: price * count / GB for name, (price, count) in prices.items() if price is not None},
        "unknown": sorted(t["topic"] for t in lines if t["bytes"] is None),
    }
