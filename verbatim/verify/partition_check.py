"""Verifies one partition of a link: chooses what of both sides can be compared and by what, and runs the
comparison. Prints nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from common.partitions import PartitionName
from verbatim.verify.common_part import Plan, can_sample, common_part, of_known_versions, windows
from verbatim.verify.compacted import check_compacted_mappings, compare_compacted
from verbatim.verify.comparison import Batch, Kind, PartitionReport, as_it_is
from verbatim.verify.control import Said, report_halts
from verbatim.verify.expected import Expected, Pipelines, Place
from verbatim.verify.gone import Gone
from verbatim.verify.letters import Letters, PartitionLetters
from verbatim.verify.link_mappings import Mappings, PartitionMappings, place_of
from verbatim.verify.mappings import MappingCheck, Runs, check_shape
from verbatim.verify.partition import Comparison
from verbatim.verify.provenance import Provenance, every
from verbatim.verify.reading import Cluster, LogStartMoved, TopicState
from verbatim.verify.several import Claims, claimed, leave_out_unmapped, report_unclaimed, visible_below

_ATTEMPTS = 3


@dataclass(frozen=True)
class Pair:
    """A source partition and where it goes, a topic, or `topic/partition`; `target_state` None: no such
    topic. `own`: the link's own destination, where a stage of the pipeline takes records to this one
    instead."""

    topic: str
    partition: int
    state: TopicState
    target: str
    target_state: TopicState | None
    own: str | None = None

    @property
    def at(self) -> PartitionName:
        return self.topic, self.partition

    @property
    def to(self) -> PartitionName:
        return place_of(self.target, self.partition)

    @property
    def is_there(self) -> bool:
        """Whether the destination has the partition."""
        return self.target_state is not None and self.to[1] < self.target_state.partitions


@dataclass
class LinkContext:
    """What is known of a link before its partitions are compared.

    `hear` has `said` take in what is new. `destinations`: by source topic, of those that are compared, its
    own first, then those that stages take its records to.
    `clusters`: the cluster ids of source and target, where records are judged by their provenance. `sample`:
    fraction and seed. `ends`: where the destinations' partitions ended before the mappings were read, where
    several source topics may meet. `together`: destination -> the source topics whose name the settings make
    that, also those that are not compared."""

    source: Cluster
    destination: Cluster
    mappings: Mappings
    said: Said
    hear: Callable[[], None]
    destinations: Mapping[str, Sequence[str]]
    from_earliest: bool
    clusters: tuple[str, str] | None
    sample: tuple[float, int] | None
    ends: dict[PartitionName, int]
    pipelines: Pipelines
    letters: Letters
    together: dict[str, set[str]]

    def bounds(self, pair: Pair) -> tuple[tuple[int, int], tuple[int, int]]:
        """Both sides' (log start, end); the destination's first, so that all it holds is below the source's
        end."""
        theirs = self.destination.bounds(*pair.to) if pair.is_there else (0, 0)
        if (end := self.copies_end(pair)) is not None:
            theirs = (min(theirs[0], end), min(theirs[1], end))
        ours = self.source.bounds(*pair.at) if pair.partition < pair.state.partitions else (0, 0)
        return ours, theirs

    def copies_end(self, pair: Pair) -> int | None:
        """Where the destination's copies end, if others write behind them."""
        return self.said.copies_end(pair.topic, pair.state.topic_id, pair.partition)

    def others(self, pair: Pair) -> set[str]:
        """Other source topics that meet there."""
        found = self.together.get(pair.target, set()) | self.mappings.topics_in(pair.to[0])
        return found - {pair.topic}

    def is_spread(self, topic: str) -> bool:
        """Whether records of several source partitions meet in the partitions of a topic, by their keys."""
        each = {target for targets in self.destinations.values() for target in targets}
        return any("/" in target and place_of(target, 0)[0] == topic for target in each)


