"""Connections to the brokers of a cluster, made when they are needed; who leads which partition and who coordinates. Decides nothing.

For one thread, and for the requests of common/protocol.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from common import outside, protocol
from common.connection import Access, Connection, access, broken
from common.kafka import NO_RIGHTS, Deadline
from common.protocol import Answer, Api, Piece

DATA, CONTROL = "data", "control"
"""A broker has a connection for each: a question must not wait behind records."""

Address = tuple[str, int]
Line = tuple[Address, str]
"""A broker, and what the connection is for."""
Partition = tuple[str, int]


class NoCoordinator(KafkaException):
    """The coordinator can't be told, or not yet."""


class BrokerConnections:
    """Raises KafkaException from whatever asks a broker; the connection in question is gone then."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._access: Access = access(config)
        self._connections: dict[Line, Connection] = {}
        self._addresses: dict[int, Address] = {}
        self._leaders: dict[Partition, int] = {}
        self._coordinators: dict[int, Address] = {}

    def __getitem__(self, line: Line) -> Connection:
        """A connection that is there."""
        return self._connections[line]

    def has(self, line: Line) -> bool:
        return line in self._connections

    def connected(self, line: Line, deadline: Deadline) -> Connection:
        if line not in self._connections:
            self._connections[line] = Connection(self._access, line[0], deadline)
        return self._connections[line]

    def ask(self, address: Address, api: Api, body: Sequence[Piece], deadline: Deadline) -> Answer:
        """A request and its answer. Where none comes, another broker may be the one to ask the next time."""
        line = (address, CONTROL)
        try:
            return self.connected(line, deadline).ask(api, body, deadline)
        except KafkaException:
            self.drop(line)
            self._coordinators = {}
            raise

    def any(self, deadline: Deadline) -> Address:
        """A broker to ask: one that is connected, else the first that can be connected to."""
        for address, purpose in self._connections:
            if purpose == CONTROL:
                return address
        problem = broken("no broker is known")
        for address in [*self._addresses.values(), *self._access.bootstrap]:
            try:
                self.connected((address, CONTROL), deadline)
            except KafkaException as exception:
                problem = exception
            else:
                return address
        raise problem

    def coordinator(self, kind: int, key: str, deadline: Deadline) -> Address:
        """`kind` and `key` as protocol.find_coordinator has them; one of each kind is remembered."""
        if kind not in self._coordinators:
            self._coordinators[kind] = self.find_coordinator(kind, key, deadline)
        return self._coordinators[kind]

    def find_coordinator(self, kind: int, key: str, deadline: Deadline) -> Address:
        """The same, asked anew, and not remembered."""
        body = [protocol.find_coordinator(kind, key)]
        answer = self.ask(self.any(deadline), protocol.FIND_COORDINATOR, body, deadline)
        error, words, host, port = protocol.coordinator(answer)
        if error:
            raise NoCoordinator(KafkaError(error, words or KafkaError(error).str()))
        return host, port

    def forget_coordinator(self, kind: int) -> None:
        self._coordinators.pop(kind, None)

    def describe(self, topics: Iterable[str], deadline: Deadline) -> dict[str, int]:
        """Learn the leaders of topics; the errors of those that have one."""
        answer = self.ask(self.any(deadline), protocol.METADATA, [protocol.metadata(topics)], deadline)
        found = protocol.described(answer)
        self._addresses.update(found.brokers)
        self._leaders.update(found.leaders)
        return found.errors

    def leader(self, at: Partition) -> Address | None:
        """The broker that leads a partition, as far as is known."""
        return self._addresses.get(self._leaders.get(at, -1))

    def forget_leader_of(self, at: Partition) -> None:
        self._leaders.pop(at, None)

    def forget_leader(self, address: Address) -> None:
        """It may lead nothing any more."""
        self._leaders = {
            at: node for at, node in self._leaders.items() if self._addresses.get(node) != address
        }

    def find_leaders(self, partitions: Iterable[Partition], deadline: Deadline) -> None:
        """Learn the leaders that are not known, however often it takes. Raises KafkaException at the deadline."""
        pause = 0.05
        while unknown := [at for at in partitions if self.leader(at) is None]:
            errors = self.describe({topic for topic, _ in unknown}, deadline)
            at = next((at for at in unknown if self.leader(at) is None), None)
            if at is None:
                return
            code = errors.get(at[0], KafkaError.LEADER_NOT_AVAILABLE)
            if deadline.left() <= pause or code in NO_RIGHTS:
                raise KafkaException(KafkaError(code, f"{at[0]}-{at[1]}: {KafkaError(code).str()}"))
            outside.sleep(pause)
            pause = min(1.0, 2 * pause)

    def renew(self) -> None:
        """Give up connections that have come to their end. Nothing may be in flight."""
        for line, connection in list(self._connections.items()):
            if not connection.fresh():
                self.drop(line)

    def drop(self, line: Line) -> None:
        connection = self._connections.pop(line, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections = {}
