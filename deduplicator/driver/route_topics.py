"""The topics that stages of a pipeline take records to: made, grown, kept in step and refused as the link's
other destinations are (deduplicator/driver/verdicts.py), and what was found written down for the lanes, which
wait for it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka.admin import AdminClient

from common.errors import SettingsError
from common.kafka.client import clients
from common.link import control_kinds as kinds
from common.link.control_kinds import SourceTopic
from common.link.control_log import ControlLog
from common.link.control_records import Destination
from common.link.identity import Link
from common.link.topic_config_sync import Rules
from common.pipeline.route_names import has_stage, routed_topics
from common.ports import Deadline
from deduplicator.driver.config_sync import ConfigSync
from deduplicator.driver.destinations import MOST_TOGETHER
from deduplicator.driver.verdicts import Verdicts

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

CALL_S = 30.0


class _Due(NamedTuple):
    """A topic that is to be looked at. `source`: with the partitions that are needed there; `spread`: over
    how many of them the newest version that names it takes records by their keys."""

    source: SourceTopic
    name: str
    spread: int | None


class RouteTopics:
    """Of a link, while this driver leads. `admin` is the one of this process unless given."""

    def __init__(
        self, settings: Settings, link: Link, control: ControlLog, admin: AdminClient | None = None
    ) -> None:
        self.settings = settings
        self.control = control
        # A client with nothing in its queue counts as false.
        self.admin = (
            admin if admin is not None else clients.admin(settings.client_config("destination", "admin"))
        )
        self._in_step: dict[tuple[str, str], SourceTopic] = {}
        """Source topic id and destination -> the description that this was last brought in step with."""
        configs = ConfigSync(self.admin, Rules.of(settings))
        self.verdicts = Verdicts(settings, link, control, self.admin, configs, {})
        self._routing: dict[int, str] = {}
        """Number -> definition, of the pipelines that have routes."""
        self._looked_through = 0

    def take_over(self, settings: Settings) -> None:
        """Go by these settings from now on."""
        self.settings = self.verdicts.settings = settings
        self.verdicts.configs.rules = Rules.of(settings)

    def settle(self, again: bool = False) -> None:
        """Make or check what has no verdict yet, has grown, or is behind its source; `again`: also what was
        refused, and whether all that the newest pipeline names can be written to.

        Raises KafkaException, KafkaTimeout.
        """
        if not self._have_routes():
            return
        self.verdicts.look_who_meets()
        waiting = list(self._due(again))
        while waiting:
            # Not two of one name: the second has to know what was decided on the first.
            together: dict[str, SourceTopic] = {}
            spread: dict[str, int] = {}
            left: list[_Due] = []
            for due in waiting:
                if (
                    len(together) == MOST_TOGETHER
                    or together.setdefault(due.name, due.source) is not due.source
                ):
                    left.append(due)
                elif due.spread is not None:
                    spread[due.name] = due.spread
            self._record(self.verdicts.on(together, spread))
            waiting = left

    def _have_routes(self) -> bool:
        for number, version in self.control.state.pipelines.copy().items():
            if number > self._looked_through:
                self._looked_through = number
                if has_stage(version.definition, "route"):
                    self._routing[number] = version.definition
        return bool(self._routing)

    def _due(self, again: bool) -> list[_Due]:
        """Of any version, and of topics that are gone from the source too: frames of theirs may be on their
        way. What the newest version does not name is not looked at again."""
        state, found = self.control.state, list[_Due]()
        present = state.present()
        for source in state.topics.copy().values():
            if source.topic in state.steering.promotions:
                continue
            there = source.topic_id in present
            named: dict[str, tuple[int, int | None, int]] = {}
            for number, definition in sorted(self._routing.items()):
                routed = routed_topics(definition, source.topic, self.settings.application_name)
                for name, count in routed.items():
                    # As many as any version needs: frames of an earlier one may be on their way.
                    needs = source.partitions if count is None else count
                    most = max(named[name][2] if name in named else 0, needs)
                    named[name] = (number, count, most)
            for name, (number, count, most) in named.items():
                wanted = source if most == source.partitions else replace(source, partitions=most)
                look = again and there and number == state.pipeline
                if not self._is_own(source, name) and self._needs_a_look(wanted, name, there, look):
                    found.append(_Due(wanted, name, count))
        return found

    def _is_own(self, source: SourceTopic, name: str) -> bool:
        """Whether it is the link's own destination, which others look after."""
        try:
            return self.verdicts.name_of(source) == name
        except SettingsError:
            return False

    def _needs_a_look(self, source: SourceTopic, name: str, there: bool, again: bool) -> bool:
        """`there`: whether the source still has it."""
        have = self.control.state.routes.get((source.topic_id, name))
        if have is None or again or have.partitions < source.partitions:
            return True
        behind = have.refused is None and self._in_step.get((source.topic_id, name)) != source
        return there and (behind or self.control.state.accepts(name))

    def _record(self, verdicts: list[tuple[SourceTopic, Destination]]) -> None:
        """Write down what is new, and go by that from then on."""
        state, told = self.control.state, list[kinds.Route]()
        for source, verdict in verdicts:
            have = state.routes.get((source.topic_id, verdict.topic))
            self._in_step[source.topic_id, verdict.topic] = source
            # A consent is used up by what it has let in.
            if verdict == have and (verdict.refused is not None or not state.accepts(verdict.topic)):
                continue
            if verdict.refused is not None:
                log.error(
                    "%s; records of topic %s that a stage takes there stand still",
                    verdict.refused,
                    source.topic,
                )
            told.append(kinds.Route.of(source, verdict))
        if told:
            self.control.append_all(told, Deadline(CALL_S))
            self.control.refresh(Deadline(CALL_S))
