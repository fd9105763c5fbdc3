"""The stage `fields`: members of JSON objects that go, come, change their names or types. Pure.

What an option does not name keeps its bytes. Options are done one after another, each on what the one before
has left, and each is a list of edits of a column (common/pipeline/columns.py). A path that can't be followed,
because something else than an object is in its way, is a failure of the stage; a field that is not there is
none, but for `extract`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from common.pipeline.batch import Batch, Done, Run, flags
from common.pipeline.columns import Column, Edit
from common.pipeline.flattening import Doubled, NoObject, flattened, kept
from common.pipeline.json_fields import (
    EMPTY,
    MISPLACED,
    TOO_DEEP,
    TWICE,
    Data,
    Looked,
    Shape,
    back,
    forth,
    name_begin,
    name_end,
)
from common.pipeline.judging import text_of
from common.pipeline.paths import EACH, Step, parse
from common.pipeline.stages import Fields

NOT_THERE = "is not there"
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)", re.ASCII)
_NUMBER = re.compile(_INTEGER.pattern + r"(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", re.ASCII)


@dataclass
class Change:
    """A column on its way through the options."""

    batch: Batch
    column: Column
    failed: dict[int, str] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)

    def look(self, shape: Shape) -> Looked:
        looked = shape.look(self.column)
        for row, why in looked.failed.items():
            self.fail(row, why)
        return looked

    def where(self, shape: Shape) -> Iterator[tuple[int, int, int]]:
        """The shape's fields: a row that has one and has not failed, and from where to where it lies."""
        looked = self.look(shape)
        for found in looked.found:
            for row, raw in zip(found.rows, found.raws, strict=True):
                if raw is not EMPTY and row not in self.failed:
                    yield row, *looked.span(raw)

    def fail(self, row: int, why: str) -> None:
        self.failed.setdefault(row, why)

    def edit(self, edits: list[Edit], rows: Iterable[int]) -> None:
        self.column = self.column.spliced(edits)
        self.changed.update(rows)


Option = Callable[[Change], None]


def changing_fields(options: Fields) -> Run:
    def steps(text: str) -> tuple[Step, ...]:
        return parse(text, options.side).steps

    done: list[Option] = []
    if options.drop:
        done.append(_drop([steps(text) for text in options.drop]))
    if options.keep:
        done.append(_keep([steps(text) for text in options.keep]))
    done += [_rename(steps(text), name) for text, name in options.rename.items()]
    done += [_cast(steps(text), kind, text) for text, kind in options.cast.items()]
    done += [_set(steps(text), value) for text, value in options.set.items()]
    if options.flatten is not None:
        done.append(_flatten(options.flatten))
    if options.extract is not None:
        done.append(_extract(steps(options.extract), options.extract))
    if options.wrap is not None:
        done.append(_wrap(options.wrap))

    def run(batch: Batch) -> Done:
        change = Change(batch, batch.side(options.side))
        for option in done:
            option(change)
        failed = {row: f"the {options.side} {why}" for row, why in change.failed.items()}
        return Done(
            batch.with_side(options.side, change.column), flags(len(batch), change.changed), failed=failed
        )

    return run


def _drop(paths: Sequence[Sequence[Step]]) -> Option:
    shape = Shape(paths)

    def run(change: Change) -> None:
        data = change.column.data
        members = []
        rows = []
        for row, begin, end in change.where(shape):
            members.append((name_begin(data, name_end(data, begin)), end))
            rows.append(row)
        change.edit(_removals(data, sorted(members)), rows)

    return run


def _removals(data: Data, members: Sequence[tuple[int, int]]) -> list[Edit]:
    """A member goes with the comma behind it; the last one of an object with the comma before it, and what
    has gone before that."""
    removed: list[Edit] = []
    for begin, end in members:
        after = forth(data, end)
        if data[after] == ord(","):
            removed.append((begin, forth(data, after + 1), b""))
            continue
        before = back(data, begin - 1)
        while data[before] == ord(",") and removed and before < removed[-1][1]:
            begin = removed.pop()[0]
            before = back(data, begin - 1)
        removed.append((before if data[before] == ord(",") else begin, end, b""))
    return removed


def _keep(paths: Sequence[Sequence[Step]]) -> Option:
    shape = Shape(paths)
    return _anew(shape, lambda text: kept(text, shape.root))


def _flatten(delimiter: str) -> Option:
    return _anew(Shape([()]), lambda text: flattened(text, delimiter))


def _anew(shape: Shape, made: Callable[[bytes], bytes]) -> Option:
    """Objects put together anew."""
    whole = Shape([()])

    def run(change: Change) -> None:
        change.look(shape)
        looked = change.look(whole)
        edits: list[Edit] = []
        rows = []
        for row, raw in zip(looked.found[0].rows, looked.found[0].raws, strict=True):
            text = bytes(raw)
            if row in change.failed or text == b"null":
                continue
            try:
                new = made(text)
            except Doubled:
                change.fail(row, TWICE)
            except NoObject:
                change.fail(row, MISPLACED)
            except RecursionError:
                change.fail(row, TOO_DEEP)
            else:
                if new != text:
                    edits.append((*looked.span(raw), new))
                    rows.append(row)
        change.edit(edits, rows)

    return run


