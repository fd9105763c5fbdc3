"""One destination partition takes nothing: it is set aside by name, those beside it go on within seconds, and
it gets all that it missed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from common.kafka.errors import retrying
from common.kafka.wire.batch_producer import BatchProducer
from common.kafka.wire.open_transactions import OpenTransactions
from common.ports import Deadline
from tests.conftest import Kafka, Names
from tests.support.brokers import (
    Record,
    create_on_nodes,
    create_topic,
    delete_topic,
    end_offsets,
    produce,
    read_all,
    topic_id,
)
from tests.support.harness import Link, assert_copied, contents, eventually
from verbatim.local.kafka_cluster import Cluster

QUICKLY = {"broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500}
"""How soon a node that has died is held to be dead."""
ONE_STAGING_PARTITION = {"STAGING_PARTITIONS": "1"}


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """A target of three nodes: with one of them dead, the others are still a quorum."""
    with Cluster(nodes=3, properties=QUICKLY) as cluster:
        yield cluster


class Feeding:
    """Writes to each partition of a source topic, a few records at a time; `made` says how many each has."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.made = 0
        self._stop = threading.Event()
        self._to = (bootstrap, topic, partitions)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        bootstrap, topic, partitions = self._to
        # Each turn has a client of its own: without a rest they take more than all that is tested here.
        while not self._stop.wait(0.3):
            begin, end = self.made, self.made + 5
            some = [Record(b"%d" % i, b"k", p) for i in range(begin, end) for p in range(partitions)]
            produce(bootstrap, topic, some)
            self.made = end

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)


@contextmanager
def feeding(bootstrap: str, topic: str, partitions: int) -> Iterator[Feeding]:
    feeder = Feeding(bootstrap, topic, partitions)
    try:
        yield feeder
    finally:
        feeder.stop()


def sound_ones_go_on(link: Link, feeder: Feeding, topic: str, sound: set[int], within_s: float) -> None:
    """What is written from now on arrives in the sound partitions."""
    began, wanted = time.monotonic(), feeder.made + 5

    def reached() -> bool:
        mappings = link.mappings(topic)
        return all(p in mappings and mappings[p][-1].next >= wanted for p in sound)

    eventually(reached, "the sound partitions", within_s)
    print(f"sound partitions went on after {time.monotonic() - began:.1f} s")


@pytest.mark.timeout(300)
@pytest.mark.whole
@pytest.mark.parametrize(
    "successor",
    [False, True],
    ids=["one-owner", "another-owner"],
)
def test_the_only_replica_of_a_destination_partition_dies_and_those_beside_it_go_on(
    source: Kafka,
    three: Cluster,
    names: Names,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    successor: bool,
) -> None:
    """Promise: while records flow to all, the node of one partition is killed when a transaction has written
    there and is not ended yet; Kafka ends it without a marker there, and what hangs would come with the next
    commit. The others of the same staging partition deliver within seconds, a partition that lacks replicas
    is named too, and once the node is back all is there, each record once; also where the applications are
    others by then."""
    armed, finish = threading.Event(), BatchProducer._finish

    def kill_and_fail(producer: BatchProducer, commit: bool, deadline: Deadline) -> None:
        if (topic, 0) in producer._registered and commit and armed.is_set():
            armed.clear()
            three.kill(1)
            raise producer._end(KafkaError(KafkaError._TRANSPORT))
        finish(producer, commit, deadline)

    monkeypatch.setattr(BatchProducer, "_finish", kill_and_fail)
    at, topic, tight = source.bootstrap_servers, names.topic("single"), names.topic("tight")
    create_topic(at, topic, 3, {"retention.ms": "-1"})
    create_topic(at, tight, 1, {"retention.ms": "-1"})
    create_on_nodes(three.bootstrap_servers, topic, [1], [2], [3])
    create_on_nodes(three.bootstrap_servers, tight, [2, 1], **{"min.insync.replicas": "2"})
    topics = rf"{names.link}\.t\..*"
    link = Link(at, three.bootstrap_servers, names.link, topics, **ONE_STAGING_PARTITION)
    named = {(topic, 0): "destination-unavailable", (tight, 0): "destination-unavailable"}
    with feeding(at, topic, 3) as feeder, feeding(at, tight, 1) as other, ExitStack() as stack:
        running = stack.enter_context(link.running())
        eventually(lambda: min(link.arrived(topic) or [0]) > 0 and link.arrived(tight) > [0], "a flow", 60)
        armed.set()
        eventually(lambda: not armed.is_set(), "the node to die")
        sound_ones_go_on(link, feeder, topic, {1, 2}, 60)
        eventually(lambda: link.halted() == named, "the reasons", 60)
        health = running[1].application.health
        eventually(lambda: health.halted.keys() == {f"{topic}-0", f"{tight}-0"}, "the health", 10)
        if successor:
            stack.close()
            stack.enter_context(link.running())
            sound_ones_go_on(link, feeder, topic, {1, 2}, 60)
        three.restart(1, 90)
        eventually(lambda: link.halted() == {}, "them to go on", 90)
        feeder.stop()
        other.stop()
        eventually(lambda: link.arrived(topic) == [feeder.made] * 3, "all", 120)
        eventually(lambda: link.arrived(tight) == [other.made], "all", 60)
    assert_copied(link, topic)
    assert_copied(link, tight)


