"""A folder of settings files, each of a link, which has the file's name unless it says another; what it may
not say is said for the whole process. Starts nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from common.config import loading
from common.config.fields import FIELDS, PREFIX
from common.config.settings import Settings
from common.config.sources import read_yaml
from common.errors import SettingsError

OF_PROCESS = ("SPARK_MASTER", "HEALTH_PORT", "HEALTH_ADDRESS", "LOG_LEVEL", "LOG_FORMAT", "INSTANCE_ID")
"""Settings that all links of a process have in common."""
NAME = "APPLICATION_NAME"
ASSUMED = loading.NO_SOURCE | loading.NO_TARGET | {NAME: "links"}
"""What the process' own settings can do without: each link has its own."""
ENDINGS = (".yaml", ".yml")

Load = Callable[..., Settings]
"""common.config.loading.load, with what all links have in common."""


class LinkFolder:
    """`given`: the flags. A file is read anew at each call."""

    def __init__(self, path: Path, load: Load, given: Mapping[str, str | None]) -> None:
        self.path = path
        self._load = load
        self._given = {name for name, value in given.items() if value}
        self._given |= {name for name, value in os.environ.items() if value.strip()}
        if os.environ.get(NAME, "").strip() or given.get(NAME):
            raise SettingsError(f"{NAME}: with --links it is each link's own: leave it to the files' names")

    def files(self) -> dict[str, Path]:
        """The links' names as their files have them, and the files. Raises SettingsError where the folder
        can't be read."""
        try:
            found = sorted(self.path.iterdir())
        except OSError as error:
            raise SettingsError(f"--links: can't read {self.path}: {error.strerror}") from None
        return {file.stem: file for file in found if file.suffix in ENDINGS and not file.name.startswith(".")}

    def load(self, file: Path) -> Settings:
        """Of one link. Raises SettingsError, also where a file says what is said for all of them already, or
        is not its own to say."""
        for name in read_yaml(file):
            if name in OF_PROCESS:
                raise SettingsError(
                    f"{name} (in {file}): is one for all links of the process; give it as a variable or a flag"
                )
            if name in self._given and (name in FIELDS or name.startswith(PREFIX)):
                raise SettingsError(
                    f"{name} (in {file}): is given for all links already; keep one of the two"
                )
        return self._load(config_file=file, assumed={NAME: file.stem})
