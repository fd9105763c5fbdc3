"""The jobs that run the lanes, on Spark itself; no broker. What lanes do is left out: these only say what
they were given."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from common.errors import VerbatimError
from common.spark.lane_jobs import STOP_S, LaneJobs, Progress, first_line, rehearse
from common.spark.lane_task import Plan
from common.spark.session import build_session, jvm_ended, stop_session
from common.spark.usage import Usage, usage
from tests.support import lane_memory
from tests.support.brokers import wait_until

PLAN: Plan = {"term": 3, "epoch": 0}
IMPORTED = time.time()
"""In a lane's Python process: when it imported what the lane runs."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    settings = SimpleNamespace(
        application_name="test",
        log_format="text",
        spark_master="local[2]",
        state_path=".",
        spark_conf={},
        parallelism=None,
    )
    session = build_session(
        settings,  # type: ignore[arg-type]
        lanes=2,
        extra_slots=0,
        delta=False,
        worker_imports="replicator.lane.lane",
    )
    sockets = Path(str(session.conf.get("spark.python.unix.domain.socket.dir")))
    assert sockets.is_dir()
    yield session
    stop_session(session)
    assert not sockets.exists()


def tell(plan: Plan) -> Iterator[str]:
    if plan.get("fails"):
        raise ValueError("a lane that fails")
    yield json.dumps({"epoch": plan["epoch"], "lane": plan["lane"], "again": plan["again"]})


def tell_imports(plan: Plan) -> Iterator[str]:
    ahead = (
        all(name in sys.modules for name in ("pyarrow", "replicator.lane.lane")) and gc.get_freeze_count() > 0
    )
    yield json.dumps({"at": IMPORTED, "ahead": ahead})


def tell_sockets(plan: Plan) -> Iterator[str]:
    sockets = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as found:
            sockets.append(found.family.name)
    yield json.dumps(sockets)


@pytest.mark.skipif(not os.path.isfile("/proc/self/smaps_rollup"), reason="no /proc tells what is whose")
def test_a_lane_begins_with_little_memory_of_its_own(spark: SparkSession) -> None:
    """Promise: what lanes import they share, so that many links fit into one process' memory."""
    # The first of these tests: others would have their own modules in these processes.
    epochs: queue.Queue[list[Progress]] = queue.Queue()
    with contextlib.closing(LaneJobs(spark, "test", lane_memory.tell, epochs.put)) as lanes:
        lanes.submit([PLAN] * 2)
        found = [json.loads(row.said) for row in epochs.get(timeout=60)]
    assert len(found) == 2
    assert all(one["own_mb"] < 10 for one in found), [one["own_mb"] for one in found]
    assert all("pydantic" not in one["modules"] for one in found)


def test_after_a_rehearsal_lanes_find_processes_that_have_imported_all(spark: SparkSession) -> None:
    rehearsal = rehearse(spark, "rehearsal", tell_imports, 2)
    rehearsal.join(60)
    assert not rehearsal.is_alive()
    began = time.time()
    epochs: queue.Queue[list[Progress]] = queue.Queue()
    lanes = LaneJobs(spark, "test", tell_imports, epochs.put)
    try:
        found = []
        for _ in range(3):
            lanes.submit([PLAN] * 2)
            found += [json.loads(row.said) for row in epochs.get(timeout=60)]
    finally:
        lanes.close()
    assert len(found) == 6
    assert all(body["ahead"] for body in found)
    assert all(body["at"] < began for body in found)


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="without /proc a process can't list its sockets"
)
def test_spark_tells_lanes_their_plans_through_unix_sockets(spark: SparkSession) -> None:
    """Promise: no lane waits at an epoch's beginning for an acknowledgement that TCP delays by 40 ms."""
    epochs: queue.Queue[list[Progress]] = queue.Queue()
    with contextlib.closing(LaneJobs(spark, "test", tell_sockets, epochs.put)) as lanes:
        lanes.submit([PLAN] * 2)
        for row in epochs.get(timeout=60):
            families = json.loads(row.said)
            assert families, "spoken to by nobody"
            assert set(families) == {"AF_UNIX"}


