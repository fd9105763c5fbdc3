"""Real brokers whose quotas are used up: how long they hold a link back is in its metrics, by cluster."""

from __future__ import annotations

import random
import struct

import pytest

from common.app.health import Health
from common.kafka.wire import protocol
from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.protocol import Api
from common.ports import Deadline
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link, Running, ThreadDeduplicator, ThreadReplicator, assert_copied
from tests.support.metrics import sample

ALTER_CLIENT_QUOTAS = Api("AlterClientQuotas", 49, 0)
BYTES_PER_SECOND, SIZE, COUNT = 300_000, 5_000, 900


class OneLane(ThreadReplicator):
    lanes = 1


class OneLaneToo(ThreadDeduplicator):
    lanes = 1


def allow(bootstrap: str, client_id: str, quota: str, bytes_per_second: float | None) -> None:
    """Set a quota of one client, or take it away."""
    body = struct.pack(">ii", 1, 1) + protocol.text("client-id") + protocol.text(client_id)
    body += struct.pack(">i", 1) + protocol.text(quota)
    body += struct.pack(">d??", bytes_per_second or 0.0, bytes_per_second is None, False)
    brokers = BrokerConnections({"bootstrap.servers": bootstrap})
    answer = brokers.any(ALTER_CLIENT_QUOTAS, [body], Deadline(30))
    brokers.close()
    assert answer.take("iih")[2] == 0


def throttled(health: Health) -> dict[str, float]:
    """Seconds, by cluster."""
    return {
        which: found
        for which in ("source", "target")
        if (found := sample(health, f"verbatim_{which}_throttle_seconds_total")) is not None
    }


@pytest.mark.whole
def test_how_long_quotas_hold_a_link_back_is_told_by_cluster(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: nothing where no quota is used up; of the source what it said to a lane that reads, of the
    target what it said to lanes that write frames, read them, and write copies. Records go on, unharmed."""
    at, to, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic()
    create_topic(at, topic)
    noise = random.Random(3)
    some = [Record(noise.randbytes(SIZE)) for _ in range(COUNT)]
    link = Link(at, to, names.link, topic)
    for which in ("SOURCE", "DESTINATION"):
        link.variables[f"KAFKA_CLUSTERS_{which}_PROPERTIES_CLIENT_ID"] = names.link

    def copied(application: type[ThreadReplicator | ThreadDeduplicator]) -> dict[str, float]:
        running = Running(application(link.settings, True))
        assert running.wait(100) == 0
        return throttled(running.application.health)

    produce(at, topic, some)
    assert copied(OneLane) == {"source": 0, "target": 0}
    assert copied(OneLaneToo) == {"target": 0}
    produce(at, topic, some)
    allow(at, names.link, "consumer_byte_rate", BYTES_PER_SECOND)
    told = copied(OneLane)
    assert 0.5 < told["source"] < 60 and told["target"] == 0
    allow(at, names.link, "consumer_byte_rate", None)
    allow(to, names.link, "consumer_byte_rate", BYTES_PER_SECOND)
    assert 0.5 < copied(OneLaneToo)["target"] < 60
    allow(to, names.link, "consumer_byte_rate", None)
    allow(to, names.link, "producer_byte_rate", BYTES_PER_SECOND)
    produce(at, topic, some)
    told = copied(OneLane)
    assert told["source"] == 0 and 0.5 < told["target"] < 60
    assert 0.5 < copied(OneLaneToo)["target"] < 60
    allow(to, names.link, "producer_byte_rate", None)
    assert_copied(link, topic)
