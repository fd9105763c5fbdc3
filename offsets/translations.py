"""Which offset of a source partition is which at its destination, and back, by what the link's mappings and
its control topic say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.kafka.client import clients
from common.link.control_log import ControlLog
from common.partitions import PartitionName
from common.pipeline.route_names import spread_over
from common.ports import Deadline
from offsets import two_way
from offsets.held_ends import HeldEnds
from offsets.readers import MappingTail
from offsets.return_link import ReturnLink, settle
from offsets.translation_index import Destination, PartitionIndex, Point, Translation

if TYPE_CHECKING:
    from common.config.settings import Settings


class Translations:
    """As far as the mappings have been read; keeps the index, and the topic ids seen last."""

    def __init__(self, settings: Settings, control: ControlLog) -> None:
        self.settings = settings
        self.control = control
        self.target_admin = clients.admin(settings.client_config("destination", "admin"))
        self.tail = MappingTail(settings, self.target_admin)
        self.returning: ReturnLink | None = None
        """The link back, where both copy one topic: what a group has read is judged by both."""
        self._held = HeldEnds(self.tail, self.target_admin)
        self._ids: dict[str, str] = {}

    def close(self) -> None:
        self.tail.close()
        if self.returning is not None:
            self.returning.close()
        self.control.close()

    def catch_up(self, deadline: Deadline) -> None:
        """Read the mappings to their end, and then what the link has said: a topic that has joined another in
        its destination is on record before its first record is delivered there."""
        self._held.look(deadline)
        if self.returning is None:
            self.tail.catch_up()
        else:
            # Whichever side a record is read at, its copy's mapping is known, and that of all that stand
            # before it where it was produced.
            for tail in (self.returning.tail, self.tail, self.returning.tail):
                settle(tail)
            copies = sorted(set(self.control.state.copies().values()))
            self.returning.look(self.target_admin, copies, deadline)
        self._held.tell()
        self.control.refresh(deadline)

    def recall(self, topic: str, topic_id: str) -> None:
        """Take a source topic's id from what is on record, without asking for it."""
        self._ids[topic] = topic_id

    def topic_id(self, topic: str) -> str:
        """The id that the topic had when it was last asked for, or that was recalled; empty where it had
        none."""
        return self._ids.get(topic, "")

    def routes(self, at: PartitionName) -> list[str]:
        """The topics that stages take, or took, records of a source partition to, besides its destination."""
        topic_id, state = self._ids[at[0]], self.control.state
        known, own = self.tail.index.partitions.get((topic_id, at[1])), state.destinations.get(topic_id)
        found = {name for (of, name), to in state.routes.copy().items() if of == topic_id and not to.refused}
        found |= set() if known is None else known.routes.keys()
        return sorted(found - ({own.topic} if own is not None else set()))

    def is_spread(self, topic: str, route: str) -> bool:
        """Whether a version of the pipeline takes records of a topic to partitions of another by their keys,
        now or before."""
        versions = self.control.state.pipelines.copy().values() if route else ()
        definitions = (version.definition for version in versions)
        return spread_over(definitions, topic, self.settings.application_name, route) > 0

    def partition(self, at: PartitionName, route: str = "") -> PartitionIndex | None:
        """What is known of a source partition, under its topic's present id; None if it is not copied yet.
        `route`: of a topic that a stage takes its records to."""
        key = (self._ids[at[0]], at[1])
        known = self.tail.index.partitions.get(key)
        if known is None:
            # Idle for longer than mappings are kept: where it goes is still on record, how far it got is not.
            to = self.control.state.destinations.get(key[0])
            if key not in self.control.state.origins or to is None or to.refused is not None:
                return None
            known = PartitionIndex(Destination(to.topic, at[1]))
        if route:
            return known.route(route)
        promotion = self.control.state.steering.promotions.get(at[0])
        end = None if promotion is None else promotion.copied_end(key)
        known.final = None if end is None else Point(*end, exact=True)
        return known

    def translated(self, at: PartitionName, offset: int, route: str = "") -> Translation:
        """What a source offset of a partition that is copied is at the destination, or in a topic that a
        stage takes its records to."""
        known = self.partition(at, route)
        assert known is not None
        if self.returning is None:
            return known.translate(offset, self.origin(at))
        to = known.destination
        back = self.returning.partition(to, at)
        return two_way.cut(known, back, offset, self.origin(at), self.returning.origin(to))

    def translated_back(self, at: PartitionName, offset: int) -> Translation:
        """What an offset at its destination is at the source."""
        known = self.partition(at)
        assert known is not None
        if self.returning is None:
            return known.reverse(offset, self.origin(at))
        to = known.destination
        there = self.returning.partition(to, at)
        return two_way.cut(there, known, offset, self.returning.origin(to), self.origin(at))

    def meets_others(self, known: PartitionIndex) -> bool:
        """Whether records of another source topic are, or may come, between those of a partition.

        A group has read all of its topic, and nothing of the other one; the other's records stand before the
        end at the destination. Moved there, it would never read them; moved to before them, it would read its
        own again.
        """
        return self.control.state.has_several_sources(known.destination.topic)

    def origin(self, at: PartitionName) -> int | None:
        """Where the copying of a source partition began, if that is on record."""
        found = self.control.state.origins.get((self._ids[at[0]], at[1]))
        return found.offset if found else None
