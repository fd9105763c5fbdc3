"""The Spark query of both applications: a plan becomes tasks, each task runs a lane, its progress rows come
back.

    readStream.format("lanes")  ->  one row per lane  ->  mapInArrow(run_lane)  ->  foreachBatch(next plan)

The DataFrame carries plans and progress only; records move between sockets inside the lanes. One micro-batch
is one epoch. The checkpoint is a scratch folder of the query's own: nothing in it is needed, since positions
live in Kafka.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)

Plan = dict[str, Any]
"""What one lane is to do, as JSON: it travels to an executor in a row."""

PLAN_SCHEMA = "plan string"
PROGRESS_SCHEMA = "term long, epoch long, said string"
PROGRESS_ARROW = pa.schema([("term", pa.int64()), ("epoch", pa.int64()), ("said", pa.string())])


@dataclass
class LanePartition(InputPartition):
    plan: str


class LanesSource(DataSource):
    """The data source "lanes": plans on the driver, one partition for each lane. Option `plans`: the file of
    the current plan."""

    @classmethod
    def name(cls) -> str:
        return "lanes"

    def schema(self) -> str:
        return PLAN_SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return LanesReader(str(self.options["plans"]))


class LanesReader(DataSourceStreamReader):
    """Offsets are epochs. An epoch other than the current plan's has no lanes: Spark may want one again after
    a failure."""

    def __init__(self, plans: str) -> None:
        self.plans = plans

    def initialOffset(self) -> dict[str, int]:
        return {"epoch": -1}

    # PySpark tells the two forms of this method apart by its arguments.
    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        return {"epoch": self._current()[0]}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        epoch, lanes = self._current()
        if end["epoch"] != epoch or start["epoch"] == epoch:
            return []
        return [LanePartition(plan) for plan in lanes]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        assert isinstance(partition, LanePartition)
        yield (partition.plan,)

    def _current(self) -> tuple[int, list[str]]:
        try:
            stored = json.loads(Path(self.plans).read_text())
        except FileNotFoundError:
            return -1, []
        return stored["epoch"], stored["lanes"]


RunLane = Callable[[Plan], Iterator[str]]
"""Runs one lane for one epoch, yielding its progress: texts that mean nothing here."""


def in_arrow(run_lane: RunLane) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """`run_lane` as mapInArrow wants it."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        again = task is not None and task.attemptNumber() > 0
        for batch in batches:
            for row in batch.to_pylist():
                plan = json.loads(row["plan"])
                for said in run_lane(plan | {"again": again}):
                    progress = Progress(plan["term"], plan["epoch"], said)
                    yield pa.RecordBatch.from_pylist([progress._asdict()], schema=PROGRESS_ARROW)

    return run


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
    """The rows of one term's epochs, put in by a thread of the query's. Each term has its own: what a query
    of an older one still reports has nowhere to go."""

    def __init__(self, term: int, rows: queue.SimpleQueue[list[Progress]] | None = None) -> None:
        self.term = term
        self._rows = queue.SimpleQueue[list[Progress]]() if rows is None else rows
        self.put = self._rows.put

    def ended(self, epoch: int, timeout_s: float) -> list[str] | None:
        """What the lanes of this epoch said, once it has ended; None where none comes within the time.

        Each lane says something as it ends, so rows that are none are not its end. Spark plans an epoch as
        soon as the query has started, and reports it without rows where the driver had no plan yet, also long
        after there is one.
        """
        try:
            rows = self._rows.get(timeout=timeout_s)
        except queue.Empty:
            return None
        return [row.said for row in rows if (row.term, row.epoch) == (self.term, epoch)] or None


_UNWAITED = {
    "asyncProgressTrackingEnabled": "true",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}
"""Spark writes down an epoch's end, and the next one's beginning, without waiting for it: nobody ever reads
that, for a query that starts again starts from nothing. Nothing flows between two epochs, and writing is a
quarter to a half of what Spark takes then. The second option is an internal one: Spark is sure of its Kafka
sink alone that it needs no more than that."""


