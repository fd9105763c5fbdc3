"""The keys of a link's pipeline, for who checks what its masks have made."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import SettingsError

if TYPE_CHECKING:
    from common.config.settings import Settings
    from common.pipeline.encrypting import Cipher
    from common.pipeline.models import Pipeline


def keys_of(settings: Settings) -> dict[str, bytes]:
    """Of the pipeline's file, by name, those that can be read here. Raises SettingsError for a file that is
    no good."""
    if settings.pipeline is None:
        return {}
    from common.pipeline import loading

    return _readable(loading.load(Path(settings.pipeline)))


def _readable(made: Pipeline) -> dict[str, bytes]:
    from common.pipeline import definition

    found = dict[str, bytes]()
    for name, where in made.keys.items():
        with suppress(SettingsError):
            found |= definition.read_keys(made.model_copy(update={"keys": {name: where}}), os.environ)
    return found


def ciphers(made: Pipeline, file: Path) -> list[Cipher]:
    """Of those keys that can be read here and fit `encrypt`. Raises SettingsError where there are none."""
    from common.pipeline.encrypting import Cipher, is_key

    found = [Cipher(key, f"key {name}") for name, key in _readable(made).items() if is_key(key)]
    if not found:
        raise SettingsError(f"{file}: none of its keys that can be read here is one for encrypt")
    return found
