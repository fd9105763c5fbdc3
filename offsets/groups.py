"""Consumer groups of one cluster: who is there, what is committed, and setting it. Decides nothing.

Through the admin client, but for what the client library can't ask (offsets/group_calls.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from common.errors import KafkaTimeout
from common.kafka.client.clients import Config
from common.kafka.errors import NO_RIGHTS, future_result, kafka_error, retriable, retrying
from common.ports import Deadline
from offsets import group_calls
from offsets.group_protocol import At, Committed, Group

log = logging.getLogger(__name__)

_AT_ONCE = 100
"""Requests under way at the same time: each names one group."""
NOT_EMPTY = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS})
"""What a broker answers when offsets are set while the group has members."""
_SHOWN = 80


def shown(group: str) -> str:
    """A group's id for people: quoted where it is empty or holds blanks at an end or what can't be seen, cut
    where it is long."""
    if not group or group != group.strip() or not group.isprintable():
        group = repr(group)
    return (
        group
        if len(group) <= _SHOWN
        else f"{group[: _SHOWN // 2]}…{group[-_SHOWN // 4 :]} ({len(group)} characters)"
    )


class Groups:
    """The groups of the source or the target; `which` is for errors."""

    def __init__(self, client: AdminClient, which: str, config: Config) -> None:
        """`config`: the client's, for what is asked without it."""
        self._client = client
        self._which = which
        self._config = config

    def listed(self, deadline: Deadline) -> dict[str, Group]:
        """Every group that can be seen and consumes, of whatever kind. Raises KafkaTimeout, KafkaException,
        LinkRefused."""

        return retrying(
            f"listing the {self._which}'s consumer groups",
            lambda t: group_calls.listed(self._config, t),
            deadline,
        )

    def members(self, deadline: Deadline) -> dict[str, bool]:
        """Every group that can be seen -> whether it has members, or may have some in a moment."""
        return {group: found.active for group, found in self.listed(deadline).items()}

    def hidden(self, groups: Iterable[str], deadline: Deadline) -> set[str]:
        """Those of the groups that may not be described: a list of groups leaves them out, and does not say
        so."""
        out: set[str] = set()

        def ask(group: str, timeout: float) -> None:
            asked = self._client.describe_consumer_groups([group], request_timeout=timeout)
            try:
                future_result(asked[group], timeout + 1)
            except KafkaException as exception:
                error = kafka_error(exception)
                if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    out.add(group)
                elif error is None or error.code() != KafkaError.GROUP_ID_NOT_FOUND:
                    raise

        for group in groups:
            if _only_direct(group):
                continue  # nobody grants a right on it by that name
            retrying(f"describing the {self._which}'s group {group}", partial(ask, group), deadline)
        return out

    def committed(
        self, groups: list[str], deadline: Deadline, failed: dict[str, str] | None = None
    ) -> dict[str, dict[At, Committed]]:
        """What each group has committed, of all its topics. A group that does not exist has committed
        nothing.

        With `failed`, a group whose offsets can't be read is put there, with the reason, instead of ending it
        for all; half of the time is spent on waiting for it. Raises KafkaTimeout, KafkaException,
        LinkRefused.
        """
        out: dict[str, dict[At, Committed]] = {}
        for begin in range(0, len(groups), _AT_ONCE):
            left = groups[begin : begin + _AT_ONCE]
            what = f"reading the {self._which}'s offsets of group {shown(left[0])}"
            ask = partial(self._read, left, out, failed)
            try:
                retrying(what, ask, deadline if failed is None else Deadline(deadline.left() / 2))
            except KafkaTimeout as error:
                if failed is None or not (out or failed):
                    raise
                failed |= dict.fromkeys(left, str(error))
        return out

    def _read(
        self,
        left: list[str],
        out: dict[str, dict[At, Committed]],
        failed: dict[str, str] | None,
        timeout: float,
    ) -> None:
        """One try; those of `left` that were answered are taken out of it."""
        passing: KafkaException | None = None
        for group, answer in [(group, self._ask(group, timeout)) for group in left]:
            try:
                out[group] = answer()
            except KafkaException as exception:
                error = kafka_error(exception)
                if error is None or error.code() in NO_RIGHTS:
                    raise  # a missing right ends the application by name, and may be about all groups
                if retriable(error):
                    passing = exception
                    continue
                if error.code() == KafkaError.GROUP_ID_NOT_FOUND:
                    out[group] = {}  # gone since it was listed
                elif failed is None:
                    raise
                else:
                    failed[group] = error.str()
            left.remove(group)
        if passing is not None:
            raise passing

    def _ask(self, group: str, timeout: float) -> Callable[[], dict[At, Committed]]:
        """Ask for a group's offsets; what waits for the answer."""
        if _only_direct(group):
            return lambda: group_calls.committed(self._config, group, timeout)
        asked = ConsumerGroupTopicPartitions(group)
        future = self._client.list_consumer_group_offsets([asked], request_timeout=timeout)[group]
        return lambda: _committed(future_result(future, timeout + 1))

    def commit(
        self, wanted: dict[str, dict[At, Committed]], deadline: Deadline
    ) -> dict[tuple[str, At], KafkaError]:
        """Set offsets; what was refused, with the reason. Kafka refuses a group that has members."""
        refused: dict[tuple[str, At], KafkaError] = {}
        groups = list(wanted)
        for begin in range(0, len(groups), _AT_ONCE):
            batch = groups[begin : begin + _AT_ONCE]
            timeout = max(0.1, deadline.left(10.0))
            for group, answer in [(group, self._set(group, wanted[group], timeout)) for group in batch]:
                try:
                    refused |= {(group, at): error for at, error in answer().items()}
                except KafkaException as exception:
                    error = kafka_error(exception)
                    if error is None:
                        raise
                    refused |= {(group, at): error for at in wanted[group]}
        return refused

    def _set(
        self, group: str, offsets: dict[At, Committed], timeout: float
    ) -> Callable[[], dict[At, KafkaError]]:
        if _only_direct(group):
            return lambda: group_calls.commit(self._config, group, offsets, timeout)
        # Without a leader epoch: the source's means nothing here.
        partitions = [
            TopicPartition(topic, partition, c.offset, metadata=c.metadata)
            for (topic, partition), c in offsets.items()
        ]
        request = [ConsumerGroupTopicPartitions(group, partitions)]
        future = self._client.alter_consumer_group_offsets(request, request_timeout=timeout)[group]
        return lambda: {
            (p.topic, p.partition): p.error
            for p in future_result(future, timeout + 1).topic_partitions
            if p.error is not None
        }


def _only_direct(group: str) -> bool:
    """Whether the client library refuses a group's id before it asks anybody."""
    return not group or "\0" in group


def _committed(answer: Any) -> dict[At, Committed]:
    return {
        (p.topic, p.partition): Committed(p.offset, p.metadata or "")
        for p in answer.topic_partitions
        if p.error is None and p.offset >= 0
    }
