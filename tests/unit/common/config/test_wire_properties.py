"""What becomes of the client library's properties where records go by connections of Verbatim's own."""

from __future__ import annotations

import datetime as dt
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from common.config import client_properties, wire_properties
from common.config.client_properties import Given, resolve
from common.config.wire_properties import NO_EFFECT, refused, without_effect
from common.kafka.wire.connection import access

PLAIN = {"bootstrap.servers": "b:1"}
BOOTSTRAP = Given("bootstrap.servers", "b:1", "BOOTSTRAP")
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBfzCCASWgAwIBAgIUFEpxLzMpWAxDiObF8q5/HLCnaewwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyNTIwNDkzN1oYDzIxMjYxMTAx
MjA0OTM3WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATtIugLXL2hv4eC7w4/jsVvqjLgij55dGlDNsLjlZxRlKi9XIpviPw0
GgqNgacEveUd46CD7Gc/Wfaaq+pW+i3co1MwUTAdBgNVHQ4EFgQUfC+NUkzcuNEh
fKYSWKsTsSk2CZAwHwYDVR0jBBgwFoAUfC+NUkzcuNEhfKYSWKsTsSk2CZAwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiAKp2v5c1RkRdnWsgbWPZOd
uObMeEDUOMiSvQkUpzILxQIhAOREa2a9sXXKjN7rjLByqvRBWr3Kp/NEZh3l+Usd
ODVC
-----END CERTIFICATE-----
"""
ENCRYPTED_KEY = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhmLNfch8EdXgICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEFl2oQqXP3lYlltzGljTTmQEgZDk
hJQSvri/+S/5xqoqttISVP8u3Iwgbgwjhyg5ki7WnfZT4ngxNXMG0Fk8a4wbDf9F
lIMGPyNnafybgprLbMrgU/thJV3YIRnxgY29jyObAIPSJ2eQrICLJliy/XdjC773
dFDMnN8Y9txk7wYadtqXVsvnKtOwe55QdvUyKretNyioIg1Q/gqeReePFHhhy1k=
-----END ENCRYPTED PRIVATE KEY-----
"""
"""Of the certificate, encrypted with "opensesame". Made for this test; nobody trusts it."""

_HEEDED = """
    bootstrap.servers broker.address.family check.crcs client.id compression.level compression.type
    enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification fetch.max.bytes
    fetch.min.bytes fetch.wait.max.ms https.ca.location https.ca.pem max.partition.fetch.bytes
    sasl.mechanism sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config
    sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
    sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password sasl.username
    security.protocol ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem
    ssl.cipher.suites ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm
    ssl.key.location ssl.key.password ssl.key.pem
"""
HEEDED = frozenset(_HEEDED.split())
"""They mean the same to both. (`check.crcs`: batches are always checked. `sub.claim.name`: how the library
names whom a token is for, in its log.)"""
_ELSEWHERE = """
    api.version.fallback.ms api.version.request api.version.request.timeout.ms
    auto.commit.interval.ms broker.version.fallback consume.callback.max.messages
    coordinator.query.interval.ms debug enable.metrics.push enable.random.seed enabled_events
    fetch.queue.backoff.ms group.protocol.type group.remote.assignor heartbeat.interval.ms
    internal.termination.signal log.connection.close log.queue log.thread.name log_level
    max.poll.interval.ms max.poll.records message.copy.max.bytes offset.store.method
    offset.store.path offset.store.sync.interval.ms partition.assignment.strategy partitioner
    produce.offset.report queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages queued.max.messages.kbytes queued.min.messages sasl.kerberos.keytab
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
    sasl.kerberos.service.name session.timeout.ms share.acknowledgement.mode socket.blocking.max.ms
    statistics.interval.ms sticky.partitioning.linger.ms topic.metadata.propagation.max.ms
    topic.metadata.refresh.fast.cnt topic.metadata.refresh.fast.interval.ms
    topic.metadata.refresh.sparse
"""
ELSEWHERE = frozenset(_ELSEWHERE.split())
"""They speak of a client's queues, callbacks, logs and groups, of which our connections have none; or of
GSSAPI, which is refused itself."""


def test_each_property_of_the_library_is_heeded_or_refused_or_without_effect() -> None:
    ours = {name for name in client_properties.KNOWN if name not in client_properties.ALIASES}
    ours -= client_properties.owned()
    sets = [HEEDED & ours, set(wire_properties.REFUSED), ELSEWHERE, NO_EFFECT]
    assert set().union(*sets) == ours
    assert sum(map(len, sets)) == len(ours)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, None),
        ({"security.protocol": "SSL", "ssl.ca.location": "ca.pem", "ssl.key.password": "p"}, None),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u"}, None),
        ({"security.protocol": "SASL_SSL", "sasl.mechanisms": "plain"}, None),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism=GSSAPI"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"},
            None,
        ),
        ({"security.protocol": "SSL", "ssl.keystore.location": "k.p12"}, "ssl.keystore.location"),
        ({"security.protocol": "SSL", "ssl.cipher.suites": "A"}, None),
        ({"sasl.oauthbearer.assertion.file": "x"}, "sasl.oauthbearer.assertion.file"),
        ({"sasl.mechanism": "OAUTHBEARER"}, None),
        ({"plugin.library.paths": "x"}, "plugin.library.paths"),
    ],
)
def test_what_can_not_be_followed_is_named(config: dict[str, str], why: str | None) -> None:
    found = refused(PLAIN | config)
    assert (found and found[0]) == why


