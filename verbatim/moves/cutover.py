"""Moves consumers from source to target: makes sure of each step before the next, and refuses on any doubt.
Writes nothing itself but, at its end, where the copies end: of the whole link (verbatim/moves/handover.py),
or of single topics, which it promotes (promotion.py). Where no `offsets` runs, one round of it writes the
groups' offsets. Options and output are verbatim/commands/cutover.py's part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from common.kafka.client import topics
from common.link import identity
from common.link.routed import ONE_COPY, refuse_routes
from common.partitions import PartitionId, PartitionName
from common.ports import Deadline
from offsets.service import NAME as OFFSETS
from offsets.service import Service
from offsets.survey import Found, Row, Survey, refuse_provenance
from replicator.driver.planner import selected
from verbatim.moves import cutover_rules as rules
from verbatim.moves.handover import hand_over
from verbatim.moves.link_progress import Standings
from verbatim.moves.promotion import Promoted, Promoting, release
from verbatim.moves.steps import Doubt, Step, Steps, listed, wait_for
from verbatim.pipeline.keys import keys_of
from verbatim.verify.link import Options as VerifyOptions
from verbatim.verify.link import verify_link

if TYPE_CHECKING:
    from common.config.settings import Settings
    from common.kafka.client.topics import TopicInfo

CALL_S = 30.0


@dataclass
class Options:
    """`quiet_s`: for so long the source must stand still; `wait_s`: how long each step waits for what it
    needs; `sample` and `seed`: as of `verify`; `memory`: where the result of a verification is kept for the
    next run. `topics`: names and expressions of those that are moved and promoted, none: all of the link;
    `producers_first`: their consumers stay at the source until they have read it."""

    quiet_s: float = 5.0
    wait_s: float = 60.0
    sample: float | None = None
    seed: int = 0
    accept_redelivery: bool = False
    memory: Path | None = None
    topics: tuple[str, ...] = ()
    producers_first: bool = False
    tell: Callable[[Step], None] = lambda step: None


class Cutover:
    """One run. `steps` is the report; `groups` what became of each group."""

    def __init__(self, settings: Settings, options: Options) -> None:
        # Heartbeats may go on: nobody consumes them, and without them the source stands still.
        self.settings = settings.without_heartbeats() if settings.heartbeats_interval_s else settings
        self.options = options
        self.steps = Steps(options.tell)
        self.rows: list[Row] = []
        self.stay: dict[str, list[PartitionName]] = {}
        """Group -> its partitions of other topics, which go on at the source."""
        self.promoted: list[Promoted] = []
        """What became of topics that were chosen."""
        self._found: list[TopicInfo] = []
        self._kept: list[str] = []
        """Topics that were promoted before."""
        self._ends: dict[PartitionName, int] = {}
        self._compared: dict[PartitionName, int] = {}
        """Where the destinations ended when they were compared."""
        self._verified: dict[str, Any] = {}
        """What the comparison speaks of."""

    def run(self) -> None:
        """Raises Doubt, or whatever else stopped it; `steps` says where. It may be run again at any time."""
        deadline = Deadline(CALL_S)
        with self.steps.step("link") as step:
            refuse_provenance(self.settings)
            link, control = identity.prepare(self.settings, True, deadline, make=False)
            state = control.refresh(deadline)
            refuse_routes(state, self.settings.application_name, ONE_COPY, self.options.topics)
            survey = Survey(self.settings, link, control)
            step.found = [f"source cluster {link.source_cluster}, target cluster {link.target_cluster}"]
        with (
            closing(survey),
            closing(Standings(self.settings, survey.target_admin, control, survey.tail)) as standings,
        ):
            self._run(survey, standings)

    def _run(self, survey: Survey, standings: Standings) -> None:
        with self.steps.step("producers") as step:
            self._producers(survey, step)
        with self.steps.step("lag") as step:
            self._lag(survey, standings, step)
        survey.load()
        if not self.options.producers_first:
            with self.steps.step("groups") as step:
                self._groups(survey, standings, step)
        with self.steps.step("verify") as step:
            self._verify(survey, step)
        with self.steps.step("still") as step:
            self._still(survey, step)
        if self.options.topics:
            self._promote(survey, standings)

    def _promote(self, survey: Survey, standings: Standings) -> None:
        promotion = Promoting(self.settings, survey, standings, self.options.wait_s)
        self.promoted = promotion.before(self._kept)
        if not self._found:
            return
        with self.steps.step("hold") as step:
            promotion.hold(self._found, self._ends, step)
        with self.steps.step("promote") as step:
            self.promoted += promotion.promote(self._compared, step)

    # producers

    def _producers(self, survey: Survey, step: Step) -> None:
        if self.options.topics:
            release(survey.control, self.options.topics)  # what a run that was killed has begun
        deadline = Deadline(self.options.wait_s + self.options.quiet_s)
        while True:
            before = self._source_ends(survey)
            self._refuse_paused(survey)
            time.sleep(self.options.quiet_s)
            found, after = self._found, self._source_ends(survey)
            obstacles = rules.moved(before, after, self._stable(survey, list(after)))
            if {t.id for t in found} != {t.id for t in self._found}:
                obstacles.append("a topic was made again, or promoted")
            if not obstacles:
                break
            if deadline.passed():
                raise Doubt(f"the source does not stand still: {listed(obstacles)}; stop the producers")
        if not after and not self._kept:
            raise Doubt("KAFKA_CLUSTERS_SOURCE_TOPIC selects no topic that is there")
        self._ends = after
        step.found = [
            f"{len(after)} partitions of {len(self._found)} topics stood still for {self.options.quiet_s:g} s"
        ]
        if self._kept:
            step.found.append(f"{len(self._kept)} topics were promoted before")

    def _source_ends(self, survey: Survey) -> dict[PartitionName, int]:
        deadline = Deadline(CALL_S)
        found = selected(self.settings, survey.source_admin, deadline)
        promotions = survey.control.refresh(deadline).steering.promotions
        self._found, self._kept = rules.chosen(found, self.options.topics, promotions)
        partitions = [(t.name, p) for t in self._found for p in range(t.partitions)]
        return topics.ends(survey.source_admin, partitions, deadline)

    @staticmethod
    def _stable(survey: Survey, partitions: list[PartitionName]) -> dict[PartitionName, int]:
        return topics.ends(survey.source_admin, partitions, Deadline(CALL_S), committed=True)

    def _refuse_paused(self, survey: Survey) -> None:
        """Nothing of a paused topic would ever arrive, however long anybody waits."""
        paused = rules.paused(survey.control.refresh(Deadline(CALL_S)), [t.name for t in self._found])
        if paused:
            raise Doubt(listed(paused))

    # lag

    def _lag(self, survey: Survey, standings: Standings, step: Step) -> None:
        ids = {t.name: t.id for t in self._found}
        ends: dict[PartitionId, int] = {(ids[topic], p): end for (topic, p), end in self._ends.items()}
        names = {(ids[topic], p): f"{topic}-{p}" for topic, p in self._ends}

        def look() -> list[str]:
            self._refuse_paused(survey)
            link = standings.look(Deadline(CALL_S))
            if over := rules.beyond(link, ends, names):
                raise Doubt(f"the source has gone on, or has lost records: {listed(over)}")
            behind = rules.behind(link, ends, names)
            if behind and (idle := standings.idle(Deadline(CALL_S))):
                # Nothing of it would come, however long anybody waits.
                raise Doubt(f"not running: {', '.join(idle)}, and {listed(behind)}")
            return behind

        wait_for(look, Deadline(self.options.wait_s))
        step.found = [f"all of {len(ends)} partitions delivered up to their ends"]

    # groups

    def _groups(self, survey: Survey, standings: Standings, step: Step) -> None:
        judged = rules.Groups([], [], 0)
        before: set[str] = set()
        ran = False

        def look() -> list[str]:
            nonlocal judged, before, ran
            found = survey.look()
            judged = self._judge(survey, found)
            if judged.doubts:
                return judged.doubts
            if judged.due and not ran and not standings.led(OFFSETS, Deadline(CALL_S)):
                ran = True
                Service(self.settings, once=True).run_within()
                survey.load()
                found = survey.look()
                judged = self._judge(survey, found)
            mine = self._mine(found.rows)
            self.rows = rules.still_here(mine)
            before = {row.key.group for row in mine} - {row.key.group for row in self.rows}
            self.stay = rules.stay(found.offsets, self.rows, self._names())
            return judged.doubts or [
                f"group {k.group}, {k.topic}-{k.partition}: not written yet" for k in judged.due
            ]

        wait_for(look, Deadline(self.options.wait_s))
        groups = {row.key.group for row in self.rows}
        step.found = [f"{len(groups)} groups, {len(self.rows)} partitions in step"]
        if before:
            step.found.append(f"{len(before)} groups were moved before")
        step.found += rules.told_of(self.stay)
        if judged.inexact:
            step.found.append(f"{judged.inexact} of them not exact: records will be read again")

    def _judge(self, survey: Survey, found: Found) -> rules.Groups:
        in_use = survey.source.members(Deadline(CALL_S))
        rows = self._mine(found.rows)
        return rules.judge_groups(rows, in_use, self.options.accept_redelivery, found.unmoved)

    def _names(self) -> set[str]:
        return {t.name for t in self._found} | set(self._kept)

    def _mine(self, rows: list[Row]) -> list[Row]:
        """Of the topics that are moved; and of those that were promoted before, without groups that go on at
        the target already."""
        names, kept = self._names(), set(self._kept)
        return [
            row
            for row in rows
            if row.key.topic in names and not (row.key.topic in kept and rules.has_gone_on(row))
        ]

    # verification

    def _verify(self, survey: Survey, step: Step) -> None:
        basis = self._basis(survey)
        self._verified = basis
        if not self._found:
            step.state, step.found = "kept", ["compared before they were promoted"]
            return
        if self._remembered() == basis:
            step.state = "kept"
            step.found = ["source and target were compared, and neither has changed since"]
            return
        report = verify_link(self.settings, self._verification())
        doubts, told = rules.judge_comparison(report.partitions, self.rows)
        if doubts:
            raise Doubt(listed(doubts) + "; see `verbatim verify`")
        # What was written at the target since the look is not what was compared.
        if self._basis(survey) != basis:
            raise Doubt("source or target has changed while they were compared")
        equal = sum(p.equal for p in report.partitions)
        # What is told depends on where the groups stand: they may be elsewhere when it is run again.
        step.found = [f"{equal:,} records equal", *report.notes, *told]
        step.found += [] if told else self._remember(basis)

    def _verification(self) -> VerifyOptions:
        names = tuple(t.name for t in self._found) if self.options.topics or self._kept else ()
        return VerifyOptions(
            names, sample=self.options.sample, seed=self.options.seed, keys=keys_of(self.settings)
        )

    def _basis(self, survey: Survey) -> dict[str, Any]:
        """What a verification speaks of: the same later on, it needs not be done again."""
        deadline = Deadline(CALL_S)
        known = survey.control.refresh(deadline).destinations
        names = {known[t.id].topic for t in self._found if t.id in known}
        there = topics.describe(survey.target_admin, sorted(names), deadline)
        partitions = [(t.name, p) for t in there.values() for p in range(t.partitions)]
        self._compared = ends = topics.ends(survey.target_admin, partitions, deadline)
        return {
            "link": self.settings.application_name,
            "sample": self.options.sample,
            "seed": self.options.seed if self.options.sample is not None else None,
            "source": {f"{topic}-{p}": end for (topic, p), end in sorted(self._ends.items())},
            "source_ids": {t.name: t.id for t in self._found},
            "target": {f"{topic}-{p}": end for (topic, p), end in sorted(ends.items())},
            "target_ids": {name: t.id for name, t in sorted(there.items())},
        }

    def _remember(self, basis: dict[str, Any]) -> list[str]:
        if self.options.memory is not None:
            try:
                self.options.memory.write_bytes(orjson.dumps(basis, option=orjson.OPT_INDENT_2))
            except OSError as error:
                return [f"another run will compare them again: {self.options.memory}: {error.strerror}"]
        return []

    def _remembered(self) -> Any:
        if self.options.memory is None:
            return None
        try:
            return orjson.loads(self.options.memory.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return None

    # once more

    def _still(self, survey: Survey, step: Step) -> None:
        """Nothing of what the steps before made sure of has changed meanwhile."""
        found = {t.name: t.id for t in self._found}
        ends = self._source_ends(survey)
        obstacles = rules.moved(self._ends, ends, self._stable(survey, list(ends)))
        if {t.name: t.id for t in self._found} != found:
            obstacles.append("a topic was made again, or another one selected")
        if obstacles:
            raise Doubt(f"the source has not stood still: {listed(obstacles)}; stop the producers")
        if self.options.producers_first:
            step.found = ["the source has not moved"]
            return
        looked = survey.look()
        rows, judged = rules.still_here(self._mine(looked.rows)), self._judge(survey, looked)
        if judged.doubts or judged.due:
            raise Doubt(listed(judged.doubts) or "groups were moved meanwhile")
        before, after = rules.positions(self.rows), rules.positions(rows)
        if before != after:
            changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
            raise Doubt(
                listed([f"group {k.group}, {k.topic}-{k.partition} was moved meanwhile" for k in changed])
            )
        self.rows = rows
        step.found = ["neither the source nor a group has moved; consumers may be started at the target"]
        if not self.options.topics:  # single topics are promoted, which is no hand-over of the link
            step.found += [f"no way back is known for {what}" for what in self._hand_over(survey)]

    def _hand_over(self, survey: Survey) -> list[str]:
        if self._basis(survey) != self._verified:
            raise Doubt("the target has got records since it was compared: who writes there?")
        ids = {t.name: t.id for t in self._found}
        return hand_over(survey, {(ids[topic], p): end for (topic, p), end in self._ends.items()}, "cutover")
