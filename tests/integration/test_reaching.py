"""What an operator reads when a cluster can't be reached, or does not let the link in: real listeners, one
line each, no two alike."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

from common.app.entry import entry
from common.config import loading
from common.errors import KafkaTimeout, LinkRefused, SettingsError, VerbatimError
from common.kafka.client import cluster_check
from common.link import identity
from common.link.control_state import Control
from common.ports import Deadline
from deduplicator.command import command as deduplicator
from deduplicator.lane.fencing import FencingProducer
from deduplicator.lane.transactional_ids import TransactionalIds
from offsets.main import command as offsets
from replicator.command import command as replicator
from tests.support.brokers import create_topic
from tests.support.secured import SecuredCluster
from verbatim.local.processes import HOST, free_ports
from verbatim.main import cli

SOURCE = "KAFKA_CLUSTERS_SOURCE_"
CLOSED = f"{HOST}:1"


class ManyListeners(SecuredCluster):
    """One more, in plaintext, that tells its clients to come to an address where nothing listens."""

    def __init__(self, data_folder: Path) -> None:
        super().__init__(data_folder)
        self.lost, self.told = (f"{HOST}:{port}" for port in free_ports(2))

    def _properties(self, node: int) -> dict[str, str]:
        found = super()._properties(node)
        return found | {
            "listeners": f"{found['listeners']},LOST://{self.lost}",
            "advertised.listeners": f"{found['advertised.listeners']},LOST://{self.told}",
            "listener.security.protocol.map": f"{found['listener.security.protocol.map']},LOST:PLAINTEXT",
            "transaction.max.timeout.ms": "30000",
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManyListeners]:
    with ManyListeners(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="module")
def user(cluster: ManyListeners) -> dict[str, str]:
    return cluster.user("alice")


def variables(servers: str, properties: dict[str, str] | None = None) -> dict[str, str]:
    """Both sides of a link are reached so."""
    found = {}
    for side in ("SOURCE", "DESTINATION"):
        found[f"KAFKA_CLUSTERS_{side}_BOOTSTRAP_SERVERS"] = servers
        for name, value in (properties or {}).items():
            found[f"KAFKA_CLUSTERS_{side}_PROPERTIES_{name.upper().replace('.', '_')}"] = value
    return found | {f"{SOURCE}TOPIC": "orders", "HEALTH_PORT": "0"}


def looked(servers: str, properties: dict[str, str] | None = None, allowed_s: float = 4.0) -> VerbatimError:
    """What is raised."""
    settings = loading.load(environ=variables(servers, properties))
    began = time.monotonic()
    with pytest.raises(VerbatimError) as caught:
        cluster_check.cluster_id(settings, "source", Deadline(allowed_s))
    # Ten, and as many again for a machine that is busy otherwise.
    assert time.monotonic() - began < 20
    return caught.value


@pytest.fixture(scope="module")
def ways(cluster: ManyListeners, user: dict[str, str]) -> Iterator[dict[str, tuple[str, dict[str, str]]]]:
    """All that can be wrong: bootstrap servers and properties."""
    plain, secure = cluster.bootstrap_servers, cluster.secure_servers
    # The first handshakes of a JVM take their time.
    settings = loading.load(environ=variables(secure, user))
    assert cluster_check.cluster_id(settings, "source", Deadline(30)) == cluster.cluster_id
    tls = {"security.protocol": "ssl", "ssl.ca.location": user["ssl.ca.location"]}
    without = {name: value for name, value in user.items() if name != "ssl.ca.location"}
    oauth = {**tls, "security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}
    oidc = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "a",
        "sasl.oauthbearer.client.secret": "b",
        "sasl.oauthbearer.token.endpoint.url": f"http://{CLOSED}/token",
    }
    with socket.create_server((HOST, 0)) as silent:
        yield {
            "a closed port": (CLOSED, {}),
            "an unknown host": ("nowhere.invalid:9092", {}),
            "TLS to plaintext": (plain, tls),
            "plaintext to TLS": (secure, {}),
            "SASL without TLS to TLS": (secure, {**user, "security.protocol": "sasl_plaintext"}),
            "an unknown certificate": (secure, without),
            "a wrong password": (secure, {**user, "sasl.password": "another"}),
            "another mechanism": (secure, {**user, "sasl.mechanism": "PLAIN"}),
            "no SASL": (secure, tls),
            "SASL to none": (plain, {**user, "security.protocol": "sasl_plaintext"}),
            "no password": (secure, {n: v for n, v in user.items() if n != "sasl.password"}),
            "no Kerberos": (secure, {**tls, "security.protocol": "sasl_ssl"}),
            "no token": (secure, oauth),
            "nobody to give a token": (secure, {**oauth, **oidc}),
            "no such CA": (secure, {**user, "ssl.ca.location": "/nowhere/ca.pem"}),
            "no such key": (secure, {**user, "ssl.key.location": "/nowhere/key.pem"}),
            "a CA that is none": (secure, {**user, "ssl.ca.location": __file__}),
            "somebody silent": (f"{HOST}:{silent.getsockname()[1]}", {}),
            "advertised elsewhere": (cluster.lost, {}),
        }


EXPECTED: dict[str, tuple[type[VerbatimError], str, str]] = {
    "a closed port": (KafkaTimeout, "BOOTSTRAP_SERVERS", r"127.0.0.1:1: connection refused"),
    "an unknown host": (KafkaTimeout, "BOOTSTRAP_SERVERS", r"nowhere.invalid:9092: .* can't be resolved"),
    "TLS to plaintext": (LinkRefused, "PROPERTIES_SECURITY_PROTOCOL", r"does not speak TLS.*set plaintext"),
    "plaintext to TLS": (LinkRefused, "PROPERTIES_SECURITY_PROTOCOL", r"speaks TLS.*is plaintext: set ssl"),
    "SASL without TLS to TLS": (LinkRefused, "PROPERTIES_SECURITY_PROTOCOL", r"speaks TLS.*set sasl_ssl"),
    "an unknown certificate": (
        LinkRefused,
        "PROPERTIES_SSL_CA_LOCATION",
        r"not trusted \(unable to get local issuer certificate\): set ssl.ca.location",
    ),
    "a wrong password": (
        LinkRefused,
        "PROPERTIES_SASL_PASSWORD",
        r"refuses the credentials of user alice: .*SCRAM-SHA-512",
    ),
    "another mechanism": (
        LinkRefused,
        "PROPERTIES_SASL_MECHANISM",
        r"does not know sasl.mechanism=PLAIN, but SCRAM-SHA-512",
    ),
    "no SASL": (
        LinkRefused,
        "PROPERTIES_SECURITY_PROTOCOL",
        r"nobody in without SASL \(SCRAM-SHA-512\).*set sasl_ssl",
    ),
    "SASL to none": (LinkRefused, "PROPERTIES_SECURITY_PROTOCOL", r"knows no SASL.*set plaintext"),
    "no password": (SettingsError, "PROPERTIES_SASL_USERNAME", r"sasl.password must be set"),
    "no Kerberos": (LinkRefused, "PROPERTIES_SASL_MECHANISM", r"GSSAPI.*set one of OAUTHBEARER, PLAIN"),
    "no token": (SettingsError, "PROPERTIES_SASL_OAUTHBEARER_METHOD", r"nowhere to get a token from"),
    "nobody to give a token": (
        KafkaTimeout,
        "PROPERTIES_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL",
        r"127.0.0.1 port 1|127.0.0.1:1",
    ),
    "no such CA": (SettingsError, "PROPERTIES_SSL_CA_LOCATION", r"can't read /nowhere/ca.pem: No such file"),
    "no such key": (
        SettingsError,
        "PROPERTIES_SSL_KEY_LOCATION",
        r"can't read /nowhere/key.pem: No such file",
    ),
    "a CA that is none": (SettingsError, "PROPERTIES_SSL_CA_LOCATION", r"no certificate or crl found"),
    "somebody silent": (KafkaTimeout, "BOOTSTRAP_SERVERS", r"answers none of Kafka's questions"),
    "advertised elsewhere": (
        KafkaTimeout,
        "BOOTSTRAP_SERVERS",
        r"1 is advertised as \S+, which can't be reached \(connection refused",
    ),
}


def as_expected(way: str, error: Exception | None) -> bool:
    kind, setting, words = EXPECTED[way]
    told = str(error)
    return type(error) is kind and told.startswith(f"{SOURCE}{setting}: ") and bool(re.search(words, told))


def test_each_way_not_to_get_in_has_a_line_of_its_own_within_ten_seconds(
    cluster: ManyListeners, ways: dict[str, tuple[str, dict[str, str]]]
) -> None:
    """Promise: variable, address, what happened and what to do. All of them were "Timed out" after a minute,
    or a traceback."""
    with ThreadPoolExecutor(6) as pool:
        found = dict(zip(ways, pool.map(lambda way: looked(*way), ways.values()), strict=True))
    # Six looks at once on a busy machine: of a broker that had no time to answer nothing else is known.
    # Looked at by itself, it is.
    found |= {way: looked(*ways[way]) for way in EXPECTED if not as_expected(way, found[way])}
    assert {way: found[way] for way in EXPECTED if not as_expected(way, found[way])} == {}
    assert EXPECTED.keys() == found.keys()
    assert cluster.told in str(found["advertised elsewhere"])
    alike = {re.sub(r"127\.0\.0\.1:\d+", "it", str(error)) for error in found.values()}
    assert len(alike) == len(found)


def test_with_bad_addresses_among_sound_ones_all_is_well(
    cluster: ManyListeners, user: dict[str, str]
) -> None:
    """Also with one that speaks another protocol, which alone would be an end at once. (What is told
    where the sound one takes its time: tests/unit/common/kafka/client/test_cluster_check.py.)"""
    for servers, properties in (
        (f"{CLOSED},nowhere.invalid:1,{cluster.bootstrap_servers}", {}),
        (f"{CLOSED},{cluster.bootstrap_servers},{cluster.secure_servers}", user),
    ):
        settings = loading.load(environ=variables(servers, properties))
        assert cluster_check.cluster_id(settings, "destination", Deadline(30)) == cluster.cluster_id


def test_what_only_one_kind_of_client_comes_in_with_is_tried_too(
    cluster: ManyListeners, user: dict[str, str]
) -> None:
    """Promise: the password of consumers alone, wrong, is told of as the link starts, not by a lane that
    reads nothing."""
    given = variables(cluster.secure_servers, user) | {f"{SOURCE}CONSUMER_SASL_PASSWORD": "another"}
    settings = loading.load(environ=given)
    with pytest.raises(LinkRefused, match=r"refuses the credentials of user alice.*its consumer clients"):
        cluster_check.cluster_id(settings, "source", Deadline(10))
    assert cluster_check.cluster_id(settings, "destination", Deadline(10)) == cluster.cluster_id


def test_a_cluster_that_is_away_for_a_while_is_waited_for_and_told_of_at_once(
    cluster: ManyListeners, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = free_ports(1)
    settings = loading.load(environ=variables(f"{HOST}:{port}"))
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(cluster_check.cluster_id, settings, "source", Deadline(30))
        while not caplog.messages:
            assert time.monotonic() - began < 20
            time.sleep(0.05)
        with Forwarded(port, cluster.bootstrap_servers):
            assert looking.result(20) == cluster.cluster_id
    assert len(caplog.messages) == 1
    assert f"{SOURCE}BOOTSTRAP_SERVERS: source broker {HOST}:{port}: connection refused" in caplog.messages[0]


class Forwarded:
    """While it lasts, what comes to a port goes on to an address."""

    def __init__(self, port: int, to: str) -> None:
        host, _, number = to.rpartition(":")
        self._to = (host, int(number))
        self._server = socket.create_server((HOST, port))
        self._open: list[socket.socket] = []

    def __enter__(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        for each in (self._server, *self._open):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            broker = socket.create_connection(self._to)
            self._open += [client, broker]
            for one, other in ((client, broker), (broker, client)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    @staticmethod
    def _pump(one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass


COMMANDS: dict[str, tuple[click.Command, list[str]]] = {
    "replicator": (replicator, []),
    "deduplicator": (deduplicator, []),
    "offsets": (offsets, []),
    "offsets describe": (offsets, ["describe"]),
    **{
        name: (cli, [name, *arguments])
        for name, arguments in {
            "verify": [],
            "topics": [],
            "acls": [],
            "accept-loss": ["orders", "0"],
            "cutover": [],
            "failover": [],
            "pause": ["orders"],
            "status": [],
        }.items()
    },
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_so(
    name: str, cluster: ManyListeners, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: whatever an operator starts, it ends within ten seconds with the same line."""
    for variable, value in variables(cluster.secure_servers).items():
        monkeypatch.setenv(variable, value)
    command, arguments = COMMANDS[name]
    began = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        entry(command, arguments)
    assert time.monotonic() - began < 20
    assert ended.value.code not in (0, None)
    said = capsys.readouterr()
    assert re.search(
        rf"KAFKA_CLUSTERS_\w+_PROPERTIES_SECURITY_PROTOCOL: \w+ broker {cluster.secure_servers} speaks TLS",
        said.err + said.out,
    )
    assert "Traceback" not in said.err


