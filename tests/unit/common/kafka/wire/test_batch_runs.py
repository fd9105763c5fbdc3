"""Many small batches at once: what comes of them is what comes of each by itself, whatever lies among them
and whatever bit of them is another one."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from common.kafka.wire import batch_runs, fetch_answers, record_decoder
from common.kafka.wire.batch_runs import BatchRun, found
from common.kafka.wire.fetch_answers import LEAST_BYTES, Budget
from common.kafka.wire.fetch_protocol import Aborted, Part
from common.kafka.wire.record_batch import CODECS, BatchError, decode, headers
from tests.support.old_format import message
from tests.unit.common.kafka.wire.test_fetch_answers import (
    COMPRESSED,
    OLD,
    WHOLE,
    At,
    batch,
    emptied,
    stamped,
    taken_apart,
)

PRODUCER = 7


def ordinary(first: int, count: int, codec: str = "none") -> list[bytes]:
    return [batch(first + at, 1, codec, value=b"v" * (at % 40)) for at in range(count)]


@pytest.fixture
def in_small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are many, and many that nearly are one."""
    monkeypatch.setattr(batch_runs, "LEAST_BATCHES", 3)
    monkeypatch.setattr(batch_runs, "MOST_BATCHES", 20)
    monkeypatch.setattr(batch_runs, "BATCHES_A_RECORD", 1)


@pytest.mark.parametrize("codec", CODECS)
def test_ordinary_batches_are_one_run(codec: str) -> None:
    data = pa.py_buffer(b"".join(ordinary(5, 100, codec)))
    ((at, run),) = found(data, 5, WHOLE, False)
    assert at == 0 and isinstance(run, BatchRun)
    assert (run.base_offset, run.next_offset, run.count, run.size) == (5, 105, 100, len(data))
    assert list(run.each()) == list(headers(data))


@pytest.mark.parametrize(
    ("odd", "end"),
    [
        (batch(55, 1, attributes=0x30), 56),
        (batch(55, 1, attributes=0x10, producer=PRODUCER), 56),
        (emptied(55, 2), 57),
        (batch(55, 17), 72),
        (batch(55, 1, value=b"v" * WHOLE), 56),
        (batch(60, 1), 61),
        (stamped(bytearray(batch(55, 1)[:12]) + b"\0\0\0\4" + batch(55, 1)[16:]), 56),
        (message(55, OLD[0], 1), 56),
    ],
    ids=["marker", "transactional", "empty", "many", "large", "gap", "epoch", "old"],
)
def test_what_is_not_ordinary_stands_by_itself(odd: bytes, end: int) -> None:
    log = [*ordinary(5, 50), odd, *ordinary(end, 50)]
    whole = list(found(pa.py_buffer(b"".join(log)), 5, WHOLE, False))
    kinds = [isinstance(one, BatchRun) for _, one in whole]
    # Behind a gap, or with another epoch, what comes after goes on from it.
    assert kinds in ([True, False, True], [True, True]), kinds
    assert whole[0][1].next_offset == 55


def test_few_batches_are_no_run() -> None:
    some = ordinary(5, batch_runs.LEAST_BATCHES - 1)
    assert not any(
        isinstance(one, BatchRun) for _, one in found(pa.py_buffer(b"".join(some)), 5, WHOLE, False)
    )


def test_what_ends_before_the_position_is_in_no_run() -> None:
    data = pa.py_buffer(b"".join(ordinary(5, 100)))
    whole = list(found(data, 45, WHOLE, False))
    assert len(whole) == 41 and isinstance(whole[-1][1], BatchRun) and whole[-1][1].base_offset == 45


def lie(piece: bytes, where: int, bit: int, more: bytes = b"") -> bytes:
    """A batch that says something else, and is what its checksum is of."""
    bad = bytearray(piece + more)
    struct.pack_into(">i", bad, 8, len(bad) - 12)
    bad[where] ^= bit
    return stamped(bad)


