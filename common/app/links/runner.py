"""One link of a process that runs several: its instance in a thread of its own, which begins anew where it
has failed. What the others do is none of its business."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from common import log_lines, ports
from common.config.live_reload import LiveFile
from common.errors import SettingsError, VerbatimError

if TYPE_CHECKING:
    from common.app.instance import Instance
    from common.config.settings import Settings

log = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 60.0
"""Who has failed begins anew after so long; each time after twice as long, unless it had worked for longer
than the longest."""
LOOK_S = 0.5


class NoSlot(SettingsError):
    """No slot is left for a link at the moment."""


class Runner:
    """Begins at once. `make` makes an instance of settings that `load` has read, and raises VerbatimError
    where it can't run here. `once`: it ends for good when its instance has, well or not; without a slot it
    waits for one."""

    def __init__(
        self,
        file: Path,
        load: Callable[[], Settings],
        make: Callable[[Runner, Settings, LiveFile], Instance],
        once: bool,
    ) -> None:
        self.name = file.stem
        self.file = file
        self.instance: Instance | None = None
        self.failed: str | None = None
        """Why it does not run, while it waits for its next try."""
        self.failures = 0
        self.code: int | None = None
        """The exit code, once it has ended for good."""
        self._load = load
        self._make = make
        self._once = once
        self._live = LiveFile(file, load)
        self._stopping = threading.Event()
        self._thread = ports.thread(self._run, f"link-{self.name}")
        self._thread.start()

    @property
    def link(self) -> str:
        """The link's own name, as far as it is known."""
        return self.name if self.instance is None else self.instance.settings.application_name

    def stop(self) -> None:
        """As SIGTERM does; does not wait."""
        self._stopping.set()
        self._stop_instance()

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended, after so long at most."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def look_at_file(self) -> None:
        """Begin anew where something has changed that an instance which runs can't take over."""
        if self._live.waiting:
            self.begin_anew("it has other settings")

    def begin_anew(self, why: str) -> None:
        """End the instance, as SIGTERM does, and make another."""
        if self.instance is not None and not self.instance.stopping.is_set():
            log.info("link %s begins anew: %s", self.link, why)
            self._stop_instance()

    def _stop_instance(self) -> None:
        if (instance := self.instance) is not None:
            instance.stopping.set()

    def _run(self) -> None:
        wait_s = FIRST_WAIT_S
        while not self._stopping.is_set():
            log_lines.of_link(self.name)
            began = ports.monotonic()
            try:
                code = self._run_instance()
                if self._once or self._stopping.is_set():
                    self.code = code
                continue
            except NoSlot as error:
                self._fails(str(error), None)
            except VerbatimError as error:
                self._fails(str(error), error.exit_code)
            except Exception as error:
                log.exception("this link fails")
                self._fails(f"{type(error).__name__}: {error}", 1)
            finally:
                if self.code is not None:
                    self._stopping.set()
            if not self._stopping.is_set():
                if ports.monotonic() - began > LONGEST_WAIT_S:
                    wait_s = FIRST_WAIT_S
                log.error("this link begins anew in %.0f s, the others go on: %s", wait_s, self.failed)
                self._wait(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _run_instance(self) -> int:
        # Looked at before it is read: what is written in between is a change.
        self._live = LiveFile(self.file, self._load)
        settings = self._load()
        log_lines.of_link(settings.application_name)
        for warning in settings.warnings:
            log.warning("%s", warning)
        instance = self._make(self, settings, self._live)
        self.failed = None
        if self._stopping.is_set():
            return 0
        return instance.run_beside()

    def _fails(self, why: str, code: int | None) -> None:
        """`code`: None where another try may find what this one has not."""
        self.failed, self.failures = why, self.failures + 1
        if self._once and code is not None:
            log_lines.tell_error(why)
            self.code = code

    def _wait(self, wait_s: float) -> None:
        """Until the time has come, it is to stop, or its file has changed."""
        until, before = ports.monotonic() + wait_s, _changed_ns(self.file)
        while ports.monotonic() < until and not self._stopping.wait(LOOK_S):
            if _changed_ns(self.file) != before:
                return


def _changed_ns(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return None
