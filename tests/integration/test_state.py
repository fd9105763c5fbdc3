"""The Delta state on a real broker: each test proves a promise that the folded table and its history make to
recovery."""

from __future__ import annotations

import logging
import queue
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from common.errors import StateError
from common.spark.session import build_session, stop_session
from deduplicator.state import folding, local_reader
from deduplicator.state.delta import made_table
from deduplicator.state.delta_rows import HISTORY_PROPERTIES
from deduplicator.state.folding import Folding
from deduplicator.state.mappings_source import (
    CONFIG_OPTION,
    SCHEMA,
    bounds,
    consumer,
    options,
    range_options,
)
from deduplicator.state.snapshot import FoldPlan, FoldResult, Snapshot
from deduplicator.state.table import StateTable

PARTITIONS = 2
GOLDEN = Path(__file__).parents[1] / "unit/golden"
KEY = ("source-cluster", "topic-id", 0)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    path = tmp_path_factory.mktemp("state")
    settings = SimpleNamespace(
        application_name="test",
        log_format="text",
        spark_master="local[1]",
        state_path=str(path),
        state_sharing="checked",
        spark_conf={},
        parallelism=None,
    )
    session = build_session(settings, lanes=1, extra_slots=1, delta=True)  # type: ignore[arg-type]
    yield session
    stop_session(session)


class Mappings:
    """A mappings topic of its own, written as the deduplicator writes it: in transactions."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.config = {"bootstrap.servers": bootstrap_servers}
        self.topic = f"test-{uuid.uuid4().hex}.offset-mappings"
        self.admin = AdminClient({**self.config})
        for future in self.admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)]).values():
            future.result(20)
        self._producer = Producer({**self.config, "transactional.id": self.topic, "linger.ms": 0})
        self._producer.init_transactions(20)
        self._reader = consumer(self.config)
        self._ends = dict.fromkeys(range(PARTITIONS), 0)

    def write(self, *mappings: dict[str, Any], to: int = 0, commit: bool = True) -> None:
        self.open(*mappings, to=to)
        if commit:
            self._producer.commit_transaction(20)
        else:
            self._producer.abort_transaction(20)
        self._await_markers()

    def open(self, *mappings: dict[str, Any], to: int = 0) -> None:
        self._producer.begin_transaction()
        for mapping in mappings:
            key = orjson.dumps({"topic": mapping["topic"], "partition": mapping["partition"]})
            self._producer.produce(self.topic, orjson.dumps(mapping), key, to)
        self._ends[to] += len(mappings) + 1
        self._producer.flush(20)

    def commit(self) -> None:
        self._producer.commit_transaction(20)
        self._await_markers()

    def _await_markers(self) -> None:
        """A transaction's end is acknowledged before its markers are in the log: wait until all is stable."""
        deadline = time.monotonic() + 20
        while bounds(self._reader, self.topic)[1] != self._ends:
            assert time.monotonic() < deadline, "the markers do not arrive"
            time.sleep(0.01)

    def trim(self, partition: int, offset: int) -> None:
        for future in self.admin.delete_records([TopicPartition(self.topic, partition, offset)]).values():
            future.result(20)


def mapping(
    start: int, end: int, *, partition: int = 0, staging: int | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "v": 1,
        "cluster": KEY[0],
        "topic": "orders",
        "topic_id": KEY[1],
        "partition": partition,
        "start": start,
        "next": end,
        "destination_topic": "copy",
        "destination_partition": partition,
        "staging_offset": end * 10 if staging is None else staging,
        "records": end - start,
        "duplicates": 1,
        "runs": [[start, start + 100, end - start]] if end > start else [],
        **more,
    }


@pytest.fixture
def mappings(target: Any) -> Mappings:
    return Mappings(target.bootstrap_servers)


def table_at(spark: SparkSession, path: Path, mappings: Mappings) -> StateTable:
    return StateTable(spark, str(path), config=mappings.config, topic=mappings.topic)


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path, mappings: Mappings) -> StateTable:
    return table_at(spark, tmp_path, mappings)


def folder(table: StateTable) -> Path:
    """Where the state table lies on this disk."""
    return Path(table.state_path.removeprefix("file:"))


def history(table: StateTable) -> list[tuple[int, int]]:
    rows = table.spark.read.format("delta").load(table.history_path).collect()
    return sorted((row.mappings_partition, row.mappings_offset) for row in rows)


