"""What a broker sent, whatever bit of it is another one: the records are the same, or an event says at which
offset something is wrong."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest

from common.kafka.wire import fetch_answers, record_decoder
from common.kafka.wire.chunks import Chunk
from common.kafka.wire.fetch_answers import Budget, checked
from common.kafka.wire.fetch_protocol import Aborted, Part
from common.kafka.wire.record_batch import CODECS, BatchError, Records, decode, headers, seal
from common.kafka.wire.record_encoder import encode_records
from common.kafka.wire.records import MAX_RECORDS, encode_rows
from tests.support.old_format import Old, compressed, message

NOW = 1_700_000_000_000
WHOLE = 250


def batch(
    first: int,
    count: int,
    codec: str = "none",
    attributes: int = 0,
    producer: int = -1,
    value: bytes = b"value " * 9,
) -> bytes:
    """Of the records of `first` and so many in all."""
    values = [value + b"%d" % (first + at) for at in range(count)]
    rows = encode_rows(range(count), [NOW] * count, [1] * count, [None] * count, values, None)
    data, stamp = b"", 0
    for records in encode_records(rows, 1 << 30):
        data, stamp = bytes(records.data), records.base_timestamp
    raw = bytearray(
        b"".join(
            map(bytes, seal(Records(count, stamp, stamp, pa.py_buffer(data)), codec, None, producer, 0, 0))
        )
    )
    struct.pack_into(">qi", raw, 0, first, len(raw) - 12)
    struct.pack_into(">i", raw, 12, 3)
    (own,) = struct.unpack_from(">h", raw, 21)
    struct.pack_into(">h", raw, 21, own | attributes)
    return stamped(raw)


def stamped(raw: bytearray) -> bytes:
    """With the checksum of what it is by now."""
    struct.pack_into(">I", raw, 17, google_crc32c.value(bytes(raw[21:])))
    return bytes(raw)


def emptied(first: int, count: int) -> bytes:
    """As compaction leaves a batch for its producer's sequence."""
    raw = bytearray(batch(first, count)[:61])
    struct.pack_into(">i", raw, 8, 49)
    struct.pack_into(">i", raw, 57, 0)
    return stamped(raw)


OLD = [Old(b"k", b"v" * 9, NOW), Old(None, b"w" * 9, NOW), Old(b"k", None, NOW)]
KINDS: dict[str, bytes] = {
    **{codec: batch(10, 3, codec) for codec in CODECS},
    "whole": batch(10, 3, "gzip", value=bytes(range(256))),
    "control": batch(10, 1, attributes=0x30, producer=7),
    "aborted": batch(10, 3, attributes=0x10, producer=7),
    "emptied": emptied(10, 3),
    **{
        f"magic {magic}, {codec}": message(10, OLD[0], magic)
        if codec == "none"
        else compressed(10, OLD, magic, codec)
        for magic in (0, 1)
        for codec in ("none", "gzip", "snappy", "lz4")
    },
}
"""A batch from offset 10 on."""


@dataclass
class At:
    """A partition that is read."""

    offset: int
    aligned: bool = True
    topic: str = "orders"
    partition: int = 0
    epoch: int = 3
    doubted: tuple[int, int] | None = None
    room: int = 0


@dataclass
class Broker:
    """Sends the batches of a log: those that reach beyond a position, at least one, and no more than are
    asked for."""

    log: list[bytes]
    bounds: list[int]
    """Where each ends."""
    most: int
    damaged: dict[int, bytes] = field(default_factory=dict)

    def answer(self, at: At) -> Part:
        out = b""
        for number, (data, end) in enumerate(zip(self.log, self.bounds, strict=True)):
            if end > at.offset and (not out or len(out) + len(data) <= max(self.most, at.room)):
                out += self.damaged.get(number, data)
        return Part(0, self.bounds[-1], self.bounds[-1], [Aborted(7, 0)], memoryview(out), None)


COMPRESSED = dict.fromkeys((1, 2, 3, 4), 1 << 31)


def taken_apart(chunk: Chunk) -> None:
    """A small batch that came alone, as it would have come with others."""
    if chunk.alone:
        ((header, batch),) = chunk.wholes
        chunk.rows, chunk.wholes = record_decoder.columns(batch, [(0, header)]), []


