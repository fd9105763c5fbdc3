"""After a cutover that came to nothing: makes sure that consumers and producers can go on at the source, and
takes back what can't stay. Options and output are verbatim/commands/undoing.py's part.

A cutover changes nothing but the groups' offsets at the target, as `offsets` does all the time: those stay,
the next round moves them on. What else may have happened is the operator's doing: a group whose consumers
were started at the target and read on there is taken back, exactly; records that were produced there can't
be.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.errors import LinkRefused
from common.kafka.client import topics
from common.link import identity
from common.link.promotions import PROMOTED, destinations
from common.partitions import PartitionName
from common.ports import Deadline
from offsets import failback
from offsets.failback import Back
from offsets.groups import shown
from offsets.survey import Survey, refuse_provenance
from offsets.translation_index import Translation
from verbatim.moves import cutover_rules
from verbatim.moves.freshness import last_records
from verbatim.moves.link_progress import Standings
from verbatim.moves.steps import Doubt, Step, Steps, listed, wait_for

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 30.0


@dataclass
class Options:
    """`wait_s`: how long each step waits for what it needs."""

    wait_s: float = 60.0
    tell: Callable[[Step], None] = lambda step: None


def read_on(row: Back, there: Translation | None) -> bool:
    """Whether the target's group has read more than the source's. `there`: what the offset of the source's
    group is at the target; None: it has none. Pure."""
    if row.outcome not in ("written", "active"):
        return False
    if row.committed is None or there is None:
        return True
    if there.exact and there.offset is not None:
        # Its offset may stand before what compaction or markers have taken: then both are at one record.
        return row.target.offset > there.offset
    return row.found.offset is not None and row.found.offset > row.committed


def judge(rows: list[Back], members: dict[str, bool], names: dict[str, str]) -> list[str]:
    """What keeps groups that have read on from being taken back. `members`: groups of the target; `names`:
    what the source's are called there. Pure."""
    doubts = [
        f"group {shown(names[group])} has members at the target: stop its consumers"
        for group in sorted({row.key.group for row in rows})
        if members.get(names[group], False)
    ]
    for row in rows:
        name = f"group {shown(row.key.group)}, {row.key.topic}-{row.key.partition}"
        if row.outcome == "active":
            doubts.append(f"{name}: it has read on at the target, and has members at the source: stop them")
        elif not row.found.exact:
            doubts.append(
                f"{name}: target offset {row.target.offset} can't be translated back exactly ({row.found.why})"
            )
    return doubts


class Undo:
    """One run. `steps` is the report; `rows` the groups' partitions that were taken back."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self.settings = settings
        self.options = options
        self.steps = Steps(options.tell)
        self.rows: list[Back] = []

    def run(self) -> None:
        """Raises Doubt, or whatever else stopped it; `steps` says where. It may be run again at any time."""
        refuse_provenance(self.settings)
        with self.steps.step("link") as step:
            link, control = identity.prepare(self.settings, True, Deadline(CALL_S), make=False)
            survey = Survey(self.settings, link, control)
            step.found = [f"source cluster {link.source_cluster}, target cluster {link.target_cluster}"]
        with (
            closing(survey),
            closing(Standings(self.settings, survey.target_admin, control, survey.tail)) as standings,
        ):
            survey.load()
            with self.steps.step("target") as step:
                self._target(survey, step)
            with self.steps.step("groups") as step:
                self._groups(survey, step)
            with self.steps.step("goes on") as step:
                self._goes_on(survey, standings, step)

    def _target(self, survey: Survey, step: Step) -> None:
        """All that is at the target the link has copied: nobody has produced there."""
        deadline = Deadline(CALL_S)
        survey.catch_up(deadline)
        state = survey.control.state
        copies = {to.topic for to in state.destinations.values() if to.refused is None}
        names = sorted(copies - destinations(state.steering.promotions))
        there = topics.describe(survey.target_admin, names, deadline)
        partitions = [(t.name, p) for t in there.values() for p in range(t.partitions)]
        last: dict[PartitionName, int] = {}
        for at, message in last_records(self.settings, survey.target_admin, partitions, deadline):
            last[at] = max(last.get(at, 0), message.offset())
        old: set[PartitionName] = set()

        def look() -> list[str]:
            survey.catch_up(Deadline(CALL_S))
            ends = survey.tail.index.copied_ends()
            old.update(at for at in last if at not in ends)
            return [
                f"{topic}-{p}: from offset {ends[topic, p]} on are records that the link has not copied: who produces there?"
                for topic, p in sorted(last.keys() - old)
                if last[topic, p] >= ends[topic, p]
            ]

        wait_for(look, Deadline(self.options.wait_s))
        step.found = [f"{len(last) - len(old)} partitions hold nothing but copies"]
        if old:
            step.found.append(
                f"of {len(old)} that can't be told: nothing was copied for longer than mappings are kept"
            )

    def _groups(self, survey: Survey, step: Step) -> None:
        state = survey.control.state
        promoted = {name for name, of in state.steering.promotions.items() if of.state == PROMOTED}
        rows = [
            row
            for row in failback.look(survey)
            if row.key.group not in state.group_moves and row.key.topic not in promoted
        ]
        ahead = [row for row in rows if read_on(row, _there(survey, row))]
        names = {row.key.group: survey.target_name(row.key.group) for row in ahead}
        if doubts := judge(ahead, survey.target.members(Deadline(CALL_S)), names):
            raise Doubt(listed(doubts))
        if ahead and survey.control.state.pipeline:
            raise LinkRefused(
                "records of this link went through a pipeline: no group is taken back over that"
            )
        self.rows = failback.write(survey, ahead)
        if failed := [row for row in self.rows if row.outcome != "written"]:
            raise Doubt(
                listed(
                    [
                        f"group {shown(row.key.group)}, {row.key.topic}-{row.key.partition}: {row.detail}"
                        for row in failed
                    ]
                )
            )
        groups = {row.key.group for row in rows}
        step.found = [
            f"{len(names)} groups that had read on at the target were taken back"
            if names
            else f"none of {len(groups)} groups has read on at the target: what a cutover wrote there stays"
        ]

    def _goes_on(self, survey: Survey, standings: Standings, step: Step) -> None:
        idle = standings.idle(Deadline(CALL_S))
        step.found = ["consumers and producers go on at the source"]
        if idle:
            step.found.append(f"start again: {', '.join(idle)}")
        step.found += cutover_rules.paused(survey.control.state, sorted(survey.copied_topics()))


def _there(survey: Survey, row: Back) -> Translation | None:
    known = survey.partition((row.key.topic, row.key.partition))
    if known is None or row.committed is None:
        return None
    return known.translate(row.committed, survey.origin((row.key.topic, row.key.partition)))
