"""How brokers are reached: which properties that understands, and what a broker must prove. Real TLS and
SASL: tests/integration/test_security.py."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from common.kafka.wire import protocol, sasl
from common.kafka.wire.connection import Connection, access
from common.ports import Deadline

PLAIN = {"bootstrap.servers": "b:1"}


def test_brokers_are_named_as_the_client_library_takes_them() -> None:
    given = {"bootstrap.servers": "a:1, PLAINTEXT://b:2,[::1]:3,c", "broker.address.family": "v4"}
    assert access(given).bootstrap == (("a", 1), ("b", 2), ("::1", 3), ("c", 9092))
    assert access(given).family == socket.AF_INET


def test_a_password_is_not_shown() -> None:
    word = "pw1"
    config = PLAIN | {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.password": word,
    }
    assert access(config).password == word
    assert word not in repr(access(config))


def test_a_certificate_that_is_not_there_is_an_error_of_the_clients_kind() -> None:
    with pytest.raises(KafkaException, match="TLS can't be set up"):
        access(PLAIN | {"security.protocol": "ssl", "ssl.ca.location": "/nowhere/ca.pem"})


def mac(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).digest()


class Server:
    """The broker's side of SCRAM-SHA-256, RFC 5802."""

    def __init__(self, password: str, iterations: int = 4096) -> None:
        self.salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b"salt", iterations)
        self.iterations = iterations

    def challenge(self, first: bytes) -> bytes:
        self.bare = first.removeprefix(b"n,,")
        nonce = self.bare.partition(b"r=")[2].decode() + "more"
        self.said = f"r={nonce},s={base64.b64encode(b'salt').decode()},i={self.iterations}".encode()
        return self.said

    def verdict(self, final: bytes) -> bytes:
        without, _, proof = final.rpartition(b",p=")
        signed = b",".join([self.bare, self.said, without])
        client_key = mac(self.salted, b"Client Key")
        expected = bytes(
            a ^ b for a, b in zip(client_key, mac(hashlib.sha256(client_key).digest(), signed), strict=True)
        )
        assert base64.b64decode(proof) == expected
        return b"v=" + base64.b64encode(mac(mac(self.salted, b"Server Key"), signed))


def test_scram_proves_the_password_to_a_broker_that_proves_it_too() -> None:
    client, server = sasl.Client("SCRAM-SHA-256", "us,er=", "secret"), Server("secret")
    first = client.first()
    assert first.startswith(b"n,,n=us=2Cer=3D,r=")
    final = client.answer(server.challenge(first))
    assert final is not None
    assert client.answer(server.verdict(final)) is None
    assert client.done


@pytest.mark.parametrize(
    "spoil",
    [
        lambda said: said.replace(b"r=", b"r=x"),
        lambda said: said[:-4] + b"2000",
        lambda said: b"r=" + said,
        lambda _: b"e=unknown-user",
        lambda said: said.partition(b"more")[0] + said.partition(b"more")[2],
    ],
)
def test_a_broker_that_is_none_is_refused(spoil: object) -> None:
    client = sasl.Client("SCRAM-SHA-256", "user", "secret")
    with pytest.raises(sasl.Refused):
        client.answer(spoil(Server("secret").challenge(client.first())))  # type: ignore[operator]


def test_a_broker_that_does_not_know_the_password_is_refused() -> None:
    client, server = sasl.Client("SCRAM-SHA-256", "user", "secret"), Server("secret")
    final = client.answer(server.challenge(client.first()))
    assert final is not None
    server.verdict(final)
    with pytest.raises(sasl.Refused, match="can't prove"):
        client.answer(b"v=" + base64.b64encode(bytes(32)))


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def knowing(*apis: protocol.Api) -> bytes:
    """The answer of a broker to ApiVersions, whose first request that is."""
    known = b"".join(struct.pack(">hhh", api.key, 0, api.version) for api in apis)
    body = struct.pack(">ihi", 1, 0, len(apis)) + known
    return struct.pack(">i", len(body)) + body


KNOWING = knowing(*(api for api in vars(protocol).values() if isinstance(api, protocol.Api)))


def opened(at: tuple[str, int], config: dict[str, str] | None = None) -> Connection:
    connection = Connection(access(config or PLAIN), at)
    connection.open(Deadline(5))
    return connection


def answering(server: socket.socket, answers: list[bytes | None]) -> threading.Thread:
    """A broker that reads requests and answers each as it is told (None: hangs up)."""

    def serve() -> None:
        made, _ = server.accept()
        with made:
            for answer in answers:
                (size,) = struct.unpack(">i", made.recv(4, socket.MSG_WAITALL))
                made.recv(size, socket.MSG_WAITALL)
                if answer is None:
                    return
                made.sendall(answer)
            made.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def asked(server: socket.socket, answer: bytes | None, timeout_s: float = 5.0) -> None:
    thread = answering(server, [KNOWING, answer])
    connection = opened(server.getsockname())
    try:
        connection.ask(protocol.END_TXN, [], Deadline(timeout_s))
    finally:
        assert not connection.fresh()
        connection.close()
        thread.join(5)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "closed the connection"),
        (struct.pack(">ii", 4, 3), "an answer to request 3 instead of 2"),
        (struct.pack(">i", -1), "an answer of -1 bytes"),
        (struct.pack(">i", 0x7FFFFFFF), "an answer of"),
    ],
)
def test_an_answer_that_is_none_ends_the_connection(
    listening: socket.socket, answer: bytes | None, words: str
) -> None:
    with pytest.raises(KafkaException, match=words) as caught:
        asked(listening, answer)
    assert caught.value.args[0].code() == KafkaError._TRANSPORT


def test_an_answer_that_does_not_come_ends_the_connection(listening: socket.socket) -> None:
    with pytest.raises(KafkaException, match="no answer to EndTxn") as caught:
        asked(listening, struct.pack(">i", 100), 0.2)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT


def test_nobody_there_is_an_error_of_the_clients_kind() -> None:
    with pytest.raises(KafkaException) as caught:
        opened(("127.0.0.1", 1))
    assert caught.value.args[0].code() == KafkaError._TRANSPORT


def test_a_broker_that_hangs_up_is_noticed_before_the_next_request(listening: socket.socket) -> None:
    thread = answering(listening, [KNOWING])
    connection = opened(listening.getsockname())
    assert connection.fresh()
    assert connection._socket is not None
    connection._socket.send(b"x")
    thread.join(5)
    assert not connection.fresh()
    connection.close()


def test_an_answer_is_complete_when_all_of_it_has_come(listening: socket.socket) -> None:
    whole = struct.pack(">ii", 4, 2)
    rest = threading.Event()

    def serve() -> None:
        made, _ = listening.accept()
        with made:
            made.recv(100)
            made.sendall(KNOWING)
            made.recv(100)
            for piece in (whole[:2], whole[2:6], whole[6:]):
                made.sendall(piece)
                assert rest.wait(5)
                rest.clear()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    connection = opened(listening.getsockname())
    connection.send(protocol.END_TXN, [], Deadline(5))
    seen = []
    for _ in range(4):
        assert connection._comes(5.0)
        seen.append(connection.complete())
        rest.set()
    assert seen == [False, False, True, True]
    assert connection.received() is not None
    thread.join(5)
    assert connection.complete(), "the end of the connection: who takes the answer is told"
    with pytest.raises(KafkaException, match="closed the connection"):
        connection.received()
    connection.close()
