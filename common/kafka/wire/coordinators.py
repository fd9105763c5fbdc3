"""Asks the coordinators of a transactional id and of a group, again while they are not ready, or others
coordinate by now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.kafka.wire import protocol
from common.kafka.wire.broker_connections import BrokerConnections, NoCoordinator, Unreachable
from common.kafka.wire.protocol import Answer, Api, Buffer, KnownTransaction
from common.ports import Deadline

LEAST_PAUSE_S, MOST_PAUSE_S = 0.001, 0.02
UNREACHABLE_PAUSE_S = 0.25

_MOVED = frozenset({KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE})
_NOT_READY = _MOVED | {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.CONCURRENT_TRANSACTIONS,
    # Of a topic that is new, one broker hears later than another.
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
_UNKNOWN_ID = frozenset({105, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
"""TRANSACTIONAL_ID_NOT_FOUND, which the client has no name for; and whoever may use an id may describe it, so
of one that may not be described nobody has made use."""


class Coordinators:
    """For one thread. `end` ends the producer, and gives what to raise."""

    def __init__(
        self,
        brokers: BrokerConnections,
        transactional_id: str,
        group: str,
        end: Callable[[KafkaError], KafkaException],
    ) -> None:
        self._brokers = brokers
        self._id = transactional_id
        self._group = group
        self._end = end

    def ask(self, kind: int, api: Api, body: Sequence[Buffer], deadline: Deadline) -> Answer:
        """Ask a coordinator."""
        key = self._group if kind == protocol.GROUP else self._id
        return self._brokers.ask(self._brokers.coordinator(kind, key, deadline), api, body, deadline)

    def until_ready(self, what: str, ask: Callable[[], int], kind: int, deadline: Deadline) -> None:
        """Ask until the answer is no refusal of somebody who isn't ready, or isn't the one to ask."""
        pause = LEAST_PAUSE_S
        while True:
            try:
                error = ask()
            except NoCoordinator as none:
                error = none.args[0].code()
                if error not in _NOT_READY:
                    raise
            except Unreachable:
                # Nothing was sent, and another broker may coordinate by now: the others say which.
                if deadline.left() <= UNREACHABLE_PAUSE_S:
                    raise
                ports.sleep(UNREACHABLE_PAUSE_S)
                continue
            if not error:
                return
            if error in _MOVED:
                self._brokers.forget_coordinator(kind)
            elif error not in _NOT_READY:
                raise self._end(KafkaError(error))
            if deadline.left() <= pause:
                raise KafkaException(KafkaError(error, f"{what}: {KafkaError(error).str()}"))
            ports.sleep(pause)
            # A transaction is completed within milliseconds; a coordinator is elected, or its topic made.
            waits_for_markers = error == KafkaError.CONCURRENT_TRANSACTIONS
            pause = min(MOST_PAUSE_S if waits_for_markers else UNREACHABLE_PAUSE_S, 2 * pause)

    def commit(self, number: int, epoch: int, timeout: float) -> None:
        """Commit what a producer of this transactional id has under way."""
        deadline = Deadline(timeout)
        body = [protocol.end(self._id, number, epoch, True)]

        def ask() -> int:
            return protocol.throttled(self.ask(protocol.TRANSACTION, protocol.END_TXN, body, deadline))

        self.until_ready("EndTxn", ask, protocol.TRANSACTION, deadline)

    def known_transaction(self, transactional_id: str, timeout: float) -> KnownTransaction | None:
        """What the cluster knows of a transactional id, this one's or another; None: nothing, or nothing that
        may be told."""
        deadline = Deadline(timeout)
        found: list[KnownTransaction] = []

        def ask() -> int:
            at = self._brokers.find_coordinator(protocol.TRANSACTION, transactional_id, deadline)
            body = [protocol.describe_transaction(transactional_id)]
            answer = self._brokers.ask(at, protocol.DESCRIBE_TRANSACTIONS, body, deadline)
            error, known = protocol.known_transaction(answer)
            if error in _UNKNOWN_ID:
                return 0
            found[:] = [known]
            return error

        self.until_ready("DescribeTransactions", ask, protocol.TRANSACTION, deadline)
        return found[0] if found else None
