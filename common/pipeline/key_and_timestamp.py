"""The stages `key` and `timestamp`, which take them from a field or a header. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import cast

import pyarrow as pa

from common.kafka.wire.records import MAX_OFFSET, Item
from common.pipeline.batch import Batch, Done, Run, flags
from common.pipeline.json_fields import EMPTY, Shape
from common.pipeline.judging import text_of
from common.pipeline.masking import NO_SCALAR
from common.pipeline.paths import Path, Side, parse

NOT_THERE = "is not there"
NO_TIME = "is no time: neither ms since 1970 nor as RFC 3339 has it"

_Find = Callable[[Batch], tuple[list[Item], dict[int, str]]]
_CREATE_TIME = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_MS = MAX_OFFSET
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?(?:[Zz]|([-+])(\d\d):(\d\d))", re.ASCII
)


def taking_key(text: str) -> Run:
    """A string becomes its characters, a number or a boolean its JSON, null no key; a header its bytes."""
    path = parse(text)
    items = _items(path)

    def run(batch: Batch) -> Done:
        found, failed = items(batch)
        old = cast("list[Item]", batch.rows.column(3).to_pylist())
        keys: list[Item] = []
        for row, item in enumerate(found):
            if path.root != "header" and item is not None:
                if item[:1] in (b"{", b"["):
                    failed.setdefault(row, f"{path} {NO_SCALAR}")
                item = _key_of(item)
            keys.append(item)
        changed = [row for row, key in enumerate(keys) if key != old[row]]
        column = pa.array(keys, pa.binary())
        return Done(batch.with_column("key", column), flags(len(batch), changed), failed=failed)

    return run


def _key_of(json: bytes) -> Item:
    if json == b"null":
        return None
    return text_of(json).encode() if json[:1] == b'"' else json


def taking_timestamp(text: str) -> Run:
    """From a number or a text. What is null, or no time, is a failure."""
    path = parse(text)
    items = _items(path)

    def run(batch: Batch) -> Done:
        found, failed = items(batch)
        times: list[int] = []
        old = cast("list[int]", batch.rows.column(1).to_pylist())
        for row, item in enumerate(found):
            time = None if row in failed else _time_of(item, path.root != "header")
            if time is None:
                failed.setdefault(row, f"{path} {NO_TIME}")
            times.append(old[row] if time is None else time)
        changed = flags(len(batch), [row for row, time in enumerate(times) if time != old[row]])
        types = batch.rows.column(2).to_numpy().copy()
        types[changed] = _CREATE_TIME
        batch = batch.with_column("timestamp", pa.array(times, pa.int64()))
        return Done(batch.with_column("timestamp_type", pa.array(types, pa.int8())), changed, failed=failed)

    return run


def _time_of(item: Item, json: bool) -> int | None:
    if item is None:
        return None
    if json and item[:1] != b'"':
        return _ms(item.decode())
    text = text_of(item) if json else item.decode("utf-8", "replace")
    return _ms(text) if re.fullmatch(r"\d+", text, re.ASCII) else _rfc3339(text)


def _ms(text: str) -> int | None:
    """Of digits."""
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII):
        return None
    return at if (at := int(text)) <= _MOST_MS else None


def _rfc3339(text: str) -> int | None:
    """Less than a ms is left out."""
    if not (match := _RFC3339.fullmatch(text)):
        return None
    day, time, fraction, sign, hours, minutes = match.groups()
    try:
        at = datetime.fromisoformat(f"{day}T{time}+00:00")
    except ValueError:
        return None
    ms = (at - _EPOCH) // timedelta(milliseconds=1) + int(f"{fraction or '0'}000"[:3])
    if sign:
        if int(hours) > 23 or int(minutes) > 59:
            return None
        ahead = (int(hours) * 60 + int(minutes)) * 60_000
        ms -= ahead if sign == "+" else -ahead
    return ms if ms >= 0 else None


def _items(path: Path) -> _Find:
    """What is at a path, of each row, and the rows where nothing is, why."""
    if path.root == "header":
        return _header_items(path)
    shape = Shape([path.steps], once=False)

    def find(batch: Batch) -> tuple[list[Item], dict[int, str]]:
        looked = shape.look(batch.side(cast("Side", path.root)))
        failed = {row: f"the {path.root} {why}" for row, why in looked.failed.items()}
        found: list[Item] = [None] * len(batch)
        for row, raw in zip(looked.found[0].rows, looked.found[0].raws, strict=True):
            if raw is not EMPTY:
                found[row] = bytes(raw)
        for row, item in enumerate(found):
            if item is None:
                failed.setdefault(row, f"{path} {NOT_THERE}")
        return found, failed

    return find


def _header_items(path: Path) -> _Find:
    def find(batch: Batch) -> tuple[list[Item], dict[int, str]]:
        rows, values = batch.headers.last(cast("str", path.steps[0]))
        found: list[Item] = [None] * len(batch)
        failed = dict.fromkeys(range(len(batch)), f"{path} {NOT_THERE}")
        for row, value in zip(rows, values, strict=True):
            found[row] = value
            del failed[row]
        return found, failed

    return find
