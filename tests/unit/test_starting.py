"""Console scripts of what goes on until it is stopped: told to stop within the first seconds, they end well and say nothing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SCRIPTS = ("replicator", "deduplicator", "offsets")
# Told while it imports what takes seconds, which is played by an import that only tells.
TOLD = """
import os, signal, sys, time
from common import starting
heavy = {"click", "confluent_kafka", "logging", "pyarrow", "pyspark"} & sys.modules.keys()
assert not heavy, heavy
starting.import_module = lambda _: (os.kill(os.getpid(), signal.SIGNAL), time.sleep(20))
starting.APPLICATION()
"""


@pytest.mark.parametrize(
    ("application", "number"), [*((name, "SIGTERM") for name in SCRIPTS), ("replicator", "SIGINT")]
)
def test_a_signal_before_there_is_a_main_loop_ends_it_well(application: str, number: str) -> None:
    """Promise: exit code 0 and no traceback, from before the first import that takes its time."""
    done = subprocess.run(
        [sys.executable, "-c", TOLD.replace("SIGNAL", number).replace("APPLICATION", application)],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_console_scripts_begin_with_the_signals() -> None:
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
    assert [scripts[name] for name in SCRIPTS] == [f"common.starting:{name}" for name in SCRIPTS]
