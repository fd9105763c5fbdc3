"""Lets consumers go on at the target when the source is gone: all that is staged is delivered, the groups'
last offsets are translated and written, and what may be missing is told. Never connects to the source.
Options and output are verbatim/commands/failover.py's part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from common.kafka.client import topics
from common.link import identity
from common.link.control_records import DEDUPLICATOR
from common.link.promotions import destinations
from common.partitions import PartitionId, PartitionName
from common.ports import Deadline
from offsets.last_known import last_look
from offsets.service import NAME as OFFSETS
from offsets.survey import UNTRANSLATED, Row, Survey
from offsets.writer import RecordLog, write_offsets
from verbatim.moves.freshness import last_staged, newest_records
from verbatim.moves.handover import hand_over
from verbatim.moves.link_progress import Link, Standing, Standings
from verbatim.moves.steps import Doubt, Step, Steps, listed, wait_for

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 30.0


NOT_APPLIED = frozenset(
    {"active", "failed", "several-targets", "several-sources", "repartitioned", "beyond-source"}
)
"""Outcomes of groups that can't go on at the target, until something is done."""


@dataclass
class Options:
    """`wait_s`: how long each step waits for what it needs."""

    wait_s: float = 60.0
    tell: Callable[[Step], None] = lambda step: None


@dataclass(frozen=True, slots=True)
class Missing:
    """What is known of the end of a source partition. `delivered`: every source offset below it is at the
    destination, none at or above it; None: not known. `known_to`: offsets below it are known to have been
    there (a group has read them, or they are staged and held back). `newest_ms`: the largest timestamp among
    the last records at the destination, in ms since 1970, where they are of this partition alone. `why`: why
    it stands still."""

    topic: str
    partition: int
    destination: str | None
    delivered: int | None
    known_to: int | None
    newest_ms: int | None
    why: str | None

    @property
    def at_least(self) -> int:
        """How many offsets at least are missing (offsets, not records)."""
        if self.delivered is None or self.known_to is None:
            return 0
        return max(0, self.known_to - self.delivered)


def missing(link: Link, rows: list[Row], newest: Mapping[PartitionName, int | None]) -> list[Missing]:
    """What may be missing of each partition of each topic, of one that was made again under its newest id;
    and of older ones only if they stand still. `newest`: by destination. Pure."""
    last: dict[str, str] = {standing.topic: key[0] for key, standing in link.partitions.items()}
    read: dict[PartitionId, int] = {}
    for row in rows:
        if row.record.outcome == "beyond-source":
            continue  # its offset is of another log
        key = (row.record.topic_id, row.key.partition)
        read[key] = max(read.get(key, 0), row.record.source_offset)
    out = []
    for key, standing in sorted(link.partitions.items(), key=lambda item: (item[1].topic, item[0][1])):
        if last[standing.topic] != key[0] and standing.stuck is None:
            continue
        known = [n for n in (standing.mapped, standing.staged, read.get(key)) if n is not None]
        to = standing.destination
        out.append(
            Missing(
                standing.topic,
                standing.partition,
                to,
                _delivered(standing, link.drained),
                max(known, default=None),
                None if to is None else newest.get((to, standing.partition)),
                standing.stuck,
            )
        )
    return out


def _delivered(standing: Standing, drained: bool) -> int | None:
    found = standing.delivered(drained)
    # Nothing was ever delivered of a partition that has neither mapping nor position.
    return standing.origin if found is None and standing.staged is None else found


def delivered(link: Link, but: str) -> dict[PartitionId, int]:
    """How far each partition is delivered, where that is known, of all topics but one; of a topic that was
    made again, under its newest id. Pure."""
    last = {standing.topic: key[0] for key, standing in link.partitions.items() if standing.topic != but}
    return {
        key: found
        for key, standing in link.partitions.items()
        if last.get(standing.topic) == key[0] and (found := _delivered(standing, link.drained)) is not None
    }


