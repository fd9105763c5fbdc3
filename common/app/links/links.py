"""The process that runs the links of a folder: files that come and go, signals, the end of all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from common import ports
from common.app.health_server import serving
from common.app.links.pages import LinksPages
from common.app.links.runner import Runner
from common.app.signals import STOP_S, stop_on_signals
from common.errors import SettingsError, VerbatimError
from common.ports import Deadline

if TYPE_CHECKING:
    from common.app.instance import Instance
    from common.app.links.folder import LinkFolder
    from common.app.links.slots import Slots
    from common.config.live_reload import LiveFile
    from common.config.settings import Settings

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""How often the folder is looked at."""
TURN_S = 0.2

Make = Callable[["Settings", "LiveFile | None"], "Instance"]


class Links:
    """One process. `settings` are its own; `make` makes an instance of a link; `slots`: of the session that
    the instances share, if they use one; `once`: each link ends by itself, and then the process does."""

    def __init__(
        self,
        application: str,
        settings: Settings,
        folder: LinkFolder,
        make: Make,
        *,
        slots: Slots | None = None,
        once: bool = False,
    ) -> None:
        self.application = application
        self.settings = settings
        self.folder = folder
        self.stopping = threading.Event()
        self.runners: dict[str, Runner] = {}
        """By file's name. Replaced, never changed: other threads read it."""
        self.turned = ports.monotonic()
        self.looked = False
        """Whether the folder has been looked at."""
        self._make = make
        self._slots = slots
        self._once = once
        self._starting = ports.Lock()
        self._unreadable = ""

    def run(self) -> int:
        """Until a signal comes, or all has ended by itself: the exit code, the greatest of all links'."""
        stop_on_signals(self.stopping)
        return self.serve()

    def serve(self) -> int:
        """The same, for who sets `stopping`."""
        if not self.folder.files():
            log.warning("%s: there is no link's file yet", self.folder.path)
        metrics = "prometheus" in self.settings.exporters
        with serving(LinksPages(self, metrics), self.settings):
            try:
                if self._slots is not None:
                    self._slots.open()
                return self._run()
            finally:
                self._stop(list(self.runners.values()))
                if self._slots is not None:
                    self._slots.close()

    def _run(self) -> int:
        look_at = 0.0
        while not self.stopping.wait(TURN_S):
            self.turned = now = ports.monotonic()
            if self._slots is not None and (why := self._slots.gone()) is not None:
                raise VerbatimError(why)
            if now >= look_at:
                look_at = now + LOOK_S
                if not (self._once and self.runners):
                    self._look_at_folder()
                    self.looked = True
                if self._slots is not None:
                    self._look_at(self._slots)
            codes = [runner.code for runner in self.runners.values()]
            ended = [code for code in codes if code is not None]
            if self._once and ended == codes:
                return max(ended, default=0)
        return 0

    def _look_at_folder(self) -> None:
        """Begin what is new, end what is gone."""
        try:
            files = self.folder.files()
            self._unreadable = ""
        except SettingsError as error:
            # It may be mounted anew just now: what runs goes on.
            if str(error) != self._unreadable:
                log.error("%s", error)
            self._unreadable = str(error)
            return
        gone = [runner for name, runner in self.runners.items() if name not in files]
        for runner in gone:
            log.info("link %s ends: %s is gone", runner.link, runner.file)
        self._stop(gone)
        for runner in self.runners.values():
            runner.look_at_file()
        with self._starting:
            self.runners = {
                name: self.runners.get(name) or self._runner(file) for name, file in files.items()
            }

    def _look_at(self, slots: Slots) -> None:
        with self._starting:
            without = slots.look([name for name, runner in self.runners.items() if runner.code is None])
        if not self._once:  # else it waits until others have ended
            for name in without:
                self.runners[name].begin_anew("no slot is left for it")

    def _runner(self, file: Path) -> Runner:
        return Runner(file, lambda: self.folder.load(file), self._instance, self._once)

    def _instance(self, runner: Runner, settings: Settings, live: LiveFile) -> Instance:
        """For a link's thread. Raises VerbatimError where another one has its name, or where no slot is left
        for it."""
        with self._starting:
            others = [other for other in self.runners.values() if other is not runner]
            for other in others:
                if other.instance is not None and other.link == settings.application_name:
                    raise SettingsError(
                        f"APPLICATION_NAME: {settings.application_name} is the link of {other.file} already"
                    )
            instance = self._make(settings, live)
            if self._slots is not None:
                self._slots.lend(runner.name, instance)
            runner.instance = instance
            return instance

    def _stop(self, runners: list[Runner]) -> None:
        deadline = Deadline(STOP_S)
        for runner in runners:
            runner.stop()
        for runner in runners:
            if not runner.join(deadline.left()):
                log.warning("link %s has not ended in time", runner.link)
