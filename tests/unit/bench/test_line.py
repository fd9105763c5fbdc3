"""A line to a broker far away delays what it carries, and carries as much as it is to."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bench.line import Direction, serve

MIB = 1 << 20


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _echo(server: socket.socket) -> None:
    client, _ = server.accept()
    with client:
        while data := client.recv(MIB):
            client.sendall(data)


def through(stack: ExitStack, round_trip_ms: float, *mbit: float) -> socket.socket:
    """A connection by such a line to who sends back what comes."""
    broker, line = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
    threading.Thread(target=_echo, args=(broker,), daemon=True).start()
    port = broker.getsockname()[1]
    threading.Thread(target=serve, args=(line, port, round_trip_ms, *mbit), daemon=True).start()
    return stack.enter_context(socket.create_connection(line.getsockname(), timeout=10))


def received(client: socket.socket, size: int) -> float:
    """After how many seconds so many bytes have come."""
    begun, left = time.monotonic(), size
    while left:
        left -= len(client.recv(min(left, MIB)))
    return time.monotonic() - begun


def test_each_byte_takes_a_round_trip_and_many_are_under_way(stack: ExitStack) -> None:
    client = through(stack, 100)
    client.sendall(b"-")
    assert 0.1 <= received(client, 1) < 0.25
    for _ in range(20):
        client.sendall(b"-" * 1000)
    assert 0.05 <= received(client, 20_000) < 0.25, "and do not wait for each other"


def test_a_line_carries_no_more_than_it_is_to(stack: ExitStack) -> None:
    client = through(stack, 10, 160.0)
    threading.Thread(target=client.sendall, args=(bytes(10 * MIB),), daemon=True).start()
    assert 0.45 < received(client, 10 * MIB) < 1.5, "20 MB/s, there and back at the same time"


def test_whoever_ends_a_connection_is_heard_of_at_its_other_end(stack: ExitStack) -> None:
    client = through(stack, 20)
    client.sendall(b"last")
    client.shutdown(socket.SHUT_WR)
    assert received(client, 4) < 1 and client.recv(1) == b""


def test_a_line_cuts_a_share_of_its_connections_each_second(stack: ExitStack) -> None:
    client = through(stack, 20, float("inf"), 1_000.0)
    with contextlib.suppress(ConnectionError):
        assert client.recv(1) == b"", "a tenth of a second in the mean; it waits ten seconds at most"


def test_what_is_sent_together_arrives_one_behind_the_other() -> None:
    direction = Direction(0.05, 1000.0)
    assert [direction.due(100, 7.0), direction.due(50, 7.0)] == pytest.approx([7.15, 7.2])
    assert direction.due(10, 9.0) == pytest.approx(9.06), "the line was idle"
