"""Many requests at once: to several brokers, and several under way to each. Decides nothing.

What one broker does not answer holds up none of the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.kafka.wire.broker_backoff import CONTROL, TRIES
from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.connection import wait_for
from common.kafka.wire.protocol import Address, Answer, Api, Buffer
from common.ports import Deadline

K = TypeVar("K")
T = TypeVar("T")

MOST_UNDER_WAY = 100
"""To one broker."""
LOOK_S = 0.1
"""When a broker may be asked again that failed lately, or has a quota, no descriptor tells."""

Request = tuple[Address, Api, Sequence[Buffer]]


@dataclass(slots=True)
class _Line(Generic[K]):
    """What one broker is asked."""

    unsent: deque[K] = field(default_factory=deque)
    sent: deque[K] = field(default_factory=deque)


def pipelined(
    brokers: BrokerConnections,
    requests: Mapping[K, Request],
    read: Callable[[K, Answer], T],
    deadline: Deadline,
) -> dict[K, T | KafkaException]:
    """What `read` makes of the answer to each request, or why there is none. `read` raises nothing but
    KafkaException."""
    found: dict[K, T | KafkaException] = {}
    lines: dict[Address, _Line[K]] = {}
    for key, (address, _, _) in requests.items():
        lines.setdefault(address, _Line()).unsent.append(key)

    def take(key: K, answer: Answer) -> None:
        try:
            found[key] = read(key, answer)
        except KafkaException as exception:
            found[key] = exception

    while lines:
        for address, line in list(lines.items()):
            try:
                _go_on(brokers, address, line, requests, take)
                if (line.sent or line.unsent) and deadline.passed():
                    raise _late(brokers, address)
            except KafkaException as exception:
                # Where it was not tried again, nothing has failed.
                if brokers.has((address, CONTROL)):
                    brokers.lost((address, CONTROL), exception)
                found.update(dict.fromkeys([*line.sent, *line.unsent], exception))
                del lines[address]
            else:
                if not line.sent and not line.unsent:
                    del lines[address]
        connected = [(address, CONTROL) for address in lines if brokers.has((address, CONTROL))]
        if lines:
            wait_for([brokers[at].waits_for() for at in connected], deadline.left(LOOK_S))
    return found


def _go_on(
    brokers: BrokerConnections,
    address: Address,
    line: _Line[K],
    requests: Mapping[K, Request],
    take: Callable[[K, Answer], None],
) -> None:
    """Send what can be sent, and take in what has come; waits for nothing."""
    at = (address, CONTROL)
    if line.unsent and brokers.usable(at, ports.monotonic()):
        while line.unsent and len(line.sent) < MOST_UNDER_WAY:
            _, api, body = requests[line.unsent[0]]
            brokers[at].send(api, body, None)
            line.sent.append(line.unsent.popleft())
    while line.sent and brokers[at].complete():
        answer = brokers[at].received()
        TRIES.worked(*at)
        take(line.sent.popleft(), answer)


def _late(brokers: BrokerConnections, address: Address) -> KafkaException:
    if brokers.has((address, CONTROL)):
        return brokers[address, CONTROL].late()
    words = f"{address[0]}:{address[1]}: it failed lately, and was not tried again in time"
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, words))
