"""A standalone cluster of Spark's, on whose executors the lanes run: a master and two workers, all here."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.standalone import standalone
from tests.faults.processes import Process, command_of
from verbatim.local.applications import Application, descendants, processes

WORKERS = 2
LANES = 2
SLOTS = LANES + 1
"""Of each instance: the deduplicator keeps one for folding its state."""
CORES = 8
"""Of each worker: for two instances of each application, and for those just started again."""
INSTANCE = "VERBATIM_INSTANCE"
"""The variable by which the executors of an instance are known: they are no descendants of it."""
_PASSED_ON = (
    "PYTHONPATH",
    "VERBATIM_FAULTS",
    "VERBATIM_TRANSACTION_MS",
    "VERBATIM_FETCH_KIB",
    "VERBATIM_BREAK",
    INSTANCE,
)
_OF_EACH = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": str(SLOTS),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class Executors:
    """The cluster; it runs between `start` and `stop`."""

    def __init__(self, folder: Path) -> None:
        conf = {
            "spark.authenticate": "true",
            "spark.network.crypto.enabled": "true",
            "spark.authenticate.secret": "s3cret",
        }
        self._folder = folder
        self._daemons: dict[str, Application] = {}
        self._url, self._daemons = standalone(folder, WORKERS, CORES, "4g", conf)

    def start(self) -> None:
        for daemon in self._daemons.values():
            daemon.start()

    def stop(self) -> None:
        for daemon in self._daemons.values():
            daemon.kill()

    def variables(self) -> dict[str, str]:
        """What an application is to be told by its environment."""
        return {
            "SPARK_MASTER": self._url,
            # Else as many as there are executors at that moment.
            "PARALLELISM": str(LANES),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(self._folder / "conf"),
        }

    def arguments(self, variables: Mapping[str, str]) -> list[str]:
        """And by its arguments, where these are its variables."""
        passed_on = {f"spark.executorEnv.{n}": variables[n] for n in _PASSED_ON if n in variables}
        return [
            word for name, value in (_OF_EACH | passed_on).items() for word in ("--conf", f"{name}={value}")
        ]


def kill_one(process: Process, rng: random.Random) -> dict[str, int]:
    """kill -9 of one of an instance's executors, with its lanes, as when its container dies, or without them:
    they go on then until they notice. What was killed; nothing where there is none."""
    found = [pid for pid in process.family() if "CoarseGrainedExecutorBackend" in command_of(pid)]
    if not found:
        return {}
    chosen = rng.choice(found)
    lanes = descendants(chosen, processes())
    killed = [chosen, *lanes] if rng.random() < 0.5 else [chosen]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    return {"executor": chosen, "lanes": len(killed) - 1}
