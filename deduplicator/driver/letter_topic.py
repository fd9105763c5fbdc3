"""The link's topic of dead letters: made once a pipeline asks for it, looked at again and again, and what was
found written down for the lanes, which wait for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from common.errors import LinkRefused
from common.kafka.client import clients, topics
from common.link import control_kinds as kinds
from common.link.control_log import ControlLog
from common.link.dead_letters import asked_for
from common.link.identity import dead_letters_topic, make_topics
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

CALL_S = 30.0


class LetterTopic:
    """Of a link, while this driver leads."""

    def __init__(self, settings: Settings, control: ControlLog) -> None:
        self.settings = settings
        self.control = control
        self.admin: AdminClient = clients.admin(settings.client_config("destination", "admin"))
        self._looked_through = 0
        """Pipelines up to this number are known not to ask for it."""

    def settle(self, again: bool = False) -> None:
        """Make the topic, or look whether it can be written to; `again`: also where that was found before.
        Raises KafkaException, KafkaTimeout."""
        have = self.control.state.dead_letters
        known = have is not None and have.topic == self.settings.dead_letters_topic
        if (known and not again) or not (known or self._is_asked_for()):
            return
        found = self._look(Deadline(CALL_S))
        if found == have:
            return
        if found.refused is not None:
            log.error("%s; topics whose records become dead letters stand still at these", found.refused)
        self.control.append(found, Deadline(CALL_S))
        self.control.refresh(Deadline(CALL_S))

    def _is_asked_for(self) -> bool:
        """By any version: frames of an older one may be on their way."""
        for number, version in self.control.state.pipelines.copy().items():
            if number > self._looked_through:
                if asked_for(version.definition):
                    return True
                self._looked_through = number
        return False

    def _look(self, deadline: Deadline) -> kinds.DeadLetters:
        name = self.settings.dead_letters_topic
        ids: dict[str, str] = {}
        try:
            make_topics(self.settings, self.admin, dead_letters_topic(self.settings), deadline)
            refused = None
            if name in topics.not_writable(self.admin, [name], deadline, ids):
                refused = f"topic {name}: not allowed to write to it; grant WRITE"
            config = topics.configs(self.admin, [name], deadline)[name]
        except LinkRefused as error:
            return kinds.DeadLetters(name, None, 1, f"the topic of dead letters: {error}")
        return kinds.DeadLetters(name, ids.get(name), int(config["max.message.bytes"]), refused)
