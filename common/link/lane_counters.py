"""What running lanes have done: each writes its own, now and then, to the compacted positions topic, and the
drivers of both applications read all of it. What words add up to is common/link/lane_words.py's part.

Spark tells what a task did when it ends, which here is after minutes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any, Protocol

import orjson
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from common import ports
from common.kafka.client import clients
from common.kafka.errors import NO_RIGHTS
from common.link.lane_words import Heard, Said, decode, hear
from common.link.lane_work import Work, together
from common.partitions import PartitionName

log = logging.getLogger(__name__)

INTERVAL_S, UNCHANGED_S = 3.0, 9.0
"""How often a lane says what it has done, the second where that is what it has said last. Each word is handed
on to all drivers of its link."""
SILENT_S = 60.0
"""Lanes that run say something far more often: after so long without a word it is the client that has gone
silent (common/kafka/client/stall_detector.py)."""
HANGS_S, TALKS_S = 300.0, 20.0
"""A lane that is not heard for the first, while another one was within the second, hangs. The first is longer
than any call of a lane's, and than a stage of the pipeline may well take for a batch."""


class Counters:
    """A lane's. What is no level only grows within an epoch."""

    def __init__(self, application: str, term: int, epoch: int, lane: int, topic: str) -> None:
        self._key = orjson.dumps({"metrics": application, "lane": lane})
        self._about = {"term": term, "epoch": epoch}
        self._topic = topic
        self._looked = self._written = 0.0
        self._said = b""

    def due(self, now: float) -> bool:
        return now - self._looked >= INTERVAL_S

    def write(self, producer: Producer, now: float, work: Work, reported: Any = None) -> None:
        self._looked = now
        said = orjson.dumps({**self._about, **work.shown().to_json()})
        if said == self._said and now - self._written < UNCHANGED_S:
            return
        self._said, self._written = said, now
        producer.produce(self._topic, said, self._key, on_delivery=reported)


class CounterTail:
    """The driver's view: all lanes of the epoch that runs together. `heard`: what the lanes of both
    applications have said last, since this instance listens."""

    def __init__(self, application: str, topic: str, config: clients.Config) -> None:
        self._application = application
        self._topic = topic
        self._config = config
        self._consumer = self._reader()
        self._heard = ports.monotonic()
        self.heard: Heard = {}
        self._heard_at: dict[tuple[str, int], float] = {}
        """When the last word of each in `heard` came, by the own clock: lanes have others."""
        self._warned = False

    def sums(self, term: int, epoch: int) -> Work | None:
        """Take in what has arrived; what this application has done in this epoch so far, None where no lane
        has said anything."""
        self.listen()
        works = [said.work for said in self._own(term, epoch)]
        return together(works) if works else None

    def silence(self, term: int, epoch: int, lanes: int, first_heard: float | None) -> str | None:
        """Why the end of this epoch of so many lanes would be waited for in vain: one of them hangs. Of one
        that has not begun it counts from when the first one was heard. None where nobody is heard: that says
        nothing of one lane."""
        now = ports.monotonic()
        if now - max(self._heard_at.values(), default=-math.inf) > TALKS_S:
            return None
        heard = {said.lane: self._heard_at[said.application, said.lane] for said in self._own(term, epoch)}
        begun = now if first_heard is None else first_heard
        for lane in range(lanes):
            if now - heard.get(lane, begun) > HANGS_S:
                return f"lane {lane} has said nothing for {HANGS_S:.0f} s, though others have: it hangs"
        return None

    def _own(self, term: int, epoch: int) -> list[Said]:
        """What this application's lanes of an epoch have said last."""
        own = (word.said for (name, _), word in self.heard.items() if name == self._application)
        return [said for said in own if (said.term, said.epoch) == (term, epoch)]

    def listen(self) -> None:
        """Take in what has arrived, without waiting."""
        messages = self._consumer.consume(1000, 0)
        now = ports.monotonic()
        if messages:
            self._heard = now
        elif now - self._heard > SILENT_S:
            self._heard = now
            self._consumer.close()
            self._consumer = self._reader()
        for message in messages:
            error = message.error()
            if error is None:
                if (said := decode(message.key(), message.value())) is not None:
                    hear(self.heard, said, message.timestamp()[1])
                    self._heard_at[said.application, said.lane] = now
            elif error.code() in NO_RIGHTS and not self._warned:
                self._warned = True
                log.warning("what the lanes have done can't be read, and is not shown: %s", error.str())

    def close(self) -> None:
        """Take in what came before, too."""
        self.listen()
        self._consumer.close()

    def _reader(self) -> Consumer:
        consumer: Consumer = clients.follower(self._config, 1024)
        consumer.assign([TopicPartition(self._topic, 0, OFFSET_END)])
        return consumer


class KnowsWatermarks(Protocol):
    """A consumer: its partition's log start and high watermark, as it heard of them last."""

    def get_watermark_offsets(self, partition: TopicPartition, *, cached: bool) -> tuple[int, int] | None: ...


def ends(consumer: KnowsWatermarks, partitions: Iterable[TopicPartition]) -> dict[PartitionName, int]:
    """The high watermarks that the consumer heard of last, where it has of any: no request is made."""
    found: dict[PartitionName, int] = {}
    for at in partitions:
        known = consumer.get_watermark_offsets(at, cached=True)
        if known is not None and known[1] >= 0:
            found[at.topic, at.partition] = known[1]
    return found
