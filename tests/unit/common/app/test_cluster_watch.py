"""Whether a cluster is reached, by what its brokers answer. Real ones:
tests/integration/test_cluster_watch.py."""

from __future__ import annotations

import struct

import pytest

from common.app import cluster_watch
from common.kafka.wire import protocol
from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.protocol import text
from tests.support.listeners import Asked, Broker, nobody


def names_nobody(_: Asked) -> bytes:
    """Metadata of a broker that has just started: no broker, no controller, no topic."""
    return struct.pack(">ii", 0, 0) + text(None) + struct.pack(">ii", -1, 0)


def connections(address: tuple[str, int]) -> BrokerConnections:
    return BrokerConnections({"bootstrap.servers": f"{address[0]}:{address[1]}"})


def test_a_broker_that_has_just_started_is_an_answer() -> None:
    """Promise: it ends nobody. Asked by the client library's DescribeCluster, it aborts the process."""
    with Broker({protocol.METADATA: names_nobody}) as broker:
        brokers = connections(broker.address)
        assert [cluster_watch._unanswered(brokers) for _ in range(3)] == [None] * 3
        assert broker.kinds().count("Metadata") == 3
        brokers.close()


def test_where_nobody_listens_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_watch, "ASK_S", 0.5)
    brokers = connections(nobody())
    assert "refused" in (cluster_watch._unanswered(brokers) or "")
