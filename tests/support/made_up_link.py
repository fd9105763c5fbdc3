"""A link that nothing runs: a control topic's state and lanes' words, made up, and the health of an instance
that has seen them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from common.app.health import Health
from common.app.link_view import LinkView, status
from common.config import loading
from common.config.settings import Settings
from common.link.control_kinds import ControlRecord, Destination, Leader, SourceTopic, encode
from common.link.control_state import Control
from common.link.lane_words import Heard, Said, hear
from common.link.lane_work import Delays, Work

LINK = "east"


def settings(**variables: str) -> Settings:
    return loading.load(
        environ={
            "APPLICATION_NAME": LINK,
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "a:1",
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "b:1",
            "KAFKA_CLUSTERS_SOURCE_TOPIC": ".*",
            **variables,
        }
    )


def described(topic: str, partitions: int) -> tuple[ControlRecord, ControlRecord]:
    """A source topic and its copy."""
    return (
        SourceTopic(topic, f"id-{topic}", partitions, {}),
        Destination(topic, f"id-{topic}", f"copy.{topic}", partitions, 1 << 20),
    )


class MadeUp:
    """An instance of the replicator that leads; `control` and `heard` are what it has read."""

    def __init__(self, topics: dict[str, int], application: str = "replicator") -> None:
        self.settings = settings()
        self.control = Control()
        self.heard: Heard = {}
        self.led_ms = {"replicator": 1_700_000_000_000, "deduplicator": 1_700_000_000_000}
        self.topics = topics
        self.health = Health(application, "leader", source_reached=True, target_reached=True)
        self.health.link, self.health.source, self.health.target = LINK, "src-1", "tgt-1"
        self.health.instance = "host-1-42"
        self.view = LinkView(self.health)
        self.now = 100.0
        self.say(Leader("replicator", "host-1-42"), Leader("deduplicator", "host-2-7"))
        for topic, partitions in topics.items():
            self.say(*described(topic, partitions))

    def say(self, *records: ControlRecord) -> None:
        for record in records:
            self.control.apply(self.control.position, encode(record, LINK))

    def speak(
        self,
        at_ms: int,
        records: int,
        lag: int = 0,
        epoch: int = 1,
        delays: Iterable[tuple[int, int]] = (),
        record_bytes: int = 100,
    ) -> None:
        """A word of each application's one lane: each partition has so many records in an epoch."""
        everything = [(topic, p) for topic, count in self.topics.items() for p in range(count)]
        at = {one: (i % 7 + 1) * records for i, one in enumerate(everything)}
        for application, of in (
            ("replicator", {one: {"end_offset": n + lag, "staged_offset": n} for one, n in at.items()}),
            ("deduplicator", {one: {"delivered_offset": n} for one, n in at.items()}),
        ):
            histogram = Delays()
            for ms, count in delays if application == "deduplicator" else ():
                histogram.took(ms, count)
            total = sum(at.values())
            counts = Counter(records=total, bytes=total * record_bytes, frames=total // 10)
            if application == "deduplicator":
                counts["staging_lag"] = 3
            work = Work(counts, {one: Counter(levels) for one, levels in of.items()}, histogram)
            hear(self.heard, Said(application, 0, 4, epoch, work), at_ms)

    def look(self, now_ms: int, seconds: float = 10.0) -> dict[str, Any]:
        """The main loop looks, so many seconds after it did last: what is at /status.json then."""
        self.now += seconds
        log: Any = SimpleNamespace(state=self.control, led_ms=self.led_ms)
        self.view.look(self.now, now_ms, self.settings, log, self.heard)
        return status(self.health, now_ms)


def busy(topics: int = 40, partitions: int = 25) -> MadeUp:
    """An instance some minutes after its start: so many topics, of so many partitions each."""
    made = MadeUp({f"topic-{i:03}": partitions for i in range(topics)})
    now_ms = int(time.time() * 1000)
    for i in range(31):
        delays = [(12, 900 * (i + 1)), (40, 80 * (i + 1)), (900, 2 * (i + 1))]
        made.speak(now_ms - (30 - i) * 10_000, 50 * (i + 1), lag=max(0, 10 - i), delays=delays)
        made.look(now_ms - (30 - i) * 10_000)
    return made
