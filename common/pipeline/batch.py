"""What a stage gets and what it gives back: records as `common.kafka.wire.records.ROWS`, and what became of
each. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.pipeline.columns import Column, Flags, Ints, replaced
from common.pipeline.header_column import HeaderColumn
from common.pipeline.paths import Side

if TYPE_CHECKING:
    from common.pipeline.avro_values import Schemas


class Awaited(NamedTuple):
    """A schema, by its context and id at the source, of which the id at the target is not known yet, or, with
    `text`, its text."""

    context: str
    id: int
    text: bool = False


@dataclass(frozen=True)
class Origin:
    """Where records come from."""

    link: str
    topic: str
    partition: int


@dataclass(frozen=True)
class Batch:
    """Records of one source partition."""

    rows: pa.RecordBatch
    origin: Origin
    arrived_sizes: Ints | None = None
    """Bytes of key and value as they were before the first stage; None: as they are."""
    schemas: Schemas | None = None
    """Of keys and values that are Avro."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def value(self) -> Column:
        return Column.of(self.rows.column(4))

    @cached_property
    def key(self) -> Column:
        return Column.of(self.rows.column(3))

    def side(self, side: Side) -> Column:
        return self.key if side == "key" else self.value

    @cached_property
    def headers(self) -> HeaderColumn:
        return HeaderColumn.of(self.rows.column(5))

    @cached_property
    def sizes(self) -> Ints:
        """Bytes of key and value of each record as it came."""
        if self.arrived_sizes is not None:
            return self.arrived_sizes
        return np.diff(self.key.bounds) + np.diff(self.value.bounds)

    def part(self, which: Flags) -> Batch:
        """Only these rows."""
        sizes = None if self.arrived_sizes is None else self.arrived_sizes[which]
        return replace(self, rows=self.rows.filter(pa.array(which)), arrived_sizes=sizes)

    @cached_property
    def places(self) -> list[dict[str, str | int]]:
        """Of each record, what a template may name."""
        common: dict[str, str | int] = {
            "link": self.origin.link,
            "topic": self.origin.topic,
            "partition": self.origin.partition,
        }
        offsets = cast("list[int]", self.rows.column(0).to_pylist())
        timestamps = cast("list[int]", self.rows.column(1).to_pylist())
        return [
            {**common, "offset": offset, "timestamp": timestamp}
            for offset, timestamp in zip(offsets, timestamps, strict=True)
        ]

    def with_column(self, name: str, column: pa.Array) -> Batch:
        return replace(self, rows=replaced(self.rows, name, column))

    def with_side(self, side: Side, column: Column) -> Batch:
        return self if column is self.side(side) else self.with_column(side, column.to_arrow())


@dataclass(frozen=True)
class Done:
    """A batch as a stage leaves it, with as many rows: which of them it has changed, which go no further,
    which it failed on, why, and which wait: why, and for which schema. Reasons show nothing
    of a record. `to`: where each goes, as common/pipeline/routing.py numbers topics; None: the stage does not
    say."""

    batch: Batch
    changed: Flags
    left_out: Flags | None = None
    failed: dict[int, str] = field(default_factory=dict)
    waits: dict[int, tuple[str, Awaited]] = field(default_factory=dict)
    to: npt.NDArray[np.int16] | None = None

    def let_wait(self, rows: Ints, why: str, schema: Awaited) -> None:
        """Those of them that do not wait already."""
        for row in rows.tolist():
            self.waits.setdefault(row, (why, schema))


class Broken(Exception):
    """A stage has made what none may make, of records that are not at fault: nothing is known of what it
    makes of any of them. Shows nothing of a record."""

    stage = ""


Run = Callable[[Batch], Done]
"""A stage: a function of nothing but records and options."""


def flags(count: int, rows: object = ()) -> Flags:
    """True for these rows."""
    found = np.zeros(count, np.bool_)
    found[list(rows)] = True  # type: ignore[call-overload]
    return found
