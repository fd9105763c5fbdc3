"""The main loop of both applications: election, epochs, signals, exit codes. What is copied is left to the
subclasses."""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from common import log_lines, ports
from common.app import traces
from common.app.cluster_watch import ClusterWatch
from common.app.election import wait_for_lead
from common.app.instance import CALL_S
from common.app.role import Role
from common.app.signals import STOP_S
from common.app.work_report import WorkReport, halts_of
from common.config.credentials import for_plan, traces_for_plan
from common.errors import KafkaTimeout, LinkRefused, VerbatimError
from common.kafka.client.clients import admin
from common.link import identity
from common.link.control_kinds import EndEpoch
from common.link.lane_counters import CounterTail
from common.link.lane_plan import LanePlan, LaneShare
from common.link.lane_progress import Done, Refused, Row, decode
from common.link.lane_words import Heard
from common.ports import Deadline
from common.spark import java
from common.spark.lane_jobs import Behind, LaneJobs, Reports, first_line, missing_right
from common.spark.lane_task import Plan
from common.spark.session import jvm_ended

if TYPE_CHECKING:
    from common.config.live_reload import LiveFile
    from common.config.settings import Settings

log = logging.getLogger(__name__)

EPOCH_S = 3600.0
TURN_S = 0.25
"""How long a leader waits in one turn for the end of its epoch, which it hears of at once."""
RETRY_S = 600.0
"""An epoch lasts so long where a partition is halted, which the next one tries again."""
BEGIN_S = 60.0
"""Lanes that have said nothing for so long are not waited for."""
AT_ONCE_S = 0.5
"""Who does not lead so soon after Spark is up waits for another instance to stop, or for the session of one
that died to run out."""
FAILURES = 5
"""So many epochs that fail one after the other, without one that ends well between, end the application."""


def epoch_length(application: str, link: str, epoch: int, halted: bool) -> float:
    """Seconds: EPOCH_S, RETRY_S where a partition is halted, or up to a tenth less, different each time. An
    epoch's end stops the flow for a moment, and of two applications that started together all would come
    together."""
    longest = RETRY_S if halted else EPOCH_S
    return longest * (1 - 0.1 * zlib.crc32(f"{link}/{application}/{epoch}".encode()) / 2**32)


@dataclass
class Beginning:
    """Of an epoch whose lanes were asked for at a time, in seconds: what changes faster than they begin, the
    pipeline say, would keep everything from being copied."""

    asked_at: float
    heard_at: float | None = None
    """When one of them was first heard."""

    def heard(self, now: float) -> None:
        self.heard_at = now if self.heard_at is None else self.heard_at

    def is_over(self, now: float) -> bool:
        """Whether the epoch has gone on for as long as its lanes took to begin."""
        if self.heard_at is None:
            return now - self.asked_at >= BEGIN_S
        return now - self.heard_at >= min(self.heard_at - self.asked_at, BEGIN_S)


