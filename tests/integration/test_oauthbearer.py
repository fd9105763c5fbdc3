"""SASL/OAUTHBEARER on a real broker: tokens from an OIDC endpoint with signed JWTs, and from a function;
sessions that end; wrong secrets."""

from __future__ import annotations

import base64
import json
import logging
import re
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from common.errors import KafkaTimeout, LinkRefused
from common.kafka.client import clients, cluster_check
from common.kafka.wire import oauth_tokens
from common.kafka.wire.batch_consumer import BatchConsumer
from common.kafka.wire.batch_producer import BatchProducer
from common.kafka.wire.connection import Connection, access
from common.ports import Deadline
from tests.conftest import Names
from tests.integration.test_batches import ALL, FOREVER, send, values
from tests.support.authority import Authority
from tests.support.brokers import Record, create_topic, produce, read_all, topic_id
from tests.support.harness import Link
from verbatim.local.kafka_cluster import Cluster
from verbatim.local.processes import HOST, free_ports

SESSION_S = 3.0


ISSUER, AUDIENCE = "https://issuer.example", "kafka"


def base64url(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def encoded(value: Any) -> str:
    return base64url(json.dumps(value).encode())


def unsecured(principal: str = "admin", life_s: float = 3600) -> str:
    # A broker's clock has milliseconds: what was issued within the present one is of the future to it.
    now = int(time.time())
    return f"{encoded({'alg': 'none'})}.{encoded({'sub': principal, 'iat': now, 'exp': now + life_s})}."


class Endpoint(BaseHTTPRequestHandler):
    """Gives tokens that live six seconds to whoever knows the secret."""

    given = 0

    def token(self) -> str:
        return unsecured(life_s=6)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        right = "Basic " + base64.b64encode(b"verbatim:hush").decode()
        known = self.headers["Authorization"] == right
        body = json.dumps({"access_token": self.token(), "expires_in": 6}).encode()
        type(self).given += known
        self.answer(200 if known else 401, body if known else b"")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class SigningEndpoint(Endpoint):
    """Its tokens are signed (RS256); whoever asks gets the key to check them with, as a JWKS (RFC 7517)."""

    key = rsa.generate_private_key(65537, 2048)

    def token(self) -> str:
        now = int(time.time())
        claims = {"sub": "admin", "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 6}
        signed = f"{encoded({'alg': 'RS256', 'kid': 'one'})}.{encoded(claims)}"
        return f"{signed}.{base64url(self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def do_GET(self) -> None:
        public = self.key.public_key().public_numbers()
        numbers = {
            name: base64url(value.to_bytes((value.bit_length() + 7) // 8))
            for name, value in (("n", public.n), ("e", public.e))
        }
        keys = [{"kty": "RSA", "kid": "one", "use": "sig", "alg": "RS256", **numbers}]
        self.answer(200, json.dumps({"keys": keys}).encode())


class TokenCluster(Cluster):
    """A node with a listener for tokens without signature, and one for signed ones; Kafka's own
    validators."""

    def __init__(self, data_folder: Path, keys_url: str) -> None:
        super().__init__(
            data_folder=data_folder,
            jvm_options=[f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys_url}"],
        )
        self._ports_of = dict(zip(("USERS", "SIGNED"), free_ports(2), strict=True))
        self._keys_url = keys_url

    @property
    def token_servers(self) -> str:
        return f"{HOST}:{self._ports_of['USERS']}"

    @property
    def signed_servers(self) -> str:
        return f"{HOST}:{self._ports_of['SIGNED']}"

    def _properties(self, node: int) -> dict[str, str]:
        found = super()._properties(node)
        added = "".join(f",{name}://{HOST}:{port}" for name, port in self._ports_of.items())
        module = "org.apache.kafka.common.security.oauthbearer"
        signed = "listener.name.signed."
        return found | {
            "listeners": found["listeners"] + added,
            "advertised.listeners": found["advertised.listeners"] + added,
            "listener.security.protocol.map": (
                f"{found['listener.security.protocol.map']},USERS:SASL_PLAINTEXT,SIGNED:SASL_PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.users.oauthbearer.sasl.jaas.config": (
                f"{module}.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=broker;"
            ),
            f"{signed}oauthbearer.sasl.jaas.config": f"{module}.OAuthBearerLoginModule required;",
            f"{signed}oauthbearer.sasl.server.callback.handler.class": f"{module}.OAuthBearerValidatorCallbackHandler",
            f"{signed}sasl.oauthbearer.jwks.endpoint.url": self._keys_url,
            f"{signed}sasl.oauthbearer.expected.audience": AUDIENCE,
            f"{signed}sasl.oauthbearer.expected.issuer": ISSUER,
            "connections.max.reauth.ms": str(int(SESSION_S * 1000)),
        }


@contextmanager
def serving(handler: type[Endpoint], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    with ThreadingHTTPServer((HOST, 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http{'' if tls is None else 's'}://{HOST}:{server.server_address[1]}/token"
        server.shutdown()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenCluster]:
    with (
        serving(SigningEndpoint) as keys_url,
        TokenCluster(tmp_path_factory.mktemp("tokens"), keys_url) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serving(Endpoint) as url:
        yield url


WAY_IN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


def oidc(url: str, secret: str = "hush") -> dict[str, str]:  # noqa: S107
    names = {"method": "oidc", "token.endpoint.url": url, "client.id": "verbatim", "client.secret": secret}
    return WAY_IN | {f"sasl.oauthbearer.{name}": value for name, value in names.items()}


def test_connections_outlive_their_sessions_and_their_tokens(
    cluster: TokenCluster, endpoint: str, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: records are read and committed for longer than a session and a token last, through the
    connections of the beginning."""
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


def variables(properties: dict[str, str], *sides: str) -> dict[str, str]:
    return {
        f"KAFKA_CLUSTERS_{side}_PROPERTIES_{name.upper().replace('.', '_')}": value
        for side in sides
        for name, value in properties.items()
    }


def test_a_link_copies_with_signed_tokens_at_both_ends(
    cluster: TokenCluster, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an endpoint that is trusted by `https.ca.location`, to all connections and to the client library's
    clients."""
    topic, authority = names.topic(), Authority()
    create_topic(cluster.bootstrap_servers, topic, config=FOREVER)
    (tmp_path / "ca.pem").write_text(authority.pem)
    (tmp_path / "endpoint.pem").write_text("".join(authority.issue("endpoint")))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "endpoint.pem")
    with serving(SigningEndpoint, tls) as url:
        properties = oidc(url) | {"https.ca.location": str(tmp_path / "ca.pem")}
        given = variables(properties, "SOURCE", "DESTINATION")
        for name, value in given.items():
            # Lanes look for secrets in their own environment.
            monkeypatch.setenv(name, value)
        link = Link(
            cluster.signed_servers, cluster.signed_servers, names.link, topic,
            KAFKA_CLUSTERS_DESTINATION_TOPIC="{topic}.copy", **given,
        )  # fmt: skip
        produce(cluster.bootstrap_servers, topic, [Record(b"v", b"k", 0)])
        assert link.copy() == (0, 0)
    assert [seen.value for seen in read_all(cluster.bootstrap_servers, f"{topic}.copy")[0]] == [b"v"]


def test_a_token_signed_by_somebody_else_is_refused(
    cluster: TokenCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SigningEndpoint, "key", rsa.generate_private_key(65537, 2048))
    with serving(SigningEndpoint) as url, pytest.raises(KafkaException, match="invalid_token"):
        opened(cluster.signed_servers, oidc(url))


def opened(at: str, properties: dict[str, str]) -> None:
    host, _, port = at.partition(":")
    with closing(Connection(access({"bootstrap.servers": at, **properties}), (host, int(port)))) as made:
        made.open(Deadline(10))


def test_a_function_serves_whole_batches_and_every_kind_of_client(
    cluster: TokenCluster, names: Names
) -> None:
    properties = WAY_IN | {oauth_tokens.PROVIDER: f"{__name__}:provided"}
    config = {"bootstrap.servers": cluster.token_servers, **properties}
    opened(cluster.token_servers, properties)
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda make: make(config), (clients.admin, clients.consumer, clients.producer)))
    took = []
    for client in made:
        begun = time.monotonic()
        assert client.list_topics(timeout=10).brokers
        took.append(time.monotonic() - begun)
    # Who is not would wait for a second, each of them.
    assert min(took) < 1, "connected as soon as it is made"
    assert clients.admin(config) is made[0], "no second one, which would take a second to make"
    made[1].close()


def away() -> None:
    raise OSError("no answer from STS")


def rubbish() -> tuple[str, str]:
    return "secret", "tomorrow"


def in_milliseconds() -> tuple[str, float]:
    return "secret", 1000 * (time.time() + 60)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        (f"{__name__}:away", KafkaTimeout, "no answer from STS"),
        (f"{__name__}:rubbish", LinkRefused, r"is not \(token, expires\)"),
        (f"{__name__}:in_milliseconds", LinkRefused, "expires in seconds since 1970"),
        ("aws-msk-iam", LinkRefused, "the extra msk-iam"),
    ],
)
def test_a_provider_without_a_token_is_one_line_with_the_variable(
    cluster: TokenCluster, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[Exception], words: str
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    # What is None there can't be imported.
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    properties = variables(WAY_IN | {oauth_tokens.PROVIDER: name}, "SOURCE")
    link = Link(cluster.token_servers, cluster.bootstrap_servers, "a", "x", **properties)
    begun = time.monotonic()
    with pytest.raises(kind) as caught:
        cluster_check.cluster_id(link.settings, "source", Deadline(1))
    assert time.monotonic() - begun < 10
    expected = rf"KAFKA_CLUSTERS_SOURCE_PROPERTIES_SASL_OAUTHBEARER_PROVIDER: source broker {cluster.token_servers}: .*{words}.*"
    assert re.fullmatch(expected, str(caught.value))
    assert "secret" not in str(caught.value)


def test_amazons_signer_is_called_as_it_is_made(
    cluster: TokenCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its package imports none of its modules itself."""
    package = tmp_path / "aws_msk_iam_sasl_signer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "MSKAuthTokenProvider.py").write_text(
        f"import time\nfrom {__name__} import unsecured\n"
        "def generate_auth_token(region):\n"
        "    assert region == 'eu-west-1'\n"
        "    return unsecured(), 1000 * (time.time() + 900)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    oauth_tokens._shared.cache_clear()
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    opened(cluster.token_servers, WAY_IN | {oauth_tokens.PROVIDER: "aws-msk-iam"})


def test_a_wrong_secret_is_one_line(cluster: TokenCluster, endpoint: str) -> None:
    with pytest.raises(KafkaException, match=r"answers 401 .*client\.secret") as caught:
        opened(cluster.token_servers, oidc(endpoint, "wrong"))
    assert caught.value.args[0].code() == KafkaError._AUTHENTICATION
    assert "wrong" not in str(caught.value)


def test_an_application_ends_at_a_wrong_secret_with_the_variable(
    cluster: TokenCluster, endpoint: str, names: Names
) -> None:
    properties = variables(oidc(endpoint, "wrong"), "SOURCE")
    link = Link(cluster.token_servers, cluster.bootstrap_servers, names.link, "x", **properties)
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