def test_what_hangs_without_a_marker_is_closed_by_its_own_transactional_id_and_by_no_other(
    three: Cluster, names: Names
) -> None:
    """What deduplicator/lane/hanging.py goes by: Kafka completes an abort without a marker in a partition
    that has no leader; another id's marker there decides nothing, the next one of the same id decides all,
    and the leader tells whose it is."""
    topic = names.topic()
    create_on_nodes(three.bootstrap_servers, topic, [1])
    config = {"bootstrap.servers": three.bootstrap_servers}
    own = BatchProducer(config, f"{names.link}.0", 60_000, "group")
    own.init_transactions(30)
    own.begin_transaction()
    own.produce(topic, b"aborted", None, 0, on_delivery=lambda *_: None)
    assert own.flush(30) == 0
    three.kill(1)
    eventually(lambda: three_sees_no_leader(three, topic), "the partition to have no leader", 30)
    own.close()
    own = fenced(config, f"{names.link}.0")
    other = fenced(config, f"{names.link}.0.1")
    three.restart(1, 90)
    eventually(lambda: not three_sees_no_leader(three, topic), "a leader", 60)
    at = three.bootstrap_servers
    assert end_offsets(at, topic) == {0: 0}, "it hangs"
    mark(other, topic, commit=False)
    mark(other, topic, commit=True)
    assert end_offsets(at, topic) == {0: 0}, "and still does"
    assert own.open_transactions([(topic, 0)], 10) == OpenTransactions({(topic, 0): {own.id[0]: 0}}, {})
    mark(own, topic, commit=False)
    eventually(lambda: end_offsets(at, topic) == end_offsets(at, topic, "read_uncommitted"), "the marker", 30)
    assert own.open_transactions([(topic, 0)], 10) == OpenTransactions()
    assert read_all(at, topic) == [[]]
    for producer in (own, other):
        producer.close()


def three_sees_no_leader(three: Cluster, topic: str) -> bool:
    admin = AdminClient({"bootstrap.servers": three.bootstrap_servers, "log_level": 0})
    return admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader < 0


def fenced(config: dict[str, str], transactional_id: str) -> BatchProducer:
    producer = BatchProducer(config, transactional_id, 60_000, "group")
    retrying("fencing", lambda t: producer.init_transactions(min(t, 5.0)), Deadline(60))
    return producer


def mark(producer: BatchProducer, topic: str, commit: bool) -> None:
    producer.begin_transaction()
    producer.take_part([(topic, 0)], 30, in_each=True)
    producer.commit_transaction(30) if commit else producer.abort_transaction(30)


@pytest.mark.timeout(300)
def test_a_destination_deleted_at_the_target_is_made_again_only_with_consent(
    source: Kafka, target: Kafka, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: a destination is deleted while records flow: it is named, with what to do, its neighbours go
    on, and it is not made again by itself, also not where the deduplicator begins anew. With consent it is,
    and gets exactly what was not delivered before."""
    gone, beside = names.topic("gone"), names.topic("beside")
    at, to = source.bootstrap_servers, target.bootstrap_servers
    for topic in (gone, beside):
        create_topic(at, topic, 1, {"retention.ms": "-1"})
    link = Link(at, to, names.link, rf"{names.link}\.t\..*", **ONE_STAGING_PARTITION)
    with feeding(at, gone, 1) as feeder, feeding(at, beside, 1) as other:
        with link.running():
            eventually(lambda: link.arrived(gone) > [0] and link.arrived(beside) > [0], "a flow", 60)
            first = topic_id(to, gone)
            delete_topic(to, gone)
            eventually(lambda: link.halted() == {(gone, 0): "destination-gone"}, "the reason", 60)
            sound_ones_go_on(link, other, beside, {0}, 20)
        with link.running():
            sound_ones_go_on(link, other, beside, {0}, 30)
            assert link.arrived(gone) == []
            assert link.halted() == {(gone, 0): "destination-gone"}
            assert f"verbatim accept-destination {gone}" in caplog.text
            reached = link.mappings(gone)[0][-1].next
            link.accept_destination(gone)
            eventually(lambda: link.halted() == {}, "it to go on", 60)
            feeder.stop()
            other.stop()
            eventually(lambda: link.mappings(gone)[0][-1].next >= feeder.made, "all", 60)
            eventually(lambda: link.arrived(beside) == [other.made], "all", 60)
    assert topic_id(to, gone) != first
    assert_copied(link, beside)
    there, here = read_all(at, gone), read_all(to, gone)
    rest = [[r for r in there[0] if r.offset >= reached]]
    assert [contents(r) for r in here[0]] == [contents(r) for r in rest[0]]
    mapped = [m for m in link.mappings(gone)[0] if m.start >= reached]
    assert [s + i for m in mapped for s, _, n in m.runs for i in range(n)] == [r.offset for r in rest[0]]
    assert [d + i for m in mapped for _, d, n in m.runs for i in range(n)] == [r.offset for r in here[0]]
