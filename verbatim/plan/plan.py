"""Finds out what a link would do, and what would keep it from doing so, by running the production driver code
with clients that change nothing (verbatim/plan/dry_run_clients.py). What is shown is
verbatim/plan/report.py's part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from common.config.topic_names import compiled
from common.errors import SettingsError, VerbatimError
from common.kafka.client import cluster_check, topics
from common.kafka.model import GROUPS_TOPIC
from common.link import identity
from common.link.control_records import NO_FLOWS, Destination
from common.link.control_state import Control
from common.link.dead_letters import asked_for
from common.link.identity import Link
from common.link.promotions import Promotion
from common.partitions import PartitionName
from common.pipeline.route_names import asks_for_schemas
from common.ports import Deadline
from deduplicator.driver.destinations import Destinations
from deduplicator.driver.route_topics import RouteTopics
from replicator.driver.heartbeats import make_topic as make_heartbeats
from replicator.driver.pipeline_file import PipelineFile
from replicator.driver.planner import Planner
from schemas.service import make_schemas_topic
from verbatim.plan import granted_rights, registries, routes, sampling
from verbatim.plan.dry_run_clients import NoPositions, PretendedControl, PretendingAdmin
from verbatim.plan.loops import copied_back
from verbatim.plan.pipelines import PipelineLook
from verbatim.plan.report import Action, Change, PlanReport, TopicPlan
from verbatim.plan.requirements import Requirements
from verbatim.plan.sampling import unread

if TYPE_CHECKING:
    from common.config.settings import Settings
    from schemas.configured import SchemasFile

REACH_S = 15.0
CALL_S = 30.0
SAMPLES_S = 20.0


def make_plan(settings: Settings, seconds: float, probe: bool = False) -> PlanReport:
    """Look at both clusters; `seconds` apart, twice, for the rates. Changes nothing, but that `probe` tries
    the target's schema registry, with a subject that is removed again. Raises SettingsError."""
    return _Look(settings, seconds, probe).run()


