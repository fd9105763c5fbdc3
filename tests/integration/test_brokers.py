"""The local clusters that every other integration test stands on: they are Kafka, and being hurt loses them
nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaException
from confluent_kafka.admin import AdminClient

from common.spark import class_archive
from tests.conftest import Kafka, Names
from tests.support.brokers import (
    Record,
    Seen,
    create_topic,
    delete_records,
    delete_topic,
    end_offsets,
    produce,
    read_all,
    start_offsets,
    topics,
    wait_until,
)
from verbatim.local import kafka_cluster
from verbatim.local.kafka_cluster import BrokerError, Cluster

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node of this module's own, which tests may kill as long as they bring it back."""
    one = Cluster(data_folder=tmp_path_factory.mktemp("kafka")).start()
    yield one
    one.stop()


def values(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[list[bytes | None]]:
    return [[record.value for record in part] for part in read_all(bootstrap, topic, isolation)]


def cluster_id(bootstrap: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return str(admin.describe_cluster(request_timeout=10).result(10).cluster_id)


def process_is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie that init has yet to collect counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_source_and_target_are_two_clusters(source: Kafka, target: Kafka, names: Names) -> None:
    """Source and target share nothing: each has its own cluster id, and a topic of one is not in the
    other."""
    name = names.topic()
    create_topic(source.bootstrap_servers, name)
    assert cluster_id(source.bootstrap_servers) != cluster_id(target.bootstrap_servers)
    assert name in topics(source.bootstrap_servers)
    assert name not in topics(target.bootstrap_servers)


def test_records_come_back_word_for_word(source: Kafka, names: Names) -> None:
    """What is written is read back unchanged: partition, order, null and empty, repeated headers,
    timestamp."""
    name = names.topic()
    # Records of 2023 are older than what retention keeps by default.
    create_topic(source.bootstrap_servers, name, partitions=2, config={"retention.ms": "-1"})
    headers = [("a", b"1"), ("a", None), ("", b"")]
    written = [
        Record(b"first", b"k", 1, 1_700_000_000_001, headers),
        Record(None, b"", 1, 1_700_000_000_000),
        Record(b"", None, 1, 1_700_000_000_002),
    ]
    assert produce(source.bootstrap_servers, name, written) == [0, 1, 2]
    assert read_all(source.bootstrap_servers, name) == [
        [],
        [
            Seen(0, b"k", b"first", headers, TIMESTAMP_CREATE_TIME, 1_700_000_000_001),
            Seen(1, b"", None, None, TIMESTAMP_CREATE_TIME, 1_700_000_000_000),
            Seen(2, None, b"", None, TIMESTAMP_CREATE_TIME, 1_700_000_000_002),
        ],
    ]


def test_aborted_records_are_read_only_uncommitted(source: Kafka, names: Names) -> None:
    """A committed reader sees no aborted record, yet each of them, and each marker, takes up an offset."""
    name = names.topic()
    bootstrap = source.bootstrap_servers
    create_topic(bootstrap, name)
    produce(bootstrap, name, [Record(b"gone")], "abort", names.link)
    assert produce(bootstrap, name, [Record(b"kept")], "commit", names.link) == [2]
    produce(bootstrap, name, [Record(b"gone too")], "abort", names.link)
    assert values(bootstrap, name) == [[b"kept"]]
    assert values(bootstrap, name, "read_uncommitted") == [[b"gone", b"kept", b"gone too"]]
    assert end_offsets(bootstrap, name) == {0: 6}


def test_deleted_topic_comes_back_as_another(source: Kafka, names: Names) -> None:
    """After delete_topic the name is free at once, and a topic made under it is empty and has another id."""
    name = names.topic()
    bootstrap = source.bootstrap_servers
    first = create_topic(bootstrap, name)
    produce(bootstrap, name, [Record(b"old")])
    delete_topic(bootstrap, name)
    assert create_topic(bootstrap, name) != first
    assert values(bootstrap, name) == [[]]


def test_deleted_records_move_the_log_start(source: Kafka, names: Names) -> None:
    """delete_records takes exactly the records below the offset, of that partition alone."""
    name = names.topic()
    bootstrap = source.bootstrap_servers
    create_topic(bootstrap, name, partitions=2)
    produce(bootstrap, name, [Record(b"%d" % n, partition=p) for p in range(2) for n in range(5)])
    delete_records(bootstrap, name, {1: 3})
    assert start_offsets(bootstrap, name) == {0: 0, 1: 3}
    assert values(bootstrap, name)[1] == [b"3", b"4"]


def test_unknown_topics_are_not_made_by_asking(source: Kafka, names: Names) -> None:
    """A mistaken name is an error, not a new topic."""
    name = names.topic()
    with pytest.raises(KafkaException):
        produce(source.bootstrap_servers, name, [Record(b"x")], config={"message.timeout.ms": 3000})
    assert name not in topics(source.bootstrap_servers)


def test_killed_broker_comes_back_with_port_and_records(cluster: Cluster, names: Names) -> None:
    """A broker killed without warning comes back at its address, with every acknowledged record."""
    name, before = names.topic(), cluster.bootstrap_servers
    create_topic(before, name)
    produce(before, name, [Record(b"%d" % n) for n in range(100)])
    cluster.kill()
    assert not cluster.is_running()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(before.rpartition(":")[2])), timeout=1)
    cluster.restart()
    assert cluster.bootstrap_servers == before
    assert values(before, name) == [[b"%d" % n for n in range(100)]]
    assert produce(before, name, [Record(b"after")]) == [100]


