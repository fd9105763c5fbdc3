"""Both applications as they are, but for Spark: the driver's loop, planner, lanes and deliveries of
production, run by the scheduler.

What Spark does (running a lane, and again when it dies, sometimes beside one that lives on) and what Delta
does (a commit that fails when M has moved) is played here.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from common.app.application import Application
from common.app.election import wait_for_lead
from common.errors import StateError, VerbatimError
from common.link.control_log import ControlLog
from common.link.identity import Link
from common.link.lane_work import Work
from common.link.offset_mappings import decode
from common.spark.lane_jobs import Progress, Reports
from common.spark.lane_task import Plan, RunLane
from deduplicator.driver.acl_replication import AclReplication
from deduplicator.driver.destinations import Destinations
from deduplicator.driver.letter_topic import LetterTopic
from deduplicator.driver.route_topics import RouteTopics
from deduplicator.lane_plan import DeduplicatorShare
from deduplicator.main import Deduplicator
from deduplicator.state.snapshot import FoldResult, PartitionState, Snapshot
from replicator.main import Replicator
from tests.simulation.scheduler import Process, Task

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass
class Attempt:
    """One try of Spark's to run a lane."""

    lane: int
    plan: str
    process: Process
    task: Task


class Query:
    """Stands in for common.spark.lane_jobs.LaneJobs. Plans travel as JSON, each try of a lane is a process
    of its own."""

    def __init__(
        self, world: World, name: str, run_lane: RunLane, on_epoch: Callable[[list[Progress]], None]
    ) -> None:
        self.world = world
        self.name = name
        self.run_lane = run_lane
        self.on_epoch = on_epoch
        self.attempts: dict[int, Attempt] = {}
        self.rows: dict[int, list[Progress]] = {}
        self.lanes = 0
        self.closed = False
        self.active = True

    def failure(self) -> str | None:
        return None

    def submit(self, lanes: list[Plan]) -> None:
        self.lanes, self.rows, self.attempts = len(lanes), {}, {}
        for number, plan in enumerate(lanes):
            self.attempt(number, json.dumps(plan))

    def attempt(self, lane: int, plan: str, again: bool = False) -> None:
        process = self.world.process(f"{self.name} lane {lane}")
        rows: list[Progress] = []
        submitted = self.rows

        def run() -> None:
            given = json.loads(plan)
            rows.extend(
                Progress(given["term"], given["epoch"], said)
                for said in self.run_lane(given | {"again": again})
            )
            if self.rows is submitted and lane not in submitted:
                submitted[lane] = rows
                if len(submitted) == self.lanes:
                    self.on_epoch([row for n in sorted(submitted) for row in submitted[n]])

        task = self.world.scheduler.spawn(process, process.name, run)
        self.attempts[lane] = Attempt(lane, plan, process, task)

    def look_after(self) -> None:
        """Run a lane again whose process has died, or that has failed."""
        for lane, attempt in list(self.attempts.items()):
            if lane in self.rows or attempt.task.is_alive():
                continue
            error = attempt.task.error
            if error is not None and not isinstance(error, VerbatimError | KafkaException):
                raise error
            attempt.process.alive = False
            if not self.closed:
                self.attempt(lane, attempt.plan, again=True)

    def lose(self, lane: int) -> Process:
        """Spark takes a task for lost and runs it again, while it goes on."""
        old = self.attempts[lane]
        self.attempt(lane, old.plan, again=True)
        return old.process

    def stop(self) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True
        for attempt in self.attempts.values():
            self.world.kill(attempt.process)


class Leadership:
    """Stands in for common.app.election.Leadership: the partition goes to who asks when its holder is dead or
    does not answer."""

    def __init__(self, world: World, application: str, process: Process) -> None:
        self.world = world
        self.application = application
        self.process = process
        self.leading = False

    def poll(self, timeout_s: float = 0.0) -> bool:
        self.world.scheduler.wait(timeout_s)
        holder = self.world.leaders.get(self.application)
        if holder is None or not holder.alive or (holder.paused and holder is not self.process):
            self.world.leaders[self.application] = self.process
        self.leading = self.world.leaders.get(self.application) is self.process
        return self.leading

    def close(self) -> None:
        if self.world.leaders.get(self.application) is self.process:
            del self.world.leaders[self.application]


class Waited(queue.SimpleQueue[Any]):
    """A queue that waits as the scheduler lets it."""

    def __init__(self, world: World) -> None:
        self.world = world

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if timeout:
            self.world.scheduler.wait(timeout, lambda: not self.empty())
        return self.get_nowait()


class NoCounters:
    """Lanes are heard as soon as they were asked for: what they copy is in the world itself."""

    def sums(self, term: int, epoch: int) -> Work:
        return Work()

    def silence(self, *of: object) -> None:
        """None of them hangs."""


