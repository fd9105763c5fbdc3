"""A connection to a broker, for the requests of common/kafka/wire/protocol.py: opened, renewed, requests
answered in order. Decides nothing.

Each request is sent once. Where its answer does not come the connection is given up, and so is what the
request was part of: nothing here tries again behind its owner's back. What waits takes a Deadline; all else
goes on as far as it can, and says what it waits for. For one thread.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.config.wire_properties import sasl_mechanism
from common.kafka.quotas import THROTTLED
from common.kafka.wire import handshake, oauth_tokens, protocol, sasl, tls
from common.kafka.wire.handshake import Waits
from common.kafka.wire.protocol import Address, Answer, Api, Buffer, MalformedAnswer
from common.ports import Deadline

log = logging.getLogger(__name__)

MOST_ANSWER_BYTES = 1 << 30
"""A longer answer is none."""
MOST_PIECES = 512
"""Of one call to the socket: Linux takes 1024."""
TELL_S = 60.0
"""A quota that is used up is told so often."""
_SESSION_SHARE = 0.8
"""After this share of its session's life a connection authenticates again before it is used for anything new
(KIP-368). A broker cuts it at the first request that comes later than the session's end."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach brokers and prove who one is, from a client's properties."""

    bootstrap: tuple[Address, ...]
    client_id: str
    tls: ssl.SSLContext | None = field(repr=False)
    mechanism: str | None
    user: str = ""
    password: str = field(default="", repr=False)
    family: int = socket.AF_UNSPEC
    tokens: oauth_tokens.Tokens | None = field(default=None, repr=False)


def access(config: Mapping[str, Any]) -> Access:
    """What a client with these properties does. Raises KafkaException where a certificate can't be read."""
    name = str(config.get("security.protocol", "plaintext")).lower()
    families = {"v4": socket.AF_INET, "v6": socket.AF_INET6}
    mechanism = sasl_mechanism(config)
    return Access(
        tuple(map(_address, filter(None, map(str.strip, str(config["bootstrap.servers"]).split(","))))),
        str(config.get("client.id", "rdkafka")),
        tls.context(config) if name.endswith("ssl") else None,
        mechanism,
        str(config.get("sasl.username", "")),
        str(config.get("sasl.password", "")),
        families.get(str(config.get("broker.address.family", "any")), socket.AF_UNSPEC),
        oauth_tokens.of(config) if mechanism == "OAUTHBEARER" else None,
    )


def _address(text: str) -> Address:
    host, _, port = text.rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        host, port = f"{host}:{port}".lstrip(":"), "9092"
    return host.strip("[]"), int(port)


def broken(words: str) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TRANSPORT, words))


class UnsupportedVersion(KafkaException):
    """A broker does not know a request as it is made here. Nothing was sent."""


def wait_for(what: Iterable[Waits], within_s: float) -> None:
    """Until something happens at one of them."""
    poll = select.poll()
    for descriptor, events in what:
        poll.register(descriptor, events)
    poll.poll(within_s * 1000)


