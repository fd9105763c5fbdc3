"""Brings the configuration of destination topics in step with their sources', as far as the target lets it,
and says once what it refuses.

What a configuration should be is decided in common/link/topic_config_sync.py.
"""

from __future__ import annotations

import logging

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from common.errors import LinkRefused
from common.kafka.client import topics
from common.kafka.model import Value
from common.link import topic_config_sync
from common.link.control_kinds import SourceTopic
from common.link.control_records import Destination
from common.link.topic_config_sync import Change, Rules
from common.ports import Deadline

log = logging.getLogger(__name__)


class ConfigSync:
    """Changes destinations through `admin`, by `rules`, which may be replaced."""

    def __init__(self, admin: AdminClient, rules: Rules) -> None:
        self.rules = rules
        self._admin = admin
        self._said: dict[str, str] = {}
        """Destination -> what was said last of what can't be done there."""

    def bring_in_step(
        self, source: SourceTopic, have: Destination, there: dict[str, Value], deadline: Deadline
    ) -> tuple[dict[str, Value], dict[str, str]]:
        """Change a destination's configuration `there` as far as it can be; what it is then, and what of it
        the link has set."""
        wanted = topic_config_sync.differences(source, there, have.config, self.rules)
        if due := [change for change in wanted if change.kept is None]:
            done, refused = self._alter(have.topic, due, deadline)
            there = topic_config_sync.after(there, done, source)
            if done:
                said = ", ".join(f"{change.key}={change.to or '(default)'}" for change in done)
                log.info("destination topic %s: set %s, to be in step with its source", have.topic, said)
            self.say_once(have.topic, "; ".join(refused))
        return there, topic_config_sync.settled(source, there, have.config, self.rules)

    def say_once(self, name: str, refused: str) -> None:
        """Log why a destination can't be kept in step, unless that was said last; "": it can again."""
        if refused and self._said.get(name) != refused:
            log.error("destination topic %s can't be kept in step with its source: %s", name, refused)
        self._said[name] = refused

    def _alter(self, name: str, due: list[Change], deadline: Deadline) -> tuple[list[Change], list[str]]:
        """Make the changes, all at once, or one by one where the target refuses one: those that were made,
        and why others were not."""
        try:
            topics.alter(self._admin, name, {change.key: change.to for change in due}, deadline)
        except (KafkaException, LinkRefused) as error:
            if len(due) == 1:
                return [], [f"{due[0].key}={due[0].to}: {error}"]
            each = [self._alter(name, [change], deadline) for change in due]
            return [change for done, _ in each for change in done], [why for _, whys in each for why in whys]
        return due, []
