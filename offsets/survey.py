"""One look at both clusters: what every group of the source has committed, what that is at the destination,
and what the target's group has. Writes nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from common.config.topic_names import expand_group_template
from common.errors import LinkRefused
from common.kafka.client import clients, topics
from common.link.control_log import ControlLog
from common.link.control_records import MOVED
from common.link.identity import Link
from common.partitions import PartitionName
from common.ports import Deadline
from offsets import translation_index
from offsets.commit_rule import Outcome, Written, decide
from offsets.group_offsets import GroupKey, GroupOffset
from offsets.group_protocol import MOVABLE, Committed, Group
from offsets.groups import Groups
from offsets.readers import read_records, seed
from offsets.translation_index import Destination, Translation
from offsets.translations import Translations
from offsets.visibility import Hidden

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

Offsets = dict[str, dict[PartitionName, Committed]]
"""Group -> what it has committed."""
CALL_S = 30.0
SOURCE_S = 15.0
"""The source may be gone: then there is no point in waiting long."""
UNTRANSLATED = (
    "groups are not translated with PROVENANCE_HEADERS: the target holds records of others between those of this link, and a group could "
    "skip those that it has not read yet; `verbatim move-group --return-link` moves them where that can be told"
)


def refuse_provenance(settings: Settings) -> None:
    """Refuse groups where other links or producers write to the destinations.

    At the source a group stands before a2: a1, then b1 that was copied from the target, are read, b2 is still
    on its way. The target's log is b1, b2, a1, a2. The group's translation, a2 there, skips b2. And moved by
    a link in each direction, it would go forwards by itself: what is not copied back has no offset of its
    own, and becomes the next one that has. Raises LinkRefused.
    """
    if settings.provenance_headers:
        raise LinkRefused(UNTRANSLATED)


@dataclass(frozen=True, slots=True)
class Row:
    """A partition of a group: what a record of it says now, and what the target's group has."""

    key: GroupKey
    record: GroupOffset
    committed: int | None
    doubt: str = ""
    """Why it is not known whether it was written; the next round sees."""


@dataclass(frozen=True, slots=True)
class Unmoved:
    """A group that is selected, and nothing of which is translated: `outcome` as rows have it, `detail` for
    people."""

    group: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class Found:
    """`rows`, the keys of records whose group or offset the source has no more, and the groups that have no
    rows. `listed`: all groups of the source, before their offsets were read; `offsets`: what those that are
    looked at have committed, of all topics."""

    rows: list[Row]
    gone: list[GroupKey]
    unmoved: list[Unmoved]
    listed: dict[str, Group]
    offsets: Offsets


