"""What the replicator and the deduplicator are to their main loop: what each does when it leads, and how its
lanes run on Spark."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from common import ports
from common.app import traces
from common.app.instance import Instance
from common.link.lane_plan import LaneShare
from common.link.lane_progress import Row
from common.spark.lane_count import LaneCount
from common.spark.lane_jobs import Behind, LaneJobs, Reports, rehearse
from common.spark.lane_task import RunLane
from common.spark.session import build_session, lanes_of, stop_session
from common.spark.usage import usage

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

LOOK_S = 10.0


class Role(Instance, ABC):
    """What the main loop asks of an application."""

    extra_slots = 0
    uses_delta = False
    run_lane: RunLane
    spark: SparkSession
    shared: SparkSession | None = None
    """The session that instances of several links share; None: this instance starts its own."""
    shared_lanes: Callable[[], int]
    """How many lanes this one has of it at the moment."""
    lanes_wanted = 1
    """How many lanes the next epoch has, if there is enough for so many to do."""
    reports: Reports
    _lane_count: LaneCount
    _looked_s = -math.inf

    @abstractmethod
    def became_leader(self) -> None:
        """This instance leads from now on: do what must be done before the first plan."""

    @abstractmethod
    def plan(self) -> Sequence[LaneShare]:
        """The lanes of the next epoch, without what all lanes' plans have in common."""

    @abstractmethod
    def must_replan(self) -> bool:
        """Asked every TOPIC_REFRESH_INTERVAL while lanes run: whether there is something new to plan for."""

    @abstractmethod
    def behind(self, rows: list[Row]) -> dict[str, Behind]:
        """In a bounded run, after an epoch: by name what is not copied up to the end that the plan gave, and
        not known to stand still for a reason. Asked of Kafka: what the lanes said counts for those reasons
        alone."""

    @abstractmethod
    def caught_up(self, rows: list[Row]) -> int | None:
        """In a bounded run, after an epoch that left nothing behind: the exit code, or None to go on with
        another epoch."""

    def tick(self) -> None:
        """Called several times a second while leading."""

    def stepped_down(self) -> None:
        """This instance leads no longer, or stops."""

    # on Spark

    def start_spark(self) -> None:
        """Start the session, and count the lanes it has slots for."""
        if self.shared is not None:
            self.spark, self.lanes_wanted = self.shared, max(1, self.shared_lanes())
            return
        self.spark = self.session(self.settings, self.settings.parallelism)
        self.lanes_wanted = lanes_of(self.spark)
        self._lane_count = LaneCount(self.lanes_wanted, self.settings.parallelism, self.extra_slots)

    @classmethod
    def session(cls, settings: Settings, lanes: int | None) -> SparkSession:
        """Start one for so many lanes of this application; None: as many as the slots allow."""
        return build_session(
            settings,
            lanes=lanes,
            extra_slots=cls.extra_slots,
            delta=cls.uses_delta,
            worker_imports=",".join([cls.run_lane.__module__, *cls.lane_modules(settings)]),
        )

    @classmethod
    def lane_modules(cls, settings: Settings) -> list[str]:
        """What lanes import only where these settings ask for it, to be imported ahead."""
        return traces.modules(settings)

    def look_at_spark(self) -> None:
        """Show what Spark runs tasks with, each LOOK_S, and go by it."""
        now = ports.monotonic()
        if not hasattr(self, "spark") or now - self._looked_s < LOOK_S:
            return
        self._looked_s = now
        self.health.spark = found = usage(self.spark)
        if found is not None and (lanes := self._lanes_now(found.slots, now)) != self.lanes_wanted:
            self.lanes_wanted = lanes
            log.info(
                "%d lanes from the next epoch on: %d slots, %d executors",
                self.lanes_wanted,
                found.slots,
                found.executors,
            )

    def _lanes_now(self, slots: int, now: float) -> int:
        if self.shared is not None:
            # Who has none is told to end.
            return max(1, self.shared_lanes())
        self._lane_count.follow(slots, now)
        return self._lane_count.lanes

    def stand_by(self) -> None:
        """Another instance leads: be ready to take over."""
        rehearse(self.spark, f"{self.name}-rehearsal", type(self).run_lane, self.lanes_wanted)

    def stop_spark(self) -> None:
        if self.shared is None and hasattr(self, "spark"):
            stop_session(self.spark, timeout_s=3.0)

    def make_jobs(self) -> LaneJobs:
        """What runs the lanes, and reports to this term."""
        return LaneJobs(self.spark, self.name, type(self).run_lane, self.reports.put)

    def make_reports(self) -> Reports:
        """For the term that begins."""
        return Reports(self.term)
