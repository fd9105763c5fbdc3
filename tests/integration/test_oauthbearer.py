"""SASL/OAUTHBEARER on a real broker: tokens from an OIDC endpoint with signed JWTs, and from a function; sessions that end; wrong secrets."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from common.errors import LinkRefused
from common.kafka.client import cluster_check
from common.kafka.wire import oauth_tokens
from common.kafka.wire.batch_consumer import BatchConsumer
from common.kafka.wire.batch_producer import BatchProducer
from common.kafka.wire.connection import Connection, access
from common.ports import Deadline
from tests.conftest import Names
from tests.integration.test_batches import ALL, FOREVER, send, values
from tests.support.brokers import Record, create_topic, produce, read_all, topic_id
from tests.support.harness import Link
from verbatim.local.kafka_cluster import Cluster
from verbatim.local.processes import HOST, free_ports

SESSION_S = 3.0


def unsecured(principal: str = "admin", life_s: float = 3600) -> str:
    def encoded(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    now = time.time()
    return f"{encoded({'alg': 'none'})}.{encoded({'sub': principal, 'iat': now, 'exp': now + life_s})}."


class Endpoint(BaseHTTPRequestHandler):
    """Gives tokens that live six seconds to whoever knows the secret."""

    given = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        right = "Basic " + base64.b64encode(b"verbatim:hush").decode()
        known = self.headers["Authorization"] == right
        body = json.dumps({"access_token": unsecured(life_s=6), "expires_in": 6}).encode()
        self.send_response(200 if known else 401)
        self.end_headers()
        if known:
            type(self).given += 1
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class TokenCluster(Cluster):
    """A node with a listener for tokens; Kafka's own validator of unsecured ones."""

    def __init__(self, data_folder: Path) -> None:
        super().__init__(data_folder=data_folder)
        (self._port,) = free_ports(1)

    @property
    def token_servers(self) -> str:
        return f"{HOST}:{self._port}"

    def _properties(self, node: int) -> dict[str, str]:
        found = super()._properties(node)
        return found | {
            "listeners": f"{found['listeners']},USERS://{self.token_servers}",
            "advertised.listeners": f"{found['advertised.listeners']},USERS://{self.token_servers}",
            "listener.security.protocol.map": f"{found['listener.security.protocol.map']},USERS:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.users.oauthbearer.sasl.jaas.config": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=broker;"
            ),
            "connections.max.reauth.ms": str(int(SESSION_S * 1000)),
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenCluster]:
    with TokenCluster(tmp_path_factory.mktemp("tokens")) as made:
        yield made


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer((HOST, 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_address[1]}/token"
        server.shutdown()


WAY_IN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


def oidc(url: str, secret: str = "hush") -> dict[str, str]:  # noqa: S107
    names = {"method": "oidc", "token.endpoint.url": url, "client.id": "verbatim", "client.secret": secret}
    return WAY_IN | {f"sasl.oauthbearer.{name}": value for name, value in names.items()}


def test_connections_outlive_their_sessions_and_their_tokens(
    cluster: TokenCluster, endpoint: str, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: records are read and committed for longer than a session and a token last, through the connections of the beginning."""
    caplog.set_level(logging.WARNING)
    at, topic = cluster.bootstrap_servers, names.topic()
    create_topic(at, topic, config=FOREVER)
    user = {"bootstrap.servers": cluster.token_servers, **oidc(endpoint)}
    producer = BatchProducer(user, names.link, 60_000, names.link)
    reader = BatchConsumer(user | {"fetch.wait.max.ms": 100}, ALL)
    before, connections = Endpoint.given, set()
    committed: list[bytes] = []
    got: list[bytes | None] = []
    with closing(producer), closing(reader):
        producer.init_transactions(30)
        reader.assign([(topic, topic_id(at, topic), 0, 0, None)])
        until = time.monotonic() + 8
        while time.monotonic() < until or len(got) < len(committed):
            assert time.monotonic() < until + 20, "what was committed is not read"
            if time.monotonic() < until:
                producer.begin_transaction()
                send(producer, topic, [b"%d" % len(committed)])
                committed.append(b"%d" % len(committed))
                producer.commit_transaction(10)
            got += values(reader.read(0.2))
            connections |= {
                *producer._brokers._connections.values(),
                *reader._sessions.brokers._connections.values(),
            }
    assert got == committed
    assert len(connections) == 4
    assert 2 <= Endpoint.given - before <= 4, "renewed, and one token for all"
    assert not caplog.messages


def provided() -> tuple[str, float]:
    return unsecured(), time.time() + 3600


def test_a_link_copies_with_tokens_at_both_ends(cluster: TokenCluster, names: Names) -> None:
    """The function serves the client library's clients as well as whole batches."""
    topic = names.topic()
    create_topic(cluster.bootstrap_servers, topic, config=FOREVER)
    properties = WAY_IN | {oauth_tokens.PROVIDER: f"{__name__}:provided"}
    variables = {
        f"KAFKA_CLUSTERS_{side}_PROPERTIES_{name.upper().replace('.', '_')}": value
        for side in ("SOURCE", "DESTINATION")
        for name, value in properties.items()
    }
    link = Link(
        cluster.token_servers, cluster.token_servers, names.link, topic,
        KAFKA_CLUSTERS_DESTINATION_TOPIC="{topic}.copy", **variables,
    )  # fmt: skip

    produce(cluster.bootstrap_servers, topic, [Record(b"v", b"k", 0)])
    assert link.copy() == (0, 0)
    assert [seen.value for seen in read_all(cluster.bootstrap_servers, f"{topic}.copy")[0]] == [b"v"]


def test_a_wrong_secret_is_one_line(cluster: TokenCluster, endpoint: str) -> None:
    config = {"bootstrap.servers": cluster.token_servers, **oidc(endpoint, "wrong")}
    host, _, port = cluster.token_servers.partition(":")
    with pytest.raises(KafkaException, match=r"answers 401 .*client\.secret") as caught:
        Connection(access(config), (host, int(port))).open(Deadline(10))
    assert caught.value.args[0].code() == KafkaError._AUTHENTICATION
    assert "wrong" not in str(caught.value)


def test_an_application_ends_at_a_wrong_secret_with_the_variable(
    cluster: TokenCluster, endpoint: str, names: Names
) -> None:
    variables = {
        f"KAFKA_CLUSTERS_SOURCE_PROPERTIES_{name.upper().replace('.', '_')}": value
        for name, value in oidc(endpoint, "wrong").items()
    }
    link = Link(cluster.token_servers, cluster.bootstrap_servers, names.link, "x", **variables)
    begun = time.monotonic()
    with pytest.raises(
        LinkRefused, match=r"^KAFKA_CLUSTERS_SOURCE_PROPERTIES_SASL_OAUTHBEARER_CLIENT_SECRET: .*answers 401"
    ):
        cluster_check.cluster_id(link.settings, "source", Deadline(10))
    assert time.monotonic() - begun < 10


def test_a_token_that_the_broker_does_not_take_is_refused_in_its_words(
    cluster: TokenCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth_tokens, "fetched", lambda _: oauth_tokens.Token("no.token.x", time.time() + 60))
    config = {
        "bootstrap.servers": cluster.token_servers,
        "client.id": "x",
        **WAY_IN,
        "sasl.oauthbearer.scope": "bad",
    }
    host, _, port = cluster.token_servers.partition(":")
    with pytest.raises(KafkaException, match="invalid_token") as caught:
        Connection(access(config), (host, int(port))).open(Deadline(10))
    assert caught.value.args[0].code() == KafkaError._AUTHENTICATION


def test_tokens_without_signature_are_made_as_the_library_makes_them(cluster: TokenCluster) -> None:
    config = {
        "bootstrap.servers": cluster.token_servers, **WAY_IN,
        "enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": "principal=admin scope=a,b extension_x=y",
    }  # fmt: skip
    host, _, port = cluster.token_servers.partition(":")
    with closing(Connection(access(config), (host, int(port)))) as made:
        made.open(Deadline(10))
        assert made.fresh()
