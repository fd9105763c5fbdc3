"""A connection to a broker, for the requests of common/protocol.py: TCP or TLS, SASL, requests answered in order. Decides nothing.

Each request is sent once. Where its answer does not come the connection is given up, and so is what the request was part of: nothing here tries
again behind its owner's back. For one thread.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from common import outside, protocol, scram
from common.direct_properties import library_only, sasl_mechanism
from common.kafka import Deadline
from common.protocol import Answer, Api, Piece

if TYPE_CHECKING:
    from common.client_properties import Kind
    from common.settings import Cluster, Settings

CONNECT_S = 10.0
MOST_ANSWER_BYTES = 1 << 30
"""A longer answer is none."""
MOST_PIECES = 512
"""Of one call to the socket: Linux takes 1024."""
_SESSION_SHARE = 0.8
"""After this share of its session's life a connection is not used for anything new."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach brokers and prove who one is, from a client's properties."""

    bootstrap: tuple[tuple[str, int], ...]
    client_id: str
    tls: ssl.SSLContext | None = field(repr=False)
    mechanism: str | None
    user: str = ""
    password: str = field(default="", repr=False)
    family: int = socket.AF_UNSPEC


def in_batches(settings: Settings, cluster: Cluster, kind: Kind) -> bool:
    """Whether a client of this kind goes by whole batches: as asked for, and as its properties allow."""
    return settings.whole_batches and library_only(settings.client_config(cluster, kind)) is None


def access(config: Mapping[str, Any]) -> Access:
    """What a client with these properties does. Raises KafkaException where a certificate can't be read."""
    name = str(config.get("security.protocol", "plaintext")).lower()
    families = {"v4": socket.AF_INET, "v6": socket.AF_INET6}
    return Access(
        tuple(map(_address, filter(None, map(str.strip, str(config["bootstrap.servers"]).split(","))))),
        str(config.get("client.id", "rdkafka")),
        _tls(config) if name.endswith("ssl") else None,
        sasl_mechanism(config),
        str(config.get("sasl.username", "")),
        str(config.get("sasl.password", "")),
        families.get(str(config.get("broker.address.family", "any")), socket.AF_UNSPEC),
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        host, port = f"{host}:{port}".lstrip(":"), "9092"
    return host.strip("[]"), int(port)


_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where Linux distributions keep the certificates of public authorities: Debian, Fedora, RHEL, SUSE, Alpine."""


def _tls(config: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(**_authorities(config))
        if str(config.get("ssl.endpoint.identification.algorithm", "https")) == "none":
            context.check_hostname = False
        if str(config.get("enable.ssl.certificate.verification", "true")).lower() == "false":
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with contextlib.ExitStack() as files:
            chain, key = (_pem_file(config, f"ssl.{what}", files) for what in ("certificate", "key"))
            if chain is not None:
                context.load_cert_chain(chain, key, lambda: _key_password(config))
    except (OSError, ValueError) as error:
        raise KafkaException(KafkaError(KafkaError._SSL, f"TLS can't be set up: {error}")) from None
    return context


def _authorities(config: Mapping[str, Any]) -> dict[str, Any]:
    """Whose certificates are trusted, as `ssl.create_default_context` takes it: a file, a folder of hashed names, a PEM, or the machine's own."""
    place = config.get("ssl.ca.location")
    if place is not None and place != "probe":
        if not Path(place).exists():
            raise OSError(f"ssl.ca.location: there is no {place}")
        return {"capath" if Path(place).is_dir() else "cafile": place, "cadata": config.get("ssl.ca.pem")}
    if "ssl.ca.pem" in config:
        return {"cadata": config["ssl.ca.pem"]}
    own = ssl.get_default_verify_paths()
    found = next((path for path in (own.cafile, *_CA_FILES) if path and Path(path).is_file()), None)
    return {} if found is None else {"cafile": found}


def _key_password(config: Mapping[str, Any]) -> str:
    """Asked for where the key is encrypted; without an answer OpenSSL would ask whoever sits at the terminal."""
    if (password := config.get("ssl.key.password")) is None:
        raise ValueError("the key is encrypted, and ssl.key.password is not set")
    return str(password)


def _pem_file(config: Mapping[str, Any], name: str, files: contextlib.ExitStack) -> str | None:
    """Where a PEM lies; Python's TLS takes it from files only."""
    if (pem := config.get(f"{name}.pem")) is None:
        return config.get(f"{name}.location")
    folder = files.enter_context(tempfile.TemporaryDirectory(prefix="verbatim-"))
    path = Path(folder) / "it.pem"
    path.touch(mode=0o600)
    path.write_text(pem)
    return str(path)


def broken(words: str) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TRANSPORT, words))


