"""Where in Avro the fields of a pipeline are, to the byte: a pass of numpy for each field of a schema, over
all records that were written by it. Pure.

Records are anybody's bytes. What is not as its schema says is told by row, and positions never leave the row,
so whatever a length or a count says ends where its record does. Elements of arrays and maps are read one of
each record at a time; where few records have more, they are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from common.pipeline.avro_schema import MOST_DEEP, Type
from common.pipeline.columns import Flags, Ints
from common.pipeline.paths import EACH, Step

_LONGEST = 10
"""Bytes of a long."""
_FEW = 12
_ONE = np.uint64(1)
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


@dataclass(slots=True)
class Node:
    """What is asked for of what is at one place: it (`at`: which paths), its members, its elements."""

    at: list[int] = field(default_factory=list)
    members: dict[str, Node] = field(default_factory=dict)
    each: Node | None = None

    @classmethod
    def of(cls, paths: Sequence[Sequence[Step]]) -> Node:
        root = cls()
        for number, steps in enumerate(paths):
            node = root
            for step in steps:
                if step is EACH:
                    node.each = node = node.each or cls()
                else:
                    node = node.members.setdefault(step, cls())
            node.at.append(number)
        return root


_NOTHING = Node()


@dataclass(frozen=True, slots=True)
class Fields:
    """What is at path number `path` in `rows`, one of each: where it lies, and of what `type` it is.
    `begins`: of its content, behind a length; `starts`: of all of it, with the number of its branch of
    `union`."""

    path: int
    type: Type
    union: Type | None
    rows: Ints
    starts: Ints
    begins: Ints
    ends: Ints

    def sound(self, bad: Flags) -> Fields:
        """Without rows that are bad."""
        some = ~bad[self.rows]
        places = (of[some] for of in (self.rows, self.starts, self.begins, self.ends))
        return Fields(self.path, self.type, self.union, *places)

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Row, begin and end of each."""
        return zip(self.rows.tolist(), self.begins.tolist(), self.ends.tolist(), strict=True)


class _Ill(Exception):
    """The record is not as its schema says."""


