"""Where each source partition of a link stands: staged, delivered, halted. Reads the link's own topics, never
the source; decides nothing about the copying.

What is delivered is told by the offset mappings. Of a partition that was idle for longer than they are kept
they say nothing; then the replicator's position does, once the deduplicator has come to the end of staging
and holds nothing back: all that is staged is delivered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, OffsetSpec

from common.errors import LinkRefused
from common.kafka.client import topics
from common.link.control_records import DEDUPLICATOR, REPLICATOR
from common.link.control_state import Control
from common.partitions import PartitionId
from common.ports import Deadline
from offsets.groups import Groups
from replicator.driver.planner import PositionLog

if TYPE_CHECKING:
    from common.config.settings import Settings
    from common.link.control_log import ControlLog
    from offsets.readers import MappingTail


@dataclass(frozen=True, slots=True)
class Standing:
    """A source partition. `mapped` is the source position that the mappings reach, `staged` the one that the
    replicator has written down; None where they do not tell. `stuck` says why it stands still. `held` is
    where what staging holds back begins at the source."""

    topic: str
    topic_id: str
    partition: int
    destination: str | None
    origin: int
    mapped: int | None
    staged: int | None
    stuck: str | None = None
    held: int | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def delivered(self, drained: bool) -> int | None:
        """The source position up to which all is at the destination; None where that can't be told.
        `drained`: the deduplicator has read all of staging, looked at after `staged` was."""
        if self.mapped is not None:
            return self.mapped
        if drained and self.stuck is None and self.staged is not None:
            return self.staged
        return None


@dataclass(frozen=True, slots=True)
class Link:
    """All partitions, and of each staging partition how far the deduplicator has come and where it ends."""

    partitions: dict[PartitionId, Standing]
    staging: dict[int, tuple[int, int]]

    @property
    def drained(self) -> bool:
        return all(reached >= end for reached, end in self.staging.values())

    def waiting(self) -> list[str]:
        """Staging partitions that are not read to their end, for people."""
        return [
            f"staging partition {p}: {reached} of {end}"
            for p, (reached, end) in sorted(self.staging.items())
            if reached < end
        ]


def stand(
    state: Control, mapped: Mapping[PartitionId, int], staged: Mapping[PartitionId, int]
) -> dict[PartitionId, Standing]:
    """What the three topics say, put together. Pure."""
    out = {}
    for key, origin in state.origins.items():
        to = state.destinations.get(key[0])
        out[key] = Standing(
            origin.topic,
            *key,
            None if to is None else to.topic,
            origin.offset,
            mapped.get(key),
            staged.get(key),
            stuck(state, key),
            None if (hold := state.holds.get(key)) is None else hold.held_start,
        )
    return out


def stuck(state: Control, key: PartitionId) -> str | None:
    """Why a source partition stands still, if it does. Pure."""
    halts = [halt for (_, halted), halt in state.halts.items() if halted == key]
    if halts:
        newest = max(halts, key=lambda halt: halt.at)
        return f"{newest.reason}: {newest.detail}" if newest.detail else newest.reason
    if key in state.holds:
        return "staging-missing: frames are missing from staging"
    to = state.destinations.get(key[0])
    return f"destination-refused: {to.refused}" if to is not None and to.refused is not None else None


class Standings:
    """Looks again and again. `tail` is caught up by the look."""

    def __init__(
        self, settings: Settings, admin: AdminClient, control: ControlLog, tail: MappingTail
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._control = control
        self._tail = tail
        self._positions = PositionLog(
            settings.positions_topic, settings.client_config("destination", "consumer"), admin
        )
        self._groups = Groups(settings.client_config("destination", "admin"), "target")

    def close(self) -> None:
        self._groups.close()
        self._positions.close()

    def look(self, deadline: Deadline) -> Link:
        """Raises KafkaTimeout, KafkaException, StateError.

        In this order: the positions first, for what they speak of is in staging by then; then staging's ends,
        and how far the deduplicator is; what it holds back is in the control topic before its position moves
        past it; the mappings last.
        """
        staged = {key: position.next for key, position in self._positions.refresh(deadline).items()}
        staging = self._staging(deadline)
        state = self._control.refresh(deadline)
        self._tail.catch_up()
        mapped = {
            key: known.next for key, known in self._tail.index.partitions.items() if known.start is not None
        }
        return Link(stand(state, mapped, staged), staging)

    def settled(self, deadline: Deadline) -> bool:
        """Whether no transaction is open at the mappings: of one that is being committed, the markers come
        one after the other."""
        s = self._settings
        latest = {(s.mappings_topic, p): OffsetSpec.latest() for p in range(s.staging_partitions)}
        stable = topics.offsets(self._admin, latest, deadline, committed=True)
        return stable == topics.offsets(self._admin, latest, deadline)

    def led(self, application: str, deadline: Deadline) -> bool:
        """Whether any instance of an application takes part in its election: runs, or has died so lately that
        nobody knows yet. Raises LinkRefused where that may not be seen: it would look like nobody."""
        return self._leads([application], deadline)[application]

    def idle(self, deadline: Deadline) -> list[str]:
        """Which of the two applications that copy is not running. Raises LinkRefused likewise."""
        return [
            name for name, leads in self._leads([REPLICATOR, DEDUPLICATOR], deadline).items() if not leads
        ]

    def _leads(self, applications: list[str], deadline: Deadline) -> dict[str, bool]:
        groups = {name: f"{self._settings.application_name}.{name}.leader" for name in applications}
        for group in sorted(self._groups.hidden(groups.values(), deadline)):
            raise LinkRefused(
                f"group {group} of the target: not allowed to describe it, so whether anybody runs can't be told; grant DESCRIBE"
            )
        members = self._groups.members(deadline)
        return {name: members.get(group, False) for name, group in groups.items()}

    def _staging(self, deadline: Deadline) -> dict[int, tuple[int, int]]:
        s = self._settings
        latest = {(s.staging_topic, p): OffsetSpec.latest() for p in range(s.staging_partitions)}
        ends = topics.offsets(self._admin, latest, deadline)
        group = s.deduplicator_group
        committed = self._groups.committed([group], deadline).get(group, {})
        return {
            p: (committed[at].offset if (at := (s.staging_topic, p)) in committed else 0, ends[at])
            for p in range(s.staging_partitions)
        }
