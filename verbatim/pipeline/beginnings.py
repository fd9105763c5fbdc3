"""From which record on each version of a pipeline was delivered, as the offset mappings tell. Reads them
all."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.kafka.client import clients, topics
from common.kafka.client.range_reader import of_partitions
from common.link.offset_mappings import decode
from common.partitions import PartitionId
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 60.0


@dataclass(frozen=True)
class Beginning:
    """The first source offset of a partition that is of a version; `topic_id`: of the topic that it is of,
    which may have been made again."""

    topic: str
    partition: int
    topic_id: str
    offset: int


def beginnings(settings: Settings) -> dict[int, list[Beginning]]:
    """By version, 0 for none, what the mappings that are still there tell; sorted."""
    deadline, name = Deadline(CALL_S), settings.mappings_topic
    target = clients.admin(settings.client_config("destination", "admin"))
    there = topics.describe(target, [name], deadline)
    places = [(name, p) for p in range(there[name].partitions)] if there else []
    bounds = topics.bounds(target, places, deadline, committed=True)
    last: dict[PartitionId, int] = {}
    found: dict[int, list[Beginning]] = {}
    with closing(clients.reader(settings.client_config("destination", "consumer"))) as reader:
        for message in of_partitions(reader, bounds):
            m = decode(message.value())
            key = m.topic_id, m.partition
            # Where older mappings have expired, the first that is left is no beginning.
            known = key in last or bounds[name, message.partition()][0] == 0
            if last.get(key) != m.pipeline and known:
                began = Beginning(m.topic, m.partition, m.topic_id, m.start)
                found.setdefault(m.pipeline, []).append(began)
            last[key] = m.pipeline
    return {
        number: sorted(of, key=lambda b: (b.topic, b.partition, b.offset)) for number, of in found.items()
    }
