"""The application `deduplicator`: phase 2 of a link. Its command line is in command.py."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import Counter
from typing import TYPE_CHECKING

import click
from confluent_kafka import KafkaException
from confluent_kafka.admin import OffsetSpec

from common import ports
from common.app.application import Application
from common.app.work_report import halted_lines
from common.config.credentials import for_plan
from common.errors import LinkRefused, StateError, VerbatimError
from common.kafka.client import clients, topics
from common.link.lane_progress import Row, Unfinished
from common.link.partitioning import spread
from common.log_lines import said_of_link, tell_error
from common.partitions import PartitionId, PartitionName
from common.ports import Deadline
from common.spark.lane_jobs import Behind
from deduplicator.driver.acl_replication import AclReplication
from deduplicator.driver.destinations import Destinations
from deduplicator.driver.letter_topic import LetterTopic
from deduplicator.driver.route_topics import RouteTopics
from deduplicator.driver.staging_trim import limits, trim
from deduplicator.lane import lane, recovery
from deduplicator.lane_plan import DeduplicatorShare, Left, StagingPartition
from deduplicator.state.folding import Folding
from deduplicator.state.snapshot import FoldResult, Snapshot
from deduplicator.state.table import StateTable

if TYPE_CHECKING:
    from common.config.live_reload import LiveFile
    from common.config.settings import Settings

log = logging.getLogger(__name__)

CALL_S = 60.0
ASK_S = 5.0
SETTLE_AGAIN_S = 5.0
FOLD_S = 600.0
FOLD_BYTES = 4 << 30
FOLD_MAPPINGS = 100_000
"""A fold takes seconds of CPU, however little there is to fold, and everything else of the machine is slower
meanwhile. So it waits until so much of staging could be trimmed, or recovery would have so many mappings to
read, or so long."""


class Deduplicator(Application):
    """Delivers the frames of the staging topic to the destination topics, exactly once."""

    name = "deduplicator"
    needs_source = False
    extra_slots = 1
    uses_delta = True
    run_lane = staticmethod(lane.run)
    state: StateTable
    destinations: Destinations
    letter_topic: LetterTopic
    route_topics: RouteTopics
    acls: AclReplication

    def __init__(self, settings: Settings, until_caught_up: bool, live: LiveFile | None = None) -> None:
        super().__init__(settings, until_caught_up, live)
        self.admin = clients.admin(settings.client_config("destination", "admin"))
        self.folding: Folding | None = None
        self._settled = -1
        self._settle_at = 0.0
        self._look_again_at = 0.0
        self._folded_at = -math.inf
        self._folded_with = Counter[str]()
        self._given: dict[int, int] = {}
        """In a bounded run, the end of each staging partition that the last plan gave."""
        self._left: dict[int, recovery.Snapshot] = {}
        """What the lanes of the epoch that just ended left of each staging partition, for the next plan
        alone."""

    def became_leader(self) -> None:
        self.state = StateTable.of(self.spark, self.settings)
        try:
            self.state.check()
        except StateError as error:
            log.warning("%s; it is tried again before anything is written there", error)
        self.destinations = Destinations(self.settings, self.link, self.control)
        self.destinations.settle(again=True)
        self.letter_topic = LetterTopic(self.settings, self.control)
        self.letter_topic.settle(again=True)
        self.route_topics = RouteTopics(self.settings, self.link, self.control)
        self.route_topics.settle(again=True)
        self.acls = AclReplication(self.settings, self.control)
        self.acls.settle(again=True)
        self._folded_at = -math.inf
        if not self.bounded:
            self.folding = Folding(self.state, self._fold_due, self._folded, self._fold_failed)

    def _count(self, rows: list[Row]) -> None:
        super()._count(rows)
        for row in rows:
            if isinstance(row, Left):
                self._left[row.partition] = row.snapshot

    def take_over(self, settings: Settings) -> bool:
        if hasattr(self, "destinations"):
            self.destinations.take_over(settings)
            self.route_topics.take_over(settings)
            self.acls.settings = self.letter_topic.settings = settings
            self._look_again_at = 0.0
        return True

    def stepped_down(self) -> None:
        if self.folding is not None:
            self.folding.close()
            self.folding = None
        self._left = {}

    def plan(self) -> list[DeduplicatorShare]:
        count = self.settings.staging_partitions
        ends = self._ends(self.settings.staging_topic, Deadline(CALL_S)) if self.bounded else {}
        self._given = ends
        known, self._left = self._left, {}
        if any(p not in known for p in range(count)):
            # Nothing flows while it is read.
            known = self._in_table() | known
        s = self.settings
        shares = [StagingPartition(partition=p, end=ends.get(p), snapshot=known[p]) for p in range(count)]
        return [
            DeduplicatorShare(
                consumer=for_plan(s, "destination", "consumer"),
                reader=for_plan(s, "destination", "consumer"),
                producer=for_plan(s, "destination", "producer"),
                group=s.deduplicator_group,
                partitions=[shares[i] for i in share],
            )
            for share in spread(count, self.lanes_wanted)
        ]

    def must_replan(self) -> bool:
        return False  # the staging partitions are fixed; new topics reach the lanes through the control topic

    def tick(self) -> None:
        """Give every source topic its destination as soon as the control topic names it; look again at what
        was refused."""
        now = ports.monotonic()
        again = now >= self._look_again_at
        if now < self._settle_at or (self._settled == self.control.state.position and not again):
            return
        position = self.control.state.position
        try:
            self.destinations.settle(again)
            self.letter_topic.settle(again)
            self.route_topics.settle(again)
            self.acls.settle(again)
            self._settled = position
            if again:
                self._look_again_at = now + self.settings.topic_refresh_interval_s
        except LinkRefused:
            raise  # without a right that all destinations need there is nothing to go on with
        except (KafkaException, VerbatimError) as error:
            log.warning("destination topics: %s", error)
            self._settle_at = now + SETTLE_AGAIN_S

    def _fold_due(self) -> bool:
        """Whether a fold is worth its while. Called by the thread that folds."""
        done = self.health.work.counts
        return ports.monotonic() - self._folded_at >= FOLD_S or any(
            done[what] - self._folded_with[what] >= most
            for what, most in (("bytes", FOLD_BYTES), ("mappings", FOLD_MAPPINGS))
        )

    def behind(self, rows: list[Row]) -> dict[str, Behind]:
        """By staging partition, as the group's offsets say, which a bounded run's deliveries commit at the
        end."""
        topic, deadline = self.settings.staging_topic, Deadline(CALL_S)
        group = self.settings.deduplicator_group
        config = self.settings.client_config("destination", "consumer")
        with contextlib.closing(clients.reader(config, group_id=group)) as reader:
            reached = {p: recovery.committed(reader, group, topic, p, deadline) or 0 for p in self._given}
        return {f"{topic}-{p}": Behind(reached[p], end) for p, end in self._given.items() if reached[p] < end}

    def caught_up(self, rows: list[Row]) -> int | None:
        # The lanes' last words, that a partition goes on above all, may have only just been written.
        lines = halted_lines(self.name, self.control.refresh(Deadline(CALL_S)), rows)
        if not lines and any(isinstance(row, Unfinished) for row in rows):
            return None
        self._folded(self.state.fold())
        for line in lines:
            tell_error(line)
        counters = self.report.totals.counts
        line = (
            f"deduplicator: caught up: {counters['records']} records delivered, "
            f"{counters['duplicates']} duplicates dropped, {len(lines)} partitions halted"
        )
        click.echo(said_of_link(line))
        return 3 if lines else 0

    def _in_table(self) -> dict[int, recovery.Snapshot]:
        """What the state table has of each staging partition. Takes over when the last fold was, too."""
        # Before the table is read: it is all that may have moved on meanwhile.
        begins = self._mapped_from()
        snapshot = self._snapshot()
        self._folded_at = max(self._folded_at, self._last_fold(snapshot))
        count = self.settings.staging_partitions
        reached: list[dict[PartitionId, int]] = [{} for _ in range(count)]
        pipelines: list[dict[PartitionId, int]] = [{} for _ in range(count)]
        for (cluster, topic_id, partition), state in snapshot.states.items():
            if cluster == self.link.source_cluster and not state.stale:
                reached[state.mappings_partition][topic_id, partition] = state.next
                if state.pipeline:
                    pipelines[state.mappings_partition][topic_id, partition] = state.pipeline
        return {
            p: recovery.Snapshot(
                snapshot.folded.get(p, 0),
                p not in snapshot.holes and begins.get(p, 0) <= snapshot.folded.get(p, 0),
                snapshot.staging.get(p),
                reached[p],
                pipelines[p],
            )
            for p in range(count)
        }

    def _last_fold(self, snapshot: Snapshot) -> float:
        """When the table was last folded into, by our clock. Without a table: never if there are mappings,
        else now."""
        now = ports.monotonic()
        if snapshot.updated is not None:
            return now - max(0.0, time.time() - snapshot.updated)
        return -math.inf if self._something_is_mapped() else now

    def _snapshot(self) -> Snapshot:
        try:
            return self.state.load()
        except StateError as error:
            # The mappings tell everything, as far back as they go; what they do not tell halts by name.
            log.error(
                "%s; going on from the mappings alone. Move the damaged table away to have it built anew",
                error,
            )
            return Snapshot()

    def _something_is_mapped(self) -> bool:
        """Or may be. If there is no table then, who led before may have died before the first fold: and so
        may this one, and the next."""
        try:
            return any(self._ends(self.settings.mappings_topic, Deadline(ASK_S)).values())
        except (KafkaException, VerbatimError) as error:
            log.info("the mappings' ends: %s", error)
            return True

    def _mapped_from(self) -> dict[int, int]:
        """Where the mappings begin by now, of the partitions whose leader tells."""
        try:
            return self._offsets(
                self.settings.mappings_topic, OffsetSpec.earliest(), Deadline(ASK_S), failed={}
            )
        except (KafkaException, VerbatimError) as error:
            log.info("where the mappings begin: %s", error)
            return {}

    def _ends(self, topic: str, deadline: Deadline) -> dict[int, int]:
        return self._offsets(topic, OffsetSpec.latest(), deadline)

    def _offsets(
        self,
        topic: str,
        spec: OffsetSpec,
        deadline: Deadline,
        failed: dict[PartitionName, str] | None = None,
    ) -> dict[int, int]:
        """Of the staging topic, or of another with as many partitions; `failed` as in `topics.offsets`."""
        specs = {(topic, p): spec for p in range(self.settings.staging_partitions)}
        found = topics.offsets(self.admin, specs, deadline, failed=failed)
        return {p: offset for (_, p), offset in found.items()}

    def _folded(self, result: FoldResult) -> None:
        """The table is on disk: what it says is delivered need not stay in staging."""
        self._folded_at, self._folded_with = ports.monotonic(), self.health.work.counts
        self.health.folds += 1
        try:
            control = self.control.refresh(Deadline(CALL_S))
            if control.deposed(self.name, self.term):
                return
            trim(self.admin, self.settings.staging_topic, limits(result.staging, control), Deadline(CALL_S))
        except (KafkaException, VerbatimError) as error:
            log.warning("staging is not trimmed this time: %s", error)

    def _fold_failed(self) -> None:
        self.health.folds_failed += 1
