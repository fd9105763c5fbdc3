"""The Python that Spark starts for a data source or a lane on this machine: ours, importing the installed
pyspark. Console script `verbatim-python`.

For each question to a Python data source Spark starts a Python of its own, with an archive of its Python code
first on the path, which is compiled anew each time. Measured: 0.3 s of CPU each, of which an application
starts up to ten.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from common.spark.worker_daemon import ARCHIVES, without_archive

NAME = "verbatim-python"


def main() -> None:
    """Become this environment's Python, with the same arguments."""
    path = os.environ.get("PYTHONPATH", "")
    if len(without_archive(sys.path)) < len(sys.path):
        rest = [entry for entry in path.split(os.pathsep) if not entry.endswith(ARCHIVES)]
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606  there is nothing in it for a shell


def look_in_our_folder_first() -> None:
    """Tell the Pythons that Spark starts on this machine where our packages lie: the wheel has them where no
    Python looks by itself.

    (Workers of lanes know from worker_daemon, also on other machines; those asked about a data source run
    Spark's own modules.)
    """
    ours = str(Path(__file__).resolve().parents[2])
    rest = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry not in ("", ours)]
    os.environ["PYTHONPATH"] = os.pathsep.join([ours, *rest])


def executable() -> str:
    """What Spark is to start as Python: the console script, or Python itself where that is not installed."""
    script = Path(sys.executable).with_name(NAME)
    return str(script) if script.is_file() else sys.executable
