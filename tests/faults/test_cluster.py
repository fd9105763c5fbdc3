"""On a Spark standalone cluster: a master and two workers on this machine, not only local threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bench.standalone import standalone
from tests.conftest import Kafka, Names
from tests.faults.processes import Load, Process, assert_equal, assert_mapped, environment
from tests.faults.rounds.proxy import wait_for
from tests.faults.test_kill import PARTITIONS, SEED, TOPIC, await_delivery
from tests.support.brokers import create_topic
from verbatim.local.applications import Application

Cluster = tuple[str, dict[str, Application]]
"""The master's URL, and the master and its workers."""


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A standalone master with two workers of two cores, or as many as a test asks for, which take nobody
    without their secret."""
    conf = {
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.authenticate.secret": "s3cret",
    }
    url, daemons = standalone(tmp_path, workers=2, cores=getattr(request, "param", 2), memory="2g", conf=conf)
    try:
        for daemon in daemons.values():
            daemon.start()
        # Else one that comes first gets all executors. By their own logs: the master's names one as well that
        # asks before it leads, and is taken only when it asks again.
        logs = [tmp_path / f"{name}.log" for name in daemons if name != "master"]
        assert wait_for(lambda: all("Successfully registered" in log.read_text() for log in logs), 120)
        yield url, daemons
    finally:
        for daemon in daemons.values():
            daemon.kill()


def applications(
    source: str,
    target: str,
    names: Names,
    topic: str,
    folder: Path,
    cluster: Cluster,
    clients: Path,
    **settings: str,
) -> list[Process]:
    """Both applications, started, on two executors of one core each: one core of each worker for each of
    them."""
    variables = environment(source, target, names.link, topic, folder, **settings) | {
        "KAFKA_CLUSTERS_SOURCE_CLIENT_CONFIG": str(clients),
        "KAFKA_CLUSTERS_DESTINATION_CLIENT_CONFIG": str(clients),
    }
    return [started(name, variables, folder, cluster, cores=2) for name in ("replicator", "deduplicator")]


def started(name: str, variables: dict[str, str], folder: Path, cluster: Cluster, cores: int) -> Process:
    """An application on so many executors of one core each."""
    properties = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": str(cores),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    conf = [word for key, value in properties.items() for word in ("--conf", f"{key}={value}")]
    of_spark = {
        "SPARK_MASTER": cluster[0],
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(folder / "conf"),
    }
    return Process(name, variables | of_spark, folder / f"{name}.log", *conf)


def told(process: Process, words: str) -> bool:
    return words in process.said()


@pytest.mark.timeout(600)
def test_lanes_run_on_the_executors_of_a_standalone_cluster(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, cluster: Cluster
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
    running = applications(s, t, names, topic, tmp_path, cluster, clients, PARALLELISM="1")
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


@pytest.mark.timeout(600)
def test_lanes_follow_executors_that_go_and_come(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, cluster: Cluster
) -> None:
    """Promise: when a machine is lost for good, the partitions of its lanes are copied by those that are
    left; when there is another one, it is used. Neither takes a restart."""
    topic = names.topic("follow")
    s, t = source.bootstrap_servers, target.bootstrap_servers
    create_topic(s, topic, PARTITIONS, TOPIC)
    (clients := tmp_path / "clients.properties").touch()
    replicator, deduplicator = applications(s, t, names, topic, tmp_path, cluster, clients)
    lost = cluster[1]["worker-2"]
    load = Load(s, topic, PARTITIONS, SEED)
    try:
        await_delivery(t, topic, 1, 180)
        assert "2 lanes" in replicator.said()
        lost.kill()
        assert wait_for(lambda: "1 lanes from the next epoch on: 1 slots" in replicator.said(), 180)
        await_delivery(t, topic, load.written + 1)
        lost.start()
        assert wait_for(lambda: "2 lanes from the next epoch on: 2 slots" in replicator.said(), 180)
        await_delivery(t, topic, load.written + 1)
        written = load.stop()
        await_delivery(t, topic, written)
        assert assert_equal(s, t, topic) == written
        assert_mapped(s, t, topic, f"{names.link}.offset-mappings")
        assert [process.terminate() for process in (replicator, deduplicator)] == [0, 0]
    except BaseException:
        print(replicator.said()[-4000:], deduplicator.said()[-3000:], sep="\n")
        raise
    finally:
        for process in (replicator, deduplicator):
            process.end()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_links_of_a_folder_share_the_executors_of_a_cluster(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, cluster: Cluster
) -> None:
    """Promise: of three links on slots for two, the last waits and says so, and has the slot of the first
    that goes; whatever a lost worker takes along, each link is as exact as elsewhere."""
    s, t = source.bootstrap_servers, target.bootstrap_servers
    topics = [names.topic(name) for name in ("one", "two", "three")]
    variables = environment(s, t, names.link, "", tmp_path, LINKS=str(links := tmp_path / "links"))
    for of_link in ("APPLICATION_NAME", "KAFKA_CLUSTERS_SOURCE_TOPIC"):
        del variables[of_link]
    links.mkdir()
    for topic in topics:
        create_topic(s, topic, PARTITIONS, TOPIC)
        (links / f"{topic}.yaml").write_text(f"KAFKA_CLUSTERS_SOURCE_TOPIC: {topic}\n")
    # Those whose files come first by their names have slots.
    first, second, last = sorted(topics)
    # The deduplicator has a slot more than lanes.
    running = [
        started(name, variables, tmp_path, cluster, cores)
        for name, cores in (("replicator", 2), ("deduplicator", 3))
    ]
    loads = {topic: Load(s, topic, PARTITIONS, SEED) for topic in topics}
    lost = cluster[1]["worker-2"]
    try:
        for topic in (first, second):
            await_delivery(t, topic, 1, 240)
        for process in running:
            assert wait_for(partial(told, process, "slots for 2 of 3 links"), 60)
        copied = loads[first].stop()
        await_delivery(t, first, copied)
        (links / f"{first}.yaml").unlink()
        await_delivery(t, last, 1, 180)
        lost.kill()
        lost.start()
        for topic in (second, last):
            await_delivery(t, topic, loads[topic].written + 1, 180)
            copied = loads[topic].stop()
            await_delivery(t, topic, copied)
        for topic in topics:
            assert assert_equal(s, t, topic) == loads[topic].written
            assert_mapped(s, t, topic, f"{topic}.offset-mappings")
        assert [process.terminate() for process in running] == [0, 0]
    except BaseException:
        print(*(process.said()[-4000:] for process in running), sep="\n")
        raise
    finally:
        for process in running:
            process.end()
