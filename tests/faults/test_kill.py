"""kill -9 under load, with real processes on real brokers. VERBATIM_KILLS and VERBATIM_SEED set how often and
which.

The default is short; `VERBATIM_KILLS=10 uv run pytest tests/faults` is the whole of it.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Kafka, Names
from tests.faults.processes import Load, Process, assert_equal, assert_mapped, environment, forget_positions
from tests.support.brokers import create_topic, delete_records, end_offsets, read_all, topics

KILLS = int(os.environ.get("VERBATIM_KILLS", "2"))
SEED = int(os.environ.get("VERBATIM_SEED", "1"))
PARTITIONS = 3
TOPIC = {"retention.ms": "-1"}


def delivered(target: str, topic: str) -> int:
    """Offsets at the destination, markers included: they tell that something moves, at little cost."""
    return sum(end_offsets(target, topic).values()) if topic in topics(target) else 0


def await_delivery(target: str, topic: str, records: int, timeout_s: float = 180.0) -> None:
    """Wait until so many records can be read, or more."""
    deadline = time.monotonic() + timeout_s
    found = 0
    while True:
        if (
            delivered(target, topic) >= records
            and (found := sum(map(len, read_all(target, topic)))) >= records
        ):
            return
        assert time.monotonic() < deadline, f"{found} of {records} records delivered in {timeout_s} s"
        time.sleep(1)


def kill_under_load(
    source: Kafka,
    target: Kafka,
    names: Names,
    folder: Path,
    between: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Kill both applications in turn while records arrive; `between` does further harm while one is down."""
    rng = random.Random(SEED)
    topic = names.topic("kill")
    s, t = source.bootstrap_servers, target.bootstrap_servers
    create_topic(s, topic, PARTITIONS, TOPIC)
    variables = environment(s, t, names.link, topic, folder)
    running = {
        name: Process(name, variables, folder / f"{name}.log") for name in ("replicator", "deduplicator")
    }
    load = Load(s, topic, PARTITIONS, SEED)
    try:
        for number in range(KILLS):
            for name in ("replicator", "deduplicator"):
                # The first kill waits until records flow, so that it hits something.
                before = delivered(t, topic)
                deadline = time.monotonic() + 120
                while delivered(t, topic) <= before and time.monotonic() < deadline:
                    time.sleep(0.5)
                assert time.monotonic() < deadline, (
                    f"nothing is delivered after kill {number}\n" + running[name].said()[-3000:]
                )
                time.sleep(rng.uniform(0, 1.5))
                running[name].kill(everything=rng.random() < 0.7)
                between(folder)
                running[name] = Process(name, variables, folder / f"{name}.log")
        written = load.stop()
        await_delivery(t, topic, written)
        assert assert_equal(s, t, topic) == written
        assert_mapped(s, t, topic, f"{names.link}.offset-mappings")
        assert [process.terminate() for process in running.values()] == [0, 0]
    finally:
        for process in running.values():
            process.end()


@pytest.mark.timeout(1800)
def test_kill_nine_loses_nothing_and_repeats_nothing(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    """Promise: whatever is killed and however often, each record arrives once, in order, and its mapping is
    exact."""
    kill_under_load(source, target, names, tmp_path)


@pytest.mark.timeout(1800)
def test_delta_tables_may_vanish(source: Kafka, target: Kafka, names: Names, tmp_path: Path) -> None:
    """Promise: while the mappings are there, the Delta tables hold nothing that is needed."""

    def harm(folder: Path) -> None:
        # Nothing of the killed one is in use; what the other one has open it has in memory or makes anew.
        shutil.rmtree(folder / "state", ignore_errors=True)

    kill_under_load(source, target, names, tmp_path, harm)


@pytest.mark.timeout(600)
def test_the_delta_table_alone_suffices_and_is_needed_once_the_mappings_are_cut(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    """Promise: with the mappings trimmed, the table says what was delivered; without both, partitions halt
    and nothing is guessed."""
    topic = names.topic("cut")
    s, t = source.bootstrap_servers, target.bootstrap_servers
    create_topic(s, topic, PARTITIONS, TOPIC)
    load = Load(s, topic, PARTITIONS, SEED)
    time.sleep(3)
    written = load.stop()
    variables = environment(s, t, names.link, topic, tmp_path)

    def run(name: str) -> int:
        process = Process(name, variables, tmp_path / f"{name}.log", "--until-caught-up")
        try:
            return process.wait(150)
        finally:
            process.end()

    assert run("replicator") == 0
    assert run("deduplicator") == 0
    assert assert_equal(s, t, topic) == written

    # Everything again into staging, and no mapping left: only the table can tell that all of it is there
    # already.
    mappings = f"{names.link}.offset-mappings"
    forget_positions(t, f"{names.link}.positions")
    assert run("replicator") == 0
    delete_records(t, mappings, end_offsets(t, mappings, "read_uncommitted"))
    assert run("deduplicator") == 0
    assert assert_equal(s, t, topic) == written

    # The same without the table: nobody knows, so nothing may be delivered.
    forget_positions(t, f"{names.link}.positions")
    shutil.rmtree(tmp_path / "state")
    delete_records(t, mappings, end_offsets(t, mappings, "read_uncommitted"))
    assert run("replicator") == 0
    assert run("deduplicator") == 3
    assert assert_equal(s, t, topic) == written
    assert "accept-loss" in (tmp_path / "deduplicator.log").read_text()
