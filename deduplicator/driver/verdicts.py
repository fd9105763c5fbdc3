"""What is to be said of destination topics: made when missing, grown, or refused by name when they would
alter, refuse or delete what is copied. The verdicts are written down by deduplicator/driver/destinations.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from common.errors import LinkRefused
from common.kafka.client import topics
from common.kafka.client.topics import TopicInfo
from common.kafka.model import Value
from common.link import topic_config_sync
from common.link.control_kinds import SourceTopic
from common.link.control_log import ControlLog
from common.link.control_records import Destination
from common.link.halt_reasons import gone
from common.link.identity import Link
from common.ports import Deadline
from deduplicator.driver.config_sync import ConfigSync

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

CALL_S = 30.0


class Gone(LinkRefused):
    """A destination was deleted at the target, or made again."""


class Verdicts:
    """On destinations of a link, by the settings it has now. `in_step` gets, by topic id, the description of
    a source whose destination was brought in step with it."""

    def __init__(
        self,
        settings: Settings,
        link: Link,
        control: ControlLog,
        admin: AdminClient,
        configs: ConfigSync,
        in_step: dict[str, SourceTopic],
    ) -> None:
        self.settings = settings
        self.link = link
        self.control = control
        self.admin = admin
        self.configs = configs
        self.in_step = in_step
        self._bound: dict[str, set[str]] = {}
        """Destination -> the source topics there are whose name the settings make that, where several may
        meet."""

    def name_of(self, source: SourceTopic) -> str:
        """What the settings call its destination. Raises SettingsError."""
        return self.settings.destination_topic(source.topic, self.link.source_name)

    @property
    def merge(self) -> bool:
        return self.settings.several_sources == "merge"

    def look_who_meets(self) -> None:
        names = self.control.state.running_topics() if self.merge else ()
        self._bound = self.settings.by_destination(names, self.link.source_name)

    def others(self, source: SourceTopic, destination: str) -> set[str]:
        """Other source topics that go to a destination, are to go there, or did so before."""
        bound = self._bound.get(destination, set()) - {source.topic}
        return self.control.state.others_into(destination, source.topic) | bound

    def on(
        self, together: Mapping[str, SourceTopic], spread: Mapping[str, int] = MappingProxyType({})
    ) -> list[tuple[SourceTopic, Destination]]:
        """On source topics by their destinations: all at once, or where that fails half of them at a time, so
        that what is wrong with one is told of that one. `spread`: those that are to have so many partitions,
        no more."""
        if not together:
            return []
        try:
            return self._fit(together, spread)
        except (LinkRefused, KafkaException) as error:
            items = list(together.items())
            if (half := len(items) // 2) > 0:
                return self.on(dict(items[:half]), spread) + self.on(dict(items[half:]), spread)
            ((name, source),) = items
            is_gone = isinstance(error, Gone)
            words = gone(name) if is_gone else f"destination topic {name}: {error}"
            return [(source, Destination(name, source.partitions, 1, words, gone=is_gone))]

    def _check_name(self, source: SourceTopic, name: str) -> None:
        if name in self.settings.own_topics:
            raise LinkRefused(
                f"{name} is a topic of the link itself; change KAFKA_CLUSTERS_DESTINATION_TOPIC"
            )
        if self.link.source_cluster == self.link.target_cluster and name == source.topic:
            raise LinkRefused("it is the source topic itself; change KAFKA_CLUSTERS_DESTINATION_TOPIC")
        for topic, promotion in self.control.state.steering.promotions.items():
            if promotion.destination == name:
                raise LinkRefused(f"it is the copy of topic {topic}, which is promoted: others write there")
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

    def _fit(
        self, together: Mapping[str, SourceTopic], spread: Mapping[str, int]
    ) -> list[tuple[SourceTopic, Destination]]:
        deadline = Deadline(2 * CALL_S)
        for name, source in together.items():
            self._check_name(source, name)
        there = topics.describe(self.admin, list(together), deadline)
        for name, source in together.items():
            if name in spread and (count := max(source.partitions, *_partitions(there, name))) > spread[name]:
                raise LinkRefused(
                    f"it has, or is to have, {count} partitions, and a stage spreads keys over {spread[name]}: say {{hash: {count}}}"
                )
            self._check_made_by_hand(source, name, there)
            self._check_consent(source, name, there.get(name), deadline)
        made = self._make({name: source for name, source in together.items() if name not in there}, deadline)
        settings = topics.settings_of(self.admin, list(together), deadline)
        ids: dict[str, str] = {}
        denied = topics.not_writable(self.admin, list(together), deadline, ids)
        return [
            (source, self._fitted(source, name, settings[name], name in made, ids.get(name), name in denied))
            for name, source in together.items()
        ]

    def _make(self, missing: Mapping[str, SourceTopic], deadline: Deadline) -> set[str]:
        """Make destinations; those that were not there all the same."""
        rules = self.configs.rules
        wanted = {
            name: (source.partitions, topic_config_sync.first_config(source, rules))
            for name, source in missing.items()
        }
        made = topics.create_all(self.admin, wanted, self.settings.replication_factor, deadline)
        for name in wanted:
            if name in made:
                log.info("made destination topic %s with %d partitions", name, missing[name].partitions)
        return made

    def _fitted(
        self,
        source: SourceTopic,
        name: str,
        there: dict[str, Value],
        made: bool,
        found_id: str | None,
        denied: bool,
    ) -> Destination:
        """The verdict on a destination that is there, brought in step and grown where that is to be."""
        deadline = Deadline(CALL_S)
        have = self.control.state.destination_of(source.topic_id, name)
        if have is None or have.topic != name:
            have = Destination(name, source.partitions, 1)
        applied = have.config
        # One that the link has neither made nor accepted is somebody's: judged as it is, altered only once it
        # is accepted.
        known = source.topic in self.control.state.copied_into.get(name, ())
        in_step = known and self.settings.topic_config_sync and not self.others(source, name)
        if made or in_step:
            there, applied = self.configs.bring_in_step(source, have, there, deadline)
            self.in_step[source.topic_id] = source
        verdict = replace(self.judged(source, name, there, applied), id=found_id)
        if denied:
            verdict = replace(verdict, refused=no_right(name))
        if verdict.refused is None and not made:
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

    def judged(
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


def _partitions(there: Mapping[str, TopicInfo], name: str) -> tuple[int]:
    return (there[name].partitions if name in there else 0,)


def no_right(name: str) -> str:
    return f"destination topic {name}: not allowed to write to it; grant WRITE"
