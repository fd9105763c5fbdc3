"""An application whose lanes are processes of its own instead of Spark's tasks: there in two seconds, so that
many faults fit in an hour.

    python -m tests.faults.rounds.light replicator                        stands in for the console script
    python -m tests.faults.rounds.light lane replicator PLAN ROWS         one lane, which the former starts

Driver, election, planner, lanes and deliveries are production's; what Spark does for them is left to the
rounds that run it. State lives in the mappings alone.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verbatim.local.processes import spawn

MODULE = "tests.faults.rounds.light"
LANES = 2


class ProcessQuery:
    """Stands in for common.spark.lane_jobs.LaneJobs: one process a lane, which dies with its driver, as
    Spark's workers do. Where one fails the epoch has failed, and the others are killed."""

    def __init__(self, application: str, on_epoch: Callable[[list[Any]], None]) -> None:
        self._application = application
        self._on_epoch = on_epoch
        self._failure: str | None = None
        self._closed = False
        self._epoch = 0
        self._folder = Path(tempfile.mkdtemp(prefix="verbatim-light-"))
        self._lanes: list[subprocess.Popen[bytes]] = []
        self._waiting: threading.Thread | None = None

    @property
    def active(self) -> bool:
        return self._failure is None

    def failure(self) -> str | None:
        return self._failure

    def submit(self, lanes: list[dict[str, Any]]) -> None:
        self._failure = None
        self._epoch += 1
        rows: list[Path] = []
        self._lanes = []
        for number, plan in enumerate(lanes):
            asked = self._folder / f"{self._epoch}-{number}.plan"
            asked.write_text(json.dumps(plan))
            rows.append(asked.with_suffix(".rows"))
            command = [sys.executable, "-m", MODULE, "lane", self._application, str(asked), str(rows[-1])]
            self._lanes.append(spawn(command, Path("/proc/self/fd/2")))
        self._waiting = threading.Thread(target=self._wait, args=(list(self._lanes), rows), daemon=True)
        self._waiting.start()

    def give_up(self, why: str) -> None:
        self.stop()
        self._closed, self._failure = False, why

    def stop(self) -> None:
        self._closed = True
        self._kill()
        if self._waiting is not None:
            self._waiting.join(10)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self) -> None:
        for lane in self._lanes:
            if lane.poll() is None:
                lane.kill()

    def _wait(self, lanes: list[subprocess.Popen[bytes]], rows: list[Path]) -> None:
        from common.spark.lane_jobs import Progress

        left = list(lanes)
        while left:
            for lane in list(left):
                try:
                    code = lane.wait(0.1)
                except subprocess.TimeoutExpired:
                    continue
                left.remove(lane)
                if code != 0 and not self._closed:
                    self._kill()
                    self._failure = f"Error: a lane ended with {code}"
                    return
        if not self._closed:
            plans = [(path, json.loads(path.with_suffix(".plan").read_text())) for path in rows]
            self._on_epoch(
                [
                    Progress(plan["term"], plan["epoch"], said)
                    for path, plan in plans
                    for said in json.loads(path.read_text())
                ]
            )


def run_application(application: str) -> None:
    """The console script of an application, with another query."""
    from tests.support.harness import InThreads, ThreadDeduplicator, ThreadReplicator

    class InProcesses(InThreads):
        name: str
        reports: Any
        lanes = LANES

        def make_jobs(self) -> Any:
            return ProcessQuery(self.name, self.reports.put)

    class LightReplicator(InProcesses, ThreadReplicator):
        pass

    class LightDeduplicator(InProcesses, ThreadDeduplicator):
        pass

    main: Any = importlib.import_module(f"{application}.main")
    light = {"replicator": LightReplicator, "deduplicator": LightDeduplicator}[application]
    setattr(main, light.__name__.replace("Light", ""), light)
    sys.argv = [application]
    importlib.import_module(f"{application}.command").cli()


def run_lane(application: str, asked: Path, rows: Path) -> None:
    """A lane for one epoch, its rows written down."""
    run: Any = importlib.import_module(f"{application}.lane.lane").run
    found = list(run(json.loads(asked.read_text()) | {"again": False}))
    rows.write_text(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "lane":
        run_lane(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        run_application(sys.argv[1])
