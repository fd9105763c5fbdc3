"""Whether conditions hold, for a batch of records. Pure.

A number is compared by its value, whatever its digits look like, and text by its characters, however they
are escaped. What is of another type than the operand is not equal, nor less, nor greater. Behind `[*]` it
must hold of one element.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import pairwise
from typing import Any, cast

import msgspec
import numpy as np

from common.kafka.wire.records import Item
from common.pipeline.avro_values import AvroShape
from common.pipeline.batch import Batch
from common.pipeline.columns import Flags
from common.pipeline.conditions import Conditions, Formats, Operators, Scalar, alternatives
from common.pipeline.json_fields import EMPTY, Found, Shape
from common.pipeline.paths import Path, Side, Step, parse

Holds = Callable[[Any], bool]
_text = msgspec.json.Decoder(str).decode
_DIGITS = b"-0123456789"


def text_of(json: bytes) -> str:
    """Of a string of JSON."""
    return _text(json) if b"\\" in json else str(json[1:-1], "utf-8")


def number_of(json: bytes) -> Decimal | None:
    """None: there is no such exponent."""
    try:
        return Decimal(json.decode())
    except InvalidOperation:
        return None


def text(item: Item) -> str | None:
    """What is no JSON, as text: any bytes have one."""
    return None if item is None else item.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class _Check:
    """What must hold of what is at a path. `absent`: that nothing is there."""

    path: Path
    at: int
    """which of its side's shape"""
    holds: Holds
    absent: bool


class Judge:
    """Conditions, made ready."""

    def __init__(self, conditions: Conditions, formats: Formats) -> None:
        steps: dict[str, list[tuple[str | None, ...]]] = {"value": [], "key": []}
        self._alternatives: list[list[_Check]] = []
        for one in alternatives(conditions):
            checks = []
            for path_text, test in one.items():
                path = parse(path_text)
                kind = formats.kind(path)
                at = -1
                if kind == "json" and not test.what:
                    if path.steps not in steps[path.root]:
                        steps[path.root].append(path.steps)
                    at = steps[path.root].index(path.steps)
                absent = test.exists is False or test.what == "tombstone"
                make = {"json": _of_json, "text": _of_text, "number": _of_numbers}[kind]
                checks.append(_Check(path, at, _all(list(make(test))), absent))
            self._alternatives.append(checks)
        self._shapes: dict[Side, Callable[[Batch], tuple[list[Found], dict[int, str]]]] = {
            cast("Side", side): _shape(cast("Side", side), found, formats)
            for side, found in steps.items()
            if found
        }

    def __call__(self, batch: Batch) -> tuple[Flags, dict[int, str]]:
        """Which rows they hold for, and which could not be looked at, why."""
        looked = {side: look(batch) for side, look in self._shapes.items()}
        bad = {row: f"the {side} {why}" for side, (_, one) in looked.items() for row, why in one.items()}
        held = np.zeros(len(batch), np.bool_)
        for checks in self._alternatives:
            one = np.ones(len(batch), np.bool_)
            for check in checks:
                found = None if check.at < 0 else looked[cast("Side", check.path.root)][0][check.at]
                holds = _judged(check, batch, found)
                one &= ~holds if check.absent else holds
            held |= one
        return held, bad


def _shape(
    side: Side, paths: list[tuple[Step, ...]], formats: Formats
) -> Callable[[Batch], tuple[list[Found], dict[int, str]]]:
    """What looks at the paths of a side: what is there, and rows that are bad."""
    if side in formats.avro:
        return partial(AvroShape(paths).found, side=side)
    shape = Shape(paths, once=False)

    def look(batch: Batch) -> tuple[list[Found], dict[int, str]]:
        looked = shape.look(batch.side(side))
        return looked.found, looked.bad

    return look


