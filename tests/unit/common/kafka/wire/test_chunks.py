"""Chunks on their way into frames, and frames of whole batches on their way out of staging: nothing is lost,
doubled or put in another place."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import common.kafka.wire.chunks
from common.errors import FrameError
from common.kafka.wire.chunks import Chunk, Chunks, Whole
from common.kafka.wire.record_batch import BatchError, BatchHeader, decode, headers, reseal, seal
from common.kafka.wire.record_decoder import leading
from common.kafka.wire.record_encoder import encode_records
from common.kafka.wire.records import Header, encode_rows
from common.link import batch_frame, provenance
from common.link.frame import Frame, decode_headers, decode_rows, encode_headers
from common.pipeline.batch import Origin
from common.pipeline.engine import Engine
from replicator.lane import partition_copy
from replicator.lane.lane import Lane
from replicator.lane.partition_copy import (
    CutFrame,
    Loop,
    PartitionCopy,
    Status,
)
from replicator.lane.through_flow import Flow, StageFailed, takes_apart
from replicator.lane.unreadable import Unreadable
from tests.support.pipelines import pipeline

MARK = provenance.header("there")


def whole(
    first: int, count: int, size: int = 10, own: list[Header] | None = None, front: bytes = b""
) -> Whole:
    rows = encode_rows(
        range(count),
        [1000 + first + i for i in range(count)],
        [1] * count,
        [b"k%d" % (first + i) for i in range(count)],
        [front + b"%d" % (first + i) + b"v" * size for i in range(count)],
        None if own is None else [own] * count,
    )
    (records,) = encode_records(rows, 1 << 30)
    raw = bytearray(b"".join(seal(records, "lz4")))
    struct.pack_into(">q", raw, 0, first)
    data = pa.py_buffer(bytes(raw))
    return next(headers(data))[1], data


def with_schema(first: int, schema_id: int, count: int = 4) -> Whole:
    """Values with a schema's id in front."""
    return whole(first, count, front=b"\0" + schema_id.to_bytes(4, "big"))


def rows(first: int, count: int, size: int = 10, own: list[Header] | None = None) -> pa.RecordBatch:
    return encode_rows(
        range(first, first + count),
        [1000 + first + i for i in range(count)],
        [1] * count,
        [b"k%d" % (first + i) for i in range(count)],
        [b"%d" % (first + i) + b"v" * size for i in range(count)],
        None if own is None else [own] * count,
    )


def make(**more: Any) -> PartitionCopy:
    return PartitionCopy("c", "orders", "id", 0, "w", 0, 0, **more)


def of(first: int, count: int, kind: str, gap: int = 0, epoch: int = 0) -> Chunk:
    """A chunk of records, behind which `gap` offsets are of none."""
    chunk = Chunk("orders", 0, first + count + gap, epoch)
    if kind == "whole":
        chunk.wholes = [whole(first + i, min(3, count - i)) for i in range(0, count, 3)]
    elif kind == "alone" and count:
        chunk.wholes, chunk.alone = [whole(first, count)], True
    elif count:
        chunk.rows = rows(first, count)
    return chunk


def records_of(cut: CutFrame) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """What a deduplicator finds in a frame: through its Kafka headers, as they travel."""
    value = bytes(cut.value)
    frame, crc = decode_headers(encode_headers(cut.frame, value))
    found = batch_frame.decode(frame, crc, value).rows() if frame.batches else decode_rows(frame, crc, value)
    return list(zip(found.offsets, found.timestamps, found.keys, found.values, strict=True))


def expected(first: int, count: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(o, 1000 + o, b"k%d" % o, b"%d" % o + b"v" * 10) for o in range(first, first + count)]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 8),
            st.sampled_from(["whole", "alone", "rows"]),
            st.integers(0, 2),
            st.integers(0, 1),
        ),
        max_size=6,
    ),
    st.integers(1, 12),
    st.sampled_from([1, 30, 100, 400, 10_000]),
    st.none() | st.integers(1, 5),
)
def test_frames_hold_every_record_once_in_order_and_cover_every_offset(
    parts: list[tuple[int, str, int, int]], most_records: int, most_bytes: int, limit: int | None
) -> None:
    copy, at, wanted = make(), 0, []
    for count, kind, gap, epoch in parts:
        copy.take_chunk(of(at, count, kind, gap, epoch))
        wanted += expected(at, count)
        at += count + gap
    cuts: list[CutFrame] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_copy, "MAX_FRAME_RECORDS", most_records)
        patch.setattr(partition_copy, "MAX_FRAME_BYTES", most_bytes)
        while copy.cut_at < copy.read:
            cuts += copy.cut(True, limit)
    assert [r for cut in cuts for r in records_of(cut)] == wanted
    assert [cut.frame.start for cut in cuts] == [0, *(cut.frame.next for cut in cuts)][: len(cuts)]
    assert copy.cut_at == at == copy.read
    assert (copy.waiting, copy.pending_bytes) == (0, 0)
    assert limit is None or all(cut.frame.count <= limit for cut in cuts)


