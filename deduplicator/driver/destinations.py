"""Destination topics: made when missing, grown, kept in step, and refused by name when they would alter,
refuse or delete what is copied.

What the source topics are like comes from the control topic, so nothing here needs access to the source. The
verdict goes back there, for the lanes, which wait for it. Configurations are brought in step by
deduplicator/driver/config_sync.py.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from common.errors import LinkRefused, SettingsError
from common.kafka.client import clients, topics
from common.kafka.client.topics import TopicInfo
from common.kafka.model import Value
from common.link import control_kinds as kinds
from common.link import topic_config_sync
from common.link.control_kinds import SourceTopic
from common.link.control_log import ControlLog
from common.link.control_records import Destination
from common.link.halt_reasons import gone
from common.link.identity import Link
from common.link.topic_config_sync import Rules
from common.ports import Deadline
from deduplicator.driver.config_sync import ConfigSync

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

CALL_S = 30.0


class Gone(LinkRefused):
    """A destination was deleted at the target, or made again."""


class Destinations:
    """Keeps the destinations of a link as they must be, while this driver leads. `admin` is a client of its
    own unless given."""

    def __init__(
        self, settings: Settings, link: Link, control: ControlLog, admin: AdminClient | None = None
    ) -> None:
        self.settings = settings
        self.link = link
        self.control = control
        # A client with nothing in its queue counts as false.
        self.admin = (
            admin if admin is not None else clients.admin(settings.client_config("destination", "admin"))
        )
        self.configs = ConfigSync(self.admin, Rules.of(settings))
        self._in_step: dict[str, SourceTopic] = {}
        """Topic id -> the description that its destination was last brought in step with."""
        self._bound: dict[str, set[str]] = {}
        """Destination -> the source topics there are whose name the settings make that, where several may
        meet."""

    def take_over(self, settings: Settings) -> None:
        """Go by these settings from now on."""
        self.settings = settings
        self.configs.rules = Rules.of(settings)

    def settle(self, again: bool = False) -> None:
        """Make or check what has no verdict yet, has grown or goes by another name; bring in step what its
        source has left behind.

        `again`: look also at what was refused, and at all configurations.
        """
        state = self.control.state
        self._look_who_meets()
        present = {t.topic_id for t in state.newest_topics().values()} - state.deleted
        for source in list(state.topics.values()):
            have = state.destinations.get(source.topic_id)
            if (
                have is None
                or have.partitions < source.partitions
                or (have.refused is not None and (again or state.accepts(have.topic)))
                or (state.accepts(have.topic) and source.topic_id in present)
                or (have.refused is None and source.topic_id in present and self._renamed(source, have))
                or (again and have.refused is None and not self.merge and self._others(source, have.topic))
            ):
                verdict = self._verdict(source)
                # A consent is used up by what it has let in.
                if verdict != have or (verdict.refused is None and state.accepts(verdict.topic)):
                    self._record(source, verdict)
        if again:
            self._look_at_all(present)
        self._keep_in_step(again)

    @property
    def merge(self) -> bool:
        return self.settings.several_sources == "merge"

    def _look_who_meets(self) -> None:
        names = self.control.state.running_topics() if self.merge else ()
        self._bound = self.settings.by_destination(names, self.link.source_name)

    def _others(self, source: SourceTopic, destination: str) -> set[str]:
        """Other source topics that go to a destination, are to go there, or did so before."""
        bound = self._bound.get(destination, set()) - {source.topic}
        return self.control.state.others_into(destination, source.topic) | bound

    def _look_at_all(self, present: set[str]) -> None:
        """Refuse what may not be written any more, and what was deleted or made again at the target: mappings
        point into what it was."""
        state = self.control.state
        ids: dict[str, str] = {}
        accepted = {t: d for t, d in state.destinations.copy().items() if d.refused is None}
        mappings = self.settings.mappings_topic
        names = sorted({d.topic for d in accepted.values()} | {mappings})
        denied = topics.not_writable(self.admin, names, Deadline(CALL_S), ids)
        if mappings in denied:
            raise LinkRefused(f"topic {mappings}: not allowed to write to it; grant WRITE")
        for source in list(state.topics.values()):
            have = accepted.get(source.topic_id)
            if have is None:
                continue
            found = ids.get(have.topic)
            if have.topic in denied:
                self._record(source, replace(have, refused=_no_right(have.topic)))
            elif source.topic_id in present and (found is None or have.id not in (None, found)):
                self._record(source, replace(have, refused=gone(have.topic), gone=True))
            elif found is not None and have.id is None:
                # Let in by a version that did not write it down.
                self._record(source, replace(have, id=found))

    def _renamed(self, source: SourceTopic, have: Destination) -> bool:
        """Whether the settings give the destination another name than it had."""
        try:
            return self.settings.destination_topic(source.topic, self.link.source_name) != have.topic
        except SettingsError:
            return True

    def _keep_in_step(self, again: bool) -> None:
        state = self.control.state
        due = {
            source.topic_id: source
            for source in state.newest_topics().values()
            if source.topic_id not in state.deleted
            and (again or self._in_step.get(source.topic_id) != source)
            and (have := state.destinations.get(source.topic_id)) is not None
            and have.refused is None
            # Whoever else goes there, and whether it is kept in step or not: it may not become compacted.
            and (self.settings.topic_config_sync or self._others(source, have.topic))
        }
        if not due:
            return
        deadline = Deadline(CALL_S)
        names = sorted({state.destinations[topic_id].topic for topic_id in due})
        hidden: set[str] = set()
        there = topics.topic_settings(self.admin, names, deadline, hidden)
        for name in sorted(hidden):
            self.configs.say_once(name, "not allowed to read its configuration; grant DESCRIBE_CONFIGS")
        for topic_id, source in due.items():
            have = state.destinations[topic_id]
            if have.topic not in there:
                continue  # deleted at the target (its lanes ride out that there is none), or hidden
            config, applied = there[have.topic], have.config
            if not self._others(source, have.topic):
                # What several have in common can't follow one of them.
                config, applied = self.configs.bring_in_step(source, have, config, deadline)
            verdict = replace(self._judged(source, have.topic, config, applied), id=have.id)
            if verdict != have:
                self._record(source, verdict)
            self._in_step[topic_id] = source

    def _verdict(self, source: SourceTopic) -> Destination:
        deadline = Deadline(CALL_S)
        try:
            name = self.settings.destination_topic(source.topic, self.link.source_name)
        except SettingsError as error:
            return Destination("", source.partitions, 1, str(error))
        try:
            self._check_name(source, name)
            return self._fit(source, name, deadline)
        except Gone:
            return Destination(name, source.partitions, 1, gone(name), gone=True)
        except (LinkRefused, KafkaException) as error:
            return Destination(name, source.partitions, 1, f"destination topic {name}: {error}")

    def _check_name(self, source: SourceTopic, name: str) -> None:
        if name in self.settings.own_topics:
            raise LinkRefused(
                f"{name} is a topic of the link itself; change KAFKA_CLUSTERS_DESTINATION_TOPIC"
            )
        if self.link.source_cluster == self.link.target_cluster and name == source.topic:
            raise LinkRefused("it is the source topic itself; change KAFKA_CLUSTERS_DESTINATION_TOPIC")
        others = self.control.state.others_into(name, source.topic)
        if others and not self.merge:
            # Group offsets can't be translated any more: a partition holds the records of several, at one
            # offset for all.
            raise LinkRefused(
                f"topic {min(others)} is copied there already, and SEVERAL_SOURCES is fail: give each a destination of its own, or set it to "
                "merge"
            )
        if others and self.settings.heartbeats_interval_s:
            beats = self.settings.heartbeats_topic
            if beats in others | {source.topic}:
                raise LinkRefused(
                    f"heartbeats ({beats}) have a destination of their own; change KAFKA_CLUSTERS_DESTINATION_TOPIC"
                )

    def _fit(self, source: SourceTopic, name: str, deadline: Deadline) -> Destination:
        there = topics.describe(self.admin, [name], deadline)
        made = False
        self._check_made_by_hand(source, name, there)
        self._check_consent(source, name, there.get(name), deadline)
        if name not in there:
            config = topic_config_sync.first_config(source, self.configs.rules)
            factor = self.settings.replication_factor
            made = topics.create(self.admin, name, source.partitions, factor, config, deadline)
            if made:
                log.info("made destination topic %s with %d partitions", name, source.partitions)
        have = self.control.state.destinations.get(source.topic_id)
        if have is None or have.topic != name:
            have = Destination(name, source.partitions, 1)
        settings, applied = topics.settings_of(self.admin, name, deadline), have.config
        # One that the link has neither made nor accepted is somebody's: judged as it is, altered only once it
        # is accepted.
        known = source.topic in self.control.state.copied_into.get(name, ())
        in_step = known and self.settings.topic_config_sync and not self._others(source, name)
        if made or in_step:
            settings, applied = self.configs.bring_in_step(source, have, settings, deadline)
            self._in_step[source.topic_id] = source
        verdict = self._judged(source, name, settings, applied)
        ids: dict[str, str] = {}
        denied = topics.not_writable(self.admin, [name], deadline, ids)
        verdict = replace(verdict, id=ids.get(name))
        if denied:
            verdict = replace(verdict, refused=_no_right(name))
        if verdict.refused is None:
            topics.add_partitions(self.admin, name, source.partitions, deadline)
        return verdict

    def _check_consent(
        self, source: SourceTopic, name: str, found: TopicInfo | None, deadline: Deadline
    ) -> None:
        """Raise where only an operator may let the link write there: somebody's topic, or another one than
        what the mappings point into."""
        state = self.control.state
        settled = state.settled.get(name)
        if state.accepts(name):
            return
        if settled is not None and found is not None and settled.id in (None, found.id):
            return
        if settled is not None and settled.sources - state.deleted:
            raise Gone(gone(name))
        # Links in both directions write into each other's topics: then the setting is the consent.
        if found is None or self.settings.provenance_headers:
            return
        if found.leaderless:
            raise LinkRefused(
                f"whether it holds records can't be told: partitions {sorted(found.leaderless)} have no leader"
            )
        consent = f"to copy into it all the same: verbatim accept-destination {name}"
        if found.partitions < source.partitions:
            raise LinkRefused(
                f"it is there already, with {found.partitions} partitions, its source has {source.partitions}; {consent}"
            )
        held = topics.bounds(self.admin, [(name, p) for p in range(found.partitions)], deadline)
        for (_, partition), (low, end) in sorted(held.items()):
            if low < end:
                raise LinkRefused(
                    f"it holds records that this link has not written (partition {partition}: offsets {low} to {end - 1}); {consent}"
                )

    def _judged(
        self, source: SourceTopic, name: str, settings: dict[str, Value], applied: dict[str, str]
    ) -> Destination:
        config = {key: value.value for key, value in settings.items()}
        why = topic_config_sync.refusal(source, name, config)
        compacted = "compact" in config.get("cleanup.policy", "")
        others = self.control.state.others_into(name, source.topic)
        if compacted and others:
            why = (
                f"destination topic {name} has cleanup.policy={config['cleanup.policy']}, and topic {min(others)} is copied there too: a record "
                "of one would delete those of the other with its key; change it, or give each a destination of its own"
            )
        # Missing only where a topic is not made yet, but planned.
        largest = int(config.get("max.message.bytes", source.config.get("max.message.bytes", "1")))
        return Destination(name, source.partitions, largest, why, applied, compacted)

    def _check_made_by_hand(self, source: SourceTopic, name: str, there: dict[str, TopicInfo]) -> None:
        if self.settings.create_topics:
            return
        if name not in there:
            raise LinkRefused(
                f"it is missing, and CREATE_TOPICS is false: make it with {source.partitions} partitions"
            )
        if there[name].partitions < source.partitions:
            raise LinkRefused(
                f"it has {there[name].partitions} partitions, its source {source.partitions}, and CREATE_TOPICS is false: add them"
            )

    def _record(self, source: SourceTopic, verdict: Destination) -> None:
        before = self.control.state.destinations.get(source.topic_id)
        if verdict.refused is not None:
            log.error("%s; topic %s is not copied", verdict.refused, source.topic)
        elif before is not None and before.refused is None and before.topic != verdict.topic:
            log.warning(
                "topic %s goes to %s from now on; what was copied before stays in %s",
                source.topic,
                verdict.topic,
                before.topic,
            )
        others = self.control.state.others_into(verdict.topic, source.topic)
        known = before is not None and before.refused is None and before.topic == verdict.topic
        if verdict.refused is None and others and not known:
            log.warning(
                "topic %s meets %s in %s: consumer groups of these are not translated, and its configuration is not kept in step",
                source.topic,
                ", ".join(sorted(others)),
                verdict.topic,
            )
        told = kinds.Destination(
            source.topic,
            source.topic_id,
            verdict.topic,
            verdict.partitions,
            verdict.max_message_bytes,
            verdict.refused,
            verdict.config,
            verdict.compacted,
            verdict.id,
            verdict.gone,
        )
        self.control.append(told, Deadline(CALL_S))
        self.control.refresh(Deadline(CALL_S))


def _no_right(name: str) -> str:
    return f"destination topic {name}: not allowed to write to it; grant WRITE"
