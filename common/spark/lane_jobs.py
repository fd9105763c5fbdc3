"""Lanes as tasks of Spark's: a plan becomes a task, the task runs the lane, its progress rows come back.

    plans  ->  one task each: run_lane  ->  rows  ->  the next plans

Each epoch is one job. Plans and progress are all that Spark carries; records move between sockets inside the
lanes. (Of DataFrames, and of the streaming query that the lanes were once, they need nothing, and pay for it:
docs/decisions/lanes.md.)
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import uuid
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from common.errors import VerbatimError
from common.spark.lane_task import Plan, RunLane, in_task, no_lane
from common.spark.session import jvm_ended

log = logging.getLogger(__name__)

STOP_S = 10.0
"""Spark ends a lane's process two seconds after its task."""


class Progress(NamedTuple):
    """What a lane reported at the end of its epoch, which `term` and `epoch` of its plan name."""

    term: int
    epoch: int
    said: str


class Behind(NamedTuple):
    """A position that was reached, and the end that was given."""

    reached: int
    end: int


class Reports:
    """The rows of one term's epochs, put in by the thread of a job. Each term has its own: what a job of
    an older one still reports has nowhere to go."""

    def __init__(self, term: int, rows: queue.SimpleQueue[list[Progress]] | None = None) -> None:
        self.term = term
        self._rows = queue.SimpleQueue[list[Progress]]() if rows is None else rows
        self.put = self._rows.put

    def ended(self, epoch: int, timeout_s: float) -> list[str] | None:
        """What the lanes of this epoch said, once it has ended; None where none comes within the time. Each
        says something as it ends, so rows of which none is of it are not its end."""
        try:
            rows = self._rows.get(timeout=timeout_s)
        except queue.Empty:
            return None
        return [row.said for row in rows if (row.term, row.epoch) == (self.term, epoch)] or None


REHEARSAL_S = 30.0
"""A rehearsal is given up after so long."""


def rehearse(spark: SparkSession, name: str, run_lane: RunLane, lanes: int) -> threading.Thread:
    """Run an epoch whose lanes end at once, in the background, on an instance that has nothing to copy yet.

    What Spark does for the first time takes it a second: its classes, its code, and the lanes' Python
    processes, all of which the epochs to come find ready. Should it fail, nothing is lost by that.
    """
    ended = threading.Event()
    jobs = LaneJobs(spark, name, partial(no_lane, run_lane), lambda _: ended.set())

    def run() -> None:
        try:
            with contextlib.closing(jobs):
                jobs.submit([{"term": -1, "epoch": -1}] * lanes)
                ended.wait(REHEARSAL_S)
        except Exception as error:  # noqa: BLE001 - the session may end meanwhile, and then anything comes
            log.debug("%s: %s", name, error)

    thread = threading.Thread(target=copy_context().run, args=(run,), name=name, daemon=True)
    thread.start()
    return thread


class LaneJobs:
    """Runs the lanes of one epoch after the other. `on_epoch` is called, in a thread of its own, with the
    progress rows of each epoch that ended."""

    def __init__(
        self, spark: SparkSession, name: str, run_lane: RunLane, on_epoch: Callable[[list[Progress]], None]
    ) -> None:
        self._context = spark.sparkContext
        self._name = name
        self._tag = f"{name}-{uuid.uuid4().hex}"
        self._run_lane = run_lane
        self._on_epoch = on_epoch
        self._failure: str | None = None
        self._stopped = False
        self._job: threading.Thread | None = None

    @property
    def active(self) -> bool:
        """Whether the epoch handed in last has not failed. Raises VerbatimError where Spark's JVM has
        ended, which no other try makes good."""
        if self._failure is None:
            return True
        if (why := jvm_ended()) is not None:
            raise VerbatimError(why)
        return False

    def failure(self) -> str | None:
        """Why the epoch failed, or None."""
        return self._failure

    def submit(self, lanes: list[Plan]) -> None:
        """Run the lanes of the next epoch; the one before has ended."""
        self._failure = None
        plans = [json.dumps(plan) for plan in lanes]
        self._job = threading.Thread(
            target=copy_context().run, args=(self._run, plans), name=self._name, daemon=True
        )
        self._job.start()

    def give_up(self, why: str) -> None:
        """Kill the lanes of the epoch that runs: it has failed, for this reason."""
        self.close()
        self._stopped, self._failure = False, why

    def close(self) -> None:
        """End the job; lanes that still run are killed, so end their epoch first."""
        self._stopped = True
        if self._job is not None and self._job.is_alive():
            self._context.cancelJobsWithTag(self._tag)
            self._job.join(STOP_S)

    def _run(self, plans: list[str]) -> None:
        context = self._context
        try:
            # Of this thread, as Spark has it.
            context.addJobTag(self._tag)
            context.setJobDescription(f"{self._name}: an epoch of {len(plans)} lanes")
            # A slice for each: a task for each.
            tasks = context.parallelize(plans, len(plans)).mapPartitions(partial(in_task, self._run_lane))
            self._epoch_ended([Progress(*row) for row in tasks.collect()])
        except Exception as error:  # noqa: BLE001 - whatever it is, the epoch has failed
            if not self._stopped:
                self._failure = _said_by(error)

    def _epoch_ended(self, rows: list[Progress]) -> None:
        self._on_epoch(rows)


def _said_by(error: Exception) -> str:
    """What a job's error says, without the JVM's frames."""
    said = type(error).__name__
    with contextlib.suppress(Py4JError, OSError):  # its JVM may have ended since
        said = str(error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error) or said
    return "\n".join(line for line in said.splitlines() if not line.startswith("\tat "))


def missing_right(failure: str | None) -> str | None:
    """The line that tells of a missing right, which no other try makes good."""
    lines = [line.strip() for line in (failure or "").splitlines() if "authorization failed" in line]
    # What says it by name, if anything does: the client's own words may stand behind it, where an error came
    # while it was raised.
    ours = "common.errors.LinkRefused: "
    named = [line for line in lines if line.startswith(ours)]
    return (named or lines)[-1].removeprefix(ours) if lines else None


def first_line(text: str | None) -> str:
    """The line of a failure that says most."""
    lines = [line for line in (text or "unknown").splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line or "Exception" in line), lines[0])
