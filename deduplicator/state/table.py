"""The Delta snapshot of what is delivered: reads it, folds the offset mappings into it, keeps it small;
decides nothing.

Two tables under `<STATE_PATH>/<application>`: `state`, one row per source partition and one per mappings
partition, so that one Delta commit moves both; and `history`, one row per mapping record, for people to
query. Either may be deleted: the mappings say it all again, as far back as the topic keeps them.

Why a fold can't spoil the table, each with the order of events that would:
- *Old rows over new.* Driver A folds [0,1), a stale driver B that read M=0 writes its own fold over it, A
  folds [1,2): a row is lost for good. So the MERGE compares the M in the table with the M that the fold began
  from, and fails.
- *Counted twice.* The rows are written, the driver dies, M is not: the next fold adds the same counts. So
  rows and M are one commit, and a fold starts from the M in the table, never from a checkpoint.
- *A silent jump.* Retention removes [M, log start) unfolded; the fold goes on at the log start and M says
  "complete". So the row keeps `hole`, the log start it jumped to: a source row whose last mapping lies below
  it may be stale.
- *History with gaps.* State first, crash, history never. So history goes first, and a repeat inserts only
  what is absent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from common.config import state_path
from common.config.credentials import for_plan
from common.errors import KafkaTimeout, SettingsError, StateError
from deduplicator.state import local_reader
from deduplicator.state.delta import exists, made_table, open_table
from deduplicator.state.delta_rows import (
    HISTORY_PROPERTIES,
    PIPELINE,
    STATE_DDL,
    STATE_PROPERTIES,
    first_line,
    local,
    struct,
)
from deduplicator.state.file_lock import file_lock
from deduplicator.state.snapshot import FoldPlan, FoldResult, Snapshot, staged_up_to

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from common.config.settings import Settings

log = logging.getLogger(__name__)

MAX_OFFSETS_PER_COMMIT = 200_000
"""A long backlog (a lost table) is folded by so many mappings a commit, which bounds the memory of one."""

LOCK_TIMEOUT_S = 60.0
TASKS = 16
"""Spread over the executors to look what each has on its disk."""


class StateTable:
    """The tables of one link. Thread-safe; several drivers may share a path (of one machine, where it is a
    local one)."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        *,
        config: Mapping[str, Any],
        topic: str,
        sharing: str = "checked",
    ) -> None:
        """`path` holds both tables; `config` are consumer properties of the target, as in a plan; `topic` the
        mappings; `sharing` is STATE_SHARING."""
        from deduplicator.state.mappings_source import MappingsDataSource

        self.spark = spark
        self.topic = topic
        place = state_path.parse(path)
        self._sharing = sharing
        self._folder = place.local
        self.state_path, self.history_path = (place.child(name).hadoop for name in ("state", "history"))
        self.max_offsets_per_commit = MAX_OFFSETS_PER_COMMIT
        self.config = dict(config)
        self._lock = threading.RLock()
        spark.dataSource.register(MappingsDataSource)

    @classmethod
    def of(cls, spark: SparkSession, settings: Settings) -> StateTable:
        """The link's tables, under STATE_PATH."""
        return cls(
            spark,
            f"{settings.state_path}/{settings.application_name}",
            config=for_plan(settings, "destination", "consumer"),
            topic=settings.mappings_topic,
            sharing=settings.state_sharing,
        )

    def check(self) -> None:
        """Raise SettingsError where executors have another disk than this machine at STATE_PATH: nobody else
        would find what they write.

        StateError where that can't be told; a fold asks again then, before it writes.
        """
        if self._folder is None or self._sharing != state_path.VOLUME:
            return
        file = self._folder / f".executors-{uuid.uuid4().hex}"
        with self._reporting("look at"):
            self._folder.mkdir(parents=True, exist_ok=True)
            file.touch()
            try:
                context = self.spark.sparkContext
                tasks = context.parallelize(range(TASKS), TASKS)
                without = tasks.flatMap(_where_missing(str(file))).collect()
            finally:
                file.unlink()
        if without:
            raise SettingsError(
                f"STATE_PATH: {self._folder} is not the same on executor {without[0]} as here, so it is no shared volume: mount it there too"
            )
        self._sharing = "checked"

    def load(self) -> Snapshot:
        """What the table says. Raises StateError for one that is damaged."""
        if not self._exists(self.state_path):
            return Snapshot()
        with self._reporting("read"):
            return Snapshot.of(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        if self._folder is not None:
            try:
                return local_reader.rows(self._folder / "state")
            except Exception as error:  # noqa: BLE001 - Spark reads it, or tells what is wrong with it
                log.info("%s is read by Spark: %s", self.state_path, first_line(error))
        return self._rows_by_spark()

    def _rows_by_spark(self) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.spark.read.format("delta").load(self.state_path).collect()]

    def fold(self, attempts: int = 3, stopping: threading.Event | None = None) -> FoldResult:
        """Fold the mappings up to their read-committed end, each attempt from the M in the table; who is
        `stopping` tries no further.

        Raises StateError when every attempt failed: the table is damaged, another driver keeps folding, or
        the mappings end below M (the topic was deleted or cut). Nothing is half done then.
        """
        stopping = stopping or threading.Event()
        for attempt in range(1, attempts):
            try:
                return self._fold()
            except StateError as error:
                if stopping.is_set():
                    raise
                log.info("fold tried again: %s", error)
                stopping.wait(0.2 * attempt)
        return self._fold()

    def _fold(self) -> FoldResult:
        reached: dict[int, int] = {}
        staging: dict[int, int] = {}
        mappings = commits = 0
        with self._locked():
            self._check_first()
            first = plan = self.begin()
            while (part := plan.next_commit(self.max_offsets_per_commit)).end:
                count, staged = self.commit(part)
                mappings, commits = mappings + count, commits + 1
                staging |= staged
                reached |= part.end
                if all(part.end.get(p, plan.expected[p]) >= o for p, o in plan.end.items()):
                    break
                plan = self.begin(first.end)
        return FoldResult(first.expected, first.expected | reached, staging, mappings, first.holes, commits)

    def _check_first(self) -> None:
        try:
            self.check()
        except SettingsError as error:
            raise StateError(str(error)) from error

    def begin(self, until: Mapping[int, int] | None = None) -> FoldPlan:
        """Read M from the table and the bounds from Kafka: what a fold from here (up to `until`) would read.
        Writes nothing."""
        from deduplicator.state import mappings_source

        known = self.load()
        try:
            with contextlib.closing(mappings_source.consumer(self.config)) as reader:
                low, high = mappings_source.bounds(reader, self.topic)
        except KafkaTimeout as error:
            raise StateError(str(error)) from error
        for partition, folded in known.folded.items():
            if high.get(partition, 0) < folded:
                raise StateError(
                    f"{self.topic}/{partition} ends at {high.get(partition, 0)}, but {state_path.redacted(self.state_path)} has folded it up "
                    f"to {folded}: the topic was deleted or cut. Restore it, or remove the table to fold it anew"
                )
        return FoldPlan.of(known.folded, low, high, until)

    def commit(self, plan: FoldPlan) -> tuple[int, dict[int, int]]:
        """Fold what `plan` says and write it: how many mappings, and the staging offset that those of each
        partition reach.

        Raises StateError when M in the table is no longer `plan.expected`.
        """
        from deduplicator.state.mappings_source import options, range_options

        with self._reporting("fold"):
            frame = (
                self.spark.read.format("mappings")
                .options(**options(self.config, self.topic), **range_options(plan.start, plan.end))
                .load()
                .persist()
            )
            try:
                folded = self._folded(frame)
                count = sum(row["mappings"] for row in folded)
                if count:
                    self._append_history(frame, folded)
                self._merge_state(plan, folded)
            finally:
                frame.unpersist()
        return count, staged_up_to(folded)

    def _folded(self, frame: DataFrame) -> list[dict[str, Any]]:
        """One row per source partition: its last position and destination, the sums of its counts."""
        from pyspark.sql import functions as f

        folded = frame.groupBy("mappings_partition", "cluster", "topic_id", "partition").agg(
            f.max_by("topic", "mappings_offset").alias("topic"),
            f.max("next").alias("next"),
            f.max_by("destination_topic", "mappings_offset").alias("destination_topic"),
            f.max_by("destination_partition", "mappings_offset").alias("destination_partition"),
            f.sum("records").alias("records"),
            f.sum("duplicates").alias("duplicates"),
            f.sum("lost").alias("lost"),
            f.max("pipeline").alias("pipeline"),
            f.max("mappings_offset").alias("mappings_offset"),
            f.max("staging_offset").alias("staging_offset"),
            f.count("*").alias("mappings"),
            f.min("mappings_offset").alias("first_offset"),
            f.collect_set(f.to_date("timestamp")).alias("dates"),
        )
        return [row.asDict() for row in folded.collect()]

    def _merge_state(self, plan: FoldPlan, folded: list[dict[str, Any]]) -> None:
        """Rows and M in one commit, which fails where the table's M is not the one this fold began from."""
        rows = plan.rows(folded, self.topic, datetime.now(UTC))
        source = local(self.spark, rows, struct(f"{STATE_DDL}, expected bigint"))
        moved = "CAST(raise_error('the fold began from another M than the table has now') AS BIGINT)"
        table = made_table(
            self.spark, self.state_path, STATE_DDL, STATE_PROPERTIES, without=_not_needed(folded)
        )
        columns: dict[str, str | Column] = {name: f"s.{name}" for name in table.toDF().columns}
        # An M row that is not there stands for M = 0.
        inserted: dict[str, str | Column] = columns | {
            "folded": f"CASE WHEN coalesce(s.expected, 0) <> 0 THEN {moved} ELSE s.folded END"
        }
        updated: dict[str, str | Column] = columns | {
            "folded": f"CASE WHEN t.folded <> s.expected THEN {moved} ELSE s.folded END",
            "next": "greatest(t.next, s.next)",
            "records": "t.records + s.records",
            "duplicates": "t.duplicates + s.duplicates",
            "lost": "t.lost + s.lost",
            "staging_offset": "greatest(t.staging_offset, s.staging_offset)",
            "hole": "greatest(t.hole, s.hole)",
        }
        if PIPELINE in columns:
            updated[PIPELINE] = f"greatest(t.{PIPELINE}, s.{PIPELINE})"
        key = " AND ".join(f"t.{name} = s.{name}" for name in ("kind", "cluster", "topic_id", "partition"))
        (
            table.alias("t")
            .merge(source.alias("s"), key)
            .whenMatchedUpdate(set=updated)
            .whenNotMatchedInsert(values=inserted)
            .execute()
        )

    def _append_history(self, frame: DataFrame, folded: list[dict[str, Any]]) -> None:
        """Insert the mappings that history does not have yet.

        An insert-only MERGE on (mappings partition, offset): it commits against the snapshot that it
        searched, so of two drivers that append at once one fails. A plain append would leave both, for
        nothing in it says what it read.
        """
        from pyspark.sql import functions as f

        from deduplicator.state.mappings_source import SCHEMA

        dated = frame.withColumn("date", f.to_date("timestamp"))
        dates = {date for row in folded for date in row["dates"]}
        low = min(row["first_offset"] for row in folded)
        ddl, without = f"date date, {SCHEMA}", _not_needed(folded)
        table = made_table(self.spark, self.history_path, ddl, HISTORY_PROPERTIES, "date", without)
        if PIPELINE not in table.toDF().columns:
            dated = dated.drop(PIPELINE)
        listed = ", ".join(f"DATE'{date}'" for date in sorted(dates))
        (
            table.alias("t")
            .merge(
                dated.alias("s"),
                f"t.date IN ({listed}) AND t.mappings_offset >= {low} AND t.date = s.date AND "
                "t.mappings_partition = s.mappings_partition AND t.mappings_offset = s.mappings_offset",
            )
            .whenNotMatchedInsertAll()
            .execute()
        )

    def maintain(self, history_days: int) -> None:
        """Drop history older than `history_days`, compact both tables, delete files no snapshot needs. Run it
        rarely.

        Takes seconds; a fold waits for it. Files go after `delta.deletedFileRetentionDuration`, so readers
        are safe.
        """
        with self._locked(), self._reporting("tidy"):
            for path in (self.state_path, self.history_path):
                if not self._exists(path):
                    continue
                table = open_table(self.spark, path)
                if path == self.history_path:
                    oldest = (datetime.now(UTC) - timedelta(days=history_days)).date()
                    table.delete(f"date < DATE'{oldest}'")
                table.optimize().executeCompaction()
                table.vacuum()

    def _exists(self, path: str) -> bool:
        with self._reporting("look for"):
            return exists(self.spark, path)

    @contextlib.contextmanager
    def _reporting(self, doing: str) -> Iterator[None]:
        """Turns whatever Spark, Delta or a reading task raises into a StateError of one line that names the
        table."""
        try:
            yield
        except (StateError, SettingsError):
            raise
        except Exception as error:
            where = state_path.redacted(self.state_path)
            raise StateError(f"could not {doing} {where}: {first_line(error)}") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time. Delta guards a local path within one JVM only, so there a file lock guards
        the machine.

        Two drivers: both see version 7, both rename their own file to version 8, the second replaces the
        first.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        with self._lock, contextlib.ExitStack() as stack:
            if self._folder is not None:
                stack.enter_context(file_lock(self._folder, deadline))
            yield


def _not_needed(folded: list[dict[str, Any]]) -> list[str]:
    """Columns that hold nothing of these rows."""
    return [] if any(row[PIPELINE] for row in folded) else [PIPELINE]


def _where_missing(file: str) -> Callable[[int], list[str]]:
    return lambda _: [] if os.path.exists(file) else [socket.gethostname()]
