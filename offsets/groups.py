"""Consumer groups of one cluster through the admin client: who is there, what is committed, and setting it. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from common import kafka
from common.kafka import Deadline

At = tuple[str, int]
"""Topic, partition."""
_AT_ONCE = 100
"""Requests under way at the same time: each names one group."""
NOT_EMPTY = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS})
"""What a broker answers when offsets are set while the group has members."""


class Committed(NamedTuple):
    """A committed offset, with the text that its consumer put beside it."""

    offset: int
    metadata: str


class Groups:
    """The groups of the source or the target; `which` is for errors."""

    def __init__(self, client: AdminClient, which: str) -> None:
        self._client = client
        self._which = which

    def members(self, deadline: Deadline) -> dict[str, bool]:
        """Every group that can be seen -> whether it has members, or may have some in a moment."""

        def ask(timeout: float) -> dict[str, bool]:
            found = kafka.result(self._client.list_consumer_groups(request_timeout=timeout), timeout + 1)
            if found.errors:
                # A broker that did not answer may be the one with the group that matters.
                error = found.errors[0]
                raise error if isinstance(error, KafkaException) else KafkaException(error)
            idle = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
            return {g.group_id: g.state not in idle for g in found.valid}

        return kafka.patiently(f"listing the {self._which}'s consumer groups", ask, deadline)

    def hidden(self, groups: Iterable[str], deadline: Deadline) -> set[str]:
        """Those of the groups that may not be described: a list of groups leaves them out, and does not say so."""
        out: set[str] = set()

        def ask(group: str, timeout: float) -> None:
            asked = self._client.describe_consumer_groups([group], request_timeout=timeout)
            try:
                kafka.result(asked[group], timeout + 1)
            except KafkaException as exception:
                error = kafka.kafka_error(exception)
                if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    out.add(group)
                elif error is None or error.code() != KafkaError.GROUP_ID_NOT_FOUND:
                    raise

        for group in groups:
            kafka.patiently(f"describing the {self._which}'s group {group}", partial(ask, group), deadline)
        return out

    def committed(self, groups: list[str], deadline: Deadline) -> dict[str, dict[At, Committed]]:
        """What each group has committed, of all its topics. A group that does not exist has committed nothing."""
        out: dict[str, dict[At, Committed]] = {}

        def ask(batch: list[str], timeout: float) -> None:
            asked = {
                group: self._client.list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(group)], request_timeout=timeout
                )[group]
                for group in batch
            }
            for group, future in asked.items():
                out[group] = _committed(future, timeout)

        for begin in range(0, len(groups), _AT_ONCE):
            batch = groups[begin : begin + _AT_ONCE]
            what = f"reading the {self._which}'s offsets of group {batch[0]}"
            kafka.patiently(what, partial(ask, batch), deadline)
        return out

    def commit(
        self, wanted: dict[str, dict[At, Committed]], deadline: Deadline
    ) -> dict[tuple[str, At], KafkaError]:
        """Set offsets; what was refused, with the reason. Kafka refuses a group that has members."""
        refused: dict[tuple[str, At], KafkaError] = {}
        groups = list(wanted)
        for begin in range(0, len(groups), _AT_ONCE):
            batch = groups[begin : begin + _AT_ONCE]
            timeout = max(0.1, deadline.left(10.0))
            asked = {group: self._set(group, wanted[group], timeout) for group in batch}
            for group, future in asked.items():
                try:
                    answer = kafka.result(future, timeout + 1)
                    refused |= {
                        (group, (p.topic, p.partition)): p.error
                        for p in answer.topic_partitions
                        if p.error is not None
                    }
                except KafkaException as exception:
                    error = kafka.kafka_error(exception)
                    if error is None:
                        raise
                    refused |= {(group, at): error for at in wanted[group]}
        return refused

    def _set(self, group: str, offsets: dict[At, Committed], timeout: float) -> Future[Any]:
        # Without a leader epoch: the source's means nothing here.
        partitions = [
            TopicPartition(topic, partition, c.offset, metadata=c.metadata)
            for (topic, partition), c in offsets.items()
        ]
        request = [ConsumerGroupTopicPartitions(group, partitions)]
        return self._client.alter_consumer_group_offsets(request, request_timeout=timeout)[group]


def _committed(future: Future[Any], timeout: float) -> dict[At, Committed]:
    try:
        answer = kafka.result(future, timeout + 1)
    except KafkaException as exception:
        error = kafka.kafka_error(exception)
        # Gone since it was listed, or of a kind without offsets (a share group).
        if error is not None and error.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return {}
        raise
    return {
        (p.topic, p.partition): Committed(p.offset, p.metadata or "")
        for p in answer.topic_partitions
        if p.error is None and p.offset >= 0
    }
