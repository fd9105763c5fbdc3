"""Clients that have struck all brokers off their lists, on a real broker that its controller takes to be away
now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from common.kafka.client.clients import admin
from common.ports import reconnecting_admin
from tests.conftest import Names
from tests.support.brokers import create_topic
from verbatim.local.kafka_cluster import Cluster

ASK_S = 1.0
LOST_S = 90.0
"""How long it may take until each client has met an answer that names topics and no broker. A second or two,
mostly."""
CLIENTS = 4


@pytest.fixture(scope="module")
def fenced_at_times() -> Iterator[Cluster]:
    """Its broker's session is over before the next heartbeat comes: held to be away by turns, and otherwise
    in good health."""
    properties = {"broker.session.timeout.ms": 1000, "broker.heartbeat.interval.ms": 1800}
    with Cluster(properties=properties) as cluster:
        yield cluster


def answered(client: AdminClient) -> bool:
    try:
        client.list_topics(timeout=ASK_S)
    except KafkaException:
        return False
    return True


def renewed(client: AdminClient) -> Any:
    """The client that it uses now."""
    return cast(reconnecting_admin.AdminClient, client)._client


@pytest.mark.whole
def test_an_admin_client_that_has_struck_all_brokers_off_asks_on_with_another(
    fenced_at_times: Cluster, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: whatever the brokers have said of themselves, an admin client is answered again soon after
    they are back. Should this fail because no client was ever lost, librdkafka has been mended, and
    common/ports/reconnecting_admin.py can go."""
    monkeypatch.setattr(reconnecting_admin, "UNANSWERED_S", 3.0)
    at = fenced_at_times.bootstrap_servers
    create_topic(at, names.topic("orders"))
    clients = [admin({"bootstrap.servers": at}) for _ in range(CLIENTS)]
    firsts = [renewed(client) for client in clients]
    again: set[int] = set()
    give_up = time.monotonic() + LOST_S
    while len(again) < CLIENTS:
        assert time.monotonic() < give_up, (
            f"only {sorted(again)} of {CLIENTS} clients were lost and found their way again"
        )
        for i, client in enumerate(clients):
            if i not in again and answered(client) and renewed(client) is not firsts[i]:
                again.add(i)
    # What futures tell counts as much as what a call raises.
    client = admin({"bootstrap.servers": at})
    first = renewed(client)
    while answered(client):
        assert time.monotonic() < give_up + LOST_S
    found = False
    while not found:
        assert time.monotonic() < give_up + LOST_S
        asked = client.describe_topics(TopicCollection([names.topic("orders")]), request_timeout=ASK_S)
        found = asked[names.topic("orders")].exception(30) is None and renewed(client) is not first