class Log:
    """A log of batches of all kinds, and some that say something wrong."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        self.pieces: list[bytes] = []
        self.begin = offset = draw.choice([0, 5, 1000])
        self.codecs = draw.choice([["none"], ["lz4"], [*CODECS]])
        kinds = ["one", "some", "marker", "transactional", "empty", "old", "gap", "large"]
        while len(self.pieces) < 60:
            # At least one run.
            kind, many = (
                (draw.choice(kinds), draw.choice([1, 2, 5, 30])) if self.pieces else ("one", len(kinds))
            )
            if kind in ("marker", "old", "gap", "large"):
                many = 1
            for _ in range(many):
                offset += self._add(kind, offset)
        self.end = offset
        self.bounds = [0]
        for piece in self.pieces:
            self.bounds.append(self.bounds[-1] + len(piece))

    def _add(self, kind: str, offset: int) -> int:
        draw, codec = self.draw, self.draw.choice(self.codecs)
        if kind == "gap":
            return draw.randrange(1, 9)
        count = 1
        if kind == "marker":
            self.pieces.append(batch(offset, 1, attributes=0x30, producer=PRODUCER))
        elif kind == "transactional":
            self.pieces.append(batch(offset, 1, codec, attributes=0x10, producer=PRODUCER))
        elif kind == "old":
            self.pieces.append(message(offset, OLD[0], 1))
        elif kind == "empty":
            count = 3
            self.pieces.append(emptied(offset, count))
        else:
            count = draw.choice([2, 3, 16, 17]) if kind == "some" else 1
            size = WHOLE if kind == "large" else draw.randrange(80)
            self.pieces.append(batch(offset, count, codec, value=bytes(size)))
        return count

    def answers(self) -> Iterator[tuple[bytes, int, list[Aborted]]]:
        """What a broker sends: sound, with one bit that is another one, with one batch less, cut off; the
        position that it was asked for; what is aborted."""
        data = b"".join(self.pieces)
        aborted = self.draw.choice([[], [Aborted(PRODUCER, self.begin)]])
        yield data, self.begin, aborted
        yield data, self.draw.randrange(self.begin, self.end), aborted
        for _ in range(20):
            bad = bytearray(data)
            number = self.draw.randrange(len(self.pieces))
            # Headers and what is behind them alike.
            at = self.bounds[number] + self.draw.randrange(min(70, len(self.pieces[number])))
            bad[at] ^= 1 << self.draw.randrange(8)
            yield bytes(bad), self.begin, aborted
        for _ in range(20):
            # By a producer that says something wrong itself, several times over.
            number = self.draw.randrange(len(self.pieces))
            more = self.draw.choice([b"", b"", bytes(7)])
            where = 21 + self.draw.randrange(len(self.pieces[number]) - 21)
            bit = 1 << self.draw.randrange(8)
            lying = list(self.pieces)
            for other in range(number, min(number + self.draw.choice([1, 8]), len(lying))):
                if len(lying[other]) > where and lying[other][16] == 2:
                    lying[other] = lie(lying[other], where, 0 if more else bit, more)
            yield b"".join(lying), self.begin, aborted
        less = self.draw.randrange(len(self.pieces))
        yield b"".join(self.pieces[:less] + self.pieces[less + 1 :]), self.begin, aborted
        yield data[: self.draw.randrange(1, len(data))], self.begin, aborted


def read(data: bytes, position: int, aborted: list[Aborted], aligned: bool) -> list[Any]:
    """All that comes of an answer, and how far it is read."""
    at = At(position, aligned)
    came: list[Any] = []
    part = Part(0, 1 << 40, 1 << 40, aborted, memoryview(data), None)
    try:
        for chunk in fetch_answers.chunks(at, part, COMPRESSED, WHOLE, Budget()):
            came.append((chunk.next, chunk.leader_epoch))
            taken_apart(chunk)
            if chunk.rows is not None:
                came += chunk.rows.to_pylist()
            for header, whole in chunk.wholes:
                came += [header, *decode(whole)]
    except BatchError as wrong:
        came.append(str(wrong))
    return [*came, at]


@pytest.mark.usefixtures("in_small_runs")
@pytest.mark.parametrize("seed", range(12))
def test_what_comes_is_what_comes_of_each_by_itself(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log, runs = Log(seed), 0
    for data, position, aborted in log.answers():
        for aligned in (True, False):
            came = read(data, position, aborted, aligned)
            with monkeypatch.context() as off:
                off.setattr(batch_runs, "MOST_BATCHES", 0)
                assert read(data, position, aborted, aligned) == came
        try:
            for _, one in found(pa.py_buffer(data), position, WHOLE, not aborted):
                runs += isinstance(one, BatchRun)
        except BatchError:
            pass
    assert runs > 20, "or nothing was tried"


@pytest.mark.usefixtures("in_small_runs")
@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("count", [1, 3])
def test_any_bit_of_a_batch_within_a_run(codec: str, count: int) -> None:
    """Those before it come, and what is wrong is told with its offset; or the same records come."""
    pieces = [batch(count * at, count, codec) for at in range(9)]
    truth = [row for row in read(b"".join(pieces), 0, [], True) if isinstance(row, dict)]
    for bit in range(8 * len(pieces[4])):
        bad = bytearray(pieces[4])
        bad[bit // 8] ^= 1 << bit % 8
        came = read(b"".join([*pieces[:4], bad, *pieces[5:]]), 0, [], True)
        rows = [row for row in came if isinstance(row, dict)]
        if rows != truth:
            assert rows == truth[: 4 * count] and came[-1].offset == 4 * count, f"bit {bit}"
            assert not isinstance(came[-2], str) or f"offset {4 * count}" in came[-2] or bit < 64, came[-2]


@pytest.mark.usefixtures("in_small_runs")
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_what_a_look_has_no_room_for_comes_with_the_next(codec: str) -> None:
    """More than a quarter of what may be unpacked, in batches of one record each."""
    size = LEAST_BYTES // 64
    pieces = [batch(at, 1, codec, value=bytes(size)) for at in range(100)]
    at, offsets = At(0), []
    looks = 0
    while at.offset < 100:
        rest = memoryview(b"".join(pieces[at.offset :]))
        part = Part(0, 100, 100, [], rest, None)
        before = at.offset
        for chunk in fetch_answers.chunks(at, part, {}, 1 << 20, Budget(LEAST_BYTES)):
            assert chunk.rows is not None
            offsets += chunk.rows.column(0).to_pylist()
        assert at.offset > before
        looks += 1
    assert offsets == list(range(100))
    assert looks > 1


def test_records_that_say_something_wrong_within_a_sound_batch_are_named() -> None:
    pieces = ordinary(0, 40)
    bad = bytearray(batch(20, 1))
    bad[61] += 2
    pieces[20] = stamped(bad)
    *rows, _ = read(b"".join(pieces), 0, [], True)
    assert [row["offset"] for row in rows if isinstance(row, dict)] == list(range(20))
    wrong, _ = read(b"".join(pieces[20:]), 20, [], True)
    assert "batch at offset 20" in wrong


def test_a_leader_epoch_below_minus_one_is_told_of_a_run_too() -> None:
    data = b"".join(piece[:12] + struct.pack(">i", -2) + piece[16:] for piece in ordinary(0, 40))
    wrong, _ = read(data, 0, [], True)
    assert "leader epoch -2" in wrong


def test_more_records_than_offsets_are_told_of_a_run_too() -> None:
    pieces = ordinary(0, 40)
    two = bytearray(batch(20, 2))
    struct.pack_into(">i", two, 23, 0)
    *_, wrong, at = read(b"".join([*pieces[:20], stamped(two), *pieces[21:]]), 0, [], True)
    assert wrong == "batch at offset 20 of 2 records up to 20" and at.offset == 20


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_sound_run_is_not_taken_apart(codec: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(record_decoder, "each")
    pieces = [batch(count * at, count, codec) for at in range(40)]
    rows = [row for row in read(b"".join(pieces), 0, [], True) if isinstance(row, dict)]
    assert [row["offset"] for row in rows] == list(range(40 * count))


def test_batches_of_a_run_may_have_more_records_than_one_and_not_as_many() -> None:
    log, offset = [], 0
    for number in range(64):
        log.append(batch(offset, number % 4 + 1))
        offset += number % 4 + 1
    ((_, run),) = found(pa.py_buffer(b"".join(log)), 0, 10 * WHOLE, False)
    assert isinstance(run, BatchRun) and run.count == offset
    rows = [row for row in read(b"".join(log), 0, [], True) if isinstance(row, dict)]
    assert [(row["offset"], row["value"]) for row in rows] == [
        (n, b"value " * 9 + b"%d" % n) for n in range(offset)
    ]
