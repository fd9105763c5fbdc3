"""A cutover but for what it writes, while producers and consumers go on: what would stop it, and how long it
would take. Writes nothing. Options and output are verbatim/commands/cutover.py's part.

It looks at what a cutover looks at, by the same code, and does not stop at the first doubt. What comes from
producers and consumers that still run is none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from common.errors import VerbatimError
from common.kafka.client import topics
from common.partitions import PartitionId
from common.ports import Deadline
from offsets.groups import shown
from offsets.service import NAME as OFFSETS
from offsets.service import make_records_topic
from offsets.survey import Row, Survey
from verbatim.moves import cutover_rules as rules
from verbatim.moves import rehearsal_rules
from verbatim.moves.cutover import CALL_S, Cutover, Options
from verbatim.moves.group_rules import is_behind
from verbatim.moves.link_progress import Link, Standings
from verbatim.moves.steps import LOOK_S, Doubt, Step, listed
from verbatim.plan.dry_run_clients import PretendingAdmin
from verbatim.verify.link import verify_link

if TYPE_CHECKING:
    from common.config.settings import Settings

ELECTION_S = 3.0
"""What the first member of a group waits for (group.initial.rebalance.delay.ms): a round of `offsets` begins
with an election."""


@dataclass(frozen=True, slots=True)
class Doubted:
    """What would stop a cutover, and at which step."""

    step: str
    what: str


class Rehearsal(Cutover):
    """One run. `doubts`: what would stop a cutover; `expected`: how many seconds each of its steps would
    take, as measured here."""

    def __init__(self, settings: Settings, options: Options) -> None:
        super().__init__(settings, options)
        self.doubts: list[Doubted] = []
        self.expected: dict[str, float] = {}
        self._written = False
        """Whether anybody writes at the source."""

    @property
    def expected_s(self) -> float:
        return sum(self.expected.values())

    def _run(self, survey: Survey, standings: Standings) -> None:
        self.expected["link"] = self.steps.steps[-1].seconds
        self._step("producers", lambda step: self._look_at_producers(survey, step))
        self._step("lag", lambda step: self._drain(survey, standings, step))
        self._step("groups", lambda step: self._look_at_groups(survey, standings, step))
        self._step("verify", lambda step: self._compare(step))
        self._step("still", lambda step: self._look_again(survey, step))
        if self.doubts:
            raise Doubt(listed([f"{of.step}: {of.what}" for of in self.doubts]))

    def _step(self, name: str, look: Callable[[Step], list[str]]) -> None:
        """One step, whose doubts keep none of the others from being taken."""
        with self.steps.step(name) as step:
            try:
                doubts = look(step)
            except (VerbatimError, KafkaException) as error:
                doubts = [str(error)]
            if doubts:
                step.state = "refused"
                step.found = [listed(doubts), *step.found]
                self.doubts += [Doubted(name, doubt) for doubt in doubts]
        self.expected[name] = self.expected.get(name, 0.0) + step.seconds

    # producers

    def _look_at_producers(self, survey: Survey, step: Step) -> list[str]:
        before = self._source_ends(survey)
        stable = self._stable(survey, list(before))
        time.sleep(self.options.quiet_s)
        after = self._ends = self._source_ends(survey)
        if not after and not self._kept:
            return ["KAFKA_CLUSTERS_SOURCE_TOPIC selects no topic that is there"]
        moved = {at: end - before.get(at, 0) for at, end in after.items() if end != before.get(at)}
        self._written = bool(moved)
        step.found = [
            f"{len(moved)} of {len(after)} partitions are written to, {sum(moved.values()) / self.options.quiet_s:,.0f} offsets/s: "
            "for a cutover, stop the producers"
            if moved
            else f"nobody writes to {len(after)} partitions of {len(self._found)} topics"
        ]
        step.found += rehearsal_rules.held_open(before, stable, self._stable(survey, list(after)))
        return rules.paused(survey.control.refresh(Deadline(CALL_S)), [t.name for t in self._found])

    # lag

    def _drain(self, survey: Survey, standings: Standings, step: Step) -> list[str]:
        """How long it takes until what is there now is delivered, while more comes."""
        ids = {t.name: t.id for t in self._found}
        names = {(ids[topic], p): f"{topic}-{p}" for topic, p in self._ends}
        stable = self._stable(survey, list(self._ends))
        ends: dict[PartitionId, int] = {(ids[topic], p): end for (topic, p), end in stable.items()}
        began, deadline = time.monotonic(), Deadline(self.options.wait_s)
        first: Link | None = None
        before = 0
        while True:
            link = standings.look(Deadline(CALL_S))
            first = first or link
            lag = rehearsal_rules.lag(rehearsal_rules.as_of(first, link), ends, names)
            before = max(before, lag.offsets)
            idle = standings.idle(Deadline(CALL_S))
            if idle or not lag.late or deadline.passed():
                break
            time.sleep(LOOK_S)
        seconds = time.monotonic() - began
        now = topics.ends(survey.source_admin, list(self._ends), Deadline(CALL_S))
        doubts = rules.beyond(link, {(ids[topic], p): end for (topic, p), end in now.items()}, names)
        doubts += lag.never
        if idle and (lag.late or self._written):
            doubts.append(
                f"not running: {', '.join(idle)}" + (f", and {listed(lag.late)}" if lag.late else "")
            )
        elif lag.late:
            left = rehearsal_rules.seconds_left(before, lag.offsets, seconds)
            self.expected["lag"] = left or 0.0
            words = (
                "and none was delivered"
                if left is None
                else f"which take {left:,.0f} s more at the present rate"
            )
            doubts.append(
                f"{lag.offsets:,} offsets are not delivered after {seconds:.0f} s (--wait), {words}: {listed(lag.late)}"
            )
        else:
            step.found = [
                f"{before:,} offsets were behind; all of {len(ends)} partitions was delivered within {seconds:.1f} s, while more came"
            ]
        return doubts

    # groups

    def _look_at_groups(self, survey: Survey, standings: Standings, step: Step) -> list[str]:
        began = time.monotonic()
        survey.load()
        found = survey.look()
        rows = self.rows = rules.still_here(self._mine(found.rows))
        groups = {row.key.group for row in rows}
        used = sorted(group for group in groups if found.listed[group].active)
        late = [is_behind(row, survey.partition((row.key.topic, row.key.partition))) for row in rows]
        now, later = rehearsal_rules.drained_first(rows, late)
        if any(row.record.outcome in rehearsal_rules.OVERTAKEN and row.key.group in used for row in now):
            again = {row.key: row for row in survey.look().rows}
            now = [row for row in now if not rehearsal_rules.passed(row, again.get(row.key))]
        judged = rules.judge_groups(now, {}, self.options.accept_redelivery, found.unmoved)
        step.found = [f"{len(groups)} groups, {len(rows)} partitions: {len(now) - judged.inexact} exact"]
        if later:
            step.found.append(f"{len(later)} stand at what is not copied yet")
        if judged.inexact:
            step.found.append(f"{judged.inexact} not exact: records will be read again")
        if used:
            step.found.append(
                f"in use at the source, to be stopped: {listed([shown(group) for group in used])}"
            )
        doubts = judged.doubts + self._rights(survey, standings, rows)
        if judged.due or later or used:
            # Then they are written, and looked at once more.
            led = standings.led(OFFSETS, Deadline(CALL_S))
            wait_s = self.settings.offsets_interval_s if led else ELECTION_S
            self.expected["groups"] = wait_s + time.monotonic() - began
        return doubts

    def _rights(self, survey: Survey, standings: Standings, rows: list[Row]) -> list[str]:
        """What may not be written that a cutover writes: groups' offsets, what `offsets` keeps of them, and
        the control topic."""
        s, deadline = self.settings, Deadline(CALL_S)
        wanted: dict[str, set[str]] = {}
        for row in rows:
            if row.record.destination_topic:
                wanted.setdefault(row.record.target_group, set()).add(row.record.destination_topic)
        if not standings.led(OFFSETS, deadline):
            wanted[f"{s.application_name}.{OFFSETS}.leader"] = {s.control_topic}
        doubts = [
            f"group {shown(group)}: its offsets in {topic} can't be written: {error.str()}; grant READ on both"
            for (group, topic), error in sorted(survey.target.may_commit(wanted, deadline).items())
        ]
        admin = PretendingAdmin(s.client_config("destination", "admin"))
        try:
            make_records_topic(s, admin, deadline)
        except VerbatimError as error:
            doubts.append(str(error))
        if topics.not_writable(survey.target_admin, [s.control_topic], deadline):
            doubts.append(f"topic {s.control_topic}: not allowed to write to it; grant WRITE")
        return doubts

    # verification

    def _compare(self, step: Step) -> list[str]:
        if not self._found:
            step.found = ["all topics were promoted before"]
            return []
        report = verify_link(self.settings, self._verification())
        doubts, told = rules.judge_comparison([replace(p, behind=0) for p in report.partitions], self.rows)
        equal, behind = (sum(getattr(p, what) for p in report.partitions) for what in ("equal", "behind"))
        step.found = [f"{equal:,} records equal, {behind:,} on their way", *report.notes, *told]
        memory = self.options.memory
        if memory is not None and not os.access(memory if memory.exists() else memory.parent, os.W_OK):
            step.found.append(f"{memory} can't be written: each run of a cutover would compare them again")
        return doubts

    # once more

    def _look_again(self, survey: Survey, step: Step) -> list[str]:
        found = {t.name: t.id for t in self._found}
        self._stable(survey, list(self._source_ends(survey)))
        survey.look()
        now = {t.name: t.id for t in self._found}
        step.found = ["what a cutover looks at once more"]
        return [
            f"topic {name} has come, gone or been made again meanwhile"
            for name in sorted(found.keys() | now.keys())
            if found.get(name) != now.get(name)
        ]
