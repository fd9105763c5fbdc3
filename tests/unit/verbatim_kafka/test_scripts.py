"""Console scripts of what goes on until it is stopped: told to stop within the first seconds, they end well
and say nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

SCRIPTS = ("replicator", "deduplicator", "offsets")
# Told while it imports what takes seconds, which is played by an import that only tells.
TOLD = """
import os, signal, sys, time
from verbatim_kafka import scripts
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
    scripts = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]
    assert [scripts[name] for name in SCRIPTS] == [f"verbatim_kafka.scripts:{name}" for name in SCRIPTS]


@pytest.mark.parametrize(("arguments", "code"), [("--help", 0), ("", 2)])
def test_without_a_temporary_folder_help_is_given_and_what_needs_one_ends_in_one_line(
    arguments: str, code: int
) -> None:
    """Promise: on a read-only file system nothing asks for a folder at import, and whoever needs one says so;
    it was a traceback of `--help` too."""
    script = (
        "import sys, tempfile; tempfile._candidate_tempdir_list = lambda: []\n"
        "import click; from common.app.entry import entry; from common.spark import session; from replicator.command import command\n"
        "needs = click.Command('it', callback=tempfile.gettempdir)\n"
        "entry(command, sys.argv[1:]) if sys.argv[1:] else entry(needs, [])"
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


# What each takes a tenth of a second or more to import, or a whole second.
HEAVY = {"confluent_kafka", "delta", "pandas", "pyarrow", "pydantic", "pyspark"}
SPARK = HEAVY - {"confluent_kafka", "pydantic"}
IMPORTED = """
import atexit, sys
from verbatim_kafka import scripts
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
sys.argv = ["SCRIPT", *sys.argv[1:]]
scripts.SCRIPT()
"""


def imported(script: str, *arguments: str, **variables: str) -> tuple[str, set[str]]:
    """What a console script prints, and the modules that were imported for it."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED.replace("SCRIPT", script), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, set(done.stderr.split())


@pytest.mark.parametrize("script", [*SCRIPTS, "verbatim"])
def test_the_version_is_told_without_importing_what_takes_its_time(script: str) -> None:
    """Promise: under 0.3 s of CPU; it was 1.5 to 2.5, nearly all of it pyspark's."""
    said, modules = imported(script, "--version")
    assert said == f"{script}, version {version('verbatim-kafka')}\n"
    assert modules & HEAVY == set()


@pytest.mark.parametrize(
    ("script", "arguments", "heavy"),
    [
        *((name, ["--help"], SPARK) for name in SCRIPTS),
        ("verbatim", ["--help"], HEAVY),
        ("verbatim", ["limit", "--help"], SPARK),
    ],
)
def test_help_waits_for_nothing_that_it_does_not_need(
    script: str, arguments: list[str], heavy: set[str]
) -> None:
    said, modules = imported(script, *arguments)
    assert said.startswith(f"Usage: {script} ")
    assert modules & heavy == set()


def test_a_shell_completes_commands_and_their_options() -> None:
    def completed(*words: str) -> tuple[list[str], set[str]]:
        told = {"COMP_WORDS": " ".join(["verbatim", *words]), "COMP_CWORD": str(len(words))}
        said, modules = imported("verbatim", _VERBATIM_COMPLETE="bash_complete", **told)
        return [line.partition(",")[2] for line in said.split()], modules

    found, modules = completed("acc")
    assert (found, modules & HEAVY) == (["accept-destination", "accept-loss"], set())
    assert completed("verify", "--allow")[0] == ["--allow-behind"]
