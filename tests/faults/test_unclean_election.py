"""The source loses acknowledged records in an unclean leader election, and other records take their
offsets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_on_nodes, end_offsets, produce, read_all, wait_until
from tests.support.harness import Link, assert_copied, eventually
from verbatim.local.kafka_cluster import Cluster

AHEAD, BEHIND = 1, 2
"""The nodes that hold the topic: the one that has all records, and the one that was away."""


@pytest.fixture
def three() -> Iterator[Cluster]:
    """A source of three nodes: with two of them down in turn, the third keeps what the controllers know."""
    with Cluster(nodes=3, properties={"unclean.leader.election.interval.ms": 1000}) as cluster:
        yield cluster


def records(begin: int, end: int, what: str = "first") -> list[Record]:
    return [Record(b"%d %s" % (i, what.encode())) for i in range(begin, end)]


def replicas_in_sync(cluster: Cluster, topic: str) -> set[int]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    with contextlib.suppress(KafkaException):
        return set(admin.list_topics(topic, timeout=5).topics[topic].partitions[0].isrs)
    return set()


def leads(cluster: Cluster, topic: str, node: int) -> bool:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    with contextlib.suppress(KafkaException):
        return int(admin.list_topics(topic, timeout=5).topics[topic].partitions[0].leader) == node
    return False


@pytest.mark.timeout(600)
@pytest.mark.parametrize("running", [False, True], ids=["stopped meanwhile", "running"])
def test_other_records_at_offsets_that_were_copied_halt_the_partition(
    three: Cluster, target: Kafka, names: Names, running: bool
) -> None:
    """Promise: where the source has other records now at offsets that were copied before, the partition halts
    by name, also when the new log is longer than the old one was; what was delivered stays, and other
    partitions go on."""
    topic, other = names.topic("unclean"), names.topic("other")
    unclean = {"unclean.leader.election.enable": "true"}
    create_on_nodes(three.bootstrap_servers, topic, [AHEAD, BEHIND], **unclean)
    create_on_nodes(three.bootstrap_servers, other, [3], **unclean)
    link = Link(
        three.bootstrap_servers,
        target.bootstrap_servers,
        names.link,
        rf"{names.link}\.t\..*",
        STAGING_PARTITIONS="1",
    )
    produce(three.bootstrap_servers, topic, records(0, 10))
    produce(three.bootstrap_servers, other, records(0, 10))
    wait_until(lambda: replicas_in_sync(three, topic) == {AHEAD, BEHIND}, "both replicas to be in sync")
    three.kill(BEHIND)
    wait_until(lambda: replicas_in_sync(three, topic) == {AHEAD}, "one replica to be left", 60)
    produce(three.bootstrap_servers, topic, records(10, 20))
    with link.running() if running else contextlib.nullcontext():
        if running:
            eventually(lambda: link.arrived(topic) == [20] and link.arrived(other) == [10], "all of it", 60)
        else:
            assert link.copy() == (0, 0)
        there = read_all(three.bootstrap_servers, topic)
        three.kill(AHEAD)
        three.restart(BEHIND, 90)
        wait_until(lambda: leads(three, topic, BEHIND), "the replica that was away to lead", 60)
        assert end_offsets(three.bootstrap_servers, topic) == {0: 10}
        produce(three.bootstrap_servers, topic, records(10, 30, "second"))
        produce(three.bootstrap_servers, other, records(10, 15))
        if running:
            # With half the source away, the driver's call for its topics may take two minutes to give up.
            eventually(lambda: link.halted() == {(topic, 0): "source-truncated"}, "the halt", 240)
            eventually(lambda: link.arrived(other) == [15], "the other topic", 60)
    if not running:
        assert link.replicate() == 3
        assert link.deduplicate() == 0
        assert link.halted() == {(topic, 0): "source-truncated"}
    assert_copied(link, topic, there=there)
    assert_copied(link, other)
