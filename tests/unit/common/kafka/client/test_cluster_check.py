"""Where brokers say that they are, set beside what can be reached. Real listeners and brokers:
tests/integration/test_reaching.py."""

from __future__ import annotations

import socket
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from common.config import loading
from common.config.settings import Settings
from common.errors import KafkaTimeout, LinkRefused
from common.kafka.client import cluster_check
from common.kafka.client.listener_check import Reason
from common.ports import Deadline
from verbatim.local.processes import HOST, free_ports

SETTINGS = {
    "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": f"{HOST}:1",
    "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders",
    "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": f"{HOST}:1",
}


@pytest.fixture
def settings() -> Settings:
    return loading.load(environ=SETTINGS)


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
            return answer() if callable(answer) else answer

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


def test_what_is_heard_of_one_broker_is_told_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sound one that was slow was told to be of another protocol, in the words about the one before it.
    What names nobody may be about any."""
    heard: dict[int, Any] = {}
    monkeypatch.setattr(
        cluster_check, "why", lambda config, address, words: heard.update({address[1]: words})
    )
    servers = {"KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": f"{HOST}:1,[::1]:2,{HOST}:3"}
    given = loading.load(environ={**SETTINGS, **servers})
    age = " (after 0ms in state SSL_HANDSHAKE)"
    errors = [
        (KafkaError._TRANSPORT, f"sasl_ssl://{HOST}:1/bootstrap: SSL handshake failed{age}"),
        (KafkaError._AUTHENTICATION, "Failed to acquire a token"),
        (KafkaError._TRANSPORT, f"ssl://[::1]:2/bootstrap: it is IPv6{age}"),
    ]
    with pytest.raises(KafkaTimeout):
        look(monkeypatch, given, KafkaException(), [], errors)
    all_ = {KafkaError._AUTHENTICATION: "Failed to acquire a token"}
    assert heard == {
        1: all_ | {KafkaError._TRANSPORT: "SSL handshake failed"},
        2: all_ | {KafkaError._TRANSPORT: "it is IPv6"},
        3: all_,
    }


def test_a_client_that_was_told_where_brokers_are_is_asked_about_these(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """One that does not let it in there is named, not the bootstrap server, against which nothing stands."""
    with socket.create_server((HOST, 0)) as open_:
        port = open_.getsockname()[1]
        against = {port: Reason("SECURITY_PROTOCOL", f"{HOST}:{port} speaks TLS", False)}
        monkeypatch.setattr(cluster_check, "why", lambda config, address, heard: against.get(address[1]))
        words = f"{HOST}:{port}/7: Disconnected (after 0ms in state APIVERSION_QUERY)"
        with pytest.raises(LinkRefused, match=f"source broker {HOST}:{port} speaks TLS"):
            look(monkeypatch, settings, KafkaException(), [], [(KafkaError._TRANSPORT, words)])


@pytest.mark.parametrize("comes", [True, False])
def test_a_broker_whose_trouble_may_pass_is_waited_for_beside_one_that_never_lets_in(
    comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been busy with others. What stands against the other one is told at once, and is an end
    where nobody else comes."""
    servers = {"KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": f"{HOST}:1,{HOST}:2"}
    given = loading.load(environ={**SETTINGS, **servers})
    against = {
        1: Reason("SECURITY_PROTOCOL", "speaks no TLS", False),
        2: Reason("BOOTSTRAP_SERVERS", "is busy", True),
    }
    monkeypatch.setattr(cluster_check, "why", lambda config, address, heard: against[address[1]])
    monkeypatch.setattr(cluster_check, "MAY_PASS_S", 0.5)
    with socket.create_server((HOST, 0)) as open_:
        there = metadata({1: open_.getsockname()[1]})
        looks = count(1)

        def answer() -> Any:
            if next(looks) < 3 or not comes:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            return there

        try:
            found = look(monkeypatch, given, answer, [], [(KafkaError._TRANSPORT, "it was closed")])
        except LinkRefused as refused:
            found = str(refused)
    assert found == "c" if comes else "speaks no TLS" in found
