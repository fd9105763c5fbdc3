"""The console scripts of what goes on until it is stopped: signals first, then what takes seconds to import. Imports nothing else itself."""

from __future__ import annotations

import os
import signal
from importlib import import_module
from types import FrameType


def replicator() -> None:
    """Console script."""
    _start("replicator.main")


def deduplicator() -> None:
    """Console script."""
    _start("deduplicator.main")


def offsets() -> None:
    """Console script."""
    _start("offsets.main")


def _start(module: str) -> None:
    """Whoever is told to stop before there is a main loop (common/app/signals.py takes over then) has nothing to end, and ends well."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    import_module(module).cli()


def _stop(_: int, frame: FrameType | None) -> None:
    os._exit(0)
