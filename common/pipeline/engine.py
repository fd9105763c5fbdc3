"""A pipeline, ready to run: batches of one source partition's records in, what goes on of them out, with what
became of each. Pure. What follows for those that failed is up to the caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.pipeline import own_code
from common.pipeline.avro_values import Schemas, Texts, no_texts, waiting
from common.pipeline.batch import Awaited, Batch, Broken, Done, Origin, Run, flags
from common.pipeline.columns import Flags
from common.pipeline.conditions import Formats, alternatives
from common.pipeline.converting import converting
from common.pipeline.field_changes import changing_fields
from common.pipeline.filtering import filtering
from common.pipeline.header_changes import changing_headers
from common.pipeline.judging import Judge
from common.pipeline.key_and_timestamp import taking_key, taking_timestamp
from common.pipeline.masking import masking
from common.pipeline.models import Flow, Pipeline
from common.pipeline.routing import OWN, Routed, names, routing
from common.pipeline.schema_ids import Targets, mapping_ids, unknown
from common.pipeline.selecting import CODE, selecting
from common.pipeline.stages import Stage
from common.pipeline.validating import validating

LOOK = frozenset({"filter", "schema-ids", "validate"})
"""The stages that leave most records as they are, or may do so."""


class Outcome(IntEnum):
    """What became of a record."""

    KEPT = 0
    """as it was, to the byte"""
    CHANGED = 1
    """goes on, and a stage has changed it"""
    TOMBSTONE = 2
    """goes on without the value that it had"""
    LEFT_OUT = 3
    FAILED = 4
    WAITS = 5
    """for its schema's id at the target"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that a stage failed on, or that waits: then for `schema`. `reason` shows nothing of it."""

    offset: int
    stage: str
    reason: str
    schema: Awaited | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """`rows`: what goes on, of `common.kafka.wire.records.ROWS`, in order, with the offsets that they had.
    `outcomes`: an Outcome for each record that came in. `failures`: in the order of offsets. `on_error`:
    what the flow says of them, in a word, or `halt` where a stage is broken, which the first record stands
    for; `payload`: whether their dead letters have the records in them. `waits`: those that wait, and
    nothing behind them may pass. `routed`: where each of `rows` goes; None: all of them to the link's own
    destination."""

    rows: pa.RecordBatch
    outcomes: npt.NDArray[np.int8]
    failures: list[Failure]
    on_error: str
    payload: bool = False
    waits: list[Failure] = field(default_factory=list)
    routed: Routed | None = None

    @property
    def changes(self) -> bool:
        """Whether anything has become of a record but waiting."""
        return self.routed is not None or bool((self.outcomes % Outcome.WAITS).any())

    @property
    def by_frame(self) -> bool:
        """Whether what became of the records is for a frame of theirs to say."""
        return self.routed is not None or bool(self.failures or self.waits)

    @property
    def topics(self) -> list[str | None]:
        """Of each row, where it is routed to; None: to the link's own destination."""
        if self.routed is None:
            return [None] * len(self.rows)
        # OWN is the last of these.
        where = (*self.routed.topics, None)
        return [where[at] for at in self.routed.to.tolist()]


@dataclass(frozen=True, slots=True)
class _Ready:
    """A stage with its name in messages."""

    name: str
    run: Run
    when: Judge | None


class ReadyFlow:
    """A flow, its expressions compiled and its shapes known."""

    def __init__(
        self,
        flow: Flow,
        number: int,
        keys: Mapping[str, bytes],
        targets: Targets = unknown,
        texts: Texts = no_texts,
    ) -> None:
        """`number`: which one it is, for messages. Raises SettingsError."""
        self.looks_only = all(stage.name in LOOK for stage in flow.stages)
        """Whether of many batches nothing is changed: these may stay whole."""
        self.code: dict[str, str] = {}
        self.on_error, self.payload, self.tolerate = flow.failed, flow.payload, flow.tolerate
        *formats, _ = flow.formats
        self._stages = [
            _Ready(
                f"stage {at} ({stage.name})",
                _made(stage, flow, before, keys, targets, f"flow {number}, stage {at}", self.code),
                None if stage.when is None else Judge(stage.when, before),
            )
            for at, (stage, before) in enumerate(zip(flow.stages, formats, strict=True), 1)
        ]
        # Who converts to Avro says schema-ids, whose context is the flow's.
        self._schemas = Schemas(texts, flow.context)
        if flow.avro:
            self._stages.insert(0, _Ready("Avro", waiting(self._schemas, flow.avro), None))
        self._route = flow.stages[-1].route
        asked = [c for s in flow.stages for c in (s.when, s.filter and (s.filter.keep or s.filter.drop)) if c]
        asked += [] if self._route is None else [case.when for case in self._route.cases or ()]
        self._asks_for_size = any("size" in one for conditions in asked for one in alternatives(conditions))

    def apply(self, rows: pa.RecordBatch, origin: Origin) -> Applied:
        """Rows of `common.kafka.wire.records.ROWS`. Depends on nothing but these, their origin, the flow and
        ids of schemas, which stay once they are known: records that come again, in other batches, have the
        same outcomes, unless a stage is broken; only what waited may go on."""
        try:
            return self._applied(rows, origin)
        except Broken as error:
            first = Failure(rows.column(0)[0].as_py(), error.stage, str(error))
            outcomes = np.full(len(rows), Outcome.FAILED, np.int8)
            return Applied(rows.slice(0, 0), outcomes, [first], "halt")

    def _applied(self, rows: pa.RecordBatch, origin: Origin) -> Applied:
        outcomes = np.zeros(len(rows), np.int8)
        at = np.arange(len(rows))
        failures: list[Failure] = []
        waits: list[Failure] = []
        to = None
        batch = Batch(rows, origin, schemas=self._schemas)
        if self._asks_for_size:
            batch = replace(batch, arrived_sizes=batch.sizes)
        for stage in self._stages:
            if not len(batch):
                break
            had_value = _has_value(batch)
            try:
                done = _run(stage, batch)
            except Broken as error:
                error.stage = stage.name
                raise
            batch = done.batch
            rows = batch.rows
            touched = at[done.changed]
            outcomes[touched] = np.maximum(outcomes[touched], Outcome.CHANGED)
            outcomes[at[had_value & ~_has_value(batch)]] = Outcome.TOMBSTONE
            failed, waiting = flags(len(rows), done.failed), flags(len(rows), done.waits)
            gone = failed | waiting if done.left_out is None else failed | waiting | done.left_out
            if gone.any():
                offsets = rows.column(0)
                failures += [
                    Failure(offsets[row].as_py(), stage.name, why) for row, why in sorted(done.failed.items())
                ]
                waits += [
                    Failure(offsets[row].as_py(), stage.name, *why) for row, why in sorted(done.waits.items())
                ]
                outcomes[at[gone]] = Outcome.LEFT_OUT
                outcomes[at[failed]] = Outcome.FAILED
                outcomes[at[waiting]] = Outcome.WAITS
                batch, at = batch.part(~gone), at[~gone]
            if done.to is not None:
                to = done.to[~gone]
        routed = None
        if to is not None and self._route is not None and (to != OWN).any():
            routed = Routed(names(self._route, origin), to)
        failures.sort(key=lambda failure: failure.offset)
        return Applied(batch.rows, outcomes, failures, self.on_error, self.payload, waits, routed)