def version(table: StateTable) -> int:
    log = Path(folder(table), "_delta_log")
    return max(int(file.stem) for file in log.glob("*.json") if file.stem.isdigit())


def test_a_fold_moves_rows_and_m_in_one_commit_and_history_keeps_every_run(
    table: StateTable, mappings: Mappings
) -> None:
    mappings.write(mapping(0, 3), mapping(0, 0, partition=1))
    table.fold()
    before = version(table)
    elsewhere: dict[str, Any] = {
        "v": 3,
        "routed": [{"topic": "copy.de", "runs": [[5, 0, 2]], "partition": 1}],
    }
    mappings.write(mapping(3, 5, runs=[[3, 103, 1], [4, 110, 1]]), mapping(5, 9, lost=2, **elsewhere))
    mappings.write(mapping(0, 7, partition=2, staging=70), to=1)

    result = table.fold()

    assert version(table) == before + 1
    assert (result.mappings, result.commits) == (3, 1)
    assert result.start == {0: 3, 1: 0} and result.end == {0: 6, 1: 2}  # each transaction ends with a marker
    snapshot = table.load()
    assert snapshot.exists and snapshot.folded == {0: 6, 1: 2} and snapshot.staging == {0: 90, 1: 70}
    state = snapshot.states[KEY]
    assert (state.next, state.records, state.duplicates, state.lost, state.stale) == (9, 9, 3, 2, False)
    assert (state.destination_topic, state.destination_partition, state.mappings_partition) == ("copy", 0, 0)
    assert {key[2]: one.next for key, one in snapshot.states.items()} == {0: 9, 1: 0, 2: 7}
    row = table.spark.read.format("delta").load(table.history_path).where("mappings_offset = 3").first()
    assert row is not None
    assert [tuple(run) for run in row.runs] == [(3, 103, 1), (4, 110, 1)]
    for path in (table.state_path, table.history_path):
        assert "pipeline" not in table.spark.read.format("delta").load(path).columns, "as it always was"


@pytest.mark.whole
def test_a_fold_goes_on_from_a_table_that_an_earlier_version_wrote(
    table: StateTable, mappings: Mappings
) -> None:
    """Promise: version N folds into the tables of version N-1, which get the columns that they lack;
    tests/unit/test_persisted_formats.py says what this one holds."""
    shutil.copytree(GOLDEN / "state-table", folder(table))
    old = f"date date, {SCHEMA}".replace("pipeline bigint, ", "")
    made_table(table.spark, table.history_path, old, HISTORY_PROPERTIES, "date")
    mappings.write(mapping(0, 10))
    mappings.write(*(mapping(0, 5, partition=1) for _ in range(8)), to=1)
    mappings.write(mapping(10, 15, pipeline=3), mapping(15, 20))

    result = table.fold()

    assert (result.start, result.end) == ({0: 2, 1: 9}, {0: 5, 1: 9})
    snapshot = table.load()
    assert (snapshot.folded, snapshot.holes) == ({0: 5, 1: 9}, {1: 5})
    state = snapshot.states[KEY]
    assert (state.next, state.records, state.duplicates) == (20, 20, 3)
    assert {key[2]: of.pipeline for key, of in snapshot.states.items()} == {0: 3, 1: 0}
    rows = table.spark.read.format("delta").load(table.history_path).collect()
    assert sorted((row.start, row.pipeline) for row in rows) == [(10, 3), (15, 0)]
    before = version(table)
    mappings.write(mapping(20, 21, pipeline=4))
    table.fold()
    assert table.load().states[KEY].pipeline == 4 and version(table) == before + 1


def test_a_fold_with_nothing_new_commits_nothing(table: StateTable, mappings: Mappings) -> None:
    mappings.write(mapping(0, 3))
    table.fold()
    before = version(table)
    assert table.fold().commits == 0
    assert version(table) == before


def test_a_missing_table_is_empty_and_a_damaged_one_an_error_that_names_it(
    table: StateTable, mappings: Mappings
) -> None:
    assert table.load() == Snapshot() and not table.load().exists
    mappings.write(mapping(0, 3))
    table.fold()
    log = Path(folder(table), "_delta_log")
    for file in [*log.glob("*.json"), *log.glob("*.crc"), *log.glob(".*.crc")]:
        file.write_text("{ not a commit")
    jvm: Any = table.spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with pytest.raises(StateError, match=table.state_path):
        table.load()
    shutil.rmtree(log)
    with pytest.raises(StateError, match="no Delta log"):
        table.load()
    with pytest.raises(StateError, match="no Delta log"):
        table.fold()