def _rename(path: Sequence[Step], name: str) -> Option:
    shape = Shape([path])
    again = Shape([(*path[:-1], name)])
    new = msgspec.json.encode(name)

    def run(change: Change) -> None:
        data = change.column.data
        edits: list[Edit] = []
        rows = []
        for row, begin, _ in change.where(shape):
            end = name_end(data, begin)
            edits.append((name_begin(data, end), end + 1, new))
            rows.append(row)
        change.edit(edits, rows)
        if edits:
            # Another field may have had that name.
            doubled = again.look(change.column).bad
            for row in rows:
                if row in doubled:
                    change.fail(row, doubled[row])

    return run


def _cast(path: Sequence[Step], kind: str, text: str) -> Option:
    shape = Shape([path])
    convert = _CASTS[kind]

    def run(change: Change) -> None:
        data = change.column.data
        edits: list[Edit] = []
        rows = []
        for row, begin, end in change.where(shape):
            before = bytes(data[begin:end])
            if before == b"null":
                continue
            after = convert(before)
            if after is None:
                change.fail(row, f"has something at {text} that can't become {kind}")
            elif after != before:
                edits.append((begin, end, after))
                rows.append(row)
        change.edit(edits, rows)

    return run


def _content(value: bytes) -> str | None:
    """The text of a string; of a number or a boolean, its own; of anything else, none."""
    if value[:1] == b'"':
        return text_of(value)
    return None if value[:1] in (b"{", b"[") else value.decode()


def _to_string(value: bytes) -> bytes | None:
    if value[:1] == b'"':
        return value
    text = _content(value)
    return None if text is None else b'"%b"' % text.encode()


def _to(form: re.Pattern[str]) -> Callable[[bytes], bytes | None]:
    def convert(value: bytes) -> bytes | None:
        text = _content(value)
        return text.encode() if text is not None and form.fullmatch(text) else None

    return convert


_CASTS = {
    "string": _to_string,
    "integer": _to(_INTEGER),
    "number": _to(_NUMBER),
    "boolean": _to(re.compile("true|false")),
}


def _set(path: Sequence[Step], value: Any) -> Option:
    """What is missing of the way there is made."""
    shape = Shape(path[:length] for length in range(len(path) + 1))
    names = [name for name in path if name is not EACH]

    def run(change: Change) -> None:
        looked = change.look(shape)
        data = change.column.data
        edits: list[Edit] = []
        rows = []
        # Of each row, what is there of the path, as deep as it goes.
        deepest: dict[int, tuple[int, Any]] = {}
        for depth, found in enumerate(looked.found):
            for row, raw in zip(found.rows, found.raws, strict=True):
                if raw is not EMPTY:
                    deepest[row] = depth, raw
        for row, (depth, raw) in deepest.items():
            if row in change.failed:
                continue
            text = value.format_map(change.batch.places[row]) if isinstance(value, str) else value
            begin, end = looked.span(raw)
            if depth == len(names):
                edits.append((begin, end, _encoded(text)))
            elif data[begin] != ord("{"):
                change.fail(row, "has no object to set a field in")
                continue
            else:
                for name in reversed(names[depth + 1 :]):
                    text = {name: text}
                empty = data[back(data, end - 2)] == ord("{")
                member = _encoded(names[depth]) + b":" + _encoded(text)
                edits.append((end - 1, end - 1, member if empty else b"," + member))
            rows.append(row)
        change.edit(edits, rows)

    return run


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _extract(path: Sequence[Step], text: str) -> Option:
    shape = Shape([path])

    def run(change: Change) -> None:
        column = change.column
        edits: list[Edit] = []
        there = set()
        for row, begin, end in change.where(shape):
            first, last = column.bounds[row : row + 2].tolist()
            edits += ((first, begin, b""), (end, last, b""))
            there.add(row)
        for row in column.rows:
            if row not in there:
                change.fail(row, f"has no {text}")
        change.edit(edits, there)

    return run


def _wrap(name: str) -> Option:
    begin = b"{" + _encoded(name) + b":"
    shape = Shape([()])

    def run(change: Change) -> None:
        looked = change.look(shape)
        edits: list[Edit] = []
        for raw in looked.found[0].raws:
            if raw is not EMPTY:
                first, last = looked.span(raw)
                end = bytes(change.column.data[last - 1 : last]) + b"}"
                edits += ((first, first, begin), (last - 1, last, end))
        change.edit(edits, change.column.rows)

    return run
