"""Reads the mappings into the index and the group-offsets topic into a table, each from where the last read
ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, OffsetSpec

from common.errors import KafkaTimeout, StateError
from common.kafka.client import clients, topics
from common.kafka.client.clients import Received
from common.kafka.client.range_reader import records
from common.link import offset_mappings
from common.ports import Deadline
from offsets.group_offsets import GroupKey, GroupOffset, Stray, decode
from offsets.translation_index import Destination, Index, Point

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

CALL_S = 30.0
_BREATHE = 20_000
"""So many records between two looks at whether to go on."""


class MappingTail:
    """The mappings as far as they have been read. `index` is what they say."""

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self.index = Index(settings.mappings_limit, settings.mappings_retention_s * 1000)
        self._topic = settings.mappings_topic
        self._partitions = range(settings.staging_partitions)
        self._admin = admin
        self._settings = settings
        self._consumer = reader_of(settings)
        self._positions: dict[int, int] = {}

    def catch_up(self, go_on: Callable[[], bool] = lambda: True) -> bool:
        """Take in all that is committed by now. False if `go_on`, asked from time to time, said so; a later
        call goes on from there.

        Raises KafkaTimeout, StateError: the next call makes good.
        """
        deadline = Deadline(CALL_S)
        if not self._positions:
            self._positions = self._beginning(deadline)
        low = self._offsets(OffsetSpec.earliest(), deadline)
        ends = self._offsets(OffsetSpec.latest(), deadline)
        ranges = {p: (max(self._positions[p], low[p]), ends[p]) for p in self._partitions}
        for count, message in enumerate(self._records(ranges), 1):
            try:
                mapping = offset_mappings.decode(message.value())
            except StateError as error:
                where = f"{self._topic}-{message.partition()} offset {message.offset()}"
                raise StateError(f"{where}: {error}") from None
            self.index.add(mapping, message.timestamp()[1])
            self._positions[message.partition()] = message.offset() + 1
            if count % _BREATHE == 0 and not go_on():
                return False
        self._positions = {p: max(self._positions[p], ends[p]) for p in self._partitions}
        self.index.forget(time.time() * 1000)
        return True

    def ends(self, deadline: Deadline) -> dict[int, int]:
        """Where each partition of the mappings ends by now, transactions that are open included."""
        partitions = [(self._topic, p) for p in self._partitions]
        return {p: end for (_, p), end in topics.ends(self._admin, partitions, deadline).items()}

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Whether all that was written below these ends is taken in, but for what was aborted."""
        return all(self._positions.get(p, 0) >= end for p, end in ends.items())

    def close(self) -> None:
        self._consumer.close()

    def _records(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Received]:
        try:
            yield from records(self._consumer, self._topic, ranges, CALL_S)
        except KafkaTimeout:
            # The client may have gone silent (common/kafka/client/stall_detector.py), or have no broker left
            # (common/ports/reconnecting_admin.py): the next call reads with another.
            self._consumer.close()
            self._consumer = reader_of(self._settings)
            raise

    def _beginning(self, deadline: Deadline) -> dict[int, int]:
        since = OffsetSpec.for_timestamp(max(0, int(time.time() * 1000 - self.index.retention_ms)))
        found = self._offsets(since, deadline)
        # -1: all there is, is older.
        ends = self._offsets(OffsetSpec.latest(), deadline)
        return {p: ends[p] if found[p] < 0 else found[p] for p in self._partitions}

    def _offsets(self, spec: OffsetSpec, deadline: Deadline) -> dict[int, int]:
        found = topics.offsets(
            self._admin, {(self._topic, p): spec for p in self._partitions}, deadline, committed=True
        )
        return {p: found[(self._topic, p)] for p in self._partitions}


def read_records(settings: Settings, admin: AdminClient) -> dict[GroupKey, GroupOffset]:
    """What the group-offsets topic says now; empty where there is no such topic."""
    topic, deadline = settings.group_offsets_topic, Deadline(CALL_S)
    if topic not in topics.describe(admin, [topic], deadline):
        return {}
    found: dict[GroupKey, GroupOffset] = {}
    reader = reader_of(settings)
    try:
        low, high = clients.watermarks(admin, topic, 0, deadline)
        for message in records(reader, topic, {0: (low, high)}, CALL_S):
            where = f"{topic} offset {message.offset()}"
            try:
                key, value = decode(message.key(), message.value())
            except Stray as stray:
                log.error("%s: skipped: %s", where, stray)
                continue
            except StateError as error:
                raise StateError(f"{where}: {error}") from None
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
    finally:
        reader.close()
    return found


def seed(index: Index, known: Iterable[tuple[GroupKey, GroupOffset]]) -> None:
    """Let the index know the translations made earlier, for where the mappings no longer reach."""
    points: dict[tuple[str, str, int, str, Destination], list[Point]] = {}
    for key, record in known:
        if record.offset is not None:
            to = Destination(record.destination_topic, record.destination_partition)
            at = (key.topic, record.topic_id, key.partition, key.route, to)
            points.setdefault(at, []).append(Point(record.source_offset, record.offset, record.exact))
    # Own destinations first: what is known of a route hangs on these.
    for (topic, topic_id, partition, route, to), found in sorted(points.items(), key=lambda one: one[0][3]):
        have = index.partitions.get((topic_id, partition))
        if route:
            index.seed_route((topic_id, partition), route, found)
        elif have is None or have.destination == to:
            index.seed(topic, (topic_id, partition), to, found)


def reader_of(settings: Settings) -> Consumer:
    """A consumer of committed records of the target, for `common.kafka.client.range_reader.records`."""
    return clients.reader(settings.client_config("destination", "consumer"), check_crcs=True)
