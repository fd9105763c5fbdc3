"""A short look at what source topics hold: how many records, how fast they grow, how large they are.

Kafka tells the size of a log only by DescribeLogDirs, which this client does not have: records are counted in
offsets, and the size of a record is that of a few at the end of each topic.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, OffsetSpec

from common.errors import VerbatimError
from common.kafka.client import clients, topics
from common.kafka.client.clients import Received
from common.kafka.client.range_reader import records
from common.kafka.errors import kafka_error
from common.partitions import PartitionName
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

SAMPLE = 20
"""Records read at the end of a partition of each topic."""
ANSWER_S = 5.0


def rates(
    admin: AdminClient, partitions: list[PartitionName], seconds: float, deadline: Deadline
) -> tuple[dict[PartitionName, tuple[int, int]], dict[PartitionName, float]]:
    """(log start, end) of each partition, and by how many offsets a second it grows: two looks, some seconds
    apart."""
    if not partitions:
        return {}, {}
    began, first = time.monotonic(), topics.bounds(admin, partitions, deadline)
    time.sleep(seconds)
    ended, last = (
        time.monotonic(),
        topics.offsets(admin, dict.fromkeys(partitions, OffsetSpec.latest()), deadline),
    )
    rate = {at: max(0, last[at] - end) / max(ended - began, 0.001) for at, (_, end) in first.items()}
    return {at: (low, last[at]) for at, (low, _) in first.items()}, rate


def size_of(message: Received) -> int:
    """Bytes of a record's key, value and headers."""
    headers = sum(len(name.encode()) + len(value or b"") for name, value in message.headers() or [])
    return len(message.key() or b"") + len(message) + headers


def sizes(
    settings: Settings, group: str, ends: dict[PartitionName, tuple[int, int]], deadline: Deadline
) -> dict[str, float]:
    """Mean size of the last records of each topic's longest partition, in bytes; what there is no time for
    stays unknown.

    Raises VerbatimError where it can't be read."""
    longest: dict[str, PartitionName] = {}
    for at, (low, end) in ends.items():
        best = longest.get(at[0])
        if end > low and (best is None or end - low > ends[best][1] - ends[best][0]):
            longest[at[0]] = at
    out = {}
    config = settings.client_config("source", "consumer")
    with closing(clients.reader(config, group_id=group, fetch_message_max_bytes=65536)) as reader:
        for topic, at in longest.items():
            if deadline.passed():
                break
            low, end = ends[at]
            ranges = {at[1]: (max(low, end - SAMPLE), end)}
            found = [size_of(message) for message in records(reader, topic, ranges, ANSWER_S)]
            if found:
                out[topic] = sum(found) / len(found)
    return out


def unread(error: Exception) -> str:
    """Why something could not be read, in one line."""
    reason = kafka_error(error)
    return str(error) if isinstance(error, VerbatimError) or reason is None else reason.str()
