"""What `schemas` would do between the registries that the pipeline's file names, and what it would fail on.
Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from common.pipeline import loading
from schemas.configured import SchemasFile
from schemas.copying import FAILED, IN_STEP
from schemas.look import ahead, map_of
from schemas.service import failures
from verbatim.plan.report import SchemasPlan

if TYPE_CHECKING:
    from common.config.settings import Settings


def look(settings: Settings, topics: Mapping[str, str]) -> tuple[SchemasPlan, list[str]] | None:
    """And, a line for each subject, why it would not be copied; None where there are no registries to keep in
    step. `topics`: source -> destination. Raises SettingsError, RegistryError, SchemaMismatch."""
    if settings.pipeline is None or loading.load(Path(settings.pipeline)).schemas is None:
        return None
    lines = ahead(SchemasFile(settings), map_of(settings), topics, fingerprints=True)
    count = Counter(FAILED if line.state == FAILED else line.state == IN_STEP for line in lines)
    plan = SchemasPlan(len({line.subject for line in lines}), count[True], count[False], count[FAILED])
    return plan, [f"schemas: subject {subject}: {why}" for subject, why in sorted(failures(lines).items())]
