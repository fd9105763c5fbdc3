"""The main loop of `offsets`: election, a round every OFFSETS_INTERVAL, signals, exit codes. What a round
finds and does is elsewhere."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from common.app.cluster_watch import ClusterWatch
from common.app.election import TICK_S, wait_for_lead
from common.app.instance import CALL_S, Instance
from common.errors import Deposed, GroupRefused, LinkRefused, VerbatimError
from common.kafka.client import clients, topics
from common.kafka.errors import kafka_error, retriable
from common.link import control_kinds as kinds
from common.link import identity
from common.link.control_records import HELD, MOVING
from common.link.lane_work import Work
from common.ports import Deadline
from offsets.group_offsets import GroupKey
from offsets.group_states import group_states
from offsets.groups import shown
from offsets.survey import Row, Survey, Unmoved, refuse_provenance
from offsets.writer import RecordLog, write_offsets

if TYPE_CHECKING:
    from common.config.live_reload import LiveFile
    from common.config.settings import Settings

log = logging.getLogger(__name__)

NAME = "offsets"
ROUND_S = 30.0
"""What a round found is not written any more after so long: the groups may have moved since."""


class Service(Instance):
    """One instance. `run` returns the exit code; `once` ends after the first round."""

    name = NAME
    survey: Survey

    def __init__(self, settings: Settings, once: bool, live: LiveFile | None = None) -> None:
        refuse_provenance(settings)
        super().__init__(settings, None if once else live)
        self.once = once
        self.rows: list[Row] = []
        """What became of each partition of each group in the last round."""
        self.unmoved: list[Unmoved] = []
        """Groups of which nothing was translated."""
        self.totals: Counter[str] = Counter()
        self._said: dict[GroupKey, str] = {}
        self._taken: set[str] = set()
        """Groups that `verbatim move-group` has taken, as the round goes by it."""
        self._let_go_at = -1
        """The newest control record by which a group was taken from here, and that is answered."""

    def run_within(self) -> int:
        """One round for a command that has its own signals, serves no health and sends nothing."""
        return self._run()

    def _run(self) -> int:
        s = self.settings
        self.link, self.control = identity.prepare(s, self.once, Deadline(CALL_S))
        make_records_topic(s, clients.admin(s.client_config("destination", "admin")), Deadline(CALL_S))
        self._knows_clusters()
        self._stand_for_election()
        self.survey = Survey(s, self.link, self.control)
        clusters = {
            "source": s.client_config("source", "admin"),
            "target": s.client_config("destination", "admin"),
        }
        watch = ClusterWatch(self.health, clusters)
        try:
            while wait_for_lead(self.leadership, self.health, self.stopping, meanwhile=self.follow_link):
                try:
                    self._lead()
                except Deposed as deposed:
                    self.health.groups = {}
                    log.info("%s", deposed)
                    continue
                if self.once or self.stopping.is_set():
                    return 0
            return 0
        finally:
            self.health.role = "stopping"
            watch.close()
            self.leadership.close()
            self.survey.close()

    def _lead(self) -> None:
        """Rounds until stopped, once, or deposed (Deposed)."""
        self._begin_term()
        record_log: RecordLog | None = None
        try:
            while not self.stopping.is_set():
                at = time.monotonic() + self.settings.offsets_interval_s
                try:
                    self._let_go()
                    if record_log is not None and self._taken != self._taken_now():
                        # Of a group that comes back, or is gone, another one has written the records.
                        record_log.close()
                        record_log = None
                    if record_log is None:
                        if not self.survey.load(self._go_on):
                            continue
                        record_log = RecordLog(self.settings, self.survey.records)
                    self._taken = self._taken_now()
                    if not self._round(record_log):
                        continue
                except (KafkaException, VerbatimError) as error:
                    self._ride_out(error)
                    if record_log is not None and self.survey.source_reached:
                        # The target failed, perhaps while records were on their way: read them again.
                        record_log.close()
                        record_log = None
                if self.once:
                    return
                while time.monotonic() < at and not self.stopping.is_set():
                    self._go_on()
                    self._look_at_file()
                    self.follow_link()
                    self.leadership.poll(TICK_S)
                    if self._asked():
                        break
        finally:
            if record_log is not None:
                record_log.close()

    def take_over(self, settings: Settings) -> bool:
        self.survey.settings = settings
        return True

    def _go_on(self) -> bool:
        """Said often, also while mappings are read: alive, and still a member of the election. Raises
        Deposed."""
        self.health.turned = time.monotonic()
        self.show_link()
        if not self.leadership.poll(0.0) and not self.stopping.is_set():
            raise Deposed("another instance leads now")
        return not self.stopping.is_set()

    def _taken_now(self) -> set[str]:
        return set(self.control.state.group_moves)

    def _asked(self) -> dict[str, int]:
        """Groups that `verbatim move-group` takes, and that it is not answered of: the record's offset."""
        moves = self.control.state.group_moves
        return {
            group: move.at
            for group, move in moves.items()
            if move.state == MOVING and move.at > self._let_go_at
        }

    def _let_go(self) -> None:
        """Answer that nothing is written of these groups any more: no round is under way, and the next one
        knows of it."""
        if asked := self._asked():
            answers = [kinds.GroupMove(group, HELD, at) for group, at in asked.items()]
            self.control.append_all(answers, Deadline(CALL_S))
            self._let_go_at = max(asked.values())

    def _ride_out(self, error: Exception) -> None:
        reason = kafka_error(error)
        passing = (
            error.retriable if isinstance(error, VerbatimError) else retriable(reason) if reason else False
        )
        if self.once or not passing:
            raise error
        which = "" if self.survey.source_reached else "the source can't be reached: "
        log.warning("this round ends here: %s%s", which, error)

    def _round(self, record_log: RecordLog) -> bool:
        """False where it was in vain: begin anew, with what is on record."""
        deadline = Deadline(ROUND_S)
        found = self.survey.look()
        if (refused := refusal(found.rows, self.settings)) is not None:
            # Nothing is written but the records that say why.
            record_log.write(((row.key, row.record) for row in refused[1]), deadline)
            raise GroupRefused(refused[0])
        self._go_on()
        if self.control.refresh(deadline).deposed(NAME, self.term):
            raise Deposed("another instance leads now")
        if self._taken_now() != self._taken:
            # One was taken from here, or given back, after it was looked at.
            return False
        self.unmoved = found.unmoved
        # What is on record of a group that is taken is not ours to say.
        taken = [row for row in found.rows if row.key.group in self._taken]
        ours = [row for row in found.rows if row.key.group not in self._taken]
        self.rows = write_offsets(ours, self.survey.target, record_log, deadline) + taken
        record_log.write(((key, None) for key in found.gone), deadline)
        self._tell()
        return True

    def _tell(self) -> None:
        """Counters, and one line for each group's partition that is left alone for a new reason."""
        outcomes = Counter(row.record.outcome for row in self.rows)
        self.totals["offsets_written"] += outcomes["written"]
        self.totals["rounds"] += 1
        self.health.work = Work(self.totals)
        now_ms = int(time.time() * 1000)
        self.health.groups = group_states(self.rows, self.unmoved, self.health.groups, now_ms)
        said = {row.key: row.record.outcome for row in self.rows}
        for key, outcome in said.items():
            if outcome not in ("written", "in-step") and self._said.get(key) != outcome:
                where = f"{key.topic}-{key.partition}" + (f" in {key.route}" if key.route else "")
                log.info("group %s, %s: %s", shown(key.group), where, outcome)
        for left in self.unmoved:
            key = GroupKey(left.group, "", 0)
            said[key] = left.detail
            if self._said.get(key) != left.detail:
                log.error("group %s is not moved (%s): %s", shown(left.group), left.outcome, left.detail)
        self._said = said


