"""The source as a lane reads it: a consumer that begins where the copies are, and the bounds of a log.
Decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec

from common.kafka.client import clients, topics
from common.kafka.client.stall_detector import StallDetector
from common.kafka.wire.batch_consumer import BatchConsumer, Event
from common.kafka.wire.chunks import Chunk
from common.link.lane_counters import ends
from common.partitions import PartitionName
from common.ports import Deadline
from replicator.lane.frame_packer import whole_codecs
from replicator.lane.frame_trace import FrameTrace
from replicator.lane.partition_copy import PartitionCopy, Status
from replicator.lane.through_flow import takes_apart
from replicator.lane_plan import ReplicatorPlan

CALL_S = 30.0
SILENCE_S = 20.0
ANSWER_PARTITION_S = 3.5e-6
"""What one partition in a session costs its broker, which looks at each two or three times for an answer,
whatever has come."""

log = logging.getLogger(__name__)


class Source:
    """A lane's clients of the source cluster."""

    def __init__(
        self, plan: ReplicatorPlan, copies: Iterable[PartitionCopy], trace: FrameTrace | None = None
    ) -> None:
        self.plan = plan
        self._trace = trace
        self.copies = list(copies)
        self._admin = clients.admin(plan.source_admin)
        self._silence = StallDetector(self._admin, SILENCE_S)
        self._consumer: BatchConsumer | None = None
        self._by_name = False
        self.begun = 0
        """How often reading has begun: what was read before the last time is read again."""
        self.held: dict[PartitionName, PartitionCopy] = {}
        """What is assigned, but not fetched for now."""
        self._ends: dict[PartitionName, int] = {}
        self._asked: dict[TopicPartition, Any] = {}

    def by_id(self) -> bool:
        """Whether topics are asked for by their ids: then records of one that was made again can't come under
        the old one's."""
        return not self._by_name

    def reading(self) -> bool:
        return self._consumer is not None

    def read_from_positions(self) -> None:
        """Read all running partitions that are not paused from where they are, with a consumer of its own.

        A new one rather than a seek: what an old consumer still has in its queue could stand behind the new
        position, and a frame that claims to cover the offsets between would be a loss.
        """
        self.close()
        self.begun += 1
        self.held = {}
        running = [c for c in self.copies if c.status is Status.RUNNING and not c.paused]
        codecs = whole_codecs(self.plan.staging_producer, self.plan.provenance)
        apart = frozenset(c.topic for c in self.copies if takes_apart(c.flow))
        consumer = self._consumer = BatchConsumer(self.plan.source_consumer, codecs, apart)
        consumer.assign((c.topic, c.topic_id, c.partition, c.read, c.read_epoch) for c in running)

    def hold(self, copies: Collection[PartitionCopy]) -> None:
        """Fetch nothing more of these for now. What was fetched ahead is dropped, and fetched again."""
        assert self._consumer is not None
        if copies:
            self._consumer.pause([TopicPartition(c.topic, c.partition) for c in copies])
            self.held |= {(c.topic, c.partition): c for c in copies}

    def release(self, copies: Collection[PartitionCopy]) -> None:
        """Go on fetching these."""
        assert self._consumer is not None
        if copies:
            self._consumer.resume([TopicPartition(c.topic, c.partition) for c in copies])
            for copy in copies:
                del self.held[copy.topic, copy.partition]

    def read(self, timeout_s: float) -> list[Chunk | Event]:
        """What has come, in order for each partition."""
        assert self._consumer is not None
        came = self._consumer.read(timeout_s)
        if self._trace is not None:
            self._trace.read(came)
        # For good: frames that wait may not be overtaken, and a record that was read may not be in one yet.
        self._by_name |= self._consumer.by_name()
        return came

    def more_comes(self) -> bool:
        """Whether a broker that had much was asked for more, and has not answered: that costs no other
        request."""
        return self._consumer is not None and self._consumer.more_comes()

    def answer_s(self) -> float:
        """CPU time that an answer costs a broker at most, reckoned from the partitions it is asked for."""
        return ANSWER_PARTITION_S * self._consumer.asked_of_one() if self._consumer is not None else 0.0

    def silent(self) -> list[PartitionName]:
        """Partitions of which nothing comes though there is something; to be asked where `read` gave
        nothing."""
        return self._silence.found(
            lambda: {
                at: c.read
                for c in self.copies
                if c.status is Status.RUNNING
                and not c.paused
                and (at := (c.topic, c.partition)) not in self.held
            }
        )

    def watermarks(self, copy: PartitionCopy) -> tuple[int, int]:
        """Log start and end of its partition, as the leader says now."""
        return clients.watermarks(self._admin, copy.topic, copy.partition, Deadline(CALL_S))

    def still_the_same(self, copy: PartitionCopy) -> bool:
        """Whether the topic has the id that is copied: then what was asked of it before was answered by that
        topic."""
        found = topics.describe(self._admin, [copy.topic], Deadline(CALL_S)).get(copy.topic)
        return found is not None and found.id == copy.topic_id

    def describe(self, names: list[str]) -> dict[str, Any]:
        """Ask what the topics are; a future for each."""
        futures: dict[str, Any] = self._admin.describe_topics(TopicCollection(names), request_timeout=10)
        return futures

    def ends(self) -> dict[PartitionName, int]:
        """Where the logs end, as far as that is known without a request that is waited for."""
        if self._consumer is None:
            return {}
        running = [TopicPartition(c.topic, c.partition) for c in self.copies if not c.paused]
        return ends(self._consumer, running) | self._paused_ends([c for c in self.copies if c.paused])

    def _paused_ends(self, copies: list[PartitionCopy]) -> dict[PartitionName, int]:
        """The same of what no consumer hears of: asked now, told the next time."""
        if all(future.done() for future in self._asked.values()):
            for at, future in self._asked.items():
                if future.exception() is None:
                    self._ends[at.topic, at.partition] = future.result().offset
            wanted = {TopicPartition(c.topic, c.partition): OffsetSpec.latest() for c in copies}
            self._asked = self._admin.list_offsets(wanted, request_timeout=10) if wanted else {}
        paused = {(c.topic, c.partition) for c in copies}
        return {at: end for at, end in self._ends.items() if at in paused}

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None
