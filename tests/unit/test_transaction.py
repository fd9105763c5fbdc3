"""How fast records go into the client: no more than a batch ahead of those that are acknowledged, as long as any are. Which offsets they are
foreseen to get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from common import outside
from common.control import Destination
from common.frame import Frame, Rows
from deduplicator.owned import Owned
from deduplicator.runs import Run
from deduplicator.transaction import (
    FORESEEN_RUNS,
    LINGER_S,
    MARK_BYTES,
    MUCH_BYTES,
    MUCH_S,
    Moved,
    Transaction,
)
from tests.strategies import rows_of

BATCH = 1_000_000


class Client:
    """Sends full batches of one partition, one at a time, and acknowledges the one in flight when it is polled with patience."""

    def __init__(self, clock: Clock, acknowledges: bool = True) -> None:
        self.waiting: list[tuple[int, Callable[..., None] | None]] = []
        self.bytes = self.most = 0
        """Bytes that were not acknowledged, at most."""
        self._clock = clock
        self._acknowledges = acknowledges

    whole_batches = False

    def begin(self) -> None:
        pass

    @property
    def client(self) -> Client:
        return self

    def __len__(self) -> int:
        return len(self.waiting)

    def produce(
        self, topic: str, value: bytes, key: Any, partition: int, reported: Any, _: None, stamp: int
    ) -> None:
        self.waiting.append((len(value), reported))
        self.bytes += len(value)
        self.most = max(self.most, self.bytes)

    def poll(self, timeout: float) -> int:
        if not self._acknowledges or self.bytes < BATCH:
            self._clock.now += timeout
            return 0
        sent = 0
        while sent < BATCH:
            size, reported = self.waiting.pop(0)
            sent += size
            self.bytes -= size
            if reported is not None:
                reported(None, Message())
        return 1


class Message:
    def offset(self) -> int:
        return 0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(outside, "monotonic", made)
    return made


def producing(client: Client, batch: int = BATCH) -> tuple[Transaction, Moved]:
    plan = {"provenance": False}
    transaction = Transaction(plan, Owned("staging-0", 0), None, lambda topic, ask: False)
    transaction.use(client, (0, None))  # type: ignore[arg-type]
    transaction.batch_bytes = batch
    transaction.begin()
    frame = Frame("c", "orders", "id", 0, 0, 1, 1, "w")
    return transaction, Moved(frame, 0, 1, Destination("orders", 1, 10_000_000, None, {}))


def frame_of(sizes: list[int], offsets: list[int] | None = None) -> Rows:
    count = len(sizes)
    return rows_of(
        offsets or list(range(count)),
        [1] * count,
        [None] * count,
        [b"v" * size for size in sizes],
        None,
        sum(sizes),
    )


def test_what_holds_much_waits_for_more_for_a_while_and_what_holds_little_ends_at_once(clock: Clock) -> None:
    transaction, _ = producing(Client(clock))
    transaction.bytes = MUCH_BYTES - 1
    assert transaction.waits_s(0.0) == 0
    transaction.bytes = MUCH_BYTES
    assert transaction.waits_s(0.0) == LINGER_S
    assert transaction.waits_s(MUCH_S - LINGER_S / 2) == pytest.approx(LINGER_S / 2)
    assert transaction.waits_s(MUCH_S) == transaction.waits_s(MUCH_S + 1) == 0
    transaction.open = False
    assert transaction.waits_s(0.0) == 0


@pytest.mark.parametrize("size", [100, 1000, 100_000, 700_000])
def test_no_second_batch_is_full_before_the_first_is_acknowledged(clock: Clock, size: int) -> None:
    client = Client(clock)
    transaction, moved = producing(client)
    for _ in range(5):
        transaction.produce(moved, frame_of([size] * (3_000_000 // size)))
    assert client.most < 2 * BATCH + size
    assert client.most > 2 * BATCH - 3 * MARK_BYTES - size
    assert clock.now == 0


def test_what_is_waited_for_in_vain_is_waited_for_once_a_transaction(clock: Clock) -> None:
    client = Client(clock, acknowledges=False)
    transaction, moved = producing(client)
    for _ in range(5):
        transaction.produce(moved, frame_of([1000] * 3000))
    assert len(client) == 15_000
    assert clock.now == 1


@pytest.mark.parametrize("batch", [900, 20_000, 70_000, BATCH])
def test_a_batch_that_is_not_full_is_never_waited_for(clock: Clock, batch: int) -> None:
    client = Client(clock, acknowledges=False)
    transaction, moved = producing(client, batch)
    transaction.produce(moved, frame_of([99] * (batch // 99)))
    assert clock.now == 0


def foreseen(transaction: Transaction, moved: Moved, offsets: list[int]) -> list[list[Run]] | None:
    transaction.produce(moved, frame_of([1] * len(offsets), offsets))
    transaction.moved = {("id", 0): moved}
    return transaction._foreseen()


def test_runs_are_foreseen_to_follow_each_other_from_the_end_of_the_last_transaction_on(clock: Clock) -> None:
    transaction, moved = producing(Client(clock))
    assert foreseen(transaction, moved, [5, 6, 9]) is None, "nothing is committed yet"
    transaction._ends = {("orders", 0): 10}
    assert transaction._foreseen() == [[Run(5, 2, 10, 11), Run(9, 1, 12, 12)]]
    moved.runs[-1].last = 12
    transaction._remember_ends()
    assert transaction._ends == {("orders", 0): 14}, "the marker takes one"
    transaction.one_by_one()
    assert transaction._foreseen() is None


@pytest.mark.parametrize("runs", [FORESEEN_RUNS, FORESEEN_RUNS + 1])
def test_of_many_runs_nothing_is_foreseen(clock: Clock, runs: int) -> None:
    transaction, moved = producing(Client(clock))
    transaction._ends = {("orders", 0): 10}
    found = foreseen(transaction, moved, list(range(0, 2 * runs, 2)))
    assert (found is None) == (runs > FORESEEN_RUNS)


class Full(Client):
    """Takes `room` records, and then some more after each poll."""

    def __init__(self, clock: Clock, room: int) -> None:
        super().__init__(clock)
        self.room = self.left = room
        self.taken: list[tuple[Any, ...]] = []

    def produce(self, *record: Any) -> None:
        if not self.left:
            raise BufferError("Local: Queue full")
        self.left -= 1
        self.taken.append(record)

    def poll(self, timeout: float) -> int:
        self.left = self.room
        return 0


@pytest.mark.parametrize("room", [1, 2, 7, 100])
@pytest.mark.parametrize("headers", [None, [[("h", b"%d" % at)] if at % 2 else None for at in range(20)]])
def test_each_record_goes_once_and_in_order_though_the_clients_queue_is_full_at_times(
    clock: Clock, room: int, headers: list[Any] | None
) -> None:
    client = Full(clock, room)
    transaction, moved = producing(client)
    values: list[bytes | None] = [b"%d" % at if at % 3 else None for at in range(20)]
    keys: list[bytes | None] = [b"k%d" % at for at in range(20)]
    stamps = list(range(1000, 1020))
    transaction.produce(moved, rows_of(range(20), stamps, keys, values, headers, 40))
    own = [] if headers is None else [(h,) for h in headers]
    assert [(*r[:4], *r[6:]) for r in client.taken] == [
        ("orders", values[at], keys[at], 0, stamps[at], *(own[at] if own else ())) for at in range(20)
    ]
