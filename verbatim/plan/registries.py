"""What `schemas` would do between the registries that the pipeline's file names, and what it would fail on.
Changes nothing, but for a subject of its own where it is asked to try."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from common.pipeline import loading
from schemas.configured import SchemasFile
from schemas.copying import FAILED, IN_STEP
from schemas.look import ahead, map_of
from schemas.probing import Probe, probe
from schemas.service import failures
from verbatim.plan.report import SchemasPlan

if TYPE_CHECKING:
    from common.config.settings import Settings


def file_of(settings: Settings) -> SchemasFile | None:
    """What names the registries; None where there are none to keep in step. Raises SettingsError."""
    if settings.pipeline is None or loading.load(Path(settings.pipeline)).schemas is None:
        return None
    return SchemasFile(settings)


def look(
    file: SchemasFile, settings: Settings, topics: Mapping[str, str]
) -> tuple[SchemasPlan, list[str], set[int]]:
    """And, a line for each subject, why it would not be copied; and the ids that are to be at the target.
    `topics`: source -> destination. Raises RegistryError, SchemaMismatch."""
    lines = ahead(file, map_of(settings), topics, fingerprints=True)
    count = Counter(FAILED if line.state == FAILED else line.state == IN_STEP for line in lines)
    plan = SchemasPlan(len({line.subject for line in lines}), count[True], count[False], count[FAILED])
    refused = [f"schemas: subject {subject}: {why}" for subject, why in sorted(failures(lines).items())]
    return plan, refused, {line.id for line in lines if line.id is not None}


def tried(file: SchemasFile, ids: set[int]) -> Probe:
    """What the target's registry does when it is asked to. Raises RegistryError."""
    source, target = file.connect()
    with closing(source), closing(target):
        return probe(target, file.config.ids, ids)