class Application(Role):
    """One instance of the replicator or the deduplicator. `run` returns the exit code."""

    def __init__(self, settings: Settings, until_caught_up: bool, live: LiveFile | None = None) -> None:
        super().__init__(settings, None if until_caught_up else live)
        self.bounded = until_caught_up
        self.source: AdminClient | None = None
        self.epoch = 0
        self.reports = Reports(self.term)
        self.lanes_running = 0
        """How many lanes the epoch that runs has: none where there is nothing to copy."""
        self._planned_lanes = 0
        """How many it was planned for, if there is enough for so many to do."""
        self.running = False
        """Whether an epoch runs."""
        self._beginning = Beginning(0.0)
        self.failures = 0
        """Epochs one after the other that failed, or in a bounded run left things as they were."""
        self._lanes_not_told = False
        """Whether the lanes of an epoch that failed must be told to end before there is another one."""
        self._behind: dict[str, Behind] = {}
        self.report = WorkReport(self.health)
        self.counters: CounterTail

    # running

    def run_beside(self) -> int:
        java.check()
        traces.must_be_had(self.settings)
        return super().run_beside()

    def _run(self) -> int:
        self.link, self.control = identity.prepare(self.settings, self.needs_source, Deadline(CALL_S))
        self._knows_clusters()
        clusters = {"target": self.settings.client_config("destination", "admin")}
        if self.needs_source:
            clusters["source"] = self.settings.client_config("source", "admin")
            self.source = admin(clusters["source"])
        watch = ClusterWatch(self.health, clusters)
        self._stand_for_election()
        try:
            self.counters = CounterTail(
                self.name,
                self.settings.positions_topic,
                self.settings.client_config("destination", "consumer"),
            )
            self.start_spark()
            leads = wait_for_lead(self.leadership, self.health, self.stopping, AT_ONCE_S)
            if not leads and not self.stopping.is_set():
                self.stand_by()
            while not self.stopping.is_set():
                if not wait_for_lead(self.leadership, self.health, self.stopping, meanwhile=self.follow_link):
                    break
                code = self._lead()
                if code is not None:
                    return code
            return 0
        except Exception as error:
            if not isinstance(error, VerbatimError) and (why := jvm_ended()) is not None:
                raise VerbatimError(why) from None
            raise
        finally:
            self.health.role = "stopping"
            watch.close()
            self.leadership.close()
            self.control.close()
            if hasattr(self, "counters"):
                self.counters.close()
            self.stop_spark()

    def _lead(self) -> int | None:
        """Lead until stopped, deposed or caught up: the exit code, or None to stand by again."""
        self._begin_term()
        log.info("%d lanes", self.lanes_wanted)
        self.reports = self.make_reports()
        self.running, self.failures, self._lanes_not_told, self._behind = False, 0, False, {}
        jobs = self.make_jobs()
        try:
            self.became_leader()
            return self._epochs_until_the_end(jobs)
        except LinkRefused:
            if self.epoch and jobs.active:
                self._end_epoch()  # so that the lanes end by themselves, before they are ended
            raise
        finally:
            jobs.close()
            self.stepped_down()
            self.report.leads_no_more()

    def _epochs_until_the_end(self, jobs: LaneJobs) -> int | None:
        replan_at = retry_at = 0.0
        while True:
            now = ports.monotonic()
            self.health.turned = now
            leading = self.leadership.poll(0.0)
            self._look_at_control()
            if self.stopping.is_set() or not leading or self._deposed():
                return self._stop_lanes(jobs)
            if not self.running:
                self._begin_epoch(jobs)
                replan_at = now + self.settings.topic_refresh_interval_s
                retry_at = now + RETRY_S
                continue
            wanted = self.lanes_wanted
            self.tick()
            self.show_link()
            if self._look_at_file() or self.lanes_wanted != wanted:
                replan_at = now
            of = self.term, self.epoch, self.lanes_running, self._beginning.heard_at
            if not self.bounded and (why := self.counters.silence(*of)) is not None:
                jobs.give_up(why)
            rows = self._ended_rows()
            if (running := self.counters.sums(self.term, self.epoch)) is not None:
                self.report.show_running(running)
                self._beginning.heard(now)
            if rows is not None:
                if (code := self._after_epoch(rows)) is not None:
                    return code
            elif not jobs.active:
                self._after_failure(jobs)
            elif now >= replan_at and (not self._runs_as_wanted() or self._beginning.is_over(now)):
                replan_at = now + self.settings.topic_refresh_interval_s
                if self._asks_for_replan():
                    self._end_epoch()
            elif now >= retry_at:
                # What halted before this epoch has made it a short one by itself.
                retry_at = now + RETRY_S
                if self._halted():
                    self._end_epoch()

    def _begin_epoch(self, jobs: LaneJobs) -> None:
        if self._lanes_not_told and not self._tell_end():
            return
        self.epoch += 1
        self._planned_lanes = self.lanes_wanted
        shares = self.plan()
        self.lanes_running = len(shares)
        if shares:
            jobs.submit([self.lane_plan(share, lane) for lane, share in enumerate(shares)])
        self.running, self._beginning = True, Beginning(ports.monotonic())

    def _runs_as_wanted(self) -> bool:
        return self.lanes_running > 0 and self._planned_lanes == self.lanes_wanted

    def lane_plan(self, share: LaneShare, lane: int) -> Plan:
        """What a lane of this epoch is to do, as JSON."""
        s = self.settings
        return LanePlan(
            application=self.name,
            link=s.application_name,
            instance=self.instance,
            term=self.term,
            epoch=self.epoch,
            epoch_s=epoch_length(self.name, s.application_name, self.epoch, self._halted()),
            lane=lane,
            bounded=self.bounded,
            cluster=self.link.source_cluster,
            target_cluster=self.link.target_cluster,
            provenance=s.provenance_headers,
            log_level=s.log_level,
            log_format=s.log_format,
            log_link=log_lines.link(),
            staging_topic=s.staging_topic,
            staging_partitions=s.staging_partitions,
            positions_topic=s.positions_topic,
            control_topic=s.control_topic,
            mappings_topic=s.mappings_topic,
            control_consumer=for_plan(s, "destination", "consumer"),
            control_producer=for_plan(s, "destination", "producer"),
            control_admin=for_plan(s, "destination", "admin"),
            traces=traces_for_plan(s),
        ).with_share(share)

    def _tell_end(self) -> bool:
        """Tell the lanes of an epoch that failed to end, and whether that is safe in the control topic.

        Before the next epoch begins, like a leader's record before its term: one lane fails, the others go
        on, out of Spark's reach perhaps; the next epoch's lanes fence them, they take it for a time-out and
        fence in turn, for as long as an epoch lasts. Told, they find it when they look before they fence
        (common/app/lane_term.py:must_lead).
        """
        try:
            self._append_end(Deadline(CALL_S))
        except (KafkaException, KafkaTimeout) as error:
            log.warning("the next epoch waits until the control topic takes the end of the last: %s", error)
            ports.sleep(1.0)
            return False
        self._lanes_not_told = False
        return True

    def _ended_rows(self) -> list[Row] | None:
        """What the lanes of the epoch that runs reported, if it has ended; waits a moment for that."""
        if self.bounded and not self.lanes_running:
            return []
        said = self.reports.ended(self.epoch, TURN_S)
        return None if said is None else [decode(text) for text in said]

    def _after_epoch(self, rows: list[Row]) -> int | None:
        """The exit code of a bounded run that has caught up; None to go on."""
        self.running = False
        self._count(rows)
        if not self.bounded:
            self.failures = 0
            return None
        before, self._behind = self._behind, self.behind(rows)
        if not self._behind:
            return self.caught_up(rows)
        if {name: at.reached for name, at in before.items()} != {
            n: at.reached for n, at in self._behind.items()
        }:
            self.failures = 0
            return None
        name, (reached, end) = min(self._behind.items())
        self._fails(f"{len(self._behind)} partitions are not caught up, {name} is at {reached} of {end}")
        return None

    def _after_failure(self, jobs: LaneJobs) -> None:
        self.running, self._lanes_not_told = False, True
        self.report.epoch_failed()
        if denied := missing_right(jobs.failure()):
            raise LinkRefused(f"the {self.name} may not do all that it must: {denied}")
        self._fails(first_line(jobs.failure()))

    def _fails(self, why: str) -> None:
        """Count an epoch that came to nothing, and wait for a while. Raises VerbatimError after FAILURES of
        them."""
        self.failures += 1
        log.error("epoch %d failed (%d of %d): %s", self.epoch, self.failures, FAILURES, why)
        if self.failures >= FAILURES:
            raise VerbatimError(f"the {self.name} failed {FAILURES} times in a row: {why}")
        ports.sleep(min(5.0, 0.5 * 2**self.failures))

    def _halted(self) -> bool:
        return bool(halts_of(self.name, self.control.state))

    def _asks_for_replan(self) -> bool:
        try:
            return self._planned_lanes != self.lanes_wanted or self.must_replan()
        except (KafkaException, KafkaTimeout) as error:
            log.warning("looking for new topics: %s", error)
            return False

    def _end_epoch(self) -> None:
        if not self.lanes_running:
            self.running = False
            return
        try:
            self._append_end(Deadline(3.0))
        except (KafkaException, KafkaTimeout, LinkRefused) as error:
            log.warning("the lanes can't be told to finish: %s", error)

    def _append_end(self, deadline: Deadline) -> None:
        self.control.append(EndEpoch(self.name, self.term, self.epoch), deadline)

    def _stop_lanes(self, jobs: LaneJobs) -> int | None:
        """End the epoch that runs, and wait for its lanes: the exit code, or None to stand by again."""
        deadline = Deadline(STOP_S - 3.0)
        if self.running:
            self._end_epoch()
        while self.running and jobs.active and not deadline.passed():
            self.leadership.poll(0.0)
            if (rows := self._ended_rows()) is not None:
                self._count(rows)
                break
        return 0 if self.stopping.is_set() else None

    def _look_at_file(self, at_once: bool = False) -> bool:
        before = self.settings
        changed = super()._look_at_file(at_once)
        if changed and not at_once and self.settings.log_level != before.log_level:
            # The lanes are told by their next plan.
            self._end_epoch()
        return changed

    def _deposed(self) -> bool:
        return self.control.state.deposed(self.name, self.term)

    def heard(self) -> Heard:
        return self.counters.heard

    def show_link(self) -> None:
        super().show_link()
        self.look_at_spark()

    def listen(self) -> None:
        self.counters.listen()

    def _look_at_control(self) -> None:
        """Take in the control topic, and show what it says."""
        try:
            self.report.show_halts(self.control.poll())
        except KafkaException as error:
            log.warning("reading %s: %s", self.settings.control_topic, error)

    def _count(self, rows: list[Row]) -> None:
        """Add up what an epoch that ended did. Raises LinkRefused where the next would end the same way."""
        for row in rows:
            if isinstance(row, Refused):
                raise LinkRefused(row.detail)
        self.report.epoch_ended(row.work for row in rows if isinstance(row, Done))
