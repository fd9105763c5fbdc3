"""Which transactions are open in partitions, asked of their leaders. Decides nothing.

Where a partition's last stable offset is its high watermark, none is: that takes no more rights than writing
does. Whose they are is told to whoever may read the topic (KIP-664).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.kafka.errors import NO_RIGHTS
from common.kafka.wire import protocol
from common.kafka.wire.broker_connections import Address, BrokerConnections, Partition
from common.ports import Deadline

LEADER_S = 2.0
"""How long one leader is waited for: the partitions of the others wait with it."""
AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """`first`: of each partition that has any, by producer id, the offset at which its transaction begins.
    `untold`: of which partitions nothing was told, and why; all others have been asked."""

    first: dict[Partition, dict[int, int]] = field(default_factory=dict)
    untold: dict[Partition, KafkaError] = field(default_factory=dict)


def open_transactions(
    brokers: BrokerConnections, partitions: Collection[Partition], deadline: Deadline
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
    by_leader: dict[Address, list[Partition]] = {}
    for at in partitions:
        leader = brokers.leader(at)
        if leader is None:
            code = errors.get(at[0]) or KafkaError.LEADER_NOT_AVAILABLE
            found.untold[at] = KafkaError(code, KafkaError(code).str())
        else:
            by_leader.setdefault(leader, []).append(at)
    for leader, its in by_leader.items():
        try:
            _ask(brokers, leader, its, Deadline(deadline.left(LEADER_S)), found)
        except KafkaException as exception:
            error: KafkaError = exception.args[0]
            found.untold.update((at, error) for at in its if at not in found.first)
    return found


def _ask(
    brokers: BrokerConnections,
    leader: Address,
    partitions: Iterable[Partition],
    deadline: Deadline,
    found: OpenTransactions,
) -> None:
    def offsets(of: Iterable[Partition], committed: bool) -> dict[Partition, int]:
        body = [protocol.list_offsets(of, committed)]
        answer = protocol.listed_offsets(brokers.ask(leader, protocol.LIST_OFFSETS, body, deadline))
        _note(found, {at: error for at, (error, _) in answer.items()})
        return {at: offset for at, (error, offset) in answer.items() if not error}

    ends = offsets(partitions, False)
    stable = offsets(ends, True) if ends else {}
    unsettled = [at for at, offset in stable.items() if offset < ends[at]]
    if not unsettled:
        return
    body = [protocol.describe_producers(unsettled)]
    answer = brokers.ask(leader, protocol.DESCRIBE_PRODUCERS, body, deadline)
    told = protocol.described_producers(answer)
    found.first.update((at, producers) for at, (error, producers) in told.items() if not error and producers)
    denied = [at for at, (error, _) in told.items() if error in NO_RIGHTS]
    _note(found, {at: error for at, (error, _) in told.items() if at not in denied})
    # Others who write there have something open all the time, but nothing of what was there when the end was
    # asked, for long.
    while denied and not deadline.passed():
        ports.sleep(AGAIN_S)
        stable = offsets(denied, True)
        denied = [at for at in denied if stable.get(at, -1) < ends[at]]
    words = "a transaction is open there; to learn whose it is takes READ on its topic"
    found.untold.update((at, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, words)) for at in denied)


def _note(found: OpenTransactions, errors: Mapping[Partition, int]) -> None:
    found.untold.update((at, KafkaError(code, KafkaError(code).str())) for at, code in errors.items() if code)