def test_plan_says_so_of_both_clusters(
    cluster: ManyListeners, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, value in variables(cluster.secure_servers).items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as ended:
        entry(cli, ["plan"])
    assert ended.value.code == 1
    said = capsys.readouterr().out
    for side in ("SOURCE", "DESTINATION"):
        assert f"KAFKA_CLUSTERS_{side}_PROPERTIES_SECURITY_PROTOCOL" in said


def test_a_target_that_allows_no_transaction_of_ours_is_refused_by_the_name_of_its_setting(
    cluster: ManyListeners,
) -> None:
    """Promise: at the start, before anything is made; where its configuration may not be read, by whoever
    fences. It was tried again for ever."""
    settings = loading.load(environ=variables(cluster.bootstrap_servers))
    with pytest.raises(LinkRefused, match=r"transaction.max.timeout.ms=30000, .*60000 ms: set it"):
        identity.prepare(settings, True, Deadline(20))
    create_topic(cluster.bootstrap_servers, "mappings")
    ids = TransactionalIds(SimpleNamespace(state=Control()))  # type: ignore[arg-type]
    plan = SimpleNamespace(
        mappings_topic="mappings",
        link="link",
        group="group",
        producer=settings.client_config("destination", "producer"),
    )
    producer = FencingProducer(cast(Any, plan), 0, "staging-0", ids)
    with pytest.raises(LinkRefused, match=r"transaction.max.timeout.ms"):
        producer.fence(Deadline(20))
    producer.drop(False)
