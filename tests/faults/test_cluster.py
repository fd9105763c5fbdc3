"""On a Spark standalone cluster: a master and two workers on this machine, not only local threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.brokers import create_topic
from tests.conftest import Kafka, Names
from tests.faults.processes import Load, Process, assert_equal, assert_mapped, environment
from tests.faults.test_kill import PARTITIONS, SEED, TOPIC, await_delivery
from verbatim.processes import free_ports

SPARK = Path(pyspark.__file__).parent


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a standalone master with two workers of two cores."""
    port, web, *worker_ports = free_ports(6)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
    variables = {
        **kept,
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    log = (tmp_path / "spark.log").open("wb")

    def daemon(*arguments: str) -> subprocess.Popen[bytes]:
        command = [str(SPARK / "bin" / "spark-class"), *arguments]
        return subprocess.Popen(
            command, env=variables, stdout=log, stderr=log, cwd=tmp_path, start_new_session=True
        )

    daemons = [
        daemon(
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            str(web),
        )
    ]
    url = f"spark://127.0.0.1:{port}"
    for own, page in zip(worker_ports[::2], worker_ports[1::2], strict=True):
        daemons.append(
            daemon(
                "org.apache.spark.deploy.worker.Worker",
                *("--host", "127.0.0.1", "--port", str(own), "--webui-port", str(page)),
                *("--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / f"work{own}")),
                url,
            )
        )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=2) as answer:
                    if answer.read().count(b"ALIVE") >= 3:  # the master and both workers
                        break
            except OSError:
                pass
            assert time.monotonic() < deadline, (tmp_path / "spark.log").read_text()[-2000:]
            time.sleep(0.5)
        yield url
    finally:
        for process in daemons:
            os.killpg(process.pid, signal.SIGTERM)
        for process in daemons:
            process.wait(20)


@pytest.mark.timeout(600)
def test_lanes_run_on_the_executors_of_a_standalone_cluster(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, master: str
) -> None:
    """Promise: with a cluster for a master, lanes run on its executors, and what they copy is as exact as elsewhere."""
    topic = names.topic("cluster")
    s, t = source.bootstrap_servers, target.bootstrap_servers
    create_topic(s, topic, PARTITIONS, TOPIC)
    variables = environment(
        s, t, names.link, topic, tmp_path, SPARK_MASTER=master, PARALLELISM="1", PYSPARK_PYTHON=sys.executable
    )
    # Two executors of two cores in all: one core of each worker for each application.
    conf = [
        "--conf",
        "spark.executor.memory=512m",
        "--conf",
        "spark.executor.cores=1",
        "--conf",
        "spark.cores.max=2",
    ]
    conf += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    running = [
        Process(name, variables, tmp_path / f"{name}.log", *conf) for name in ("replicator", "deduplicator")
    ]
    load = Load(s, topic, PARTITIONS, SEED)
    try:
        await_delivery(t, topic, 1, 180)
        executors = [p for work in tmp_path.glob("work*") for p in work.glob("app-*/*")]
        assert len(executors) >= 2, "no executor was started"
        written = load.stop()
        await_delivery(t, topic, written)
        assert assert_equal(s, t, topic) == written
        assert_mapped(s, t, topic, f"{names.link}.offset-mappings")
        assert [process.terminate() for process in running] == [0, 0]
    except BaseException:
        print(*(process.said()[-3000:] for process in running), sep="\n")
        raise
    finally:
        for process in running:
            process.end()