class Survey(Translations):
    """Looks again and again."""

    def __init__(self, settings: Settings, link: Link, control: ControlLog) -> None:
        super().__init__(settings, control)
        self.link = link
        self.source_reached = link.source_reached
        self.records: dict[GroupKey, GroupOffset] = {}
        """The group-offsets topic, as it was read last and written since."""
        self.target = Groups(settings.client_config("destination", "admin"), "target")
        self._hidden = Hidden(settings)
        self.only: Container[str] | None = None
        """Of the groups that are selected those that are looked at; None: all."""
        self.moves_groups = False
        """Whether a group whose move has begun is judged like any other: by who goes on with it."""

    # Made when they are asked for: who never does, makes no connection to the source.

    @cached_property
    def source_admin(self) -> AdminClient:
        return clients.admin(self.settings.client_config("source", "admin"))

    @cached_property
    def source(self) -> Groups:
        return Groups(self.settings.client_config("source", "admin"), "source")

    def close(self) -> None:
        self.target.close()
        if "source" in vars(self):
            self.source.close()
        super().close()

    def load(self, go_on: Callable[[], bool] = lambda: True) -> bool:
        """Read what there is: records and mappings. False if `go_on` ended it before that was done.

        Records are read again whenever leadership begins: another instance may have written them meanwhile.
        """
        self.records = read_records(self.settings, self.target_admin)
        if not self.tail.catch_up(go_on):
            return False
        if self.returning is None:
            seed(self.tail.index, self.records.items())
        return True

    def look(self) -> Found:
        """Raises KafkaTimeout, KafkaException, LinkRefused; `source_reached` says then whether the source was
        to blame."""
        deadline = Deadline(CALL_S)
        self.source_reached = True
        self.control.refresh(deadline)
        self.source_reached = False
        source_deadline = Deadline(SOURCE_S)
        listed, committed_there, offsets, failed = self._source_offsets(source_deadline)
        seen = {topic for of_group in offsets.values() for topic, _ in of_group}
        known = {key.group for key in self.records}
        self._hidden.look(
            self.source, self.source_admin, listed, known, seen, self.copied_topics(), source_deadline
        )
        self.source_reached = True
        self.catch_up(deadline)
        there = self._destinations(offsets, deadline)
        bounds = self.bounds(there.values(), deadline)
        source_ends = self._ends_beyond(offsets)
        names = {group: self.target_name(group) for group in offsets}
        # Members after offsets: had somebody committed since, the group would show members, unless they left
        # again at once.
        refused: dict[str, str] = {}
        committed = self.target.committed(sorted(set(names.values())), deadline, refused)
        members = self.target.members(deadline)
        rows = []
        for group, of_group in sorted(offsets.items()):
            name = names[group]
            for at, route, source in self._with_routes(of_group):
                to = there.get((at, route))
                if to is None or to not in bounds:
                    continue
                have = committed.get(name, {}).get((to.topic, to.partition))
                beyond = at in source_ends and source.offset > source_ends[at]
                rows.append(
                    self.row(
                        GroupKey(group, *at, route),
                        source,
                        to,
                        bounds[to],
                        beyond,
                        have.offset if have else None,
                        members.get(name, False),
                        refused.get(name),
                    )
                )
        return Found(rows, self._gone(listed), unmoved(self.selects, listed, failed), listed, committed_there)

    def selects(self, group: str) -> bool:
        """Whether a source group is looked at."""
        return self.settings.selects_group(group) and (self.only is None or group in self.only)

    def target_name(self, group: str) -> str:
        return expand_group_template(
            self.settings.group_name_template, group=group, source=self.link.source_name
        )

    def copied_topics(self) -> set[str]:
        """Topics of which at least one partition is copied."""
        return {origin.topic for origin in self.control.state.origins.values()}

    def identify(self, names: set[str], deadline: Deadline) -> dict[str, str]:
        """Ask for the present ids of source topics, by which their partitions are known from now on."""
        described = topics.describe(self.source_admin, sorted(names), deadline) if names else {}
        self._ids = {name: info.id for name, info in described.items()}
        return self._ids

    # the source

    def _source_offsets(
        self, deadline: Deadline
    ) -> tuple[dict[str, Group], Offsets, Offsets, dict[str, str]]:
        """All groups that there are, of those selected what they have committed, and that of copied topics,
        and those of which that can't be read.

        A topic counts only if it had the same id before and after: an offset of a topic that was deleted,
        taken for one of the topic made after it, could skip records of that.
        """
        copied = self.copied_topics()
        listed = self.source.listed(deadline)
        selected = sorted(group for group, of in listed.items() if of.kind in MOVABLE and self.selects(group))
        before = self._ids
        while True:
            failed: dict[str, str] = {}
            found = self.source.committed(selected, deadline, failed)
            offsets = {
                group: {at: c for at, c in of_group.items() if at[0] in copied}
                for group, of_group in found.items()
            }
            after = self.identify({at[0] for of_group in offsets.values() for at in of_group}, deadline)
            stable = {name for name, topic_id in after.items() if before.get(name) == topic_id}
            if stable == after.keys() or deadline.passed():
                break
            before = after
        kept = {
            group: of_stable
            for group, of_group in offsets.items()
            if (of_stable := {at: c for at, c in of_group.items() if at[0] in stable})
        }
        return listed, found, kept, failed

    def _ends_beyond(self, offsets: dict[str, dict[PartitionName, Committed]]) -> dict[PartitionName, int]:
        """The source's ends, of partitions where a group stands beyond what has been copied."""
        beyond = set()
        for of_group in offsets.values():
            for at, committed in of_group.items():
                known = self.partition(at)
                if known is not None and committed.offset > known.next:
                    beyond.add(at)
        if not beyond:
            return {}
        return topics.ends(self.source_admin, sorted(beyond), Deadline(SOURCE_S))

    # the target

    def _with_routes(
        self, of_group: dict[PartitionName, Committed]
    ) -> Iterator[tuple[PartitionName, str, Committed]]:
        """What a group has committed, for each topic at the target that a partition's records go to; "": its
        destination."""
        for at, source in sorted(of_group.items()):
            for route in ("", *self.routes(at)):
                yield at, route, source

    def _destinations(
        self, offsets: dict[str, dict[PartitionName, Committed]], deadline: Deadline
    ) -> dict[tuple[PartitionName, str], Destination]:
        """Where each partition goes, its destination and routes, as far as there is such a partition."""
        wanted = {}
        for at in {at for of_group in offsets.values() for at in of_group}:
            for route in ("", *self.routes(at)):
                known = self.partition(at, route)
                if known is not None:
                    # There may be fewer partitions than at the source; none is one of the group's.
                    spread = self.is_spread(at[0], route)
                    wanted[at, route] = Destination(route, 0) if spread else known.destination
        names = sorted({to.topic for to in wanted.values()})
        there = topics.describe(self.target_admin, names, deadline) if names else {}
        return {
            at: to
            for at, to in wanted.items()
            if to.topic in there and to.partition < there[to.topic].partitions
        }

    def bounds(self, there: Iterable[Destination], deadline: Deadline) -> dict[Destination, tuple[int, int]]:
        """Log start and high watermark of the destinations."""
        partitions = sorted({(to.topic, to.partition) for to in there})
        found = topics.bounds(self.target_admin, partitions, deadline)
        return {Destination(*at): found[at] for at in partitions}

    def row(
        self,
        key: GroupKey,
        source: Committed,
        to: Destination,
        bounds: tuple[int, int],
        beyond: bool,
        committed: int | None,
        active: bool,
        refused: str | None = None,
    ) -> Row:
        """What is to be said of a partition of a group. `beyond`: its offset lies beyond the source's log;
        `committed` and `active`: the target's group; `refused`: why its offsets can't be read. The topic's id
        was asked for, or recalled."""
        at = (key.topic, key.partition)
        known = self.partition(at, key.route)
        assert known is not None
        topic_id, name = self._ids[key.topic], self.target_name(key.group)
        found = within(self.translated(at, source.offset, key.route), bounds)
        last = self.records.get(key)
        written = None
        if last is not None and (
            last.topic_id, last.destination_topic, last.destination_partition, last.target_group
        ) == (topic_id, to.topic, to.partition, name):  # fmt: skip
            written = last.written
        assert found.offset is not None
        outcome: Outcome
        move = self.control.state.group_moves.get(key.group)
        if move is not None and (move.state == MOVED or not self.moves_groups):
            outcome = "moved" if move.state == MOVED else "moving"
        elif len(known.destinations) > 1:
            outcome, found = "several-targets", Translation(None, False, "several-targets")
        elif self.meets_others(known):
            outcome, found = "several-sources", Translation(None, False, "several-sources")
        elif self.is_spread(key.topic, key.route):
            outcome, found = "repartitioned", Translation(None, False, "repartitioned")
        elif beyond:
            outcome, found = "beyond-source", Translation(None, False, "beyond-source")
        elif refused is not None:
            outcome = "failed"
        else:
            assert found.offset is not None
            outcome = decide(found.offset, source.offset, committed, written, active, self.settings.rewind)
            if outcome == "written":
                written = Written(source.offset, found.offset, committed)
        record = GroupOffset(
            topic_id,
            source.offset,
            name,
            to.topic,
            to.partition,
            found.offset,
            found.exact,
            found.why,
            outcome,
            (refused or "") if outcome == "failed" else "",
            int(time.time() * 1000),
            source.metadata,
            written,
        )
        return Row(key, record, committed)

    def _gone(self, listed: Container[str]) -> list[GroupKey]:
        """Records, older than mappings are kept, of groups that the source has no more."""
        oldest = time.time() * 1000 - self.settings.mappings_retention_s * 1000
        return [
            key for key, record in self.records.items() if key.group not in listed and record.time_ms < oldest
        ]


def unmoved(
    selects: Callable[[str], bool], listed: Mapping[str, Group], failed: Mapping[str, str]
) -> list[Unmoved]:
    """Selected groups that have no rows, each with the reason: of another kind than consumers', or `failed`
    when they were asked. Pure."""
    out = [
        Unmoved(
            group, "unmovable", f"it is a {of.kind} group, whose progress is not an offset for each partition"
        )
        for group, of in listed.items()
        if of.kind not in MOVABLE and selects(group)
    ]
    out += [Unmoved(group, "failed", f"its offsets can't be read: {why}") for group, why in failed.items()]
    return sorted(out, key=lambda found: found.group)


def within(found: Translation, bounds: tuple[int, int]) -> Translation:
    """A translation that a reader can start from: between log start and end of the log."""
    low, high = bounds
    if found.offset is None:
        if found.why == translation_index.NOTHING_COPIED and low == high:
            return Translation(low, True)
        return Translation(low, found.exact, found.why)
    if found.offset > high:
        # The destination was deleted and made again since: nothing of what was copied is there.
        return Translation(low, False, translation_index.MISSING)
    return Translation(max(low, found.offset), found.exact, found.why)
