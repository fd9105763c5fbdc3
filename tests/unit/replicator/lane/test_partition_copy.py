"""One source partition on its way into frames: where frames are cut, what a rewind drops, and what may be
remembered."""

from __future__ import annotations

import zlib
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kafka.wire.records import Rows
from common.link.frame import COMPRESSED_FROM_BYTES, decode_rows
from common.link.frame_errors import split
from common.pipeline.batch import Awaited, Origin
from common.pipeline.engine import Applied, Engine
from common.pipeline.models import Tolerate
from common.pipeline.tolerating import Tolerated
from replicator.lane import partition_copy
from replicator.lane.frame_packer import FramePacker
from replicator.lane.partition_copy import CutFrame, PartitionCopy, Status
from replicator.lane.through_flow import Flow, StageFailed
from tests.support.pipelines import pipeline
from tests.support.strategies import Record, chunk_of


def make(
    position: int = 0, origin: int = 0, handled: int = -1, end: int | None = None, epoch: int | None = None
) -> PartitionCopy:
    return PartitionCopy("c", "orders", "id", 0, "w", origin, position, epoch, handled, end)


def dense(start: int, end: int, **more: object) -> list[Record]:
    return [Record(at, **more) for at in range(start, end)]  # type: ignore[arg-type]


def take(copy: PartitionCopy, records: list[Record], epoch: int = 0) -> None:
    copy.take_chunk(chunk_of(records, epoch=epoch))


def nothing(copy: PartitionCopy, end: int, epoch: int = 0) -> None:
    """As far as `end` the log holds markers, aborted records or nothing."""
    copy.take_chunk(chunk_of([], end, epoch))


def ranges(cuts: list[CutFrame]) -> list[tuple[int, int, int]]:
    return [(c.frame.start, c.frame.next, c.frame.count) for c in cuts]


