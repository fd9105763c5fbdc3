"""Java as Spark needs it: looked at before anything else is tried, and told of when its process ends."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkRuntimeError

from common.errors import SettingsError, VerbatimError

LEAST = 17
ANSWER_S = 30.0
ENDS_S = 5.0
"""A JVM's connections break before it is gone, on a busy machine some time before."""
OUT_OF_MEMORY = "-XX:+ExitOnOutOfMemoryError"
"""Spark's JVM ends at once where it runs out of memory, with _NO_MEMORY: whatever goes on without some of its
threads only hangs."""
_NO_MEMORY = 3


def check(environ: Mapping[str, str] = os.environ) -> None:
    """Raises SettingsError, naming JAVA_HOME, where Spark would start no Java that it can run on.

    Left to Spark where its own script chooses Java, and under spark-submit, where that runs already.
    """
    if "PYSPARK_GATEWAY_PORT" in environ or _chosen_by_script(environ):
        return
    path = _path(environ)
    said = _version(path)
    found = re.search(r'version "(?:1\.)?(\d+)([^"]*)"', said)
    if found is None:
        raise SettingsError(
            f"JAVA_HOME: {path} can't be run ({' '.join(said.split())[:200] or 'it says nothing'})"
        )
    if int(found[1]) < LEAST:
        raise SettingsError(
            f"JAVA_HOME: {path} is Java {found[1]}{found[2]}, and Spark needs {LEAST} or newer"
        )


def version(environ: Mapping[str, str] = os.environ) -> str:
    """What the Java says of itself that Spark would run on, or why it can't be run, in one line. Raises
    SettingsError where there is none."""
    return " ".join(_version(_path(environ)).split())


def _chosen_by_script(environ: Mapping[str, str]) -> bool:
    home = environ.get("SPARK_HOME")
    folder = environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    return folder is not None and Path(folder, "spark-env.sh").is_file()


def _path(environ: Mapping[str, str]) -> str:
    """As Spark chooses it (bin/spark-class)."""
    if home := environ.get("JAVA_HOME"):
        path = Path(home, "bin", "java")
        if not os.access(path, os.X_OK) or path.is_dir():
            raise SettingsError(
                f"JAVA_HOME: {path} can't be run; it must be the folder of Java {LEAST} or newer, or not be set where the PATH has one"
            )
        return str(path)
    if found := shutil.which("java", path=environ.get("PATH")):
        return found
    raise SettingsError(
        f"JAVA_HOME: not set, and there is no java on the PATH; Spark needs Java {LEAST} or newer"
    )


def _version(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr + done.stdout


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Round the start of Spark's JVM: that it did not come up is one line."""
    try:
        yield
    except PySparkRuntimeError:
        raise VerbatimError("Spark's JVM ended while it was starting; what it said stands above") from None


def ended(gateway: Any) -> str | None:
    """Why Spark can't be spoken to any more, if its JVM has ended; None while it runs, and where it is not
    ours."""
    process = getattr(gateway, "proc", None)
    if process is None:
        return None
    try:
        code: int = process.wait(ENDS_S)
    except subprocess.TimeoutExpired:
        return None
    if code == _NO_MEMORY:
        return "Spark's JVM ran out of memory; raise spark.driver.memory (--conf spark.driver.memory=1g; 512m by default)"
    if code < 0:
        by = signal.Signals(-code).name
        memory = "; by the kernel, if memory is short" if by == "SIGKILL" else ""
        return f"Spark's JVM was ended by {by}{memory}"
    return f"Spark's JVM ended by itself (exit code {code})"
