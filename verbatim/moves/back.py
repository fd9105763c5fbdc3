"""Turns a link round, after a cutover or a failover: makes sure that what was written down where its copies
end still holds, tells record by record what the source has that was never copied, and writes the settings of
the link back. Options and output are verbatim/commands/back.py's part.

Nothing is changed but what was asked for: topics of the source that hold such records are emptied on request,
once those are exported and all others were compared with their copies. With the settings written, the link is
paused: started by mistake it would copy again what comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from confluent_kafka import TopicPartition

from common.errors import LinkRefused, SettingsError
from common.kafka.client import topics
from common.kafka.client.topics import TopicInfo
from common.kafka.errors import future_result, retrying
from common.link import identity
from common.link.control_kinds import HandedOver, Pause
from common.link.control_records import DEDUPLICATOR, REPLICATOR
from common.link.routed import NO_WAY_BACK, refuse_routes
from common.partitions import PartitionName
from common.ports import Deadline
from offsets.service import NAME as OFFSETS
from offsets.survey import Survey
from replicator.driver.planner import selected
from verbatim.moves import back_rules as rules
from verbatim.moves.back_rules import Uncopied
from verbatim.moves.back_settings import back_name, back_settings
from verbatim.moves.link_progress import Standings
from verbatim.moves.steps import Doubt, Step, Steps, listed, wait_for
from verbatim.moves.uncopied import Export, Left, left_behind
from verbatim.pipeline.keys import keys_of
from verbatim.verify.link import Options as VerifyOptions
from verbatim.verify.link import verify_link

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 30.0
Tails = Literal["refuse", "keep", "empty"]


@dataclass
class Options:
    """`settings`: the file to write; `name`: of the link back; `tails`: what becomes of topics at the source
    that hold records which were never copied; `export`: the file that these go to; `left`: is told of each;
    `wait_s`: how long the applications in `stopped` are waited for to be so."""

    settings: Path | None = None
    name: str | None = None
    tails: Tails = "refuse"
    export: Path | None = None
    wait_s: float = 60.0
    stopped: tuple[str, ...] = (REPLICATOR, DEDUPLICATOR, OFFSETS)
    tell: Callable[[Step], None] = lambda step: None
    left: Callable[[Left], None] = lambda left: None


@dataclass
class Count:
    """Records of a source partition that were never copied; `gone`: offsets that the source itself has no
    more. Timestamps in ms since 1970, of the oldest and the newest."""

    topic: str
    partition: int
    records: int = 0
    value_bytes: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    oldest_ms: int | None = None
    newest_ms: int | None = None
    gone: int = 0

    def add(self, left: Left) -> None:
        self.records += 1
        self.value_bytes += left.value_bytes or 0
        self.first_offset = left.offset if self.first_offset is None else self.first_offset
        self.last_offset = left.offset
        self.oldest_ms = min(self.oldest_ms or left.timestamp_ms, left.timestamp_ms)
        self.newest_ms = max(self.newest_ms or left.timestamp_ms, left.timestamp_ms)


@dataclass
class Report:
    """What a run has found: where copies end, and what was never copied, of partitions with any."""

    name: str
    handed: list[HandedOver] = field(default_factory=list)
    uncopied: list[Count] = field(default_factory=list)

    @property
    def records(self) -> int:
        return sum(of.records for of in self.uncopied)


class Back:
    """One run. `steps` and `report` tell of it."""

    def __init__(self, settings: Settings, options: Options) -> None:
        # Nobody needs heartbeats back.
        self.settings = settings.without_heartbeats() if settings.heartbeats_interval_s else settings
        self.options = options
        self.steps = Steps(options.tell)
        self.report = Report(back_name(settings.application_name, options.name))
        self._found: list[TopicInfo] = []
        self._read: dict[PartitionName, Uncopied] = {}

    def run(self) -> None:
        """Raises Doubt, or whatever else stopped it; `steps` says where. It may be run again at any time."""
        options, deadline = self.options, Deadline(CALL_S)
        if options.tails == "empty" and not (options.export and options.settings):
            raise SettingsError("--tails: empty goes with --export and --settings")
        if self.settings.provenance_headers:
            raise LinkRefused(
                "PROVENANCE_HEADERS: links in both directions tell their copies by these (docs: guides/two-way)"
            )
        with self.steps.step("link") as step:
            link, control = identity.prepare(self.settings, True, deadline, make=False)
            refuse_routes(control.refresh(deadline), self.settings.application_name, NO_WAY_BACK)
            survey = Survey(self.settings, link, control)
            step.found = [f"source cluster {link.source_cluster}, target cluster {link.target_cluster}"]
        with (
            closing(survey),
            closing(Standings(self.settings, survey.target_admin, control, survey.tail)) as standings,
        ):
            with self.steps.step("stopped") as step:
                self._stopped(survey, standings, step)
            with self.steps.step("copies") as step:
                self._copies(survey, standings, step)
            with self.steps.step("source") as step:
                self._source(survey, step)
            if options.tails == "empty" and any(of.records for of in self.report.uncopied):
                with self.steps.step("empty") as step:
                    self._empty(survey, step)
            if options.settings is not None:
                with self.steps.step("settings") as step:
                    self._write(survey, options.settings, step)

    def _stopped(self, survey: Survey, standings: Standings, step: Step) -> None:
        def look() -> list[str]:
            return [
                f"`{name}` still runs, or has died within the last seconds: stop it"
                for name in self.options.stopped
                if standings.led(name, Deadline(CALL_S))
            ]

        begun = f"{self.report.name}.control"
        if topics.describe(survey.source_admin, [begun], Deadline(CALL_S)):
            raise Doubt(f"the link {self.report.name} has begun: topic {begun} is at the source")
        wait_for(look, Deadline(self.options.wait_s))
        step.found = ["nothing of the link runs, and the link back has not begun"]

    def _copies(self, survey: Survey, standings: Standings, step: Step) -> None:
        deadline = Deadline(CALL_S)
        self._found = selected(self.settings, survey.source_admin, deadline)
        link = standings.look(deadline)
        bounds = topics.bounds(survey.source_admin, _partitions(self._found), deadline)
        held = {topic for (topic, _), (low, end) in bounds.items() if low < end}
        empty = {t.name for t in self._found} - held
        handed, doubts = rules.judge_handover(survey.control.state, link, self._found, empty)
        names = sorted({of.destination for of in handed})
        there = topics.describe(survey.target_admin, names, deadline)
        at_target = topics.bounds(survey.target_admin, _partitions(there.values()), deadline)
        doubts += rules.judge_target(handed, there, at_target)
        if doubts:
            raise Doubt(listed(doubts))
        self.report.handed = handed
        new = sum(
            max(0, at_target[of.destination, p][1] - end) for of in handed for p, end in enumerate(of.ends)
        )
        by = sorted({of.by for of in handed})
        step.found = [
            f"of {len(handed)} topics is known where their copies end ({', '.join(by)})",
            f"{new:,} offsets lie behind that at the target",
        ]

    def _source(self, survey: Survey, step: Step) -> None:
        """Raises Doubt where there is something that was never copied, and nobody has said what becomes of
        it."""
        deadline = Deadline(CALL_S)
        partitions = _partitions(self._found)
        bounds = topics.bounds(survey.source_admin, partitions, deadline)
        found = rules.never_copied(self.report.handed, bounds)
        stable = topics.ends(survey.source_admin, partitions, deadline, committed=True)
        if doubts := rules.judge_source(found, stable):
            raise Doubt(listed(doubts))
        self._read = found
        self._report(found)
        counts = [of for of in self.report.uncopied if of.records or of.gone]
        if not counts:
            step.found = ["it has nothing that was not copied"]
            return
        step.found = [
            f"{self.report.records:,} records of {len(counts)} partitions were never copied",
            *(f"{of.topic}-{of.partition}: {of.gone:,} more are gone there" for of in counts if of.gone),
        ]
        if self.options.export is not None:
            step.found.append(f"they are in {self.options.export}")
        if self.options.tails == "keep":
            # Its origin is the log's beginning: `verify` then takes the whole log for the link's.
            ends = {(of.topic, p): end for of in self.report.handed for p, end in enumerate(of.ends)}
            bare = [f"{of.topic}-{of.partition}" for of in counts if ends.get((of.topic, of.partition)) == 0]
            step.found += [
                f"what {name} keeps `verify` will call foreign: nothing of it was ever copied"
                for name in bare
            ]
        if self.report.records and self.options.tails == "refuse":
            raise Doubt(
                f"{'; '.join(step.found)}: say what becomes of them: --tails keep (they stay, below what is copied back) or empty"
            )

    def _report(self, found: dict[PartitionName, Uncopied]) -> None:
        export = None if self.options.export is None else Export(self.options.export)
        counts = {at: Count(*at, gone=of.low - of.start) for at, of in found.items()}
        try:
            for left in left_behind(self.settings, found, export):
                counts[left.topic, left.partition].add(left)
                self.options.left(left)
            if export is not None and any(of.records for of in counts.values()):
                export.finish()
        finally:
            if export is not None:
                export.drop()
        self.report.uncopied = [of for of in counts.values() if of.records or of.gone]

    def _empty(self, survey: Survey, step: Step) -> None:
        """Have deleted what topics of the source hold that have records which were never copied: all else of
        them comes back from the target, where it was compared before, and those are exported. Up to where
        they were read, no further. It is written down first: another run goes on from there."""
        left = {of.topic for of in self.report.uncopied if of.records}
        names = sorted(left & {of.topic for of in self.report.handed})
        configs = topics.configs(survey.source_admin, names, Deadline(CALL_S))
        if kept := [name for name in names if "delete" not in configs[name]["cleanup.policy"]]:
            raise Doubt(
                f"nothing is deleted: {listed(kept)}: of a compacted topic it can't be; make it again by hand"
            )
        compared = verify_link(self.settings, VerifyOptions(tuple(names), keys=keys_of(self.settings)))
        of_topic = {of.topic: of for of in self.report.handed}
        doubts = [d for p in compared.partitions for d in rules.differences(p, of_topic[p.topic])]
        if doubts:
            raise Doubt(f"nothing is deleted: {listed(doubts)}; see `verbatim verify`")
        emptied = [
            replace(
                of,
                emptied=True,
                delivered=tuple(read.end for at, read in sorted(self._read.items()) if at[0] == of.topic),
            )
            for of in self.report.handed
            if of.topic in names
        ]
        survey.control.append_all(emptied, Deadline(CALL_S))
        kept_as_they_are = [of for of in self.report.handed if of.topic not in names]
        self.report.handed = sorted(kept_as_they_are + emptied, key=lambda of: of.topic)
        step.found = [f"all of it is at the target, or in {self.options.export}: {', '.join(names)}"]

    def _write(self, survey: Survey, path: Path, step: Step) -> None:
        _delete(survey, self.report.handed)
        text = back_settings(self.settings, self.report.handed, self.report.name)
        part = path.with_name(path.name + ".part")
        try:
            part.write_text(text)
            part.replace(path)
        except OSError as error:
            raise SettingsError(f"--settings: {path}: {error.strerror}") from None
        survey.control.append(Pause((), True), Deadline(CALL_S))
        step.found = [
            f"{path} has the settings of the link {self.report.name}; this one is paused: it would copy again what comes back"
        ]


def _partitions(found: Iterable[TopicInfo]) -> list[PartitionName]:
    return [(t.name, p) for t in found for p in range(t.partitions)]


def _delete(survey: Survey, handed: Iterable[HandedOver]) -> None:
    """Delete at the source what was said to be, up to there: again does no harm. Raises LinkRefused,
    KafkaTimeout, KafkaException."""
    due = [
        TopicPartition(of.topic, p, end) for of in handed if of.emptied for p, end in enumerate(of.delivered)
    ]

    def ask(timeout: float) -> None:
        for future in survey.source_admin.delete_records(due, request_timeout=timeout).values():
            future_result(future, timeout + 1)

    if due:
        names = listed(sorted({at.topic for at in due}))
        retrying(f"deleting records of {names} at the source (DELETE)", ask, Deadline(CALL_S))
