"""Which staging partition a source partition's frames go to. Pure; the function is fixed for the life of a
link."""

from __future__ import annotations

import zlib


def staging_partition(topic: str, partition: int, staging_partitions: int) -> int:
    """A fixed function of (topic, partition) that spreads the partitions of a topic evenly over the staging
    partitions."""
    return (zlib.crc32(topic.encode()) + partition) % staging_partitions


def partitions_of(topic: str, partitions: int, staging: int, staging_partitions: int) -> range:
    """The partitions of a topic whose frames go to a staging partition."""
    return range((staging - zlib.crc32(topic.encode())) % staging_partitions, partitions, staging_partitions)


def spread(items: int, lanes: int) -> list[list[int]]:
    """Deal `items` numbered things to at most `lanes` lanes, sizes differing by one at most; no lane is
    empty. Who had which before makes no difference: it costs an epoch nothing
    (tests/simulation/test_cases.py)."""
    return [list(range(lane, items, lanes)) for lane in range(min(items, lanes))]
