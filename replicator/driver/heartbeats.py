"""Heartbeats: records that the link writes to a topic of its own at the source, to see when they can be read
at the target.

Only where HEARTBEATS_INTERVAL asks for them: nothing else of a link ever writes to the source. That topic is
copied like any other. Whoever leads writes them, and reads the copies: so a delay is told by one clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import orjson
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from common import ports
from common.app.health import Health, Heartbeat
from common.errors import LinkRefused
from common.kafka.client import clients, topics
from common.kafka.client.clients import Received
from common.kafka.errors import retriable
from common.link.control_log import ControlLog
from common.link.lane_counters import SILENT_S
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

CONFIG = {"cleanup.policy": "compact", "segment.ms": "3600000"}
"""Compacted, so that the last one is still there, and at the target too, when somebody looks days after the
source has gone."""
CALL_S = 60.0
LOOK_S = 0.1
GIVEN_UP_S = 30.0
PENDING = 10_000


def make_topic(settings: Settings, source: AdminClient, deadline: Deadline) -> None:
    """Make the topic at the source where it is missing. Raises LinkRefused."""
    name = settings.heartbeats_topic
    if name in topics.describe(source, [name], deadline):
        return
    if not settings.create_topics:
        wanted = ", ".join(f"{key}={value}" for key, value in CONFIG.items())
        raise LinkRefused(
            f"topic {name} is missing on the source, and CREATE_TOPICS is false: make it with 1 partition and {wanted}, or leave "
            "HEARTBEATS_INTERVAL out"
        )
    topics.create(source, name, 1, settings.replication_factor, CONFIG, deadline)
    log.info("made topic %s at the source, for heartbeats", name)


class Delays:
    """How long heartbeats take. Pure: times are in ms since 1970, by the clock of this process."""

    def __init__(self) -> None:
        self.newest_ms: int | None = None
        """Of the newest heartbeat that was read at the target."""
        self._last_ms: int | None = None
        self._under_way: deque[int] = deque(maxlen=PENDING)

    def wrote(self, at_ms: int) -> None:
        self._under_way.append(at_ms)

    def never_wrote(self, at_ms: int) -> None:
        """It was not taken by the source: no copy of it will come."""
        if at_ms in self._under_way:
            self._under_way.remove(at_ms)

    def read(self, at_ms: int, mine: bool, now_ms: int) -> None:
        """A heartbeat of `at_ms` can be read at the target. Where it is another instance's, its clock may be
        another."""
        self.newest_ms = max(self.newest_ms or 0, at_ms)
        if mine:
            self._last_ms = max(0, now_ms - at_ms)
            while self._under_way and self._under_way[0] <= at_ms:
                self._under_way.popleft()

    def seen(self, now_ms: int) -> Heartbeat:
        """The delay of the last one that came, or how long the oldest one that has not come has been under
        way, if that is longer."""
        waiting = now_ms - self._under_way[0] if self._under_way else None
        known = [delay for delay in (self._last_ms, waiting) if delay is not None]
        return Heartbeat(max(known) / 1000 if known else None, self.newest_ms)


class Heartbeats:
    """Writes and reads them in a thread of its own, until closed; what it sees is in `health.heartbeat`.
    Trouble is logged, and never that of the copying."""

    def __init__(self, settings: Settings, control: ControlLog, health: Health, instance: str) -> None:
        self.settings = settings
        self.control = control
        self.health = health
        self.delays = Delays()
        self._value = orjson.dumps({"link": settings.application_name, "instance": instance})
        self._stopping = threading.Event()
        self._reader: Consumer | None = None
        self._heard = 0.0
        self._said = ""
        source = clients.admin(settings.client_config("source", "admin"))
        make_topic(settings, source, Deadline(CALL_S))
        self._producer = self._writer()
        self._in_vain = False
        """Whether a heartbeat was given up that no broker has refused: then another producer may reach one
        (common/ports/reconnecting_admin.py)."""
        health.heartbeat = Heartbeat(None, None)
        self._thread = ports.thread(self._main, "heartbeats")
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(5.0)
        self.health.heartbeat = None

    def _main(self) -> None:
        due = time.monotonic()
        try:
            while not self._stopping.wait(0.0 if self._reader is not None else LOOK_S):
                try:
                    if time.monotonic() >= due:
                        due = time.monotonic() + self.settings.heartbeats_interval_s
                        self._write()
                    self._producer.poll(0)
                    if self._in_vain:
                        self._producer.purge()
                        self._producer, self._in_vain = self._writer(), False
                    self._read()
                except (KafkaException, BufferError) as error:
                    self._trouble(f"{error}")
                    self._stopping.wait(1.0)
                self.health.heartbeat = self.delays.seen(_now_ms())
        finally:
            self._producer.purge()
            if self._reader is not None:
                self._reader.close()

    def _write(self) -> None:
        at = _now_ms()

        def delivered(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                self.delays.never_wrote(at)
                self._in_vain = self._in_vain or error.code() == KafkaError._MSG_TIMED_OUT
                self._trouble(f"writing to {self.settings.heartbeats_topic} of the source: {error.str()}")

        self._producer.produce(
            self.settings.heartbeats_topic,
            self._value,
            self.settings.application_name,
            0,
            on_delivery=delivered,
            timestamp=at,
        )
        self.delays.wrote(at)

    def _writer(self) -> Producer:
        # With idempotence a producer needs rights on more than its topic at brokers before 3.0; one given up,
        # or one more, is no harm here.
        return clients.producer(
            self.settings.client_config("source", "producer"),
            linger_ms=0,
            enable_idempotence=False,
            enable_gapless_guarantee=False,
            message_timeout_ms=int(GIVEN_UP_S * 1000),
        )

    def _read(self) -> None:
        if self._reader is None:
            # Not before it is there: a consumer that has asked for a topic in vain takes its time to ask
            # again.
            copy = self.control.state.copies().get(self.settings.heartbeats_topic)
            if copy is None:
                return
            self._heard = time.monotonic()
            self._reader = clients.consumer(
                self.settings.client_config("destination", "consumer"),
                isolation_level="read_committed",
                queued_max_messages_kbytes=1024,
            )
            self._reader.assign([TopicPartition(copy, 0, OFFSET_END)])
        messages = clients.read(self._reader, LOOK_S, 100)
        for message in messages:
            self._take(message)
        now = time.monotonic()
        if messages:
            self._heard = now
        elif now - self._heard > SILENT_S + self.settings.heartbeats_interval_s:
            # The link may be slow, or the client silent (common/kafka/client/stall_detector.py): another one
            # costs little, and tells which.
            self._reader.close()
            self._reader = None

    def _take(self, message: Received) -> None:
        error = message.error()
        if error is None:
            self.delays.read(message.timestamp()[1], message.value() == self._value, _now_ms())
            self._said = ""
        elif not retriable(error):
            self._trouble(f"reading {message.topic()} of the target: {error.str()}")

    def _trouble(self, what: str) -> None:
        if what != self._said:
            log.warning("heartbeats: %s", what)
        self._said = what


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
