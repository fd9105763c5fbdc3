"""A line to a broker far away: a proxy in a process of its own that hands each byte on after half the round
trip, at no more than so many megabits a second in each direction, of all connections together. How much is
under way is not limited. Each second it cuts so many percent of the connections.

    python -m bench.line LISTEN PORT ROUND_TRIP_MS [MBIT [PERCENT]]
"""

from __future__ import annotations

import contextlib
import math
import random
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from queue import SimpleQueue

from verbatim.local.processes import HOST

_PIECE = 1 << 18


@dataclass
class Direction:
    """`free_at`: when all that was taken has been sent."""

    delay_s: float
    bytes_per_s: float
    free_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def due(self, size: int, now: float) -> float:
        """When the last of so many bytes arrives, which are taken now."""
        with self._lock:
            self.free_at = max(self.free_at, now) + size / self.bytes_per_s
            return self.free_at + self.delay_s


def carry(origin: socket.socket, to: socket.socket, direction: Direction) -> None:
    """Hand on what comes from one socket to another, in a thread for either end, until it ends."""
    under_way: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def take() -> None:
        data = b"-"
        while data:
            try:
                data = origin.recv(_PIECE)
            except OSError:
                data = b""
            under_way.put((direction.due(len(data), time.monotonic()), data))

    def hand_on() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = under_way.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    to.shutdown(socket.SHUT_WR)
                    return
                to.sendall(data)
        # Whoever sends to it hears that it is gone.
        with contextlib.suppress(OSError):
            origin.shutdown(socket.SHUT_RD)

    for end in (take, hand_on):
        threading.Thread(target=end, daemon=True).start()


def cut(connection: socket.socket, after_s: float) -> None:
    """End it then, without a word to either side."""

    def end() -> None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(after_s, end)
    timer.daemon = True
    timer.start()


def serve(
    server: socket.socket, port: int, round_trip_ms: float, mbit: float = math.inf, percent: float = 0.0
) -> None:
    """Carry every connection to the server on to a port of this machine's."""
    there, back = (Direction(round_trip_ms / 2000, mbit * 1e6 / 8) for _ in range(2))
    chance = random.Random(1)
    while True:
        client, _ = server.accept()
        broker = socket.create_connection((HOST, port))
        for one in (client, broker):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        carry(client, broker, there)
        carry(broker, client, back)
        if percent:
            cut(client, chance.expovariate(percent / 100))


if __name__ == "__main__":
    with socket.create_server((HOST, int(sys.argv[1]))) as listening:
        serve(listening, int(sys.argv[2]), *map(float, sys.argv[3:]))