class Engine:
    """A pipeline with its keys, and who knows the ids of schemas at the target and their texts. `code`:
    what is run that is not the pipeline's own, by name, and what tells it from another of that name."""

    def __init__(
        self,
        pipeline: Pipeline,
        keys: Mapping[str, bytes],
        targets: Targets = unknown,
        texts: Texts = no_texts,
    ) -> None:
        """Raises SettingsError."""
        flows = [
            (flow, ReadyFlow(flow, number, keys, targets, texts))
            for number, flow in enumerate(pipeline.flows, 1)
        ]
        self.code = {name: told for _, ready in flows for name, told in ready.code.items()}

        @lru_cache(maxsize=4096)
        def flow_of(topic: str) -> ReadyFlow | None:
            return next((ready for flow, ready in flows if flow.takes(topic)), None)

        self._flow_of = flow_of

    def flow_of(self, topic: str) -> ReadyFlow | None:
        """The first flow that takes the topic; None: its records need not be looked at."""
        return self._flow_of(topic)


def _made(
    stage: Stage, flow: Flow, before: Formats, keys: Mapping[str, bytes], targets: Targets, where: str,
    code: dict[str, str],
) -> Run:  # fmt: skip
    """`before`: what keys and values are there. `code`: gets what the stage runs that is not the pipeline's
    own."""
    if stage.filter is not None:
        return filtering(stage.filter, before)
    if stage.mask is not None:
        return masking(stage.mask, before, keys, f"{where} (mask)")
    if stage.schema_ids is not None:
        assert flow.wire is not None
        return mapping_ids(stage.schema_ids, flow.wire, targets)
    if stage.convert is not None:
        return converting(stage.convert, flow.context)
    if stage.headers is not None:
        return changing_headers(stage.headers)
    if stage.fields is not None:
        return changing_fields(stage.fields)
    if stage.validation is not None:
        return validating(stage.validation, f"{where} (validate)")
    if stage.python is not None:
        name, _, function = stage.python.partition(":")
        module = own_code.module(name, f"{where} (python)")
        code[name] = module.identity
        return own_code.running(module, function, f"{where} (python)")
    if stage.sql is not None:
        run, code[CODE] = selecting(stage.sql, before, f"{where} (sql)")
        return run
    if stage.key is not None:
        return taking_key(stage.key)
    if stage.route is not None:
        return routing(stage.route, before)
    assert stage.timestamp is not None
    return taking_timestamp(stage.timestamp)


def _run(stage: _Ready, batch: Batch) -> Done:
    """The stage, on the rows that it is for."""
    if stage.when is None:
        return stage.run(batch)
    chosen, bad = stage.when(batch)
    chosen &= ~flags(len(batch), bad)
    if chosen.all():
        return stage.run(batch)
    changed = flags(len(batch))
    if not chosen.any():
        return Done(batch, changed, failed=bad)
    to = None
    rows = np.flatnonzero(chosen)
    done = stage.run(batch.part(chosen))
    changed[rows] = done.changed
    left_out: Flags | None = None
    if done.left_out is not None:
        left_out = flags(len(batch))
        left_out[rows] = done.left_out
    if done.to is not None:
        to = np.full(len(batch), OWN, np.int16)
        to[rows] = done.to
    failed = bad | {int(rows[row]): why for row, why in done.failed.items()}
    waits = {int(rows[row]): why for row, why in done.waits.items()}
    merged = replace(batch, rows=_merged(batch.rows, done.batch.rows, rows))
    return Done(merged, changed, left_out, failed, waits, to)


def _has_value(batch: Batch) -> Flags:
    valid: Flags = batch.rows.column(4).is_valid().to_numpy(zero_copy_only=False)
    return valid


def _merged(rows: pa.RecordBatch, some: pa.RecordBatch, at: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Rows, with others at these places."""
    order = np.arange(len(rows))
    order[at] = len(rows) + np.arange(len(at))
    indices = pa.array(order)
    columns = [
        pa.concat_arrays([old, new]).take(indices)
        for old, new in zip(rows.columns, some.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
