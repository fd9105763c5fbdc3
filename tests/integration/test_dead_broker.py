"""A broker of the source is dead and stays dead: whatever does not need it goes on."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from common.errors import KafkaTimeout
from common.kafka.client import clients
from common.kafka.errors import future_result, retriable, retrying
from common.kafka.wire import fetch_limits
from common.kafka.wire.batch_consumer import BatchConsumer
from common.kafka.wire.batch_producer import BatchProducer
from common.ports import Deadline
from offsets.group_protocol import Committed
from offsets.groups import Groups
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_on_nodes, create_topic, produce
from tests.support.harness import Link, assert_copied, eventually
from verbatim.local.kafka_cluster import Cluster


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """A source of three nodes: with one of them dead, the others are still a quorum."""
    with Cluster(nodes=3) as cluster:
        yield cluster


def test_descriptions_go_on_when_the_broker_that_gave_them_dies(three: Cluster) -> None:
    """Promise: a source or target that lost one of its brokers is asked for topic ids and log ends again
    within seconds. By default the client waits for the dead broker for five minutes, in which no frame leaves
    and no partition halts."""
    create_topic(three.bootstrap_servers, "orders", config={"min.insync.replicas": "1"})
    client = clients.admin({"bootstrap.servers": three.bootstrap_servers})
    assert clients.watermarks(client, "orders", 0, Deadline(20)) == (0, 0)
    # Of whom the client asks next: the one that the last metadata called the controller.
    asked = client.list_topics(timeout=10).controller_id
    three.kill(asked)
    assert described(client, Deadline(30)) == "orders"
    assert clients.watermarks(client, "orders", 0, Deadline(20)) == (0, 0)
    three.restart(asked, 90)


def described(client: AdminClient, deadline: Deadline) -> str:
    def ask(timeout: float) -> str:
        future = client.describe_topics(TopicCollection(["orders"]), request_timeout=timeout)["orders"]
        return str(future_result(future, timeout + 1).name)

    return retrying("describing orders", ask, deadline)


def test_whoever_reads_or_fences_waits_for_no_broker_that_is_stopped_and_listed_first(
    three: Cluster, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: with the first of three nodes stopped, records come within seconds, and a producer fences as
    soon as the cluster has another coordinator (4 s here)."""
    monkeypatch.setattr(random, "shuffle", lambda _: None)
    at, topic = three.bootstrap_servers, names.topic()
    its_id = create_on_nodes(at, topic, [2, 3], [3, 2])
    produce(at, topic, [Record(b"%d" % i, partition=i % 2) for i in range(10)])
    old = BatchProducer({"bootstrap.servers": at}, names.link, 60_000, names.link)
    old.init_transactions(30)
    three.pause(1)
    try:
        begun = time.monotonic()
        reader = BatchConsumer({"bootstrap.servers": at}, {})
        reader.assign([(topic, its_id, partition, 0, None) for partition in (0, 1)])
        came = 0
        while came < 10:
            came += sum(item.count for item in reader.read(0.1))
            assert time.monotonic() - begun < 6
        reader.close()
        new_one = BatchProducer({"bootstrap.servers": at}, names.link, 60_000, names.link)
        new_one.init_transactions(30)
        assert time.monotonic() - begun < 20
        new_one.close()
        old.begin_transaction()
        old.produce(topic, b"late", None, 0)
        with pytest.raises(KafkaException):
            old.commit_transaction(10)
    finally:
        three.resume(1)
        admin = AdminClient({"bootstrap.servers": at, "log_level": 2})
        eventually(lambda: len(admin.list_topics(timeout=10).brokers) == 3, "the broker that was paused", 60)


