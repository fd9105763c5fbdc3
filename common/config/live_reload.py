"""Settings that change while a process runs: the `--config` file is looked at now and then, and what is
marked live is taken over.

What a value means is common/config/settings.py's part; what is done with a new one, the application's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from common import ports
from common.config.fields import FIELDS, LIVE
from common.config.settings import Settings
from common.errors import SettingsError

log = logging.getLogger(__name__)

LOOK_S = 2.0

Load = Callable[[], Settings]


class WatchedFile:
    """A file that somebody may write while it is looked at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = self._seen = self._content()
        self._looked = 0.0

    def changed(self, at_once: bool = False) -> bool:
        """Whether there is something new in it. Told once.

        Looks every LOOK_S, and believes what it has seen twice: a file may be looked at while it is written,
        and a list of topics that ends in the middle is a list of topics. `at_once`: this time it does not
        wait.
        """
        now = ports.monotonic()
        if not at_once and now - self._looked < LOOK_S:
            return False
        self._looked = now
        content, before = self._content(), self._seen
        self._seen = content
        if content == self._known or (content != before and not at_once):
            return False
        self._known = content
        return True

    def _content(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except OSError:
            return None


class LiveFile:
    """The file of one process. `load` reads all settings anew, flags and environment over the file."""

    def __init__(self, path: Path, load: Load) -> None:
        self._path = path
        self._load = load
        self._watched = WatchedFile(path)
        self.waiting: set[str] = set()
        """Variables that have changed and take a restart."""

    def look(self, settings: Settings, at_once: bool = False) -> Settings | None:
        """The settings with what has changed in the file since, if anything has that can be taken over now. A
        file that is no good is one warning, and changes nothing. `at_once`: see WatchedFile."""
        if not self._watched.changed(at_once):
            return None
        try:
            found = self._load()
        except SettingsError as error:
            log.warning("%s has changed, and is not taken over: %s", self._path, error)
            return None
        for warning in found.warnings:
            if warning not in settings.warnings:
                log.warning("%s", warning)
        return self._taken_over(settings, found)

    def _taken_over(self, settings: Settings, found: Settings) -> Settings | None:
        live, waiting = changed(settings, found)
        if waiting and waiting != self.waiting:
            log.warning("%s has changed, but takes a restart: %s", self._path, ", ".join(sorted(waiting)))
        self.waiting = waiting
        if not live:
            return None
        log.info("%s has changed: %s", self._path, ", ".join(sorted(live)))
        return settings.model_copy(update={FIELDS[name]: getattr(found, FIELDS[name]) for name in live})


def changed(settings: Settings, found: Settings) -> tuple[set[str], set[str]]:
    """The variables that differ: those that can be taken over now, and those that need a restart. Values are
    not told, some are secret."""
    names = {name for name, field in FIELDS.items() if getattr(settings, field) != getattr(found, field)}
    clients = {
        f"client properties ({client})"
        for client in settings.client_properties.keys() | found.client_properties.keys()
        if _of(settings.client_properties, client) != _of(found.client_properties, client)
    }
    return names & LIVE, (names - LIVE) | clients


def _of(properties: Mapping[str, dict[str, str | int]], client: str) -> dict[str, str | int]:
    return properties.get(client, {})
