"""The keys of a link's pipeline, for who checks what its masks have made."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import SettingsError

if TYPE_CHECKING:
    from common.config.settings import Settings


def keys_of(settings: Settings) -> dict[str, bytes]:
    """Of the pipeline's file, by name, those that can be read here. Raises SettingsError for a file that is
    no good."""
    if settings.pipeline is None:
        return {}
    from common.pipeline import definition, loading

    made, found = loading.load(Path(settings.pipeline)), dict[str, bytes]()
    for name, where in made.keys.items():
        with suppress(SettingsError):
            found |= definition.read_keys(made.model_copy(update={"keys": {name: where}}), os.environ)
    return found
