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
from common.app import scripts
heavy = {"click", "confluent_kafka", "logging", "pyarrow", "pyspark"} & sys.modules.keys()
assert not heavy, heavy
scripts.import_module = lambda _: (os.kill(os.getpid(), signal.SIGNAL), time.sleep(20))
scripts.APPLICATION()
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
    scripts = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]["scripts"]
    assert [scripts[name] for name in SCRIPTS] == [f"common.app.scripts:{name}" for name in SCRIPTS]


@pytest.mark.parametrize(("arguments", "code"), [("--help", 0), ("", 2)])
def test_without_a_temporary_folder_help_is_given_and_what_needs_one_ends_in_one_line(
    arguments: str, code: int
) -> None:
    """Promise: on a read-only file system nothing asks for a folder at import, and whoever needs one says so; it was a traceback of `--help` too."""
    script = (
        "import sys, tempfile; tempfile._candidate_tempdir_list = lambda: []\n"
        "import click; from common.app import cli; from common.spark import session; from replicator.main import command\n"
        "needs = click.Command('it', callback=tempfile.gettempdir)\n"
        "cli.entry(command, sys.argv[1:]) if sys.argv[1:] else cli.entry(needs, [])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments.split()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    assert [line.partition(" found in")[0] for line in lines] == (
        ["error: TMPDIR: No usable temporary directory"] if code else []
    )
    assert ("Usage" in done.stdout) is (code == 0)
