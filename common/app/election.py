"""Who leads: the drivers of an application elect one through a consumer group on the control topic's only
partition.

Fencing by transactional id makes two owners harmless; leadership keeps them from fencing each other for ever.
What a leader may do is decided by its term (common/app/lane_term.py), so a driver that wakes up after its
session is over does no harm before it notices.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from common import ports
from common.app.health import Health
from common.errors import LinkRefused
from common.kafka.client import clients
from common.kafka.errors import NO_RIGHTS, denied

log = logging.getLogger(__name__)

SESSION_TIMEOUT_MS = 6000
"""The least that brokers allow by default (group.min.session.timeout.ms)."""

FENCED, FENCED_WITHIN_S = 5, 60.0
"""So many fences within so many seconds are another live instance's, each of the two joining again; a
coordinator's death makes one or two."""

ASK_S, ASKED_S, UNANSWERED = 10.0, 1.0, 3
"""Who does not lead asks a broker every ASK_S for an answer within ASKED_S; after so many in vain one after
the other, with another client."""

TICK_S = 0.1
"""How long a main loop waits in one turn."""


class Leadership:
    """Membership of the election. `poll` must be called often; `leading` says whether the partition is
    ours."""

    def __init__(
        self, application: str, group: str, topic: str, instance_id: str | None, config: clients.Config
    ) -> None:
        self.leading = False
        self._application = application
        self._instance_id = instance_id
        self._topic = topic
        self._group = group
        self._config = config
        self._fenced: deque[float] = deque(maxlen=FENCED)
        self._consumer = self._join()
        self._ask_at = ports.monotonic() + ASK_S
        self._unanswered = 0

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Take part in the election; whether this instance leads. Raises LinkRefused where it may not take
        part."""
        message = self._consumer.poll(timeout_s)
        error = None if message is None else message.error()
        if error is not None:
            if error.code() in NO_RIGHTS:
                raise denied(f"electing a leader through {self._topic}", error, self._group)
            if error.code() == KafkaError._FATAL:
                self._join_again(error)
        if not self.leading:
            self._ask()
        return self.leading

    def close(self) -> None:
        """Leave, so that a standby takes over at once."""
        self.leading = False
        self._consumer.close()

    def _join(self) -> Consumer:
        own: dict[str, object] = {}
        if self._instance_id is not None:
            # Static membership: the restarted instance has its partition back at once. Only with a name of
            # its own: two live instances with one name evict each other.
            own["group_instance_id"] = f"{self._application}-{self._instance_id}"
        consumer: Consumer = clients.consumer(
            self._config,
            group_id=self._group,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=1500,
            max_poll_interval_ms=600_000,
            # Cooperative: a joining instance does not take the partition from the one that has it.
            partition_assignment_strategy="cooperative-sticky",
            **own,
        )
        consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._lost, on_lost=self._lost)
        return consumer

    def _ask(self) -> None:
        """Join again with another client where this one reaches nobody any more
        (common/ports/reconnecting_admin.py tells how that comes).

        It may still have its connection to the group's coordinator, be a member in good health, and never
        come to lead.
        """
        now = ports.monotonic()
        if now < self._ask_at:
            return
        self._ask_at = now + ASK_S
        try:
            self._consumer.list_topics(self._topic, timeout=ASKED_S)
            self._unanswered = 0
        except KafkaException:
            self._unanswered += 1
        if self._unanswered >= UNANSWERED:
            self._unanswered = 0
            log.info("joining the election again: nobody answers")
            self._consumer.close()
            self._consumer = self._join()

    def _join_again(self, error: KafkaError) -> None:
        """After a client's fatal error, which it says once and never recovers from: standing by with it would
        be for ever.

        A static member is fenced by another of its name, but also where its coordinator died, the next one
        holding the name to be that of a member that nobody is.
        """
        self.leading = False
        now = ports.monotonic()
        if len(self._fenced) == FENCED and now - self._fenced[0] < FENCED_WITHIN_S:
            raise LinkRefused(
                f"INSTANCE_ID={self._instance_id}: another live instance of the {self._application} has the same name; make it unique or "
                f"leave it out ({error.str()})"
            )
        self._fenced.append(now)
        log.warning("joining the election again: %s", error.str())
        self._consumer.close()
        self._consumer = self._join()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        mine = [TopicPartition(p.topic, p.partition, 0) for p in partitions]
        consumer.incremental_assign(mine)
        if mine:
            consumer.pause(mine)  # the election needs the partition, not its records
            self.leading = True

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            self.leading = False
        try:
            consumer.incremental_unassign(partitions)
        except Exception as error:  # noqa: BLE001 - the assignment may be gone already; leadership is given up either way
            log.debug("giving up the assignment: %s", error)


def wait_for_lead(
    leadership: Leadership,
    health: Health,
    stopping: threading.Event,
    within_s: float = math.inf,
    meanwhile: Callable[[], None] = lambda: None,
) -> bool:
    """Stand by until this instance leads; False where `stopping` came first, or `within_s` is over."""
    began, said = ports.monotonic(), False
    while not stopping.is_set() and ports.monotonic() - began < within_s:
        health.turned = ports.monotonic()
        if leadership.poll(TICK_S):
            return True
        meanwhile()
        if not said and ports.monotonic() - began > 3.0:
            said = True
            health.role = "standby"
            log.info(
                "standing by: another instance of the %s leads, or the last one's session is running out",
                health.application,
            )
    return False
