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


def are_named(settings: Settings) -> bool:
    """Whether there are registries to keep in step. Raises SettingsError."""
    return settings.pipeline is not None and loading.load(Path(settings.pipeline)).schemas is not None


def look(settings: Settings, topics: Mapping[str, str]) -> tuple[SchemasPlan, list[str], set[int]]:
    """And, a line for each subject, why it would not be copied; and the ids that are to be at the target.
    `topics`: source -> destination. Raises SettingsError, RegistryError, SchemaMismatch."""
    lines = ahead(SchemasFile(settings), map_of(settings), topics, fingerprints=True)
    count = Counter(FAILED if line.state == FAILED else line.state == IN_STEP for line in lines)
    plan = SchemasPlan(len({line.subject for line in lines}), count[True], count[False], count[FAILED])
    refused = [f"schemas: subject {subject}: {why}" for subject, why in sorted(failures(lines).items())]
    return plan, refused, {line.id for line in lines if line.id is not None}


def tried(settings: Settings, ids: set[int]) -> Probe:
    """What the target's registry does when it is asked to. Raises as `look`."""
    file = SchemasFile(settings)
    source, target = file.connect()
    with closing(source), closing(target):
        return probe(target, file.config.ids, ids)
