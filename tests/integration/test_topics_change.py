"""Source topics that come, grow, go and come again while a link runs or rests."""

from __future__ import annotations

import threading
import time

import pytest

from replicator.lane import lane
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, delete_topic, end_offsets, produce, read_all, topic_id
from tests.support.harness import Link, assert_copied, assert_mapped, contents, eventually


def records(what: str, count: int, partition: int = 0) -> list[Record]:
    return [Record(b"%s %d" % (what.encode(), i), partition=partition) for i in range(count)]


def add_partitions(bootstrap: str, topic: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
    eventually(
        lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == partitions,
        "the partitions",
    )


def values(bootstrap: str, topic: str) -> list[list[bytes | None]]:
    return [[r.value for r in p] for p in read_all(bootstrap, topic)]


def test_what_appears_while_the_link_runs_is_copied_from_its_beginning(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: partitions added and topics made while the link runs are found by themselves and copied whole,
    whatever START_OFFSETS says; a topic made again is another topic, whose records follow the old ones; a
    deleted one disturbs nobody."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    growing, again, gone, new = (names.topic(w) for w in ("growing", "again", "gone", "new"))
    for topic in (growing, again, gone):
        create_topic(at, topic)
        produce(at, topic, records("before", 3))
    link = Link(at, to, names.link, rf"{names.link}\.t\..*")
    with link.running():
        eventually(lambda: all(link.arrived(t) == [3] for t in (growing, again, gone)), "the first records")
        first = read_all(at, again)
        first_id = topic_id(at, again)
        delete_topic(at, gone)
        add_partitions(at, growing, 3)
        produce(at, growing, records("grown", 4, 2) + records("still", 2))
        create_topic(at, new, 2)
        produce(at, new, records("new", 5, 1))
        delete_topic(at, again)
        create_topic(at, again)
        produce(at, again, records("again", 2))
        eventually(lambda: link.arrived(growing) == [5, 0, 4], "the new partitions' records")
        eventually(lambda: link.arrived(new) == [0, 5], "the new topic's records")
        eventually(lambda: link.arrived(again) == [5], "the records of the topic made again")
        produce(at, again, records("more", 4))
        eventually(lambda: link.arrived(again) == [9], "more of them")
    for topic in (growing, new):
        assert_copied(link, topic)
    second, here = read_all(at, again), read_all(to, again)
    assert [contents(r) for r in here[0]] == [contents(r) for r in first[0] + second[0]]
    assert_mapped(link, again, first, here, first_id)
    assert_mapped(link, again, second, here, topic_id(at, again))
    assert link.arrived(gone) == [3]
    assert link.halted() == {}


@pytest.mark.parametrize("reading", ["goes on", pytest.param("was stopped", marks=pytest.mark.whole)])
def test_a_topic_made_again_and_refilled_past_the_old_position_is_copied_from_its_beginning(
    source: Kafka, target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    """Promise: a topic made again is noticed even where the consumer goes on at the old offset in the new log
    without an error: no record of the new topic is taken for one of the old, none is missing, none comes
    twice."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic = names.topic()
    create_topic(at, topic)
    produce(at, topic, records("old", 5))
    # The driver looks for topics so seldom that only the lane can notice.
    link = Link(at, to, names.link, topic, TOPIC_REFRESH_INTERVAL="120s")
    may_read = threading.Event()
    may_read.set()
    consume = lane.Lane._consume

    def gated(self: lane.Lane) -> None:
        if may_read.is_set():
            consume(self)
        else:
            time.sleep(0.02)

    monkeypatch.setattr(lane.Lane, "_consume", gated)
    deduplicator = link.start_deduplicator()
    replicator = link.start_replicator()
    eventually(lambda: link.arrived(topic) == [5], "the first records")
    first, first_id = read_all(at, topic), topic_id(at, topic)
    if reading == "goes on":
        may_read.clear()
    else:
        replicator.stop()
    delete_topic(at, topic)
    create_topic(at, topic)
    produce(at, topic, records("new", 12))
    if reading == "goes on":
        time.sleep(1.0)  # time enough for the client's own threads to fetch from the new log
        may_read.set()
    else:
        replicator = link.start_replicator()
    eventually(lambda: link.arrived(topic) == [17], "the records of the new topic")
    produce(at, topic, records("more", 3))
    eventually(lambda: link.arrived(topic) == [20], "more records")
    replicator.stop()
    deduplicator.stop()
    second, here = read_all(at, topic), read_all(to, topic)
    assert [contents(r) for r in here[0]] == [contents(r) for r in first[0] + second[0]]
    assert_mapped(link, topic, first, here, first_id)
    assert_mapped(link, topic, second, here, topic_id(at, topic))


def test_a_topic_made_again_halts_where_the_operator_wants_it(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: with TOPIC_RECREATED=halt a topic made again is not copied, and named; the others go on;
    `continue` lets it go on."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    again, other = names.topic("again"), names.topic("other")
    for topic in (again, other):
        create_topic(at, topic)
        produce(at, topic, records("old", 3))
    link = Link(at, to, names.link, rf"{names.link}\.t\..*", TOPIC_RECREATED="halt")
    assert link.copy() == (0, 0)
    delete_topic(at, again)
    create_topic(at, again)
    produce(at, again, records("new", 5))
    produce(at, other, records("new", 5))
    capsys.readouterr()
    assert link.replicate() == 3
    assert f"error: {again}-0 halted: topic {again} was deleted and made again" in capsys.readouterr().err
    assert link.deduplicate() == 0
    assert link.arrived(again) == [3]
    assert_copied(link, other)
    willing = Link(at, to, names.link, rf"{names.link}\.t\..*")
    assert willing.copy() == (0, 0)
    assert values(to, again) == [[r.value for r in records("old", 3) + records("new", 5)]]
    assert end_offsets(at, again) == {0: 5}
