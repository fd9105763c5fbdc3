"""What a link of scanned topics should be told: which of them, staging's partitions, lanes and memory, by the
figures of docs/operations/sizing.md. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common.config import topic_names
from common.errors import SettingsError
from offsets.group_protocol import MOVABLE
from verbatim.init.reading import Group, Scan, Topic, bare
from verbatim.scan.moving import DEDUPLICATOR_S_PER_MB, MB, Given, moving

RESERVE = 2
"""Rates of some seconds, and figures of another machine: twice of all."""
LANE_BYTES_S = 350e6
"""What a lane has moved in a second."""
LEAST_STAGING, MOST_STAGING, MOST_STAGING_BYTES_S = 8, 64, 1e9
"""Staging's partitions: as few for a small link, as many for that rate."""
SEGMENT = 128 << 20
"""Of staging, whose segments are deleted whole: with Kafka's own 1 GiB little else lay there."""
SMALL_BATCH, SMALL_COSTS = 64 << 10, 5
"""Batches below so many bytes are made into larger ones, and take so many times the CPU."""
MANY_PARTITIONS, MOST_PARTITIONS = 500, 1000
"""Source partitions from which on the replicator takes more memory; and as many as have been tried."""


@dataclass(frozen=True)
class Chosen:
    """`pattern` and `exclude` as settings have them; `left_out`: topic -> why it can't be copied. `small`:
    the share of bytes that lie in small batches. Memory in MiB: what an application takes, and where it is
    stopped. `moving` as verbatim/scan/moving.py has it."""

    link: str
    target: str
    scan: Scan
    pattern: str
    exclude: str
    topics: list[Topic]
    left_out: dict[str, str]
    staging_partitions: int
    lanes: int
    cpus: int
    small: float
    memory_mib: int
    memory_limit_mib: int
    moving: dict[str, Any]
    groups: list[Group]
    unmovable: list[Group]

    @property
    def partitions(self) -> int:
        return sum(one.partitions for one in self.topics)

    @property
    def name(self) -> str:
        """The link's name where only a host name's characters will do."""
        kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in self.link.lower()).strip("-")
        return kept[:40].strip("-") or "link"


def choose(scan: Scan, link: str, target: str, patterns: Sequence[str]) -> Chosen:
    """`patterns`: of topics, instead of those that the scan was asked for. Raises SettingsError."""
    pattern = ",".join(patterns) or scan.asked.topic
    try:
        names, _ = topic_names.compiled(bare(pattern))
    except ValueError as error:
        raise SettingsError(f"--topics: {error}") from None
    if missing := names - {one.topic for one in scan.topics}:
        raise SettingsError(f"--topics: {min(missing)} is not in the scan")
    meant = [one for one in scan.topics if topic_names.matches(pattern, one.topic)]
    left_out = {
        one.topic: f"{', '.join(one.lacking)} not allowed at the source" for one in meant if one.lacking
    }
    topics = [one for one in meant if one.topic not in left_out]
    if not topics:
        raise SettingsError("--topics: no topic of the scan is selected that can be copied")
    inflow = sum(one.bytes_per_second or 0.0 for one in topics)
    line = (scan.moving.line_mbit or 0.0) * MB / 8
    pace = max(inflow, line) * RESERVE
    share = pace / MOST_STAGING_BYTES_S * MOST_STAGING
    staging = min(MOST_STAGING, max(LEAST_STAGING, 2 ** math.ceil(math.log2(max(1.0, share)))))
    lanes = min(staging, max(2, math.ceil(pace / LANE_BYTES_S)))
    sizes = [(one.bytes or 0, (one.batch_bytes or SMALL_BATCH) < SMALL_BATCH) for one in topics]
    small = sum(size for size, is_small in sizes if is_small) / max(1, sum(size for size, _ in sizes))
    cpu = pace / MB * DEDUPLICATOR_S_PER_MB * (1 + (SMALL_COSTS - 1) * small)
    memory = 1280 if sum(one.partitions for one in topics) > MANY_PARTITIONS else 1024
    # Far from the source a lane has 48 MiB in hand and as much on its way.
    limit = max(3072, RESERVE * (memory + lanes * 96))
    given = Given(line_mbit=scan.moving.line_mbit, staging_partitions=staging, segment=SEGMENT)
    groups = scan.groups or []
    return Chosen(
        link=link,
        target=target,
        scan=scan,
        pattern=pattern,
        exclude=",".join(filter(None, [scan.asked.topic_exclude, *left_out])),
        topics=topics,
        left_out=left_out,
        staging_partitions=staging,
        lanes=lanes,
        cpus=max(2, math.ceil(cpu)),
        small=small,
        memory_mib=memory,
        memory_limit_mib=limit,
        moving=moving([one.model_dump() for one in topics], given),
        groups=[one for one in groups if one.type in MOVABLE],
        unmovable=[one for one in groups if one.type not in MOVABLE],
    )
