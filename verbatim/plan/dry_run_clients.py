"""Clients that change nothing, for code that would: what it asks for is judged by the brokers, remembered,
and from then on told as if it were so. So a plan is made by the very code that will act on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from confluent_kafka import TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ListOffsetsResultInfo,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from common.kafka.client import clients
from common.link.control_kinds import ControlRecord, encode
from common.link.control_log import ControlLog
from common.link.control_state import Control
from common.link.positions import Position
from common.partitions import PartitionId
from common.ports import Deadline
from replicator.driver.planner import PositionLog

if TYPE_CHECKING:
    from common.config.settings import Settings

VALIDATION_S = 30.0
_PRETENDED = (AlterConfigOpType.SET, AlterConfigOpType.DELETE)
_ON_TOPIC: Any = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
"""As the client tells it: a number, though it is annotated otherwise."""


@dataclass
class Pretended:
    """What would have been changed: topics made (name -> as asked for), partitions a topic has grown to,
    configuration set (None: unset)."""

    topics: dict[str, NewTopic] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    config: dict[str, dict[str, str | None]] = field(default_factory=dict)


def now(value: Any) -> Future[Any]:
    """A future with its result."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def refused(error: BaseException) -> Future[Any]:
    """A future with its error."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def _refuse(what: str) -> NoReturn:
    raise AssertionError(f"{what} would change the cluster, and can't be pretended")


def _refusing(method: str) -> Callable[..., NoReturn]:
    return lambda *args, **kwargs: _refuse(method)


class PretendingAdmin(AdminClient):
    """An admin client that only reads. What can be validated by the brokers is (rights, policies, replication
    factor, configuration); anything else that would change a cluster is refused here."""

    def __init__(self, config: clients.Config) -> None:
        with clients.making("admin client", config):
            super().__init__(clients.admin_config(config), logger=clients.client_log)
        self.pretended = Pretended()

    # what would change something

    # (The client's own methods override those of its C part with other parameters, as these do.)

    def create_topics(  # type: ignore[override]
        self, new_topics: list[NewTopic], **kwargs: Any
    ) -> dict[str, Future[Any]]:
        out = super().create_topics(new_topics, **{**kwargs, "validate_only": True})
        return {t.topic: self._validated(out[t.topic], self.pretended.topics, t.topic, t) for t in new_topics}

    def create_partitions(  # type: ignore[override]
        self, new_partitions: list[NewPartitions], **kwargs: Any
    ) -> dict[str, Future[Any]]:
        out: dict[str, Future[Any]] = {}
        for new in new_partitions:
            if new.topic in self.pretended.topics:
                self.pretended.partitions[new.topic] = new.new_total_count
                out[new.topic] = now(None)
                continue
            asked = super().create_partitions([new], **{**kwargs, "validate_only": True})[new.topic]
            out[new.topic] = self._validated(asked, self.pretended.partitions, new.topic, new.new_total_count)
        return out

    def incremental_alter_configs(  # type: ignore[override]
        self, resources: list[ConfigResource], **kwargs: Any
    ) -> dict[ConfigResource, Future[Any]]:
        out: dict[ConfigResource, Future[Any]] = {}
        for resource in resources:
            entries = resource.incremental_configs
            if any(e.incremental_operation not in _PRETENDED for e in entries):
                _refuse("incremental_alter_configs with anything but SET and DELETE")
            unset = {e.name for e in entries if e.incremental_operation == AlterConfigOpType.DELETE}
            changes = self.pretended.config.get(resource.name, {}) | {
                e.name: None if e.name in unset else e.value for e in entries
            }
            if resource.name in self.pretended.topics:
                self.pretended.config[resource.name] = changes
                out[resource] = now(None)
                continue
            asked = super().incremental_alter_configs([resource], **{**kwargs, "validate_only": True})
            out[resource] = self._validated(asked[resource], self.pretended.config, resource.name, changes)
        return out

    @staticmethod
    def _validated(asked: Future[Any], into: dict[str, Any], name: str, what: Any) -> Future[Any]:
        try:
            asked.result(VALIDATION_S)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            return refused(error)
        into[name] = what
        return now(None)

    # what is told of it

    def describe_topics(  # type: ignore[override]
        self, topics: TopicCollection, **kwargs: Any
    ) -> dict[str, Future[Any]]:
        made = self.pretended.topics
        real = [name for name in topics.topic_names if name not in made]
        # The client goes by its own dictionary until it is answered.
        out = dict(super().describe_topics(TopicCollection(real), **kwargs)) if real else {}
        for number, name in enumerate(made, 1):
            if name in topics.topic_names:
                count = self.pretended.partitions.get(name, made[name].num_partitions)
                led = SimpleNamespace(id=0)
                partitions = [SimpleNamespace(id=p, leader=led) for p in range(count)]
                told = SimpleNamespace(
                    topic_id=Uuid(1, number), partitions=partitions, authorized_operations=None
                )
                out[name] = now(told)
        return out

    def describe_configs(  # type: ignore[override]
        self, resources: list[ConfigResource], **kwargs: Any
    ) -> dict[ConfigResource, Future[Any]]:
        made = self.pretended.topics
        real = [r for r in resources if r.restype != ResourceType.TOPIC or r.name not in made]
        asked = super().describe_configs(real, **kwargs) if real else {}
        out: dict[ConfigResource, Future[Any]] = {}
        for resource in resources:
            changes = self.pretended.config.get(resource.name, {})
            if resource not in asked:
                out[resource] = now(_changed({}, {**(made[resource.name].config or {}), **changes}))
            elif changes and resource.restype == ResourceType.TOPIC:
                out[resource] = now(_changed(asked[resource].result(VALIDATION_S), changes))
            else:
                out[resource] = asked[resource]
        return out

    def list_offsets(  # type: ignore[override]
        self, topic_partition_offsets: dict[TopicPartition, OffsetSpec], **kwargs: Any
    ) -> dict[TopicPartition, Future[Any]]:
        made = self.pretended.topics
        real = {at: spec for at, spec in topic_partition_offsets.items() if at.topic not in made}
        out = dict(super().list_offsets(real, **kwargs)) if real else {}
        for at in topic_partition_offsets:
            if at not in out:
                out[at] = now(ListOffsetsResultInfo(0, -1, -1))
        return out

    # what is never asked for, and could be validated by nobody

    alter_configs = _refusing("alter_configs")
    alter_consumer_group_offsets = _refusing("alter_consumer_group_offsets")
    alter_user_scram_credentials = _refusing("alter_user_scram_credentials")
    create_acls = _refusing("create_acls")
    delete_acls = _refusing("delete_acls")
    delete_consumer_groups = _refusing("delete_consumer_groups")
    delete_records = _refusing("delete_records")
    delete_topics = _refusing("delete_topics")
    elect_leaders = _refusing("elect_leaders")


def _changed(found: dict[str, ConfigEntry], changes: Mapping[str, str | None]) -> dict[str, ConfigEntry]:
    """A topic's configuration, with some of it set, or unset so that what stands behind it counts."""
    out = dict(found)
    for key, value in changes.items():
        behind = found[key].synonyms.values() if key in found else ()
        default = next((entry for entry in behind if entry.source != _ON_TOPIC), None)
        if value is not None:
            out[key] = ConfigEntry(key, value, source=_ON_TOPIC)
        elif default is not None:
            out[key] = ConfigEntry(key, default.value, source=default.source)
        else:
            out.pop(key, None)
    return out


class PretendedControl(ControlLog):
    """The control topic as it is now, if `there`; what is appended stays in memory.

    Where it is not there, no consumer is made: a consumer's group makes the broker make the topic that groups
    are kept in.
    """

    def __init__(self, settings: Settings, there: bool) -> None:
        self.topic = settings.control_topic
        self.link = settings.application_name
        self.state = Control(link=self.link)
        if there:
            real = ControlLog.of(settings)
            try:
                self.state = real.refresh(Deadline(VALIDATION_S))
            finally:
                real.close()

    def poll(self) -> Control:
        return self.state

    def refresh(self, deadline: Deadline) -> Control:
        return self.state

    def append_all(self, records: Iterable[ControlRecord], deadline: Deadline) -> list[int]:
        offsets = []
        for record in records:
            offsets.append(self.state.position)
            self.state.apply(self.state.position, encode(record, self.link))
        return offsets

    def close(self) -> None:
        """There is nothing to close."""


class NoPositions(PositionLog):
    """A positions topic that is not there yet. It makes no consumer either."""

    def __init__(self) -> None:
        self.known = {}

    def refresh(self, deadline: Deadline) -> dict[PartitionId, Position]:
        return self.known

    def close(self) -> None:
        """There is nothing to close."""
