"""Topics as the admin client sees them: describe, create, check. Decides nothing about the protocol."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from common import ports
from common.errors import LinkRefused
from common.kafka.client import clients
from common.kafka.errors import NO_RIGHTS, denied, future_result, kafka_error, retriable, retrying
from common.kafka.model import Value
from common.partitions import PartitionName
from common.ports import Deadline

NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The zero UUID: what brokers before 2.8 answer, since they have no topic ids."""
_BATCH = 500
_MOST_PARTITIONS = 2000
LAST_TRY_S = 1.5
"""Before the deadline, what may pass is tried again; in its last seconds it is an answer."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic's identity and size."""

    name: str
    id: str
    partitions: int
    leaderless: frozenset[int] = field(default=frozenset(), compare=False)
    """Partitions that had no leader then: nobody tells their offsets, or reads them, until they have one."""


def id_text(topic_id: Uuid) -> str:
    """A topic id as Kafka's tools print it; the client prints the other base64 alphabet."""
    return str(topic_id).translate({ord("+"): "-", ord("/"): "_"})


def names(client: AdminClient, which: str, deadline: Deadline) -> list[str]:
    """The names of all topics of the cluster that can be seen."""
    found = retrying(
        f"listing the {which} cluster's topics", lambda t: client.list_topics(timeout=t), deadline
    )
    return sorted(found.topics)


def describe(
    client: AdminClient, topics: list[str], deadline: Deadline, hidden: set[str] | None = None
) -> dict[str, TopicInfo]:
    """Identity and partition count of those of the topics that exist; `hidden` as in `descriptions`."""
    out: dict[str, TopicInfo] = {}
    for name, found in descriptions(client, topics, deadline, hidden=hidden).items():
        if id_text(found.topic_id) == NO_ID:
            raise LinkRefused(
                f"topic {name} has no topic id: its brokers are older than Kafka 2.8, which Verbatim needs"
            )
        leaderless = frozenset(p.id for p in found.partitions if p.leader is None or p.leader.id < 0)
        out[name] = TopicInfo(name, id_text(found.topic_id), len(found.partitions), leaderless)
    return out


def not_writable(
    client: AdminClient, topics: list[str], deadline: Deadline, ids: dict[str, str] | None = None
) -> set[str]:
    """Those of the topics, which are there, to which this client may not write. `ids` gets the topic ids of
    those that are there."""
    hidden: set[str] = set()
    found = descriptions(client, topics, deadline, rights=True, hidden=hidden)
    if ids is not None:
        ids |= {name: id_text(topic.topic_id) for name, topic in found.items()}
    return hidden | {
        name
        for name, topic in found.items()
        if topic.authorized_operations is not None and AclOperation.WRITE not in topic.authorized_operations
    }


def descriptions(
    client: AdminClient,
    topics: list[str],
    deadline: Deadline,
    rights: bool = False,
    hidden: set[str] | None = None,
) -> dict[str, TopicDescription]:
    """What the brokers tell of those of the topics that exist; with `rights`, what this client may do with
    each too.

    A topic that may not be described is put into `hidden`; without that, raises LinkRefused.
    """
    out: dict[str, TopicDescription] = {}

    def ask(batch: list[str], timeout: float) -> None:
        asked = client.describe_topics(
            TopicCollection(batch), request_timeout=timeout, include_authorized_operations=rights
        )
        for name, future in asked.items():
            try:
                out[name] = future_result(future, timeout + 1)
            except KafkaException as exception:
                error = kafka_error(exception)
                code = None if error is None else error.code()
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    out.pop(name, None)
                elif error is None or code not in NO_RIGHTS:
                    raise
                elif hidden is None:
                    raise denied(f"describing topic {name}", error, right="DESCRIBE") from None
                else:
                    hidden.add(name)

    for begin in range(0, len(topics), _BATCH):
        batch = topics[begin : begin + _BATCH]
        retrying(f"describing {len(batch)} topics", partial(ask, batch), deadline)
    return out


