"""What `schemas describe`, `verify` and `--dry-run` show: each version on both sides, read only."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from common.app.cli import aligned
from common.app.instance import CALL_S
from common.kafka.client import clients, topics
from common.link import identity
from common.link.schema_map import SchemaMap
from common.link.schema_map_log import SchemaMapReader
from common.ports import Deadline
from schemas.configured import SchemasFile
from schemas.copying import IN_STEP, Copying, Line
from schemas.service import destinations

if TYPE_CHECKING:
    from common.config.settings import Settings

COLUMNS = {
    "subject": "SUBJECT",
    "version": "VERSION",
    "id": "ID",
    "target_subject": "TARGET-SUBJECT",
    "target_version": "TARGET-VERSION",
    "target_id": "TARGET-ID",
    "state": "STATE",
    "detail": "DETAIL",
}
"""Field -> heading of the table's columns."""


def look(settings: Settings, fingerprints: bool = False) -> list[Line]:
    """What a round would find now. `fingerprints`: whether ids mean what they meant is looked at first.
    Raises LinkRefused where there is no such link, RegistryError, SchemaMismatch."""
    file = SchemasFile(settings)
    link, control = identity.prepare(settings, False, Deadline(CALL_S), make=False, ask_source=False)
    with closing(control):
        state = control.refresh(Deadline(CALL_S))
        return ahead(file, map_of(settings), destinations(settings, state, link), fingerprints)


def ahead(
    file: SchemasFile, known: SchemaMap, topics: Mapping[str, str], fingerprints: bool = False
) -> list[Line]:
    """The same of a link with this map, and these topics: source -> destination."""
    source, target = file.connect()
    with closing(source), closing(target):
        found = Copying(source, target, known, file.config, None, lambda: None)
        if fingerprints:
            found.check_fingerprints()
        return found.round(topics)


def map_of(settings: Settings) -> SchemaMap:
    """What is written down; nothing where there is no such topic."""
    admin = clients.admin(settings.client_config("destination", "admin"))
    if settings.schemas_topic not in topics.describe(admin, [settings.schemas_topic], Deadline(CALL_S)):
        return SchemaMap()
    reader = SchemaMapReader(settings.schemas_topic, settings.client_config("destination", "consumer"), admin)
    try:
        return reader.catch_up(Deadline(CALL_S))
    finally:
        reader.close()


def as_json(lines: list[Line]) -> list[dict[str, Any]]:
    """The table's fields, None for what is not known."""
    return [asdict(line) for line in lines]


def table(lines: list[Line]) -> str:
    """The lines as aligned text, with a heading."""
    cells = [
        ["-" if line[name] in (None, "") else str(line[name]) for name in COLUMNS] for line in as_json(lines)
    ]
    return aligned([list(COLUMNS.values()), *cells])


def shown(line: Line) -> str:
    """A line in words."""
    version = "" if line.version is None else f" version {line.version} (id {line.id})"
    there = "" if line.target_version is None else f" version {line.target_version} (id {line.target_id})"
    detail = f": {line.detail}" if line.detail else ""
    return f"{line.subject}{version} -> {line.target_subject}{there}: {line.state}{detail}"


def by_subject(lines: list[Line]) -> list[str]:
    """For each subject one line where it is in step, else what is not."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.subject, []).append(line)
    said: list[str] = []
    for subject, of in found.items():
        others = [line for line in of if line.state != IN_STEP]
        said += map(shown, others)
        if not others:
            said.append(f"{subject} -> {of[0].target_subject}: {len(of)} versions in step")
    return said
