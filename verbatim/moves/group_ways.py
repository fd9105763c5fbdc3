"""Groups that are moved, several at once: each goes on as soon as nothing stands in its way, whatever becomes
of the others. Which way they go is verbatim/moves/group_move.py's and group_back.py's part."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka import KafkaException

from common.errors import GroupsFailed, SettingsError, VerbatimError
from common.link import identity
from common.link.control_kinds import GroupMove
from common.link.control_records import FOLLOWED, MOVED
from common.link.routed import ONE_COPY, refuse_routes
from common.ports import Deadline
from offsets.group_protocol import Group, Member
from offsets.groups import shown
from offsets.return_link import ReturnLink
from offsets.survey import Survey, refuse_provenance
from verbatim.moves.group_rules import NO_OFFSET, Verdict
from verbatim.moves.link_progress import Standings
from verbatim.moves.other_links import refuse_others
from verbatim.moves.steps import LOOK_S, Doubt, Step, Steps, listed

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 30.0
State = Literal["waiting", "ready", "done", "kept", "refused"]


@dataclass
class Options:
    """`names`: groups of the source; `matching`: an expression for more of them; `wait_s`: how long each step
    of a group waits for what it needs; `dry_run`: look at what stands in the way, and change nothing;
    `return_link`: the link that copies the same topics back."""

    names: tuple[str, ...] = ()
    matching: re.Pattern[str] | None = None
    wait_s: float = 60.0
    accept_redelivery: bool = False
    dry_run: bool = False
    return_link: str | None = None
    planned: Callable[[list[Way]], None] = lambda ways: None
    tell: Callable[[str, Step], None] = lambda group, step: None


class Way:
    """One group's. `state`: `done` is of this run, `kept` of a former one, `ready` of a plan; `waits`: what
    stood in the way at the beginning; `notes`: what the operator should know."""

    def __init__(self, group: str, target_group: str, tell: Callable[[Step], None]) -> None:
        self.group = group
        self.target_group = target_group
        self.steps = Steps(tell)
        self.state: State = "waiting"
        self.refused: str | None = None
        self.waits: list[str] = []
        self.notes: list[str] = []
        self.partitions: list[Any] = []
        """As the last look found them: `Row`, or on the way back `Back`."""
        self.doubt = ""
        """Why a step that could be taken came to nothing; it is taken again."""

    def over(self, name: str, *found: str) -> None:
        """A step is done; of one that is repeated, the first time is told."""
        if all(step.name != name for step in self.steps.steps):
            self.steps.over(name, "done", list(found))

    @property
    def next_step(self) -> str:
        """What it waits for."""
        told = {step.name for step in self.steps.steps}
        return next((name for name in ("members", "copy", "hold") if name not in told), "write")


class Ways:
    """One run. `ways` is the report."""

    before = "moved before"
    releases = True
    """Whether a group that is refused is given back to `offsets`."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self.settings = settings
        self.options = options
        self.ways: list[Way] = []
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def run(self) -> None:
        """Raises Doubt where all were refused, GroupsFailed where some were, and whatever keeps it from
        beginning. It may be run again at any time."""
        if not (returning := self.options.return_link):
            refuse_provenance(self.settings)
        elif not self.settings.provenance_headers:
            raise SettingsError(
                "--return-link: the link has no PROVENANCE_HEADERS, so nothing comes back by it"
            )
        link, control = identity.prepare(self.settings, True, Deadline(CALL_S), make=False)
        refuse_routes(control.refresh(Deadline(CALL_S)), self.settings.application_name, ONE_COPY)
        survey = Survey(self.settings, link, control)
        with (
            closing(survey),
            closing(Standings(self.settings, survey.target_admin, control, survey.tail)) as standings,
        ):
            self.survey, self.standings = survey, standings
            if returning:
                survey.returning = ReturnLink(self.settings, returning, link, Deadline(CALL_S))
                control.refresh(Deadline(CALL_S))
                refuse_others(self.settings, survey.returning, control.state.copies())
            survey.load()
            survey.moves_groups = True
            control.refresh(Deadline(CALL_S))
            self._choose()
            try:
                self._go()
            except (VerbatimError, KafkaException) as error:
                for way in self.waiting():
                    self.refuse(way, [str(error)])
        self._judge()

    # what a way is

    def listed(self) -> dict[str, Group]:
        """The groups of the side that they leave, by the source's names."""
        raise NotImplementedError

    def chosen(self, group: str) -> tuple[State, str]:
        """What is known of a group at once: `waiting`, `kept` or `refused`, and why that."""
        raise NotImplementedError

    def look(self, ways: Sequence[Way]) -> dict[str, Verdict]:
        """What stands in the way of each; `partitions` as they are."""
        raise NotImplementedError

    def move(self, ways: Sequence[Way]) -> None:
        """Of ways that nothing stands in: those that come through are `done`; others wait on."""
        raise NotImplementedError

    def notes(self, way: Way) -> list[str]:
        """What the operator should know of a group, from the last look."""
        return []

    def standing(self, ways: Sequence[Way], place: Callable[[Any], object]) -> list[Way]:
        """After a write: those that stand where it has put them, and have not moved where they come from,
        by `place` of each partition. The others wait for the next look, which tells more."""
        before = {way.group: set(map(place, way.partitions)) for way in ways}
        verdicts, good = self.look(ways), list[Way]()
        for way in ways:
            if verdicts[way.group].obstacles:
                continue
            if set(map(place, way.partitions)) != before[way.group] or not all(
                map(self.in_step, way.partitions)
            ):
                way.doubt = "its offsets do not stand still"
            else:
                good.append(way)
        return good

    def in_step(self, partition: Any) -> bool:
        """Whether a partition stands as the last look would put it."""
        raise NotImplementedError

    # all of them

    def waiting(self) -> list[Way]:
        return [way for way in self.ways if way.state == "waiting"]

    def refuse(self, way: Way, why: list[str], release: bool = True) -> None:
        """Its way ends here."""
        way.state, way.refused = "refused", listed(why)
        if self.options.dry_run:
            return
        move = self.survey.control.state.group_moves.get(way.group)
        if release and self.releases and move is not None and move.state != MOVED:
            with suppress(VerbatimError, KafkaException):  # else it is told as one that is under way
                self.survey.control.append(GroupMove(way.group, FOLLOWED), Deadline(CALL_S))
        way.steps.over(way.next_step, "refused", [way.refused])

    def _choose(self) -> None:
        names = dict.fromkeys(self.options.names)
        if (expression := self.options.matching) is not None:
            names |= dict.fromkeys(name for name in sorted(self.listed()) if expression.fullmatch(name))
        for name in names:
            way = Way(name, self.survey.target_name(name), partial(self.options.tell, name))
            way.state, why = self.chosen(name)
            if not self.settings.selects_group(name):
                way.state, why = "refused", "CONSUMER_GROUPS or CONSUMER_GROUPS_EXCLUDE leaves it out"
            if way.state == "refused" and name not in self.options.names:
                continue  # whom the expression did not mean
            self.ways.append(way)
            if way.state == "kept":
                way.steps.over("members", "kept", [self.before])
            elif way.state == "refused":
                self.refuse(way, [why], release=False)
        if not self.ways:
            raise Doubt("there is no such group")

    def _go(self) -> None:
        first = True
        while waiting := self.waiting():
            self.survey.only = {way.group for way in waiting}
            verdicts = self.look(waiting)
            if first:
                first = False
                self._plan(waiting, verdicts)
                if self.options.dry_run:
                    return
            ready = [way for way in self.waiting() if self._ready(way, verdicts[way.group])]
            if ready:
                self.move(ready)
            if self.waiting():
                time.sleep(LOOK_S)

    def _plan(self, waiting: Sequence[Way], verdicts: dict[str, Verdict]) -> None:
        for way in waiting:
            verdict = verdicts[way.group]
            if verdict.never == [NO_OFFSET] and way.group not in self.options.names:
                self.ways.remove(way)  # of those that an expression matches, others are meant
                continue
            way.waits = [*verdict.members, *verdict.copy]
            way.notes = self.notes(way)
            if verdict.never and self.options.dry_run:
                self.refuse(way, verdict.never)
            elif not verdict.obstacles and self.options.dry_run:
                way.state = "ready"
        self.options.planned(self.ways)

    def _ready(self, way: Way, verdict: Verdict) -> bool:
        late = way.steps.waited >= self.options.wait_s
        if verdict.never:
            self.refuse(way, verdict.never)
        elif verdict.members and late:
            self.refuse(way, verdict.members)
        elif not verdict.members:
            way.over("members", "none on either side")
            if verdict.copy and late:
                self.refuse(way, verdict.copy)
            elif way.doubt and late:
                self.refuse(way, [way.doubt])
            elif not verdict.copy:
                way.over("copy", f"{len(way.partitions)} partitions copied as far as it has read")
                return True
        return False

    def _judge(self) -> None:
        refused = [way for way in self.ways if way.state == "refused"]
        if refused:
            said = listed([f"group {shown(way.group)}: {way.refused}" for way in refused])
            raise (Doubt if len(refused) == len(self.ways) else GroupsFailed)(said)

    def named(self, groups: dict[str, Group], side: Literal["source", "target"]) -> dict[str, list[Member]]:
        """The members of those that have some."""
        return getattr(self.survey, side).named_members(groups, Deadline(CALL_S))  # type: ignore[no-any-return]
