"""Consumers that follow a partition in which little happens, on a real broker: they ask seldom, and hear at
once."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

from confluent_kafka import TopicPartition

from common.kafka.client import clients
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce

IDLE_S = 2.0


def test_a_follower_asks_seldom_and_hears_of_a_record_at_once(target: Kafka, names: Names) -> None:
    """Promise: many links at rest cost a broker little, and nothing that is said waits for that."""
    topic, asked = f"{names.link}.followed", 0
    at = target.bootstrap_servers
    create_topic(at, topic, 1)

    def stats(text: str) -> None:
        nonlocal asked
        asked = sum(broker["req"].get("Fetch", 0) for broker in json.loads(text)["brokers"].values())

    config: dict[str, Any] = {"bootstrap.servers": at, "statistics.interval.ms": 200, "stats_cb": stats}
    with closing(clients.follower(config, 1024)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not asked:
            assert consumer.poll(0.1) is None
        assert consumer.poll(IDLE_S) is None
        assert asked <= 2, "twice a second by default"
        produce(at, topic, [Record(b"heard")])
        # Long before the request that waits is given up.
        message = consumer.poll(clients.FOLLOWER_WAIT_MS / 1000 - IDLE_S - 1)
        assert message is not None and message.value() == b"heard"