def test_paused_broker_answers_nobody_until_it_resumes(cluster: Cluster, names: Names) -> None:
    """A paused broker keeps its connections and answers nothing; resumed, it goes on with what was asked."""
    name = names.topic()
    create_topic(cluster.bootstrap_servers, name)
    cluster.pause()
    written: list[list[int]] = []
    writer = threading.Thread(
        target=lambda: written.append(produce(cluster.bootstrap_servers, name, [Record(b"patient")]))
    )
    try:
        writer.start()
        writer.join(2)
        assert writer.is_alive()
    finally:
        cluster.resume()
    writer.join(30)
    assert written == [[0]]
    assert values(cluster.bootstrap_servers, name) == [[b"patient"]]


def test_stopped_cluster_starts_again_from_its_folder(
    tmp_path: Path, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster made anew over a data folder is the same cluster: id, address, records; only as many nodes as
    before. Its JVM uses the archive of classes that the first one's has left."""
    name = names.topic()
    archive = tmp_path / "classes.jsa"
    monkeypatch.setattr(kafka_cluster, "class_data_archive", lambda: archive)
    with Cluster(data_folder=tmp_path, record_classes=tmp_path / "recorded") as first:
        bootstrap, known = first.bootstrap_servers, first.cluster_id
        create_topic(bootstrap, name)
        produce(bootstrap, name, [Record(b"kept")])
        first.stop(60)
    class_archive.keep(tmp_path / "recorded", archive)
    with Cluster(data_folder=tmp_path, record_classes=tmp_path / "again") as second:
        if sys.platform == "linux":
            assert str(archive) in Path(f"/proc/{second.pid()}/maps").read_text()
        assert (second.bootstrap_servers, cluster_id(bootstrap)) == (bootstrap, known)
        assert values(bootstrap, name) == [[b"kept"]]
    assert not (tmp_path / "again").exists(), "recorded again though there is one"
    with pytest.raises(BrokerError, match="holds a cluster of 1 nodes, not 3"):
        Cluster(nodes=3, data_folder=tmp_path).start()


@pytest.mark.whole
def test_three_nodes_survive_the_loss_of_one(names: Names) -> None:
    """With three nodes, whichever leads may be killed: acknowledged records stay, writing goes on, it catches
    up."""
    name = names.topic()
    with Cluster(nodes=3) as cluster:
        bootstrap = cluster.bootstrap_servers
        assert len(bootstrap.split(",")) == 3
        create_topic(bootstrap, name, partitions=3)
        produce(
            bootstrap, name, [Record(b"%d" % n, partition=n % 3) for n in range(30)], "commit", names.link
        )
        cluster.kill(1)
        produce(
            bootstrap, name, [Record(b"%d" % n, partition=n % 3) for n in range(30, 60)], "commit", names.link
        )
        # A commit is acknowledged before its markers are everywhere.
        whole = [[b"%d" % n for n in range(p, 60, 3)] for p in range(3)]
        wait_until(lambda: values(bootstrap, name) == whole, "all that was acknowledged")
        cluster.restart(1)
        admin = AdminClient({"bootstrap.servers": bootstrap})

        def in_sync() -> bool:
            found = admin.list_topics(name, timeout=10).topics[name].partitions.values()
            return all(sorted(partition.isrs) == [1, 2, 3] for partition in found)

        wait_until(in_sync, "the restarted node to be in sync")


def test_brokers_outlive_the_thread_that_started_them_but_not_the_process(tmp_path: Path) -> None:
    """Killed with SIGKILL, a process takes its brokers with it, paused ones too; the end of a thread does
    not."""
    program = """
import sys, threading, time
from verbatim.local.kafka_cluster import Cluster
cluster = Cluster(data_folder=sys.argv[1])
thread = threading.Thread(target=cluster.start)
thread.start()
thread.join()
time.sleep(1)
assert cluster.is_running(), cluster.log_tail()
cluster.pause()
print(cluster.pid(), flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert parent.stdout is not None
    broker = 0
    try:
        broker = int(parent.stdout.readline())
        assert not process_is_gone(broker)
        parent.kill()
        wait_until(lambda: process_is_gone(broker), "the broker to die with its parent", 10)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        if broker and not process_is_gone(broker):
            os.kill(broker, signal.SIGKILL)


def test_failed_start_shows_the_log_and_leaves_nothing(tmp_path: Path) -> None:
    """A broker that cannot start says why, in the error, at once, and no process stays behind."""
    began = time.monotonic()
    broken = Cluster(nodes=1, data_folder=tmp_path, properties={"log.segment.bytes": "-1"})
    with pytest.raises(BrokerError, match="log.segment.bytes"):
        broken.start()
    assert time.monotonic() - began < 30
    assert not broken.is_running()


def test_port_taken_by_another_is_a_failed_start(cluster: Cluster) -> None:
    """A node whose port is taken meanwhile fails by name instead of serving somewhere else."""
    cluster.kill()
    port = int(cluster.bootstrap_servers.rpartition(":")[2])
    try:
        with (
            contextlib.closing(socket.create_server(("127.0.0.1", port))),
            pytest.raises(BrokerError, match="Address already in use"),
        ):
            cluster.restart(timeout_s=30)
    finally:
        cluster.restart()
