"""How a frame carries records that a stage of the pipeline failed on: as rows among those that go on, each
with the number of a reason that stands in the frame's header. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import orjson
import pyarrow as pa

from common.kafka.wire.records import MAX_RECORDS, ROWS, Rows

ROWS_AND_FAILED = ROWS.append(pa.field("error", pa.int16()))
"""Schema of such a frame's value: `error` is a place in `Failed.reasons`, null for what goes on."""
_ERROR = len(ROWS)
_CONTENT = slice(3, 6)
Reason = tuple[str, str]
"""The stage, and why it failed; neither shows anything of the record."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What a frame says of those that a stage failed on: how many there are, whether key, value and headers
    came with them, as they are at the source, and each reason."""

    count: int
    payload: bool
    reasons: tuple[Reason, ...]

    def to_json(self) -> bytes:
        return orjson.dumps({"count": self.count, "payload": self.payload, "reasons": self.reasons})

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Raises ValueError, KeyError or TypeError for what no writer would say."""
        said: dict[str, Any] = orjson.loads(text)
        count, payload, reasons = said["count"], said["payload"], said["reasons"]
        pairs = tuple((stage, why) for stage, why in reasons)
        if type(count) is not int or not 0 < count <= MAX_RECORDS or type(payload) is not bool:
            raise ValueError(f"{count!r} records that a stage failed on, with payload: {payload!r}")
        if not pairs or not all(isinstance(part, str) for pair in pairs for part in pair):
            raise ValueError("records that a stage failed on, without a reason")
        return cls(count, payload, pairs)


def merged(
    given: pa.RecordBatch, kept: pa.RecordBatch, failures: Mapping[int, Reason], payload: bool
) -> tuple[pa.RecordBatch, Failed]:
    """A frame's rows. `given`: as they were read; `kept`: what goes on of them; `failures`: by offset. Both
    batches are of `ROWS`, in the order of their offsets."""
    offsets = np.array(sorted(failures), np.int64)
    failed = given.take(pa.array(np.searchsorted(given.column(0).to_numpy(), offsets)))
    columns = failed.columns
    if not payload:
        columns[_CONTENT] = [pa.nulls(len(failed), column.type) for column in columns[_CONTENT]]
    reasons = tuple(dict.fromkeys(failures[offset] for offset in offsets.tolist()))
    numbers = {reason: number for number, reason in enumerate(reasons)}
    errors = pa.array([numbers[failures[offset]] for offset in offsets.tolist()], pa.int16())
    both = pa.concat_batches(
        [
            pa.RecordBatch.from_arrays(
                [*kept.columns, pa.nulls(len(kept), pa.int16())], schema=ROWS_AND_FAILED
            ),
            pa.RecordBatch.from_arrays([*columns, errors], schema=ROWS_AND_FAILED),
        ]
    )
    order = np.argsort(both.column(0).to_numpy())
    return both.take(pa.array(order)), Failed(len(failed), payload, reasons)


def check(rows: pa.RecordBatch, failed: Failed) -> None:
    """Raises ValueError unless the rows are as a frame's header says."""
    errors = rows.column(_ERROR)
    numbers = errors.drop_null().to_numpy()
    if len(numbers) != failed.count:
        raise ValueError(f"{len(numbers)} records that a stage failed on, the header says {failed.count}")
    if numbers.min() < 0 or numbers.max() >= len(failed.reasons):
        raise ValueError("a reason that the header has not")
    if not failed.payload and any(
        column.filter(errors.is_valid()).null_count != failed.count for column in rows.columns[_CONTENT]
    ):
        raise ValueError("payload of a record that a stage failed on, the header says there is none")


def split(rows: Rows) -> tuple[Rows, Rows | None]:
    """Of a frame's rows those that go on, and those that a stage failed on, with the column `error`; None
    where there are none."""
    if rows.batch.num_columns == _ERROR:
        return rows, None
    kept = rows.batch.filter(rows.batch.column(_ERROR).is_null())
    plain = pa.RecordBatch.from_arrays(kept.columns[:_ERROR], schema=ROWS)
    return _rows(plain), failed_of(rows)


def failed_of(rows: Rows) -> Rows | None:
    """Those that a stage failed on, as above."""
    failed = rows.batch.filter(rows.batch.column(_ERROR).is_valid())
    return _rows(failed) if len(failed) else None


def _rows(batch: pa.RecordBatch) -> Rows:
    return Rows.of(batch.column(0).to_pylist(), batch)