def read(broker: Broker, position: int, aligned: bool = True) -> tuple[list[Any], str]:
    """All records and, where it ended so, what is wrong."""
    at = At(position, aligned)
    found: list[Any] = []
    for _ in range(20):
        if at.offset >= broker.bounds[-1]:
            return found, ""
        try:
            for chunk in fetch_answers.chunks(at, broker.answer(at), COMPRESSED, WHOLE, Budget()):
                taken_apart(chunk)
                if chunk.rows is not None:
                    found += chunk.rows.to_pylist()
                for header, whole in chunk.wholes:
                    for record in decode(whole):
                        found.append((header.base_offset, record))
        except BatchError as wrong:
            return found, f"{wrong} (read up to {at.offset})"
    return found, "it came to no end"


def log_of(kind: str, most: int) -> Broker:
    middle = KINDS[kind]
    end = 11 if kind == "control" or (kind.endswith("none") and "magic" in kind) else 13
    return Broker([batch(7, 3), middle, batch(end, 3), batch(end + 3, 1)], [10, end, end + 3, end + 4], most)


@pytest.mark.parametrize("most", [1, 1 << 20], ids=["one by one", "together"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_bit_that_is_another_one_changes_no_record_or_is_told(kind: str, most: int) -> None:
    """Also of those that are left out, which nobody else would look at."""
    broker = log_of(kind, most)
    truth, wrong = read(broker, 7)
    assert not wrong and len(truth) >= 7
    before = [r for r in truth if (r["offset"] if isinstance(r, dict) else r[0]) < 10]
    data = broker.log[1]
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        broker.damaged = {1: bytes(bad)}
        found, wrong = read(broker, 7)
        if wrong:
            assert found == before, f"bit {bit}: what is sound before it comes, and nothing else"
            assert "offset 10" in wrong or "up to 10)" in wrong, wrong
        else:
            assert found == truth, f"bit {bit}"


@pytest.mark.parametrize("kind", ["none", "magic 0, gzip", "magic 1, lz4"])
def test_where_reading_begins_in_the_middle_of_a_batch_its_offset_is_looked_at_too(kind: str) -> None:
    broker = log_of(kind, 1 << 20)
    truth, wrong = read(broker, 11, aligned=False)
    assert not wrong and truth[0]["offset"] == 11
    for bit in range(64):
        bad = bytearray(broker.log[1])
        bad[bit // 8] ^= 1 << bit % 8
        broker.damaged = {1: bytes(bad)}
        found, wrong = read(broker, 11, aligned=False)
        assert (not found and "11" in wrong) if wrong else found == truth, f"bit {bit}"


@pytest.mark.parametrize("magic", [0, 1])
def test_a_compressed_message_does_not_move_the_records_that_it_holds(magic: int) -> None:
    """It says the last one's offset, which its checksum does not cover; the others are reckoned from that
    with magic 1."""
    log = [batch(8, 3), compressed(11, OLD, magic, "gzip"), batch(20, 3)]
    broker = Broker(log, [11, 14, 23], 1 << 20)
    truth, _ = read(broker, 8)
    for bit in range(64):
        bad = bytearray(log[1])
        bad[bit // 8] ^= 1 << bit % 8
        broker.damaged = {1: bytes(bad)}
        found, wrong = read(broker, 8)
        # With magic 1 and a gap behind it, one that lies farther on could be well.
        moved = magic and found[3]["offset"] > 11 if len(found) > 3 else False
        assert found == truth or moved or (wrong and found == truth[:3]), f"bit {bit}: {wrong}"


def test_gaps_that_compaction_left_are_passed() -> None:
    broker = Broker([batch(7, 3), batch(40, 3), batch(90, 1)], [10, 43, 91], 1)
    for most in (1, 1 << 20):
        broker.most = most
        found, wrong = read(broker, 7)
        assert not wrong and [r["offset"] for r in found] == [7, 8, 9, 40, 41, 42, 90]


def test_what_lies_behind_a_gap_is_asked_for_once_more_with_what_is_behind_it() -> None:
    data = pa.py_buffer(batch(40, 3))
    first = checked(data, 10, True, None, 43)
    assert first.batches == [] and first.doubted is not None and first.wrong is None
    header = first.doubted
    assert len(checked(data, 10, True, (header.base_offset, header.crc), 43).batches) == 1, (
        "the same came again"
    )
    beyond = checked(data, 10, True, (header.base_offset, header.crc), 42)
    assert beyond.batches == [] and "offset 40" in str(beyond.wrong), "the log does not reach so far"
    assert len(checked(pa.py_buffer(batch(40, 3) + batch(50, 1)), 10, True, None, 60).batches) == 1


def test_counts_below_0_are_errors_though_the_checksum_is_right() -> None:
    for place, number in ((57, -1), (57, -(2**31) + 3), (23, -1), (57, 4)):
        raw = bytearray(batch(10, 3, attributes=0x20))
        struct.pack_into(">i", raw, place, number)
        found = checked(pa.py_buffer(stamped(raw)), 10, True, None, 13)
        assert found.batches == [] and "offset 10" in str(found.wrong), (place, number)


def test_a_batch_of_more_records_than_a_frame_may_have_does_not_go_whole() -> None:
    head = next(headers(batch(10, 3, "zstd")))[1]
    for count, whole in ((MAX_RECORDS, True), (MAX_RECORDS + 1, False)):
        header = replace(head, count=count, last_offset_delta=count - 1)
        assert fetch_answers._whole(header, 10, {4: header.size}) is whole
        assert not fetch_answers._whole(header, 10, {4: header.size - 1})


# What is unpacked.


def reading(data: bytes, end: int, budget: int = fetch_answers.UNPACKED_BYTES) -> tuple[int, int]:
    """Read it all, a budget at a time: how many records, and how many times it was looked at."""
    at, count, turns = At(0), 0, 0
    part = Part(0, end, end, [], memoryview(data), None)
    while at.offset < end:
        turns += 1
        for chunk in fetch_answers.chunks(at, part, {}, WHOLE, Budget(budget)):
            count += chunk.count
            if chunk.rows is not None:
                assert chunk.rows.nbytes <= 2 * budget
    return count, turns


def tiny(count: int, codec: str = "zstd") -> bytes:
    """Of so many records of a few bytes, all alike but for their numbers."""
    rows = encode_rows(range(count), [NOW] * count, [1] * count, [None] * count, [b""] * count, None)
    (records,) = encode_records(rows, 1 << 30)
    return b"".join(map(bytes, seal(records, codec)))


def test_a_batch_that_unpacks_into_much_comes_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_answers, "LEAST_BYTES", 1000)
    for codec in CODECS:
        data = tiny(50_000, codec)
        count, turns = reading(data, 50_000, 1_000_000)
        assert count == 50_000 and 5 <= turns <= 8, codec
    values = b"".join(batch(10 * at, 10, "zstd", value=b"v" * 10_000) for at in range(30))
    count, turns = reading(values, 300, 1_000_000)
    assert count == 300 and 3 <= turns <= 5
    old = compressed(0, [Old(None, b"v" * 1000)] * 5000, 1, "gzip")
    assert reading(old, 5000, 1_000_000)[0] == 5000


def test_what_is_read_at_once_takes_little_memory_whatever_has_come(tmp_path: Path) -> None:
    """Measured, of what is stored as a megabyte or less: many records, large ones, and an answer of many
    batches."""
    made = [
        (tiny(1_000_000), 1_000_000),
        (batch(0, 9, "gzip", value=b"v" * 12_000_000), 9),
        (b"".join(batch(9 * at, 9, "zstd", value=b'{"all": "alike"}' * 6000) for at in range(300)), 2700),
    ]
    code = """
import re
from tests.unit.common.kafka.wire import test_fetch_answers as t
def most():
    return int(re.search("VmHWM:[^0-9]*([0-9]+)", open("/proc/self/status").read())[1]) >> 10
def look(name, end):
    data = open(name, "rb").read()
    at, part = t.At(0), t.Part(0, end, end, [], memoryview(data), None)
    count = sum(chunk.count for chunk in t.fetch_answers.chunks(at, part, {}, t.WHOLE, t.Budget()))
    assert 0 < count < end, count
t.reading(t.batch(0, 100), 100)
before = most()
"""
    for number, (data, end) in enumerate(made):
        assert len(data) < 1_500_000
        (tmp_path / str(number)).write_bytes(data)
        code += f"look({str(tmp_path / str(number))!r}, {end})\n"
    code += "print(most() - before)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 240, "MiB"
