"""Whether each cluster can be reached, asked now and then in the background and told to a Health; main loops
never wait for it.

Any broker is asked for metadata of no topic, which takes no right. Not by the client library's
DescribeCluster: a broker that has just started names nobody, and that answer aborts the process (librdkafka
2.16).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from functools import partial

from confluent_kafka import KafkaException

from common import ports
from common.app.health import Health
from common.kafka.client.clients import Config
from common.kafka.errors import kafka_error
from common.kafka.wire.broker_connections import BrokerConnections
from common.ports import Deadline

log = logging.getLogger(__name__)

LOOK_S, ASK_S = 5.0, 5.0
"""How long between two questions, and how long for an answer."""
IN_VAIN = 2
"""So many questions without an answer, one after the other: one alone may have gone to a broker that has just
ended."""


class ClusterWatch:
    """Watches clusters until closed, each in a thread of its own: what one does not answer holds up no
    other's."""

    def __init__(self, health: Health, clusters: Mapping[str, Config]) -> None:
        """`clusters`: by "source" and "target", how clients get in."""
        self._health = health
        self._closed = threading.Event()
        for which, config in clusters.items():
            ports.thread(partial(self._watch, which, BrokerConnections(config)), f"watch-{which}").start()

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _watch(self, which: str, brokers: BrokerConnections) -> None:
        in_vain = 0
        while not self._closed.wait(LOOK_S):
            why = _unanswered(brokers)
            in_vain = 0 if why is None else in_vain + 1
            if in_vain in (0, IN_VAIN) and not self._closed.is_set():
                self._tell(which, why)
        brokers.close()

    def _tell(self, which: str, why: str | None) -> None:
        before = getattr(self._health, f"{which}_reached")
        setattr(self._health, f"{which}_reached", why is None)
        if before and why is not None:
            log.error("the %s cluster can't be reached: %s", which, why)
        elif not before and why is None:
            log.info("the %s cluster is reached again", which)


def _unanswered(brokers: BrokerConnections) -> str | None:
    """Why no broker of the cluster answers; None where one does, whatever it says."""
    try:
        brokers.renew()
        brokers.describe((), Deadline(ASK_S))
    except KafkaException as exception:
        error = kafka_error(exception)
        # Below 0 are the client's own.
        return None if error is not None and error.code() >= 0 else str(error.str() if error else exception)
    return None