def rows(cut: CutFrame) -> Rows:
    value = bytes(cut.value)
    return decode_rows(cut.frame, zlib.crc32(value), value)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of at most 4 records or 100 bytes."""
    monkeypatch.setattr(partition_copy, "MAX_FRAME_RECORDS", 4)
    monkeypatch.setattr(partition_copy, "MAX_FRAME_BYTES", 100)


def test_a_frame_says_where_it_comes_from() -> None:
    copy = make(5)
    take(copy, [Record(5, 11, 1, b"k", None, [("a", b"b")]), Record(6, 12, 2, None, b"", None)], 4)
    (cut,) = copy.cut(True)
    f = cut.frame
    assert (f.cluster, f.topic, f.topic_id, f.partition, f.writer) == ("c", "orders", "id", 0, "w")
    assert (f.start, f.next, f.count, f.origin, f.gap, f.reason) == (5, 7, 2, False, False, None)
    assert cut.leader_epoch == 4
    got = rows(cut)
    assert (got.offsets, got.timestamps) == (range(5, 7), [11, 12])
    assert (got.keys, got.values, got.headers) == ([b"k", None], [None, b""], [[("a", b"b")], None])
    assert (copy.name, copy.key) == ("orders-0", ("id", 0))


def test_frames_cover_the_offsets_between_them() -> None:
    """Compacted offsets and markers belong to the frame that follows them: so continuity can be proved."""
    copy = make(2)
    take(copy, [Record(5), Record(9)])
    first = copy.cut(True)
    take(copy, [Record(20)])
    assert ranges(first + copy.cut(True)) == [(2, 10, 2), (10, 21, 1)]


def test_a_tail_without_records_gets_an_empty_frame() -> None:
    copy = make()
    take(copy, dense(0, 2))
    nothing(copy, 5)
    nothing(copy, 4)
    cuts = copy.cut(True)
    assert ranges(cuts) == [(0, 2, 2), (2, 5, 0)]
    assert cuts[1].value == b"" and cuts[1].leader_epoch is None
    assert copy.cut(True) == []


def test_no_empty_frame_while_frames_are_cut_for_size_only(small: None) -> None:
    copy = make()
    take(copy, dense(0, 4))
    nothing(copy, 9)
    assert ranges(copy.cut(False)) == [(0, 4, 4)]
    assert copy.cut(False) == []
    assert ranges(copy.cut(True)) == [(4, 9, 0)]


def test_a_frame_is_cut_by_count(small: None) -> None:
    copy = make()
    take(copy, dense(0, 10))
    assert ranges(copy.cut(False)) == [(0, 4, 4), (4, 8, 4)]
    assert not copy.full() and copy.cut(False) == []
    assert ranges(copy.cut(True)) == [(8, 10, 2)]


def test_a_frame_is_cut_by_bytes(small: None) -> None:
    copy = make()
    take(copy, dense(0, 3, v=b"x" * 40))
    assert copy.full()
    assert ranges(copy.cut(False)) == [(0, 2, 2)]
    assert copy.pending_bytes == 40
    assert ranges(copy.cut(True)) == [(2, 3, 1)]


def test_a_frame_of_exactly_the_limit_is_whole(small: None) -> None:
    copy = make()
    take(copy, dense(0, 2, v=b"x" * 50))
    assert ranges(copy.cut(False)) == [(0, 2, 2)]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_record_larger_than_the_limit_travels_alone(small: None, before: int) -> None:
    copy = make()
    take(copy, [*dense(0, before), Record(before, v=b"x" * 101), *dense(before + 1, before + 3)])
    cuts = copy.cut(True)
    assert (before, before + 1, 1) in ranges(cuts)
    assert sum(c.frame.count for c in cuts) == before + 3


def test_large_keys_and_headers_make_smaller_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of values alone tombstones with large keys would count as nothing, and add up to a frame that staging
    refuses."""
    monkeypatch.setattr(partition_copy, "MAX_FRAME_BYTES", 10_000)
    copy = make()
    take(copy, dense(0, 20, k=b"k" * 1000, v=None))
    take(copy, dense(20, 40, v=None, h=[("h", b"h" * 1000)]))
    cuts = copy.cut(True)
    assert all(len(c.value) <= 12_000 for c in cuts) and len(cuts) < 20
    assert [o for c in cuts for o in rows(c).offsets] == list(range(40))
    take(copy, [Record(40, k=b"k" * 20_000)])
    assert ranges(copy.cut(True)) == [(40, 41, 1)], "a single one goes as it is"


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd", "gzip", "snappy"])
@pytest.mark.parametrize("size", [80, 1000])
def test_the_largest_batch_fits_into_a_topic_with_kafkas_own_limit(codec: str, size: int) -> None:
    """As many records as a frame may have, or as large, of bytes that don't compress, a year apart: the
    deduplicator hands on what a destination takes, and takes apart what it doesn't."""
    copy = make()
    copy.packer = FramePacker.of({"compression.type": codec}, False)
    year_ms, random = 365 * 24 * 3600 * 1000, Random(7)
    times = [1_700_000_000_000 + at % 2 * year_ms for at in range(25_000)]
    take(copy, [Record(at, time, k=b"key", v=random.randbytes(size)) for at, time in enumerate(times)])
    cuts = copy.cut(False)
    assert all(cut.frame.batches for cut in cuts)
    largest = max(cuts, key=lambda cut: len(cut.value))
    payload = largest.frame.count * (size + len(b"key"))
    assert payload > 0.9 * min(partition_copy.MAX_FRAME_BYTES, partition_copy.MAX_FRAME_RECORDS * (size + 3))
    assert len(largest.value) <= 1_048_588


