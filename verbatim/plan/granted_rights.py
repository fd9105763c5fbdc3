"""What the brokers say that a principal may do; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from common.kafka.client import topics
from common.kafka.errors import future_result, kafka_error, retrying
from common.kafka.model import GROUPS_TOPIC
from common.ports import Deadline


@dataclass(frozen=True, slots=True)
class Granted:
    """What the brokers tell of a topic. `operations` None: they do not say. `replicas`: the fewest that one
    of its partitions has."""

    operations: frozenset[str] | None
    replicas: int


def lacking(needed: frozenset[str], granted: frozenset[str] | None) -> list[str]:
    """Rights that are missing; none where the brokers don't say which there are. Pure."""
    return [] if granted is None else sorted(needed - granted)


def of_topics(client: AdminClient, names: Iterable[str], deadline: Deadline) -> dict[str, Granted]:
    """Of those topics that are there. Raises LinkRefused where one may not even be described."""
    found = topics.descriptions(client, sorted(names), deadline, rights=True)
    return {
        name: Granted(
            _names(topic.authorized_operations), min((len(p.replicas) for p in topic.partitions), default=0)
        )
        for name, topic in found.items()
    }


def has_groups(client: AdminClient, which: str, deadline: Deadline) -> bool:
    """Whether a cluster is known to have the topic in which groups are kept: where it has not, asking for a
    group makes it."""
    if GROUPS_TOPIC in topics.names(client, which, deadline):
        return True
    # One that may not be seen is there all the same where there are groups.
    found = retrying(
        "listing groups",
        lambda t: future_result(client.list_consumer_groups(request_timeout=t), t + 1),
        deadline,
    )
    return bool(found.valid)


def of_group(client: AdminClient, group: str, deadline: Deadline) -> frozenset[str] | None:
    """None where the brokers don't say. Raises LinkRefused where it may not even be described."""

    def ask(timeout: float) -> frozenset[str] | None:
        asked = client.describe_consumer_groups(
            [group], request_timeout=timeout, include_authorized_operations=True
        )
        try:
            return _names(future_result(asked[group], timeout + 1).authorized_operations)
        except KafkaException as exception:
            error = kafka_error(exception)
            if error is not None and error.code() == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            raise

    return retrying(f"describing group {group}", ask, deadline)


def _names(operations: Any) -> frozenset[str] | None:
    return None if operations is None else frozenset(operation.name for operation in operations)
