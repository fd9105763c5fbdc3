"""Finds what `offsets` would see of the source if it might: Kafka leaves groups and topics without DESCRIBE
out of its answers, and says nothing.

A group or topic that is expected and not there is asked for by name, since that answer tells. A group that
was never heard of stays unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from common import ports
from common.config import topic_names
from common.kafka.client import topics
from common.ports import Deadline
from offsets.groups import Groups

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

AGAIN_S = 600.0
"""What was absent when it was asked for is asked for again after so long."""

NO_GROUP = ("groups", "")
"""What is said of all groups together."""


class Hidden:
    """Says each thing once, and again after it could be seen meanwhile."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._asked: set[tuple[str, str]] = set()
        self._said: set[tuple[str, str]] = set()
        self._forget_at = 0.0

    def look(
        self,
        source: Groups,
        admin: AdminClient,
        listed: Collection[str],
        known: Collection[str],
        seen: Collection[str],
        copied: Collection[str],
        deadline: Deadline,
    ) -> None:
        """`listed`: the source's groups; `known`: those on record; `seen`: topics of which groups have
        offsets; `copied`: all that are copied.

        Raises KafkaTimeout, KafkaException.
        """
        now = ports.monotonic()
        if now >= self._forget_at:
            self._asked.clear()
            self._forget_at = now + AGAIN_S
        named = topic_names.compiled(self._settings.consumer_groups)[0]
        expected = {group for group in {*named, *known} if self._settings.selects_group(group)}
        for group in sorted(source.hidden(self._absent("group", expected, listed), deadline)):
            self._may_not_see("group", group, "its offsets are not translated")
        if not listed:
            self._say(
                NO_GROUP,
                "no consumer group of the source can be seen: there is none, or DESCRIBE on groups is missing",
            )
            return
        self._said.discard(NO_GROUP)
        hidden: set[str] = set()
        if absent := self._absent("topic", copied, seen):
            topics.descriptions(admin, absent, deadline, hidden=hidden)
        for topic in sorted(hidden):
            self._may_not_see("topic", topic, "the offsets that groups have there are not translated")

    def _absent(self, kind: str, expected: Collection[str], there: Collection[str]) -> list[str]:
        """Those that are expected, not there, and not asked for yet."""
        present = {(kind, name) for name in there}
        self._asked -= present
        self._said -= present
        absent = sorted(name for name in expected if name not in there and (kind, name) not in self._asked)
        self._asked |= {(kind, name) for name in absent}
        return absent

    def _may_not_see(self, kind: str, name: str, what: str) -> None:
        self._say((kind, name), f"{kind} {name} of the source may not be seen: {what}; grant DESCRIBE on it")

    def _say(self, about: tuple[str, str], line: str) -> None:
        if about not in self._said:
            self._said.add(about)
            log.warning("%s", line)
