"""The link that copies from the target back to the source, of two that copy one topic both ways: how far it
is, and where its copies stand. Known by its name; its topics lie at the source. Writes nothing."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from common.config.fields import CLUSTERS, KINDS
from common.errors import KafkaTimeout, LinkRefused
from common.kafka.client import clients, topics
from common.link.control_log import ControlLog
from common.link.identity import Link
from common.partitions import PartitionName
from common.ports import Deadline
from offsets.readers import MappingTail
from offsets.translation_index import Destination, PartitionIndex

if TYPE_CHECKING:
    from common.config.settings import Settings

SETTLED_S = 20.0
ASK_S = 0.05


class ReturnLink:
    """Raises LinkRefused, KafkaTimeout, KafkaException where it is made and looked at."""

    def __init__(self, settings: Settings, name: str, link: Link, deadline: Deadline) -> None:
        # Read as whom the link's own settings name at the source.
        mine = settings.model_copy(
            update={
                "destination_bootstrap_servers": settings.source_bootstrap_servers,
                "client_properties": {
                    f"{to}.{kind}": settings.client_properties.get(f"{of}.{kind}", {})
                    for to, of in zip(CLUSTERS, reversed(CLUSTERS), strict=True)
                    for kind in KINDS
                },
                "control_topic_name": f"{name}.control",
                "mappings_topic_name": f"{name}.offset-mappings",
            }
        )
        admin = clients.admin(mine.client_config("destination", "admin"))
        found = topics.describe(admin, [mine.control_topic, mine.mappings_topic], deadline)
        for topic in (mine.control_topic, mine.mappings_topic):
            if topic not in found:
                raise LinkRefused(f"--return-link {name}: there is no topic {topic} at the source")
        self.name = name
        self.settings = mine
        self._control = ControlLog(
            mine.control_topic,
            mine.client_config("destination", "consumer"),
            mine.client_config("destination", "producer"),
            mine.client_config("destination", "admin"),
            name,
        )
        self._ids: dict[str, str] = {}
        try:
            self._control.refresh(deadline)
            identity = self._control.state.identity
            if identity is None or (identity.source_cluster, identity.target_cluster) != (
                link.target_cluster,
                link.source_cluster,
            ):
                raise LinkRefused(f"--return-link {name}: it does not copy from the target to the source")
            self.tail = MappingTail(
                mine.model_copy(update={"staging_partitions": identity.staging_partitions}), admin
            )
        except BaseException:
            self._control.close()
            raise

    def close(self) -> None:
        with closing(self._control):
            self.tail.close()

    def look(self, target_admin: AdminClient, names: list[str], deadline: Deadline) -> None:
        """How it is now; `names`: topics at the target, whose present ids count."""
        self._control.refresh(deadline)
        described = topics.describe(target_admin, names, deadline) if names else {}
        self._ids = {name: of.id for name, of in described.items()}

    def has_moved(self, group: str) -> bool:
        """Whether it is this link that has moved a group to the source, or is about to."""
        return group in self._control.state.group_moves

    def partition(self, of: Destination, at: PartitionName) -> PartitionIndex | None:
        """A partition of the target on its way to a partition of the source. None: none of it is copied.

        Raises LinkRefused where it goes elsewhere.
        """
        topic_id = self._ids.get(of.topic, "")
        known = self.tail.index.partitions.get((topic_id, of.partition))
        to = self._control.state.destinations.get(topic_id)
        if (to is not None and to.topic != at[0]) or (
            known is not None and known.destinations - {Destination(*at)}
        ):
            raise LinkRefused(f"--return-link {self.name}: it does not copy {of.topic} back to {at[0]} alone")
        return known

    def origin(self, of: Destination) -> int | None:
        """Where the copying of a partition of the target began, if that is on record."""
        found = self._control.state.origins.get((self._ids.get(of.topic, ""), of.partition))
        return found.offset if found else None


def settle(tail: MappingTail) -> None:
    """Read mappings to where they end now, open transactions included: a copy may be read by a group before
    its mapping can be. Raises KafkaTimeout."""
    deadline = Deadline(SETTLED_S)
    ends = tail.ends(deadline)
    while not (tail.catch_up() and tail.has_read(ends)):
        if deadline.passed():
            raise KafkaTimeout(
                "a transaction of the offset mappings stays open: does the link's deduplicator run?"
            )
        time.sleep(ASK_S)