class _Look:
    def __init__(self, settings: Settings, seconds: float, probe: bool) -> None:
        self.settings = settings
        self.seconds = seconds
        self.probe = probe
        self.schemas_file = registries.file_of(settings)
        if probe and self.schemas_file is None:
            raise SettingsError(
                "--probe: PIPELINE names no registries to keep in step, so there is nothing to try"
            )
        self.report = PlanReport(settings.application_name)
        self.source = PretendingAdmin(settings.client_config("source", "admin"))
        self.target = PretendingAdmin(settings.client_config("destination", "admin"))
        self.group = f"{settings.application_name}.replicator"
        self.starts: dict[PartitionName, int] = {}
        """Where each partition is read from."""
        self.read: set[PartitionName] = set()
        """Those that were read before."""
        self.leaderless: set[PartitionName] = set()
        self.pipeline = PipelineFile(settings)
        self.dead_letters = asked_for(self.pipeline.configured.definition)

    def run(self) -> PlanReport:
        self._reach()
        if self.report.source_cluster is None or self.report.target_cluster is None:
            return self.report
        with closing(self._control()) as control:
            link = self._own_topics(control)
            before = dict(control.state.destinations)
            pipeline = PipelineLook(self.pipeline.configured, control.state.pipelines.copy())
            if self.settings.heartbeats_interval_s:
                with self._phase("heartbeats"):
                    make_heartbeats(self.settings, self.source, Deadline(CALL_S))
            with self._phase("planning"):
                self._plan(control)
            with self._phase("destinations"):
                # Judged as if for the first time: a destination may have been changed since.
                control.state.destinations.clear()
                Destinations(self.settings, link, control, self.target).settle()
                RouteTopics(self.settings, link, control, self.target).settle(again=True)
            self._topics(control.state, before)
            routes.look(self.report, control.state, self.settings.application_name, self._action)
            self._pipeline(pipeline, control.state)
            if self.schemas_file is not None:
                self._schemas(self.schemas_file)
            self._warn_of_meetings()
        self._changes()
        ids = asks_for_schemas(self.pipeline.configured.definition)
        needs = Requirements(self.settings, self.source, self.target, self.report, self.dead_letters, ids)
        with self._phase("rights"):
            needs.check_topics()
        with self._phase("target, groups"):
            needs.check_groups()
        if not self.settings.provenance_headers:
            self._loops(link)
        with self._phase("looking at the source's records"):
            self._records()
        return self.report

    @contextmanager
    def _phase(self, what: str) -> Iterator[None]:
        try:
            yield
        except (VerbatimError, KafkaException) as error:
            self.report.failures.append(f"{what}: {unread(error)}")

    def _reach(self) -> None:
        tell = self.report.warnings.append
        with self._phase("source"):
            self.report.source_cluster = cluster_check.cluster_id(
                self.settings, "source", Deadline(REACH_S), tell
            )
        with self._phase("target"):
            self.report.target_cluster = cluster_check.cluster_id(
                self.settings, "destination", Deadline(REACH_S), tell
            )
            identity.check_target(self.target, Deadline(REACH_S))

    def _control(self) -> PretendedControl:
        name = self.settings.control_topic
        there = False
        with self._phase(f"topic {name}"):
            there = name in topics.describe(self.target, [name], Deadline(CALL_S))
        self.report.new = not there
        return PretendedControl(self.settings, there)

    def _own_topics(self, control: PretendedControl) -> Link:
        """Make or check the link's own topics, each by itself, and its identity."""
        s, report = self.settings, self.report
        for name, wanted in identity.own_topics(s).items():
            found = len(report.failures)
            with self._phase(f"topic {name}"):
                identity.make_topics(s, self.target, {name: wanted}, Deadline(CALL_S))
            if len(report.failures) > found and not self._there(name):
                # Said; taken for made from now on, so that all the rest is found too.
                self.target.pretended.topics[name] = NewTopic(name, wanted[0], config=wanted[1])
        with self._phase(f"topic {s.group_offsets_topic}"):
            compact = {"cleanup.policy": "compact"}
            identity.make_topics(s, self.target, {s.group_offsets_topic: (1, compact)}, Deadline(CALL_S))
        if "kafka" in s.exporters:
            with self._phase(f"topic {s.metrics_topic}"):
                identity.make_topics(s, self.target, identity.metrics_topic(s), Deadline(CALL_S))
        if self.dead_letters:
            with self._phase(f"topic {s.dead_letters_topic}"):
                identity.make_topics(s, self.target, identity.dead_letters_topic(s), Deadline(CALL_S))
        source, target = report.source_cluster or "", report.target_cluster or ""
        with self._phase("identity"):
            identity.identify(s, self.target, control, source, target, Deadline(CALL_S), make=True)
        return Link(source, target, s.source_name or source, source_reached=True)

    def _there(self, name: str) -> bool:
        try:
            return name in topics.describe(self.target, [name], Deadline(CALL_S))
        except (VerbatimError, KafkaException):
            return False

    def _plan(self, control: PretendedControl) -> None:
        made = self.settings.positions_topic in self.target.pretended.topics
        positions = NoPositions() if made else None
        with closing(
            Planner(self.settings, control, False, self.source, self.target, positions, self.pipeline)
        ) as planner:
            for lane in planner.plan(1):
                for p in lane.partitions:
                    at = (p.topic, p.partition)
                    self.starts[at] = p.origin if p.position is None else max(p.origin, p.position)
                    if p.position is not None:
                        self.read.add(at)
            found = planner.planned
        names, _ = compiled(self.settings.source_topic)
        for name in sorted(names - {info.name for info in found}):
            self.report.warnings.append(
                f"source topic {name} is not there, or may not be described; it is copied once it is"
            )
        if not found:
            self.report.failures.append(
                "no topic of the source is selected that is there and may be described"
            )
        for (_, key), halt in sorted(control.state.halts.items(), key=lambda item: item[1].at):
            self.report.failures.append(
                f"{halt.topic}-{key[1]} is halted or would be, {halt.reason}: {halt.detail or 'see docs: operations/halts'}"
            )
        for info in sorted(found, key=lambda t: t.name):
            self.leaderless |= {(info.name, p) for p in info.leaderless}
            self.report.topics.append(TopicPlan(info.name, info.id, info.partitions, "", "refused"))

    def _topics(self, state: Control, before: dict[str, Destination]) -> None:
        """Where each source topic goes, by the verdicts of the deduplicator's own code."""
        for plan in self.report.topics:
            if (promotion := state.steering.promotions.get(plan.topic)) is not None:
                plan.destination, plan.action = promotion.destination, "promoted"
                self._left_behind(plan, promotion)
                continue
            verdict = state.destinations.get(plan.topic_id)
            if verdict is None:
                continue
            plan.destination = verdict.topic
            if verdict.refused is None:
                plan.action = self._action(verdict.topic)
                plan.meets = sorted(state.others_into(verdict.topic, plan.topic))
                continue
            plan.refused = verdict.refused
            held = before.get(plan.topic_id)
            if held is not None and held.refused is None:
                self.report.warnings.append(
                    f"{verdict.refused} (it was fit when topic {plan.topic} was first copied there)"
                )
            else:
                self.report.failures.append(f"topic {plan.topic}: {verdict.refused}")

    def _left_behind(self, plan: TopicPlan, promotion: Promotion) -> None:
        """What a producer that was forgotten has written at the source, and nobody copies."""
        partitions = [(plan.topic, p) for p in range(plan.partitions)]
        with self._phase(f"topic {plan.topic}"):
            ends = topics.ends(self.source, partitions, Deadline(CALL_S))
            self.report.warnings += [
                f"{plan.topic}-{p} ends at offset {end} at the source, and is {promotion.state}, copied up to {reached}: what came since is not copied"
                for (_, p), end in sorted(ends.items())
                if end > (reached := promotion.end((plan.topic_id, p)))
            ]

    def _pipeline(self, look: PipelineLook, state: Control) -> None:
        self.report.pipeline = look.version()
        for plan in self.report.topics:
            plan.pipeline = look.topic(plan.topic)
            verdict = state.destinations.get(plan.topic_id)
            for fails, why in look.doubts(plan.topic, verdict is not None and verdict.compacted):
                (self.report.failures if fails else self.report.warnings).append(why)
        if self.pipeline.configured.definition != NO_FLOWS and not any(
            plan.pipeline and plan.pipeline.flow for plan in self.report.topics
        ):
            self.report.warnings.append("PIPELINE: no flow takes any of the topics")

    def _schemas(self, file: SchemasFile) -> None:
        topics = {plan.topic: plan.destination for plan in self.report.topics if plan.refused is None}
        ids: set[int] = set()
        with self._phase("schemas"):
            self.report.schemas, refused, ids = registries.look(file, self.settings, topics)
            self.report.failures.extend(refused)
            make_schemas_topic(self.settings, self.target, Deadline(CALL_S))
        if self.probe and self.report.schemas is not None:
            with self._phase("schemas, --probe"):
                self.report.schemas.probe = registries.tried(file, ids)

    def _warn_of_meetings(self) -> None:
        shared = sorted({t.destination for t in self.report.topics if t.meets})
        if shared:
            self.report.warnings.append(
                f"several source topics go to {', '.join(shared)}: consumer groups of these are never translated, a cutover refuses them, and "
                "the configuration there follows none of them"
            )

    def _action(self, name: str) -> Action:
        if name in self.target.pretended.topics:
            return "make"
        return "grow" if name in self.target.pretended.partitions else "there"

    def _changes(self) -> None:
        pretended, factor = self.target.pretended, self.settings.replication_factor
        made_by = {self.settings.group_offsets_topic: "offsets", self.settings.schemas_topic: "schemas"}
        for name, new in pretended.topics.items():
            by = made_by.get(name, "")
            config = {**(new.config or {}), **pretended.config.get(name, {})}
            self.report.changes.append(Change("topic", name, new.num_partitions, factor, config, by))
        for name, new in self.source.pretended.topics.items():
            config = dict(new.config or {})
            self.report.changes.append(Change("topic", name, new.num_partitions, factor, config, at="source"))
        for name, count in pretended.partitions.items():
            self.report.changes.append(Change("partitions", name, count))
        for name, config in pretended.config.items():
            if name not in pretended.topics:
                self.report.changes.append(Change("config", name, config=config))

    def _loops(self, link: Link) -> None:
        untold = "whether a link takes copies back to the source is not told"
        copies = {t.topic: t.destination for t in self.report.topics if t.refused is None}
        clusters = (link.source_cluster, link.target_cluster)
        try:
            found, failed = copied_back(self.settings, self.source, clusters, copies, Deadline(CALL_S))
        except (VerbatimError, KafkaException) as error:
            self.report.notes.append(f"{untold}: {unread(error)}")
            return
        self.report.warnings += found
        self.report.notes += [f"{untold} by topic {name}: {why}" for name, why in failed.items()]

    # records

    def _records(self) -> None:
        deadline = Deadline(CALL_S + self.seconds)
        for topic, p in sorted(self.leaderless):
            self.report.warnings.append(
                f"{topic}-{p} has no leader at the source; it is copied once it has one"
            )
        ends, rate = sampling.rates(
            self.source, sorted(self.starts.keys() - self.leaderless), self.seconds, deadline
        )
        due = {at: self._due(at, ends[at]) for at in ends}
        sizes = self._sizes(ends)
        for plan in self.report.topics:
            mine = [(plan.topic, p) for p in range(plan.partitions) if (plan.topic, p) in ends]
            plan.records = sum(ends[at][1] - ends[at][0] for at in mine)
            plan.to_copy = sum(due[at][1] - due[at][0] for at in mine)
            plan.rate = sum(rate[at] for at in mine)
            plan.record_bytes = sizes.get(plan.topic)
        self.report.notes.append(
            "sizes of logs are not told by this client (DescribeLogDirs): records are counted in offsets, and sized by the last "
            f"{sampling.SAMPLE} of each topic, without compression"
        )

    def _due(self, at: PartitionName, bounds: tuple[int, int]) -> tuple[int, int]:
        """What is to be copied of a partition, [from, to), of what its log holds."""
        (low, end), start, name = bounds, self.starts[at], f"{at[0]}-{at[1]}"
        if start > end and at in self.read:
            self.report.warnings.append(
                f"{name} ends at offset {end} at the source, and was read up to {start}: source-truncated, if that stays so"
            )
        if start < low:
            self.report.warnings.append(
                f"{name} begins at offset {low} at the source, and was read up to {start}: source-lost, unless the destination is further"
            )
        return min(max(start, low), end), end

    def _sizes(self, ends: dict[PartitionName, tuple[int, int]]) -> dict[str, float]:
        if granted_rights.has_groups(self.source, "source", Deadline(CALL_S)):
            return sampling.sizes(self.settings, self.group, ends, Deadline(SAMPLES_S))
        self.report.notes.append(
            f"records of the source are not looked at: nobody has consumed there yet, and to do so would make {GROUPS_TOPIC}"
        )
        return {}
