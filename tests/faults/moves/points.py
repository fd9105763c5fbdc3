"""Inside the process of a command: where it may be killed, which is before and after whatever it does to the
outside, and behind each step that it tells. Nothing here knows the commands: a new write, or a new step, is a
new point.

The process is forked from one that has imported the commands (multiprocessing's forkserver), since that takes
two seconds of a CPU; it is killed by SIGKILL, as any other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from common import ports
from common.app.entry import entry
from common.ports.reconnecting_admin import AdminClient
from offsets.group_calls import GroupCalls
from verbatim.commands import back, cutover, demote, drill, failover, move_group  # noqa: F401 - forked with them
from verbatim.main import cli
from verbatim.moves.steps import Step, Steps

CHANGES = ("alter", "create", "delete", "elect", "incremental", "remove")
"""How calls of an admin client begin that change something."""
CALL_S = 30.0


class Points:
    """Each passage has a line in `passed`: the point's name, and how many times it was passed; at the one
    that is called `wish` the process ends, or for `any 7` at the seventh of all."""

    def __init__(self, passed: Path, wish: str | None) -> None:
        self._file = os.open(passed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._wish = wish
        self._count = Counter[str]()
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            self._count[name] += 1
            place = f"{name} {self._count[name]}"
            os.write(self._file, place.encode() + b"\n")
            if self._wish in (place, f"any {self._count.total()}"):
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)  # the signal may take a moment, and nothing may pass the point


def run(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    name: str,
    wish: str | None,
    broken: str | None,
) -> None:
    """The whole life of a command's process. What it says lies in the folder, under `name`."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, kind in ((1, "out"), (2, "err")):
        file = os.open(f"{name}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, descriptor)
    install(Points(folder / f"{name}.passed", wish), folder)
    if broken is not None:
        from tests.faults.moves.breakages import BREAKAGES

        BREAKAGES[broken]()
    entry(cli, list(words), prog_name="verbatim")


def install(point: Callable[[str], None], folder: Path) -> None:
    """Points at all that a command does to clusters, to files in its folder and to other processes."""
    _producers(point)
    _groups(point)
    _admins(point)
    replace(subprocess, "run", _around(point, "process"))
    _steps(point)
    _files(point, folder)


def replace(owner: Any, name: str, by: Callable[[Any], Any]) -> None:
    """A name that has moved is an AttributeError: a point that is none would prove nothing."""
    setattr(owner, name, by(getattr(owner, name)))


def _producers(point: Callable[[str], None]) -> None:
    """Record by record, each acknowledged before the next: of several that are appended at once some may be
    there."""
    flush = ports.Producer.flush

    def by(produce: Any) -> Any:
        def produced(self: Any, topic: str, value: bytes | None = None, *rest: Any, **more: Any) -> None:
            what = written(topic, value)
            point(f"{what}, before")
            produce(self, topic, value, *rest, **more)
            flush(self, CALL_S)
            point(f"{what}, after")

        return produced

    replace(ports.Producer, "produce", by)


def written(topic: str, value: bytes | None) -> str:
    """What a record is, in a word or two."""
    what = topic.rpartition(".")[2]
    with suppress(orjson.JSONDecodeError, TypeError, AttributeError):
        said = orjson.loads(value or b"")
        what = " ".join(str(of) for of in (what, said.get("kind"), said.get("state")) if of is not None)
    return what


def _groups(point: Callable[[str], None]) -> None:
    """Group by group: of several that are written at once some may have been."""

    def by(commit: Any) -> Any:
        def committed(self: Any, wanted: Mapping[str, Any], timeout_s: float) -> Any:
            found: dict[str, Any] = {}
            for group, offsets in wanted.items():
                point("group's offsets, before")
                found |= commit(self, {group: offsets}, timeout_s)
                point("group's offsets, after")
            return found

        return committed

    replace(GroupCalls, "commit", by)


def _admins(point: Callable[[str], None]) -> None:
    def by(found: Any) -> Any:
        def called(self: Any, name: str) -> Any:
            call = found(self, name)
            if not name.startswith(CHANGES):
                return call

            def whole(*args: Any, **more: Any) -> Any:
                point(f"{name}, before")
                answer = call(*args, **more)
                for future in answer.values():
                    future.exception(CALL_S)
                point(f"{name}, after")
                return answer

            return whole

        return called

    replace(AdminClient, "__getattr__", by)


def _around(point: Callable[[str], None], what: str) -> Callable[[Any], Any]:
    def by(whole: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            point(f"{what}, before")
            found = whole(*args, **more)
            point(f"{what}, after")
            return found

        return call

    return by


def _steps(point: Callable[[str], None]) -> None:
    def by(begin: Any) -> Any:
        def begun(self: Steps, tell: Callable[[Step], None] = lambda step: None) -> None:
            def told(step: Step) -> None:
                point(f"step {step.name}")
                tell(step)

            begin(self, told)

        return begun

    replace(Steps, "__init__", by)


def _files(point: Callable[[str], None], folder: Path) -> None:
    """Before a file is opened to be written, and before and after it gets its name: Python tells of both
    itself."""

    def audited(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str | os.PathLike):
            path, _, flags = args
            if flags & (os.O_WRONLY | os.O_RDWR) and str(Path(path).absolute()).startswith(f"{folder}/"):
                point(f"file {Path(path).suffix}, before")

    for name in ("rename", "replace"):
        replace(os, name, _around(point, "file's name"))
    sys.addaudithook(audited)
