"""On a Spark standalone cluster: a master and two workers on this machine, not only local threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.standalone import standalone
from tests.conftest import Kafka, Names
from tests.faults.processes import Load, Process, assert_equal, assert_mapped, environment
from tests.faults.test_kill import PARTITIONS, SEED, TOPIC, await_delivery
from tests.support.brokers import create_topic


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a standalone master with two workers of two cores, which take nobody without their
    secret."""
    conf = {
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.authenticate.secret": "s3cret",
    }
    url, daemons = standalone(tmp_path, workers=2, cores=2, memory="1g", conf=conf)
    try:
        for daemon in daemons.values():
            daemon.start()
        yield url
    finally:
        for daemon in daemons.values():
            daemon.kill()


@pytest.mark.timeout(600)
def test_lanes_run_on_the_executors_of_a_standalone_cluster(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, master: str
) -> None:
    """Promise: with a cluster for a master, lanes run on its executors, and what they copy is as exact as
    elsewhere. Spark's processes prove to each other who they are, and lanes read the clients' secrets, which
    no plan has, from the file that the settings name."""
    topic = names.topic("cluster")
    s, t = source.bootstrap_servers, target.bootstrap_servers
    create_topic(s, topic, PARTITIONS, TOPIC)
    clients = tmp_path / "clients.properties"
    # No broker here asks for it; a lane that does not find it ends the application.
    clients.write_text("ssl.key.password=hidden\n")
    variables = environment(
        s, t, names.link, topic, tmp_path, SPARK_MASTER=master, PARALLELISM="1", PYSPARK_PYTHON=sys.executable
    ) | {
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
        "KAFKA_CLUSTERS_SOURCE_CLIENT_CONFIG": str(clients),
        "KAFKA_CLUSTERS_DESTINATION_CLIENT_CONFIG": str(clients),
    }
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
        executors = [p for work in tmp_path.glob("worker-?") for p in work.glob("app-*/*")]
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