def test_who_sets_what_has_no_effect_is_told_where() -> None:
    given = [(False, [Given("linger.ms", "5", "SOME_VARIABLE"), Given("debug", "all", "ANOTHER")])]
    _, warnings = resolve("producer", given, BOOTSTRAP, direct=True)
    assert len(warnings) == 1
    assert warnings[0].startswith("SOME_VARIABLE: linger.ms has no effect on records, which are written")
    assert resolve("producer", given, BOOTSTRAP)[1] == []


@pytest.mark.parametrize(
    ("codec", "told"), [("lz4", True), ("snappy", True), (None, True), ("zstd", False), ("gzip", False)]
)
def test_a_level_that_a_codec_does_not_have_has_no_effect(codec: str | None, told: bool) -> None:
    config = {"compression.level": 9} | ({} if codec is None else {"compression.type": codec})
    assert without_effect(config) == (["compression.level"] if told else [])


def tls(**config: str) -> dict[str, str]:
    return PLAIN | {"security.protocol": "ssl"} | {k.replace("_", "."): v for k, v in config.items()}


def test_authorities_are_read_from_a_file_a_folder_and_a_property(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(CERTIFICATE)
    for one in (tls(ssl_ca_location=str(file)), tls(ssl_ca_pem=CERTIFICATE)):
        context = access(one).tls
        assert context is not None and context.cert_store_stats()["x509"] == 1
    assert access(tls(ssl_ca_location=str(tmp_path))).tls is not None


def test_probe_means_the_authorities_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bundle.crt"
    file.write_text(CERTIFICATE)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    for one in (tls(ssl_ca_location="probe"), tls()):
        context = access(one).tls
        assert context is not None and context.cert_store_stats()["x509"] == 1


def test_authorities_that_are_not_there_are_named() -> None:
    with pytest.raises(KafkaException, match=r"ssl\.ca\.location: there is no /nowhere/ca\.pem"):
        access(tls(ssl_ca_location="/nowhere/ca.pem"))


def test_an_encrypted_key_is_read_with_its_password() -> None:
    config = tls(ssl_certificate_pem=CERTIFICATE, ssl_key_pem=ENCRYPTED_KEY, ssl_key_password="opensesame")  # noqa: S106
    assert access(config).tls is not None


def test_an_encrypted_key_without_a_password_asks_nobody() -> None:
    """At a terminal OpenSSL would ask: a terminal of its own shows that it doesn't."""
    script = shutil.which("script")
    code = (
        "import sys; from common.kafka.wire.connection import access; from tests.unit.common.config.test_wire_properties import *\n"
        "try: access(tls(ssl_certificate_pem=CERTIFICATE, ssl_key_pem=ENCRYPTED_KEY))\n"
        "except KafkaException as error: print(error.args[0].str())"
    )
    command = [sys.executable, "-c", code]
    if script is not None:
        command = [script, "-qec", " ".join(map(_quoted, command)), "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    assert "the key is encrypted, and ssl.key.password is not set" in done.stdout, done


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def test_ciphers_and_a_curve_are_followed_or_named() -> None:
    context = access(tls(ssl_cipher_suites="ECDHE-RSA-AES256-GCM-SHA384", ssl_curves_list="prime256v1")).tls
    assert context is not None
    older = {c["name"] for c in context.get_ciphers() if c["protocol"] != "TLSv1.3"}
    assert older == {"ECDHE-RSA-AES256-GCM-SHA384"}
    for name, value in (("ssl_cipher_suites", "NONE-SUCH"), ("ssl_curves_list", "P-256:P-384:x")):
        with pytest.raises(KafkaException, match=name.replace("_", r"\.")):
            access(tls(**{name: value}))
    with pytest.raises(KafkaException, match=r"ssl\.crl\.location: there is no /nowhere"):
        access(tls(ssl_crl_location="/nowhere"))


def test_a_revoked_certificate_is_refused(tmp_path: Path) -> None:
    now, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
    key = ec.generate_private_key(ec.SECP256R1())

    def named(what: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, what)])

    def certificate(what: str, number: int, ca: bool) -> x509.Certificate:
        made = x509.CertificateBuilder(
            named("ca"), named(what), key.public_key(), number, now - day, now + day
        )
        made = made.add_extension(x509.BasicConstraints(ca, None), True)
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("b")]), False)
        return made.sign(key, hashes.SHA256())

    pem = serialization.Encoding.PEM
    own = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate("b", 7, False).public_bytes(pem)
    (tmp_path / "own.pem").write_bytes(own)
    (tmp_path / "ca.pem").write_bytes(certificate("ca", 1, True).public_bytes(pem))
    revoked = x509.RevokedCertificateBuilder(7, now - day).build()
    lists = x509.CertificateRevocationListBuilder(named("ca"), now - day, now + day)
    for name, crl in (("none", lists), ("seven", lists.add_revoked_certificate(revoked))):
        (tmp_path / name).write_bytes(crl.sign(key, hashes.SHA256()).public_bytes(pem))
    assert greeted(tmp_path, "none") is None
    assert "revoked" in str(greeted(tmp_path, "seven"))


def greeted(folder: Path, crl: str) -> ssl.SSLError | None:
    """A handshake in memory; what the client says against it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "own.pem")
    client = access(tls(ssl_ca_location=str(folder / "ca.pem"), ssl_crl_location=str(folder / crl))).tls
    assert client is not None
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(back, there, server_hostname="b"),
        server.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(3):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                return error
    return None
