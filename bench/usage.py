"""What processes cost while they run: CPU time and memory of whole families, and bytes in a broker's log
folder. Judges nothing."""

from __future__ import annotations

import contextlib
import glob
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from bench.figures import value_at
from verbatim.local.applications import descendants, processes

_TICKS = os.sysconf("SC_CLK_TCK")
_CPU_EVERY_S = 0.25
# Less often where a look takes more than this share of a CPU: at fifty links' hundred processes, four times a
# second, the bench took a tenth to a fifth of one, mostly by that.
_LOOKING = 0.05
_SEGMENTS_EVERY = 4
# Asking for the shared memory of a big JVM keeps the kernel busy, and the JVM's page faults waiting: five
# times a second took a fifth of a core.
_MEMORY_EVERY = 20
_COMPILERS = ("C1 Compiler", "C2 Compiler")


class Watch:
    """Samples families of processes, each given by its eldest, until closed. CPU time of members that ended
    meanwhile is kept.

    cpu: name -> curve of CPU seconds since the members' starts. peak_bytes: name -> greatest memory seen,
    pages shared by several processes divided among them. log_folder: a broker's, whose segments are sized, so
    that `written` tells what was appended by topic-partition, also of what has been deleted since.
    """

    def __init__(self, eldest: Mapping[str, int], log_folder: Path) -> None:
        self._eldest = dict(eldest)
        self._log_folder = log_folder
        self._cpu: dict[str, dict[tuple[int, str], float]] = {name: {} for name in eldest}
        self._segments: dict[tuple[str, str], int] = {}
        self._end = threading.Event()
        self.cpu: dict[str, list[tuple[float, float]]] = {name: [] for name in eldest}
        self.peak_bytes = dict.fromkeys(eldest, 0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="watch")

    def written(self) -> dict[str, int]:
        """Topic -> bytes of its segments, as great as each was ever seen."""
        sizes: dict[str, int] = {}
        for (partition, _), size in self._segments.items():
            topic = partition.rpartition("-")[0]
            sizes[topic] = sizes.get(topic, 0) + size
        return sizes

    def cores(self, begin_s: float, end_s: float) -> dict[str, float]:
        """What each family took between two moments of the monotonic clock, on average."""
        return {
            name: (value_at(curve, end_s) - value_at(curve, begin_s)) / (end_s - begin_s)
            for name, curve in self.cpu.items()
        }

    def lines(self, begin_s: float, end_s: float) -> Iterator[str]:
        """The same for whoever watches, with the peak of memory."""
        for name, cores in self.cores(begin_s, end_s).items():
            yield f"{name:<14} {cores:5.2f} cores, {self.peak_bytes[name] >> 20:,} MiB at most"

    def __enter__(self) -> Self:
        self._watching = self._thread.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.shutdown()
        # Whatever kept it from watching: figures that say nothing must not be taken for figures.
        self._watching.result()

    def _run(self) -> None:
        turn, took_s = 0, 0.0
        while True:
            ended = self._end.wait(max(_CPU_EVERY_S, took_s / _LOOKING))
            began, memory = time.thread_time(), turn % _MEMORY_EVERY == 0
            self._look_at_processes(memory)
            if ended or turn % _SEGMENTS_EVERY == 0:
                self._look_at_segments()
            if ended:
                return
            if not memory:
                took_s = time.thread_time() - began
            turn += 1

    def _look_at_processes(self, memory: bool) -> None:
        there = processes()
        for name, eldest in self._eldest.items():
            total = 0
            for pid in descendants(eldest, there):
                with contextlib.suppress(OSError):
                    self._cpu[name][pid, there[pid][1]] = cpu_seconds(pid)
                    if memory:
                        total += proportional_bytes(pid)
            self.cpu[name].append((time.monotonic(), sum(self._cpu[name].values())))
            self.peak_bytes[name] = max(self.peak_bytes[name], total)

    def _look_at_segments(self) -> None:
        # Path.glob gives up at a folder that is deleted before it has been read.
        for segment in glob.iglob("*/*.log", root_dir=self._log_folder):
            with contextlib.suppress(OSError):
                size = (self._log_folder / segment).stat().st_size
                folder, _, name = segment.partition(os.sep)
                self._segments[folder, name] = max(size, self._segments.get((folder, name), 0))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, without its children's. Raises OSError when it has gone."""
    return _seconds(Path(f"/proc/{pid}/stat").read_text())


def _seconds(stat: str) -> float:
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def compilers(*pids: int) -> dict[str, float]:
    """CPU seconds of those threads of JVMs that compile, by thread; they come and go."""
    found: dict[str, float] = {}
    for pid in pids:
        for thread in glob.iglob(f"/proc/{pid}/task/*/stat"):
            with contextlib.suppress(OSError):
                stat = Path(thread).read_text()
                if stat.partition("(")[2].startswith(_COMPILERS):
                    found[thread] = _seconds(stat)
    return found


def compiled_s(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """What compilers took between two looks; pure."""
    return sum(seconds - before.get(thread, 0.0) for thread, seconds in after.items())


def proportional_bytes(pid: int) -> int:
    """Memory of a process, shared pages divided among those who share them: forked workers share much. Raises
    OSError when it has gone."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
