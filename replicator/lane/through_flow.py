"""What becomes of records that were read before they go into a frame: what a pipeline makes of them, and what
does not go in. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from common.kafka.wire.chunks import Whole, unpacked
from common.kafka.wire.record_batch import BatchError
from common.link.frame_errors import Failed, merged
from common.link.frame_routes import with_routes

if TYPE_CHECKING:
    from common.pipeline.batch import Awaited
    from common.pipeline.engine import Applied, Failure
    from common.pipeline.tolerating import Tolerated


@dataclass(slots=True)
class Flow:
    """What the pipeline does with a partition's records: a function of these, and of nothing that changes.
    `looks_only`: as the engine's."""

    apply: Callable[[pa.RecordBatch], Applied]
    looks_only: bool = False
    _changes: bool = False
    """Whether anything has become of the last records: most likely it does of the next ones."""

    by_frame: bool = False
    """Whether what became of them was for a frame of theirs to say: they come a frame at a time."""

    def __call__(self, rows: pa.RecordBatch) -> Applied:
        applied = self.apply(rows)
        self._changes, self.by_frame = applied.changes, applied.by_frame
        return applied

    @property
    def takes_apart(self) -> bool:
        """Whether batches are not to come whole."""
        return self._changes or not self.looks_only

    def keeps(self, wholes: list[Whole]) -> bool:
        """Whether all that is in these batches stays as it is."""
        position = wholes[0][0].base_offset
        while wholes:
            try:
                rows, position = unpacked(wholes, position)
            except BatchError:
                return False
            applied = self(rows)
            if applied.changes or applied.waits:
                return False
            wholes = [whole for whole in wholes if whole[0].next_offset > position]
        return True


def takes_apart(flow: Flow | None) -> bool:
    """Whether no batch of the partition is to stay whole."""
    return flow is not None and flow.takes_apart


class StageFailed(Exception):
    """A stage of the pipeline has failed on the record at `offset`, or waits for what is not known yet
    of `schema`, and nothing may pass that."""

    def __init__(self, offset: int, why: str, schema: Awaited | None = None) -> None:
        super().__init__(f"record {offset}: {why}")
        self.offset, self.schema = offset, schema


@dataclass(slots=True)
class Kept:
    """What goes into a frame of what was read, and what does not, as in CutFrame. `dead`: of the rows those
    that a stage failed on. `failed`: what was read from there on does not go in, either. `routes`: the topics
    that some of the rows go to."""

    rows: pa.RecordBatch
    left_out: int = 0
    filtered: int = 0
    skipped: int = 0
    dead: Failed | None = None
    failed: StageFailed | None = None
    routes: tuple[str, ...] = ()


def through_flow(applied: Applied, tolerated: Tolerated | None, given: Kept) -> Kept:
    """What a pipeline makes of a record depends on nothing but the record and the pipeline. `tolerated`:
    counts those that a stage fails on, where there is a limit."""
    came, rows, failures, routed = given.rows, applied.rows, applied.failures, applied.routed
    if applied.waits:
        first = min(applied.waits, key=lambda wait: wait.offset)
        given.failed = StageFailed(first.offset, f"{first.stage} waits: {first.reason}", first.schema)
        came, rows = (_below(some, first.offset) for some in (came, rows))
        failures = [failure for failure in failures if failure.offset < first.offset]
    if failures and (most := _let_by(tolerated, applied.on_error, failures)) < len(failures):
        given.failed = _stage_failed(failures[most], tolerated if applied.on_error != "halt" else None)
        came, rows = (_below(some, failures[most].offset) for some in (came, rows))
        failures = failures[:most]
    given.filtered = len(came) - len(rows) - len(failures)
    if failures and applied.on_error == "dead-letter":
        why = {failure.offset: (failure.stage, failure.reason) for failure in failures}
        given.rows, given.dead = merged(came, rows, why, applied.payload)
    else:
        given.skipped, given.rows = len(failures), rows
    if routed is not None and len(rows):
        to = routed.to[: len(rows)]
        given.rows, given.routes = with_routes(given.rows, rows.column(0), routed.topics, to)
    return given


def _below(rows: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    return rows.slice(0, int(np.searchsorted(rows.column(0).to_numpy(), offset)))


def _let_by(tolerated: Tolerated | None, on_error: str, failures: list[Failure]) -> int:
    """How many records that a stage failed on go by before one halts the partition."""
    if on_error == "halt":
        return 0
    if tolerated is not None:
        return tolerated.take([failure.offset for failure in failures])
    return len(failures)


def _stage_failed(failure: Failure, counted: Tolerated | None) -> StageFailed:
    rate = "" if counted is None else f"; {counted.why(failure.offset)}"
    return StageFailed(failure.offset, f"{failure.stage} fails: {failure.reason}{rate}")
