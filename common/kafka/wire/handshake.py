"""What a new connection goes through before its first request: resolution, TCP, TLS; and SASL, then and
again. Waits for nothing itself.

Each is a generator of what it waits for, so that whoever serves several brokers goes on with the others
meanwhile: one that accepts and is silent, or is slow at TLS, holds up nobody else. Whose time is up is for
the owner to say (common/kafka/wire/connection.py).
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError

from common import ports
from common.kafka.wire import oauth_tokens, protocol, sasl
from common.kafka.wire.protocol import Address, Answer, Api, Buffer

if TYPE_CHECKING:
    from common.kafka.wire.connection import Access

NEXT_ADDRESS_S = 0.7
"""Of a name that has several addresses, the next one is tried after this."""
_UNSUPPORTED_MECHANISM = 33

Waits = tuple[int, int]
"""A file descriptor, and what is waited for there, as `select.poll` has it."""
Exchange = Callable[[Api, Sequence[Buffer]], Generator[Waits, None, Answer]]
"""A request and its answer."""


def connected(to: Access, address: Address, tries: int) -> Generator[Waits, None, socket.socket]:
    """A socket that is connected, by TLS where that is asked for; it does not block. Of several addresses of
    the name, each try begins with another one: the first may accept connections and be silent. Raises
    OSError."""
    host, port = address
    problem = OSError("no address")
    found = yield from _resolved(host, port, to.family)
    first = tries % max(1, len(found))
    found = found[first:] + found[:first]
    for left, (family, kind, number, _, where) in zip(range(len(found) - 1, -1, -1), found, strict=True):
        made = socket.socket(family, kind, number)
        try:
            made.setblocking(False)
            yield from _tcp(made, where, NEXT_ADDRESS_S if left else float("inf"))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return made if to.tls is None else (yield from _tls(to.tls, made, host))
        except OSError as error:
            made.close()
            problem = error
        except BaseException:
            made.close()
            raise
    raise problem


def _resolved(host: str, port: int, family: int) -> Generator[Waits, None, list[Any]]:
    """The addresses of a name. A resolver that is not answered may take half a minute, and can't be asked
    without waiting: in a thread."""
    try:
        return socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except UnicodeError:
        raise OSError(f"{host!r} is no host name") from None
    except socket.gaierror:
        pass
    found: list[Any] = []
    hears, says = socket.socketpair()

    def resolve() -> None:
        with says:
            try:
                found.append(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))
            except OSError as error:
                found.append(error)

    ports.thread(resolve, f"resolve {host}").start()
    with hears:
        while not found:
            yield hears.fileno(), select.POLLIN
    if isinstance(found[0], OSError):
        raise found[0]
    return list(found[0])


def _tcp(made: socket.socket, where: Any, within_s: float) -> Generator[Waits, None, None]:
    until = ports.monotonic() + within_s
    while error := made.connect_ex(where):
        if error == errno.EISCONN:
            return
        if error not in (errno.EINPROGRESS, errno.EALREADY):
            raise OSError(error, os.strerror(error))
        if ports.monotonic() > until:
            raise TimeoutError("no answer")
        yield made.fileno(), select.POLLOUT


def _tls(context: ssl.SSLContext, made: socket.socket, host: str) -> Generator[Waits, None, ssl.SSLSocket]:
    wrapped = context.wrap_socket(made, server_hostname=host, do_handshake_on_connect=False)
    try:
        while True:
            try:
                wrapped.do_handshake()
            except ssl.SSLWantReadError:
                yield wrapped.fileno(), select.POLLIN
            except ssl.SSLWantWriteError:
                yield wrapped.fileno(), select.POLLOUT
            else:
                return wrapped
    except BaseException:
        wrapped.close()
        raise


def authenticated(to: Access, exchange: Exchange) -> Generator[Waits, None, float]:
    """Prove who one is; for how many seconds that is good. Raises scram.Refused, MalformedAnswer; OSError
    where no token can be had."""
    assert to.mechanism is not None
    error, known = protocol.mechanisms(
        (yield from exchange(protocol.SASL_HANDSHAKE, [protocol.text(to.mechanism)]))
    )
    if error == _UNSUPPORTED_MECHANISM:
        raise sasl.Refused(f"{to.mechanism} is not among its mechanisms, {', '.join(known)}")
    if error:
        raise sasl.Refused(KafkaError(error).str())
    client: sasl.Client | oauth_tokens.Client
    if to.tokens is None:
        client = sasl.Client(to.mechanism, to.user, to.password)
    else:
        client = oauth_tokens.Client((yield from to.tokens.current()))
    token: bytes | None = client.first()
    life_ms = 0
    while token is not None:
        error, words, answer, life_ms = protocol.authenticated(
            (yield from exchange(protocol.SASL_AUTHENTICATE, [protocol.blob(token)]))
        )
        if error:
            raise sasl.Refused(" ".join(filter(None, [words or KafkaError(error).str(), client.said])))
        token = None if client.done else client.answer(answer)
    return life_ms / 1000 if life_ms > 0 else float("inf")
