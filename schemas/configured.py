"""What the pipeline's file says of registries and schemas; followed while it changes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from common.config.live_reload import WatchedFile
from common.errors import SettingsError
from common.pipeline import loading
from common.pipeline.registries import Registries, Schemas
from schemas.http import Http
from schemas.registry import Registry

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)


class SchemasFile:
    """What PIPELINE names. `config` and `registries` are what it says."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError."""
        if settings.pipeline is None:
            raise SettingsError(
                "PIPELINE: not set: its file says which registries there are, and which schemas are copied"
            )
        self._path = Path(settings.pipeline)
        # Looked at before it is read: what is written in between is a change.
        self._watched = WatchedFile(self._path)
        self.registries, self.config = self._read()

    def changed(self) -> bool:
        """Take over what the file has become, and whether that is something else. A file that is no good is
        one warning, and changes nothing."""
        if not self._watched.changed():
            return False
        before = self.registries, self.config
        try:
            self.registries, self.config = self._read()
        except SettingsError as error:
            log.warning("%s has changed, and is not taken over: %s", self._path, error)
        return before != (self.registries, self.config)

    def connect(self) -> tuple[Registry, Registry]:
        """Source and target. Connects when something is asked. Raises SettingsError."""
        of = self.registries
        return Registry(Http("source", of.source)), Registry(Http("target", of.target))

    def _read(self) -> tuple[Registries, Schemas]:
        made = loading.load(self._path)
        if made.schemas is None or made.registries is None:
            raise SettingsError(f"{self._path}: schemas is missing: there is nothing to keep in step")
        return made.registries, made.schemas
