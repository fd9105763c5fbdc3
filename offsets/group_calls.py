"""Asks brokers what the client library can't ask about groups (offsets/group_protocol.py), over connections
of its own. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from common.errors import LinkRefused
from common.kafka.client.clients import Config
from common.kafka.wire import protocol
from common.kafka.wire.broker_connections import Address, BrokerConnections
from common.kafka.wire.connection import broken
from common.kafka.wire.protocol import Answer, Api, MalformedAnswer
from common.ports import Deadline
from offsets import group_protocol
from offsets.group_protocol import LIST_GROUPS, LIST_GROUPS_LEAST, At, Committed, Group

T = TypeVar("T")


def listed(config: Config, timeout_s: float) -> dict[str, Group]:
    """All groups that consume, asked of every broker: each lists those that it coordinates. Raises
    LinkRefused, KafkaException.

    A broker that does not answer is an error: it may be the one with the group that matters.
    """
    found: dict[str, Group] = {}
    with _brokers(config, timeout_s) as (brokers, deadline):
        answer = brokers.any(protocol.METADATA, [protocol.metadata([])], deadline)
        for address in protocol.described(answer).brokers.values():
            for group, said in _listed_by(brokers, address, deadline).items():
                # One whose coordinator has just moved is told by two.
                found[group] = said._replace(active=said.active or (group in found and found[group].active))
    return found


def committed(config: Config, group: str, timeout_s: float) -> dict[At, Committed]:
    """What a group has committed, of all its topics. Raises KafkaException."""
    api, body = group_protocol.OFFSET_FETCH, group_protocol.fetch_offsets(group)
    error, found = _ask_coordinator(config, group, api, body, group_protocol.fetched_offsets, timeout_s)
    _refuse(error)
    return found


def commit(
    config: Config, group: str, offsets: Mapping[At, Committed], timeout_s: float
) -> dict[At, KafkaError]:
    """Set offsets of a group without members; what was refused. Raises KafkaException."""
    api, body = group_protocol.OFFSET_COMMIT, group_protocol.commit_offsets(group, offsets)
    codes = _ask_coordinator(config, group, api, body, protocol.by_partition, timeout_s)
    return {at: KafkaError(code) for at, code in codes.items() if code}


def _listed_by(brokers: BrokerConnections, address: Address, deadline: Deadline) -> dict[str, Group]:
    error, versions = protocol.versions(brokers.ask(address, protocol.API_VERSIONS, [], deadline))
    _refuse(error)
    version = min(LIST_GROUPS.version, versions.get(LIST_GROUPS.key, (0, 0))[1])
    if version < LIST_GROUPS_LEAST:
        raise LinkRefused(
            f"the broker {address[0]}:{address[1]} does not tell the states of groups: it is older than Kafka 2.6"
        )
    api, body = replace(LIST_GROUPS, version=version), group_protocol.list_groups(version)
    error, found = group_protocol.listed(brokers.ask(address, api, [body], deadline), version)
    _refuse(error)
    return found


def _ask_coordinator(
    config: Config, group: str, api: Api, body: bytes, read: Callable[[Answer], T], timeout_s: float
) -> T:
    with _brokers(config, timeout_s) as (brokers, deadline):
        address = brokers.coordinator(protocol.GROUP, group, deadline)
        return read(brokers.ask(address, api, [body], deadline))


@contextmanager
def _brokers(config: Config, timeout_s: float) -> Iterator[tuple[BrokerConnections, Deadline]]:
    """Connections for one question: minutes may pass before the next."""
    with closing(BrokerConnections(config)) as brokers:
        try:
            yield brokers, Deadline(timeout_s)
        except MalformedAnswer as error:
            raise broken(f"an answer that can't be read: {error.args[0].str()}") from None


def _refuse(code: int) -> None:
    if code:
        raise KafkaException(KafkaError(code))