def test_batches_travel_as_they_are() -> None:
    copy = make()
    batches = [whole(0, 3), whole(3, 2)]
    copy.take_chunk(Chunk("orders", 0, 6, 4, list(batches)))
    (cut,) = copy.cut(True)
    assert cut.frame.batches and (cut.frame.start, cut.frame.next, cut.frame.count) == (0, 6, 5)
    assert bytes(cut.value) == b"".join(bytes(data) for _, data in batches)
    assert cut.leader_epoch == 4


def test_a_small_batch_that_came_alone_travels_as_it_is_unless_others_are_with_it() -> None:
    copy = make()
    copy.take_chunk(of(0, 2, "alone", gap=1))
    ((_, batch),) = copy.chunks._chunks[0].wholes
    (cut,) = copy.cut(True)
    assert cut.frame.batches and (cut.frame.next, bytes(cut.value)) == (3, bytes(batch))
    for at in (3, 5, 7):
        copy.take_chunk(of(at, 2, "alone"))
    copy.take_chunk(of(9, 3, "rows"))
    copy.take_chunk(of(12, 3, "whole"))
    copy.take_chunk(of(15, 1, "alone"))
    cuts = copy.cut(True)
    assert [(cut.frame.start, cut.frame.next) for cut in cuts] == [(3, 12), (12, 15), (15, 16)]
    assert [r for cut in cuts for r in records_of(cut)] == expected(3, 13)
    assert (copy.waiting, copy.pending_bytes) == (0, 0)


def test_a_small_batch_that_can_t_be_taken_apart_goes_as_it_is_and_holds_up_nothing() -> None:
    copy = make()
    for at, kind in enumerate(["rows", "bad", "alone", "bad", "bad"]):
        chunk = of(at, 1, kind)
        if kind == "bad":
            chunk.rows, chunk.wholes, chunk.alone = None, [unreadable(at)], True
        copy.take_chunk(chunk)
    cuts = copy.cut(True)
    assert [(cut.frame.start, cut.frame.next) for cut in cuts] == [(at, at + 1) for at in range(5)]
    for at in (1, 3, 4):
        assert bytes(cuts[at].value) == bytes(unreadable(at)[1])


def test_a_piece_has_the_leader_epoch_of_its_last_record() -> None:
    copy = make()
    copy.take_chunk(of(0, 2, "rows", epoch=1))
    copy.take_chunk(of(2, 2, "rows", epoch=2))
    assert [(cut.frame.next, cut.leader_epoch) for cut in copy.cut(True)] == [(2, 1), (4, 2)]


def test_what_was_read_before_a_rewind_or_a_pause_is_read_again() -> None:
    copy = make()
    copy.take_chunk(of(0, 4, "rows"))
    copy.put_back()
    assert (copy.waiting, copy.read) == (0, 0)
    copy.take_chunk(of(0, 4, "whole"))
    copy.rewind(2)
    assert (copy.waiting, copy.read) == (0, 2)
    copy.take_chunk(of(0, 2, "rows"))
    assert copy.waiting == 0, "stale"


def test_records_that_came_from_the_target_are_left_out() -> None:
    copy = make(leave_out=MARK)
    mixed = pa.concat_batches([rows(0, 2, own=[("a", None)]), rows(2, 1, own=[MARK]), rows(3, 1)])
    copy.take_chunk(Chunk("orders", 0, 4, 0, rows=mixed))
    (cut,) = copy.cut(True)
    assert [r[0] for r in records_of(cut)] == [0, 1, 3]
    assert (cut.frame.count, cut.left_out, cut.frame.next) == (3, 1, 4)


