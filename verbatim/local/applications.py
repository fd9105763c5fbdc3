"""Runs the applications as an operator does, as processes of their own, and ends them gently or not; reads
nothing of Kafka."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.config.fields import FIELDS
from common.config.legacy import OLD_VARIABLES
from common.errors import VerbatimError
from common.spark.jars import cache_folder
from verbatim.local.processes import spawn, tail

_GONE_S = 5.0
_STOP_S = 15.0
_LOOK_S = 1.0

# Another environment and working directory for what `spawn` starts; the process id stays.
_ENTER = """\
import json, os, sys
os.chdir(sys.argv[1])
os.execve(sys.argv[3], sys.argv[3:], json.loads(sys.argv[2]))
"""


def environment(variables: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The environment of an application: ours, without the settings of any other link, and with `variables`.

    What the applications and their JVMs put aside goes to `scratch`: one that is killed can't take it away.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in FIELDS
        and name not in OLD_VARIABLES
        and not name.startswith(("KAFKA_", "STREAMS_", "SPARK_", "PYSPARK_"))
    }
    kept["JAVA_TOOL_OPTIONS"] = f"{kept.get('JAVA_TOOL_OPTIONS', '')} -Djava.io.tmpdir={scratch}".strip()
    if kept.pop("PYTHONDONTWRITEBYTECODE", ""):
        # Spark starts Python a dozen times for an application; compiling everything each time takes longer
        # than all else.
        kept["PYTHONPYCACHEPREFIX"] = str(cache_folder() / "bytecode")
    return {**kept, **variables, "TMPDIR": str(scratch)}


def processes() -> dict[int, tuple[int, str]]:
    """Every living process: its id -> its parent's, and when it started, by which one is known again when ids
    are reused."""
    found = {}
    if Path("/proc/self/stat").exists():
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if fields[0] != "Z":
                        found[int(entry.name)] = (int(fields[1]), fields[19])
        return found
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="], capture_output=True, text=True, check=True
    )
    for line in listed.stdout.splitlines():
        pid, parent, state, started = line.split(None, 3)
        if not state.startswith("Z"):
            found[int(pid)] = (int(parent), started)
    return found


def descendants(root: int, among: Mapping[int, tuple[int, str]]) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in among.items():
        children.setdefault(parent, []).append(pid)
    found, todo = [], [root] if root in among else []
    while todo:
        found.append(pid := todo.pop())
        todo += children.get(pid, [])
    return found


class Application:
    """An application's console script and its whole family of processes: the driver, Spark's JVM, the lanes'
    workers.

    Its output goes to `<folder>/<name>.log`. `options` are the command line's; `command` stands for the
    console script of this Python's environment unless given.
    """

    def __init__(
        self,
        name: str,
        variables: Mapping[str, str],
        folder: Path,
        command: list[str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._folder = folder
        scratch = folder / "tmp"
        scratch.mkdir(exist_ok=True)
        self._environment = environment(variables, scratch)
        self._command = [*(command or [str(Path(sys.executable).with_name(name))]), *options]
        self._process: subprocess.Popen[bytes] | None = None
        self._looked = 0.0
        # Process id -> when it started.
        self._family: dict[int, str] = {}

    @property
    def pid(self) -> int | None:
        """The driver's process id, once started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, again if it has ended. Raises VerbatimError."""
        if not Path(self._command[0]).exists():
            raise VerbatimError(
                f"there is no {self._command[0]}: run this from an environment that Verbatim is installed in"
            )
        enter = [sys.executable, "-I", "-S", "-c", _ENTER, str(self._folder), json.dumps(self._environment)]
        self._process = spawn([*enter, *self._command], self.log)

    def ended(self) -> int | None:
        """The exit code of a driver that is no more, else None. To be called now and then: it remembers the
        family."""
        if self._process is None:
            return None
        now = time.monotonic()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            self._look()
        return self._process.poll()

    def kill(self) -> int:
        """kill -9 of every process, as when a container dies; how many there were. Nothing is left when it
        returns."""
        if self._process is None:
            return 0
        family = self._look()
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._gone_within(_GONE_S)
        return len(family)

    def kill_driver(self, timeout_s: float) -> bool:
        """kill -9 of the driver alone; whether all that it had started has ended by itself within
        `timeout_s`."""
        if self._process is None:
            return True
        self._look()
        self._process.kill()
        self._process.wait()
        return self._gone_within(timeout_s)

    def stop(self) -> None:
        """SIGTERM, and after some seconds kill -9."""
        if self._process is None:
            return
        self._look()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.terminate()
            self._process.wait(_STOP_S)
        self.kill()

    def log_tail(self) -> str:
        """The last lines that it wrote."""
        return tail(self.log)

    def _gone_within(self, timeout_s: float) -> bool:
        give_up = time.monotonic() + timeout_s
        while self._look() and time.monotonic() < give_up:
            time.sleep(0.02)
        return not self._family

    def _look(self) -> list[int]:
        """The family as it lives now. The children of a dead driver are no longer below it, but known from
        the looks before."""
        there = processes()
        self._family = {
            pid: started for pid, started in self._family.items() if there.get(pid, (0, ""))[1] == started
        }
        if self._process is not None and self._process.poll() is None:
            self._family |= {pid: there[pid][1] for pid in descendants(self._process.pid, there)}
        return list(self._family)
