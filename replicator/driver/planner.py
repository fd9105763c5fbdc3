"""The replicator's driver side: which partitions are copied, from where, by which lane. Where a partition's
copying begins is decided in replicator/driver/origins.py."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from common import ports
from common.config.credentials import for_plan
from common.errors import KafkaTimeout, LinkRefused, SettingsError
from common.kafka.client import clients, topics
from common.kafka.client.clients import Received
from common.kafka.client.topics import TopicInfo
from common.kafka.errors import NO_RIGHTS, denied
from common.link import positions
from common.link.control_kinds import Halted
from common.link.control_log import ControlLog
from common.link.control_records import REPLICATOR
from common.link.control_state import Control
from common.link.halt_reasons import HaltReason
from common.link.identity import refuse_own_copies
from common.link.partitioning import spread
from common.link.positions import Position
from common.partitions import PartitionId, PartitionName
from common.ports import Deadline
from replicator.driver.origins import Origins
from replicator.driver.pipeline_file import PipelineFile
from replicator.driver.topic_reporter import TopicReporter
from replicator.lane_plan import PipelinePlan, ReplicatorShare, SourcePartition

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

PLAN_S = 120.0
SILENT_S = 20.0
"""After so long without a word below an end that is known, another client reads on
(common/kafka/client/stall_detector.py)."""
TAKE_OVER_S = 15.0
REFUSED_S = 60.0
"""How long a partition is left out of the plan once staging has refused one of its frames."""


class PositionLog:
    """A tail of the positions topic: the newest position of each source partition."""

    def __init__(
        self,
        topic: str,
        config: clients.Config,
        admin: AdminClient,
        other: Callable[[Received], object] = lambda _: None,
    ) -> None:
        """`other` is told of the records that are no positions."""
        self.topic = topic
        self._other = other
        self._admin = admin
        self._group = config.get("group.id")
        self.known: dict[PartitionId, Position] = {}
        self._config = config
        self._at, _ = clients.watermarks(admin, topic, 0, Deadline(PLAN_S))
        self._consumer = self._reader()

    def refresh(self, deadline: Deadline) -> dict[PartitionId, Position]:
        """All positions written up to now. Raises KafkaTimeout."""
        _, end = clients.watermarks(self._admin, self.topic, 0, deadline)
        silent = Deadline(SILENT_S)
        while self._at < end:
            if deadline.passed():
                raise KafkaTimeout(f"reading {self.topic} up to offset {end}: only {self._at} reached")
            messages = clients.read(self._consumer, 0.1, 5000)
            if messages:
                silent = Deadline(SILENT_S)
            elif silent.passed():
                self._consumer.close()
                self._consumer = self._reader()
                silent = Deadline(SILENT_S)
            for message in messages:
                error = message.error()
                if error is None:
                    self._at = message.offset() + 1
                    found = positions.decode(message.key(), message.value())
                    if found is not None:
                        self.known[found[0]] = found[1]
                    elif (key := positions.forgotten(message.key(), message.value())) is not None:
                        self.known.pop(key, None)
                    else:
                        self._other(message)
                elif error.code() in NO_RIGHTS:
                    raise denied(f"reading {self.topic}", error, self._group, "READ")
                elif error.code() == KafkaError._PARTITION_EOF:
                    # The last offsets may have been compacted away.
                    self._at = max(self._at, message.offset())
        return self.known

    def close(self) -> None:
        self._consumer.close()

    def _reader(self) -> Consumer:
        consumer: Consumer = clients.consumer(self._config, enable_partition_eof=True)
        consumer.assign([TopicPartition(self.topic, 0, self._at)])
        return consumer


def selected(settings: Settings, source: AdminClient, deadline: Deadline) -> list[TopicInfo]:
    """The source topics that the settings select, as they are now."""
    wanted = [name for name in topics.names(source, "source", deadline) if settings.selects(name)]
    return sorted(topics.describe(source, wanted, deadline).values(), key=lambda t: t.name)


class Planner:
    """Makes the replicator's plans while it leads. `source`, `target`, `positions` and `pipeline` are its own
    unless given."""

    def __init__(
        self,
        settings: Settings,
        control: ControlLog,
        bounded: bool,
        source: AdminClient | None = None,
        target: AdminClient | None = None,
        positions: PositionLog | None = None,
        pipeline: PipelineFile | None = None,
    ) -> None:
        self.settings = settings
        self.pipeline = pipeline or PipelineFile(settings)
        self._planned_pipeline: PipelinePlan | None = None
        self.control = control
        self.bounded = bounded
        # A client with nothing in its queue counts as false.
        self.source = (
            source if source is not None else clients.admin(settings.client_config("source", "admin"))
        )
        self.target = (
            target if target is not None else clients.admin(settings.client_config("destination", "admin"))
        )
        self.positions = positions or PositionLog(
            settings.positions_topic,
            {
                "fetch.wait.max.ms": clients.FOLLOWER_WAIT_MS,
                **settings.client_config("destination", "consumer"),
            },
            self.target,
        )
        self.topic_reporter = TopicReporter(settings, control, self.source, self.target)
        self.planned: set[TopicInfo] = set()
        self._given: dict[PartitionName, tuple[PartitionId, int, int]] = {}
        """In a bounded run, of each partition of the last plan: its key, where its copying begins, and the
        end that the plan gave."""
        self._left_out: dict[PartitionId, float] = {}
        self._promoted: set[str] = set()
        """Topics that the last plan left out."""
        self.origins = Origins(settings, control, self.source, self.target, bounded)

    def take_over(self, settings: Settings) -> bool:
        """Go by these settings from now on, unless they name a topic that may not be described: what is
        copied already would end with it."""
        named = sorted(set(settings.named_topics) - set(self.settings.named_topics))
        try:
            for name in named:
                topics.describe(self.source, [name], Deadline(TAKE_OVER_S))
        except (KafkaException, KafkaTimeout, LinkRefused) as error:
            log.warning("the new settings are not taken over: topic %s of the source: %s", name, error)
            return False
        self.settings = self.topic_reporter.settings = self.origins.settings = settings
        return True

    def leave_out(self, key: PartitionId) -> None:
        """Staging has refused a frame of this partition, and each try ends the epoch of all: not again for
        REFUSED_S, or in this run."""
        self._left_out[key] = ports.monotonic()

    def close(self) -> None:
        self.positions.close()

    def plan(self, lanes: int) -> list[ReplicatorShare]:
        """The partitions of each lane, with all the clients they need."""
        deadline = Deadline(PLAN_S)
        found = self.selected(deadline)
        self.planned = set(found)
        state = self.control.refresh(deadline)
        found = self._without_halted_recreations(found, state, deadline)
        self.topic_reporter.describe(found, state, deadline)
        self.topic_reporter.look_for_missing(found, state, deadline)
        self._promoted = set(state.steering.promotions)
        found = [info for info in found if info.name not in self._promoted]
        self.origins.decide(found, state, deadline)
        self._planned_pipeline = self.pipeline.plan(self.pipeline.make_newest(self.control, deadline))
        known = self.positions.refresh(deadline)
        ends = self._ends(found, deadline) if self.bounded else {}
        for key in self._due():
            del self._left_out[key]
        partitions: list[SourcePartition] = []
        self._given = {}
        for info in found:
            same_name = self._same_name(info.name, state)
            for p in range(info.partitions):
                if (info.id, p) in self._left_out:
                    continue
                origin = state.origins.get((info.id, p))
                if origin is None:
                    continue  # made while planning: the next plan has it
                if (end := ends.get((info.name, p))) is not None:
                    self._given[info.name, p] = ((info.id, p), origin.offset, end)
                position = known.get((info.id, p))
                partitions.append(
                    SourcePartition(
                        topic=info.name,
                        topic_id=info.id,
                        partition=p,
                        origin=origin.offset,
                        position=position.next if position else None,
                        leader_epoch=position.leader_epoch if position else None,
                        handled=position.handled if position else -1,
                        end=end,
                        same_name=same_name,
                        tolerated=self._tolerated(position),
                    )
                )
        s = self.settings
        of_topics = Counter(p.topic for p in partitions)
        return [
            ReplicatorShare(
                source_consumer=for_plan(s, "source", "consumer"),
                source_admin=for_plan(s, "source", "admin"),
                staging_producer=for_plan(s, "destination", "producer"),
                partitions_of=dict(of_topics),
                partitions_in_all=len(partitions),
                pipeline=self._planned_pipeline,
                schemas_topic=s.schemas_topic,
                partitions=[partitions[i] for i in share],
            )
            for share in spread(len(partitions), lanes)
        ]

    def _tolerated(self, position: Position | None) -> list[int]:
        """Another pipeline counts anew."""
        planned = self._planned_pipeline
        ours = position is not None and planned is not None and position.pipeline == planned.n
        return [*position.tolerated] if ours and position is not None else []

    def stand(self) -> dict[PartitionName, tuple[int, int]]:
        """In a bounded run, how far each partition of the last plan is known to lie in staging, and the end
        that the plan gave."""
        known = self.positions.refresh(Deadline(PLAN_S))
        return {
            at: (known[key].next if key in known else origin, end)
            for at, (key, origin, end) in self._given.items()
        }

    def changed(self) -> bool:
        """Whether the topics to copy, or the pipeline, are others than planned. Where only topics'
        configuration is, that is told, and no reason to plan."""
        deadline = Deadline(PLAN_S)
        state = self.control.state
        if not self.pipeline.is_newest(state) or self.pipeline.plan(state) != self._planned_pipeline:
            return True
        if self._promoted != set(state.steering.promotions):
            return True
        found = self.selected(deadline)
        led = {(i.name, p) for i in found for p in range(i.partitions) if p not in i.leaderless}
        if self._due() or set(found) != self.planned or self.origins.undecided & led:
            return True
        self.topic_reporter.describe(found, self.control.refresh(deadline), deadline)
        return False

    def _same_name(self, topic: str, state: Control) -> bool:
        """Whether the destination is called as the topic is: then what comes back from there is a loop."""
        name = self.settings.source_name or (state.identity.source_cluster if state.identity else "")
        try:
            return self.settings.destination_topic(topic, name) == topic
        except SettingsError:
            return False

    def _due(self) -> list[PartitionId]:
        """Partitions that were left out for long enough."""
        now = ports.monotonic()
        return [] if self.bounded else [k for k, at in self._left_out.items() if now - at >= REFUSED_S]

    def selected(self, deadline: Deadline) -> list[TopicInfo]:
        """The source topics to copy, as they are now. Raises LinkRefused where copies would be among them."""
        found = selected(self.settings, self.source, deadline)
        identity = self.control.state.identity
        if identity is not None and identity.source_cluster == identity.target_cluster:
            refuse_own_copies(self.settings, (info.name for info in found), identity.source_cluster)
        return found

    def _without_halted_recreations(
        self, found: list[TopicInfo], state: Control, deadline: Deadline
    ) -> list[TopicInfo]:
        if self.settings.topic_recreated != "halt":
            return found
        kept = []
        for info in found:
            before = state.topic_id_history(info.name)
            known = not before or before[0] == info.id or (info.id, 0) in state.origins
            if known or info.name in state.steering.promotions:
                kept.append(info)
                continue
            for p in range(info.partitions):
                if (REPLICATOR, (info.id, p)) not in state.halts:
                    why = f"topic {info.name} was deleted and made again at the source, and TOPIC_RECREATED is halt"
                    halted = Halted(REPLICATOR, info.name, info.id, p, HaltReason.TOPIC_RECREATED, why)
                    self.control.append(halted, deadline)
        return kept

    def _ends(self, found: list[TopicInfo], deadline: Deadline) -> dict[PartitionName, int]:
        partitions = [(i.name, p) for i in found for p in range(i.partitions)]
        return topics.ends(self.source, partitions, deadline, committed=True)