def test_a_rehearsal_whose_session_ends_says_nothing(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(LaneJobs, "submit", lambda *_: spark.table("no such table"))
    rehearse(spark, "rehearsal", tell_imports, 2).join(60)
    assert not caplog.records


def wait_for_failure(lanes: LaneJobs) -> None:
    wait_until(lambda: not lanes.active, "the failure", 60)


def test_each_epoch_runs_its_lanes_once_and_after_one_that_failed_there_are_others(
    spark: SparkSession,
) -> None:
    epochs: queue.Queue[list[Progress]] = queue.Queue()

    def run(epoch: int) -> list[dict[str, Any]]:
        lanes.submit([PLAN | {"epoch": epoch, "lane": lane} for lane in range(2)])
        rows = epochs.get(timeout=60)
        assert {(row.term, row.epoch) for row in rows} == {(PLAN["term"], epoch)}
        return sorted((json.loads(row.said) for row in rows), key=lambda body: int(body["lane"]))

    lanes = LaneJobs(spark, "test", tell, epochs.put)
    try:
        for epoch in range(4):
            assert run(epoch) == [{"epoch": epoch, "lane": lane, "again": False} for lane in range(2)]
        lanes.submit([PLAN | {"fails": True}, PLAN | {"lane": 1}])
        wait_for_failure(lanes)
        assert first_line(lanes.failure()) == "ValueError: a lane that fails"
        assert "\tat " not in (lanes.failure() or "")
        assert run(9) == [{"epoch": 9, "lane": lane, "again": False} for lane in range(2)]
        assert lanes.active and epochs.empty()
    finally:
        lanes.close()


def wait_to_be_ended(plan: Plan) -> Iterator[str]:
    Path(plan["began"]).write_text(str(os.getpid()))
    time.sleep(60)
    yield "ended"


def test_lanes_that_do_not_end_are_ended_by_force(spark: SparkSession, tmp_path: Path) -> None:
    """Promise: a deposed leader whose lanes do not end in time leaves nothing that runs, and nobody takes
    that for a failure."""
    ended: list[list[Progress]] = []
    began = tmp_path / "began"
    with contextlib.closing(LaneJobs(spark, "test", wait_to_be_ended, ended.append)) as lanes:
        lanes.submit([PLAN | {"began": str(began)}])
        pid = wait_until(lambda: began.exists() and began.read_text(), "the lane", 60)
        closed = time.monotonic()
    left = closed + STOP_S - time.monotonic()
    assert left > 0
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the lane's process to end", left)
    assert lanes.active and not ended
    # Spark's listener counts tasks behind what happens.
    wait_until(lambda: usage(spark) == Usage(2, 1, 0), "no task to run")


def freeze(plan: Plan) -> Iterator[str]:
    if "began" in plan:
        Path(plan["began"]).write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    yield "ended"


def test_lanes_of_which_one_is_frozen_are_given_up_and_the_next_ones_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Promise: a process that answers nobody, not even SIGTERM, is killed with its epoch, which has failed
    for the reason given, whatever Spark says of it; its place is free."""
    ended: queue.SimpleQueue[list[Progress]] = queue.SimpleQueue()
    began = tmp_path / "began"
    with contextlib.closing(LaneJobs(spark, "test", freeze, ended.put)) as lanes:
        lanes.submit([PLAN | {"began": str(began)}, PLAN])
        pid = wait_until(lambda: began.exists() and began.read_text(), "the lane", 60)
        lanes.give_up("lane 0 hangs")
        assert not lanes.active and lanes.failure() == "lane 0 hangs"
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the lane's process to end", STOP_S)
        lanes.submit([PLAN, PLAN])
        assert len(ended.get(timeout=60)) == 2
        assert lanes.active


def test_what_spark_fails_to_tidy_up_as_it_stops_is_no_error_line(spark: SparkSession) -> None:
    """Promise: a driver with executors on Kubernetes ends without `ERROR Utils: Uncaught exception`, which is
    what Spark logs of each step of its stop that failed, and goes on; other errors of the same logger are
    told."""
    log4j = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    found = (
        log4j.LogManager.getContext(False).getConfiguration().getLoggerConfig("org.apache.spark.util.Utils")
    )

    def told(message: str) -> str:
        event = log4j.core.impl.Log4jLogEvent.newBuilder()
        event.setMessage(log4j.message.SimpleMessage(message))
        return str(found.getFilter().filter(event.build()))

    assert told("Uncaught exception in thread shutdown-hook-0") == "DENY"
    assert told("Aborting task") == "NEUTRAL"


def test_a_jvm_that_runs_out_of_memory_ends_and_that_is_told(spark: SparkSession) -> None:
    """Promise: one line, and no driver that hangs on a JVM which has lost threads. The last of these tests:
    nothing of Spark is left."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    with pytest.raises(
        (Py4JError, ConnectionError)
    ):  # by whether its last connection broke or none could be made
        gateway.new_array(gateway.jvm.long, 10**8)
    assert str(jvm_ended()).startswith("Spark's JVM ran out of memory")
    lanes = LaneJobs(spark, "test", tell, lambda _: None)
    lanes.submit([PLAN])
    with pytest.raises(VerbatimError, match="^Spark's JVM ran out of memory"):
        wait_for_failure(lanes)
