"""Which transactions are open in partitions, asked of their leaders. Decides nothing.

Where a partition's last stable offset is its high watermark, none is: that takes no more rights than writing
does. Whose they are is told to whoever may read the topic (KIP-664).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.kafka.errors import NO_RIGHTS
from common.kafka.wire import open_transactions_protocol as protocol
from common.kafka.wire.broker_backoff import TRIES
from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.protocol import Address
from common.partitions import PartitionName
from common.ports import Deadline

LEADER_S = 2.0
"""How long one leader is waited for."""
AGAIN_S = 0.05
MARKER_S = 1.0


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """`first`: of each partition that has any, by producer id, the offset at which its transaction begins.
    `untold`: of which partitions nothing was told, and why; all others have been asked."""

    first: dict[PartitionName, dict[int, int]] = field(default_factory=dict)
    untold: dict[PartitionName, KafkaError] = field(default_factory=dict)

    def may_be_of(self, producers: Collection[int]) -> set[PartitionName]:
        """Where any of these producers has one, or may have."""
        return {
            *self.untold,
            *(at for at, first in self.first.items() if not first.keys().isdisjoint(producers)),
        }


def left_open(
    brokers: BrokerConnections, partitions: Collection[PartitionName], producer: int, deadline: Deadline
) -> set[PartitionName]:
    """Where a transaction that a producer has ended is open for longer than its marker takes, or may be."""
    told = when_marked(lambda: open_transactions(brokers, partitions, deadline), (producer,), deadline)
    return told.may_be_of((producer,))


def when_marked(
    ask: Callable[[], OpenTransactions], producers: Collection[int], deadline: Deadline
) -> OpenTransactions:
    """What is told of transactions that these producers have ended, once none of them is open; or after the
    time that markers take."""
    patience = Deadline(deadline.left(MARKER_S))
    while (told := ask()).may_be_of(producers) and not patience.passed():
        ports.sleep(AGAIN_S)
    return told


def open_transactions(
    brokers: BrokerConnections, partitions: Collection[PartitionName], deadline: Deadline
) -> OpenTransactions:
    """Raises KafkaException where no broker tells who leads."""
    found = OpenTransactions()
    if not partitions:
        return found
    # Not whoever led when it was last asked: of a partition that has no leader that broker may still have
    # something to tell.
    for at in partitions:
        brokers.forget_leader_of(at)
    errors = brokers.describe({topic for topic, _ in partitions}, deadline)
    by_leader: dict[Address, list[PartitionName]] = {}
    for at in partitions:
        leader = brokers.leader(at)
        if leader is None:
            code = errors.get(at[0]) or KafkaError.LEADER_NOT_AVAILABLE
            found.untold[at] = KafkaError(code)
        else:
            by_leader.setdefault(leader, []).append(at)
    # Those that failed lately come last: what one does not answer is waited for by the others.
    for leader in TRIES.in_order(by_leader):
        left = set(by_leader[leader])
        try:
            _ask(brokers, leader, left, found)
        except KafkaException as exception:
            error: KafkaError = exception.args[0]
            found.untold.update((at, error) for at in left)
    return found


def _ask(
    brokers: BrokerConnections, leader: Address, left: set[PartitionName], found: OpenTransactions
) -> None:
    """Take out of `left` what is answered."""

    def untold(errors: Mapping[PartitionName, int]) -> None:
        found.untold.update((at, KafkaError(code)) for at, code in errors.items())
        left.difference_update(errors)

    def offsets(of: Iterable[PartitionName], committed: bool) -> dict[PartitionName, int]:
        body = [protocol.list_offsets(of, committed)]
        answer = brokers.ask(leader, protocol.LIST_OFFSETS, body, Deadline(LEADER_S))
        listed = protocol.listed_offsets(answer)
        untold({at: error for at, (error, _) in listed.items() if error})
        return {at: offset for at, (error, offset) in listed.items() if not error}

    ends = offsets(left, False)
    _take_out_stable(left, offsets(left, True) if left else {}, ends)
    if not left:
        return
    body = [protocol.describe_producers(left)]
    answer = brokers.ask(leader, protocol.DESCRIBE_PRODUCERS, body, Deadline(LEADER_S))
    told = protocol.described_producers(answer)
    untold({at: error for at, (error, _) in told.items() if error and error not in NO_RIGHTS})
    for at, (error, producers) in told.items():
        if not error:
            left.discard(at)
            if producers:
                found.first[at] = producers
    # Others who write there have something open all the time, but nothing for long of what was there when the
    # end was asked.
    patience = Deadline(LEADER_S)
    while left and not patience.passed():
        ports.sleep(AGAIN_S)
        _take_out_stable(left, offsets(left, True), ends)
    words = "a transaction is open there; to learn whose it is takes READ on its topic"
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, words)
    found.untold.update(dict.fromkeys(left, denied))


def _take_out_stable(
    left: set[PartitionName], stable: Mapping[PartitionName, int], ends: Mapping[PartitionName, int]
) -> None:
    """Nothing is open of what was there when `ends` were asked."""
    left.difference_update(at for at, offset in stable.items() if offset >= ends[at])
