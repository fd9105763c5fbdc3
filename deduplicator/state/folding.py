"""Folds the offset mappings into the state table while an instance leads; when that is worth its while is its
caller's to say."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from common import ports
from common.errors import StateError
from deduplicator.state.snapshot import FoldResult

if TYPE_CHECKING:
    from deduplicator.state.table import StateTable

log = logging.getLogger(__name__)

HISTORY_DAYS = 30
TIDY_FIRST_S, TIDY_S = 600.0, 6 * 3600.0
LOOK_S = 60.0
FIRST_S = 20.0
"""The first look: what the lanes start takes all the CPU before."""
STOP_S = 5.0
AT_ONCE = threading.BoundedSemaphore(2)
"""So many folds of this process' links at a time: each takes memory of the one JVM. Who finds no place looks
again."""


class Folding:
    """A thread that folds when it is `due`, which it asks every LOOK_S, and tidies up now and then.

    It needs one slot of Spark's, for seconds at a time. A fold that fails is logged and told, and made up for
    by the next one.
    """

    def __init__(
        self,
        table: StateTable,
        due: Callable[[], bool],
        on_folded: Callable[[FoldResult], None],
        on_failed: Callable[[], None],
    ) -> None:
        self._table = table
        self._due = due
        self._on_folded = on_folded
        self._on_failed = on_failed
        self._tag = f"state-{uuid.uuid4().hex}"
        self._tidy_at = ports.monotonic() + TIDY_FIRST_S
        self._stop = threading.Event()
        self._thread = ports.thread(self._run, "state")
        self._thread.start()

    def close(self) -> None:
        """End it; a fold that is under way is broken off, which changes nothing in the table."""
        self._stop.set()
        # Its jobs come one after the other.
        until = ports.monotonic() + STOP_S
        while self._thread.is_alive() and ports.monotonic() < until:
            self._table.spark.sparkContext.cancelJobsWithTag(self._tag)
            self._thread.join(0.1)

    def _run(self) -> None:
        context = self._table.spark.sparkContext
        context.addJobTag(self._tag)
        context.setJobDescription("state")
        wait_s = FIRST_S
        while not self._stop.wait(wait_s):
            wait_s = LOOK_S
            try:
                self._look()
            except Exception as error:
                if self._stop.is_set():
                    return
                self._on_failed()
                if isinstance(error, StateError):
                    log.warning("%s", error)
                else:
                    log.exception("folding; it is tried again")

    def _look(self) -> None:
        if not self._due() or not AT_ONCE.acquire(timeout=LOOK_S):
            return
        try:
            self._fold()
        finally:
            AT_ONCE.release()

    def _fold(self) -> None:
        self._on_folded(self._table.fold(stopping=self._stop))
        if ports.monotonic() >= self._tidy_at:
            self._tidy_at = ports.monotonic() + TIDY_S
            self._table.maintain(HISTORY_DAYS)
