"""Where in JSON the fields of a pipeline are: only these are decoded, a batch at a time, and where they lie
is known to the byte. Pure.

msgspec hands out what is at the names that are asked for, and checks the rest without making objects of it.
It finds names that are written with escapes. Of a name that is there twice it hands out the last, as nearly
all who read JSON do. That is enough for who only reads. To a stage that changes what it finds such a record
is bad, or a mask would let the first one through.

Whether each name is there once is asked of the whole batch first: the decoder has found a name in so many
records, and its bytes in quotes occur as often in all of the data. Then none occurs twice, for each one found
is one of these. Where the numbers differ, and in records with `\\u`, the objects are decoded once more, with
other names for what was found: what is found then was there twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter, is_not
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import DecodeError, Raw, ValidationError

from common.pipeline.columns import Column
from common.pipeline.paths import EACH, Step

EMPTY = Raw(b"")
"""Nothing is there."""
WHITE = b" \t\n\r"
_QUOTE, _BACKSLASH = b'"\\'
_PART_BYTES = 1 << 17

NO_JSON = "is no JSON"
NO_UTF8 = "is no UTF-8"
TOO_DEEP = "is nested too deeply"
TWICE = "has a field twice that the stage looks at"
MISPLACED = "has something else where the stage looks for an object or an array"

_list = msgspec.json.Decoder(list[Raw]).decode
_raw = msgspec.json.Decoder(Raw).decode
_UNDECODED = (DecodeError, RecursionError, UnicodeDecodeError)

Text = Any
"""Raw or a memoryview: what has the bytes of JSON."""
Data = bytes | memoryview
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Found:
    """What is at a path, in order: its row, which may come again behind `[*]`, and its JSON, or EMPTY."""

    rows: Sequence[int]
    raws: Sequence[Text]


@dataclass(slots=True)
class Looked:
    """What was found at each path. `bad`: row -> why it can't be looked at. `misplaced`: rows where a path
    goes on, and what is there is neither null nor anything that it could go on in."""

    column: Column
    found: list[Found]
    bad: dict[int, str]
    misplaced: set[int] = field(default_factory=set)
    base: int = 0

    def span(self, raw: Text) -> tuple[int, int]:
        """Where it lies in the column's data."""
        buffer = pa.py_buffer(raw)
        begin = buffer.address - self.base
        return begin, begin + buffer.size

    def begins(self, raws: Iterable[Text]) -> list[int]:
        """Where each of them does."""
        return [buffer.address - self.base for buffer in map(pa.py_buffer, raws)]

    @property
    def failed(self) -> dict[int, str]:
        """For a stage that changes what it finds: what it can't find must not slip past it."""
        return dict.fromkeys(self.misplaced, MISPLACED) | self.bad