class Connection:
    """A connection that is up, and its requests that are not answered yet, in order."""

    def __init__(self, to: Access, address: tuple[str, int], deadline: Deadline) -> None:
        """Connect and authenticate. Raises KafkaException: `_TRANSPORT` where the broker can't be reached, `_AUTHENTICATION` where it does not
        let one in."""
        self.address = address
        self._client_id = to.client_id
        self._correlation = 0
        self._in_flight: deque[tuple[Api, int]] = deque()
        self.used = outside.monotonic()
        """When something was sent or received last."""
        self._buffer, self._filled, self._sized = bytearray(4), 0, False
        """What is received of an answer: first how long it is."""
        self._renew_at = float("inf")
        try:
            self._socket = self._connected(to, deadline)
        except OSError as error:
            raise self._lost(error) from None
        if to.mechanism is not None:
            try:
                self._authenticate(to, deadline)
            except BaseException:
                self.close()
                raise

    def _connected(self, to: Access, deadline: Deadline) -> socket.socket:
        host, port = self.address
        problem: OSError | None = None
        for family, kind, number, _, where in socket.getaddrinfo(host, port, to.family, socket.SOCK_STREAM):
            made = socket.socket(family, kind, number)
            try:
                made.settimeout(max(0.1, deadline.left(CONNECT_S)))
                made.connect(where)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                return made if to.tls is None else to.tls.wrap_socket(made, server_hostname=host)
            except OSError as error:
                problem = error
                made.close()
        raise problem or OSError("no address")

    def _authenticate(self, to: Access, deadline: Deadline) -> None:
        assert to.mechanism is not None
        error, known = protocol.mechanisms(
            self.ask(protocol.SASL_HANDSHAKE, [protocol.text(to.mechanism)], deadline)
        )
        if error:
            raise self._not_let_in(f"{to.mechanism} is not among its mechanisms, {', '.join(known)}")
        client = scram.Client(to.mechanism, to.user, to.password)
        token: bytes | None = client.first()
        while token is not None:
            error, words, answer, life_ms = protocol.authenticated(
                self.ask(protocol.SASL_AUTHENTICATE, [protocol.blob(token)], deadline)
            )
            if error:
                raise self._not_let_in(words or str(KafkaError(error)))
            try:
                token = None if client.done else client.answer(answer)
            except scram.Refused as refused:
                raise self._not_let_in(str(refused)) from None
            if life_ms > 0:
                self._renew_at = outside.monotonic() + life_ms / 1000 * _SESSION_SHARE

    def _not_let_in(self, why: str) -> KafkaException:
        return KafkaException(KafkaError(KafkaError._AUTHENTICATION, f"{self}: {why}"))

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, api: Api, body: Sequence[Piece], deadline: Deadline) -> None:
        """Send a request. Raises KafkaException where it can't be sent whole; then the connection is closed."""
        self._correlation += 1
        pieces = protocol.framed(api, self._correlation, self._client_id, body)
        self._in_flight.append((api, self._correlation))
        self.used = outside.monotonic()
        try:
            self._socket.settimeout(max(0.001, deadline.left()))
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.sendall(b"".join(pieces))
            else:
                self._send(deque(memoryview(piece).cast("B") for piece in pieces if len(piece)))
        except OSError as error:
            self.close()
            raise self._lost(error) from None

    def _send(self, pieces: deque[memoryview]) -> None:
        while pieces:
            sent = self._socket.sendmsg([pieces[i] for i in range(min(len(pieces), MOST_PIECES))])
            while sent:
                first = pieces.popleft()
                if sent < len(first):
                    pieces.appendleft(first[sent:])
                    break
                sent -= len(first)

    def answered(self) -> bool:
        """Whether something has come: of an answer, or the end of the connection."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return self._comes(0.0)

    def _comes(self, within_s: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def complete(self) -> bool:
        """Whether all of an answer has come, or the end of the connection; waits for nothing. A broker sends the records of an answer to Fetch
        behind its beginning, from their file."""
        try:
            return self._receive()
        except OSError:
            # `received` comes upon it again.
            return True

    def received(self) -> Answer:
        """The answer that is complete, to the oldest request that has none. Raises KafkaException; then the connection is closed."""
        try:
            whole = self._receive()
            assert whole
            answer = Answer(self._buffer)
            self._buffer, self._filled, self._sized = bytearray(4), 0, False
            _, correlation = self._in_flight.popleft()
            if (got := answer.number("i")) != correlation:
                raise OSError(f"an answer to request {got} instead of {correlation}")
        except OSError as error:
            self.close()
            raise self._lost(error) from None
        return answer

    def _receive(self) -> bool:
        """Take in what has come; whether an answer is whole."""
        while True:
            while self._filled < len(self._buffer):
                try:
                    self._socket.settimeout(0.0)
                    got = self._socket.recv_into(memoryview(self._buffer)[self._filled :])
                except (BlockingIOError, ssl.SSLWantReadError):
                    return False
                if not got:
                    raise OSError("the broker closed the connection")
                self._filled += got
                self.used = outside.monotonic()
            if self._sized:
                return True
            (size,) = struct.unpack(">i", self._buffer)
            if not 4 <= size <= MOST_ANSWER_BYTES:
                raise OSError(f"an answer of {size} bytes")
            self._buffer, self._filled, self._sized = bytearray(size), 0, True

    def answer(self, deadline: Deadline) -> Answer:
        """The same, waited for."""
        while not self.complete():
            if deadline.passed():
                self.close()
                words = f"{self}: no answer to {self._in_flight[0][0].name}"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, words))
            self._comes(deadline.left())
        return self.received()

    def ask(self, api: Api, body: Sequence[Piece], deadline: Deadline) -> Answer:
        """Send a request, and wait for its answer; none may be in flight."""
        assert not self._in_flight
        self.send(api, body, deadline)
        return self.answer(deadline)

    def _lost(self, error: OSError) -> KafkaException:
        return broken(f"{self}: {error}")

    def fresh(self) -> bool:
        """Whether a connection on which nothing is in flight can be used for something new: it is up, and its session does not end soon."""
        return (
            self._socket.fileno() >= 0
            and not self._in_flight
            and outside.monotonic() < self._renew_at
            and not self.answered()
        )

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
