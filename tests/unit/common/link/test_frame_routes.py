"""Records that go to several topics travel in one frame, each with where it goes, and come out by topic, each
in its order; what knows no routes can't read it."""

from __future__ import annotations

import dataclasses
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import FrameError
from common.kafka.wire.records import ROWS, encode_rows
from common.link import frame_routes
from common.link.frame import Frame, decode_headers, decode_rows, encode_headers, pack
from common.link.frame_errors import failed_of, merged
from common.link.frame_routes import MARK, ROWS_AND_ROUTES, parted, with_routes
from tests.support import strategies
from tests.support.strategies import Record

REASON = ("stage 1 (mask)", "the value is no JSON")
LZ4 = pa.Codec("lz4")
TOPICS = ("a", "b", "a", "c")
"""Two cases may name one."""


def rows_of(records: list[Record]) -> pa.RecordBatch:
    columns = zip(*((r.at, r.stamp, r.kind, r.k, r.v, r.h) for r in records), strict=True)
    return encode_rows(*(columns if records else [[]] * 6))


def frame_of(
    records: list[Record], to: dict[int, int], bad: set[int], codec: pa.Codec | None = None
) -> tuple[Frame, bytes]:
    """`to`: by offset, of those that are not bad."""
    kept = rows_of([r for r in records if r.at not in bad])
    rows, failed = kept, None
    if bad:
        rows, failed = merged(rows_of(records), kept, dict.fromkeys(bad, REASON), True)
    numbers = np.array([to[at] for at in kept.column(0).to_pylist()], np.int16)
    rows, topics = with_routes(rows, kept.column(0), TOPICS, numbers)
    begin, end = records[0].at, records[-1].at + 1
    made = Frame("c", "orders", "id", 3, begin, end, len(kept), "w", pipeline=7, failed=failed, routes=topics)
    return made, bytes(pack(rows, codec))


@given(
    strategies.records(min_size=1), st.data(), st.sampled_from([None, LZ4]), st.integers(0, 5), st.booleans()
)
def test_what_goes_where_comes_out_by_topic_in_order(
    records: list[Record], data: st.DataObject, codec: pa.Codec | None, skip: int, same: bool
) -> None:
    bad = set(data.draw(st.lists(st.sampled_from([r.at for r in records]), max_size=2)))
    to = {r.at: data.draw(st.integers(-1, len(TOPICS) - 1)) for r in records if r.at not in bad}
    made, value = frame_of(records, to, bad, codec)
    assert set(made.routes) == {TOPICS[n] for n in to.values() if n >= 0}
    found, crc = decode_headers(encode_headers(made, value))
    assert found == made
    if not made.routes:
        return
    begin = records[min(skip, len(records) - 1)].at
    rows = decode_rows(found, crc, value).from_offset(begin)
    # One of the routes may be the link's own destination.
    places = ["own" if same and name == "a" else name for name in made.routes]
    parts = parted(rows, "own", places)
    wanted: dict[str, list[Record]] = {}
    for r in records:
        if r.at in to and r.at >= begin:
            name = "own" if to[r.at] < 0 or (same and TOPICS[to[r.at]] == "a") else TOPICS[to[r.at]]
            wanted.setdefault(name, []).append(r)
    assert {name: list(part.offsets) for name, part in parts} == {
        name: [r.at for r in its] for name, its in wanted.items()
    }
    assert all(part.batch.schema.equals(ROWS) for _, part in parts)
    assert all(part.batch.equals(rows_of(wanted[name])) for name, part in parts)
    failed = failed_of(rows)
    assert (list(failed.offsets) if failed else []) == [
        r.at for r in records if r.at in bad and r.at >= begin
    ]


SOME = [Record(n, v=b"v%d" % n) for n in range(5, 9)]
TO = {5: 0, 6: -1, 7: 1, 8: 2}


def test_a_frame_all_of_whose_records_stay_is_one_without_routes() -> None:
    made, value = frame_of(SOME, dict.fromkeys(TO, -1), set())
    assert made.routes == () and value == bytes(pack(rows_of(SOME)))


def test_partitions_of_topics_are_told_in_a_header_that_an_earlier_release_does_not_know() -> None:
    """Promise: that release halts the partition by name, as one without routes does, and delivers nothing."""
    rows, routes = with_routes(
        rows_of(SOME), rows_of(SOME).column(0), ("a/0", "a/1", "b"), np.array([1, 0, -1, 1], np.int16)
    )
    assert routes == ("a/0", "a/1")
    made = Frame("c", "orders", "id", 3, 5, 9, 4, "w", pipeline=7, routes=routes)
    value = bytes(pack(rows, None))
    told = encode_headers(made, value)
    found, crc = decode_headers(told)
    assert found == made and dict(told)["places"] == b'["a/0","a/1"]' and "routes" not in dict(told)
    parts = parted(decode_rows(found, crc, value), "own", routes)
    assert {name: list(part.offsets) for name, part in parts} == {"a/0": [6], "a/1": [5, 8], "own": [7]}
    old, crc = decode_headers([one for one in told if one[0] != "places"])
    with pytest.raises(FrameError, match="does not decode"):
        decode_rows(old, crc, value)


