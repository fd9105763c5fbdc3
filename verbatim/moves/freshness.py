"""How new what was copied is: timestamps of the last records at the destination, and of what the replicator
last wrote down. Decides nothing.

The admin client's question for the largest timestamp would not do: it counts the markers of transactions,
whose time is that of the copying.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from common.kafka.client import clients, topics
from common.kafka.client.clients import Received
from common.kafka.client.range_reader import records
from common.link import positions
from common.partitions import PartitionName
from common.ports import Deadline
from offsets.readers import reader_of

if TYPE_CHECKING:
    from common.config.settings import Settings

SPANS = (20, 1000)
"""Offsets looked at, at the end of each partition; the second time only where the first found markers
alone."""


def last_records(
    settings: Settings, admin: AdminClient, partitions: list[PartitionName], deadline: Deadline
) -> Iterator[tuple[PartitionName, Received]]:
    """The last records of each partition of the target: all that are found near its end; none where there
    are none."""
    left = topics.bounds(admin, partitions, deadline, committed=True)
    with closing(reader_of(settings)) as reader:
        for span in SPANS:
            wanted: dict[str, dict[int, tuple[int, int]]] = {}
            for at, (low, end) in left.items():
                if low < end:
                    wanted.setdefault(at[0], {})[at[1]] = (max(low, end - span), end)
            for topic, ranges in wanted.items():
                for message in records(reader, topic, ranges):
                    at = (topic, message.partition())
                    left.pop(at, None)
                    yield at, message


def newest_records(
    settings: Settings, admin: AdminClient, partitions: list[PartitionName], deadline: Deadline
) -> dict[PartitionName, int | None]:
    """The largest timestamp (ms since 1970) among the last records of each partition; None where there are
    none."""
    found: dict[PartitionName, int | None] = dict.fromkeys(partitions)
    for at, message in last_records(settings, admin, partitions, deadline):
        found[at] = max(found[at] or 0, message.timestamp()[1])
    return found


def last_staged(settings: Settings, admin: AdminClient, deadline: Deadline) -> int | None:
    """When the replicator last wrote down a position (ms since 1970): what the source had below it was staged
    then. None if it never did."""
    topic = settings.positions_topic
    low, end = clients.watermarks(admin, topic, 0, deadline)
    newest: int | None = None
    with closing(reader_of(settings)) as reader:
        for message in records(reader, topic, {0: (low, end)}):
            if positions.decode(message.key(), message.value()) is not None:
                newest = max(newest or 0, message.timestamp()[1])
    return newest
