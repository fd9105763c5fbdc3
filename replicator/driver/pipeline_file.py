"""The pipeline that a link is to have: its file, read, checked and followed while it changes; and its number,
which the control topic gives it. What it does to records is common/pipeline's part."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common.config.live_reload import WatchedFile
from common.errors import SettingsError
from common.link import control_kinds
from common.link.control_log import ControlLog
from common.link.control_records import NO_FLOWS
from common.link.control_state import Control
from common.ports import Deadline
from replicator.lane_plan import PipelinePlan

if TYPE_CHECKING:
    from common.config.settings import Settings
    from common.pipeline.models import Pipeline

log = logging.getLogger(__name__)

MOST_BYTES = 400_000
"""Of a definition, which goes into one record of the control topic."""


@dataclass(frozen=True, slots=True)
class Configured:
    """A pipeline as the control topic and the lanes are told of it; `keys`: name -> where it is."""

    definition: str
    sha256: str
    keys: dict[str, str]


NONE = Configured(NO_FLOWS, hashlib.sha256(NO_FLOWS.encode()).hexdigest(), {})


class PipelineFile:
    """What PIPELINE names; without it, that the link has none."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError for a file that can't be run here."""
        self._path = None if settings.pipeline is None else Path(settings.pipeline)
        # Looked at before it is read: what is written in between is a change.
        self._watched = None if self._path is None else WatchedFile(self._path)
        self._others: list[WatchedFile] = []
        self.configured = NONE if self._path is None else self._read(self._path)

    def changed(self, at_once: bool = False) -> bool:
        """Take over what the file, or one that holds a key or a module of it, has become, and whether that is
        another pipeline. What is no good is one warning, and changes nothing. `at_once`: see WatchedFile."""
        if self._path is None or self._watched is None:
            return False
        if not any(file.changed(at_once) for file in (self._watched, *self._others)):
            return False
        try:
            found = self._read(self._path)
        except SettingsError as error:
            log.warning("%s has changed, or a key or module, and is not taken over: %s", self._path, error)
            return False
        before, self.configured = self.configured, found
        return found != before

    def _read(self, path: Path) -> Configured:
        """Raises SettingsError."""
        from common.pipeline import loading

        made = loading.load(path)
        places = (place.partition(":") for place in made.keys.values())
        # As above.
        self._others = [WatchedFile(Path(file)) for kind, _, file in places if kind == "file"]
        self._others += [WatchedFile(Path(file)) for file in _module_files(made)]
        return configured(path, made)

    def plan(self, state: Control) -> PipelinePlan | None:
        """What lanes are told, once the newest version is what is configured. None: there was never one."""
        if not state.pipeline:
            return None
        return PipelinePlan(
            n=state.pipeline, definition=self.configured.definition, keys=self.configured.keys
        )

    def is_newest(self, state: Control) -> bool:
        """Whether the link's newest version is what is configured."""
        newest = state.pipelines.get(state.pipeline)
        return self.configured.sha256 == (NONE if newest is None else newest).sha256

    def make_newest(self, control: ControlLog, deadline: Deadline) -> Control:
        """Write it down as the next version where it is not. Before any lane is told of it: what a frame's
        number means must be on record before the first frame."""
        state = control.state
        while not self.is_newest(state):
            # Again where another leader's record came first.
            number, what = state.pipeline + 1, self.configured
            control.append(control_kinds.Pipeline(number, what.definition, what.sha256), deadline)
            state = control.refresh(deadline)
            if what is NONE:
                log.warning(
                    "pipeline %d is none: PIPELINE is not set, or names no flows, so records go as they are",
                    number,
                )
            else:
                log.info("pipeline %d: sha256 %s", number, what.sha256)
        return state


def _module_files(made: Pipeline) -> list[str]:
    """The files of the modules that a pipeline names."""
    names = {s.python.partition(":")[0] for flow in made.flows for s in flow.stages if s.python is not None}
    if not names:
        return []
    from common.pipeline import own_code

    return [file for name in sorted(names) if (file := own_code.source_of(name)) is not None]


def configured(path: Path, made: Pipeline) -> Configured:
    """Of the file's pipeline, with the keys that are there. Raises SettingsError, also for what can't be run
    on this machine."""
    from common.pipeline import definition
    from common.pipeline.engine import Engine

    if not made.flows:
        return NONE
    keys = definition.read_keys(made, os.environ)
    engine = Engine(made, keys)
    told = definition.definition(made, keys, engine.code)
    if len(told) > MOST_BYTES:
        raise SettingsError(f"{path}: its definition has {len(told)} bytes; {MOST_BYTES} are the most")
    # As a lane will.
    again = Engine(definition.defined(told.decode(), made.keys), keys)
    definition.must_be_its_code(told.decode(), again.code)
    return Configured(told.decode(), definition.sha256(told), {n: _place(p) for n, p in made.keys.items()})


def _place(where: str) -> str:
    kind, _, path = where.partition(":")
    return f"{kind}:{os.path.abspath(path)}" if kind == "file" else where