def make_records_topic(settings: Settings, admin: AdminClient, deadline: Deadline) -> None:
    """Make the group-offsets topic where it is missing. Raises LinkRefused."""
    name = settings.group_offsets_topic
    identity.make_topics(settings, admin, {name: (1, {"cleanup.policy": "compact"})}, deadline)
    if topics.not_writable(admin, [name], deadline):
        raise LinkRefused(f"topic {name}: not allowed to write to it; grant WRITE")


def refusal(rows: list[Row], settings: Settings) -> tuple[str, list[Row]] | None:
    """Why nothing may be written, as ON_ACTIVE_GROUP and ON_SEVERAL_TARGETS have it, and because of which
    rows; or None."""
    checks = (
        ("active", settings.on_active_group, "has members at the other side (ON_ACTIVE_GROUP=fail): stop them, or skip it"),
        ("several-targets", settings.on_several_targets,
         "has offsets in a partition whose records are in several destinations (ON_SEVERAL_TARGETS=fail): skip it, or leave it out"),
    )  # fmt: skip
    for outcome, setting, what in checks:
        refused = [row for row in rows if row.record.outcome == outcome]
        if setting == "fail" and refused:
            key = refused[0].key
            return f"group {shown(key.group)}, {key.topic}-{key.partition}: it {what}", refused
    return None


def read_only(settings: Settings, needs_source: bool) -> Survey:
    """A survey of a link that is there, with all it needs read. Writes nothing. Raises LinkRefused where
    there is no such link."""
    refuse_provenance(settings)
    found, control = identity.prepare(settings, needs_source, Deadline(CALL_S), make=False)
    survey = Survey(settings, found, control)
    survey.load()
    return survey