def test_frames_are_cut_by_what_they_take_before_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever unpacks them has to hold it, and limits are of it."""
    monkeypatch.setattr(partition_copy, "MAX_FRAME_BYTES", 150_000)
    copy = make()
    copy.packer = FramePacker(pa.Codec("lz4"))
    take(copy, dense(0, 300, k=b"k" * 1000, v=None))
    cuts = copy.cut(True)
    assert ranges(cuts) == [(0, 150, 150), (150, 300, 150)]
    assert all(len(c.value) < 5_000 and COMPRESSED_FROM_BYTES < c.unpacked <= 160_000 for c in cuts)
    assert sum(c.unpacked for c in cuts) >= 300_000
    assert [o for c in cuts for o in rows(c).offsets] == list(range(300))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 30, 99, 100, 101, 300])), max_size=30),
    st.booleans(),
    st.integers(0, 5),
)
def test_cuts_join_and_hold_every_record_once(
    shape: list[tuple[int, int]], all_of_it: bool, tail: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_copy, "MAX_FRAME_RECORDS", 4)
        patch.setattr(partition_copy, "MAX_FRAME_BYTES", 100)
        at, records = 0, []
        for gap, size in shape:
            records.append(Record(at + gap, v=b"x" * size))
            at += gap + 1
        copy = make()
        if records:
            take(copy, records)
        nothing(copy, at + tail)
        cuts = copy.cut(all_of_it)
        if not all_of_it:
            assert not copy.full()
            cuts += copy.cut(True)
    reached = 0
    for cut in cuts:
        assert cut.frame.start == reached and cut.frame.next > reached
        reached = cut.frame.next
        assert cut.frame.count <= 4
        got = rows(cut)
        assert sum(len(v or b"") for v in got.values) <= 100 or cut.frame.count == 1
    assert reached == at + tail == copy.cut_at == copy.read
    assert [o for c in cuts for o in rows(c).offsets] == [r.at for r in records]


def test_what_was_read_before_a_position_that_is_behind_it_is_left_out() -> None:
    copy = make(5)
    take(copy, dense(2, 5))
    assert copy.waiting == 0 and copy.read == 5
    take(copy, dense(5, 8))
    take(copy, dense(6, 8))
    assert [o for c in copy.cut(True) for o in rows(c).offsets] == [5, 6, 7]


@pytest.mark.parametrize("status", [Status.HALTED, Status.ASKING])
def test_a_partition_that_stands_still_takes_nothing(status: Status) -> None:
    copy = make()
    copy.status = status
    take(copy, dense(0, 3))
    assert copy.read == 0 and copy.cut(True) == []


def test_only_what_is_acknowledged_counts_as_position() -> None:
    copy = make(epoch=1)
    take(copy, dense(0, 3), 2)
    (first,) = copy.cut(True)
    take(copy, dense(3, 5), 3)
    (second,) = copy.cut(True)
    assert (copy.acked, copy.cut_at, copy.read, copy.leader_epoch) == (0, 5, 5, 1)
    copy.acknowledge(first)
    assert (copy.acked, copy.leader_epoch, copy.records, copy.frames) == (3, 2, 3, 1)
    copy.acknowledge(second)
    assert (copy.acked, copy.leader_epoch, copy.records, copy.frames) == (5, 3, 5, 2)
    copy.acknowledge(first)
    assert (copy.acked, copy.leader_epoch) == (5, 3), "an old acknowledgement moves nothing back"


def test_after_an_empty_tail_nothing_is_known_of_the_leader_epoch() -> None:
    copy = make()
    take(copy, dense(0, 1), 2)
    nothing(copy, 3)
    for cut in copy.cut(True):
        copy.acknowledge(cut)
    assert (copy.acked, copy.leader_epoch) == (3, None)


def test_the_epoch_of_the_record_before_the_next_one_to_be_read_is_known() -> None:
    copy = make(epoch=1)
    assert copy.read_epoch == 1
    take(copy, dense(0, 3), 2)
    assert (copy.read, copy.read_epoch, copy.leader_epoch) == (3, 2, 1)
    nothing(copy, 3, 9)
    assert copy.read_epoch == 2, "nothing is new in it"
    nothing(copy, 4, 3)
    assert (copy.read, copy.read_epoch) == (4, 3), "markers have one, too"
    assert make().read_epoch is None
    copy.rewind(0, 1)
    assert copy.read_epoch == 1


def test_a_rewind_drops_what_is_pending_and_takes_those_records_again() -> None:
    copy = make()
    take(copy, dense(0, 4))
    copy.rewind(2, 7)
    assert (copy.read, copy.cut_at, copy.acked, copy.leader_epoch) == (2, 2, 2, 7)
    assert copy.waiting == 0 and copy.pending_bytes == 0 and copy.cut(True) == []
    take(copy, dense(0, 2))
    take(copy, dense(2, 4))
    (cut,) = copy.cut(True)
    assert ranges([cut]) == [(2, 4, 2)] and list(rows(cut).offsets) == [2, 3]


def test_acknowledgements_from_before_a_rewind_do_not_count() -> None:
    """Else: [0,3) is lost from staging, the partition goes back to 0, the late acknowledgement of [3,6) makes
    the position 6, crash: the next writer starts at 6 and [0,3) is never sent again."""
    copy = make()
    take(copy, dense(0, 6))
    (old,) = copy.cut(True)
    copy.handled = 40
    copy.rewind(0)
    copy.acknowledge(old)
    assert (copy.acked, copy.answered) == (0, -1)
    assert copy.records == 6, "counted it is, for it was appended"
    take(copy, dense(0, 2))
    (new,) = copy.cut(True)
    copy.acknowledge(new)
    assert (copy.acked, copy.answered) == (2, 40)


def test_a_demand_is_answered_when_staging_holds_the_answer() -> None:
    """Were a demand remembered as soon as it is turned to, a crash before the frame is appended would leave
    it unanswered."""
    copy = make(handled=5)
    assert copy.answered == 5
    copy.handled = 8
    copy.rewind(20)
    gap = copy.gap_frame(10, 20, "disk full")
    assert copy.answered == 5
    copy.acknowledge(gap)
    assert (copy.answered, copy.acked) == (8, 20)
    f = gap.frame
    assert (f.start, f.next, f.count, f.gap, f.origin, f.reason) == (10, 20, 0, True, False, "disk full")


def test_a_frame_cut_before_a_demand_does_not_answer_it() -> None:
    copy = make()
    take(copy, dense(0, 1))
    (cut,) = copy.cut(True)
    copy.handled = 8
    copy.acknowledge(cut)
    assert copy.answered == -1


def test_the_origin_frame_is_empty_and_stands_at_the_origin() -> None:
    copy = make(position=9, origin=4)
    cut = copy.origin_frame()
    f = cut.frame
    assert (f.start, f.next, f.count, f.origin, f.gap) == (4, 4, 0, True, False)
    assert cut.value == b"" and copy.cut_at == 9
    copy.acknowledge(cut)
    assert (copy.acked, copy.frames) == (9, 1)


def test_a_bounded_run_is_done_when_all_up_to_its_end_is_acknowledged() -> None:
    copy = make(end=3)
    take(copy, dense(0, 2))
    nothing(copy, 3)
    assert not copy.done()
    cuts = copy.cut(True)
    assert not copy.done()
    copy.acknowledge(cuts[0])
    assert not copy.done()
    copy.acknowledge(cuts[1])
    assert copy.done()
    take(copy, dense(3, 4))
    assert not copy.done(), "what has been taken in is not left behind"
    assert make(position=3, end=3).done() and not make(position=3).done()


@given(st.lists(st.integers(0, 7), max_size=30))
def test_so_many_records_and_no_more_leave_in_the_frames_cut(mosts: list[int]) -> None:
    copy = make()
    take(copy, dense(0, 40))
    left, at = 40, 0
    for most in mosts:
        cuts = copy.cut(True, most)
        count = sum(c.frame.count for c in cuts)
        assert count == min(most, left)
        left -= count
        for cut in cuts:
            assert cut.frame.start == at
            at = cut.frame.next
        assert copy.waiting == copy.pending_bytes == left
    copy.cut(True)
    assert (copy.cut_at, copy.waiting, copy.pending_bytes) == (40, 0, 0)


def test_a_tail_without_records_waits_for_the_records_before_it() -> None:
    copy = make()
    take(copy, dense(0, 3))
    nothing(copy, 5)
    assert ranges(copy.cut(True, 2)) == [(0, 2, 2)]
    assert ranges(copy.cut(True, 0)) == []
    assert ranges(copy.cut(True, 2)) == [(2, 3, 1), (3, 5, 0)]


def test_what_is_put_back_is_read_again_and_the_frames_before_it_keep_their_meaning() -> None:
    copy = make(epoch=2)
    for at in range(3):
        take(copy, dense(at, at + 1), 3 + at)
    cuts = copy.cut(True, 2)
    assert ranges(cuts) == [(0, 1, 1), (1, 2, 1)], "a frame has one leader epoch"
    copy.put_back()
    assert (copy.read, copy.read_epoch, copy.waiting, copy.pending_bytes) == (2, 4, 0, 0)
    for cut in cuts:
        copy.acknowledge(cut)
    assert (copy.acked, copy.leader_epoch) == (2, 4)
    take(copy, dense(2, 4))
    assert ranges(copy.cut(True)) == [(2, 4, 2)]
    copy.rewind(1, 3)
    copy.put_back()
    assert (copy.read, copy.read_epoch) == (1, 3)


def flowing(*stages: object, ids: dict[int, int] | None = None, **flow: object) -> PartitionCopy:
    """A copy of a topic that a flow of pipeline 3 takes. `ids`: of schemas at the target."""
    copy = make()
    known = ids if ids is not None else {}
    ready = Engine(pipeline(*stages, **flow), {}, lambda _, schema: known.get(schema)).flow_of("orders")
    assert ready is not None
    copy.pipeline = 3
    copy.tolerated = None if ready.tolerate is None else Tolerated(ready.tolerate)
    copy.flow = Flow(lambda rows: ready.apply(rows, Origin("link", "orders", 0)), ready.looks_only)
    return copy


def with_values(*values: bytes, start: int = 0) -> list[Record]:
    return [Record(at, v=value) for at, value in enumerate(values, start)]


ODD = [b'{"a":%d}' % (n % 2) for n in range(10)]


def test_each_frame_says_its_pipeline_whatever_it_holds() -> None:
    copy = make()
    copy.pipeline = 3
    take(copy, dense(0, 2))
    nothing(copy, 4)
    frames = [*copy.cut(True), copy.origin_frame(), copy.position_frame(), copy.gap_frame(1, 2, "why")]
    assert [cut.frame.pipeline for cut in frames] == [3] * 5


def test_what_a_flow_leaves_out_is_a_gap_and_counted(small: None) -> None:
    copy = flowing({"filter": {"keep": {"a": 1}}})
    take(copy, with_values(*ODD))
    cuts = copy.cut(True)
    assert ranges(cuts) == [(0, 7, 3), (7, 10, 2)]
    assert [list(rows(cut).offsets) for cut in cuts] == [[1, 3, 5], [7, 9]]
    take(copy, with_values(b'{"a":0}', b'{"a":0}', start=10))
    cuts += copy.cut(True)
    assert ranges(cuts)[-1] == (10, 12, 0) and cuts[-1].value == b""
    for cut in cuts:
        copy.acknowledge(cut)
    assert (copy.records, copy.filtered, copy.skipped, copy.acked) == (5, 7, 0, 12)


def test_a_record_that_a_stage_fails_on_stops_the_partition_behind_what_is_before_it(small: None) -> None:
    """Promise: all before it goes; nothing behind it, and nothing that claims to cover it."""
    copy = flowing({"mask": {"fields": {"a": "redact"}}})
    take(copy, with_values(b'{"a":1}', b'{"a":2}', b"secret {", b'{"a":3}', b"{"))
    (cut,) = copy.cut(True)
    assert ranges([cut]) == [(0, 2, 2)] and rows(cut).values == [b'{"a":"***"}'] * 2
    for _ in range(2):
        with pytest.raises(StageFailed) as failed:
            copy.cut(True)
        take(copy, with_values(b"{}", start=5))
    assert failed.value.offset == 2
    assert str(failed.value) == "record 2: stage 1 (mask) fails: the value is no JSON"
    assert (copy.cut_at, copy.read, copy.waiting) == (2, 5, 0)
    copy.acknowledge(cut)
    assert (copy.acked, copy.filtered, copy.skipped) == (2, 0, 0)
    copy.rewind(copy.acked)
    take(copy, with_values(b"{", b"{}", start=2))
    with pytest.raises(StageFailed):
        copy.cut(True)
    copy.rewind(3)
    take(copy, with_values(b"{}", start=3))
    assert ranges(copy.cut(True)) == [(3, 4, 1)], "once it is given up"


def test_offsets_without_records_before_one_that_a_stage_fails_on_go_first() -> None:
    copy = flowing({"mask": {"fields": {"a": "redact"}}})
    take(copy, with_values(b"{", start=4), epoch=6)
    (cut,) = copy.cut(True)
    assert (ranges([cut]), cut.leader_epoch) == ([(0, 4, 0)], None)
    with pytest.raises(StageFailed, match="record 4"):
        copy.cut(True)


def test_what_was_filtered_before_a_record_that_a_stage_fails_on_is_counted_once() -> None:
    copy = flowing({"filter": {"keep": {"a": 1}}})
    take(copy, with_values(*ODD[:3], b"{", *ODD[:3]))
    (cut,) = copy.cut(True)
    assert (ranges([cut]), cut.filtered) == ([(0, 3, 1)], 2)


def test_records_that_a_stage_fails_on_are_skipped_where_the_flow_says_so() -> None:
    copy = flowing({"filter": {"keep": {"a": 1}}}, onError="skip")
    take(copy, with_values(*ODD[:3], b"{", b'{"a":1}'))
    (cut,) = copy.cut(True)
    assert (list(rows(cut).offsets), cut.filtered, cut.skipped) == ([1, 4], 2, 1)


def test_records_that_a_stage_fails_on_go_as_dead_letters_where_the_flow_says_so(small: None) -> None:
    """Promise: they are in the frame that leaves them out, in order, and nothing else of them is unless that
    was asked for; a frame of them alone is one too."""
    bad = b"secret {"
    for said, value in (("dead-letter", None), ({"dead-letter": {"payload": True}}, bad)):
        copy = flowing({"filter": {"keep": {"a": 1}}}, onError=said)
        take(copy, with_values(*ODD[:2], bad, bad, *[bad] * 4, ODD[1]))
        cuts = copy.cut(True)
        assert [(cut.frame.count, cut.frame.rows) for cut in cuts] == [(1, 3), (0, 4), (1, 1)]
        assert [cut.frame.failed and cut.frame.failed.count for cut in cuts] == [2, 4, None]
        split_up = [split(rows(cut)) for cut in cuts]
        assert [list(kept.offsets) for kept, _ in split_up] == [[1], [], [8]]
        dead = [failed for _, failed in split_up if failed is not None]
        assert [list(failed.offsets) for failed in dead] == [[2, 3], [4, 5, 6, 7]]
        assert {v for failed in dead for v in failed.values} == {value}
        assert any(b"secret" in bytes(cut.value) for cut in cuts) == (value is not None)
        for cut in cuts:
            copy.acknowledge(cut)
        assert (copy.records, copy.filtered, copy.skipped, copy.acked) == (2, 1, 0, 9)


def test_a_frame_with_dead_letters_is_no_record_batch(small: None) -> None:
    """Their offsets leave no gap: taken for records like others, they would be delivered."""
    copy = flowing({"filter": {"keep": {"a": 1}}}, onError="dead-letter")
    copy.packer = FramePacker(None, ("lz4", None))
    take(copy, with_values(ODD[1], b"{", ODD[1]))
    (cut,) = copy.cut(True)
    assert (cut.frame.batches, cut.frame.count, cut.frame.rows) == (False, 2, 3)


def cut_to_the_end(copy: PartitionCopy) -> tuple[list[CutFrame], StageFailed]:
    """All frames before the record that halts it."""
    cuts: list[CutFrame] = []
    while True:
        try:
            cuts += copy.cut(True)
        except StageFailed as failed:
            return cuts, failed


@pytest.mark.parametrize("letters", [True, False])
def test_as_many_as_are_tolerated_go_by_and_one_more_halts(small: None, letters: bool) -> None:
    """Promise: all before it goes, dead letters too; whoever reads the same again, from wherever, comes to
    the same end; the halt names the rate."""
    said = {"tolerate": {"records": 2, "per": 8}} | ({"dead-letter": {}} if letters else {})
    copy = flowing({"mask": {"fields": {"a": "redact"}}}, onError=said)
    good, bad = b'{"a":1}', b"secret {"
    there = [bad, good, good, good, good, bad, good, good, bad, bad, good, bad, good]

    def cut() -> list[CutFrame]:
        start = copy.cut_at
        take(copy, with_values(*there[start:], start=start))
        cuts, failed = cut_to_the_end(copy)
        assert failed.offset == 11
        words = "record 11: stage 1 (mask) fails: the value is no JSON; of the offsets from 8 on, 2 of 8 are"
        assert str(failed).startswith(words)
        return cuts

    for position in (0, 1, 4, 5, 8, 9, 11, 3, 0):
        copy.rewind(position)
        cuts = cut()
        assert (copy.cut_at, copy.acked) == (11, position)
        dead = [at for at in (0, 5, 8, 9) if at >= position]
        if letters:
            split_up = [split(rows(c))[1] for c in cuts if c.frame.failed]
            assert [at for one in split_up if one for at in one.offsets] == dead
        assert sum(c.skipped for c in cuts) == (0 if letters else len(dead))
    assert copy.let_by(11) == (8, 9) and copy.let_by(9) == (8,) and copy.let_by(8) == ()


def test_who_goes_on_with_what_was_let_by_comes_to_the_same_end() -> None:
    said = {"tolerate": {"records": 2, "per": 8}}
    for known, ends in (([8, 9], 10), ([8], 11), ([], 12), ([1, 2, 3], 12)):
        copy = flowing({"mask": {"fields": {"a": "redact"}}}, onError=said)
        assert copy.tolerated is not None
        copy.tolerated = Tolerated(Tolerate(records=2, per=8), known)
        copy.rewind(10)
        take(copy, with_values(b"{", b"{", b"{", start=10))
        assert cut_to_the_end(copy)[1].offset == ends


@given(st.sets(st.integers(0, 60)), st.lists(st.integers(0, 60), max_size=6), st.integers(1, 4))
def test_a_window_is_counted_alike_in_whatever_pieces_and_however_often_it_is_read(
    bad: set[int], turns: list[int], most: int
) -> None:
    """Each reading begins anywhere, by who has read before or by who has what a position says."""
    per, options = 10, Tolerate(records=most, per=10)
    before = {o: sum(b // per == o // per and b < o for b in bad) for o in sorted(bad)}
    first = next((o for o, count in before.items() if count >= most), 61)

    def reads(by: Tolerated, at: int) -> None:
        rest = [o for o in sorted(bad) if o >= at]
        assert by.take(rest) == sum(o < first for o in rest)

    same = Tolerated(options)
    reads(same, 0)
    for at in turns:
        if at <= first:
            reads(same, at)
            other = Tolerated(options, [o for o in bad if at - at % per <= o < at])
            assert other.below(at) == sorted(o for o in bad if at - at % per <= o < at)
            reads(other, at)


def framed(schema_id: int, payload: bytes = b"x") -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def with_ids(ids: dict[int, int], **flow: object) -> PartitionCopy:
    return flowing("schema-ids", ids=ids, value="bytes", wire={"value": "confluent"}, **flow)


@pytest.mark.parametrize(
    "on_error", ["halt", "skip", "dead-letter", {"tolerate": {"records": 1, "per": 100}}]
)
def test_a_record_with_an_unknown_schema_stops_the_partition_until_it_is_known(
    small: None, on_error: object
) -> None:
    """Promise: whatever is done with failures, nothing passes a record that waits, and nothing of what is
    behind it is decided; put back, it goes through with its id."""
    ids = {1: 11}
    copy = with_ids(ids, onError=on_error)
    values = [framed(1), framed(1), framed(2), b"unframed", framed(1)]
    take(copy, with_values(*values))
    (cut,) = copy.cut(True)
    assert ranges([cut]) == [(0, 2, 2)] and rows(cut).values == [framed(11)] * 2
    assert (cut.filtered, cut.skipped, cut.frame.failed, copy.let_by(9)) == (0, 0, None, ())
    for _ in range(2):
        with pytest.raises(StageFailed, match="record 2: stage 1 .schema-ids. waits: schema 2") as stopped:
            copy.cut(True)
        assert (
            (stopped.value.offset, stopped.value.schema) == (2, Awaited(".", 2)) == (2, copy.schema_awaited)
        )
        take(copy, with_values(framed(1), start=5))
    ids[2] = 22
    copy.acknowledge(cut)
    copy.go_on()
    assert (copy.read, copy.cut_at, copy.schema_awaited, copy.status) == (2, 2, None, Status.RUNNING)
    take(copy, with_values(values[2], values[4], start=2))
    assert [rows(c).values for c in copy.cut(True)] == [[framed(22), framed(11)]]


def test_what_fails_before_a_record_that_waits_is_what_it_is(small: None) -> None:
    """Skipped, or a dead letter in the frame: of a record before it, not of one behind it."""
    for on_error in ("skip", "dead-letter"):
        copy = with_ids({1: 11}, onError=on_error)
        take(copy, with_values(framed(1), b"bad", framed(2), b"worse"))
        (cut,) = copy.cut(True)
        going, failed = split(rows(cut))
        assert ranges([cut]) == [(0, 2, 1)] and list(going.offsets) == [0] and cut.filtered == 0
        assert cut.skipped == (on_error == "skip")
        assert (list(failed.offsets) if failed is not None else []) == ([1] if on_error != "skip" else [])
    copy = with_ids({}, onError="halt")
    take(copy, with_values(b"bad", framed(2)))
    with pytest.raises(StageFailed, match="record 0: .* fails") as stopped:
        copy.cut(True)
    assert stopped.value.schema is None and copy.schema_awaited is None


def test_one_that_is_halted_for_a_schema_goes_on_and_one_that_is_turned_back_no_longer_waits() -> None:
    copy = with_ids({})
    copy.status, copy.awaits = Status.HALTED, Awaited(".", 7)
    copy.go_on()
    assert copy.status is Status.RUNNING and copy.awaits is None
    copy.status, copy.awaits = Status.HALTED, Awaited(".", 7)
    copy.rewind(0)
    assert copy.schema_awaited is None


def test_a_flow_gets_what_several_frames_hold_at_once(small: None) -> None:
    copy = flowing({"mask": {"fields": {"a": "redact"}}})
    assert copy.flow is not None
    apply, given_ = copy.flow.apply, []

    def counted(batch: pa.RecordBatch) -> Applied:
        given_.append(len(batch))
        return apply(batch)

    copy.flow.apply = counted
    take(copy, with_values(*ODD))
    assert [cut.frame.count for cut in copy.cut(True)] == [4, 4, 2] and given_ == [10]
