"""Clients that have struck all brokers off their lists, on a real broker that its controller takes to be away
now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from common.kafka.client.clients import admin
from common.ports import reconnecting_admin
from tests.conftest import Names
from tests.support.brokers import create_topic, wait_until
from verbatim.local.kafka_cluster import Cluster

ASK_S = 1.0
LOST_S = 90.0
CLIENTS = 8
NEW_S = 3.0
"""How long a client counts as new: the broker is held to be away twice in it."""


@pytest.fixture(scope="module")
def fenced_at_times() -> Iterator[Cluster]:
    """Its broker's session is over before the next heartbeat comes: held to be away by turns, and otherwise
    in good health."""
    properties = {"broker.session.timeout.ms": 1000, "broker.heartbeat.interval.ms": 1800}
    with Cluster(properties=properties) as cluster:
        yield cluster


def made(bootstrap: str, topic: str) -> bool:
    """The topic is there. While the broker is held to be away, none is made."""
    try:
        create_topic(bootstrap, topic)
    except KafkaException as error:
        return cast(KafkaError, error.args[0]).code() == KafkaError.TOPIC_ALREADY_EXISTS
    return True


def answered(client: AdminClient) -> bool:
    try:
        client.list_topics(timeout=ASK_S)
    except KafkaException:
        return False
    return True


def renewed(client: AdminClient) -> Any:
    """The client that it uses now."""
    return cast(reconnecting_admin.AdminClient, client)._client


def described(client: AdminClient, topic: str) -> bool:
    asked = client.describe_topics(TopicCollection([topic]), request_timeout=ASK_S)
    return asked[topic].exception(30) is None


def lost(bootstrap: str) -> AdminClient:
    """One that nobody answers. It is new clients that are lost, one in ten each time the broker is held to be
    away; of those that have gone on for a while, hardly any."""
    give_up = time.monotonic() + LOST_S
    while time.monotonic() < give_up:
        clients = [admin({"bootstrap.servers": bootstrap}) for _ in range(CLIENTS)]
        renew = time.monotonic() + NEW_S
        while time.monotonic() < renew:
            for client in clients:
                if not answered(client) and not answered(client):
                    return client
    raise AssertionError(f"no client was lost within {LOST_S:g} s")


@pytest.mark.whole
@pytest.mark.parametrize("by", ["a call", "futures"])
def test_an_admin_client_that_has_struck_all_brokers_off_asks_on_with_another(
    fenced_at_times: Cluster, names: Names, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Promise: whatever the brokers have said of themselves, an admin client is answered again soon after
    they are back, and what futures tell counts as much as what a call raises. Should this fail because no
    client was ever lost, librdkafka has been mended, and common/ports/reconnecting_admin.py can go."""
    monkeypatch.setattr(reconnecting_admin, "UNANSWERED_S", 3.0)
    at, topic = fenced_at_times.bootstrap_servers, names.topic("orders")
    wait_until(lambda: made(at, topic), "the topic")
    while True:
        client = lost(at)
        first = renewed(client)
        if by == "a call":
            wait_until(partial(answered, client), "an answer")
        else:
            wait_until(partial(described, client, topic), "an answer")
        if renewed(client) is not first:
            return
        # It was only slow: on to the next.
