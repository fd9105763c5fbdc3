"""Two instances of each application, killed, restarted and paused in turn: one works, one stands by.

The default is one round, which CI runs; `VERBATIM_ROUNDS=6 uv run pytest tests/faults/test_standby.py` takes
some minutes.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

from tests.conftest import Kafka, Names
from tests.faults.processes import Load, Process, assert_equal, assert_mapped, environment
from tests.faults.test_kill import PARTITIONS, SEED, TOPIC, await_delivery, delivered
from tests.support.brokers import create_topic, read_all

ROUNDS = int(os.environ.get("VERBATIM_ROUNDS", "1"))
PAUSE_S = 12.0
"""Twice the session time-out of the election."""


def control_records(target: str, link: str) -> list[bytes]:
    return [r.value or b"" for r in read_all(target, f"{link}.control")[0]]


@pytest.mark.timeout(1800)
def test_one_of_two_instances_works_whatever_happens_to_either(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    """Promise: a standby takes over within seconds, a paused leader that wakes does no harm, and nobody
    fences anybody for ever. What they say meanwhile, in JSON, can be read line by line."""
    rng = random.Random(SEED)
    topic = names.topic("standby")
    s, t = source.bootstrap_servers, target.bootstrap_servers
    create_topic(s, topic, PARTITIONS, TOPIC)
    variables = environment(s, t, names.link, topic, tmp_path, LOG_FORMAT="json")

    def start(name: str, number: int) -> Process:
        return Process(name, variables, tmp_path / f"{name}{number}.log")

    running = [[start(name, n) for n in range(2)] for name in ("replicator", "deduplicator")]
    load = Load(s, topic, PARTITIONS, SEED, per_second=500)
    try:
        await_delivery(t, topic, 1)
        for _ in range(ROUNDS):
            for kind, name in enumerate(("replicator", "deduplicator")):
                victim = rng.randrange(2)
                if rng.random() < 0.5:
                    running[kind][victim].kill()
                    running[kind][victim] = start(name, victim)
                # Pause the other one past its session, whichever leads; then it wakes among its successors.
                other = running[kind][1 - victim]
                other.pause()
                time.sleep(PAUSE_S)
                other.resume()
                before = delivered(t, topic)
                await_delivery(t, topic, before + 1, 90)
        written = load.stop()
        await_delivery(t, topic, written)
        assert assert_equal(s, t, topic) == written
        assert_mapped(s, t, topic, f"{names.link}.offset-mappings")
        # Once things are quiet, nobody takes over from anybody any more: no war.
        leaders = [r for r in control_records(t, names.link) if b'"leader"' in r]
        time.sleep(10)
        assert [r for r in control_records(t, names.link) if b'"leader"' in r] == leaders
        assert [p.terminate() for pair in running for p in pair] == [0, 0, 0, 0]
        for log in tmp_path.glob("*.log"):
            told = [json.loads(line) for line in log.read_text().splitlines()]
            assert all({"time", "level", "logger", "message"} <= one.keys() for one in told), log
            # What a process of pyspark's says itself, which a busy machine keeps from starting, is not ours.
            ours = [one for one in told if one["logger"] != "stderr"]
            assert ours and not any("Traceback" in one.get("exception", "") + one["message"] for one in ours)
    finally:
        for pair in running:
            for process in pair:
                process.end()