@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("kind", ["whole", "rows"])
def test_a_loop_is_noticed(kind: str, before: int) -> None:
    """Promise: at once, also behind frames of offsets without records."""
    copy = make(refuse=MARK)
    for at in range(before):
        copy.take_chunk(Chunk("orders", 0, at + 1, 0))
        copy.acknowledge(copy.cut(True)[0])
    chunk = Chunk("orders", 0, before + 2, 0)
    if kind == "whole":
        chunk.wholes = [whole(before, 2, own=[MARK])]
    else:
        chunk.rows = rows(before, 2, own=[MARK])
    copy.take_chunk(chunk)
    with pytest.raises(Loop, match=f"record {before + 1} of orders-0"):
        copy.cut(True)


def test_a_loop_is_looked_for_now_and_then_not_in_each_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []

    def looking(*args: Any) -> Any:
        looked.append(args)
        return leading(*args)

    monkeypatch.setattr(partition_copy, "leading", looking)
    copy = make(refuse=MARK)
    for at in range(partition_copy.LOOP_LOOK_FRAMES + 1):
        copy.take_chunk(Chunk("orders", 0, at + 1, 0, [whole(at, 1)]))
        copy.acknowledge(copy.cut(True)[0])
    assert len(looked) == 2


def frame_of(batches: list[Whole], **more: Any) -> tuple[Frame, int, bytes]:
    value = b"".join(bytes(data) for _, data in batches)
    count = sum(h.count for h, _ in batches)
    given_ = {"start": 0, "next": 100, "count": count} | more
    frame = Frame("c", "orders", "id", 0, writer="w", batches=True, **given_)
    return frame, zlib.crc32(value), value


def test_offsets_of_a_frame_are_those_of_its_batches() -> None:
    dense = batch_frame.decode(*frame_of([whole(0, 3), whole(3, 2)]))
    assert (dense.count, dense.begin_at(0), dense.begin_at(1)) == (5, True, False)
    assert dense.rows().offsets == range(5)
    sparse = batch_frame.decode(*frame_of([whole(0, 2), whole(7, 2)]))
    assert list(sparse.rows().offsets) == [0, 1, 7, 8]
    assert list(sparse.rows().from_offset(1).offsets) == [1, 7, 8]


def tampered(batch: Whole, at: int, form: str, value: int) -> Whole:
    """A batch that says something else of itself, with a checksum that says it is right."""
    raw = bytearray(bytes(batch[1]))
    struct.pack_into(form, raw, at, value)
    struct.pack_into(">I", raw, 17, google_crc32c.value(bytes(raw[21:])))
    data = pa.py_buffer(bytes(raw))
    return BatchHeader(*struct.unpack_from(">qiibIhiqqqhii", data)), data


@pytest.mark.parametrize(
    ("batches", "more"),
    [
        ([whole(0, 3)], {"count": 2}),
        ([whole(0, 3), whole(2, 2)], {}),
        ([whole(0, 3)], {"start": 1}),
        ([whole(0, 3)], {"next": 2, "count": 2}),
        ([tampered(whole(0, 3), 21, ">h", 0x20)], {}),
        ([tampered(whole(0, 3), 21, ">h", 0x08)], {}),
        ([tampered(whole(0, 3), 23, ">i", 5)], {}),
        ([tampered(whole(0, 3), 16, ">b", 1)], {}),
        ([tampered(whole(0, 3), 8, ">i", 5)], {}),
    ],
)
def test_a_frame_of_batches_that_does_not_hold_what_it_says_is_refused(
    batches: list[Whole], more: dict[str, int]
) -> None:
    with pytest.raises(FrameError, match="frame of orders-0"):
        batch_frame.decode(*frame_of(batches, **more))


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_frame_of_batches_is_refused_though_its_checksum_were_right(at: int, by: int) -> None:
    frame, _, value = frame_of([whole(0, 3), whole(3, 4)])
    raw = bytearray(value)
    raw[at % len(raw)] ^= by
    try:
        found = batch_frame.decode(frame, zlib.crc32(raw), bytes(raw))
    except FrameError:
        return
    # The offset and the leader epoch of a batch are not in its checksum: brokers write them.
    assert found.count == 7 and found.batches[0][1].base_offset >= frame.start


def test_a_damaged_frame_fails_its_own_checksum() -> None:
    frame, crc, value = frame_of([whole(0, 3)])
    with pytest.raises(FrameError, match="fails its checksum"):
        batch_frame.decode(frame, crc, bytes([value[0] ^ 1]) + value[1:])


