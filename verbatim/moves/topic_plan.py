"""The plan of moving single topics: what stands in the way of each, and which partitions of which groups move
now, and which stay. Looks once, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from common.kafka.client import topics
from common.kafka.client.topics import TopicInfo
from common.link import identity
from common.link.control_state import Control
from common.link.routed import ONE_COPY, refuse_routes
from common.partitions import PartitionId, PartitionName
from common.ports import Deadline
from offsets.groups import shown
from offsets.survey import Survey, refuse_provenance
from replicator.driver.planner import selected
from verbatim.moves import cutover_rules as rules
from verbatim.moves.cutover import Options
from verbatim.moves.link_progress import Link, Standings
from verbatim.moves.steps import listed

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 30.0


@dataclass(frozen=True, slots=True)
class TopicLine:
    """A topic; `state` None: it is copied; `waits`: what stands in its way now."""

    topic: str
    destination: str | None
    partitions: int
    state: str | None
    waits: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A group that has offsets in the topics; `moves`: its partitions there, `stays`: all others that it has
    offsets in."""

    group: str
    target_group: str
    active: bool
    moves: list[PartitionName]
    stays: list[PartitionName]


class TopicMovePlan:
    """`topics` and `groups` are the plan."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self.settings = settings.without_heartbeats() if settings.heartbeats_interval_s else settings
        self.options = options
        self.topics: list[TopicLine] = []
        self.groups: list[GroupLine] = []

    def run(self) -> None:
        """Raises LinkRefused, SettingsError, KafkaTimeout, KafkaException."""
        deadline = Deadline(CALL_S)
        refuse_provenance(self.settings)
        link, control = identity.prepare(self.settings, True, deadline, make=False)
        survey = Survey(self.settings, link, control)
        with (
            closing(survey),
            closing(Standings(self.settings, survey.target_admin, control, survey.tail)) as standings,
        ):
            state = control.refresh(deadline)
            refuse_routes(state, self.settings.application_name, ONE_COPY, self.options.topics)
            promotions = state.steering.promotions
            found, kept = rules.chosen(
                selected(self.settings, survey.source_admin, deadline), self.options.topics, promotions
            )
            survey.load()
            partitions = [(t.name, p) for t in found for p in range(t.partitions)]
            ends = topics.ends(survey.source_admin, partitions, deadline)
            stable = topics.ends(survey.source_admin, partitions, deadline, committed=True)
            progress = standings.look(deadline)
            self.topics = [
                TopicLine(t, promotions[t].destination, len(promotions[t].ends), "promoted") for t in kept
            ]
            self.topics += [line(t, state, progress, ends, stable) for t in found]
            self._look_at_groups(survey, {t.name for t in found} | set(kept))

    def _look_at_groups(self, survey: Survey, names: set[str]) -> None:
        looked = survey.look()
        rows = [row for row in looked.rows if row.key.topic in names]
        stays = rules.stay(looked.offsets, rows, names)
        for group in sorted({row.key.group for row in rows}):
            of = looked.listed.get(group)
            moves = sorted((r.key.topic, r.key.partition) for r in rows if r.key.group == group)
            self.groups.append(
                GroupLine(
                    group,
                    survey.target_name(group),
                    of is not None and of.active,
                    moves,
                    stays.get(group, []),
                )
            )

    def as_json(self) -> dict[str, Any]:
        return {
            "topics": [asdict(line) for line in self.topics],
            "groups": [asdict(line) for line in self.groups],
        }

    def lines(self) -> list[str]:
        """The same for people."""
        out = []
        for t in self.topics:
            waits = f"; waits: {listed(t.waits)}" if t.waits else ""
            out.append(
                f"plan    topic {t.topic}: {t.state or f'to {t.destination}'}, {t.partitions} partitions{waits}"
            )
        for g in self.groups:
            where = (
                "stays at the source until it has read them"
                if self.options.producers_first
                else f"to {shown(g.target_group)}"
            )
            active = (
                "; waits: it has members at the source"
                if g.active and not self.options.producers_first
                else ""
            )
            stays = f"; stays at the source: {_named(g.stays)}" if g.stays else ""
            out.append(f"plan    group {shown(g.group)}: {_named(g.moves)}, {where}{stays}{active}")
        return out


def line(
    info: TopicInfo,
    state: Control,
    progress: Link,
    ends: Mapping[PartitionName, int],
    stable: Mapping[PartitionName, int],
) -> TopicLine:
    """What is known of a topic, and what keeps it from being promoted now. Pure."""
    mine = [(info.name, p) for p in range(info.partitions)]
    due: dict[PartitionId, int] = {(info.id, p): ends[at] for p, at in enumerate(mine)}
    names = {(info.id, p): f"{info.name}-{p}" for p in range(info.partitions)}
    here = {at: ends[at] for at in mine}
    promotion = state.steering.promotions.get(info.name)
    to = state.destinations.get(info.id)
    waits = [
        *rules.paused(state, [info.name]),
        *rules.behind(progress, due, names),
        *rules.moved(here, here, {at: stable[at] for at in mine}),
    ]
    return TopicLine(
        info.name,
        None if to is None else to.topic,
        info.partitions,
        None if promotion is None else promotion.state,
        waits,
    )


def _named(partitions: list[PartitionName]) -> str:
    by_topic: dict[str, list[str]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(str(partition))
    return ", ".join(f"{topic} ({', '.join(of)})" for topic, of in by_topic.items())
