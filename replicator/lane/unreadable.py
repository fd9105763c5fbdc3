"""What a lane's copies can't go beyond: each partition halts there, but what is before that first goes on its
way. Those that wait for a schema go on as soon as it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from common.link.halt_reasons import HaltReason
from common.partitions import PartitionName
from replicator.lane.halts import Halts
from replicator.lane.partition_copy import PartitionCopy, Status
from replicator.lane.schema_ids import SchemaIds
from replicator.lane.source_reader import Source
from replicator.lane.through_flow import StageFailed

if TYPE_CHECKING:
    from common.pipeline.batch import Awaited


class _Found(NamedTuple):
    """`at`: the position before it; `reason` and `available` as in Halt; `generation` and `begun` as they
    were when it was found; `schema`: as in StageFailed."""

    copy: PartitionCopy
    what: str
    at: int
    reason: HaltReason
    available: int | None
    generation: int
    begun: int
    schema: Awaited | None


class Unreadable:
    """One lane's."""

    def __init__(self, source: Source, halts: Halts, schema_ids: SchemaIds) -> None:
        self._source = source
        self._halts = halts
        self._schema_ids = schema_ids
        self._found: dict[PartitionName, _Found] = {}
        self._any_waits = False
        """Whether one may wait for a schema."""

    def found(
        self,
        copy: PartitionCopy,
        what: str,
        at: int,
        reason: HaltReason = HaltReason.UNREADABLE,
        available: int | None = None,
        schema: Awaited | None = None,
    ) -> None:
        begun = self._source.begun
        self._found[copy.topic, copy.partition] = _Found(
            copy, what, at, reason, available, copy.generation, begun, schema
        )

    def stage_failed(self, copy: PartitionCopy, failed: StageFailed) -> None:
        at = failed.offset
        if failed.schema is None:
            self.found(copy, str(failed), at, HaltReason.STAGE_FAILED, at + 1)
        else:
            self._any_waits = True
            what = f"{failed}{self._schema_ids.trouble}"
            self.found(copy, what, at, HaltReason.SCHEMA_UNKNOWN, at + 1, failed.schema)

    def next_of(self, copy: PartitionCopy) -> bool:
        """Whether it comes next of what was read of this copy."""
        bad = self._found.get((copy.topic, copy.partition))
        return bad is not None and bad.at <= copy.cut_at < copy.read

    def look(self) -> None:
        """Halt the partitions of which all that is before it is acknowledged, and let those go on whose
        schema is known by now."""
        self._halt()
        if not self._any_waits:
            return
        waiting = [(copy, schema) for copy in self._halts.copies if (schema := copy.schema_awaited)]
        self._any_waits = bool(waiting)
        if waiting:
            self._schema_ids.look()
        if going := [copy for copy, schema in waiting if self._schema_ids.has(schema)]:
            for copy in going:
                copy.go_on()
                self._halts.forget(copy)
            self._source.read_from_positions()

    def _halt(self) -> None:
        for key, bad in list(self._found.items()):
            copy = bad.copy
            turned_back = bad.begun != self._source.begun or bad.generation != copy.generation
            if turned_back or copy.status is not Status.RUNNING:
                # What is still there will be found again.
                del self._found[key]
            elif copy.acked >= bad.at:
                del self._found[key]
                if not self._source.by_id() and not self._source.still_the_same(copy):
                    # Batches of a topic that was made again don't fit behind the old one's.
                    self._halts.recreated(copy.topic)
                    continue
                self._halts.halt(copy, bad.reason, f"{copy.name}: {bad.what}", bad.at, bad.available)
                copy.awaits = bad.schema