def test_a_batch_of_another_producer_s_has_the_same_records() -> None:
    header, data = whole(40, 5)
    raw = b"".join(bytes(piece) for piece in reseal(header, data, 7, 3, 11))
    (_, again), *none = headers(raw)
    assert not none
    assert (again.producer_id, again.producer_epoch, again.base_sequence) == (7, 3, 11)
    assert again.transactional and not again.control and (again.codec, again.count) == (header.codec, 5)
    assert [r._replace(offset=r.offset + 40) for r in decode(raw)] == decode(bytes(data))


def test_taking_apart_keeps_the_count_and_changes_the_bytes() -> None:
    chunks = Chunks()
    chunks.add(Chunk("orders", 0, 5, 0, [whole(0, 5)]))
    before = chunks.bytes
    piece = chunks.cut(2, 1 << 20, whole=False)
    assert piece.rows is not None and len(piece.rows) == 2
    assert chunks.count == 3
    assert chunks.bytes != before
    rest = chunks.cut(10, 1 << 20, whole=False)
    assert (chunks.count, chunks.bytes, rest.next) == (0, 0, 5)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.integers(1, 7), st.integers(1, 500))
def test_bytes_are_counted_down_to_nothing_whatever_headers_take(
    sizes: list[int], most_records: int, most_bytes: int
) -> None:
    """Of headers the average counts, which is another one for what is left: what remained would add up over a
    lane's life."""
    chunks = Chunks()
    apart = [rows(at, 1, own=[("h", b"x" * size)]) for at, size in enumerate(sizes)]
    chunks.add(Chunk("orders", 0, len(sizes), 0, rows=pa.concat_batches(apart)))
    while chunks.count:
        assert chunks.bytes >= 0
        chunks.cut(most_records, most_bytes, whole=True)
    assert chunks.bytes == 0


def unreadable(first: int) -> Whole:
    """A batch that no broker refuses: the name of a header in it is not UTF-8."""
    header, data = whole(first, 1, own=[("@@", b"")])
    raw = bytearray(bytes(data))
    assert raw.count(b"@@") == 1, "not compressed"
    at = raw.index(b"@@")
    raw[at : at + 2] = b"\xff\xfe"
    return tampered((header, pa.py_buffer(bytes(raw))), 8, ">i", header.length)


def test_a_batch_that_can_t_be_read_goes_as_it_is() -> None:
    """To look for a loop in it is worth no partition. A header's name that is not UTF-8 arrives byte for
    byte."""
    copy = make(refuse=MARK)
    copy.take_chunk(Chunk("orders", 0, 1, 0, [unreadable(0)]))
    (cut,) = copy.cut(True)
    assert cut.frame.batches and cut.frame.count == 1
    ((header, batch),) = batch_frame.decode(cut.frame, zlib.crc32(cut.value), bytes(cut.value)).each()
    produced = b"".join(bytes(piece) for piece in reseal(header, batch, 7, 3, 11))
    assert produced[61:] == bytes(unreadable(0)[1])[61:] and b"\xff\xfe" in produced


def test_a_batch_that_can_t_be_taken_apart_halts_its_partition_by_name_behind_what_is_sound() -> None:
    """What was read before it goes into staging first: nobody would read it again."""
    copy = make()
    copy.take_chunk(Chunk("orders", 0, 3, 0, [whole(0, 2), unreadable(2)]))
    told: list[Any] = []
    sent: list[CutFrame] = []

    def halt(copy: PartitionCopy, *what: Any) -> None:
        copy.status = Status.HALTED
        told.append(what)

    lane = cast(Any, object.__new__(Lane))
    lane.trace = None
    lane.uncut = {("orders", 0): copy}
    lane.throttle = SimpleNamespace(
        limits=lambda _: True,
        affordable=lambda *_: 10,
        spend=lambda _: None,
        holds_back=lambda *_: False,
    )
    lane.halts = SimpleNamespace(halt=halt)
    lane.unreadable = Unreadable(
        cast(Any, SimpleNamespace(begun=1, by_id=lambda: True)), lane.halts, cast(Any, None)
    )
    lane.topic_id_check = SimpleNamespace(hold_back=sent.append)
    found = mock.Mock(wraps=lane.unreadable.found)
    lane.unreadable.found = found
    for _ in range(3):
        lane._cut(True)
        lane.unreadable.look()
    found.assert_called_once()  # it isn't taken apart again
    assert [(cut.frame.start, cut.frame.next) for cut in sent] == [(0, 2)] and not told
    copy.acknowledge(sent[0])
    lane.unreadable.look()
    ((reason, detail, at, available),) = told
    assert (reason, at, available) == ("unreadable-batch", 2, None)
    assert "orders-0: " in detail and "'utf-8' codec can't decode byte 0xff" in detail
    lane._cut(True)
    assert not lane.uncut


