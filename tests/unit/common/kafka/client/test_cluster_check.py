"""Where brokers say that they are, set beside what can be reached. Real listeners and brokers:
tests/integration/test_reaching.py."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException

from common.config import loading
from common.config.settings import Settings
from common.errors import KafkaTimeout
from common.kafka.client import cluster_check
from common.ports import Deadline
from verbatim.local.processes import HOST, free_ports


@pytest.fixture
def settings() -> Settings:
    return loading.load(
        environ={
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": f"{HOST}:1",
            "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders",
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": f"{HOST}:1",
        }
    )


def look(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, answer: Any, told: list[str], errors: Any = ()
) -> str:
    """The cluster's id, told by a client that answers so."""

    class Client:
        def __init__(self, config: dict[str, Any], **_: Any) -> None:
            self.error_cb = config["error_cb"]

        def list_topics(self, *_: Any, timeout: float) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        def poll(self, _: float) -> None:
            for code, words in errors:
                self.error_cb(SimpleNamespace(code=lambda code=code: code, str=lambda words=words: words))

    monkeypatch.setattr(cluster_check, "AdminClient", Client)
    return cluster_check.cluster_id(settings, "source", Deadline(1.0), told.append)


def metadata(brokers: dict[int, int]) -> Any:
    """Broker -> port."""
    named = {i: SimpleNamespace(id=i, host=HOST, port=port) for i, port in brokers.items()}
    return SimpleNamespace(cluster_id="c", brokers=named)


def test_brokers_that_are_away_are_named_while_others_are_not(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """Promise: the start goes on, and who leads what can't be read is on record."""
    (closed,) = free_ports(1)
    told: list[str] = []
    with socket.create_server((HOST, 0)) as open_:
        answer = metadata({1: closed, 2: open_.getsockname()[1]})
        assert look(monkeypatch, settings, answer, told) == "c"
    assert len(told) == 1
    assert told[0].startswith(
        f"KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS: source broker 1 is advertised as {HOST}:{closed}, which can't be reached (connection refused"
    )


def test_a_cluster_that_names_no_broker_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    with pytest.raises(KafkaTimeout, match="names no broker of its cluster"):
        look(monkeypatch, settings, metadata({}), [])


def test_an_address_that_only_an_error_tells_is_an_advertised_one(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """The client has learnt it from an answer of its own, and asks nobody else any more."""
    (closed,) = free_ports(1)
    words = f"{HOST}:{closed}/7: Connect to ipv4#{HOST}:{closed} failed: Connection refused (after 0ms in state CONNECT)"
    with pytest.raises(KafkaTimeout, match=rf"broker 7 is advertised as {HOST}:{closed}, which can't be"):
        look(monkeypatch, settings, KafkaException(), [], [(-195, words)])
