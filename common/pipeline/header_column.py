"""Headers of a batch, all one behind the other: names are judged once each, however many records have them.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa

from common.kafka.wire.record_by_record import flat_headers
from common.kafka.wire.records import HEADERS, Item
from common.pipeline.columns import Flags, Ints

_FIELDS = list(HEADERS.value_type)


@dataclass(frozen=True)
class HeaderColumn:
    """`bounds`: which of them are those of each row; a bound more than rows."""

    bounds: Ints
    names: pa.Array
    values: pa.Array

    @classmethod
    def of(cls, column: pa.Array) -> HeaderColumn:
        bounds, flat = flat_headers(column)
        return cls(bounds, flat.field(0), flat.field(1))

    def to_arrow(self) -> pa.Array:
        """Null where a record has none."""
        flat = pa.StructArray.from_arrays([self.names, self.values], fields=_FIELDS)
        none = pa.array(np.diff(self.bounds) == 0, pa.bool_())
        bounds = pa.array(self.bounds, pa.int32())
        return pa.ListArray.from_arrays(bounds, flat, type=HEADERS, mask=none)

    @cached_property
    def _coded(self) -> tuple[list[str], Ints]:
        """All names there are, and which of them each header has."""
        coded = self.names.dictionary_encode()
        return coded.dictionary.to_pylist(), coded.indices.to_numpy().astype(np.int64)

    @cached_property
    def rows(self) -> Ints:
        """Of each header."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))

    def named(self, means: Callable[[str], bool]) -> Flags:
        """Which headers have such a name."""
        names, codes = self._coded
        return np.array([means(name) for name in names], np.bool_)[codes]

    def last(self, name: str) -> tuple[list[int], list[Item]]:
        """The rows that have a header of this name, and the last one's value."""
        at = np.flatnonzero(self.named(name.__eq__))
        rows = self.rows[at]
        last = np.flatnonzero(np.append(np.diff(rows) != 0, True))[: len(rows)]
        return rows[last].tolist(), cast("list[Item]", self.values.take(pa.array(at[last])).to_pylist())

    def without(self, which: Flags) -> HeaderColumn:
        kept = ~which
        before = np.zeros(len(kept) + 1, np.int64)
        np.cumsum(kept, out=before[1:])
        mask = pa.array(kept)
        return HeaderColumn(before[self.bounds], self.names.filter(mask), self.values.filter(mask))

    def renamed(self, new: Mapping[str, str]) -> HeaderColumn:
        names, codes = self._coded
        coded = pa.array([new.get(name, name) for name in names], pa.string())
        return HeaderColumn(self.bounds, coded.take(pa.array(codes)), self.values)

    def with_values(self, at: Ints, values: Sequence[Item]) -> HeaderColumn:
        """With other values of these headers."""
        order = np.arange(len(self.names))
        order[at] = len(self.names) + np.arange(len(at))
        every = pa.concat_arrays([self.values, pa.array(values, pa.binary())])
        return HeaderColumn(self.bounds, self.names, every.take(pa.array(order)))

    def appended(self, name: str, values: Sequence[Item]) -> HeaderColumn:
        """One header more for each row, behind the others."""
        count, flat = len(self.bounds) - 1, len(self.names)
        rows = np.arange(count)
        order: Any = np.empty(flat + count, np.int64)
        order[np.arange(flat) + self.rows] = np.arange(flat)
        order[self.bounds[1:] + rows] = flat + rows
        order = pa.array(order)
        names = pa.concat_arrays([self.names, pa.repeat(pa.scalar(name, pa.string()), count)])
        every = pa.concat_arrays([self.values, pa.array(values, pa.binary())])
        bounds = self.bounds + np.arange(count + 1)
        return HeaderColumn(bounds, names.take(order), every.take(order))
