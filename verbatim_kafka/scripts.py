"""The console scripts: of what goes on until it is stopped signals first, then what takes seconds to import.
Imports little itself."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from types import FrameType


def replicator() -> None:
    """Console script."""
    _start("replicator.command")


def deduplicator() -> None:
    """Console script."""
    _start("deduplicator.command")


def offsets() -> None:
    """Console script."""
    _start("offsets.main")


def schemas() -> None:
    """Console script."""
    _start("schemas.main")


def verbatim() -> None:
    """Console script."""
    import_module("verbatim.main").cli()


def python() -> None:
    """Console script."""
    import_module("common.spark.worker_python").main()


def _start(module: str) -> None:
    """Whoever is told to stop before there is a main loop (common/app/signals.py takes over then) has nothing
    to end, and ends well."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    if sys.argv[1:] == ["--version"]:
        # As click says it, without what the other options take to import.
        version = import_module("importlib.metadata").version("verbatim-kafka")
        print(f"{module.partition('.')[0]}, version {version}")
        return
    import_module(module).cli()


def _stop(_: int, frame: FrameType | None) -> None:
    os._exit(0)