@pytest.mark.parametrize("first_fold", [True, pytest.param(False, marks=pytest.mark.whole)])
def test_a_stale_driver_cannot_write_its_older_fold_over_a_newer_one(
    spark: SparkSession, tmp_path: Path, mappings: Mappings, first_fold: bool
) -> None:
    """A and B read M; A folds; B, which knows nothing of it, must fail; nothing is lost or counted twice."""
    a, b = table_at(spark, tmp_path, mappings), table_at(spark, tmp_path, mappings)
    if not first_fold:
        mappings.write(mapping(0, 1, partition=1))
        a.fold()
    mappings.write(mapping(0, 1))
    of_b = b.begin()
    mappings.write(mapping(0, 4, partition=2))
    a.commit(a.begin())
    wanted = a.load()
    with pytest.raises(StateError):
        b.commit(of_b)
    assert a.load() == wanted and b.load() == wanted
    mappings.write(mapping(1, 2))
    a.fold()
    with pytest.raises(StateError):
        b.commit(of_b)
    result = b.fold()
    assert result.commits == 0
    states = b.load().states
    assert (states[KEY].next, states[KEY].records) == (2, 2) and states[(*KEY[:2], 2)].next == 4
    offsets = history(a)
    assert len(offsets) == len(set(offsets)) == (3 if first_fold else 4)


