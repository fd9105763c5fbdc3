"""Reads and appends the control topic. What its records mean is decided in common/link/control_state.py."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self, cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from common import ports
from common.errors import KafkaTimeout, LinkRefused
from common.kafka.client import clients
from common.kafka.client.appender import Appender
from common.kafka.client.clients import Received
from common.kafka.client.stall_detector import StallDetector
from common.kafka.errors import NO_RIGHTS, denied
from common.link.control_kinds import ControlRecord, encode
from common.link.control_state import Control
from common.link.lane_plan import LanePlan
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

TELL_SKIPPED = 10
"""So many records that are skipped have a line each."""


class ControlLog:
    """A tail of the control topic and its running sum, `state`. Safe to use from several threads.

    `poll` takes in what has arrived; `refresh` takes in all that was there when it was called; `append`
    writes and waits for the acknowledgement, so that a record that was appended is seen by everyone's next
    `refresh`.
    """

    def __init__(
        self,
        topic: str,
        consumer_config: clients.Config,
        producer_config: clients.Config,
        admin_config: clients.Config,
        link: str,
    ) -> None:
        self.topic = topic
        self.link = link
        self.admin = clients.admin(admin_config)
        self.state = Control(link=link)
        self.led_ms: dict[str, int] = {}
        """application -> when its newest leader said that it leads, in ms since 1970."""
        self._lock = ports.Lock()
        self._appender = Appender(topic, producer_config, queue_buffering_max_kbytes=65536)
        self._consumer_config = consumer_config
        self._group = consumer_config.get("group.id")
        self._consumer = self._reader()
        self._silence = StallDetector(self.admin)
        self._tell_skipped = TELL_SKIPPED

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The control log of the link that these settings are of."""
        return cls(
            settings.control_topic,
            settings.client_config("destination", "consumer"),
            settings.client_config("destination", "producer"),
            settings.client_config("destination", "admin"),
            settings.application_name,
        )

    @classmethod
    def in_lane(cls, plan: LanePlan) -> Self:
        """The same in a task, which knows its plan alone. What is skipped its driver has told."""
        made = cls(
            plan.control_topic,
            plan.control_consumer,
            plan.control_producer,
            plan.control_admin,
            plan.link,
        )
        made._tell_skipped = 0
        return made

    def poll(self) -> Control:
        """Take in what has arrived, without waiting."""
        with self._lock:
            self._take(0.0)
            return self.state

    def refresh(self, deadline: Deadline) -> Control:
        """Take in everything up to the end that the log has now. Raises KafkaTimeout."""
        with self._lock:
            _, end = clients.watermarks(self.admin, self.topic, 0, deadline)
            while self.state.position < end:
                if deadline.passed():
                    raise KafkaTimeout(
                        f"reading {self.topic} up to offset {end}: only {self.state.position} reached"
                    )
                self._take(0.1)
            return self.state

    def append(self, record: ControlRecord, deadline: Deadline) -> int:
        """Append a record and wait until it is safe; its offset. Raises LinkRefused, KafkaTimeout,
        KafkaException."""
        return self.append_all([record], deadline)[-1]

    def append_all(self, records: Iterable[ControlRecord], deadline: Deadline) -> list[int]:
        """Append several records in order; their offsets.

        Raises ControlError for one that no reader would understand: the topic is never trimmed, so in the log
        it would be the link's end.
        """
        values = [encode(record, self.link) for record in records]
        for value in values:
            Control().apply(0, value)
        with self._lock:
            # After a failure some may still come; records are written so that a repeated or late one does no
            # harm.
            return self._appender.append([(None, value) for value in values], deadline.left(30.0))

    def close(self) -> None:
        with self._lock:
            self._consumer.close()
            self._appender.close()

    def _reader(self) -> Consumer:
        consumer: Consumer = clients.follower(self._consumer_config, 4096)
        consumer.assign([TopicPartition(self.topic, 0, self.state.position)])
        return consumer

    def _take(self, timeout: float) -> None:
        if self._silence.found(lambda: {(self.topic, 0): self.state.position}):
            log.warning(
                "%s: nothing comes from offset %d on, though there is more; reading on with another client",
                self.topic,
                self.state.position,
            )
            self._consumer.close()
            self._consumer = self._reader()
        for message in self._waiting() if timeout == 0 else clients.read(self._consumer, timeout, 1000):
            error = message.error()
            if error is None:
                if (why := self.state.apply(message.offset(), message.value())) is not None:
                    self._skipped(message.offset(), why)
                for application, term in self.state.leaders.items():
                    if term == message.offset():
                        self.led_ms[application] = message.timestamp()[1]
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise LinkRefused(
                    f"the control topic {self.topic} was cut below offset {self.state.position} ({error.str()}); it must never be "
                    "trimmed: restore it, or make a new link under another APPLICATION_NAME"
                )
            elif error.code() in NO_RIGHTS:
                raise denied(f"reading {self.topic}", error, self._group, "READ")

    def _skipped(self, offset: int, why: str) -> None:
        if self._tell_skipped:
            self._tell_skipped -= 1
            more = "" if self._tell_skipped else "; no more are told of"
            log.error("%s offset %d: skipped, since %s%s", self.topic, offset, why, more)

    def _waiting(self) -> list[Received]:
        return cast("list[Received]", self._consumer.consume(1000, 0))