@dataclass
class Table:
    """The Delta state table: what is folded, in one commit, which fails when M has moved since the fold
    began."""

    world: World
    folded: dict[int, int] = field(default_factory=dict)
    staging: dict[int, int] = field(default_factory=dict)
    states: dict[tuple[str, str, int], PartitionState] = field(default_factory=dict)
    last: dict[tuple[str, str, int], int] = field(default_factory=dict)
    holes: dict[int, int] = field(default_factory=dict)
    exists: bool = False
    compares = True

    def load(self) -> Snapshot:
        self.world.scheduler.point()
        states = {
            key: s if self.last[key] >= self.holes.get(s.mappings_partition, 0) else _stale(s)
            for key, s in self.states.items()
        }
        updated = 0.0 if self.exists else None
        return Snapshot(self.exists, dict(self.folded), dict(self.staging), states, dict(self.holes), updated)

    def fold(self) -> FoldResult:
        for _ in range(3):
            try:
                return self._fold()
            except StateError:
                self.world.scheduler.sleep(0.2)
        raise StateError("the fold began from another M than the table has now")

    def _fold(self) -> FoldResult:
        scheduler, topic = self.world.scheduler, self.world.settings.mappings_topic
        expected = {p: self.folded.get(p, 0) for p in range(self.world.settings.staging_partitions)}
        scheduler.point()
        read: dict[int, tuple[int, list[Any]]] = {}
        for p, start in expected.items():
            log = self.world.target.log(topic, p)
            entries, end = log.read(max(start, log.start), 1 << 30, True)
            read[p] = (max(log.start, start), entries)
            read[p] = (end, entries)
            if log.start > start:
                self.holes[p] = max(self.holes.get(p, 0), log.start)
        scheduler.point()
        if self.compares and any(self.folded.get(p, 0) != m for p, m in expected.items()):
            self.world.visited("a fold found that M had moved")
            raise StateError("the fold began from another M than the table has now")
        reached: dict[int, int] = {}
        for p, (end, entries) in read.items():
            for entry in entries:
                m = decode(entry.value)
                key = (m.cluster, m.topic_id, m.partition)
                self.states[key] = PartitionState(
                    m.next,
                    m.topic,
                    m.destination_topic,
                    m.destination_partition,
                    p,
                    0,
                    0,
                    0,
                    False,
                    m.pipeline,
                )
                self.last[key] = entry.offset
                self.staging[p] = reached[p] = m.staging_offset
            self.folded[p] = end
        self.exists = True
        return FoldResult(expected, dict(self.folded), reached, 0, {}, 1)

    def lose(self) -> None:
        self.folded, self.staging, self.states, self.last, self.holes = {}, {}, {}, {}, {}
        self.exists = False


def _stale(s: PartitionState) -> PartitionState:
    return PartitionState(
        s.next, s.topic, s.destination_topic, s.destination_partition, s.mappings_partition, 0, 0, 0, True
    )


class Simulated(Application):
    """Mixed into an application: its world instead of Spark and the election."""

    world: World
    process: Process
    query: Query

    def main(self) -> None:
        s = self.settings
        self.link = Link(self.world.source.name, self.world.target.name, self.world.source.name, True)
        self.control = ControlLog.of(s)
        self.leadership = Leadership(self.world, self.name, self.process)  # type: ignore[assignment]
        self.counters = NoCounters()  # type: ignore[assignment]
        self.lanes_wanted = self.world.lanes
        while not self.stopping.is_set() and wait_for_lead(self.leadership, self.health, self.stopping):
            self._lead()

    def show_link(self) -> None:
        """Nobody looks."""

    def make_reports(self) -> Reports:
        return Reports(self.term, Waited(self.world))

    def make_jobs(self) -> Any:
        self.query = Query(self.world, self.name, type(self).run_lane, self.reports.put)
        self.world.queries.append(self.query)
        return self.query


class SimulatedReplicator(Simulated, Replicator):
    """The replicator without Spark."""


class SimulatedDeduplicator(Simulated, Deduplicator):
    """The deduplicator without Spark; its state is folded by a task."""

    def became_leader(self) -> None:
        self.state = self.world.table  # type: ignore[assignment]
        self.destinations = Destinations(self.settings, self.link, self.control)
        self.destinations.settle(again=True)
        self.letter_topic = LetterTopic(self.settings, self.control)
        self.letter_topic.settle(again=True)
        self.route_topics = RouteTopics(self.settings, self.link, self.control)
        self.route_topics.settle(again=True)
        self.acls = AclReplication(self.settings, self.control)
        term = self._folds = object()

        def fold() -> None:
            while self._folds is term:
                self.world.scheduler.sleep(self.world.fold_s)
                try:
                    self._folded(self.world.table.fold())
                except StateError:
                    continue

        self.world.scheduler.spawn(self.process, "state", fold)

    def plan(self) -> list[DeduplicatorShare]:
        lanes = super().plan()
        if any(
            share.snapshot.folded > self.world.table.folded.get(share.partition, 0)
            for lane in lanes
            for share in lane.partitions
        ):
            self.world.visited("began with what an owner left")
        return lanes

    def stepped_down(self) -> None:
        self.folding = None
        super().stepped_down()