@given(st.lists(st.sampled_from([1, 7, 1 << 19, 1 << 20]), min_size=1, max_size=6))
def test_whatever_is_cut_can_be_read(counts: list[int]) -> None:
    """One bound, for who writes frames and who reads them: batches of very many records are not put together
    beyond it."""
    copy, at = make(), 0
    wholes: list[Whole] = []
    for count in counts:
        header, data = whole(at, 1)
        wholes.append((replace(header, count=count, last_offset_delta=count - 1), data))
        at += count
    copy.take_chunk(Chunk("orders", 0, at, 0, wholes))
    cuts = copy.cut(True)
    assert sum(cut.frame.count for cut in cuts) == sum(counts)
    for cut in cuts:
        frame, _ = decode_headers(encode_headers(cut.frame, cut.value))
        assert frame == cut.frame


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(1, 25), st.data())
def test_batches_are_taken_apart_a_part_at_a_time_and_no_record_is_lost_or_doubled(
    counts: list[int], most: int, data: st.DataObject
) -> None:
    """However little is unpacked at once, and though batches may go whole again meanwhile."""
    chunks, at = Chunks(), 0
    wholes: list[Whole] = []
    for count in counts:
        wholes.append(whole(at, count))
        at += count
    chunks.add(Chunk("orders", 0, at + 2, 0, wholes))
    found: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common.kafka.wire.chunks, "UNPACKED_BYTES", data.draw(st.sampled_from([1000, 1 << 20])))
        patch.setattr(common.kafka.wire.chunks, "APART_BYTES", data.draw(st.sampled_from([1, 500, 1 << 20])))
        while chunks.count:
            piece = chunks.cut(most, 1 << 20, whole=data.draw(st.booleans()))
            for header, _ in piece.wholes:
                found += range(header.base_offset, header.next_offset)
            if piece.rows is not None:
                found += piece.rows.column(0).to_pylist()
            assert piece.next >= found[-1] + 1
    assert found == list(range(at)) and piece.next == at + 2 and chunks.bytes == 0


def test_a_whole_batch_that_reaches_a_flow_all_the_same_does_not_pass_it_by() -> None:
    """The reader takes the batches of such topics apart; whatever comes of one that did not, nothing of it
    may go unseen."""
    ready = Engine(pipeline({"mask": {"fields": {"value": "redact"}}}, value="bytes"), {}).flow_of("orders")
    assert ready is not None
    copy = make(flow=Flow(partial(ready.apply, origin=Origin("link", "orders", 0))))
    copy.take_chunk(of(0, 5, "whole"))
    found = [value for cut in copy.cut(True) for _, _, _, value in records_of(cut)]
    assert found == [b"***"] * 5


def looking(ids: dict[int, int]) -> PartitionCopy:
    """One whose flow has the stage `schema-ids` and no other."""
    made = pipeline("schema-ids", value="bytes", wire={"value": "confluent"})
    ready = Engine(made, {}, lambda _, schema: ids.get(schema)).flow_of("orders")
    assert ready is not None
    return make(flow=Flow(partial(ready.apply, origin=Origin("link", "orders", 0)), ready.looks_only))


def test_batches_whose_schemas_keep_their_ids_stay_whole_to_the_byte() -> None:
    ids = {7: 7, 8: 8}
    copy = looking(ids)
    wholes = [with_schema(0, 7), with_schema(4, 8), with_schema(8, 9)]
    copy.take_chunk(Chunk("orders", 0, 8, 0, wholes[:2]))
    (cut,) = copy.cut(True)
    assert (cut.frame.start, cut.frame.next, cut.frame.count) == (0, 8, 8)
    assert bytes(cut.value) == b"".join(bytes(batch) for _, batch in wholes[:2]) and not takes_apart(
        copy.flow
    )
    # One that is not known keeps what is behind it back; then it stays whole, too.
    copy.take_chunk(Chunk("orders", 0, 12, 0, wholes[2:]))
    with pytest.raises(StageFailed):
        copy.cut(True)
    ids[9] = 9
    copy.go_on()
    assert not takes_apart(copy.flow)
    copy.take_chunk(Chunk("orders", 0, 12, 0, [with_schema(8, 9)]))
    assert [bytes(cut.value) for cut in copy.cut(True)] == [bytes(wholes[2][1])]