def _judged(check: _Check, batch: Batch, found: Found | None) -> Flags:
    """Whether something is there for which it holds."""
    holds = check.holds
    if found is not None:
        if isinstance(found.rows, range):
            return np.array([holds(bytes(raw)) for raw in found.raws], np.bool_)
        there = zip(found.rows, found.raws, strict=True)
        rows: Sequence[int] = [row for row, raw in there if raw is not EMPTY and holds(bytes(raw))]
    elif check.path.root == "header":
        rows, values = batch.headers.last(cast("str", check.path.steps[0]))
        rows = [row for row, value in zip(rows, values, strict=True) if holds(text(value))]
    elif check.path.root == "timestamp":
        return np.array([holds(at) for at in batch.rows.column(1).to_pylist()], np.bool_)
    elif check.path.root == "size":
        return np.array([holds(size) for size in batch.sizes.tolist()], np.bool_)
    else:
        column = batch.side(cast("Side", check.path.root))
        data, bounds = column.data, column.bounds.tolist()
        every = [text(bytes(data[begin:end])) for begin, end in pairwise(bounds)]
        rows = [row for row in column.rows if holds(every[row])]
    judged = np.zeros(len(batch), np.bool_)
    judged[rows] = True
    return judged


def _all(tests: list[Holds]) -> Holds:
    """What is there at all holds, where nothing else is asked."""
    if len(tests) == 1:
        return tests[0]
    return lambda found: all(test(found) for test in tests)


def _there(json: Any) -> bool:
    return bool(json != b"")


def _always(_: Any) -> bool:
    return True


def _of_json(test: Operators) -> Iterator[Holds]:
    """Each of a value's JSON; of nothing, where there is none."""
    if test.exists is not None or test.what:
        yield _there
    if test.one_of is not None:
        yield _equals_json(test.one_of)
    for operand, compare in ((test.lt, operator.lt), (test.gt, operator.gt)):
        if operand is not None:
            yield _compares_json(compare, operand)
    for holds in _of_strings(test):
        yield _of_json_string(holds)


def _of_json_string(holds: Callable[[str], bool]) -> Holds:
    return lambda json: json[:1] == b'"' and holds(text_of(json))


def _is_number(operand: Scalar) -> bool:
    return isinstance(operand, int | float) and not isinstance(operand, bool)


def _decimal(operand: Any) -> Decimal:
    return Decimal(repr(operand))


def _equals_json(operands: list[Scalar]) -> Holds:
    exact = {msgspec.json.encode(operand) for operand in operands if not _is_number(operand)}
    strings = {operand for operand in operands if isinstance(operand, str)}
    numbers = {_decimal(operand) for operand in operands if _is_number(operand)}

    def holds(json: bytes) -> bool:
        if json in exact:
            return True
        if json[:1] == b'"':
            return b"\\" in json and _text(json) in strings
        return bool(numbers) and json[:1] in _DIGITS and json != b"" and number_of(json) in numbers

    return holds


def _compares_json(compare: Callable[[Any, Any], bool], operand: Any) -> Holds:
    if isinstance(operand, str):
        return lambda json: json[:1] == b'"' and compare(text_of(json), operand)
    limit = _decimal(operand)

    def holds(json: bytes) -> bool:
        if json == b"" or json[:1] not in _DIGITS:
            return False
        number = number_of(json)
        return number is not None and compare(number, limit)

    return holds


def _of_strings(test: Operators) -> Iterator[Callable[[str], bool]]:
    if test.matches is not None:
        fullmatch = re.compile(test.matches, re.DOTALL).fullmatch
        yield lambda found: fullmatch(found) is not None
    if (prefix := test.prefix) is not None:
        yield lambda found: found.startswith(prefix)


def _of_text(test: Operators) -> Iterator[Holds]:
    """Each of a text; None for a header without a value."""
    if test.exists is not None or test.what:
        yield _always
    if test.one_of is not None:
        yield set(test.one_of).__contains__
    for operand, compare in ((test.lt, operator.lt), (test.gt, operator.gt)):
        if operand is not None:
            yield _of_given(compare, operand)
    for holds in _of_strings(test):
        yield _given(holds)


def _of_given(compare: Callable[[Any, Any], bool], operand: Any) -> Holds:
    return lambda found: found is not None and compare(found, operand)


def _given(holds: Callable[[str], bool]) -> Holds:
    return lambda found: found is not None and holds(found)


def _of_numbers(test: Operators) -> Iterator[Holds]:
    if test.exists is not None:
        yield _always
    if test.one_of is not None:
        yield {_decimal(operand) for operand in test.one_of}.__contains__
    for operand, compare in ((test.lt, operator.lt), (test.gt, operator.gt)):
        if operand is not None:
            yield _of_given(compare, _decimal(operand))