class Node:
    """What is asked for of what is at one place: it (`at`: which path), its members, its elements."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.members: dict[str, Node] = {}
        self.each: Node | None = None

    def add(self, steps: Sequence[Step], at: int) -> None:
        if not steps:
            self.at = at
        elif steps[0] is EACH:
            self.each = self.each or Node()
            self.each.add(steps[1:], at)
        else:
            self.members.setdefault(steps[0], Node()).add(steps[1:], at)

    def compile(self) -> None:
        names = {f"f{number}": name for number, name in enumerate(self.members)}
        struct = msgspec.defstruct("Members", [(f, Raw, EMPTY) for f in names], rename=names, gc=False)
        self.decode: Callable[[Text], Any] = msgspec.json.Decoder(struct).decode
        self.nothing = struct()
        self.fields = [attrgetter(name) for name in names]
        for inner in (*self.members.values(), *([self.each] if self.each else ())):
            inner.compile()


@dataclass(slots=True)
class _Level:
    """The objects at one node."""

    node: Node
    rows: Sequence[int]
    texts: Sequence[Text]
    objects: list[Any]


class Shape:
    """What is looked for in JSON: paths, each the steps from its root on."""

    def __init__(self, paths: Iterable[Sequence[Step]], once: bool = True) -> None:
        """`once`: a name that is there twice is bad."""
        self._once = once
        self.root = Node()
        self._count = 0
        for steps in paths:
            self.root.add(steps, self._count)
            self._count += 1
        self.root.compile()

    def look(self, column: Column) -> Looked:
        """Looks at all rows that are not null."""
        nothing = Found((), [])
        looked = Looked(column, [nothing] * self._count, _not_utf8(column))
        looked.base = pa.py_buffer(column.data).address
        levels: list[_Level] = []
        root, rows, texts = self.root, column.rows, column.texts
        if looked.bad:
            # A string in there has no text.
            sound = [(row, text) for row, text in zip(rows, texts, strict=True) if row not in looked.bad]
            rows, texts = [row for row, _ in sound], [text for _, text in sound]
        if root.at is not None or root.each is not None:
            whole = _whole(rows, texts, looked)
            if root.at is not None:
                looked.found[root.at] = Found(rows, whole)
        _look(root, rows, texts, looked, levels, top=True)
        if self._once:
            _look_for_doubles(column, levels, looked)
        return looked


def _whole(rows: Sequence[int], texts: Sequence[Text], looked: Looked) -> list[Text]:
    raws: list[Text] = []
    for row, text in zip(rows, texts, strict=True):
        try:
            raws.append(_raw(text))
        except _UNDECODED as error:
            looked.bad.setdefault(row, _why(error))
            raws.append(EMPTY)
    return raws


def _look(
    node: Node,
    rows: Sequence[int],
    texts: Sequence[Text],
    looked: Looked,
    levels: list[_Level],
    top: bool = False,
) -> None:
    if node.members:
        level = _Level(node, rows, texts, _objects(node, rows, texts, looked, top))
        levels.append(level)
        for get, member in zip(node.fields, node.members.values(), strict=True):
            _go_on(member, rows, list(map(get, level.objects)), looked, levels)
    if node.each is not None:
        _go_on(node.each, *_elements(rows, texts, looked), looked, levels)


def _go_on(node: Node, rows: Sequence[int], raws: list[Text], looked: Looked, levels: list[_Level]) -> None:
    if node.at is not None:
        looked.found[node.at] = Found(rows, raws)
    if node.members or node.each:
        there = [(row, raw) for row, raw in zip(rows, raws, strict=True) if raw is not EMPTY]
        _look(node, [row for row, _ in there], [raw for _, raw in there], looked, levels)


def _objects(node: Node, rows: Sequence[int], texts: Sequence[Text], looked: Looked, top: bool) -> list[Any]:
    """The members of each object; none of what is no object."""
    decode = node.decode
    try:
        return [decode(text) for text in texts]
    except _UNDECODED:
        pass
    objects = []
    for row, text in zip(rows, texts, strict=True):
        members = node.nothing
        try:
            members = decode(text)
        except ValidationError:
            _no_object(row, text, looked, top)
        except _UNDECODED as error:
            looked.bad.setdefault(row, _why(error))
        objects.append(members)
    return objects


def _no_object(row: int, text: Text, looked: Looked, top: bool) -> None:
    """The decoder has looked at its first byte only."""
    if top:
        try:
            _raw(text)
        except _UNDECODED as error:
            looked.bad.setdefault(row, _why(error))
            return
    if _first(text) != b"n":
        looked.misplaced.add(row)


def _first(text: Text) -> bytes:
    return bytes(text).lstrip(WHITE)[:1]


def _elements(rows: Sequence[int], texts: Sequence[Text], looked: Looked) -> tuple[list[int], list[Text]]:
    inner_rows: list[int] = []
    inner: list[Text] = []
    for row, text in zip(rows, texts, strict=True):
        first = _first(text)
        if first == b"[" and row not in looked.bad:
            elements = _list(text)
            inner_rows += [row] * len(elements)
            inner += elements
        elif first != b"n":
            looked.misplaced.add(row)
    return inner_rows, inner


def _why(error: Exception) -> str:
    return TOO_DEEP if isinstance(error, RecursionError) else NO_JSON


def _not_utf8(column: Column) -> dict[int, str]:
    """The decoder passes over strings that nobody asks for, whatever is in them."""
    if not len(column.data) or _bytes(column.data).max() < 0x80:
        return {}
    bad = {}
    for row, text in zip(column.rows, column.texts, strict=True):
        try:
            str(text, "utf-8")
        except UnicodeDecodeError:
            bad[row] = NO_UTF8
    return bad


def _look_for_doubles(column: Column, levels: list[_Level], looked: Looked) -> None:
    data: Data = column.data
    escaped: set[int] = set()
    if _has_escapes(_bytes(data)):
        # These are looked at one by one, and left out of the sums: a name that is found and does not occur
        # in quotes would make up for one that occurs twice.
        every = list(zip(column.rows, map(bytes, column.texts), strict=True))
        escaped = {row for row, text in every if b"\\u" in text}
        data = b"".join(text for row, text in every if row not in escaped)
    found: Counter[str] = Counter()
    for level in levels:
        objects = level.objects
        if escaped:
            objects = [o for row, o in zip(level.rows, objects, strict=True) if row not in escaped]
        for get, name in zip(level.node.fields, level.node.members, strict=True):
            found[name] += sum(map(is_not, map(get, objects), repeat(EMPTY)))
    array = _bytes(data)
    # A slash is the one character of a name that has a short escape, too.
    doubtful = {
        name for name, count in found.items() if count and ("/" in name or not _once_each(array, name, count))
    }
    for level in levels:
        doubt = not doubtful.isdisjoint(level.node.members)
        if not doubt and not escaped:
            continue
        for row, text, members in zip(level.rows, level.texts, level.objects, strict=True):
            if (
                members is not level.node.nothing
                and (doubt or row in escaped)
                and _has_doubles(level.node, text, members)
            ):
                looked.bad.setdefault(row, TWICE)


def _bytes(data: Data) -> Bytes:
    return np.frombuffer(data, np.uint8)


def _has_escapes(data: Bytes) -> bool:
    """Whether `\\u` occurs."""
    return _words(data, b"\\") > 0 and _words(data, b"\\u") > 0


def _once_each(data: Bytes, name: str, count: int) -> bool:
    """Whether a name occurs in quotes so often, and no more. Mostly its first bytes, compared as one word,
    don't either: that takes half the time of bytes.count."""
    needle = f'"{name}"'.encode()
    most = _words(data, needle[:4] if len(needle) >= 4 else needle[:2])
    return most == count or data.tobytes().count(needle) == count


