"""Destination topics: made when missing, grown, and refused by name when they would alter, refuse or delete what is copied.

What the source topics are like comes from the control topic, so nothing here needs access to the source. The verdict goes back there,
for the lanes, which wait for it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from common import kafka, topics
from common.control import Destination, SourceTopic
from common.control_log import ControlLog
from common.errors import LinkRefused, SettingsError, VerbatimError
from common.kafka import Deadline
from common.link import WIDE_TIMESTAMPS, Link

if TYPE_CHECKING:
    from common.settings import Settings

log = logging.getLogger(__name__)

CALL_S = 30.0
FOREVER = 2**63 - 1
_TIMESTAMPS = ("message.timestamp.type", "message.timestamp.after.max.ms")


def refusal(source: SourceTopic, name: str, config: dict[str, str]) -> str | None:
    """Why records of a source topic may not be written to a destination with this configuration, or None."""
    want = source.config

    def refused(key: str, why: str) -> str:
        return f"destination topic {name} has {key}={config.get(key)}: {why} (source topic {source.topic} has {want.get(key)}); change it"

    if config.get("message.timestamp.type") == "LogAppendTime":
        return refused("message.timestamp.type", "it would replace the records' timestamps")
    if int(config["max.message.bytes"]) < int(want.get("max.message.bytes", 0)):
        return refused("max.message.bytes", "it would refuse the source's largest records")
    if _limit(config, "message.timestamp.before.max.ms") < FOREVER:
        return refused("message.timestamp.before.max.ms", "it would refuse old records")
    if _limit(config, "message.timestamp.after.max.ms") < _limit(want, "message.timestamp.after.max.ms"):
        return refused("message.timestamp.after.max.ms", "it would refuse records that the source takes")
    policy, wanted = (set(filter(None, c.get("cleanup.policy", "").split(","))) for c in (config, want))
    if "compact" in policy and "compact" not in wanted:
        return refused("cleanup.policy", "compaction would delete records that the source keeps")
    if "delete" in policy:
        for key in ("retention.ms", "retention.bytes"):
            kept = _limit(want, key) if "delete" in wanted else FOREVER
            if _limit(config, key) < kept:
                return refused(key, "it would delete records that the source keeps")
    return None


class Destinations:
    """Keeps the destinations of a link as they must be, while this driver leads. `admin` is a client of its own unless given."""

    def __init__(
        self, settings: Settings, link: Link, control: ControlLog, admin: AdminClient | None = None
    ) -> None:
        self.settings = settings
        self.link = link
        self.control = control
        # A client with nothing in its queue counts as false.
        self.admin = (
            admin if admin is not None else kafka.admin(settings.client_config("destination", "admin"))
        )

    def settle(self, again: bool = False) -> None:
        """Make or check what has no verdict yet, or has grown; `again`: also what was refused."""
        state = self.control.state
        for source in list(state.topics.values()):
            have = state.destinations.get(source.topic_id)
            if have is None or have.partitions < source.partitions or (again and have.refused is not None):
                verdict = self._verdict(source)
                if verdict != have:
                    self._record(source, verdict)

    def _verdict(self, source: SourceTopic) -> Destination:
        deadline = Deadline(CALL_S)
        try:
            name = self.settings.destination_topic(source.topic, self.link.source_name)
        except SettingsError as error:
            return Destination("", source.partitions, 1, str(error))
        try:
            self._check_name(source, name)
            return self._fit(source, name, deadline)
        except (LinkRefused, KafkaException) as error:
            reason = kafka.kafka_error(error)
            if reason is not None and kafka.retriable(reason):
                raise
            return Destination(name, source.partitions, 1, f"destination topic {name}: {error}")

    def _check_name(self, source: SourceTopic, name: str) -> None:
        if name in self.settings.own_topics:
            raise LinkRefused(
                f"{name} is a topic of the link itself; change KAFKA_CLUSTERS_DESTINATION_TOPIC"
            )
        if self.link.source_cluster == self.link.target_cluster and name == source.topic:
            raise LinkRefused("it is the source topic itself; change KAFKA_CLUSTERS_DESTINATION_TOPIC")
        state = self.control.state
        for topic_id, other in state.destinations.items():
            of = state.topics.get(topic_id)
            if other.topic == name and other.refused is None and of is not None and of.topic != source.topic:
                raise LinkRefused(
                    f"topic {of.topic} is copied there already; give each a destination of its own"
                )

    def _fit(self, source: SourceTopic, name: str, deadline: Deadline) -> Destination:
        there = topics.describe(self.admin, [name], deadline)
        if name not in there:
            config = {k: v for k, v in source.config.items() if k not in _TIMESTAMPS} | WIDE_TIMESTAMPS
            factor = self.settings.replication_factor
            if topics.create(self.admin, name, source.partitions, factor, config, deadline):
                log.info("made destination topic %s with %d partitions", name, source.partitions)
        config = topics.configs(self.admin, [name], deadline)[name]
        why = refusal(source, name, config)
        if why is None:
            topics.add_partitions(self.admin, name, source.partitions, deadline)
        return Destination(name, source.partitions, int(config["max.message.bytes"]), why)

    def _record(self, source: SourceTopic, verdict: Destination) -> None:
        if verdict.refused is not None:
            log.error("%s; topic %s is not copied", verdict.refused, source.topic)
        self.control.append(
            "destination",
            Deadline(CALL_S),
            topic=source.topic,
            topic_id=source.topic_id,
            destination=verdict.topic,
            partitions=verdict.partitions,
            max_message_bytes=verdict.max_message_bytes,
            refused=verdict.refused,
        )
        self.control.refresh(Deadline(CALL_S))


def passing(error: Exception) -> bool:
    """Whether settling may succeed later by itself."""
    reason = kafka.kafka_error(error)
    return isinstance(error, VerbatimError) or (reason is not None and kafka.retriable(reason))


def _limit(config: dict[str, str], key: str) -> int:
    value = int(config.get(key, -1))
    return FOREVER if value < 0 else value
