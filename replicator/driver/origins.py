"""Where the copying of each source partition begins: decided once, by the leader, and written down before
anything is read.

What START_OFFSETS means is told by common/config/start_offsets.py; where MirrorMaker 2 has stopped, by
replicator/driver/mirror_maker.py.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, OffsetSpec

from common.config import start_offsets
from common.config.start_offsets import Point, StartOffsets
from common.errors import KafkaTimeout, SettingsError
from common.kafka.client import topics
from common.kafka.client.topics import TopicInfo
from common.link.control_kinds import AcceptDestination, Origin, Started
from common.link.control_log import ControlLog
from common.link.control_state import Control
from common.partitions import PartitionName
from common.ports import Deadline
from replicator.driver.mirror_maker import Predecessor

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

LED_S = 10.0
"""How long leaders are waited for before those are left out that have none."""


class Origins:
    """Decides, while this driver leads. `undecided` are the partitions that had no leader when their origin
    was to be decided."""

    def __init__(
        self,
        settings: Settings,
        control: ControlLog,
        source: AdminClient,
        target: AdminClient,
        bounded: bool,
    ) -> None:
        self.settings = settings
        self.control = control
        self.source = source
        self.target = target
        self.bounded = bounded
        self.undecided: set[PartitionName] = set()
        self._told = False

    def decide(self, found: list[TopicInfo], state: Control, deadline: Deadline) -> None:
        """Decide where copying begins, and write it down before anything is read.

        Were an origin of `latest` kept in memory only: it resolves to 0, the writer dies before its first
        frame, records arrive, the next writer resolves 1, and record 0 is lost in silence.
        """
        initial = not state.started
        if not initial and not self._told:
            self._tell(state)
        missing = [(i, p) for i in found for p in range(i.partitions) if (i.id, p) not in state.origins]
        starts = self._starts(found) if initial else StartOffsets()
        starts, taken_over = self._going_on(missing, starts, state, deadline)
        offsets = self._beginnings(missing, starts, deadline)
        missing = [(i, p) for i, p in missing if (i.name, p) in offsets]
        if missing:
            late = [at for at, offset in offsets.items() if offset < 0]
            if late:  # no record at or after the timestamp
                offsets |= topics.ends(self.source, late, deadline, committed=True)
            # The topic may have been made again between the description and the offsets: then the offsets are
            # of another topic.
            still = topics.describe(self.source, sorted({i.name for i, _ in missing}), deadline)
            missing = [(i, p) for i, p in missing if i.name in still and still[i.name].id == i.id]
            # The consents first: with origins on record, they would not be thought of again.
            self.control.append_all([AcceptDestination((name,)) for name in taken_over], deadline)
            self.control.append_all(
                [Origin(i.name, i.id, p, offsets[(i.name, p)], initial) for i, p in missing], deadline
            )
        if initial:
            self.control.append(Started(str(self.settings.start_offsets)), deadline)
        if missing or initial:
            self.control.refresh(deadline)

    def _tell(self, state: Control) -> None:
        self._told = True
        begun, given = state.start_offsets, str(self.settings.start_offsets)
        if begun is not None and begun != given:
            log.warning(
                "START_OFFSETS is %s, but the link has begun with %s: origins are decided once, and stay; what is new is copied from its "
                "beginning",
                given,
                begun,
            )

    def _starts(self, found: list[TopicInfo]) -> StartOffsets:
        """What the setting says of the topics that are there. Raises SettingsError for a partition that is
        not: copied from its beginning when it appears, its offset would be ignored in silence."""
        starts = start_offsets.parsed(self.settings.start_offsets)
        partitions = {info.name: info.partitions for info in found}
        for topic, p in starts.exact:
            if p >= partitions.get(topic, 0):
                there = (
                    f"has {partitions[topic]} partitions"
                    if topic in partitions
                    else "is not copied, or not there"
                )
                raise SettingsError(f"START_OFFSETS: {topic}:{p}: topic {topic} of the source {there}")
        for topic in sorted(starts.named - partitions.keys()):
            log.warning(
                "START_OFFSETS: topic %s is not there: it is copied from its beginning once it is", topic
            )
        return starts

    def _going_on(
        self, missing: list[tuple[TopicInfo, int]], starts: StartOffsets, state: Control, deadline: Deadline
    ) -> tuple[StartOffsets, list[str]]:
        """`starts`, with the offsets at which MirrorMaker 2 would have gone on; and the destinations that
        were proved to hold what it has copied: nobody has to consent to these. Raises LinkRefused."""
        cluster = state.identity.source_cluster if state.identity else ""
        before = Predecessor(self.settings, self.source, self.target, self.settings.source_name or cluster)
        offsets, destinations = before.origins(starts, [(i.name, p) for i, p in missing], deadline)
        return replace(starts, exact={**starts.exact, **offsets}), destinations

    def _beginnings(
        self, missing: list[tuple[TopicInfo, int]], starts: StartOffsets, deadline: Deadline
    ) -> dict[PartitionName, int]:
        """Where copying of new partitions begins, as their leaders say: topic and partition -> offset, or -1.

        Partitions without a leader are left out for now: one would hold up all others. Not where copying
        begins elsewhere than at the beginning: later is too late there, what comes meanwhile would be taken
        for older than the link. Raises SettingsError for an offset outside of its partition's log.
        """
        patient = {
            (i.name, p)
            for i, p in missing
            if not self.bounded and (i.name, p) not in starts.exact and starts.of(i.name) == "earliest"
        }
        leaderless = {(i.name, p) for i, p in missing if p in i.leaderless}
        while True:
            self.undecided = leaderless & patient
            wanted = {(i.name, p) for i, p in missing} - self.undecided
            where = {at: _spec(starts.without_mirror_maker(at[0])) for at in wanted if at not in starts.exact}
            try:
                within = Deadline(deadline.left(LED_S)) if patient else deadline
                exact = self._given({at: o for at, o in starts.exact.items() if at in wanted}, within)
                return exact | topics.offsets(self.source, where, within, committed=True)
            except KafkaTimeout:
                if not patient or deadline.passed():
                    raise
            # A broker that has just died is said to lead what it led until the others have noticed.
            again = topics.describe(self.source, sorted({i.name for i, _ in missing}), deadline)
            leaderless = {(i.name, p) for i in again.values() for p in i.leaderless}

    def _given(self, exact: dict[PartitionName, int], deadline: Deadline) -> dict[PartitionName, int]:
        """The offsets that were given, if their logs hold them. Nothing is written down yet, so a slip of the
        pen costs nothing; later on it would halt, or skip what is there."""
        bounds = topics.bounds(self.source, exact.keys(), deadline)
        for (topic, p), offset in exact.items():
            low, end = bounds[topic, p]
            if not low <= offset <= end:
                raise SettingsError(
                    f"START_OFFSETS: {topic}:{p}={offset}: the source's log of {topic}-{p} goes from offset {low} to {end}"
                )
        return exact


def _spec(start: Point) -> OffsetSpec:
    # These three methods are not annotated.
    spec: OffsetSpec
    if start == "earliest":
        spec = OffsetSpec.earliest()
    elif start == "latest":
        spec = OffsetSpec.latest()
    else:
        spec = OffsetSpec.for_timestamp(int(start))
    return spec