def bounds(
    client: AdminClient,
    partitions: Collection[PartitionName],
    deadline: Deadline,
    committed: bool = False,
    failed: dict[PartitionName, str] | None = None,
) -> dict[PartitionName, tuple[int, int]]:
    """Log start and high watermark of each partition; `committed`: the last stable offset in its place;
    `failed` as in `offsets`."""
    if not partitions:
        return {}
    low = offsets(client, dict.fromkeys(partitions, OffsetSpec.earliest()), deadline, False, failed)
    end = ends(client, low, deadline, committed, failed)
    return {at: (low[at], end[at]) for at in end}


def configs(client: AdminClient, topics: list[str], deadline: Deadline) -> dict[str, dict[str, str]]:
    """The effective configuration of each topic."""
    found = _configs(client, ResourceType.TOPIC, topics, deadline)
    return {name: {key: value.value for key, value in found[name].items()} for name in found}


def settings_of(client: AdminClient, topics: list[str], deadline: Deadline) -> dict[str, dict[str, Value]]:
    """The settings of topics that are there, or were just made: waited for where one does not show yet."""
    return _configs(client, ResourceType.TOPIC, topics, deadline)


def topic_settings(
    client: AdminClient, topics: list[str], deadline: Deadline, hidden: set[str] | None = None
) -> dict[str, dict[str, Value]]:
    """The settings of those of the topics that exist, and which of them were set on the topic itself.

    A topic whose settings may not be read is put into `hidden`; without that, raises LinkRefused.
    """
    return _configs(client, ResourceType.TOPIC, topics, deadline, missing_ok=True, hidden=hidden)


def broker_config(client: AdminClient, deadline: Deadline) -> dict[str, str]:
    """The configuration of one broker of the cluster."""
    brokers = retrying("listing brokers", lambda t: client.list_topics(timeout=t), deadline).brokers
    broker = str(min(brokers))
    found = _configs(client, ResourceType.BROKER, [broker], deadline)[broker]
    return {key: value.value for key, value in found.items()}


def _configs(
    client: AdminClient,
    kind: ResourceType,
    resources: list[str],
    deadline: Deadline,
    missing_ok: bool = False,
    hidden: set[str] | None = None,
) -> dict[str, dict[str, Value]]:
    out: dict[str, dict[str, Value]] = {}

    def ask(batch: list[str], timeout: float) -> None:
        futures = client.describe_configs([ConfigResource(kind, n) for n in batch], request_timeout=timeout)
        for resource, future in futures.items():
            try:
                entries = future_result(future, timeout + 1)
            except KafkaException as exception:
                error = kafka_error(exception)
                code = None if error is None else error.code()
                if missing_ok and code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    out.pop(resource.name, None)
                    continue
                if error is None or code not in NO_RIGHTS:
                    raise
                if hidden is None:
                    what = f"reading the configuration of {kind.name.lower()} {resource.name}"
                    raise denied(what, error, right="DESCRIBE_CONFIGS") from None
                hidden.add(resource.name)
                continue
            out[resource.name] = {
                k: Value(e.value, e.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
                for k, e in entries.items()
                if e.value is not None
            }

    for begin in range(0, len(resources), _BATCH):
        batch = resources[begin : begin + _BATCH]
        retrying(f"reading the configuration of {', '.join(batch[:3])}", partial(ask, batch), deadline)
    return out


def create(
    client: AdminClient,
    name: str,
    partitions: int,
    replication_factor: int | None,
    config: dict[str, str],
    deadline: Deadline,
) -> bool:
    """Make a topic and wait until it is there; False if it was there already."""
    return bool(create_all(client, {name: (partitions, config)}, replication_factor, deadline))


def create_all(
    client: AdminClient,
    wanted: Mapping[str, tuple[int, dict[str, str]]],
    replication_factor: int | None,
    deadline: Deadline,
) -> set[str]:
    """Make topics of so many partitions and with such a configuration each, and wait until they are there;
    those that were not there already."""
    made: set[str] = set()
    factor = -1 if replication_factor is None else replication_factor

    def make(names: list[str], timeout: float) -> None:
        new = [NewTopic(name, wanted[name][0], factor, config=wanted[name][1]) for name in names]
        for name, future in client.create_topics(new, request_timeout=timeout).items():
            try:
                future_result(future, timeout + 1)
                made.add(name)
            except KafkaException as exception:
                error = kafka_error(exception)
                if error is not None and error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                if error is not None and not retriable(error) and error.code() not in NO_RIGHTS:
                    raise LinkRefused(f"topic {name} can't be made: {error.str()}") from None
                raise

    for names in _at_once(wanted):
        what = f"topic {names[0]}" if len(names) == 1 else f"{len(names)} topics, {names[0]} and others"
        retrying(f"making {what}", partial(make, names), deadline)
    missing, pause_s = list(wanted), 0.05
    while True:
        there = describe(client, missing, deadline)
        missing = [name for name in missing if name not in there]
        if not missing:
            return made
        if deadline.passed():
            raise LinkRefused(f"topic {missing[0]} was made but does not show up")
        # Of many, a broker makes a hundred partitions a second or several.
        ports.sleep(pause_s)
        pause_s = min(1.0, 2 * pause_s)


def _at_once(wanted: Mapping[str, tuple[int, dict[str, str]]]) -> Iterator[list[str]]:
    """The topics that one request makes: a controller refuses one that writes more than 10,000 records."""
    names: list[str] = []
    partitions = 0
    for name, (count, _) in wanted.items():
        if names and partitions + count > _MOST_PARTITIONS:
            yield names
            names, partitions = [], 0
        names.append(name)
        partitions += count
    if names:
        yield names


def add_partitions(client: AdminClient, name: str, partitions: int, deadline: Deadline) -> None:
    """Grow a topic to a number of partitions; nothing if it has them already."""

    def grow(timeout: float) -> None:
        found = describe(client, [name], deadline).get(name)
        if found is None:
            # Each broker hears of a topic that was just made in its own time.
            words = "the broker that was asked has not heard of it"
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, words))
        if found.partitions < partitions:
            future = client.create_partitions([NewPartitions(name, partitions)], request_timeout=timeout)[
                name
            ]
            future_result(future, timeout + 1)

    retrying(f"adding partitions to topic {name}", grow, deadline)