class Walk:
    """Of rows of some bytes. `bad`: rows that are not as their schema says, of which what was found is
    worth nothing; `misplaced`: those in which a path goes on where there is nothing to go on in."""

    def __init__(self, data: memoryview, ends: Ints) -> None:
        """`ends`: of each row."""
        self.bytes: npt.NDArray[np.uint8] = np.zeros(len(data) + _LONGEST + 1, np.uint8)
        self.bytes[: len(data)] = np.frombuffer(data, np.uint8)
        self.data = data.cast("B")
        self.ends = ends
        self.bad: Flags = np.zeros(len(ends), np.bool_)
        self.misplaced: Flags = np.zeros(len(ends), np.bool_)
        self.found: list[Fields] = []

    def walk(self, of: Type, asked: Node, rows: Ints, at: Ints) -> None:
        """From `at` on there is one of the type in each of these rows, and nothing behind it."""
        after = self._of_few(of, asked, rows, at, 0)
        self.bad[rows[after != self.ends[rows]]] = True

    def _of_few(
        self, of: Type, asked: Node, rows: Ints, at: Ints, depth: int,
        union: Type | None = None, starts: Ints | None = None,
    ) -> Ints:  # fmt: skip
        """The same as _one_each, record by record where these are few."""
        if len(rows) > _FEW:
            return self._one_each(of, asked, rows, at, depth, union, starts)
        after = at.copy()
        begun = at if starts is None else starts
        for number, row in enumerate(rows.tolist()):
            try:
                places = int(at[number]), depth, union, int(begun[number])
                after[number] = _One(self, row).one(of, asked, *places)
            except _Ill:
                self.bad[row] = True
        return after

    def _one_each(
        self, of: Type, asked: Node, rows: Ints, at: Ints, depth: int,
        union: Type | None = None, starts: Ints | None = None,
    ) -> Ints:  # fmt: skip
        """Where each ends."""
        if depth > MOST_DEEP:
            self.bad[rows] = True
            return at
        if of.kind == "union":
            return self._branches(of, asked, rows, at, depth)
        begins = at
        if of.kind == "record":
            after = at
            for name, inner in zip(of.names, of.inner, strict=True):
                member = asked.members.get(name, _NOTHING)
                after = self._one_each(inner, member, rows, after, depth + 1)
        elif of.kind in ("array", "map"):
            after = self._elements(of, asked, rows, at, depth)
        else:
            begins, after = self._scalar(of, rows, at)
        if asked.at:
            begun = at if starts is None else starts
            self.found += [Fields(path, of, union, rows, begun, begins, after) for path in asked.at]
        if (asked.members and of.kind not in ("record", "map", "null")) or (
            asked.each is not None and of.kind not in ("array", "null")
        ):
            self.misplaced[rows] = True
        return after

    def _scalar(self, of: Type, rows: Ints, at: Ints) -> tuple[Ints, Ints]:
        if of.kind in ("string", "bytes"):
            return self._blobs(rows, at)
        if of.kind in ("int", "long", "enum"):
            values, after = self._longs(rows, at)
            if of.kind == "enum":
                self._refuse(rows, (values < 0) | (values >= len(of.names)))
            return at, after
        if of.kind == "boolean":
            self._refuse(rows, self.bytes[at] > 1)
        size = of.size if of.kind == "fixed" else _SIZES[of.kind]
        return at, self._moved(rows, at, np.full(len(at), min(size, len(self.bytes))))

    def _refuse(self, rows: Ints, which: Flags) -> None:
        if which.any():
            self.bad[rows[which]] = True

    def _moved(self, rows: Ints, at: Ints, by: Ints) -> Ints:
        """On by so many bytes, within the row."""
        left = self.ends[rows] - at
        # Below 0 is above all, without a sign.
        wrong = by.view(np.uint64) > left.view(np.uint64)
        if wrong.any():
            self.bad[rows[wrong]] = True
            by = np.where(wrong, left, by)
        return at + by

    def _longs(self, rows: Ints, at: Ints) -> tuple[Ints, Ints]:
        """A long of each, and where it ends."""
        first = self.bytes[at]
        values = (first & 0x7F).astype(np.uint64)
        sizes = np.ones(len(at), np.int64)
        (more,) = np.nonzero(first >= 0x80)
        for group in range(1, _LONGEST):
            if not len(more):
                break
            byte = self.bytes[at[more] + group]
            values[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * group)
            sizes[more] = group + 1
            if group == _LONGEST - 1:
                self._refuse(rows[more], byte > 1)
            more = more[byte >= 0x80]
        zigzag = (values >> _ONE) ^ (~(values & _ONE) + _ONE)
        return zigzag.view(np.int64), self._moved(rows, at, sizes)

    def _blobs(self, rows: Ints, at: Ints) -> tuple[Ints, Ints]:
        """Where each begins and ends."""
        lengths, begins = self._longs(rows, at)
        return begins, self._moved(rows, begins, lengths)

    def _branches(self, of: Type, asked: Node, rows: Ints, at: Ints, depth: int) -> Ints:
        which, begins = self._longs(rows, at)
        first = int(which[0])
        sound = ~self.bad[rows]
        if 0 <= first < len(of.inner) and (which == first).all() and sound.all():
            return self._one_each(of.inner[first], asked, rows, begins, depth + 1, of, at)
        self._refuse(rows, (which < 0) | (which >= len(of.inner)))
        after = begins.copy()
        for number, inner in enumerate(of.inner):
            # Those that are not sound go no further, or types that hold each other would go on with them.
            (some,) = np.nonzero((which == number) & sound)
            if len(some):
                after[some] = self._of_few(
                    inner, asked, rows[some], begins[some], depth + 1, of, at[some]
                )  # fmt: skip
        return after

    def _elements(self, of: Type, asked: Node, rows: Ints, at: Ints, depth: int) -> Ints:
        at = at.copy()
        left = np.flatnonzero(~self.bad[rows])
        counts = np.zeros(len(rows), np.int64)
        while len(left) > _FEW:
            fresh = left[counts[left] == 0]
            if len(fresh):
                counts[fresh], at[fresh] = self._counts(rows[fresh], at[fresh])
                left = left[(counts[left] > 0) & ~self.bad[rows[left]]]
            if len(left):
                at[left] = self._element(of, asked, rows[left], at[left], depth)
                counts[left] -= 1
                left = left[~self.bad[rows[left]]]
        for number in left.tolist():
            row = int(rows[number])
            one = _One(self, row)
            try:
                at[number] = one.elements(of, asked, int(at[number]), depth, int(counts[number]))
            except _Ill:
                self.bad[row] = True
        return at

    def _counts(self, rows: Ints, at: Ints) -> tuple[Ints, Ints]:
        """Of the next block of each. Each element takes a byte at least."""
        counts, after = self._longs(rows, at)
        (sized,) = np.nonzero(counts < 0)
        if len(sized):
            counts = np.abs(counts)
            _, after[sized] = self._longs(rows[sized], after[sized])
        self._refuse(rows, (counts < 0) | (counts > self.ends[rows] - after))
        return counts, after

    def _element(self, of: Type, asked: Node, rows: Ints, at: Ints, depth: int) -> Ints:
        if of.kind == "array":
            return self._one_each(of.inner[0], asked.each or _NOTHING, rows, at, depth + 1)
        begins, ends = self._blobs(rows, at)
        if not asked.members:
            return self._one_each(of.inner[0], _NOTHING, rows, ends, depth + 1)
        keys = [bytes(self.data[b:e]) for b, e in zip(begins.tolist(), ends.tolist(), strict=True)]
        after = ends.copy()
        for key in set(keys):
            some = np.array([number for number, other in enumerate(keys) if other == key])
            member = asked.members.get(key.decode("utf-8", "surrogateescape"), _NOTHING)
            after[some] = self._one_each(of.inner[0], member, rows[some], ends[some], depth + 1)
        return after


