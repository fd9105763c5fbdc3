"""The link's own topics and its identity: made once, checked at every start. A link's name pointed elsewhere
is refused."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from common.config import own_topic_config
from common.errors import LinkRefused, SettingsError, VerbatimError
from common.kafka.client import clients, cluster_check, topics
from common.kafka.client.topics import TopicInfo
from common.kafka.errors import TRANSACTION_TIMEOUT_MS, too_short
from common.link.control_kinds import Identity
from common.link.control_log import ControlLog
from common.link.topic_config_sync import WIDE_TIMESTAMPS
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

STAGING_MESSAGE_BYTES = 64 << 20
"""A frame is about 1 MiB, but a record larger than that travels alone, and what was well compressed at the
source may not be here."""
MAPPING_MESSAGE_BYTES = 16 << 20
MAPPING_RETENTION_MS = METRICS_RETENTION_MS = 7 * 24 * 3600 * 1000
SOURCE_S = 10.0
"""How long the source is waited for by who can do without it."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link that was found fit. `source_reached` is False where the deduplicator runs while the source is
    down."""

    source_cluster: str
    target_cluster: str
    source_name: str
    source_reached: bool


def own_topics(settings: Settings) -> dict[str, tuple[int, dict[str, str]]]:
    """Name -> (partitions, configuration) of the topics that a link makes for itself."""
    forever = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    return {
        settings.control_topic: (1, dict(forever)),
        settings.staging_topic: (
            settings.staging_partitions,
            # Verbatim trims staging itself, when its records are safe.
            {**forever, **WIDE_TIMESTAMPS, "max.message.bytes": str(STAGING_MESSAGE_BYTES)},
        ),
        settings.positions_topic: (1, {"cleanup.policy": "compact"}),
        settings.mappings_topic: (
            settings.staging_partitions,
            {
                "cleanup.policy": "delete",
                "retention.ms": str(MAPPING_RETENTION_MS),
                "retention.bytes": "-1",
                "max.message.bytes": str(MAPPING_MESSAGE_BYTES),
                "message.timestamp.type": "CreateTime",
            },
        ),
    }


def dead_letters_topic(settings: Settings) -> dict[str, tuple[int, dict[str, str]]]:
    """The same of the topic that `onError: dead-letter` asks for. How long a letter is kept is the cluster's
    default."""
    config = {"cleanup.policy": "delete", "max.message.bytes": str(STAGING_MESSAGE_BYTES)}
    return {settings.dead_letters_topic: (settings.staging_partitions, config)}


def metrics_topic(settings: Settings) -> dict[str, tuple[int, dict[str, str]]]:
    """The same of the topic that OTEL_METRICS_EXPORTER=kafka asks for, and that whoever comes first makes."""
    return {
        settings.metrics_topic: (
            1,
            {"cleanup.policy": "delete", "retention.ms": str(METRICS_RETENTION_MS)},
        )
    }


def prepare(
    settings: Settings, needs_source: bool, deadline: Deadline, make: bool = True, ask_source: bool = True
) -> tuple[Link, ControlLog]:
    """Reach the clusters, check the link's identity, make and check its topics.

    `needs_source`: the replicator can't do without the source; the deduplicator delivers what is staged even
    when it is gone. `make` false: nothing is written, and a link that is not there yet is refused.
    `ask_source` false: no connection is made to the source. Raises LinkRefused, naming what does not fit.
    """
    target_cluster = cluster_check.cluster_id(settings, "destination", deadline)
    source_cluster = _source_cluster(settings, needs_source, deadline) if ask_source else None
    target = clients.admin(settings.client_config("destination", "admin"))
    check_target(target, deadline)
    there = topics.describe(target, [settings.control_topic], deadline)
    if not make and not there:
        raise LinkRefused(
            f"there is no link {settings.application_name} on the target yet: start its replicator first"
        )
    if make and source_cluster == target_cluster:
        source = clients.admin(settings.client_config("source", "admin"))
        refuse_own_copies(settings, topics.names(source, "source", deadline), source_cluster)
    # Read before anything is made, where it is there: what is refused leaves no topics behind.
    control = ControlLog.of(settings) if there else None
    if control is not None and make:
        _refuse_another(settings, target, control, source_cluster, target_cluster, deadline)
    make_topics(settings, target, own_topics(settings), deadline, make)
    control = control or ControlLog.of(settings)
    identity = identify(settings, target, control, source_cluster, target_cluster, deadline, make)
    name = settings.source_name or identity.source_cluster
    return Link(identity.source_cluster, target_cluster, name, source_cluster is not None), control


def refuse_own_copies(settings: Settings, names: Iterable[str], source_cluster: str) -> None:
    """Raises LinkRefused where a copy would be a source topic of the link, on the one cluster that it copies
    from and to: copied again, and again under each name that follows. (A topic copied to itself is refused by
    itself.)"""
    for topic in sorted(filter(settings.selects, names)):
        with contextlib.suppress(SettingsError):
            copy = settings.destination_topic(topic, settings.source_name or source_cluster)
            if copy != topic and settings.selects(copy):
                raise LinkRefused(
                    f"KAFKA_CLUSTERS_SOURCE_TOPIC: source and target are one cluster, and {copy}, the copy of {topic}, would be copied again: "
                    "leave the copies out (KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE)"
                )


def _refuse_another(
    settings: Settings,
    target: AdminClient,
    control: ControlLog,
    source_cluster: str | None,
    target_cluster: str,
    deadline: Deadline,
) -> None:
    """Raises LinkRefused where the link was made with something else than is there, or has lost a topic."""
    found = control.refresh(deadline).identity
    if found is not None:
        there = topics.describe(target, list(own_topics(settings)), deadline)
        _compare(settings, found, _mine(settings, there, source_cluster, target_cluster))


def _source_cluster(settings: Settings, needed: bool, deadline: Deadline) -> str | None:
    try:
        return cluster_check.cluster_id(settings, "source", deadline if needed else Deadline(SOURCE_S))
    except (VerbatimError, KafkaException) as error:
        if needed:
            raise
        log.warning("the source cluster can't be reached (%s): going on without it", error)
        return None


def check_target(target: AdminClient, deadline: Deadline) -> None:
    """Raises LinkRefused where the target's brokers are too old to be written to safely, or allow no
    transactions of the length of ours."""
    # No client tells a broker's version. This setting came with 3.6, and is the very thing needed: a broker
    # that does not verify that a partition belongs to the transaction can be left with one hanging by a late
    # request.
    try:
        config = topics.broker_config(target, deadline)
    except LinkRefused:
        log.warning(
            "the target's version can't be checked without the right to describe its configuration; it must be 3.6 or later"
        )
        return
    verifies = config.get("transaction.partition.verification.enable")
    if verifies is None and "log.message.timestamp.after.max.ms" not in config:
        raise LinkRefused(
            "the target's brokers are older than Kafka 3.6, which Verbatim needs: they do not verify transactions"
        )
    if verifies == "false":
        raise LinkRefused(
            "the target's brokers have transaction.partition.verification.enable=false; Verbatim needs it on"
        )
    longest = config.get("transaction.max.timeout.ms")
    if longest is not None and int(longest) < TRANSACTION_TIMEOUT_MS:
        raise too_short(longest)


def make_topics(
    settings: Settings,
    target: AdminClient,
    wanted: dict[str, tuple[int, dict[str, str]]],
    deadline: Deadline,
    make: bool = True,
) -> None:
    """Make what is missing of `wanted` (as own_topics gives it), and check what is there. Raises
    LinkRefused."""
    there = topics.describe(target, list(wanted), deadline)
    for name, (partitions, config) in wanted.items():
        if name not in there and make:
            own = own_topic_config.configured(settings.link_topic_config)[settings.own_topic_kinds[name]]
            _make_topic(settings, target, name, partitions, config | own, deadline)
        elif name not in there:
            raise LinkRefused(
                f"topic {name} is missing on the target: start the link's replicator, which makes it"
            )
    there = _described(target, list(wanted), deadline)
    have = topics.configs(target, list(wanted), deadline)
    for name, (partitions, config) in wanted.items():
        if there[name].partitions != partitions:
            raise LinkRefused(
                f"topic {name} has {there[name].partitions} partitions, the link needs {partitions}: STAGING_PARTITIONS is fixed when a "
                "link is made"
            )
        _check_config(name, config, have[name])


def _make_topic(
    settings: Settings,
    target: AdminClient,
    name: str,
    partitions: int,
    config: dict[str, str],
    deadline: Deadline,
) -> None:
    if not settings.create_topics:
        wanted = ", ".join(f"{key}={value}" for key, value in sorted(config.items()))
        raise LinkRefused(
            f"topic {name} is missing on the target, and CREATE_TOPICS is false: make it with {partitions} partitions and {wanted}"
        )
    topics.create(target, name, partitions, settings.replication_factor, config, deadline)


def _described(target: AdminClient, names: list[str], deadline: Deadline) -> dict[str, TopicInfo]:
    """Topics of the link that have just been made or found, all of them.

    One broker knows of a new topic before another does: the next description may lack what the last one had.
    """
    while True:
        there = topics.describe(target, names, deadline)
        missing = sorted(set(names) - there.keys())
        if not missing:
            return there
        if deadline.passed():
            raise LinkRefused(f"topic {missing[0]} was made but does not show up")
        time.sleep(0.05)


def _check_config(name: str, wanted: dict[str, str], have: dict[str, str]) -> None:
    for key, value in wanted.items():
        found = have.get(key)
        if key == "max.message.bytes":
            # Those made by hand may be smaller: then a frame that does not fit halts its partition by name.
            good = found is not None and int(found) >= own_topic_config.LEAST_MESSAGE_BYTES
        elif key.startswith("message.timestamp.") and key.endswith("max.ms"):
            continue  # staging's own timestamps are of now
        elif key == "retention.ms" and value != "-1":
            good = found is not None and (found == "-1" or int(found) >= own_topic_config.HOUR_MS)
        else:
            good = found == value
        if not good:
            raise LinkRefused(
                f"topic {name} has {key}={found}, the link needs {value}: change it, or let Verbatim make the topic"
            )


def identify(
    settings: Settings,
    target: AdminClient,
    control: ControlLog,
    source_cluster: str | None,
    target_cluster: str,
    deadline: Deadline,
    make: bool,
) -> Identity:
    """What the control topic says that the link was made with; written there first where it is new and `make`
    is set.

    `source_cluster` None: it can't be reached, or is not to be asked. Raises LinkRefused where something else
    is found.
    """
    there = _described(target, list(own_topics(settings)), deadline)
    mine = _mine(settings, there, source_cluster, target_cluster)
    state = control.refresh(deadline)
    if state.identity is None:
        if source_cluster is None:
            raise LinkRefused(
                f"link {settings.application_name} is new, and the source cluster can't be reached: it must be, once, to "
                "make the link"
            )
        if not make:
            raise LinkRefused(f"link {settings.application_name} is not made yet: start its replicator first")
        control.append(mine, deadline)
        state = control.refresh(deadline)
    found = state.identity
    assert found is not None
    _compare(settings, found, mine)
    return found


def _mine(
    settings: Settings, there: Mapping[str, TopicInfo], source_cluster: str | None, target_cluster: str
) -> Identity:
    """What the link would be made with now; a source cluster that is not known has no name."""
    ids = {name: info.id for name, info in there.items()}
    return Identity(source_cluster or "", target_cluster, settings.staging_partitions, ids)


def _compare(settings: Settings, found: Identity, mine: Identity) -> None:
    for what, value in asdict(mine).items():
        made_with = getattr(found, what)
        unknown = what == "source_cluster" and not value
        if not unknown and made_with != value:
            raise LinkRefused(
                f"link {settings.application_name} was made with {what} {made_with}, and now finds {value}: "
                "use another APPLICATION_NAME, or point it back"
            )
