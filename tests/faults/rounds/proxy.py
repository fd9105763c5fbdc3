"""A TCP proxy between the applications and a cluster's brokers that knows where a Kafka request begins and
ends.

Faults hang rules on it; what a rule did is counted, for a fault that did not happen proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from verbatim.local.kafka_cluster import Cluster
from verbatim.local.processes import HOST, free_ports

PRODUCE = 0
END_TXN = 26
NEXT_TRANSACTION_S = 45.0
"""How long a held commit waits for the client's next transaction before it is let go anyway: as long as a
replicator that was just killed takes to start, for without it there is nothing to write."""

T = TypeVar("T")


@dataclass(eq=False)
class Connection:
    """One client's connection to one node; `asked` maps a request on its way to its API key."""

    node: int
    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    asked: dict[int, int] = field(default_factory=dict)
    orphan: bool = False
    """The client is cut off, but what it sent may still reach the broker."""

    def reset(self) -> None:
        """End the client's side with a RST."""
        raw = self.client.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.transport.abort()

    def close(self) -> None:
        """End both sides, the client's with a FIN."""
        self.client.close()
        self.broker.close()


class Rule:
    """Something that happens to requests or answers while it hangs on a proxy. Both hooks say whether to pass
    the bytes on."""

    def __init__(self) -> None:
        self.hits = 0

    async def request(self, _: Connection, __: int, ___: bytes) -> bool:
        return True

    async def answer(self, _: Connection, __: int, ___: bytes) -> bool:
        return True


class Delay(Rule):
    """Each request, and each answer, comes later by so much, and by what it takes on a line of so many bytes
    a second, of its connection's own."""

    def __init__(self, seconds: float = 0.0, bytes_per_second: float = math.inf) -> None:
        super().__init__()
        self._seconds = seconds
        self._rate = bytes_per_second

    async def request(self, _: Connection, __: int, ___: bytes) -> bool:
        self.hits += 1
        await asyncio.sleep(self._seconds + len(___) / self._rate)
        return True

    answer = request


