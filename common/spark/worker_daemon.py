"""Spark's daemon of Python workers, started from the installed pyspark, with what lanes import. The rest is
Spark's.

Spark puts an archive of its Python code first on the path, and a jar, and Python compiles what it imports
from an archive anew in every process: measured, 0.3 s of CPU for each of the half dozen that an application
starts. As long again took what each imported for a lane: workers are forked from this process, but have only
what it has imported, and one that has been idle for a minute is ended. What a worker does not touch, it
shares with the others: a lane's process has 4 MB of its own as it begins.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import runpy
import sys
import traceback
from collections.abc import Callable, MutableMapping
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from typing import Any
from zipimport import zipimporter

ARCHIVES = ("/pyspark.zip", "-src.zip", ".jar")
IMPORTS = "VERBATIM_WORKER_IMPORTS"
"""The environment variable that names the modules to import, comma-separated, with all that they import."""


def without_archive(path: list[str]) -> list[str]:
    """The path without Spark's archives, if pyspark is found on the rest of it; else as it is."""
    rest = [entry for entry in path if not entry.endswith(ARCHIVES)]
    return rest if all(PathFinder.find_spec(name, rest) for name in ("pyspark", "py4j")) else path


def forget_archives(importers: MutableMapping[str, Any]) -> None:
    """What has been looked for in archives is forgotten; those on the path are read again once they are
    needed.

    Else each worker reads their directories as it begins, for then Spark has it look at its path anew. That
    of the jar which Spark puts on it takes 12 MB."""
    for entry in [entry for entry, importer in importers.items() if isinstance(importer, zipimporter)]:
        del importers[entry]


def leave_out_pandas() -> None:
    """From now on `import pandas` fails here as where it is not installed.

    pyarrow imports it, where it finds it, with the first array that it makes: most of a second of CPU and
    some tens of megabytes for each worker, in the deduplicator's lanes at the end of their first epoch.
    """
    sys.meta_path.insert(0, _NoPandas())


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of workers", name=name)


def import_ahead(modules: str) -> None:
    """Import modules, and what Spark's workers need for lanes. What is missing here is missed by the worker
    that needs it."""
    for name in ("pyspark.worker", "pyarrow", *modules.split(",")):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Else each worker's collector goes through all of it once more, and so copies the memory that it shares
    # with this process.
    gc.collect()
    gc.freeze()


def say_nothing_of_broken_pipes(report: Callable[..., None] = traceback.print_exc) -> None:
    """From now on `traceback.print_exc` says nothing of a connection that the other side has closed.

    The daemon reports so each worker that Spark has ended while it still had something to say: at each stop,
    and at starts.
    """

    def print_exc(*args: Any, **options: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            report(*args, **options)

    traceback.print_exc = print_exc


def main() -> None:
    """Become Spark's daemon."""
    sys.path[:] = without_archive(sys.path)
    forget_archives(sys.path_importer_cache)
    leave_out_pandas()
    say_nothing_of_broken_pipes()
    if modules := os.environ.get(IMPORTS):
        import_ahead(modules)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