@pytest.mark.whole
def test_two_drivers_folding_at_once_count_every_mapping_once(
    spark: SparkSession, tmp_path: Path, mappings: Mappings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the file lock too: Delta's own check and the M in the MERGE must hold the line."""
    tables = [table_at(spark, tmp_path, mappings), table_at(spark, tmp_path, mappings)]
    done = threading.Event()
    failures: list[StateError] = []
    finished = 0

    def drive(table: StateTable) -> None:
        nonlocal finished
        while not done.is_set():
            try:
                plan = table.begin()
                moving = {p: o for p, o in plan.end.items() if o > plan.expected[p]}
                if moving:
                    table.commit(FoldPlan(plan.expected, plan.start, moving, {}))
                    finished += 1
            except StateError as error:
                failures.append(error)

    threads = [threading.Thread(target=drive, args=(table,)) for table in tables]
    for thread in threads:
        thread.start()
    try:
        for number in range(12):
            mappings.write(mapping(number, number + 1))
            time.sleep(0.3)
    finally:
        done.set()
        for thread in threads:
            thread.join(120)
    tables[0].fold()
    state = tables[0].load().states[KEY]
    assert (state.next, state.records, state.duplicates) == (12, 12, 12)
    offsets = history(tables[0])
    assert offsets == sorted(set(offsets)) and len(offsets) == 12
    assert finished >= 1 and failures, "the two never met: the test proved nothing"


def test_a_crash_between_history_and_state_leaves_neither_gap_nor_repeat(
    table: StateTable, mappings: Mappings, monkeypatch: pytest.MonkeyPatch
) -> None:
    mappings.write(mapping(0, 3))

    def crash(*_: Any) -> None:
        raise StateError("crash")

    with monkeypatch.context() as patch:
        patch.setattr(table, "_merge_state", crash)
        with pytest.raises(StateError, match="crash"):
            table.fold(attempts=1)
    assert history(table) == [(0, 0)] and not table.load().exists
    mappings.write(mapping(3, 5))
    table.fold()
    assert history(table) == [(0, 0), (0, 2)]
    assert table.load().states[KEY].records == 5


def test_aborted_mappings_are_not_folded_yet_m_passes_them(table: StateTable, mappings: Mappings) -> None:
    mappings.write(mapping(0, 3))
    mappings.write(mapping(3, 8), mapping(0, 9, partition=1), commit=False)
    result = table.fold()
    assert result.mappings == 1 and result.end[0] == 5  # record, marker, two aborted, marker
    assert {key[2]: state.next for key, state in table.load().states.items()} == {0: 3}
    mappings.write(mapping(8, 9), commit=False)
    assert (table.fold().mappings, table.load().folded[0]) == (0, 7)
    mappings.write(mapping(3, 4))
    table.fold()
    assert (table.load().states[KEY].next, table.load().states[KEY].records) == (4, 4)


def test_a_fold_ends_before_a_pending_transaction_and_takes_it_once_it_is_committed(
    table: StateTable, mappings: Mappings
) -> None:
    mappings.write(mapping(0, 3))
    mappings.open(mapping(3, 5))
    assert table.fold().end[0] == 2
    mappings.commit()
    assert table.fold().mappings == 1
    assert table.load().states[KEY].next == 5


def test_a_deleted_table_is_folded_anew_from_the_beginning_and_history_gains_nothing(
    table: StateTable, mappings: Mappings
) -> None:
    mappings.write(mapping(0, 3))
    mappings.write(mapping(3, 5), mapping(0, 2, partition=1))
    table.fold()
    wanted, offsets = table.load(), history(table)
    shutil.rmtree(folder(table))
    assert table.load() == Snapshot()
    assert table.fold().start == {0: 0, 1: 0}
    assert replace(table.load(), updated=wanted.updated) == wanted and history(table) == offsets


@pytest.mark.whole
def test_a_fold_that_began_on_a_table_deleted_meanwhile_fails(table: StateTable, mappings: Mappings) -> None:
    mappings.write(mapping(0, 3))
    table.fold()
    mappings.write(mapping(3, 5))
    plan = table.begin()
    shutil.rmtree(folder(table))
    with pytest.raises(StateError):
        table.commit(plan)
    table.fold()
    assert table.load().states[KEY].records == 5


def test_mappings_lost_before_they_were_folded_leave_a_hole_that_readers_see(
    table: StateTable, mappings: Mappings
) -> None:
    mappings.write(mapping(0, 3), mapping(0, 3, partition=1))
    table.fold()
    mappings.write(mapping(3, 4, partition=1))  # offset 3, never to be folded
    mappings.write(mapping(3, 6))  # offset 5
    mappings.trim(0, 5)

    result = table.fold()

    assert result.holes == {0: 5} and result.end[0] == 7
    snapshot = table.load()
    assert snapshot.holes == {0: 5} and snapshot.folded[0] == 7
    assert {key[2]: (state.next, state.stale) for key, state in snapshot.states.items()} == {
        0: (6, False),  # said again after the hole
        1: (3, True),  # really 4
    }
    mappings.write(mapping(4, 5, partition=1))
    table.fold()
    snapshot = table.load()
    assert snapshot.holes == {0: 5} and not snapshot.states[(*KEY[:2], 1)].stale


def test_a_hole_is_marked_even_when_nothing_is_left_to_fold_or_no_table_was_there(
    table: StateTable, mappings: Mappings
) -> None:
    mappings.write(mapping(0, 3))
    mappings.trim(0, 2)
    table.fold()
    snapshot = table.load()
    assert snapshot.holes == {0: 2} and snapshot.states == {}


def test_a_mappings_topic_that_ends_below_m_is_refused(table: StateTable, mappings: Mappings) -> None:
    mappings.write(mapping(0, 3))
    table.fold()
    other = Mappings(mappings.config["bootstrap.servers"])
    table.topic = other.topic
    with pytest.raises(StateError, match="deleted or cut"):
        table.fold()


def test_a_mapping_that_is_not_understood_stops_the_fold_and_is_named(
    table: StateTable, mappings: Mappings
) -> None:
    mappings.write(mapping(0, 3), mapping(3, 4, v=4))
    with pytest.raises(StateError, match=r"mapping at offset 1 is not understood"):
        table.fold(attempts=1)
    assert not table.load().exists


@pytest.mark.whole
def test_a_long_backlog_is_folded_in_pieces(table: StateTable, mappings: Mappings) -> None:
    for number in range(5):
        mappings.write(mapping(number, number + 1))
    table.max_offsets_per_commit = 4
    result = table.fold()
    assert result.commits == 3 and result.mappings == 5
    assert (table.load().folded[0], table.load().states[KEY].records) == (10, 5)
    assert len(history(table)) == 5


@pytest.mark.whole
def test_maintenance_drops_old_history_and_leaves_the_state_as_it_is(
    table: StateTable, mappings: Mappings
) -> None:
    for number in range(3):
        mappings.write(mapping(number, number + 1))
        table.fold()
    wanted = table.load()
    table.maintain(history_days=1)
    assert table.load() == wanted and len(history(table)) == 3
    table.maintain(history_days=-2)
    assert history(table) == []
    mappings.write(mapping(3, 4))
    table.fold()
    assert table.load().states[KEY].records == 4 and len(history(table)) == 1


def test_the_table_is_read_without_spark_as_spark_reads_it(
    table: StateTable, mappings: Mappings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also over a checkpoint of its log, and after its files were compacted; by Spark where it can't be read
    without."""
    began = time.time()
    jvm: Any = table.spark._jvm
    for number in range(3):
        mappings.write(mapping(number, number + 1), mapping(0, number, partition=number))
        table.fold()
        if number == 1:
            path = jvm.org.apache.hadoop.fs.Path(table.state_path)
            jvm.org.apache.spark.sql.delta.DeltaLog.forTable(table.spark._jsparkSession, path).checkpoint()
    table.maintain(history_days=1)

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return (row["kind"], row["mappings_partition"], row["partition"])

    def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(({**row, "updated": None} for row in rows), key=key)

    with caplog.at_level(logging.INFO):
        assert shown(table._rows()) == shown(table._rows_by_spark())
    assert len(table._rows()) == 4 and "is read by Spark" not in caplog.text

    def unreadable(_: Path) -> list[dict[str, Any]]:
        raise OSError("a feature of another day")

    wanted = table.load()
    assert wanted.updated is not None and began - 1 <= wanted.updated <= time.time() + 1
    monkeypatch.setattr(local_reader, "rows", unreadable)
    with caplog.at_level(logging.INFO):
        assert table.load() == wanted
    assert "is read by Spark: a feature of another day" in caplog.text


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "FIRST_S", 0.1)
    monkeypatch.setattr(folding, "LOOK_S", 0.5)


def test_who_leads_folds_when_it_is_due_and_a_fold_that_fails_is_made_up_for(
    table: StateTable, mappings: Mappings, at_once: None, caplog: pytest.LogCaptureFixture
) -> None:
    mappings.write(mapping(0, 1))
    folder(table).mkdir(parents=True)
    Path(folder(table), "lost.parquet").touch()
    due, folded = threading.Event(), queue.Queue[FoldResult]()
    failed = threading.Event()
    with closing(Folding(table, due.is_set, folded.put, failed.set)):
        time.sleep(1.5)
        assert not caplog.records and not failed.is_set(), "it was not due"
        due.set()
        give_up = time.monotonic() + 60
        while "no Delta log" not in caplog.text:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        assert folded.empty() and failed.is_set()
        shutil.rmtree(folder(table))
        mappings.write(mapping(1, 2))
        assert folded.get(timeout=60).commits == 1
    assert table.load().states[KEY].records == 2
    mappings.write(mapping(2, 3))
    time.sleep(1.5)
    while not folded.empty():
        assert folded.get().commits == 0
    assert table.load().states[KEY].records == 2, "nobody leads"
    table.fold()
    assert table.load().states[KEY].records == 3 and len(history(table)) == 3


def test_a_fold_that_is_under_way_is_broken_off_by_a_leader_that_stops(
    table: StateTable,
    mappings: Mappings,
    at_once: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Promise: an instance stops within its seconds, whatever is folded; nothing is half done by that, and
    nobody is told of a failure."""
    mappings.write(mapping(0, 1))
    began = threading.Event()

    def for_long(self: StateTable, frame: Any, _: Any) -> None:
        began.set()
        frame.sparkSession.range(2, numPartitions=1).selectExpr(
            "java_method('java.lang.Thread', 'sleep', id * 0 + 60000L)"
        ).collect()

    monkeypatch.setattr(StateTable, "_append_history", for_long)
    failed = threading.Event()
    with closing(Folding(table, lambda: True, lambda _: None, failed.set)):
        assert began.wait(60)
        time.sleep(0.5)
        stopped = time.monotonic()
    assert time.monotonic() - stopped < folding.STOP_S
    monkeypatch.undo()
    assert not table.load().exists and not caplog.records and not failed.is_set()
    assert table.fold().commits == 1


def test_plans_hide_the_clients_secrets(
    spark: SparkSession, mappings: Mappings, capfd: pytest.CaptureFixture[str]
) -> None:
    config = {**mappings.config, "sasl.password": "swordfish"}
    frame = (
        spark.read.format("mappings")
        .options(**options(config, mappings.topic), **range_options({0: 0}, {0: 0}))
        .load()
    )
    frame.explain("extended")
    frame.explain("formatted")
    shown = capfd.readouterr().out + frame._jdf.queryExecution().toString()
    assert "mappings_offset" in shown
    assert "swordfish" not in shown, f"{CONFIG_OPTION} is shown"
