"""Verifies a link: chooses for each partition what can be compared, runs the comparison, collects the reports. Prints nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.errors import LinkRefused, SettingsError
from verbatim.verify.common_part import SAMPLE_OFFSETS, Plan, can_sample, common_part, windows
from verbatim.verify.compacted import check_compacted_mappings, compare_compacted
from verbatim.verify.comparison import Batch, Kind, PartitionReport
from verbatim.verify.control import Said, report_halts
from verbatim.verify.gone import Gone
from verbatim.verify.mappings import MappingCheck, Runs, check_shape
from verbatim.verify.partition import Comparison
from verbatim.verify.provenance import Provenance
from verbatim.verify.reading import (
    Cluster,
    LogStartMoved,
    Mappings,
    PartitionMappings,
    TopicState,
    read_control,
    read_mappings,
)
from verbatim.verify.several import Claims, claimed, report_unclaimed

if TYPE_CHECKING:
    from common.config.settings import Settings

_ATTEMPTS = 3


@dataclass
class LinkReport:
    partitions: list[PartitionReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def failed(self, allow_behind: bool = False) -> bool:
        """Whether anything was found. With `allow_behind`, a record that has not arrived yet is nothing."""
        return any(p.findings or (p.behind and not allow_behind) for p in self.partitions)


@dataclass
class Options:
    """`sample`: fraction of the offsets to compare, None for all; `timeout_s`: for each answer of a cluster."""

    topics: tuple[str, ...] = ()
    sample: float | None = None
    seed: int = 0
    timeout_s: float = 60.0
    # (records read, records to read in all, what is being read)
    on_progress: Callable[[int, int, str], None] = lambda done, total, what: None


def verify_link(settings: Settings, options: Options) -> LinkReport:
    """Compares what the settings select. Raises SettingsError, LinkRefused, KafkaTimeout or VerbatimError."""
    began = time.monotonic()
    with (
        Cluster(settings, "source", options.timeout_s) as source,
        Cluster(settings, "destination", options.timeout_s) as destination,
    ):
        cluster_id = source.cluster_id()
        names = _select(settings, options, source)
        to = {name: settings.destination_topic(name, settings.source_name or cluster_id) for name in names}
        several = settings.several_sources == "merge"
        if not several:
            _refuse_shared(to)
        states = {name: state for name in names if (state := source.topic(name)) is not None}
        report = LinkReport()
        topics = {name: (state.topic_id, to[name]) for name, state in states.items()}
        # Before the mappings are read: so each record below is in one of them.
        ends = _ends(destination, sorted(set(to.values()))) if several else {}
        with Mappings(cluster_id, topics, several) as mappings:
            read_mappings(destination, settings.mappings_topic, mappings)
            said = read_control(destination, settings.control_topic, settings.application_name)
            clusters = (cluster_id, destination.cluster_id()) if settings.provenance_headers else None
            names_there = source.topic_names() if several else ()
            together = settings.by_destination(names_there, settings.source_name or cluster_id)
            link = _Link(settings, options, source, destination, mappings, said, clusters, ends, together)
            for name, state in states.items():
                link.add(name, state, to[name], destination.topic(to[name]))
            report.partitions = link.run()
        if options.sample is not None:
            report.notes.append(
                f"sampled ({options.sample:g} of the offsets, seed {options.seed}, windows of {SAMPLE_OFFSETS}): not told are records"
                " lost, altered or duplicated outside of the windows, and whether records moved from one window to another"
            )
        report.seconds = time.monotonic() - began
    return report


def _select(settings: Settings, options: Options, source: Cluster) -> list[str]:
    names = [name for name in source.topic_names() if settings.selects(name)]
    for name in options.topics:
        if name not in names:
            raise SettingsError(
                f"--topic: {name} is not among the source topics that KAFKA_CLUSTERS_SOURCE_TOPIC selects"
            )
    if not names:
        raise SettingsError("KAFKA_CLUSTERS_SOURCE_TOPIC selects no topic of the source cluster")
    return [name for name in names if not options.topics or name in options.topics]


def _refuse_shared(to: dict[str, str]) -> None:
    taken: dict[str, str] = {}
    for name, target in to.items():
        other = taken.setdefault(target, name)
        if other != name:
            raise LinkRefused(
                f"topics {other} and {name} have one destination, {target}, and SEVERAL_SOURCES is fail"
            )


def _ends(cluster: Cluster, topics: list[str]) -> dict[tuple[str, int], int]:
    states = {name: state for name in topics if (state := cluster.topic(name)) is not None}
    return {
        (name, p): cluster.bounds(name, p)[1]
        for name, state in states.items()
        for p in range(state.partitions)
    }


class _Link:
    def __init__(
        self,
        settings: Settings,
        options: Options,
        source: Cluster,
        destination: Cluster,
        mappings: Mappings,
        said: Said,
        clusters: tuple[str, str] | None,
        ends: dict[tuple[str, int], int],
        together: dict[str, set[str]],
    ) -> None:
        self._together = together
        """Destination -> the source topics whose name the settings make that, also those that are not compared."""
        self._ends = ends
        """Where the destinations' partitions ended before the mappings were read, where several source topics may meet."""
        self._topics: dict[str, list[str]] = {}
        """Destination -> the source topics that are compared with it."""
        self._claims: Claims | None = None
        """Of the destination's records those of the partition that is compared, where it is not alone there."""
        self._settings = settings
        self._options = options
        self._source = source
        self._destination = destination
        self._mappings = mappings
        self._said = said
        self._clusters = clusters
        """The cluster ids of source and target, where records are judged by their provenance."""
        self._provenance: Provenance | None = None
        self._work: list[tuple[str, TopicState, str, TopicState | None, int]] = []
        self._done = self._total = 0
        self._doing = ""
        source.on_records = destination.on_records = self._progress

    def add(self, topic: str, state: TopicState, target: str, target_state: TopicState | None) -> None:
        self._topics.setdefault(target, []).append(topic)
        for partition in range(max(state.partitions, target_state.partitions if target_state else 0)):
            self._work.append((topic, state, target, target_state, partition))
            self._total += sum(
                end - begin for begin, end in self._bounds(topic, state, target, target_state, partition)
            )

    def run(self) -> list[PartitionReport]:
        reports = []
        for topic, state, target, target_state, partition in self._work:
            self._doing = f"{topic}/{partition}"
            reports.append(self._partition(topic, state, target, target_state, partition))
        return reports

    def _progress(self, records: int) -> None:
        self._done += records
        self._options.on_progress(self._done, self._total, self._doing)

    def _bounds(
        self, topic: str, state: TopicState, target: str, target_state: TopicState | None, partition: int
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Both sides' (log start, end); the destination's first, so that all it holds is below the source's end."""
        theirs = (
            self._destination.bounds(target, partition)
            if target_state and partition < target_state.partitions
            else (0, 0)
        )
        ours = self._source.bounds(topic, partition) if partition < state.partitions else (0, 0)
        return ours, theirs

    def _partition(
        self, topic: str, state: TopicState, target: str, target_state: TopicState | None, partition: int
    ) -> PartitionReport:
        for attempt in range(_ATTEMPTS):
            report = PartitionReport(topic, partition, target)
            if target_state is None or partition >= target_state.partitions:
                report.note(
                    "the destination has no such " + ("topic" if target_state is None else "partition")
                )
            try:
                self._compare(report, state, target_state)
            except LogStartMoved:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            now = self._source.topic(topic)
            if now is None or now.topic_id != state.topic_id:
                report.note(
                    "the source topic was deleted or re-created while it was read: this report means nothing"
                )
            break
        return report

    def _compare(self, report: PartitionReport, state: TopicState, target_state: TopicState | None) -> None:
        topic, partition, target = report.topic, report.partition, report.destination_topic
        entry = self._mappings.of(topic, partition)
        runs = self._mappings.runs(topic, partition)
        report_halts(self._said.halts(state.topic_id, partition), report)
        sound = runs is not None and check_shape(runs, report)
        self._note_mappings(report, entry)
        searchable = runs if sound else None
        self._claims = None
        if self._mappings.several and self._others(topic, target):
            self._claims = Claims([] if runs is None else [runs])
            self._among_others(report)
        if searchable is not None and len(searchable):
            self._await_end(
                target, partition, target_state, int(searchable.destination[-1] + searchable.length[-1])
            )
        ours, theirs = self._bounds(topic, state, target, target_state, partition)
        origin = self._said.origins.get((topic, state.topic_id, partition))
        earliest = self._settings.start_offsets == "earliest"
        others = self._said.topic_ids.get(topic, set()) - {state.topic_id}
        plan = common_part(
            report, ours, theirs, entry, origin, earliest, others | (entry.other_topic_ids - {state.topic_id})
        )
        if (plan.lenient_source or plan.lenient_destination) and searchable:
            plan = self._hinted(report, plan, searchable)
        if self._claims is not None:
            self._leave_out_untold(report, plan, runs)
        elif runs is None or runs.start > plan.source[0]:
            since = "at all" if runs is None else f"below source offset {runs.start}"
            report.note(
                f"no offset mappings {since} (they expire after the retention of their topic): judged without them"
            )
        delivered = entry.next if entry.start is not None else None
        if self._claims is not None and searchable is not None:
            delivered = self._visible(report, searchable, theirs[1])
        compacted = state.compacted or bool(target_state and target_state.compacted)
        gone = None if compacted else self._gone(report, state, plan, entry.start, delivered)
        if compacted and self._clusters is not None:
            report.note(
                "compacted, and written by others too: a copy may be gone for a record of theirs, so only the mappings are checked"
            )
            if searchable is not None:
                check_compacted_mappings(*self._sides(report, plan), searchable, report)
                self._tell_provenance(report)
        elif compacted:
            self._compacted(report, state, plan, searchable, delivered)
        elif self._options.sample is not None and can_sample(report, plan, searchable):
            assert searchable is not None
            for window in windows(report, plan, searchable, self._options.sample, self._options.seed):
                self._run(report, window, searchable, min(window.source[1], delivered or 0))
        else:
            self._run(report, plan, searchable, delivered, gone)
        if gone is not None:
            gone.finish()

    @staticmethod
    def _note_mappings(report: PartitionReport, entry: PartitionMappings) -> None:
        target, partition = report.destination_topic, report.partition
        for begin, end in entry.holes:
            report.add(
                Kind.MAPPING,
                min(begin, end),
                None,
                "covered twice" if end < begin else "a range that no mapping covers",
            )
        if entry.other_destinations:
            report.note(
                f"mappings to {', '.join(sorted(entry.other_destinations))} were left out: the template says {target}/{partition}"
            )
        if entry.accepted_loss:
            report.note(f"an operator accepted the loss of {entry.accepted_loss} source offsets")

    def _gone(
        self, report: PartitionReport, state: TopicState, plan: Plan, start: int | None, delivered: int | None
    ) -> Gone | None:
        """What notes down the head that the destination has no more; of it `plan` may know already."""
        origin = self._said.origins.get((report.topic, state.topic_id, report.partition))
        if origin is None:
            origin = 0 if self._settings.start_offsets == "earliest" else start
        if plan.destination[0] == 0 or origin is None:
            return None
        keeps_from_ms = None if state.retention_ms is None else time.time() * 1000 - state.retention_ms
        gone = Gone(report, delivered, origin, keeps_from_ms)
        of_link = None if self._clusters is None else Provenance(*self._clusters).source
        for batch in self._source.records(report.topic, report.partition, *plan.gone, of_link):
            gone.take(*batch)
        return gone

    def _await_end(self, target: str, partition: int, target_state: TopicState | None, end: int) -> None:
        """The markers of one transaction reach the partitions one after the other: the mappings can be visible first."""
        give_up = time.monotonic() + 10
        while target_state and partition < target_state.partitions and time.monotonic() < give_up:
            if self._destination.bounds(target, partition)[1] >= end:
                return
            time.sleep(0.2)

    def _hinted(self, report: PartitionReport, plan: Plan, runs: Runs) -> Plan:
        """Lets the mappings say where the common part begins, if the records there prove them right."""
        begin, target_begin = plan.source[0], plan.destination[0]
        if runs.start > begin and not plan.lenient_source:
            return plan
        if plan.lenient_source:
            found = runs.first_source_at_or_after(target_begin)
            if found is None or runs.start > found:
                return plan
            begin = max(begin, found)
        mapped = runs.first_at_or_after(begin)
        if mapped is None:
            return plan
        target_begin = max(target_begin, mapped)
        both = self._sides(report, Plan((begin, plan.source[1]), (target_begin, plan.destination[1])))
        ours, theirs = (next(iter(side), ([], []))[1] for side in both)
        if not ours or not theirs or theirs[0] not in ours[:100]:
            return plan
        return Plan(
            (begin, plan.source[1]), (target_begin, plan.destination[1]), gone=(plan.source[0], begin)
        )

    def _sides(self, report: PartitionReport, plan: Plan) -> tuple[Iterable[Batch], Iterable[Batch]]:
        of_link = self._provenance = None if self._clusters is None else Provenance(*self._clusters)
        there: Iterable[Batch] = self._destination.records(
            report.destination_topic,
            report.partition,
            *plan.destination,
            None if of_link is None else of_link.destination,
        )
        return (
            self._source.records(
                report.topic, report.partition, *plan.source, None if of_link is None else of_link.source
            ),
            there if self._claims is None else claimed(there, self._claims),
        )

    def _others(self, topic: str, target: str) -> set[str]:
        return (self._together.get(target, set()) | self._mappings.topics_in(target)) - {topic}

    def _leave_out_untold(self, report: PartitionReport, plan: Plan, runs: Runs | None) -> None:
        """Where mappings may have expired, what lies before the first that is there can't be told from others' records."""
        if self._mappings.known_from(report.destination_topic, report.partition) == 0:
            return
        begin = plan.source[1] if runs is None else max(plan.source[0], runs.start)
        if begin > plan.source[0]:
            report.note(
                f"no offset mappings below source offset {begin}: which record is whose can't be told, so not compared"
            )
            plan.source = (begin, plan.source[1])

    def _visible(self, report: PartitionReport, runs: Runs, stable: int) -> int:
        """The source offset below which all is to be seen at the destination, whose last stable offset is given: what lies behind an open
        transaction of another source is committed, and nobody sees it yet."""
        hidden = runs.first_source_at_or_after(stable)
        if hidden is None:
            return runs.next
        end = self._destination.high_watermark(report.destination_topic, report.partition)
        if int(runs.destination[-1] + runs.length[-1]) > end:
            return runs.next  # not hidden but gone, with its log
        report.note(
            f"another source's transaction is open at destination offset {stable}: what lies behind it can't be read yet, and counts as behind"
        )
        return hidden

    def _among_others(self, report: PartitionReport) -> None:
        """Notes what the comparison goes by, and looks once in each destination partition for records that are nobody's."""
        topic, partition, target = report.topic, report.partition, report.destination_topic
        others = ", ".join(sorted(self._others(topic, target)))
        report.note(f"meets {others} in its destination: which record is whose, the mappings tell")
        if self._topics[target][0] != topic or (target, partition) not in self._ends:
            return
        runs = [r for name in self._topics[target] if (r := self._mappings.runs(name, partition)) is not None]
        claims = Claims(runs + self._mappings.others(target, partition))
        claims.check_apart(report)
        if self._options.sample is not None:
            report.note("sampled: records at the destination that no mapping leads to are not looked for")
            return
        begin = self._destination.bounds(target, partition)[0]
        batches = self._destination.records(target, partition, begin, self._ends[(target, partition)])
        report_unclaimed(batches, claims, self._mappings.known_from(target, partition), report)

    def _tell_provenance(self, report: PartitionReport) -> None:
        if self._provenance is not None:
            self._provenance.tell(report)

    def _run(
        self,
        report: PartitionReport,
        plan: Plan,
        runs: Runs | None,
        delivered: int | None,
        gone: Gone | None = None,
    ) -> None:
        check = MappingCheck(runs, report) if runs is not None else None
        Comparison(
            *self._sides(report, plan),
            report,
            mappings=check,
            delivered_below=delivered,
            lenient_source=plan.lenient_source,
            lenient_destination=plan.lenient_destination,
            gone=gone,
        ).run()
        if check is not None:
            check.finish()
        self._tell_provenance(report)

    def _compacted(
        self, report: PartitionReport, state: TopicState, plan: Plan, runs: Runs | None, delivered: int | None
    ) -> None:
        records = max(plan.source[1] - plan.source[0], plan.destination[1] - plan.destination[0])
        trimmed = plan.lenient_destination or plan.source[0] > 0 or state.deletes
        compare_compacted(
            lambda: self._sides(report, plan),
            report,
            records=records,
            delivered_below=delivered,
            trimmed=trimmed,
        )
        if runs is not None:
            check_compacted_mappings(*self._sides(report, plan), runs, report)
