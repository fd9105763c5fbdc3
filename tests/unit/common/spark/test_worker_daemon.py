"""Where Spark's Python workers import pyspark from."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import FileFinder
from pathlib import Path
from typing import Any
from zipfile import ZipFile
from zipimport import zipimporter

from common.spark import worker_python
from common.spark.worker_daemon import forget_archives, without_archive


def archives(folder: Path) -> list[str]:
    return [str(folder / name) for name in ("pyspark.zip", "py4j-0.10.9.9-src.zip")]


def test_the_installed_pyspark_is_imported_instead_of_the_archive(tmp_path: Path) -> None:
    assert without_archive([*archives(tmp_path), *sys.path]) == sys.path


def test_workers_do_not_read_what_lies_in_an_archive_that_was_looked_into(tmp_path: Path) -> None:
    archive = tmp_path / "spark-core.jar"
    with ZipFile(archive, "w") as file:
        file.writestr("org/apache/spark/a.class", "")
    assert without_archive([str(archive), *sys.path]) == sys.path
    importers: dict[str, Any] = {
        str(archive): zipimporter(str(archive)),
        str(tmp_path): FileFinder(str(tmp_path)),
    }
    forget_archives(importers)
    assert importers.keys() == {str(tmp_path)}


def test_the_archive_stays_where_nothing_is_installed(tmp_path: Path) -> None:
    path = [*archives(tmp_path), str(tmp_path)]
    assert without_archive(path) == path


def test_what_spark_starts_as_python_is_this_one_without_the_archive(tmp_path: Path) -> None:
    assert Path(worker_python.executable()).name == "verbatim-python"
    said = subprocess.run(
        [
            worker_python.executable(),
            "-c",
            "import os, sys; print(sys.executable, os.environ['PYTHONPATH'], sys.argv[1:])",
            "a b",
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*archives(tmp_path), "/mine", str(tmp_path)])},
        check=True,
        capture_output=True,
        text=True,
    )
    assert said.stdout.split(maxsplit=2) == [sys.executable, f"/mine:{tmp_path}", "['a b']\n"]


def test_a_worker_does_not_import_pandas() -> None:
    """Promise: neither at a start nor at an epoch's end does a lane spend most of a second on a library that
    it does not use."""
    code = "from common.spark import worker_daemon as w; w.leave_out_pandas(); import sys, pyarrow as pa; pa.array([1]); sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_module_that_is_missing_ahead_is_left_to_the_worker_that_needs_it() -> None:
    assert "pyarrow" in after_import_ahead("no.such.module", "' '.join(sys.modules)").split()


def test_what_is_imported_ahead_is_not_gone_through_again_by_the_collectors_of_workers() -> None:
    assert int(after_import_ahead("deduplicator.lane.lane", "gc.get_freeze_count()")) > 20_000


def after_import_ahead(module: str, what: str) -> str:
    """`what`, printed by a process of its own."""
    code = f"from common.spark.worker_daemon import import_ahead; import_ahead({module!r}); import gc, sys; print({what})"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_the_daemon_says_nothing_of_a_worker_whose_connection_spark_has_closed() -> None:
    """Promise: no traceback at starts and stops; any other error keeps its own."""
    code = (
        "from common.spark.worker_daemon import say_nothing_of_broken_pipes; say_nothing_of_broken_pipes(); import traceback\n"
        "for error in (BrokenPipeError(), ConnectionResetError(), ValueError('told')):\n"
        "    try: raise error\n"
        "    except BaseException: traceback.print_exc()"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "ValueError: told" and done.stderr.count("Traceback") == 1
