"""Asks brokers about groups (offsets/group_protocol.py), over connections of its own that are kept. Decides
nothing.

Not through the client library: its list leaves groups out, it refuses ids that Kafka takes, and it may end
the process while a group's coordinator moves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from common.errors import LinkRefused
from common.kafka.client.clients import Config
from common.kafka.wire import protocol
from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.pipelining import Request, pipelined
from common.kafka.wire.protocol import Address, Answer, Api
from common.partitions import PartitionName
from common.ports import Deadline
from offsets import group_protocol
from offsets.group_protocol import LIST_GROUPS, LIST_GROUPS_LEAST, Committed, Group, Member

T = TypeVar("T")


class GroupCalls:
    """Of one cluster. What is asked of several groups has an answer for each, or the error; raises
    KafkaException where no broker answers at all. For one thread."""

    def __init__(self, config: Config) -> None:
        self._brokers = BrokerConnections(config)

    def close(self) -> None:
        self._brokers.close()

    def listed(self, timeout_s: float) -> dict[str, Group]:
        """All groups that consume, asked of every broker: each lists those that it coordinates. Raises
        LinkRefused.

        A broker that does not answer is an error: it may be the one with the group that matters.
        """
        deadline = Deadline(timeout_s)
        answer = self._brokers.any(protocol.METADATA, [protocol.metadata([])], deadline)
        addresses = protocol.described(answer).brokers.values()
        asked: dict[Address, Request] = {at: (at, protocol.API_VERSIONS, []) for at in addresses}
        known = pipelined(self._brokers, asked, lambda _, said: _answered(protocol.versions(said)), deadline)
        versions = {at: _newest(at, of) for at, of in _each(known).items()}
        for at, version in versions.items():
            api = replace(LIST_GROUPS, version=version)
            asked[at] = (at, api, [group_protocol.list_groups(version)])
        found: dict[str, Group] = {}

        def read(at: Address, answer: Answer) -> dict[str, Group]:
            return _answered(group_protocol.listed(answer, versions[at]))

        for groups in _each(pipelined(self._brokers, asked, read, deadline)).values():
            for group, said in groups.items():
                # One whose coordinator has just moved is told by two.
                found[group] = said._replace(active=said.active or (group in found and found[group].active))
        return found

    def committed(
        self, groups: Collection[str], timeout_s: float
    ) -> dict[str, dict[PartitionName, Committed] | KafkaException]:
        """What each has committed, of all its topics."""
        bodies = {group: group_protocol.fetch_offsets(group) for group in groups}
        read = group_protocol.fetched_offsets
        return self._of_coordinators(
            group_protocol.OFFSET_FETCH, bodies, lambda answer: _answered(read(answer)), timeout_s
        )

    def commit(
        self, wanted: Mapping[str, Mapping[PartitionName, Committed]], timeout_s: float
    ) -> dict[str, dict[PartitionName, KafkaError] | KafkaException]:
        """Set offsets of groups without members; what was refused."""
        bodies = {group: group_protocol.commit_offsets(group, offsets) for group, offsets in wanted.items()}

        def refused(answer: Answer) -> dict[PartitionName, KafkaError]:
            return {at: KafkaError(code) for at, code in protocol.by_partition(answer).items() if code}

        return self._of_coordinators(group_protocol.OFFSET_COMMIT, bodies, refused, timeout_s)

    def members(
        self, kind: str, groups: Collection[str], timeout_s: float
    ) -> dict[str, list[Member] | KafkaException]:
        """Who is in each; all are of this kind, which group_protocol.DESCRIBE has."""
        bodies = {group: group_protocol.describe(kind, group) for group in groups}

        def read(answer: Answer) -> list[Member]:
            return _answered(group_protocol.members(kind, answer))

        return self._of_coordinators(group_protocol.DESCRIBE[kind], bodies, read, timeout_s)

    def coordinators(self, groups: Collection[str], timeout_s: float) -> dict[str, Address | KafkaException]:
        """Who coordinates each; the error says where a group may not be described."""
        if not groups:
            return {}
        deadline = Deadline(timeout_s)
        # Who answers this is asked for all: one that is connected and well.
        self._brokers.describe((), deadline)
        at, api = self._brokers.to_ask()[0], protocol.FIND_COORDINATOR
        asked = {group: (at, api, [protocol.find_coordinator(protocol.GROUP, group)]) for group in groups}

        def read(_: str, answer: Answer) -> Address:
            error, words, host, port = protocol.coordinator(answer)
            return _answered((error, (host, port)), words)

        return pipelined(self._brokers, asked, read, deadline)

    def _of_coordinators(
        self, api: Api, bodies: Mapping[str, bytes], read: Callable[[Answer], T], timeout_s: float
    ) -> dict[str, T | KafkaException]:
        deadline = Deadline(timeout_s)
        found: dict[str, T | KafkaException] = {}
        asked: dict[str, Request] = {}
        for group, at in self.coordinators(bodies, timeout_s).items():
            if isinstance(at, KafkaException):
                found[group] = at
            else:
                asked[group] = (at, api, [bodies[group]])
        return found | pipelined(self._brokers, asked, lambda _, answer: read(answer), deadline)


def _newest(at: Address, versions: Mapping[int, tuple[int, int]]) -> int:
    """The version of ListGroups to ask a broker in. Raises LinkRefused."""
    version = min(LIST_GROUPS.version, versions.get(LIST_GROUPS.key, (0, 0))[1])
    if version < LIST_GROUPS_LEAST:
        raise LinkRefused(
            f"the broker {at[0]}:{at[1]} does not tell the states of groups: it is older than Kafka 2.6"
        )
    return version


def _answered(said: tuple[int, T], words: str | None = None) -> T:
    """What comes with an error code, where that is none. Raises KafkaException."""
    code, value = said
    if code:
        raise KafkaException(KafkaError(code, words or KafkaError(code).str()))
    return value


def _each(found: Mapping[Address, T | KafkaException]) -> dict[Address, T]:
    """Raises KafkaException where one has failed."""
    out = {}
    for at, one in found.items():
        if isinstance(one, KafkaException):
            raise one
        out[at] = one
    return out
