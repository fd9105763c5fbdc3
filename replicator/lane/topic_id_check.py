"""Frames held back until their topic's id is confirmed. Asks the source; what becomes of a frame then is left
to the lane."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.kafka.client.topics import id_text
from common.kafka.errors import kafka_error
from replicator.lane.partition_copy import CutFrame
from replicator.lane.source_reader import Source

log = logging.getLogger(__name__)

UNCONFIRMED_BYTES = 64 << 20
"""Past this much nothing more is read."""
DESCRIBED_PARTITION_S = 8e-6
"""What one partition in an answer costs: the client lists all of a topic's partitions, and makes a Python
object of each and of its replicas."""


class TopicIdCheck:
    """The frames of one lane that wait for their topic's id, in order."""

    def __init__(self, source: Source, send: Callable[[CutFrame], None]) -> None:
        """`send` is what is done with frames for which nobody need be asked."""
        self._source = source
        self._send = send
        self._unconfirmed: deque[CutFrame] = deque()
        self._bytes = 0
        self._describing: tuple[int, dict[str, Any]] | None = None
        """How many of them had been fetched when the question was sent, and the answers to it."""
        self._ask_after = 0.0
        self.answer_s = 0.0
        """CPU time that the last answers took, reckoned from their size; the client spent it in a thread of
        its own."""

    def hold_back(self, cut: CutFrame) -> None:
        """Until its topic is confirmed. Where brokers are asked for topics by id, it is: none answers for
        another one."""
        if self._source.by_id():
            self._send(cut)
            return
        self._unconfirmed.append(cut)
        self._bytes += len(cut.value)

    def full(self) -> bool:
        return self._bytes > UNCONFIRMED_BYTES

    def waits(self) -> bool:
        """Whether frames are held back."""
        return bool(self._unconfirmed)

    def asking(self) -> bool:
        """Whether an answer is on its way."""
        return self._describing is not None

    def ask(self, now: float) -> None:
        """Ask for the topics of all frames that are held back, unless a question is open or nothing is held
        back."""
        if self._describing is None and self._unconfirmed and now >= self._ask_after:
            topics = sorted({cut.frame.topic for cut in self._unconfirmed})
            # Counted, not timed: a frame cut at the instant of the question may hold what was fetched after
            # it.
            self._describing = (len(self._unconfirmed), self._source.describe(topics))

    def wait(self, timeout_s: float) -> None:
        """Wait until the open question is answered."""
        if self._describing is not None:
            ports.wait(self._describing[1].values(), timeout_s)

    def answers(self, now: float) -> list[tuple[CutFrame, bool]]:
        """The frames whose question is answered, in order, and whether their topic still has its id.

        librdkafka goes on in a topic that was deleted and made again at the old offset, without an error: its
        metadata refresh takes the new id and keeps the position. So a frame leaves only after a
        DescribeTopics that was sent after its records had been fetched still tells the id it carries: ids
        never come back, so the topic was the same when they were fetched.
        """
        if self._describing is None:
            return []
        covered, futures = self._describing
        if not all(future.done() for future in futures.values()):
            return []
        self._describing = None
        ids = self._ids(futures, now)
        answered: list[tuple[CutFrame, bool]] = []
        kept: deque[CutFrame] = deque()
        for number, cut in enumerate(self._unconfirmed):
            frame = cut.frame
            if number >= covered or frame.topic not in ids:
                kept.append(cut)
                continue
            self._bytes -= len(cut.value)
            answered.append((cut, ids[frame.topic] == frame.topic_id))
        self._unconfirmed = kept
        return answered

    def _ids(self, futures: dict[str, Any], now: float) -> dict[str, str | None]:
        """Each topic's id, None where there is no such topic; a topic whose question failed is left out."""
        ids: dict[str, str | None] = {}
        partitions = 0
        for topic, future in futures.items():
            try:
                described = future.result()
                ids[topic] = id_text(described.topic_id)
                partitions += len(described.partitions)
            except KafkaException as exception:
                error = kafka_error(exception)
                if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    ids[topic] = None
                else:
                    log.warning("describing topic %s at the source: %s", topic, exception)
                    self._ask_after = now + 1.0
        self.answer_s = partitions * DESCRIBED_PARTITION_S
        return ids
