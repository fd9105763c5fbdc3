"""Looks for all links of a target cluster and reads what their topics say, given nothing but the way to the
cluster. Changes nothing. What it adds up to is verbatim/links/summary.py's part."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from common.config import topic_names
from common.errors import ControlError, KafkaTimeout
from common.kafka.client import clients, cluster_check, topics
from common.link.control_state import Control
from common.link.link_status import Line
from common.ports import Deadline
from offsets.groups import Groups
from verbatim.links import summary, tails
from verbatim.links.tails import Entry

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 20.0
LAST_OFFSETS = 20_000
RECENT_MS = 60_000
"""Of a topic where lanes speak no more is read than both: they say something every three seconds. Of one with
groups' offsets, the first."""


def look(settings: Settings, exclude: str = "") -> dict[str, Any]:
    """All links that can be found, but for those that `exclude` means: names or regular expressions. Raises
    LinkRefused, KafkaTimeout, KafkaException where the cluster can't be asked at all."""
    target = cluster_check.cluster_id(settings, "destination", Deadline(CALL_S))
    rows = [r for r in _Survey(settings).rows() if not topic_names.matches(exclude, r["link"])]
    return {
        "target": target,
        "sick": sum(map(summary.is_sick, rows)),
        "links": [{**row, "sick": summary.is_sick(row)} for row in summary.in_order(rows)],
    }


def controls(settings: Settings) -> dict[str, Control]:
    """What the control topics at the target say of each link there that can be read. Raises KafkaTimeout,
    KafkaException."""
    known, _ = _Survey(settings).controls()
    return {link: state for link, (_, state) in known.items()}


class _Survey:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin = clients.admin(settings.client_config("destination", "admin"))

    @cached_property
    def _names(self) -> set[str]:
        return set(topics.names(self._admin, "target", Deadline(CALL_S)))

    @cached_property
    def _members(self) -> dict[str, bool]:
        return self._groups()

    def rows(self) -> Iterable[Line]:
        known, rows = self.controls()
        for link in summary.traces(self._names, self._members) - known.keys() - rows.keys():
            topic = link + summary.CONTROL
            why = f"topic {topic} says nothing of it, or can't be seen; if CONTROL_TOPIC gives it another: --control-topic"
            rows[link] = summary.unread(link, topic, why)
        return [*self._known(known), *(row for link, row in rows.items() if link not in known)]

    def controls(self) -> tuple[dict[str, tuple[str, Control]], dict[str, Line]]:
        """Links by their control topics, and those that can't be read."""
        wanted = {name for name in self._names if name.endswith(summary.CONTROL)}
        if self._settings.control_topic_name:
            wanted.add(self._settings.control_topic_name)
        said, failed = self._read(wanted, None)
        known: dict[str, tuple[str, Control]] = {}
        rows: dict[str, Line] = {}
        for topic, entries in said.items():
            for link, state in summary.links_in((e.offset, e.value) for e in entries).items():
                if isinstance(state, ControlError):
                    rows[link] = summary.unread(link, topic, f"topic {topic}: {state}")
                else:
                    known[link] = topic, state
            if not entries:
                failed[topic] = "it is empty"
        for topic, why in failed.items():
            link = topic.removesuffix(summary.CONTROL)
            rows[link] = summary.unread(link, topic, f"topic {topic}: {why}")
        return known, rows

    def _known(self, states: Mapping[str, tuple[str, Control]]) -> Iterable[Line]:
        """Links whose control topics were read: what their lanes say, and how many groups follow."""
        every = {"source_topic": ".*", "source_topic_exclude": ""}
        of_link = {
            link: self._settings.model_copy(
                update=every | {"application_name": link, "control_topic_name": topic}
            )
            for link, (topic, _) in states.items()
        }
        spoken = {link: _positions(settings, states[link][1]) for link, settings in of_link.items()}
        groups = {link: settings.group_offsets_topic for link, settings in of_link.items()}
        recent_ms = int(time.time() * 1000) - RECENT_MS
        said, failed = self._read(spoken.values(), LAST_OFFSETS, recent_ms)
        follow, _ = self._read(groups.values(), LAST_OFFSETS)
        now_ms = int(time.time() * 1000)
        for link, settings in of_link.items():
            topic, offsets = spoken[link], follow.get(groups[link])
            why = f"topic {topic}: {failed.get(topic, 'it has several partitions')}"
            heard = summary.heard_in(said[topic]) if topic in said else why
            count = None if offsets is None else summary.groups_in(offsets)
            yield summary.row(settings, states[link][1], heard, self._members, count, now_ms)

    def _groups(self) -> dict[str, bool]:
        """Whether each group has members; where that can't be asked, what lanes say has to do."""
        with closing(Groups(self._settings.client_config("destination", "admin"), "target")) as groups:
            try:
                return groups.members(Deadline(CALL_S / 2))
            except (KafkaException, KafkaTimeout):
                return {}

    def _read(
        self, names: Iterable[str], most: int | None, since_ms: int | None = None
    ) -> tuple[dict[str, list[Entry]], dict[str, str]]:
        config = self._settings.client_config("destination", "consumer")
        return tails.read(config, self._admin, {*names}, most, Deadline(CALL_S), since_ms)


def _positions(settings: Settings, state: Control) -> str:
    """Where a link's lanes speak: of its own topics, as it was made with them, the third."""
    own = [] if state.identity is None else list(state.identity.topics)
    return settings.positions_topic if settings.positions_topic in own or len(own) < 3 else own[2]