def test_one_id_that_is_another_at_the_target_takes_the_batches_apart_from_then_on() -> None:
    """Promise: no record of a batch that would have stayed whole passes the stage by, or is there twice."""
    copy = looking({7: 7, 8: 18})
    copy.take_chunk(Chunk("orders", 0, 12, 0, [with_schema(0, 7), with_schema(4, 8), with_schema(8, 7)]))
    found = [record for cut in copy.cut(True) for record in records_of(cut)]
    assert [offset for offset, *_ in found] == list(range(12)) and copy.chunks.bytes == 0
    assert [int.from_bytes((value or b"")[1:5], "big") for *_, value in found] == [7] * 4 + [18] * 4 + [7] * 4
    assert takes_apart(copy.flow)


def filtered(unwanted: set[bytes]) -> PartitionCopy:
    """One whose flow leaves out the records with these keys."""
    stages = {"filter": {"drop": {"key": {"in": sorted(key.decode() for key in unwanted)}}}}
    ready = Engine(pipeline(stages, key="bytes"), {}).flow_of("orders")
    assert ready is not None and ready.looks_only
    return make(flow=Flow(partial(ready.apply, origin=Origin("link", "orders", 0)), ready.looks_only))


def test_batches_of_which_a_filter_leaves_nothing_out_stay_whole_and_others_are_taken_apart() -> None:
    """Promise: to the byte; and behind one that was taken apart, and need not have been, they are whole
    again."""
    copy = filtered({b"k5"})
    found: list[tuple[bool, list[int]]] = []
    for begin in range(0, 12, 3):
        batch = whole(begin, 3)
        copy.take_chunk(Chunk("orders", 0, begin + 3, 0, [batch]))
        for cut in copy.cut(True):
            found.append((cut.frame.batches, [offset for offset, *_ in records_of(cut)]))
            assert cut.filtered == (begin == 3)
            assert (bytes(cut.value) == bytes(batch[1])) == (begin in (0, 9))
    assert found == [(True, [0, 1, 2]), (False, [3, 4]), (False, [6, 7, 8]), (True, [9, 10, 11])]
    assert (copy.waiting, copy.pending_bytes) == (0, 0)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.sets(st.integers(0, 150)),
    st.sampled_from([1, 300, 2000]),
    st.sampled_from([1000, 1 << 20]),
)
def test_whole_or_apart_a_filter_leaves_out_the_same(
    counts: list[int], unwanted: set[int], most_bytes: int, unpacked_bytes: int
) -> None:
    copy, at = filtered({b"k%d" % offset for offset in unwanted} | {b"none"}), 0
    cuts: list[CutFrame] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_copy, "MAX_FRAME_BYTES", most_bytes)
        patch.setattr(common.kafka.wire.chunks, "UNPACKED_BYTES", unpacked_bytes)
        for count in counts:
            copy.take_chunk(Chunk("orders", 0, at + count, 0, [whole(at, count)]))
            at += count
            if at % 2:
                cuts += copy.cut(True)
        cuts += copy.cut(True)
    wanted = [record for record in expected(0, at) if record[0] not in unwanted]
    assert [record for cut in cuts for record in records_of(cut)] == wanted
    assert sum(cut.filtered for cut in cuts) == at - len(wanted)
    assert [cut.frame.start for cut in cuts] == [0, *(cut.frame.next for cut in cuts)][: len(cuts)]
    assert (copy.cut_at, copy.waiting, copy.pending_bytes) == (at, 0, 0)


def test_a_batch_that_the_flow_can_t_look_into_is_met_by_name() -> None:
    copy = looking({7: 7})
    copy.take_chunk(Chunk("orders", 0, 7, 0, [with_schema(0, 7), unreadable(4)]))
    (cut,) = copy.cut(True)
    assert (cut.frame.start, cut.frame.next) == (0, 4)
    with pytest.raises(BatchError):
        copy.cut(True)