class Failover:
    """One run. `steps` is the report; `rows` what became of each group; `missing` what may be missing."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self.settings = settings
        self.options = options
        self.steps = Steps(options.tell)
        self.rows: list[Row] = []
        self.missing: list[Missing] = []
        self.last_staged_ms: int | None = None
        """When the replicator last wrote down a position."""
        self.last_heartbeat_ms: int | None = None
        """Of when the newest heartbeat is that arrived; None where there are none."""
        self._link: Link | None = None

    def run(self) -> None:
        """Raises Doubt, or whatever else stopped it; `steps` says where. It may be run again at any time."""
        with self.steps.step("link") as step:
            link, control = identity.prepare(
                self.settings, False, Deadline(CALL_S), make=False, ask_source=False
            )
            survey = Survey(self.settings, link, control)
            step.found = [
                f"target cluster {link.target_cluster}; the source, {link.source_cluster}, is not asked"
            ]
        with (
            closing(survey),
            closing(Standings(self.settings, survey.target_admin, control, survey.tail)) as standings,
        ):
            with self.steps.step("stopped") as step:
                self._stopped(standings, step)
            with self.steps.step("staging") as step:
                self._staging(standings, step)
            doubt: Doubt | None = None
            try:
                with self.steps.step("groups") as step:
                    self._groups(survey, step)
            except Doubt as refused:
                doubt = refused  # what is missing wants to be known all the same
            with self.steps.step("missing") as step:
                self._missing(survey, step)
            if doubt is not None:
                raise doubt

    def _stopped(self, standings: Standings, step: Step) -> None:
        def look() -> list[str]:
            # With the source back in the middle of it, it would not be certain any more what is missing, or
            # where a group stands.
            return [
                f"the {name} still runs, or has died within the last seconds: stop it"
                if name == "replicator"
                else f"`{name}` still runs, or has died within the last seconds: stop it"
                for name in ("replicator", OFFSETS)
                if standings.led(name, Deadline(CALL_S))
            ]

        wait_for(look, Deadline(self.options.wait_s))
        step.found = ["neither replicator nor offsets runs"]

    def _staging(self, standings: Standings, step: Step) -> None:
        def look() -> list[str]:
            self._link = standings.look(Deadline(CALL_S))
            waiting = self._link.waiting()
            if waiting and not standings.led(DEDUPLICATOR, Deadline(CALL_S)):
                raise Doubt(f"{listed(waiting)}; the deduplicator does not run: start it")
            return waiting

        try:
            wait_for(look, Deadline(self.options.wait_s))
        except Doubt as doubt:
            raise Doubt(f"not all that is staged is delivered: {doubt}") from None

        def pending() -> list[str]:
            settled = standings.settled(Deadline(CALL_S))
            return [] if settled else ["a transaction of the deduplicator is not over"]

        wait_for(pending, Deadline(self.options.wait_s))
        # Once more, now that the last transaction can be read.
        self._link = standings.look(Deadline(CALL_S))
        stuck = sum(standing.stuck is not None for standing in self._link.partitions.values())
        step.found = ["all that is staged is delivered"]
        if stuck:
            step.found.append(f"but for {stuck} partitions that stand still")

    def _groups(self, survey: Survey, step: Step) -> None:
        if self.settings.provenance_headers:
            step.found = [UNTRANSLATED]
            return
        survey.load()
        survey.moves_groups = True  # a move that ended half-way is never gone on with: there is no source
        rows = last_look(survey)
        with closing(RecordLog(self.settings, survey.records)) as record_log:
            self.rows = write_offsets(rows, survey.target, record_log, Deadline(CALL_S))
        groups = {row.key.group for row in self.rows}
        written = sum(row.record.outcome == "written" for row in self.rows)
        step.found = [f"{len(groups)} groups, {len(self.rows)} partitions, {written} written"]
        # The consumers of a promoted topic are at the target for good.
        others = destinations(survey.control.state.steering.promotions)
        left = [
            row
            for row in self.rows
            if row.record.outcome in NOT_APPLIED
            and not (row.record.outcome == "active" and row.record.destination_topic in others)
        ]
        if left:
            raise Doubt(
                listed(
                    [
                        f"group {row.record.target_group}, {row.record.destination_topic}-{row.record.destination_partition}: {row.record.outcome}"
                        for row in left
                    ]
                )
            )

    def _missing(self, survey: Survey, step: Step) -> None:
        assert self._link is not None
        state = survey.control.state
        others = destinations(state.steering.promotions)
        self._tell_missing(
            self._link, survey.target_admin, lambda name: name in others or state.has_several_sources(name)
        )
        behind = [m for m in self.missing if m.at_least or m.why is not None or m.delivered is None]
        step.found = [
            f"of {len(behind)} partitions records are known to be missing"
            if behind
            else "nothing is known to be missing; what the source got after the last of it is not known"
        ]
        if not self.settings.provenance_headers:
            left = hand_over(survey, delivered(self._link, self.settings.heartbeats_topic), "failover")
            step.found += [f"no way back is known for {what}" for what in left]

    def _tell_missing(
        self, link: Link, admin: AdminClient, is_written_by_others: Callable[[str], bool]
    ) -> None:
        names = sorted({s.destination for s in link.partitions.values() if s.destination})
        there = topics.describe(admin, names, Deadline(CALL_S)) if names else {}
        partitions = [(t.name, p) for t in there.values() for p in range(t.partitions)]
        found = newest_records(self.settings, admin, partitions, Deadline(CALL_S))
        # Where several source topics meet, or others write, the newest record may be of any of them.
        own = {at: newest for at, newest in found.items() if not is_written_by_others(at[0])}
        self.missing = missing(link, self.rows, own)
        beats = [s.destination for s in link.partitions.values() if s.topic == self.settings.heartbeats_topic]
        self.last_heartbeat_ms = next((found.get((name, 0)) for name in beats if name), None)
        self.last_staged_ms = last_staged(self.settings, admin, Deadline(CALL_S))
