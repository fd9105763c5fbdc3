"""SIGTERM and SIGINT: an event to look at, and an end within 10 s whatever hangs. What stops, and how, is
left to the main loops."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType

log = logging.getLogger(__name__)

STOP_S = 9.0
"""SIGTERM must be obeyed within 10 s."""


def stop_on_signals(stopping: threading.Event) -> None:
    """Set `stopping` at the first SIGTERM or SIGINT, and end the process, with 0, if it is still there STOP_S
    seconds later."""

    def stop(signum: int, _: FrameType | None) -> None:
        if stopping.is_set():
            return
        stopping.set()
        timer = threading.Timer(STOP_S, _force_exit)
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def _force_exit() -> None:
    # Others could not be told (the target is gone, say). A transaction left open is aborted by the next
    # owner's fencing.
    log.warning("stopping without waiting any longer")
    os._exit(0)