@pytest.mark.parametrize(
    "more",
    [
        [("places", b'["a"]')],
        [("places", b'["a/x"]')],
        [("places", b'["a/01"]')],
        [("places", b'["a/-1"]')],
        [("places", b'["a/"]')],
        [("routes", b'["a/1"]')],
        [("routes", b'["a"]'), ("places", b'["a/1"]')],
    ],
)
def test_partitions_that_no_writer_would_name_are_refused(more: list[tuple[str, bytes]]) -> None:
    made, value = frame_of(SOME, TO, set())
    told = [one for one in encode_headers(made, value) if one[0] != "routes"]
    with pytest.raises(FrameError, match="missing or ill-formed"):
        decode_headers([*told, *more])


@pytest.mark.parametrize("bad", [set(), {7}])
def test_a_release_that_knows_no_routes_reads_the_header_and_can_not_read_the_rows(bad: set[int]) -> None:
    """Promise: it finds the frame the same when it comes again, so it halts the partition by name
    (tests/unit/deduplicator/lane/test_frame_handler.py), and delivers none of it to where it does not
    belong. It passes over headers that it does not know."""
    made, value = frame_of(SOME, TO, bad)
    told = [one for one in encode_headers(made, value) if one[0] not in ("routes", "failed")]
    old, crc = decode_headers(told)
    assert old.next == 9 and old.count == 4 - len(bad)
    with pytest.raises(FrameError, match="does not decode"):
        decode_rows(old, crc, value)


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        (b"[]", "none, or not different"),
        (b'["a","a"]', "none, or not different"),
        (b'["a/b"]', "no partition"),
        (b'["a b"]', "legal name"),
        (b'"a"', "none, or not different"),
        (b"[1]", "ill-formed"),
        (b"{", "ill-formed"),
    ],
)
def test_topics_that_no_writer_would_name_are_refused(topics: bytes, message: str) -> None:
    made, value = frame_of(SOME, TO, set())
    told = [(name, topics if name == "routes" else what) for name, what in encode_headers(made, value)]
    with pytest.raises(FrameError, match=message):
        decode_headers(told)


def test_a_frame_of_batches_has_no_routes() -> None:
    made, value = frame_of(SOME, TO, set())
    told = [(name, b"2" if name == "v" else what) for name, what in encode_headers(made, value)]
    with pytest.raises(FrameError, match="with routes"):
        decode_headers(told)


def _rows(routes: list[int | None], errors: list[int | None]) -> pa.RecordBatch:
    columns = rows_of(SOME).columns
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(errors, pa.int16()), pa.array(routes, pa.int16())], schema=ROWS_AND_ROUTES
    )


@pytest.mark.parametrize(
    ("routes", "errors", "message"),
    [
        ([0, 1, 2, None], [None] * 4, "a route that the header has not"),
        ([0, -1, 1, None], [None] * 4, "a route that the header has not"),
        ([0, 1, 1, None], [0, None, None, None], "which the header has not"),
    ],
)
def test_rows_that_are_not_as_the_header_says_are_refused(
    routes: list[int | None], errors: list[int | None], message: str
) -> None:
    made = Frame("c", "orders", "id", 3, 5, 9, 4, "w", pipeline=7, routes=("a", "b"))
    value = MARK + _rows(routes, errors).serialize().to_pybytes()
    with pytest.raises(FrameError, match=message):
        decode_rows(made, crc32(value), value)
    without = value[len(MARK) :]
    with pytest.raises(FrameError, match="the mark of routes is missing"):
        decode_rows(made, crc32(without), without)


def test_what_a_stage_failed_on_has_no_route() -> None:
    with pytest.raises(ValueError, match="a route of a record that a stage failed on"):
        frame_routes.check(_rows([0, 0, None, None], [None, 0, None, None]), ("a",))


def test_a_frame_says_the_topics_that_it_has_records_for() -> None:
    made, _ = frame_of(SOME, {5: 3, 6: 3, 7: -1, 8: -1}, set())
    assert made.routes == ("c",)
    assert dataclasses.replace(made, routes=()) != made


def test_the_mark_keeps_what_follows_aligned() -> None:
    assert len(MARK) % 8 == 0
