"""Verifies a link: reads what is known of it, has each partition compared, collects the reports. Prints
nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from common.errors import LinkRefused, SettingsError
from common.partitions import PartitionName
from verbatim.verify.common_part import SAMPLE_OFFSETS
from verbatim.verify.comparison import PartitionReport
from verbatim.verify.control import Said
from verbatim.verify.expected import Pipelines
from verbatim.verify.letters import Letters, expired
from verbatim.verify.link_mappings import Mappings, Topics, place_of, read_mappings
from verbatim.verify.partition_check import LinkContext, Pair, check_partition
from verbatim.verify.pipeline.schema_ids import SchemaMap, ask_for_ids
from verbatim.verify.reading import Cluster, TopicState

if TYPE_CHECKING:
    from confluent_kafka import Message

    from common.config.settings import Settings


OnProgress = Callable[[int, int, str], None]
"""(records read, records to read in all, what is being read)"""


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
    """`sample`: fraction of the offsets to compare, None for all; `timeout_s`: for each answer of a cluster;
    `keys`: of pipelines, those that are given."""

    topics: tuple[str, ...] = ()
    sample: float | None = None
    seed: int = 0
    timeout_s: float = 60.0
    keys: Mapping[str, bytes] = field(default_factory=dict)
    on_progress: OnProgress = lambda done, total, what: None


def verify_link(settings: Settings, options: Options) -> LinkReport:
    """Compares what the settings select. Raises SettingsError, LinkRefused, KafkaTimeout or VerbatimError."""
    began = time.monotonic()
    report = LinkReport()
    with (
        Cluster(settings, "source", options.timeout_s) as source,
        Cluster(settings, "destination", options.timeout_s) as destination,
    ):
        cluster_id = source.cluster_id()
        names = _select(settings, options, source)
        source_name = settings.source_name or cluster_id
        to = {name: settings.destination_topic(name, source_name) for name in names}
        merge = settings.several_sources == "merge"
        if not merge:
            _refuse_shared(to)
        states = {name: state for name in names if (state := source.topic(name)) is not None}
        said, ids = Said(settings.application_name), SchemaMap()
        hear = partial(_read_on, destination, settings, said, ids)
        hear()
        pipelines, topics = _versions(settings, options, said, ids, states, to)
        together = settings.by_destination(source.topic_names() if merge else (), source_name)
        with ExitStack() as opened:
            while True:
                several = merge or any("/" in target for target in _all_targets(topics))
                # Before the mappings are read: so each record below is in one of them.
                ends = _ends(destination, _all_topics(topics, to)) if several else {}
                mappings = opened.enter_context(Mappings(cluster_id, topics, several))
                read_mappings(destination, settings.mappings_topic, mappings)
                hear()
                known = topics
                pipelines, topics = _versions(settings, options, said, ids, states, to)
                if topics == known:
                    break
            for name, (_, targets) in topics.items() if merge else ():
                for target in targets:
                    together.setdefault(target, set()).add(name)
            letters = Letters(settings.application_name, cluster_id)
            if mappings.with_letters or any("dead-letter" in text for text in said.pipelines.values()):
                _read_letters(destination, settings.dead_letters_topic, mappings, letters)
            link = LinkContext(
                source=source,
                destination=destination,
                mappings=mappings,
                said=said,
                hear=hear,
                destinations={name: targets for name, (_, targets) in topics.items()},
                from_earliest=settings.start_offsets == "earliest",
                clusters=(cluster_id, destination.cluster_id()) if settings.provenance_headers else None,
                sample=None if options.sample is None else (options.sample, options.seed),
                ends=ends,
                pipelines=pipelines,
                letters=letters,
                together=together,
            )
            report.partitions = _check_all(link, _pairs(states, link, destination), options)
            hear()
            if said.pipeline != link.pipelines.newest:
                report.notes.append(
                    f"version {said.pipeline} of the pipeline was written meanwhile: what has come since may be told wrong; compare again"
                )
        if letters.strays:
            topic = settings.dead_letters_topic
            report.notes.append(f"{letters.strays:,} records of {topic} are no dead letters of this link")
        if options.sample is not None:
            report.notes.append(
                f"sampled ({options.sample:g} of the offsets, seed {options.seed}, windows of {SAMPLE_OFFSETS}): not told are records"
                " lost, altered or duplicated outside of the windows, and whether records moved from one window to another"
            )
        report.seconds = time.monotonic() - began
    return report


def _versions(
    settings: Settings,
    options: Options,
    said: Said,
    ids: SchemaMap,
    states: Mapping[str, TopicState],
    to: dict[str, str],
) -> tuple[Pipelines, Topics]:
    """The pipelines that there were, and where these take the records of each topic."""
    pipelines = Pipelines(said.pipelines, options.keys, settings.application_name, ids.ids, ids.texts)
    return pipelines, {
        name: (state.topic_id, (to[name], *sorted(_elsewhere(pipelines.targets(name), to[name]))))
        for name, state in states.items()
    }


def _elsewhere(targets: set[str], own: str) -> set[str]:
    return {target for target in targets if place_of(target, 0)[0] != own}


def _all_topics(topics: Topics, to: dict[str, str]) -> list[str]:
    return sorted({place_of(target, 0)[0] for target in _all_targets(topics)} | {*to.values()})


def _all_targets(topics: Topics) -> set[str]:
    return {target for _, targets in topics.values() for target in targets}


def _read_on(cluster: Cluster, settings: Settings, said: Said, ids: SchemaMap) -> None:
    """Takes in what the control topic says since it was last read, and, where a pipeline asks for them, what
    is known of schemas: whatever is there by now was known before. Raises VerbatimError for a damaged record
    of the link."""
    for message in _since(cluster, settings.control_topic, said):
        said.add(message.offset() or 0, message.value())
    if ask_for_ids(said.pipelines.values()):
        for message in _since(cluster, settings.schemas_topic, ids):
            ids.add(message.offset() or 0, message.key(), message.value())


def _since(cluster: Cluster, topic: str, read: Said | SchemaMap) -> Iterator[Message]:
    """The records of its one partition that were not read yet."""
    # Asked for at each partition: what was there before need not be described again.
    if not read.position and cluster.topic(topic) is None:
        return
    begin, end = cluster.bounds(topic, 0)
    for messages in cluster.messages(topic, 0, max(begin, read.position), end):
        yield from messages
    read.position = end


def _read_letters(cluster: Cluster, topic: str, mappings: Mappings, letters: Letters) -> None:
    """All dead letters, those that the mappings tell of among them: these become visible together, but not at
    one moment."""
    state = cluster.topic(topic)
    ends: dict[int, int] = {}
    for dead in (mapping["dead_letters"] for mapping in mappings.with_letters):
        _, offset, length = dead["runs"][-1]
        ends[dead["partition"]] = max(offset + length, ends.get(dead["partition"], 0))
    starts: dict[PartitionName, int] = {}
    for partition in range(state.partitions if state else 0):
        begin, end = cluster.settled(topic, partition, ends.get(partition, 0))
        starts[topic, partition] = begin
        for messages in cluster.messages(topic, partition, begin, end):
            for message in messages:
                letters.add(message.key(), message.value(), message.headers())  # type: ignore[arg-type]
    for mapping in mappings.with_letters:
        expired(letters, mapping, starts)


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


def _ends(cluster: Cluster, topics: list[str]) -> dict[PartitionName, int]:
    states = {name: state for name in topics if (state := cluster.topic(name)) is not None}
    return {
        (name, p): cluster.bounds(name, p)[1]
        for name, state in states.items()
        for p in range(state.partitions)
    }


def _pairs(states: dict[str, TopicState], link: LinkContext, destination: Cluster) -> list[Pair]:
    found: list[Pair] = []
    for name, state in states.items():
        own, *routes = link.destinations[name]
        there = destination.topic(own)
        count = max(state.partitions, there.partitions if there else 0)
        found += [Pair(name, partition, state, own, there) for partition in range(count)]
        for target in routes:
            # Where the link was never let in, whatever is there is somebody else's.
            topic = place_of(target, 0)[0]
            let_in = (state.topic_id, topic) in link.said.let_in
            there = destination.topic(topic) if let_in else None
            found += [Pair(name, p, state, target, there, own) for p in range(state.partitions)]
    return found


def _check_all(link: LinkContext, pairs: list[Pair], options: Options) -> list[PartitionReport]:
    """One after the other, telling how far it is."""
    total = sum(end - begin for pair in pairs for begin, end in link.bounds(pair))
    done, doing = 0, ""

    def tell(records: int) -> None:
        nonlocal done
        done += records
        options.on_progress(done, total, doing)

    link.source.on_records = link.destination.on_records = tell
    reports = []
    for pair in pairs:
        doing = f"{pair.topic}/{pair.partition}"
        reports.append(check_partition(link, pair))
    return reports