REHEARSAL_S = 30.0
"""A rehearsal is given up after so long."""


def rehearse(spark: SparkSession, name: str, run_lane: RunLane, lanes: int) -> threading.Thread:
    """Run an epoch whose lanes end at once, in the background, on an instance that has nothing to copy yet.

    What Spark does for the first time takes it two seconds: its classes, its code, and the lanes' Python
    processes, all of which the epochs to come find ready. Should it fail, nothing is lost by that.
    """
    ended = threading.Event()
    query = LaneQuery(spark, name, partial(_no_lane, run_lane), lambda rows: ended.set() if rows else None)

    def run() -> None:
        try:
            with contextlib.closing(query):
                query.start()
                query.submit([{"term": -1, "epoch": -1}] * lanes)
                ended.wait(REHEARSAL_S)
        except Exception as error:  # noqa: BLE001 - the session may end meanwhile, and then anything comes
            log.debug("%s: %s", name, error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _no_lane(_: RunLane, plan: Plan) -> Iterator[str]:
    return iter(["rehearsed"])


class LaneQuery:
    """The running query. `submit` hands it the lanes of the next epoch; `on_epoch` is called, in a thread of
    Spark's, with the progress rows of each epoch that ended."""

    def __init__(
        self, spark: SparkSession, name: str, run_lane: RunLane, on_epoch: Callable[[list[Progress]], None]
    ) -> None:
        self._spark = spark
        self._name = name
        self._run_lane = run_lane
        self._on_epoch = on_epoch
        self._query: StreamingQuery | None = None
        self._epoch = -1
        self._stopped = False
        self._lock = threading.Lock()
        # Plans hold client properties, so nobody else may read the folder: mkdtemp makes it 0700.
        self._scratch = Path(tempfile.mkdtemp(prefix="verbatim-"))
        spark.dataSource.register(LanesSource)

    @property
    def active(self) -> bool:
        return self._query is not None and bool(self._query.isActive)

    def failure(self) -> str | None:
        """Why the query died, or None."""
        if self._query is None or self._query.isActive:
            return None
        error = self._query.exception()
        return None if error is None else str(error)

    def start(self) -> None:
        """Start the query (again). It waits for a plan."""
        self._stopped = False
        checkpoint = self._scratch / "checkpoint"
        shutil.rmtree(checkpoint, ignore_errors=True)
        (self._scratch / "plan.json").unlink(missing_ok=True)
        rows = self._spark.readStream.format("lanes").option("plans", str(self._scratch / "plan.json")).load()
        progress = rows.mapInArrow(in_arrow(self._run_lane), PROGRESS_SCHEMA)
        self._query = (
            progress.writeStream.queryName(self._name)
            .option("checkpointLocation", checkpoint.as_uri())
            .options(**_UNWAITED)
            .foreachBatch(self._epoch_ended)
            .start()
        )

    def submit(self, lanes: list[Plan]) -> None:
        """Make these the lanes of the next epoch."""
        with self._lock:
            self._epoch += 1
            plans = [json.dumps(plan) for plan in lanes]
            temporary = self._scratch / "plan.tmp"
            temporary.write_text(json.dumps({"epoch": self._epoch, "lanes": plans}))
            os.replace(temporary, self._scratch / "plan.json")

    def stop(self) -> None:
        """Stop the query; lanes that still run are killed, so end their epoch first."""
        self._stopped = True
        if self._query is not None:
            self._query.stop()
            self._query = None

    def close(self) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _epoch_ended(self, batch: DataFrame, batch_id: int) -> None:
        try:
            found = batch.collect()
        except Exception:
            if not self._stopped:
                raise
            # Interrupted by `stop`. Told of it, Spark looks for that with a pattern that a stack of a
            # megabyte is too small for, and dumps it.
            return
        self._on_epoch([Progress(row.term, row.epoch, row.said) for row in found])


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
