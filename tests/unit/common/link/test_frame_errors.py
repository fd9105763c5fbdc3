"""Records that a stage failed on travel in frames beside those that go on, and become dead letters: each with
its coordinates and its reason, and with nothing of the record where nothing was asked for."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import FrameError
from common.kafka.wire.records import ROWS, encode_rows, headers_of
from common.link.dead_letters import asked_for, letters
from common.link.frame import Frame, decode_headers, decode_rows, encode_headers, pack
from common.link.frame_errors import ROWS_AND_FAILED, Failed, merged, split
from tests.support import strategies
from tests.support.strategies import Record

REASONS = [("stage 1 (mask)", "the value is no JSON"), ("stage 2 (key)", "value.ü is not there")]
LZ4 = pa.Codec("lz4")


def rows_of(records: list[Record]) -> pa.RecordBatch:
    columns = zip(*((r.at, r.stamp, r.kind, r.k, r.v, r.h) for r in records), strict=True)
    return encode_rows(*(columns if records else [[]] * 6))


def frame_of(
    records: list[Record], bad: dict[int, tuple[str, str]], payload: bool, codec: pa.Codec | None = None
) -> tuple[Frame, bytes]:
    given = rows_of(records)
    kept = given.filter(pa.array([r.at not in bad for r in records], pa.bool_()))
    rows, failed = merged(given, kept, bad, payload)
    begin, end = records[0].at, records[-1].at + 1
    made = Frame("c", "orders", "id", 3, begin, end, len(kept), "w", pipeline=7, failed=failed)
    return made, bytes(pack(rows, codec))


@given(
    strategies.records(min_size=1), st.data(), st.booleans(), st.sampled_from([None, LZ4]), st.integers(0, 5)
)
def test_what_goes_on_and_what_a_stage_failed_on_come_out_as_they_went_in(
    records: list[Record], data: st.DataObject, payload: bool, codec: pa.Codec | None, skip: int
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(records), min_size=1, unique_by=lambda r: r.at))
    bad = {r.at: data.draw(st.sampled_from(REASONS)) for r in chosen}
    made, value = frame_of(records, bad, payload, codec)
    found, crc = decode_headers(encode_headers(made, value))
    assert found == made and made.rows == len(records)
    begin = records[min(skip, len(records) - 1)].at
    kept, failed = split(decode_rows(found, crc, value).from_offset(begin))
    wanted = [r for r in records if r.at not in bad and r.at >= begin]
    assert kept.batch.equals(rows_of(wanted)) and list(kept.offsets) == [r.at for r in wanted]
    wanted = [r for r in records if r.at in bad and r.at >= begin]
    if failed is None:
        assert not wanted
        return
    assert found.failed is not None
    assert list(failed.offsets) == [r.at for r in wanted]
    assert [found.failed.reasons[n] for n in failed.batch.column(6).to_pylist()] == [
        bad[r.at] for r in wanted
    ]
    assert failed.timestamps == [r.stamp for r in wanted]
    contents = [*zip(failed.keys, failed.values, headers_of(failed.batch), strict=True)]
    assert contents == [(r.k, r.v, r.h) if payload else (None, None, None) for r in wanted]
    written = letters("link", found, failed, 99)
    assert written.schema.equals(ROWS) and written.column(1).to_pylist() == [99] * len(wanted)
    assert [*zip(written.column(3).to_pylist(), written.column(4).to_pylist(), strict=True)] == [
        (k, v) for k, v, _ in contents
    ]
    for r, headers in zip(wanted, headers_of(written), strict=True):
        own = len(r.h or ()) if payload else 0
        assert headers is not None and headers[:own] == ((r.h or []) if payload else [])
        assert headers[own:] == [
            ("verbatim.link", b"link"),
            ("verbatim.source.cluster", b"c"),
            ("verbatim.source.topic", b"orders"),
            ("verbatim.source.topic-id", b"id"),
            ("verbatim.source.partition", b"3"),
            ("verbatim.source.offset", b"%d" % r.at),
            ("verbatim.source.timestamp", b"%d" % r.stamp),
            ("verbatim.pipeline", b"7"),
            ("verbatim.stage", bad[r.at][0].encode()),
            ("verbatim.reason", bad[r.at][1].encode()),
            ("verbatim.payload", b"true" if payload else b"false"),
        ]


SECRET = b"born-in-1970"
SOME = [Record(n, v=b'{"a":%d}' % n + SECRET, k=SECRET, h=[("x", SECRET)]) for n in range(5, 9)]


@pytest.mark.parametrize("payload", [False, True])
def test_without_payload_nothing_of_a_record_is_in_its_frame(payload: bool) -> None:
    made, value = frame_of(SOME, dict.fromkeys(range(5, 9), REASONS[0]), payload)
    assert made.count == 0 and made.failed == Failed(4, payload, (REASONS[0],))
    assert (SECRET in value) == payload


def spoilt(**change: Any) -> tuple[Frame, bytes]:
    made, value = frame_of(SOME, {5: REASONS[0], 7: REASONS[1]}, True)
    assert made.failed is not None
    return dataclasses.replace(made, failed=dataclasses.replace(made.failed, **change)), value


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"count": 1}, "says 3 records and holds 4"),
        ({"reasons": REASONS[:1]}, "a reason that the header has not"),
        ({"payload": False}, "payload of a record"),
    ],
)
def test_a_frame_that_is_not_as_its_header_says_is_refused(change: dict[str, Any], why: str) -> None:
    made, value = spoilt(**change)
    with pytest.raises(FrameError, match=why):
        decode_rows(made, zlib.crc32(value), value)


def test_rows_that_pass_for_others_are_refused() -> None:
    made, value = frame_of(SOME, {5: REASONS[0], 7: REASONS[1]}, True)
    assert made.failed is not None
    more = dataclasses.replace(made, count=1, failed=dataclasses.replace(made.failed, count=3))
    with pytest.raises(FrameError, match="2 records that a stage failed on, the header says 3"):
        decode_rows(more, zlib.crc32(value), value)
    plain = dataclasses.replace(made, count=4, failed=None)
    # As an earlier release would read it, were it not of another version.
    assert decode_headers(encode_headers(made, value))[0] != plain
    negative = pa.RecordBatch.from_arrays(
        [*rows_of(SOME).columns, pa.array([-1, None, None, 0], pa.int16())], schema=ROWS_AND_FAILED
    )
    value = bytes(pack(negative))
    with pytest.raises(FrameError, match="a reason that the header has not"):
        decode_rows(made, zlib.crc32(value), value)


@pytest.mark.parametrize(
    "said",
    [
        b"", b"7", b"[]", b"{}", b'{"count":0,"payload":true,"reasons":[["a","b"]]}',
        b'{"count":true,"payload":true,"reasons":[["a","b"]]}', b'{"count":1,"payload":1,"reasons":[["a","b"]]}',
        b'{"count":1,"payload":true,"reasons":[]}', b'{"count":1,"payload":true,"reasons":[["a"]]}',
        b'{"count":1,"payload":true,"reasons":[["a",5]]}', b'{"count":1,"payload":true,"reasons":7}',
        b'{"count":99999999,"payload":true,"reasons":[["a","b"]]}',
    ],
)  # fmt: skip
def test_what_no_writer_would_say_of_them_is_refused(said: bytes) -> None:
    made, value = frame_of(SOME, {5: REASONS[0]}, False)
    headers = [(name, said if name == "failed" else what) for name, what in encode_headers(made, value)]
    with pytest.raises(FrameError):
        decode_headers(headers)


def test_a_loss_that_was_accepted_holds_none() -> None:
    made, value = frame_of(SOME, {5: REASONS[0]}, False)
    with pytest.raises(FrameError, match="accepted loss"):
        decode_headers(encode_headers(dataclasses.replace(made, gap=True, count=0), value))


def test_which_pipelines_have_dead_letters() -> None:
    def of(*said: str) -> str:
        return '{"flows":[%s],"keys":[],"version":1}' % ",".join("{%s}" % one for one in said)  # noqa: UP031 - JSON

    assert not asked_for(of()) and not asked_for(of("", '"onError":"skip"', '"onError":"halt"'))
    assert asked_for(of("", '"onError":"dead-letter"'))
    assert asked_for(of('"onError":{"dead-letter":{"payload":true}}'))
    assert asked_for(of('"onError":{"dead-letter":{},"tolerate":{"per":9,"records":1}}'))
    assert not asked_for(of('"onError":{"tolerate":{"per":9,"records":1}}'))
