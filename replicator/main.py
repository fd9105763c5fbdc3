"""The application `replicator`: phase 1 of a link. Its command line is in command.py."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import click

from common.app.application import Application
from common.app.instance import CALL_S
from common.app.work_report import halted_lines, halts_of
from common.link.lane_progress import FrameRefused, PartitionHalted, PartitionPaused, Row, Unfinished
from common.log_lines import said_of_link, tell_error
from common.ports import Deadline
from common.spark.lane_jobs import Behind
from replicator.driver.heartbeats import Heartbeats
from replicator.driver.pipeline_file import PipelineFile
from replicator.driver.planner import Planner
from replicator.lane import lane
from replicator.lane_plan import ReplicatorShare

if TYPE_CHECKING:
    from common.config.live_reload import LiveFile
    from common.config.settings import Settings
    from common.link.throttling import Steering

log = logging.getLogger(__name__)


class Replicator(Application):
    """Reads source topics and appends frames to the staging topic, at least once and in order."""

    name = "replicator"
    needs_source = True
    run_lane = staticmethod(lane.run)
    planner: Planner
    heartbeats: Heartbeats | None = None
    _shown: tuple[Steering, list[str]] | None = None

    def __init__(self, settings: Settings, until_caught_up: bool, live: LiveFile | None = None) -> None:
        """Raises SettingsError."""
        super().__init__(settings, until_caught_up, live)
        self.pipeline = PipelineFile(settings)

    @classmethod
    def lane_modules(cls, settings: Settings) -> list[str]:
        pipeline = ["common.pipeline.definition", "common.pipeline.engine"] if settings.pipeline else []
        return [*super().lane_modules(settings), *pipeline]

    def _look_at_file(self, at_once: bool = False) -> bool:
        pipeline = not self.bounded and self.pipeline.changed(at_once)
        return super()._look_at_file(at_once) or pipeline

    def take_over(self, settings: Settings) -> bool:
        return not hasattr(self, "planner") or self.planner.take_over(settings)

    def became_leader(self) -> None:
        if self.settings.heartbeats_interval_s and not self.bounded:
            self.heartbeats = Heartbeats(self.settings, self.control, self.health, self.instance)
        self.planner = Planner(self.settings, self.control, self.bounded, self.source, pipeline=self.pipeline)

    def plan(self) -> list[ReplicatorShare]:
        return self.planner.plan(self.lanes_wanted)

    def must_replan(self) -> bool:
        return self.planner.changed()

    def stepped_down(self) -> None:
        if self.heartbeats is not None:
            self.heartbeats.close()
            self.heartbeats = None
        if hasattr(self, "planner"):
            self.planner.close()

    def tick(self) -> None:
        """Show what operators have paused or limited; say it once."""
        state = self.control.state
        topics = [name for name in state.running_topics() if self.settings.selects(name)]
        if self._shown is not None and self._shown[0] is state.steering and self._shown[1] == topics:
            return
        self._shown = (state.steering, topics)
        promoted = sorted(state.steering.promotions)
        paused = [
            name for name in topics if name not in promoted and state.steering.paused_by(name) is not None
        ]
        limits = {name: limit for name in topics if (limit := state.steering.limit_of(name))}
        if state.steering.link_limit:
            limits["*"] = state.steering.link_limit
        before = set(self.health.paused)
        for name in paused:
            if name not in before:
                log.warning("topic %s is paused, until `verbatim resume`", name)
        for name in sorted(before - set(paused)):
            log.info("topic %s is paused no longer", name)
        for name in sorted(set(promoted) ^ set(self.health.promoted)):
            said = "promoted: it is not copied any more" if name in promoted else "copied again"
            log.warning("topic %s is %s", name, said)
        if limits != self.health.limits:
            shown = [f"{name}: {limit}" for name, limit in sorted(limits.items())]
            log.info("rate limits: %s", "; ".join(shown) or "none")
        self.health.paused, self.health.limits, self.health.promoted = paused, limits, promoted

    def _count(self, rows: list[Row]) -> None:
        super()._count(rows)
        for row in rows:
            if isinstance(row, FrameRefused):
                self.planner.leave_out((row.topic_id, row.partition))

    def behind(self, rows: list[Row]) -> dict[str, Behind]:
        """By source partition, as the positions topic says. What is halted or paused is left out: `caught_up`
        tells of it."""
        still = set(halts_of(self.name, self.control.refresh(Deadline(CALL_S))))
        still |= {
            (row.topic, row.partition) for row in rows if isinstance(row, PartitionHalted | PartitionPaused)
        }
        return {
            f"{topic}-{p}": Behind(*at)
            for (topic, p), at in self.planner.stand().items()
            if (topic, p) not in still and at[0] < at[1]
        }

    def caught_up(self, rows: list[Row]) -> int | None:
        if any(isinstance(row, Unfinished) for row in rows):
            return None
        # The lanes' last words, that a partition goes on above all, may have only just been written.
        state = self.control.refresh(Deadline(CALL_S))
        lines = halted_lines(self.name, state, rows)
        paused = Counter(
            row.topic
            for row in rows
            if isinstance(row, PartitionPaused) and row.topic not in state.steering.promotions
        )
        behind = [
            f"{topic} is paused, {count} of its partitions not caught up; `verbatim resume {topic}`"
            for topic, count in sorted(paused.items())
        ]
        for line in lines + behind:
            tell_error(line)
        counters = self.report.totals.counts
        line = (
            f"replicator: caught up: {counters['records']} records in "
            f"{counters['frames']} frames staged, {len(lines)} partitions halted"
            + (f", {len(paused)} topics paused" if paused else "")
        )
        click.echo(said_of_link(line))
        return 3 if lines or paused else 0
