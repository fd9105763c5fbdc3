"""TLS on a real listener that wants a certificate of the client's: keys and certificates as properties,
encrypted keys, folders of authorities."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from common.errors import LinkRefused, SettingsError
from common.kafka.client import cluster_check
from common.kafka.wire.batch_consumer import BatchConsumer
from common.kafka.wire.batch_producer import BatchProducer
from common.kafka.wire.connection import access
from common.ports import Deadline
from tests.conftest import Names
from tests.integration.test_batches import ALL, FOREVER, send, values
from tests.support.authority import Authority
from tests.support.brokers import create_topic, topic_id
from tests.support.harness import Link
from verbatim.local.kafka_cluster import Cluster
from verbatim.local.processes import HOST, free_ports

PASSWORD = "opensesame"  # noqa: S105 - of a key made for one test


class MutualCluster(Cluster):
    """A node with a listener that trusts one authority alone; its own certificate is of the same one."""

    def __init__(self, data_folder: Path, authority: Authority) -> None:
        super().__init__(data_folder=data_folder)
        (port,) = free_ports(1)
        self.tls_servers = f"{HOST}:{port}"
        self._authority = authority

    def _properties(self, node: int) -> dict[str, str]:
        (self.folder / "ca.pem").write_text(self._authority.pem)
        (self.folder / "broker.pem").write_text("".join(self._authority.issue("broker")))
        found = super()._properties(node)
        return found | {
            "listeners": f"{found['listeners']},USERS://{self.tls_servers}",
            "advertised.listeners": f"{found['advertised.listeners']},USERS://{self.tls_servers}",
            "listener.security.protocol.map": f"{found['listener.security.protocol.map']},USERS:SSL",
            "ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
        }


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[MutualCluster]:
    with MutualCluster(tmp_path_factory.mktemp("tls"), authority) as made:
        yield made


def hashed(folder: Path, authority: Authority) -> str:
    (folder / authority.hashed_name).write_text(authority.pem)
    return str(folder)


def inline(authority: Authority, password: str = "") -> dict[str, str]:
    key, certificate = authority.issue("client", password)
    return {"security.protocol": "ssl", "ssl.key.pem": key, "ssl.certificate.pem": certificate}


@pytest.mark.parametrize("material", ["properties", "an encrypted key", "a folder of authorities"])
def test_batches_are_read_and_written_with(
    cluster: MutualCluster, authority: Authority, names: Names, tmp_path: Path, material: str
) -> None:
    given = {
        "properties": lambda: inline(authority) | {"ssl.ca.pem": authority.pem},
        "an encrypted key": lambda: (
            inline(authority, PASSWORD) | {"ssl.ca.pem": authority.pem, "ssl.key.password": PASSWORD}
        ),
        "a folder of authorities": lambda: (
            inline(authority) | {"ssl.ca.location": hashed(tmp_path, authority)}
        ),
    }[material]()
    config, topic = {"bootstrap.servers": cluster.tls_servers, **given}, names.topic()
    create_topic(cluster.bootstrap_servers, topic, config=FOREVER)
    producer = BatchProducer(config, names.link, 60_000, names.link)
    reader = BatchConsumer(config, ALL)
    with closing(producer), closing(reader):
        producer.init_transactions(30)
        producer.begin_transaction()
        send(producer, topic, [b"v"])
        producer.commit_transaction(10)
        reader.assign([(topic, topic_id(cluster.bootstrap_servers, topic), 0, 0, None)])
        got: list[bytes | None] = []
        deadline = Deadline(10)
        while not got and not deadline.passed():
            got += values(reader.read(0.2))
    assert got == [b"v"]


def checked(cluster: MutualCluster, properties: dict[str, str]) -> str:
    variables = {
        f"KAFKA_CLUSTERS_SOURCE_PROPERTIES_{name.upper().replace('.', '_')}": value
        for name, value in properties.items()
    }
    link = Link(cluster.tls_servers, cluster.bootstrap_servers, "a", "x", **variables)
    return cluster_check.cluster_id(link.settings, "source", Deadline(10))


def test_the_client_library_takes_the_same(
    cluster: MutualCluster, authority: Authority, tmp_path: Path
) -> None:
    folder = {"ssl.ca.location": hashed(tmp_path, authority), "ssl.key.password": PASSWORD}
    assert checked(cluster, inline(authority, PASSWORD) | folder) == cluster.cluster_id


def test_a_wrong_key_password_is_one_line(cluster: MutualCluster, authority: Authority) -> None:
    wrong = inline(authority, PASSWORD) | {"ssl.ca.pem": authority.pem, "ssl.key.password": "wrong-one"}
    with pytest.raises(SettingsError, match=r"^KAFKA_CLUSTERS_SOURCE_PROPERTIES_SSL_KEY") as caught:
        checked(cluster, wrong)
    with pytest.raises(KafkaException, match="TLS can't be set up") as ours:
        access({"bootstrap.servers": cluster.tls_servers, **wrong})
    for words in (str(caught.value), str(ours.value)):
        assert "\n" not in words
        assert "wrong-one" not in words


def test_a_certificate_of_an_authority_that_the_broker_does_not_trust_is_refused(
    cluster: MutualCluster, authority: Authority
) -> None:
    with pytest.raises(LinkRefused, match=r"SSL_CERTIFICATE_LOCATION.*breaks off the TLS handshake"):
        checked(cluster, inline(Authority("other")) | {"ssl.ca.pem": authority.pem})
