"""Which destination topics are due for a verdict, and the verdicts written down.

What the source topics are like comes from the control topic, so nothing here needs access to the source. The
verdict (deduplicator/driver/verdicts.py) goes back there, for the lanes, which wait for it. Configurations
are brought in step by deduplicator/driver/config_sync.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from common.errors import LinkRefused, SettingsError
from common.kafka.client import clients, topics
from common.link import control_kinds as kinds
from common.link.control_kinds import SourceTopic
from common.link.control_log import ControlLog
from common.link.control_records import Destination
from common.link.halt_reasons import gone
from common.link.identity import Link
from common.link.topic_config_sync import Rules
from common.ports import Deadline
from deduplicator.driver.config_sync import ConfigSync
from deduplicator.driver.verdicts import Verdicts, no_right

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

CALL_S = 30.0
MOST_TOGETHER = 100
"""Destinations that are decided on together: a request, or a record's way to the control topic and back,
costs them the same as one."""


class Destinations:
    """Keeps the destinations of a link as they must be, while this driver leads. `admin` is the one of this
    process unless given."""

    def __init__(
        self, settings: Settings, link: Link, control: ControlLog, admin: AdminClient | None = None
    ) -> None:
        self.settings = settings
        self.control = control
        # A client with nothing in its queue counts as false.
        self.admin = (
            admin if admin is not None else clients.admin(settings.client_config("destination", "admin"))
        )
        self.configs = ConfigSync(self.admin, Rules.of(settings))
        self._in_step: dict[str, SourceTopic] = {}
        """Topic id -> the description that its destination was last brought in step with."""
        self.verdicts = Verdicts(settings, link, control, self.admin, self.configs, self._in_step)

    def take_over(self, settings: Settings) -> None:
        """Go by these settings from now on."""
        self.settings = self.verdicts.settings = settings
        self.configs.rules = Rules.of(settings)

    def settle(self, again: bool = False) -> None:
        """Make or check what has no verdict yet, has grown or goes by another name; bring in step what its
        source has left behind.

        `again`: look also at what was refused, and at all configurations.
        """
        self.verdicts.look_who_meets()
        waiting = list(self.control.state.topics.values())
        while waiting:
            waiting = self._settle_some(waiting, again)
        if again:
            self._look_at_all(self.control.state.present())
        self._keep_in_step(again)

    def _settle_some(self, waiting: list[SourceTopic], again: bool) -> list[SourceTopic]:
        """Decide on the first of them, no two of which go to one destination: the second has to know what was
        decided on the first. Those that have to wait for that."""
        present = self.control.state.present()
        verdicts: list[tuple[SourceTopic, Destination]] = []
        together: dict[str, SourceTopic] = {}
        left: list[SourceTopic] = []
        for source in waiting:
            if len(together) == MOST_TOGETHER:
                left.append(source)
            elif self._is_due(source, present, again):
                try:
                    name = self.verdicts.name_of(source)
                except SettingsError as error:
                    verdicts.append((source, Destination("", source.partitions, 1, str(error))))
                    continue
                if name in together:
                    left.append(source)
                else:
                    together[name] = source
        verdicts += self.verdicts.on(together)
        state = self.control.state
        # A consent is used up by what it has let in.
        self._record(
            (source, verdict)
            for source, verdict in verdicts
            if verdict != state.destinations.get(source.topic_id)
            or (verdict.refused is None and state.accepts(verdict.topic))
        )
        return left

    def _is_due(self, source: SourceTopic, present: set[str], again: bool) -> bool:
        state = self.control.state
        if source.topic in state.steering.promotions:
            return False
        have = state.destinations.get(source.topic_id)
        return (
            have is None
            or have.partitions < source.partitions
            or (have.refused is not None and (again or state.accepts(have.topic)))
            or (state.accepts(have.topic) and source.topic_id in present)
            or (have.refused is None and source.topic_id in present and self._renamed(source, have))
            or (
                again
                and have.refused is None
                and not self.verdicts.merge
                and bool(self.verdicts.others(source, have.topic))
            )
        )

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
        verdicts: list[tuple[SourceTopic, Destination]] = []
        for source in list(state.topics.values()):
            have = accepted.get(source.topic_id)
            if have is None or source.topic in state.steering.promotions:
                continue
            found = ids.get(have.topic)
            if have.topic in denied:
                verdicts.append((source, replace(have, refused=no_right(have.topic))))
            elif source.topic_id in present and (found is None or have.id not in (None, found)):
                verdicts.append((source, replace(have, refused=gone(have.topic), gone=True)))
            elif found is not None and have.id is None:
                # Let in by a version that did not write it down.
                verdicts.append((source, replace(have, id=found)))
        self._record(verdicts)

    def _renamed(self, source: SourceTopic, have: Destination) -> bool:
        """Whether the settings give the destination another name than it had."""
        try:
            return self.verdicts.name_of(source) != have.topic
        except SettingsError:
            return True

    def _keep_in_step(self, again: bool) -> None:
        state = self.control.state
        due = {
            source.topic_id: source
            for source in state.newest_topics().values()
            if source.topic_id not in state.deleted
            and source.topic not in state.steering.promotions
            and (again or self._in_step.get(source.topic_id) != source)
            and (have := state.destinations.get(source.topic_id)) is not None
            and have.refused is None
            # Whoever else goes there, and whether it is kept in step or not: it may not become compacted.
            and (self.settings.topic_config_sync or self.verdicts.others(source, have.topic))
        }
        if not due:
            return
        deadline = Deadline(CALL_S)
        names = sorted({state.destinations[topic_id].topic for topic_id in due})
        hidden: set[str] = set()
        there = topics.topic_settings(self.admin, names, deadline, hidden)
        for name in sorted(hidden):
            self.configs.say_once(name, "not allowed to read its configuration; grant DESCRIBE_CONFIGS")
        verdicts: list[tuple[SourceTopic, Destination]] = []
        for topic_id, source in due.items():
            have = state.destinations[topic_id]
            if have.topic not in there:
                continue  # deleted at the target (its lanes ride out that there is none), or hidden
            config, applied = there[have.topic], have.config
            if not self.verdicts.others(source, have.topic):
                # What several have in common can't follow one of them.
                config, applied = self.configs.bring_in_step(source, have, config, deadline)
            verdict = replace(self.verdicts.judged(source, have.topic, config, applied), id=have.id)
            if verdict != have:
                verdicts.append((source, verdict))
            self._in_step[topic_id] = source
        self._record(verdicts)

    def _record(self, verdicts: Iterable[tuple[SourceTopic, Destination]]) -> None:
        """Write verdicts down, and go by them from then on."""
        told = [self._told(source, verdict) for source, verdict in verdicts]
        if told:
            self.control.append_all(told, Deadline(CALL_S))
            self.control.refresh(Deadline(CALL_S))

    def _told(self, source: SourceTopic, verdict: Destination) -> kinds.Destination:
        """The record of a verdict; what people should know of it is said."""
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
        return kinds.Destination.of(source, verdict)