class AnswerLate(Rule):
    """The answers to the ends of transactions come so many seconds late; whatever else passes."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def answer(self, _: Connection, api: int, ___: bytes) -> bool:
        if api == END_TXN:
            self.hits += 1
            await asyncio.sleep(self._seconds)
        return True


class Stall(Rule):
    """Nothing passes until `let_go`; then everything does, late."""

    def __init__(self) -> None:
        super().__init__()
        self._open = asyncio.Event()

    async def request(self, _: Connection, __: int, ___: bytes) -> bool:
        if not self._open.is_set():
            self.hits += 1
        await self._open.wait()
        return True

    answer = request

    def let_go(self) -> None:
        self._open.set()


class SwallowCommitAnswer(Rule):
    """The broker commits, and the client never hears of it: its connection breaks instead. `then` is called
    in between."""

    def __init__(self, transactional_ids: str, then: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._prefix = transactional_ids
        self._then = then
        self._awaited: set[tuple[int, int]] = set()

    async def request(self, connection: Connection, api: int, body: bytes) -> bool:
        if api == END_TXN and not self.hits:
            transactional_id, committed = end_of_transaction(body)
            if committed and transactional_id.startswith(self._prefix):
                self._awaited.add((id(connection), correlation(body)))
        return True

    async def answer(self, connection: Connection, api: int, body: bytes) -> bool:
        if api != END_TXN or self.hits or (id(connection), answered(body)) not in self._awaited:
            return True
        self.hits += 1
        if self._then is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._then)
        connection.reset()
        connection.broker.close()
        return False


class HoldCommit(Rule):
    """A commit is held back and its connection reset, so that the client sends it again; once it has, and its
    producer's next transaction is under way, the first request arrives. `then` is called as soon as it is
    answered."""

    def __init__(self, transactional_ids: str, then: Callable[[], None]) -> None:
        super().__init__()
        self._prefix = transactional_ids
        self._then = then
        self._held: tuple[Connection, bytes, str] | None = None
        self._again: set[tuple[int, int]] = set()
        self.repeated = False
        self.next_transaction = False
        self.released = False
        self.error_code: int | None = None
        """What the broker made of the late request."""

    async def request(self, connection: Connection, api: int, body: bytes) -> bool:
        if api == END_TXN:
            transactional_id, committed = end_of_transaction(body)
            if self._held is None and committed and transactional_id.startswith(self._prefix):
                self.hits += 1
                self._held = (connection, body, transactional_id)
                connection.orphan = True
                connection.reset()
                _keep(self._let_go_at_last())
                return False
            if self._held is not None and transactional_id == self._held[2]:
                self._again.add((id(connection), correlation(body)))
        elif api == PRODUCE and self.repeated and self._held is not None and not self.next_transaction:
            self.next_transaction = self._held[2].encode() in body[:300]
        return True

    async def answer(self, connection: Connection, api: int, body: bytes) -> bool:
        if api == END_TXN and (id(connection), answered(body)) in self._again:
            self.repeated = True
        elif api == PRODUCE and self.next_transaction:
            # A record of the next transaction is in the log: now the first request would end it half done.
            await self._release()
        elif api == END_TXN and self._held is not None and connection is self._held[0]:
            # Version 0 and 1: correlation id, throttle time, error code.
            await asyncio.get_running_loop().run_in_executor(None, self._then)
            self.error_code = struct.unpack(">h", body[8:10])[0]
            connection.broker.close()
            return False
        return True

    async def _let_go_at_last(self) -> None:
        await asyncio.sleep(NEXT_TRANSACTION_S)
        await self._release()

    async def _release(self) -> None:
        if self.released or self._held is None:
            return
        self.released = True
        connection, body, _ = self._held
        connection.broker.write(struct.pack(">i", len(body)) + body)
        with contextlib.suppress(OSError):
            await connection.broker.drain()


_tasks: set[asyncio.Task[Any]] = set()


def _keep(work: Coroutine[Any, Any, Any]) -> None:
    # The loop alone holds a task weakly.
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def correlation(request: bytes) -> int:
    return int(struct.unpack(">i", request[4:8])[0])


def answered(answer: bytes) -> int:
    return int(struct.unpack(">i", answer[:4])[0])


def end_of_transaction(request: bytes) -> tuple[str, bool]:
    """Transactional id, and whether it is a commit, of an EndTxn request (flexible from version 3 on)."""
    version, length = struct.unpack(">h", request[2:4])[0], struct.unpack(">h", request[8:10])[0]
    at = 10 + max(0, length)
    if version >= 3:
        at += 1
        size, at = request[at] - 1, at + 1
    else:
        size, at = struct.unpack(">h", request[at : at + 2])[0], at + 2
    transactional_id = request[at : at + size].decode()
    return transactional_id, request[at + size + 10] == 1


class Proxy:
    """Listens on a port for each node and passes on to another: `routes` maps node -> (own port, broker's
    port)."""

    def __init__(self, routes: Mapping[int, tuple[int, int]]) -> None:
        self._routes = dict(routes)
        self._rules: list[Rule] = []
        self._connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self.unreachable: set[int] = set()
        """Nodes to which nobody is connected."""
        self.turned_away = 0
        self.passed = 0

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{own}" for own, _ in self._routes.values())

    def start(self) -> None:
        self._thread.start()
        for node, (own, _) in self._routes.items():
            self._do(self._listen(node, own))

    def stop(self) -> None:
        async def close() -> None:
            for server in self._servers:
                server.close()
            for connection in list(self._connections):
                connection.close()

        self._do(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def add(self, rule: Rule) -> None:
        self._loop.call_soon_threadsafe(self._rules.append, rule)

    def remove(self, rule: Rule) -> None:
        def drop() -> None:
            if rule in self._rules:
                self._rules.remove(rule)

        self._loop.call_soon_threadsafe(drop)

    def let_go(self, rule: Stall) -> None:
        self._loop.call_soon_threadsafe(rule.let_go)
        self.remove(rule)

    def cut(self, reset: bool, node: int | None = None) -> int:
        """Break all connections, those of one node if given; how many there were."""

        async def cut() -> int:
            found = [c for c in self._connections if node in (None, c.node)]
            for connection in found:
                if reset:
                    connection.reset()
                    connection.broker.close()
                else:
                    connection.close()
            return len(found)

        return self._do(cut())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self, node: int, port: int) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(node, reader, writer)

        self._servers.append(await asyncio.start_server(serve, HOST, port))

    async def _serve(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if node in self.unreachable:
            self.turned_away += 1
            writer.transport.abort()
            return
        try:
            answers, broker = await asyncio.open_connection(HOST, self._routes[node][1])
        except OSError:
            writer.close()
            return
        connection = Connection(node, writer, broker)
        self._connections.add(connection)
        asking = asyncio.ensure_future(self._requests(connection, reader))
        try:
            await self._answers(connection, answers)
        finally:
            asking.cancel()
            connection.close()
            self._connections.discard(connection)

    async def _requests(self, connection: Connection, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                body = await _frame(reader)
                api = struct.unpack(">h", body[:2])[0]
                connection.asked[correlation(body)] = api
                passes = True
                for rule in list(self._rules):
                    passes = await rule.request(connection, api, body) and passes
                if passes:
                    self.passed += 1
                    connection.broker.write(struct.pack(">i", len(body)) + body)
                    await connection.broker.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            if not connection.orphan:
                connection.broker.close()

    async def _answers(self, connection: Connection, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                body = await _frame(reader)
                api = connection.asked.pop(answered(body), -1)
                passes = True
                for rule in list(self._rules):
                    passes = await rule.answer(connection, api, body) and passes
                if passes and not connection.orphan:
                    connection.client.write(struct.pack(">i", len(body)) + body)
                    await connection.client.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it came true in time; looks every 20 ms."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def before_a_cluster(properties: Mapping[str, str] | None = None) -> Iterator[Proxy]:
    """A cluster of one node, which its clients reach through the proxy alone. `properties`: of its broker."""
    inner, outer = free_ports(2)
    proxy = Proxy({1: (outer, inner)})
    proxy.start()
    try:
        with Cluster(clients={1: (inner, outer)}, properties=properties):
            yield proxy
    finally:
        proxy.stop()
