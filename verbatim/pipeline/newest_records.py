"""Reads the newest records of source topics, for `verbatim pipeline test`. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from common.kafka.client import clients, topics
from common.kafka.client.clients import Received
from common.kafka.client.range_reader import records
from common.kafka.wire.records import encode_rows
from common.partitions import PartitionName
from common.ports import Deadline
from verbatim.pipeline.trying import Rows

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 60.0


def newest_records(settings: Settings, wanted: Callable[[str], bool], count: int) -> Rows:
    """Of each topic that the settings select and that is wanted, the `count` newest records by their
    timestamps, fewer where markers or compaction have left fewer."""
    deadline = Deadline(CALL_S)
    source = clients.admin(settings.client_config("source", "admin"))
    names = [n for n in topics.names(source, "source", deadline) if settings.selects(n) and wanted(n)]
    there = topics.describe(source, names, deadline)
    places = [(i.name, p) for i in there.values() for p in range(i.partitions) if p not in i.leaderless]
    bounds = topics.bounds(source, places, deadline, committed=True)
    found: dict[PartitionName, pa.RecordBatch] = {}
    group = f"{settings.application_name}.replicator"
    with closing(clients.reader(settings.client_config("source", "consumer"), group_id=group)) as reader:
        for name in there:
            of_topic = {p: (max(low, end - count), end) for (n, p), (low, end) in bounds.items() if n == name}
            read = sorted(records(reader, name, of_topic), key=lambda m: m.timestamp()[1])[-count:]
            for partition in sorted({m.partition() for m in read}):
                found[name, partition] = _rows([m for m in read if m.partition() == partition])
    return found


def _rows(read: list[Received]) -> pa.RecordBatch:
    """In their order in the log."""
    read = sorted(read, key=lambda m: m.offset())
    given = [m.timestamp() for m in read]
    kinds = [kind for kind, _ in given]
    # A record of an old format has no timestamp: Kafka has -1 for it.
    times = [-1 if kind == TIMESTAMP_NOT_AVAILABLE else ms for kind, ms in given]
    keys, values = [m.key() for m in read], [m.value() for m in read]
    headers = [m.headers() for m in read]
    return encode_rows([m.offset() for m in read], times, kinds, keys, values, headers)
