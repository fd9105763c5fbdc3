"""Sessions of SASL that end (`connections.max.reauth.ms`): who reads and writes in batches authenticates
again, on the same connections."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from common.kafka.wire.batch_consumer import BatchConsumer
from common.kafka.wire.batch_producer import BatchProducer
from common.kafka.wire.chunks import Chunk
from tests.conftest import Names
from tests.integration.test_batches import ALL, FOREVER, send, values
from tests.support.brokers import create_topic, topic_id
from tests.support.secured import Right, SecuredCluster

SESSION_S = 3.0


class ShortSessions(SecuredCluster):
    def _properties(self, node: int) -> dict[str, str]:
        return super()._properties(node) | {"connections.max.reauth.ms": str(int(SESSION_S * 1000))}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShortSessions]:
    with ShortSessions(tmp_path_factory.mktemp("sessions")) as made:
        yield made


def test_connections_outlive_their_sessions(
    cluster: ShortSessions, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: records are read and committed over TLS and SCRAM for longer than a session lasts, through the
    connections that were made at the beginning, and no transaction ends otherwise than it should."""
    caplog.set_level(logging.WARNING)
    at, topic = cluster.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER)
    user = {"bootstrap.servers": cluster.secure_servers, **cluster.user("reader")}
    rights = [Right("WRITE", "TRANSACTIONAL_ID", names.link)]
    cluster.grant("reader", [*rights, Right("READ", "TOPIC", topic), Right("WRITE", "TOPIC", topic)])
    producer = BatchProducer(user, names.link, 60_000, names.link)
    producer.init_transactions(30)
    reader = BatchConsumer(user | {"fetch.wait.max.ms": 100}, ALL)
    reader.assign([(topic, topic_id(at, topic), 0, 0, None)])
    committed: list[bytes] = []
    got: list[bytes | None] = []
    connections = set()
    until = time.monotonic() + 2.5 * SESSION_S
    while time.monotonic() < until or len(got) < len(committed):
        assert time.monotonic() < until + 20, "what was committed is not read"
        if time.monotonic() < until:
            producer.begin_transaction()
            send(producer, topic, [b"%d" % len(committed)])
            committed.append(b"%d" % len(committed))
            producer.commit_transaction(10)
        chunks = reader.read(0.2)
        assert all(isinstance(chunk, Chunk) for chunk in chunks)
        got += values(chunks)
        connections |= {*producer._brokers._connections.values()}
        connections |= {*reader._sessions.brokers._connections.values()}
    producer.close()
    reader.close()
    assert got == committed
    assert len(connections) == 4, "one for records and one for questions each"
    assert not caplog.messages
