"""Registries and rounds of `schemas` in tests, with the map in memory where there are no brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from common.link.schema_map import Mapped, SchemaId, SchemaMap
from common.link.schema_map_log import SchemaMapLog
from common.pipeline import registries
from common.ports import Deadline
from schemas.copying import Copying, Line
from schemas.http import Http
from schemas.model import Schema
from schemas.registry import Registry
from schemas.writing import Writing


def record(name: str, *fields: str, optional: tuple[str, ...] = ()) -> str:
    """An Avro record of long fields; the optional ones have a default."""
    of: list[dict[str, Any]] = [{"name": f, "type": "long"} for f in fields]
    of += [{"name": f, "type": "long", "default": 0} for f in optional]
    return json.dumps({"type": "record", "name": name, "fields": of}, separators=(",", ":"))


def avro(name: str, *fields: str, optional: tuple[str, ...] = ()) -> Schema:
    return Schema(record(name, *fields, optional=optional))


_made: list[Registry] = []


def client(url: str, which: str = "target") -> Registry:
    _made.append(Registry(Http(which, registries.Registry(url=url))))
    return _made[-1]


@pytest.fixture(autouse=True)
def clients_closed() -> Iterator[None]:
    """For a module of tests that imports it: all clients that `client` made."""
    yield
    while _made:
        _made.pop().close()


class MapInMemory(SchemaMapLog):
    """What would be in the topic; `records` in the order in which they were written."""

    def __init__(self) -> None:
        self.map = SchemaMap()
        self.records: list[tuple[bytes, bytes | None]] = []

    def append(self, records: list[tuple[bytes, bytes | None]], deadline: Deadline) -> None:
        self.records += records
        for key, value in records:
            self.map.apply(key, value)

    @property
    def ids(self) -> dict[int, int]:
        """Source -> target, in the default context."""
        return {key.id: mapped.target for key, mapped in self.map.ids.items() if key.context == "."}


@dataclass
class Pair:
    """Rounds between two registries."""

    source_url: str
    target_url: str
    log: MapInMemory = field(default_factory=MapInMemory)

    def copying(self, write: bool = True, **config: Any) -> Copying:
        """As of a leader that has just begun, whose first act is to put back what was left."""
        source, target = client(self.source_url, "source"), client(self.target_url)
        of = registries.Schemas(**{"subjects": "all", "ids": "map", **config})
        writing = Writing(target, self.log, of.ids) if write else None
        if writing is not None:
            writing.restore()
        return Copying(source, target, self.log.map, of, writing, lambda: None)

    def round(self, topics: dict[str, str] | None = None, **config: Any) -> list[Line]:
        return self.copying(**config).round(topics or {})


def told(lines: list[Line]) -> list[tuple[str, int | None, int | None, str]]:
    """Subject, version, the target's version, state."""
    return [(line.subject, line.version, line.target_version, line.state) for line in lines]


def mapped(source_id: int, target_id: int, schema: Schema) -> tuple[SchemaId, Mapped]:
    return SchemaId(".", source_id), Mapped(target_id, schema.sha256, schema.references, schema.avro)