def alter(client: AdminClient, name: str, changes: Mapping[str, str | None], deadline: Deadline) -> None:
    """Set some of a topic's configuration; None unsets, so that the cluster's default counts."""
    resource = ConfigResource(
        ResourceType.TOPIC,
        name,
        incremental_configs=[
            ConfigEntry(
                k,
                v,
                incremental_operation=AlterConfigOpType.DELETE if v is None else AlterConfigOpType.SET,
            )
            for k, v in changes.items()
        ],
    )
    retrying(
        f"changing the configuration of topic {name}",
        lambda t: future_result(
            client.incremental_alter_configs([resource], request_timeout=t)[resource], t + 1
        ),
        deadline,
    )


def ends(
    client: AdminClient,
    partitions: Iterable[PartitionName],
    deadline: Deadline,
    committed: bool = False,
    failed: dict[PartitionName, str] | None = None,
) -> dict[PartitionName, int]:
    """The high watermark of each partition; `committed`, `failed` as in `offsets`."""
    return offsets(client, dict.fromkeys(partitions, OffsetSpec.latest()), deadline, committed, failed)


def offsets(
    client: AdminClient,
    specs: dict[PartitionName, OffsetSpec],
    deadline: Deadline,
    committed: bool = False,
    failed: dict[PartitionName, str] | None = None,
) -> dict[PartitionName, int]:
    """Offsets by OffsetSpec (earliest, latest, for a timestamp: -1 where there is none), of each partition's
    leader.

    `committed`: latest is the last stable offset instead of the high watermark. With `failed`, a partition
    whose leader does not tell is put there, with the reason, instead of ending it for all.
    """
    out: dict[PartitionName, int] = {}
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

    def ask(batch: list[PartitionName], timeout: float) -> None:
        wanted = {TopicPartition(*at): specs[at] for at in batch}
        for at, future in client.list_offsets(wanted, isolation_level=level, request_timeout=timeout).items():
            name = (at.topic, at.partition)
            try:
                out[name] = clients.found_offset(future_result(future, timeout + 1).offset)
            except KafkaException as exception:
                error: KafkaError = exception.args[0]
                if failed is None or (retriable(error) and deadline.left() > LAST_TRY_S):
                    raise
                failed[name] = error.str()

    keys = list(specs)
    for begin in range(0, len(keys), _BATCH):
        batch = keys[begin : begin + _BATCH]
        retrying(f"asking offsets of {batch[0][0]}", partial(ask, batch), deadline)
    return out
