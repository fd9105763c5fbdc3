"""Connections to the brokers of a cluster, made when they are needed; who leads which partition and who
coordinates. Decides nothing.

For one thread, and for the requests of common/kafka/wire/protocol.py. What takes a deadline waits; the rest
never does.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.kafka.errors import NO_RIGHTS
from common.kafka.wire import protocol
from common.kafka.wire.broker_backoff import CONTROL, DATA, TRIES
from common.kafka.wire.connection import Access, Connection, UnsupportedVersion, access, broken, wait_for
from common.kafka.wire.handshake import Waits
from common.kafka.wire.protocol import Address, Answer, Api, Buffer
from common.partitions import PartitionName
from common.ports import Deadline

NEXT_BROKER_S = 1.0
"""Where a broker has not answered for so long what any of them could, TCP, TLS and SASL included, the next
one is asked beside it."""
IDLE_S = 5.0
"""Idle for longer, a connection is looked at before it is used: brokers close what was idle for long."""

Line = tuple[Address, str]
"""A broker, and what the connection is for."""


class NoCoordinator(KafkaException):
    """The coordinator can't be told, or not yet."""


class Unreachable(KafkaException):
    """A broker could not be connected to, in its share of the time: nothing was sent."""


class BrokerConnections:
    """Raises KafkaException from whatever asks a broker; the connection in question is gone then."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._access: Access = access(config)
        self._connections: dict[Line, Connection] = {}
        self._addresses: dict[int, Address] = {}
        self._leaders: dict[PartitionName, int] = {}
        self._epochs: dict[PartitionName, int] = {}
        self._coordinators: dict[int, Address] = {}

    def __getitem__(self, line: Line) -> Connection:
        """A connection that is there."""
        return self._connections[line]

    def has(self, line: Line) -> bool:
        return line in self._connections

    # connecting

    def usable(self, line: Line, now: float) -> bool:
        """Whether a request can be sent to a broker now: connects where there is no connection, goes on with
        one that is not ready, and leaves alone who failed lately or has said to. Waits for nothing."""
        address = line[0]
        if line not in self._connections and now < TRIES.next_at(address):
            return False
        connection = self.begin(line)
        if not connection.ready():
            if now - connection.begun > TRIES.allowance_s(address):
                raise connection.late()
            return False
        return now >= self.quiet_until(address)

    def begin(self, line: Line) -> Connection:
        """A connection, which may not be ready yet."""
        connection = self._connections.get(line)
        if connection is not None and ports.monotonic() - connection.used > IDLE_S and connection.ended():
            connection.close()
            connection = None
        if connection is None:
            connection = self._connections[line] = Connection(self._access, line[0], TRIES.tries(line[0]))
        return connection

    def connected(self, line: Line, deadline: Deadline) -> Connection:
        """A connection that is ready, when the broker may be sent something. Raises Unreachable."""
        address = line[0]
        connection = self.begin(line)
        try:
            connection.open(Deadline(deadline.left(TRIES.allowance_s(address))))
        except KafkaException as exception:
            self.lost(line, exception)
            error: KafkaError = exception.args[0]
            raise exception if error.code() in NO_RIGHTS else Unreachable(error) from None
        while (quiet_s := self.quiet_until(address) - ports.monotonic()) > 0:
            if deadline.passed():
                words = f"{connection}: a quota is used up, it wants to be left alone for {quiet_s:.1f} s"
                raise Unreachable(KafkaError(KafkaError._TIMED_OUT, words))
            ports.sleep(deadline.left(quiet_s))
        return connection

    def quiet_until(self, address: Address) -> float:
        """Before this a broker is sent nothing: its quota is used up (KIP-219)."""
        lines = (self._connections.get((address, purpose)) for purpose in (DATA, CONTROL))
        return max((line.quiet_until for line in lines if line is not None), default=0.0)

    def lost(self, line: Line, why: KafkaException) -> None:
        """Give up a connection that failed, and remember of which broker it was."""
        error: KafkaError = why.args[0]
        self.drop(line)
        if error.code() not in NO_RIGHTS and not isinstance(why, UnsupportedVersion):
            TRIES.failed(*line, error.str())

    # asking

    def ask(self, address: Address, api: Api, body: Sequence[Buffer], deadline: Deadline) -> Answer:
        """A request and its answer. Where none comes, another broker may be the one to ask the next time."""
        line = (address, CONTROL)
        connection = None
        try:
            connection = self.connected(line, deadline)
            answer = connection.ask(api, body, deadline)
        except KafkaException as exception:
            if connection is not None:
                self.lost(line, exception)
            self._coordinators = {}
            raise
        TRIES.worked(*line)
        return answer

    def any(self, api: Api, body: Sequence[Buffer], deadline: Deadline) -> Answer:
        """What the first broker answers that answers a question that any of them can."""
        question = Question(self, api, body)
        while (answer := question.answer()) is None:
            if deadline.passed():
                question.give_up()
                raise question.problem
            wait_for(question.waits_for(), deadline.left(question.wakes_s()))
        return answer

    def to_ask(self) -> list[Address]:
        """Brokers in the order in which to ask what any of them can answer: the connected ones, those that
        are known, those that were given; of each kind in any order; last those that failed lately."""
        connected = [address for address, purpose in self._connections if purpose == CONTROL]
        known, given = [*self._addresses.values()], [*self._access.bootstrap]
        random.shuffle(known)
        random.shuffle(given)
        return TRIES.in_order([*connected, *known, *given])

    def coordinator(self, kind: int, key: str, deadline: Deadline) -> Address:
        """`kind` and `key` as protocol.find_coordinator has them; one of each kind is remembered."""
        if kind not in self._coordinators:
            self._coordinators[kind] = self.find_coordinator(kind, key, deadline)
        return self._coordinators[kind]

    def find_coordinator(self, kind: int, key: str, deadline: Deadline) -> Address:
        """The same, asked anew, and not remembered."""
        answer = self.any(protocol.FIND_COORDINATOR, [protocol.find_coordinator(kind, key)], deadline)
        error, words, host, port = protocol.coordinator(answer)
        if error:
            raise NoCoordinator(KafkaError(error, words or KafkaError(error).str()))
        return host, port

    def forget_coordinator(self, kind: int) -> None:
        self._coordinators.pop(kind, None)

    def describe(self, topics: Iterable[str], deadline: Deadline) -> dict[str, int]:
        """Learn the leaders of topics; the errors of those that have one."""
        return self.learn(self.any(protocol.METADATA, [protocol.metadata(topics)], deadline))

    def leaders_of(self, topics: Iterable[str]) -> Question:
        """Ask for them, waiting for nothing; the answer is to be learnt."""
        return Question(self, protocol.METADATA, [protocol.metadata(topics)])

    def learn(self, answer: Answer) -> dict[str, int]:
        """The same of an answer to Metadata."""
        found = protocol.described(answer)
        self._addresses.update(found.brokers)
        self._leaders.update(found.leaders)
        self._epochs.update(found.epochs)
        return found.errors

    def leader(self, at: PartitionName) -> Address | None:
        """The broker that leads a partition, as far as is known."""
        return self._addresses.get(self._leaders.get(at, -1))

    def epoch(self, at: PartitionName) -> int:
        """Of that leader; -1: not known."""
        return self._epochs.get(at, -1)

    def address(self, node: int) -> Address | None:
        return self._addresses.get(node)

    def forget_leader_of(self, at: PartitionName) -> None:
        self._leaders.pop(at, None)

    def forget_leader(self, address: Address) -> None:
        """It may lead nothing any more."""
        self._leaders = {
            at: node for at, node in self._leaders.items() if self._addresses.get(node) != address
        }

    def find_leaders(self, partitions: Iterable[PartitionName], deadline: Deadline) -> None:
        """Learn the leaders that are not known, however often it takes. Raises KafkaException at the
        deadline."""
        pause = 0.05
        while unknown := [at for at in partitions if self.leader(at) is None]:
            errors = self.describe({topic for topic, _ in unknown}, deadline)
            at = next((at for at in unknown if self.leader(at) is None), None)
            if at is None:
                return
            code = errors.get(at[0], KafkaError.LEADER_NOT_AVAILABLE)
            if deadline.left() <= pause or code in NO_RIGHTS:
                raise KafkaException(KafkaError(code, f"{at[0]}-{at[1]}: {KafkaError(code).str()}"))
            ports.sleep(pause)
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


class Question:
    """A request that any broker can answer. It is asked of one, and where that takes long, of the next one
    beside it, until one has answered: a broker that accepts connections and is silent costs a second, and one
    that is merely slow answers in the end. Waits for nothing."""

    def __init__(self, brokers: BrokerConnections, api: Api, body: Sequence[Buffer]) -> None:
        self._brokers = brokers
        self._api, self._body = api, body
        self._left = brokers.to_ask()
        self._asked: dict[Line, float] = {}
        """Whom, and since when."""
        self._sent: set[Line] = set()
        self._next_at = 0.0
        self.problem: KafkaException = broken("no broker is known")

    def answer(self) -> Answer | None:
        """What one has answered; None: none has yet. Raises KafkaException where all of them have failed."""
        now = ports.monotonic()
        for line in list(self._asked):
            answer = self._answer_of(line, now)
            if answer is not None:
                return answer
        while self._left and (not self._asked or now >= self._next_at):
            line = (self._left.pop(0), CONTROL)
            self._asked[line] = now
            self._next_at = now + NEXT_BROKER_S
            answer = self._answer_of(line, now)
            if answer is not None:
                return answer
        if not self._asked:
            raise self.problem
        return None

    def _answer_of(self, line: Line, now: float) -> Answer | None:
        brokers = self._brokers
        try:
            connection = brokers.begin(line)
            if line not in self._sent:
                if not connection.ready() or now < brokers.quiet_until(line[0]):
                    return None
                connection.send(self._api, self._body, None)
                self._sent.add(line)
            if not connection.complete():
                return None
            answer = connection.received()
        except KafkaException as exception:
            del self._asked[line]
            brokers.lost(line, exception)
            # That somebody does not let us in says more than that others can't be reached.
            if self.problem.args[0].code() not in NO_RIGHTS:
                self.problem = exception
            return None
        del self._asked[line]
        TRIES.worked(*line)
        self.give_up()
        return answer

    def give_up(self) -> None:
        """Whoever has not answered has failed, if it had its time; what comes from it now would be taken for
        an answer to something else."""
        now = ports.monotonic()
        for line, since in self._asked.items():
            late = self._brokers[line].late()
            if self.problem.args[0].code() not in NO_RIGHTS:
                self.problem = late
            if now - since >= NEXT_BROKER_S:
                self._brokers.lost(line, late)
            else:
                self._brokers.drop(line)
        self._asked = {}

    def waits_for(self) -> list[Waits]:
        lines = ((line, self._brokers[line]) for line in self._asked)
        return [its.waits_for() for line, its in lines if line in self._sent or its.opening()]

    def wakes_s(self) -> float:
        """When to go on with it though nothing has happened."""
        return max(0.0, self._next_at - ports.monotonic()) if self._left else NEXT_BROKER_S
