"""Brokers that are none: listeners on the loopback that answer each kind of request as they are told, or do
not answer at all."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from common.kafka.wire import protocol
from common.kafka.wire.fetch_protocol import FETCH
from common.kafka.wire.protocol import Api, text

Answers = Mapping[Api, Callable[["Asked"], bytes | None]]
"""What a broker answers to each kind of request, without the correlation id; None: it hangs up."""

ALL: tuple[Api, ...] = (*(api for api in vars(protocol).values() if isinstance(api, Api)), FETCH)


@dataclass(frozen=True)
class Asked:
    """A request: its kind, its bytes, of which connection it is, and when it came."""

    api: Api
    body: bytes
    connection: int
    at: float


@contextlib.contextmanager
def silent() -> Iterator[tuple[str, int]]:
    """The address of a broker that accepts connections and says nothing, as one that is stopped does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


def nobody() -> tuple[str, int]:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address: tuple[str, int] = server.getsockname()
    return address


@dataclass
class Broker:
    """A listener with a thread for each connection."""

    answers: Answers
    knows: Mapping[Api, tuple[int, int]] = field(default_factory=dict)
    """Versions that it knows, where it is not those that are asked for."""
    port: int = 0
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", self.port))
        self.address: tuple[str, int] = self._server.getsockname()
        self._made: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        # A thread that accepts is not woken by a close alone.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for made in self._made:
            made.close()

    def kinds(self) -> list[str]:
        return [asked.api.name for asked in self.asked]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                made, _ = self._server.accept()
                self._made.append(made)
                number = len(self._made)
                threading.Thread(target=self._serve, args=(made, number), daemon=True).start()

    def _serve(self, made: socket.socket, number: int) -> None:
        by_key = {api.key: api for api in self._apis()}
        by_version = {(api.key, api.version): api for api in self.answers}
        with contextlib.suppress(OSError), made:
            while head := made.recv(4, socket.MSG_WAITALL):
                request = made.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
                key, version, correlation, size = struct.unpack_from(">hhih", request)
                asked = Asked(
                    by_version.get((key, version), by_key[key]),
                    request[10 + size :],
                    number,
                    time.monotonic(),
                )
                self.asked.append(asked)
                answer = self._answer(asked)
                if answer is None:
                    return
                head = struct.pack(">i", correlation) + (b"\0" if asked.api.flexible else b"")
                made.sendall(struct.pack(">i", len(head + answer)) + head + answer)

    def _apis(self) -> list[Api]:
        """All that it knows: each kind of request once."""
        keys = {api.key for api in ALL}
        return [*ALL, *(api for api in self.answers if api.key not in keys)]

    def _answer(self, asked: Asked) -> bytes | None:
        if asked.api is protocol.API_VERSIONS and asked.api not in self.answers:
            known = [(api.key, *self.knows.get(api, (0, api.version))) for api in self._apis()]
            return struct.pack(">hi", 0, len(known)) + b"".join(struct.pack(">hhh", *one) for one in known)
        return self.answers[asked.api](asked)


def metadata(
    brokers: Mapping[int, tuple[str, int]], topic: str, leaders: Sequence[int], epochs: Sequence[int] = ()
) -> Callable[[Asked], bytes]:
    """The answer to Metadata; `leaders` of the topic's partitions, by id, and their epochs."""

    def answer(_: Asked) -> bytes:
        out = struct.pack(">ii", 0, len(brokers))
        for node, (host, port) in brokers.items():
            out += struct.pack(">i", node) + text(host) + struct.pack(">i", port) + text(None)
        out += text("cluster") + struct.pack(">ii", -1, 1)
        out += struct.pack(">h", 0) + text(topic) + struct.pack(">bi", 0, len(leaders))
        for partition, leader in enumerate(leaders):
            epoch = epochs[partition] if epochs else 0
            out += struct.pack(">hiiiiii", 0, partition, leader, epoch, 0, 0, 0)
        return out

    return answer


def coordinator(address: Callable[[], tuple[str, int]]) -> Callable[[Asked], bytes]:
    def answer(_: Asked) -> bytes:
        host, port = address()
        return (
            struct.pack(">ih", 0, 0)
            + text(None)
            + struct.pack(">i", 1)
            + text(host)
            + struct.pack(">i", port)
        )

    return answer


def told(*values: bytes) -> Callable[[Asked], bytes | None]:
    """One answer after the other; the last one for good."""
    left = list(values)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def offset_of(asked: Asked) -> tuple[int, int] | None:
    """Leader epoch and offset of the first partition in a Fetch; None where it has none."""
    # Header's tags, then what has a fixed size, then a topic's id.
    at = 1 + struct.calcsize(">iiiibii")
    if asked.body[at] == 1:
        return None
    _, epoch, offset = struct.unpack_from(">iiq", asked.body, at + 1 + 16 + 1)
    return epoch, offset
