"""Whether both clusters allow and take what a link needs: rights, groups, in-sync replicas, the size of
requests. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from common.errors import VerbatimError
from common.kafka.client import topics
from common.kafka.model import GROUPS_TOPIC
from common.link.permissions import DEAD_LETTERS, SCHEMA_IDS, SOURCE, TARGET, needed_on
from common.ports import Deadline
from replicator.driver.topic_reporter import ENVELOPE_BYTES
from verbatim.plan import granted_rights
from verbatim.plan.dry_run_clients import PretendingAdmin
from verbatim.plan.report import PlanReport

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 30.0


@dataclass
class Requirements:
    """Puts into a report what is not met of what its topics need. Raises VerbatimError, KafkaException where
    that can't be told."""

    settings: Settings
    source: AdminClient
    target: PretendingAdmin
    report: PlanReport
    dead_letters: bool = False
    """Whether the pipeline has any."""
    schema_ids: bool = False
    """Whether it has that stage."""

    def check_groups(self) -> None:
        s, deadline = self.settings, Deadline(CALL_S)
        leaders = [f"{s.application_name}.{name}.leader" for name in ("replicator", "deduplicator")]
        groups = [s.deduplicator_group, *leaders]
        if not granted_rights.has_groups(self.target, "target", deadline):
            self.report.notes.append(
                f"target: rights on the groups {', '.join(groups)} are not told: there are no groups yet, and asking for one would make "
                f"{GROUPS_TOPIC}"
            )
            return
        for group in groups:
            granted = granted_rights.of_group(self.target, group, deadline)
            self._lacking(f"target, group {group}", frozenset({"READ"}), granted)

    def check_topics(self) -> None:
        deadline = Deadline(CALL_S)
        names = [t.topic for t in self.report.topics]
        needed = needed_on(SOURCE, "<topics>")
        for name, found in granted_rights.of_topics(self.source, names, deadline).items():
            self._lacking(f"source, topic {name}", needed, found.operations)
        self._target_topics(deadline)
        self.report.notes.append(
            "nobody can be asked, without changing something, for READ and WRITE on topics still to be made, and for the rights on "
            f"transactional ids {self.settings.application_name}."
        )

    def _target_topics(self, deadline: Deadline) -> None:
        s, plans, to_make = self.settings, self.report.topics, self.target.pretended.topics
        kinds = {
            s.control_topic: "<link>.control",
            s.staging_topic: "<link>.staging",
            s.positions_topic: "<link>.positions",
            s.mappings_topic: "<link>.offset-mappings",
        }
        kinds |= {t.destination: "<destinations>" for t in plans if t.action not in ("refused", "promoted")}
        kinds |= {r.destination: "<destinations>" for t in plans for r in t.routes if r.action != "refused"}
        needed = {name: needed_on(TARGET, kind) for name, kind in kinds.items()}
        if self.dead_letters:
            needed[s.dead_letters_topic] = needed_on(TARGET, "<link>.dead-letters", DEAD_LETTERS)
        if self.schema_ids:
            needed[s.schemas_topic] = needed_on(TARGET, "<link>.schemas", SCHEMA_IDS)
        there = [name for name in needed if name and name not in to_make]
        granted = granted_rights.of_topics(self.target, there, deadline)
        for name, found in granted.items():
            self._lacking(f"target, topic {name}", needed[name], found.operations)
        broker = self._broker()
        configs = topics.configs(self.target, sorted(granted), deadline)
        for name, found in granted.items():
            self._in_sync(name, found.replicas, configs[name].get("min.insync.replicas"))
        default = broker.get("default.replication.factor")
        factor = s.replication_factor or (None if default is None else int(default))
        if to_make and factor is not None:
            self._in_sync("topics to be made", factor, broker.get("min.insync.replicas"))
        for plan in plans:
            plan.copies = granted[plan.destination].replicas if plan.destination in granted else factor

    def _broker(self) -> dict[str, str]:
        """The configuration of one of the target's brokers; nothing where it may not be read."""
        try:
            found = topics.broker_config(self.target, Deadline(CALL_S))
        except VerbatimError:
            self.report.notes.append(
                "the target's version and limits can't be told without DESCRIBE_CONFIGS on the cluster"
            )
            return {}
        takes = int(found.get("socket.request.max.bytes", 1 << 62))
        configs = topics.configs(self.source, [t.topic for t in self.report.topics], Deadline(CALL_S))
        for name, config in configs.items():
            if int(config.get("max.message.bytes", 0)) + ENVELOPE_BYTES > takes:
                self.report.warnings.append(
                    f"source topic {name} allows records of {config['max.message.bytes']} bytes, the target's brokers take requests of "
                    f"{takes} (socket.request.max.bytes): a record as large as that would never arrive"
                )
        return found

    def _in_sync(self, what: str, replicas: int, least: str | None) -> None:
        if least is not None and replicas < int(least):
            self.report.failures.append(
                f"target, {what}: {replicas} replicas, and min.insync.replicas is {least}: nothing could be written"
            )

    def _lacking(self, what: str, needed: frozenset[str], granted: frozenset[str] | None) -> None:
        missing = granted_rights.lacking(needed, granted)
        if missing:
            self.report.failures.append(f"{what}: {', '.join(missing)} not allowed; grant it")