class _One:
    """The same of one record. Raises _Ill."""

    def __init__(self, walk: Walk, row: int) -> None:
        self.walk, self.row = walk, row
        self.data, self.end = walk.data, int(walk.ends[row])

    def elements(self, of: Type, asked: Node, at: int, depth: int, count: int) -> int:
        """`count`: how many of the block that was begun are yet to come."""
        while True:
            for _ in range(count):
                member = asked.each or _NOTHING
                if of.kind == "map":
                    begin, at = self.blob(at)
                    key = bytes(self.data[begin:at]).decode("utf-8", "surrogateescape")
                    member = asked.members.get(key, _NOTHING)
                at = self.one(of.inner[0], member, at, depth + 1)
            count, at = self.long(at)
            if count < 0:
                count = -count
                _, at = self.long(at)
            if not count:
                return at

    def one(
        self, of: Type, asked: Node, at: int, depth: int, union: Type | None = None, start: int = -1
    ) -> int:
        if depth > MOST_DEEP:
            raise _Ill
        if of.kind == "union":
            which, begin = self.long(at)
            if not 0 <= which < len(of.inner):
                raise _Ill
            return self.one(of.inner[which], asked, begin, depth + 1, of, at)
        begin = after = at
        if of.kind == "record":
            for name, inner in zip(of.names, of.inner, strict=True):
                after = self.one(inner, asked.members.get(name, _NOTHING), after, depth + 1)
        elif of.kind in ("array", "map"):
            after = self.elements(of, asked, at, depth, 0)
        elif of.kind in ("string", "bytes"):
            begin, after = self.blob(at)
        elif of.kind in ("int", "long", "enum"):
            value, after = self.long(at)
            if of.kind == "enum" and not 0 <= value < len(of.names):
                raise _Ill
        else:
            after = at + (of.size if of.kind == "fixed" else _SIZES[of.kind])
            if after > self.end or (of.kind == "boolean" and self.data[at] > 1):
                raise _Ill
        for path in asked.at:
            places = (self.row, at if start < 0 else start, begin, after)
            self.walk.found.append(Fields(path, of, union, *(np.array([place]) for place in places)))
        if (asked.members and of.kind not in ("record", "map", "null")) or (
            asked.each is not None and of.kind not in ("array", "null")
        ):
            self.walk.misplaced[self.row] = True
        return after

    def long(self, at: int) -> tuple[int, int]:
        value = 0
        for group in range(_LONGEST):
            if at >= self.end:
                raise _Ill
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << 7 * group
            if byte < 0x80:
                if value >> 64:
                    raise _Ill
                return (value >> 1) ^ -(value & 1), at
        raise _Ill

    def blob(self, at: int) -> tuple[int, int]:
        length, begin = self.long(at)
        if not 0 <= length <= self.end - begin:
            raise _Ill
        return begin, begin + length