class Connection:
    """A connection that is being opened or is up, and its requests that are not answered yet, in order.

    Raises KafkaException from whatever goes on with it: `_TRANSPORT` or `_TIMED_OUT` where the broker can't
    be reached, `_AUTHENTICATION` where it does not let one in. Then it is closed.
    """

    def __init__(self, to: Access, address: Address, tries: int = 0) -> None:
        """`tries`: how many have failed there. Of a name with several addresses each begins with another
        one."""
        self.address = address
        self._tries = tries
        self._to = to
        self._socket: socket.socket | None = None
        self._opening: Generator[Waits, None, None] | None = self._open()
        self._waits: Waits | None = None
        self._stage = "the connection"
        self._versions: dict[int, tuple[int, int]] | None = None
        self._correlation = 0
        self._in_flight: deque[tuple[Api, int]] = deque()
        self._unsent: deque[memoryview] = deque()
        self.begun = self.used = ports.monotonic()
        """When it was begun to be opened, or to authenticate again; when something was sent or received
        last."""
        self.quiet_until = 0.0
        """A quota is used up: the broker takes nothing from this client before."""
        self._told_at = float("-inf")
        """When that was said last."""
        self._buffer, self._filled, self._sized = bytearray(4), 0, False
        """What is received of an answer: first how long it is."""
        self._renew_at = float("inf")

    # opening

    def ready(self) -> bool:
        """Whether a request can be sent; goes on with what has to be done before, and waits for nothing."""
        if self._opening is None:
            if ports.monotonic() < self._renew_at or self._in_flight:
                return True
            self.begun = ports.monotonic()
            self._opening = self._authenticate()
        try:
            self._waits = next(self._opening)
        except StopIteration:
            self._opening = None
            return True
        except OSError as error:
            self.close()
            raise self._lost(error) from None
        except BaseException:
            self.close()
            raise
        return False

    def opening(self) -> bool:
        """Whether it is not ready yet, and waits for something."""
        return self._opening is not None

    def open(self, deadline: Deadline) -> None:
        """The same, waited for."""
        while not self.ready():
            if deadline.passed():
                raise self.late()
            wait_for([self.waits_for()], deadline.left())

    def waits_for(self) -> Waits:
        """What to wait for before going on: with `ready`, or for an answer."""
        if self._opening is not None and self._waits is not None:
            return self._waits
        return self.fileno(), select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def late(self) -> KafkaException:
        """Give up what takes too long."""
        stage = self._in_flight[0][0].name if self._in_flight else self._stage
        took_s = ports.monotonic() - self.begun
        self.close()
        within = f" within {took_s:.1f} s" if self._opening is not None else ""
        return KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{self}: no answer to {stage}{within}"))

    def _open(self) -> Generator[Waits, None, None]:
        self._stage = "TCP or TLS" if self._to.tls is not None else "TCP"
        self._socket = yield from handshake.connected(self._to, self.address, self._tries)
        # With SASL too: brokers take it before one is let in.
        error, versions = protocol.versions((yield from self._exchange(protocol.API_VERSIONS, [])))
        if error:
            raise UnsupportedVersion(KafkaError(error, f"{self}: ApiVersions: {KafkaError(error).str()}"))
        self._versions = versions
        if self._to.mechanism is not None:
            yield from self._authenticate()

    def _authenticate(self) -> Generator[Waits, None, None]:
        try:
            life_s = yield from handshake.authenticated(self._to, self._exchange)
        except sasl.Refused as refused:
            raise self._not_let_in(str(refused)) from None
        except MalformedAnswer as malformed:
            raise self._not_let_in(malformed.args[0].str()) from None
        self._renew_at = ports.monotonic() + life_s * _SESSION_SHARE

    def _exchange(self, api: Api, body: Sequence[Buffer]) -> Generator[Waits, None, Answer]:
        self._begin(api, body)
        while not self._go_on():
            yield self.fileno(), select.POLLIN | (select.POLLOUT if self._unsent else 0)
        return self._whole()

    def _not_let_in(self, why: str) -> KafkaException:
        return KafkaException(KafkaError(KafkaError._AUTHENTICATION, f"{self}: {why}"))

    def _lost(self, error: OSError) -> KafkaException:
        return broken(f"{self}: {error}")

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    # requests

    def knows(self, api: Api) -> bool:
        """Whether the broker knows a request, as far as it has told."""
        least, greatest = (self._versions or {}).get(api.key, (0, -1))
        return self._versions is None or least <= api.version <= greatest

    def must_know(self, api: Api) -> None:
        """Raises UnsupportedVersion where the broker does not know a request."""
        # Unless it is being asked for them.
        if self._versions is not None and not self.knows(api):
            least, greatest = self._versions.get(api.key, (0, -1))
            its = f"only {least} to {greatest}" if least <= greatest else "nor any other"
            words = f"broker {self} does not know version {api.version} of {api.name}, {its}"
            raise UnsupportedVersion(KafkaError(KafkaError.UNSUPPORTED_VERSION, words))

    def send(self, api: Api, body: Sequence[Buffer], deadline: Deadline | None) -> None:
        """Send a request, on a connection that is ready. Without a deadline nothing is waited for: what the
        socket does not take at once goes out as `complete` is asked."""
        try:
            self._begin(api, body)
            while self._unsent and deadline is not None:
                self._push()
                if self._unsent:
                    if deadline.passed():
                        raise TimeoutError(f"{api.name} can't be sent in time")
                    wait_for([(self.fileno(), select.POLLOUT)], deadline.left())
            self._push()
        except OSError as error:
            self.close()
            raise self._lost(error) from None

    def _begin(self, api: Api, body: Sequence[Buffer]) -> None:
        self.must_know(api)
        self._stage = api.name
        self._correlation += 1
        pieces = protocol.framed(api, self._correlation, self._to.client_id, body)
        self._in_flight.append((api, self._correlation))
        self.used = ports.monotonic()
        if isinstance(self._socket, ssl.SSLSocket):
            pieces = [b"".join(pieces)]
        self._unsent.extend(memoryview(piece).cast("B") for piece in pieces if len(piece))

    def _push(self) -> None:
        """Send what the socket takes."""
        assert self._socket is not None
        pieces = self._unsent
        try:
            while pieces:
                if isinstance(self._socket, ssl.SSLSocket):
                    sent = self._socket.send(pieces[0])
                else:
                    sent = self._socket.sendmsg(list(islice(pieces, MOST_PIECES)))
                while sent:
                    first = pieces.popleft()
                    if sent < len(first):
                        pieces.appendleft(first[sent:])
                        break
                    sent -= len(first)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass

    def answered(self) -> bool:
        """Whether something has come: of an answer, or the end of the connection."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return self._comes(0.0)

    def _comes(self, within_s: float) -> bool:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def complete(self) -> bool:
        """Whether all of an answer has come, or the end of the connection; waits for nothing. A broker sends
        the records of an answer to Fetch behind its beginning, from their file."""
        try:
            return self._go_on()
        except OSError:
            # `received` comes upon it again.
            return True

    def received(self) -> Answer:
        """The answer that is complete, to the oldest request that has none."""
        try:
            whole = self._go_on()
            assert whole
            return self._whole()
        except OSError as error:
            self.close()
            raise self._lost(error) from None

    def _whole(self) -> Answer:
        answer, body = Answer(self._buffer), self._buffer
        self._buffer, self._filled, self._sized = bytearray(4), 0, False
        if not self._in_flight:
            raise OSError("an answer to nothing")
        api, correlation = self._in_flight.popleft()
        if (got := answer.number("i")) != correlation:
            raise OSError(f"an answer to request {got} instead of {correlation}")
        if throttle_ms := protocol.throttle_ms(api, body):
            THROTTLED.add(throttle_ms)
            self._throttled(throttle_ms / 1000)
        return answer

    def _throttled(self, for_s: float) -> None:
        now = ports.monotonic()
        if now - self._told_at > TELL_S:
            self._told_at = now
            log.info("broker %s: a quota of ours is used up; it is left alone for %.3f s", self, for_s)
        self.quiet_until = max(self.quiet_until, now + for_s)

    def _go_on(self) -> bool:
        """Send what is not sent yet, and take in what has come; whether an answer is whole."""
        if self._unsent:
            self._push()
        assert self._socket is not None
        while True:
            while self._filled < len(self._buffer):
                try:
                    got = self._socket.recv_into(memoryview(self._buffer)[self._filled :])
                except (BlockingIOError, ssl.SSLWantReadError):
                    return False
                if not got:
                    raise OSError("the broker closed the connection")
                self._filled += got
                self.used = ports.monotonic()
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
                raise self.late()
            wait_for([self.waits_for()], deadline.left())
        return self.received()

    def ask(self, api: Api, body: Sequence[Buffer], deadline: Deadline) -> Answer:
        """Send a request, and wait for its answer; none may be in flight."""
        assert not self._in_flight
        self.open(deadline)
        self.send(api, body, deadline)
        return self.answer(deadline)

    def fresh(self) -> bool:
        """Whether a connection on which nothing is in flight can be used for something new: it is up, and no
        broker has closed it."""
        return self.fileno() >= 0 and not self._in_flight and not self.answered()

    def ended(self) -> bool:
        """Whether a broker has closed a connection on which nothing is in flight."""
        return self._opening is None and not self._in_flight and not self.fresh()

    def close(self) -> None:
        if self._opening is not None:
            self._opening.close()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