def test_a_partition_whose_broker_dies_does_not_wait_for_what_its_new_leader_was_asked_before(
    three: Cluster, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: a broker that has nothing to answer waits for seconds, and holds up nothing that comes to it
    meanwhile."""
    monkeypatch.setattr(fetch_limits, "WAIT_MS", 60_000)
    at, topic = three.bootstrap_servers, names.topic()
    its_id = create_on_nodes(at, topic, [2, 3], [3, 2])
    admin = clients.admin({"bootstrap.servers": at})
    with closing(BatchConsumer({"bootstrap.servers": at}, {})) as reader:
        reader.assign([(topic, its_id, partition, 0, None) for partition in (0, 1)])

        def leader_of_the_first() -> int:
            assert not reader.read(0.1)
            with suppress(KafkaException):
                future = admin.describe_topics(TopicCollection([topic]), request_timeout=2)[topic]
                leader = future_result(future, 3).partitions[0].leader
                return -1 if leader is None else int(leader.id)
            return -1

        eventually(lambda: leader_of_the_first() == 2, "its leader")
        three.kill(2)
        try:
            eventually(lambda: leader_of_the_first() == 3, "another leader", 60)
            produce(at, topic, [Record(b"v", partition=0)])
            begun, came = time.monotonic(), 0
            while not came:
                came = sum(item.count for item in reader.read(0.1))
                assert time.monotonic() - begun < 1.5
        finally:
            three.restart(2, 90)


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_a_partition_that_nobody_leads_holds_up_no_other(three: Cluster, target: Kafka, names: Names) -> None:
    """Promise: a link starts and copies though a partition of the source has no leader; when it has one
    again, it is copied too, from its beginning."""
    dead, alive = names.topic("dead"), names.topic("alive")
    create_on_nodes(three.bootstrap_servers, dead, [1], [2])
    create_on_nodes(three.bootstrap_servers, alive, [3])
    produce(three.bootstrap_servers, dead, [Record(b"%d" % i, partition=i % 2) for i in range(10)])
    produce(three.bootstrap_servers, alive, [Record(b"%d" % i) for i in range(10)])
    three.kill(1)
    topics = rf"{names.link}\.t\..*"
    link = Link(three.bootstrap_servers, target.bootstrap_servers, names.link, topics)
    with link.running():
        eventually(lambda: link.arrived(alive) == [10] and link.arrived(dead) == [0, 5], "the others", 60)
        three.restart(1, 90)
        eventually(lambda: link.arrived(dead) == [5, 5], "the one that has a leader again", 60)
    assert_copied(link, alive)
    assert_copied(link, dead)


def coordinates_few(at: str) -> int:
    """The broker that coordinates the fewest groups, of those that do any: after the tests before, one of the
    three may have none."""
    offsets = "__consumer_offsets"
    found = AdminClient({"bootstrap.servers": at}).list_topics(offsets, timeout=10).topics[offsets]
    leaders = Counter(int(partition.leader) for partition in found.partitions.values())
    return min(leaders, key=lambda node: leaders[node])


def test_groups_of_brokers_that_are_well_are_read_while_another_hangs(three: Cluster, names: Names) -> None:
    """Promise: what a group has committed is read exactly or not at all, and set or not set, whatever becomes
    of its coordinator; groups of other coordinators do not wait for it. Asked through the client library,
    coordinators that move can end the process."""
    at, topic = three.bootstrap_servers, names.topic()
    create_topic(at, topic)
    wanted = {f"{names.link}.{n}": n for n in range(60)}
    with closing(Groups({"bootstrap.servers": at}, "source")) as groups:

        def move(by: int) -> None:
            """Until all are set."""
            left = {group: {(topic, 0): Committed(offset + by, "")} for group, offset in wanted.items()}
            deadline = Deadline(40)
            while refused := groups.commit(left, deadline):
                assert not deadline.passed() and all(retriable(error) for error in refused.values())
                left = {group: left[group] for group, _ in refused}

        def read(deadline: Deadline, failed: dict[str, str] | None = None) -> dict[str, int]:
            found = groups.committed(wanted, deadline, failed)
            return {group: of[topic, 0].offset for group, of in found.items()}

        move(0)
        assert read(Deadline(20)) == wanted
        hangs = coordinates_few(at)
        three.pause(hangs)
        try:
            begun, tries, found = time.monotonic(), 0, dict[str, int]()
            # A try ends for each group, however busy the machine is: of those that answer some do in the end.
            while not found:
                tries, failed, deadline = tries + 1, dict[str, str](), Deadline(10)
                with suppress(KafkaTimeout):
                    found = read(deadline, failed)
                assert not deadline.passed() and time.monotonic() - begun < 60
            assert found.items() <= wanted.items() and found.keys() ^ failed.keys() == wanted.keys()
            assert len(found) > 10 and all("gave up after the time allowed" in why for why in failed.values())
            # Later on they have other coordinators.
            assert tries > 1 or len(failed) > 3
            move(100)
            assert read(Deadline(30)) == {group: offset + 100 for group, offset in wanted.items()}
        finally:
            three.resume(hangs)
        move(200)
        assert read(Deadline(30)) == {group: offset + 200 for group, offset in wanted.items()}