def _words(data: Bytes, word: bytes) -> int:
    """How often one, two or four bytes occur, at any place. Part by part: what numpy makes of one stays in
    the processor's cache, and needs no new pages."""
    size = len(word)
    number = int.from_bytes(word, "little")
    found = 0
    for begin in range(0, len(data), _PART_BYTES):
        for at in range(begin, begin + size):
            part = data[at : at + _PART_BYTES]
            found += int(np.count_nonzero(part[: len(part) // size * size].view(f"<u{size}") == number))
    return found


def _has_doubles(node: Node, text: Text, members: Any) -> bool:
    whole, base = bytes(text), pa.py_buffer(text).address
    raws = [raw for get in node.fields if (raw := get(members)) is not EMPTY]
    ends = sorted(name_end(whole, pa.py_buffer(raw).address - base) for raw in raws)
    pieces: list[bytes] = []
    at = 0
    for end in ends:
        # No name that is asked for has a control character in it.
        pieces += (whole[at:end], b"\\u0000")
        at = end
    again = node.decode(b"".join((*pieces, whole[at:])))
    return any(get(again) is not EMPTY for get in node.fields)


def name_end(data: Data, begin: int) -> int:
    """Where the quote stands that ends the name of the member whose value begins there."""
    return back(data, back(data, begin - 1) - 1)


def name_begin(data: Data, end: int) -> int:
    """Where the quote stands that begins the name which ends there."""
    while True:
        end -= 1
        while data[end] != _QUOTE:
            end -= 1
        before = end
        while data[before - 1] == _BACKSLASH:
            before -= 1
        if (end - before) % 2 == 0:
            return end


def back(data: Data, at: int) -> int:
    """The first place at or before this one that is not white."""
    while data[at] in WHITE:
        at -= 1
    return at


def forth(data: Data, at: int) -> int:
    """The first place at or behind this one that is not white."""
    while data[at] in WHITE:
        at += 1
    return at
