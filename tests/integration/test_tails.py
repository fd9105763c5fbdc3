"""What the driver reads on and on, the control topic and the lanes' counters, when its client has gone
silent. On real brokers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter

import pytest
from confluent_kafka import TopicPartition

from common.errors import KafkaTimeout
from common.kafka.client import clients
from common.kafka.client.stall_detector import StallDetector
from common.link import control_log, lane_counters, offset_mappings, positions
from common.link.control_kinds import Leader
from common.link.control_log import ControlLog
from common.link.lane_counters import Counters, CounterTail
from common.link.lane_work import Work
from common.link.offset_mappings import Mapping
from common.link.positions import Position
from common.ports import Deadline
from offsets import readers
from offsets.readers import MappingTail
from replicator.driver import planner
from replicator.driver.planner import PositionLog
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link, eventually


def log_of(target: Kafka, names: Names) -> ControlLog:
    config = {"bootstrap.servers": target.bootstrap_servers}
    return ControlLog(f"{names.link}.control", config, config, config, names.link)


def say(to: ControlLog) -> int:
    return to.append(Leader("replicator", "a"), Deadline(30))


def test_a_consumer_that_has_heard_of_its_topic_reads_it_as_soon_as_it_is_assigned(
    target: Kafka, names: Names
) -> None:
    """Promise: a deduplicator's lane, which fences before it reads, does not wait for its client to look
    which topics it was assigned: that it does once a second, and finds every other new client waiting. A
    quarter may be slow for other reasons, on a busy machine."""
    topic = names.topic()
    create_topic(target.bootstrap_servers, topic)
    produce(target.bootstrap_servers, topic, [Record(b"v")])

    def waits() -> float:
        with contextlib.closing(
            clients.consumer({"bootstrap.servers": target.bootstrap_servers})
        ) as consumer:
            clients.connect(consumer, topic, Deadline(10))
            time.sleep(0.1)
            begun = time.monotonic()
            consumer.incremental_assign([TopicPartition(topic, 0, 0)])
            assert consumer.poll(30) is not None
            return time.monotonic() - begun

    assert sorted(waits() for _ in range(20))[14] < 0.4


def test_a_new_client_does_not_wait_before_it_connects_to_a_leader(target: Kafka, names: Names) -> None:
    """Promise: what each epoch begins with, new clients, costs it no pauses that only spare a broker
    connections: 50 ms by default, each time. The quickest of many, whatever else the machine does."""
    topic = names.topic()
    create_topic(target.bootstrap_servers, topic)

    def takes() -> float:
        begun = time.monotonic()
        producer = clients.producer({"bootstrap.servers": target.bootstrap_servers}, linger_ms=0)
        clients.connect(producer, topic, Deadline(10))
        producer.produce(topic, b"v", partition=0)
        assert producer.flush(30) == 0
        return time.monotonic() - begun

    assert min(takes() for _ in range(30)) < 0.04


def test_a_tail_whose_client_goes_silent_reads_on_with_another(
    target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: a client that ceases to fetch without a word holds up nothing for longer than half a minute,
    here less. A paused partition is as silent."""
    monkeypatch.setattr(control_log, "StallDetector", lambda admin: StallDetector(admin, 1.0))
    create_topic(target.bootstrap_servers, f"{names.link}.control")
    one, two = log_of(target, names), log_of(target, names)
    say(two)
    eventually(lambda: one.poll().position == 1, "the first record", 30)
    one._consumer.pause([TopicPartition(one.topic, 0)])
    with caplog.at_level(logging.WARNING):
        say(two)
        eventually(lambda: one.poll().position == 2, "the second", 30)
    assert f"{one.topic}: nothing comes from offset 1 on, though there is more" in caplog.text
    one._consumer.pause([TopicPartition(one.topic, 0)])
    assert say(two) == 2 and one.refresh(Deadline(30)).position == 3
    for each in (one, two):
        each.close()


def test_a_tail_of_which_all_is_read_keeps_its_client(
    target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_log, "StallDetector", lambda admin: StallDetector(admin, 0.2))
    create_topic(target.bootstrap_servers, f"{names.link}.control")
    log = log_of(target, names)
    first = log._consumer
    for count in range(1, 11):
        say(log)
        eventually(lambda count=count: log.poll().position == count, "the record", 10)  # type: ignore[misc]
    assert log._consumer is first
    log.close()


def test_counters_are_shown_again_though_their_client_goes_silent(
    target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_counters, "SILENT_S", 1.0)
    topic = f"{names.link}.positions"
    create_topic(target.bootstrap_servers, topic)
    config = {"bootstrap.servers": target.bootstrap_servers}
    producer = clients.producer(config)
    tail = CounterTail("replicator", topic, config)
    lane = Counters("replicator", 1, 1, 0, topic)
    records = 0

    def shown() -> bool:
        nonlocal records
        records += 1
        lane.write(producer, time.monotonic(), Work(Counter(records=records)))
        producer.flush(10)
        found = tail.sums(1, 1)
        return found is not None and found.counts["records"] >= before

    before = 1
    eventually(shown, "the first counters", 30)
    tail._consumer.pause([TopicPartition(topic, 0)])
    before = records + 1
    eventually(shown, "counters written since", 30)
    tail.close()


def test_positions_are_read_to_their_end_though_their_client_goes_silent(
    target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: a planner whose client has ceased to fetch plans on after SILENT_S, and the application does
    not end for it."""
    monkeypatch.setattr(planner, "SILENT_S", 1.0)
    topic = f"{names.link}.positions"
    create_topic(target.bootstrap_servers, topic)
    config = {"bootstrap.servers": target.bootstrap_servers}
    tail = PositionLog(topic, config, clients.admin(config))
    producer = clients.producer(config)
    for next_ in (5, 6):
        key, value = positions.encode("orders", ("id", 0), Position(next_, None, -1))
        producer.produce(topic, value, key)
        producer.flush(10)
        assert tail.refresh(Deadline(20)) == {("id", 0): Position(next_, None, -1)}
        tail._consumer.pause([TopicPartition(topic, 0)])
    tail.close()


def test_mappings_are_read_on_though_their_client_reaches_nobody_any_more(
    target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: groups whose offsets are kept in step do not stand still for ever because one client does."""
    monkeypatch.setattr(readers, "CALL_S", 5.0)
    settings = Link(
        target.bootstrap_servers, target.bootstrap_servers, names.link, names.topic("orders")
    ).settings
    create_topic(target.bootstrap_servers, settings.mappings_topic, partitions=settings.staging_partitions)
    producer = clients.producer({"bootstrap.servers": target.bootstrap_servers})
    key, value = offset_mappings.encode(
        Mapping("c", "orders", "id", 0, 0, 9, "orders", 0, 1, 9, 0, 0, [[0, 100, 9]])
    )
    producer.produce(settings.mappings_topic, value, key, 0)
    producer.flush(10)
    tail = MappingTail(settings, clients.admin({"bootstrap.servers": target.bootstrap_servers}))
    tail._consumer.close()
    tail._consumer = clients.reader({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(KafkaTimeout):
        tail.catch_up()
    assert tail.catch_up()
    assert tail.index.partitions["id", 0].translate(5, 0).offset == 105
    tail.close()
