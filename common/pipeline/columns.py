"""Keys and values of a batch as one run of bytes and where each begins, and new ones spliced of its pieces:
what no edit touches stays as it is, to the byte. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Edit = tuple[int, int, bytes]
"""From where to where, in the column's data, and what comes there instead."""
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Column:
    """`bounds`: where in `data` each row begins, and the last one ends. `present`: which rows are not null;
    None: all are."""

    data: memoryview
    bounds: Ints
    present: Flags | None

    @classmethod
    def of(cls, array: pa.Array) -> Column:
        """Of an array of `pa.binary()`."""
        count = len(array)
        bounds = np.frombuffer(array.buffers()[1], np.int32, count + 1, 4 * array.offset).astype(np.int64)
        begin, end = int(bounds[0]), int(bounds[-1])
        data = array.buffers()[2]
        present = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
        view = memoryview(data if data is not None else b"")[begin:end]
        return cls(view, bounds - begin, present)

    def to_arrow(self) -> pa.Array:
        count = len(self.bounds) - 1
        nulls = None if self.present is None else pa.array(self.present, pa.bool_()).buffers()[1]
        buffers = [nulls, pa.py_buffer(self.bounds.astype(np.int32)), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), count, buffers)

    @cached_property
    def rows(self) -> Sequence[int]:
        """Those that are not null."""
        count = len(self.bounds) - 1
        return range(count) if self.present is None else list(compress(range(count), self.present.tolist()))

    @cached_property
    def texts(self) -> list[memoryview]:
        """Of these rows."""
        bounds = self.bounds.tolist()
        found = list(map(self.data.__getitem__, map(slice, bounds[:-1], bounds[1:])))
        return found if self.present is None else list(compress(found, self.present.tolist()))

    def spliced(self, edits: Sequence[Edit]) -> Column:
        """With these edits, of which none lies in another, nor in two rows."""
        if not edits:
            return self
        begins, ends, new = zip(*sorted(edits), strict=True)
        pieces: list[bytes | memoryview] = [b""] * (2 * len(edits) + 1)
        pieces[::2] = map(self.data.__getitem__, map(slice, (0, *ends), (*begins, None)))
        pieces[1::2] = new
        starts = np.array(begins)
        growth = np.zeros(len(edits) + 1, np.int64)
        np.cumsum(starts - np.array(ends) + np.fromiter(map(len, new), np.int64), out=growth[1:])
        bounds = self.bounds + growth[np.searchsorted(starts, self.bounds)]
        return Column(memoryview(b"".join(pieces)), bounds, self.present)


def replaced(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """A batch with another column of this name."""
    at = rows.schema.get_field_index(name)
    columns = [*rows.columns[:at], column, *rows.columns[at + 1 :]]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