def check_partition(link: LinkContext, pair: Pair) -> PartitionReport:
    """Compares a partition, from the beginning again where retention was quicker. Raises LogStartMoved where
    it always is."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(LogStartMoved):
            return _checked(link, pair)
    return _checked(link, pair)


def _checked(link: LinkContext, pair: Pair) -> PartitionReport:
    report = PartitionReport(pair.topic, pair.partition, pair.target)
    if not pair.is_there:
        report.note(f"the destination has no such {'partition' if pair.target_state else 'topic'}")
    _PartitionCheck(link, pair, report).run()
    now = link.source.topic(pair.topic)
    if now is None or now.topic_id != pair.state.topic_id:
        report.note("the source topic was deleted or re-created while it was read: this report means nothing")
    return report


class _PartitionCheck:
    def __init__(self, link: LinkContext, pair: Pair, report: PartitionReport) -> None:
        self._link = link
        self._pair = pair
        self._report = report
        self._entry = link.mappings.of(*pair.at, pair.target)
        self._runs = link.mappings.runs(*pair.at, pair.target)
        self._sound: Runs | None = None
        """The runs, if they can be searched."""
        self._claims: Claims | None = None
        """Of the destination's records those of this partition, where it is not alone there."""
        self._provenance: Provenance | None = None
        self._expected: Expected | None = None
        """Both of the last reading."""

    def run(self) -> None:
        self._compared()
        if self._expected is not None:
            self._expected.finish(self._report, self._entry.accepted_loss)
            self._expected.tell_versions(self._report)
        elif letters := self._letters.first:
            self._report.add(Kind.FOREIGN, min(letters), None, "dead letters, but no flow", len(letters))

    def _compared(self) -> None:
        link, pair, report = self._link, self._pair, self._report
        report_halts(link.said.halts(pair.state.topic_id, pair.partition, pair.to[0]), report)
        if self._runs is not None and check_shape(self._runs, report):
            self._sound = self._runs
        _note_mappings(self._entry, report)
        if link.mappings.several and (link.is_spread(pair.to[0]) or link.others(pair)):
            self._claims = Claims([] if self._runs is None else [self._runs])
            self._among_others(link.others(pair))
        if (end := link.copies_end(pair)) is not None:
            report.note(f"promoted: what others have written there, from offset {end} on, is not compared")
        if self._sound:
            end = int(self._sound.destination[-1] + self._sound.length[-1])
            if pair.is_there:
                link.destination.settled(*pair.to, end)
        ours, theirs = link.bounds(pair)
        plan = self._plan(ours, theirs)
        delivered = self._delivered(theirs[1])
        if self._is_compacted:
            self._compacted(plan, delivered)
            return
        gone = self._gone(plan, delivered)
        if link.sample is not None and can_sample(report, plan, self._sound):
            assert self._sound is not None
            self._expected = None
            for window in windows(report, plan, self._sound, *link.sample):
                self._compare(window, min(window.source[1], delivered or 0), goes_on=True)
        else:
            self._compare(plan, delivered, gone)
        if gone is not None:
            gone.finish()

    def _origin(self) -> int | None:
        return self._link.said.origins.get(
            (self._pair.topic, self._pair.state.topic_id, self._pair.partition)
        )

    def _plan(self, ours: tuple[int, int], theirs: tuple[int, int]) -> Plan:
        link, report, runs, topic = self._link, self._report, self._runs, self._pair.topic
        earlier = link.said.topic_ids.get(topic, set()) | self._entry.other_topic_ids
        earlier = earlier - {self._pair.state.topic_id}
        accepted = self._pair.to[0] in link.said.accepted
        plan = common_part(
            report, ours, theirs, self._entry, self._origin(), link.from_earliest, earlier, accepted
        )
        # After the ends were asked for: below them lies nothing of a version that comes now.
        link.hear()
        if link.pipelines.touch(topic) or link.said.pipeline != link.pipelines.newest:
            of_known_versions(report, plan, self._entry, self._sound, link.said.pipeline)
        if (plan.lenient_source or plan.lenient_destination) and self._sound:
            plan = self._hinted(plan, self._sound)
        if self._claims is not None:
            leave_out_unmapped(plan, runs, link.mappings.known_from(*self._pair.to), report)
        elif runs is None or runs.start > plan.source[0]:
            since = "at all" if runs is None else f"below source offset {runs.start}"
            report.note(
                f"no offset mappings {since} (they expire after the retention of their topic): judged without them"
            )
        return plan

    def _delivered(self, stable: int) -> int | None:
        """The source offset below which all must be there to be seen; None where no mapping tells."""
        if self._claims is not None and self._sound is not None:
            end = self._link.destination.high_watermark(*self._pair.to) if self._pair.is_there else 0
            return visible_below(self._sound, stable, end, self._report)
        return self._entry.next if self._entry.start is not None else None

    def _gone(self, plan: Plan, delivered: int | None) -> Gone | None:
        """What notes down the head that the destination has no more; of it `plan` may know already."""
        link, retention_ms = self._link, self._pair.state.retention_ms
        origin = self._origin()
        if origin is None:
            origin = 0 if link.from_earliest else self._entry.start
        if plan.destination[0] == 0 or origin is None:
            return None
        keeps_from_ms = None if retention_ms is None else time.time() * 1000 - retention_ms
        gone = Gone(self._report, delivered, origin, keeps_from_ms)
        of_link = every if link.clusters is None else Provenance(*link.clusters).source
        expected = self._expecting()
        judge = as_it_is if expected is None else expected.source
        for batch in link.source.records(*self._pair.at, *plan.gone, of_link, judge):
            gone.take(*batch)
        return gone

    def _hinted(self, plan: Plan, runs: Runs) -> Plan:
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
        hinted = Plan(
            (begin, plan.source[1]), (target_begin, plan.destination[1]), gone=(plan.source[0], begin)
        )
        ours, theirs = (next(iter(side), ([], []))[1] for side in self._sides(hinted))
        return hinted if ours and theirs and theirs[0] in ours[:100] else plan

    def _sides(self, plan: Plan, goes_on: bool = False) -> tuple[Iterable[Batch], Iterable[Batch]]:
        """A reading. `goes_on`: it counts together with the one before."""
        link, pair = self._link, self._pair
        of_link = self._provenance = None if link.clusters is None else Provenance(*link.clusters)
        here, there = (every, every) if of_link is None else (of_link.source, of_link.destination)
        if not goes_on or self._expected is None:
            self._expected = self._expecting()
        expected = self._expected
        wanted, found = (as_it_is, as_it_is) if expected is None else (expected.source, expected.destination)
        theirs = link.destination.records(*pair.to, *plan.destination, there, found)
        return (
            link.source.records(*pair.at, *plan.source, here, wanted),
            theirs if self._claims is None else claimed(theirs, self._claims),
        )

    def _among_others(self, others: set[str]) -> None:
        """Notes what the comparison goes by, and looks once in each destination partition for records that
        are nobody's."""
        link, (target, partition), report = self._link, self._pair.to, self._report
        if others:
            report.note(
                f"meets {', '.join(sorted(others))} in its destination: which record is whose, the mappings tell"
            )
        here = [
            (topic, text) for topic, to in link.destinations.items() for text in to
            if text in (target, f"{target}/{partition}")
        ]  # fmt: skip
        # Of several source partitions the first.
        first = next(
            ((topic, 0, text) for topic, text in here if "/" in text), (here[0][0], partition, here[0][1])
        )
        pair = (self._pair.topic, self._pair.partition, self._pair.target)
        if pair != first or (target, partition) not in link.ends:
            return
        runs: list[Runs] = []
        for topic, text in here:
            if "/" in text:
                runs += link.mappings.all_into(topic, text)
            elif (found := link.mappings.runs(topic, partition, text)) is not None:
                runs.append(found)
        claims = Claims(runs + link.mappings.others(target, partition))
        claims.check_apart(report)
        if link.sample is not None:
            report.note("sampled: records at the destination that no mapping leads to are not looked for")
            return
        begin = link.destination.bounds(target, partition)[0]
        batches = link.destination.records(target, partition, begin, link.ends[target, partition])
        report_unclaimed(batches, claims, link.mappings.known_from(target, partition), report)

    def _expecting(self) -> Expected | None:
        """What a reading goes by where the topic has, or had, a pipeline."""
        link, pair = self._link, self._pair
        if not link.pipelines.touch(pair.topic):
            return None
        place = Place(
            pair.topic, pair.partition, self._entry.next, self._entry.versions, self._is_compacted,
            pair.target if pair.own is None else pair.own, None if pair.own is None else pair.target,
        )  # fmt: skip
        return Expected(link.pipelines, place, self._sound, self._letters)

    @property
    def _letters(self) -> PartitionLetters:
        if self._pair.own is not None:
            return PartitionLetters()  # those of the source partition are judged with its own destination
        return self._link.letters.of(self._pair.topic, self._pair.state.topic_id, self._pair.partition)

    @property
    def _is_compacted(self) -> bool:
        pair = self._pair
        return pair.state.compacted or (pair.target_state is not None and pair.target_state.compacted)

    def _tell_provenance(self) -> None:
        if self._provenance is not None:
            self._provenance.tell(self._report)

    def _compare(
        self, plan: Plan, delivered: int | None, gone: Gone | None = None, goes_on: bool = False
    ) -> None:
        check = MappingCheck(self._sound, self._report) if self._sound is not None else None
        Comparison(
            *self._sides(plan, goes_on),
            self._report,
            mappings=check,
            delivered_below=delivered,
            lenient_source=plan.lenient_source,
            lenient_destination=plan.lenient_destination,
            gone=gone,
            paired=None if self._expected is None else self._expected.paired,
        ).run()
        if check is not None:
            check.finish()
        self._tell_provenance()

    def _compacted(self, plan: Plan, delivered: int | None) -> None:
        if self._link.clusters is not None or self._link.copies_end(self._pair) is not None:
            self._report.note(
                "compacted, and written by others too: a copy may be gone for a record of theirs, so only the mappings are checked"
            )
        else:
            compare_compacted(
                lambda: self._sides(plan),
                self._report,
                records=max(plan.source[1] - plan.source[0], plan.destination[1] - plan.destination[0]),
                delivered_below=delivered,
                # For one that was left out, compaction may have taken those before it: at the source alone.
                trimmed=plan.lenient_destination
                or plan.source[0] > 0
                or self._pair.state.deletes
                or self._link.pipelines.drop(self._pair.topic),
            )
        if self._sound is not None:
            check_compacted_mappings(*self._sides(plan), self._sound, self._report)
            self._tell_provenance()


def _note_mappings(entry: PartitionMappings, report: PartitionReport) -> None:
    for begin, end in entry.holes:
        what = "covered twice" if end < begin else "a range that no mapping covers"
        report.add(Kind.MAPPING, min(begin, end), None, what)
    if entry.other_destinations:
        report.note(
            f"mappings to {', '.join(sorted(entry.other_destinations))} were left out: the template says "
            f"{report.destination_topic}/{report.partition}"
        )
    if entry.accepted_loss:
        report.note(f"an operator accepted the loss of {entry.accepted_loss} source offsets")
