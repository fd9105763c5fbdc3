"""Hypothesis strategies shared by the tests: records, frames, control records, hostile JSON. They only make
values; tests judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

from hypothesis import strategies as st

from common.kafka.wire.chunks import Chunk
from common.kafka.wire.records import Header, Rows, encode_rows
from common.link.frame import Frame
from common.link.frame_errors import Failed

INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(0, 2**62)
BYTES = st.none() | st.just(b"") | st.binary(max_size=40)
TEXT = st.text(max_size=20)
"""Any text that UTF-8 can hold."""
HEADERS = st.none() | st.lists(st.tuples(st.sampled_from(["a", "", "é"]) | TEXT, BYTES), max_size=4)
"""Order, duplicate names, empty names and null values included."""


@dataclass(frozen=True)
class Record:
    """A source record."""

    at: int
    stamp: int = 1
    kind: int = 1
    k: bytes | None = None
    v: bytes | None = b"v"
    h: list[Header] | None = field(default=None, hash=False)


@st.composite
def records(draw: st.DrawFn, min_size: int = 0, max_size: int = 12) -> list[Record]:
    """Records with strictly increasing offsets, dense or with gaps."""
    at = draw(OFFSETS)
    out = []
    for _ in range(draw(st.integers(min_size, max_size))):
        out.append(
            Record(
                at,
                draw(INT64),
                draw(st.integers(0, 2)),
                draw(BYTES),
                draw(BYTES),
                draw(HEADERS),
            )
        )
        at += draw(st.sampled_from([1, 1, 1, 2, 1000]))
    return out


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """Whatever a frame may say of itself."""
    start = draw(OFFSETS)
    end = start + draw(st.sampled_from([0, 1, 10, 2**40]))
    gap = draw(st.booleans())
    count = 0 if gap else draw(st.integers(0, min(end - start, 1 << 20)))
    reasons = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3).map(tuple)
    failed = st.none() | st.builds(Failed, st.just(count), st.booleans(), reasons)
    dead = draw(failed) if 0 < 2 * count <= min(end - start, 1 << 20) else None
    return Frame(
        draw(TEXT),
        draw(TEXT),
        draw(TEXT),
        draw(st.integers(0, 2**31 - 1)),
        start,
        end,
        count,
        draw(TEXT),
        draw(st.booleans()),
        gap,
        draw(st.none() | TEXT),
        pipeline=draw(st.sampled_from([0, 0, 1, 2**40])),
        failed=dead,
    )


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
"""Anything JSON can say, nested too."""

CONTROL_KINDS = [
    "identity",
    "leader",
    "started",
    "origin",
    "topic",
    "topic-deleted",
    "destination",
    "end-epoch",
    "ask",
    "resend",
    "halted",
    "resumed",
    "accept-loss",
    "pipeline",
]
_CONTROL_FIELDS = {
    "source_cluster": st.sampled_from(["s1", "s2"]),
    "target_cluster": st.just("t"),
    "staging_partitions": st.integers(1, 3),
    "application": st.sampled_from(["replicator", "deduplicator"]),
    "term": st.integers(0, 3),
    "epoch": st.integers(0, 3),
    "topic": st.sampled_from(["x", "y"]),
    "topic_id": st.sampled_from(["X", "Y"]),
    "partition": st.integers(0, 1),
    "partitions": st.integers(1, 4),
    "offset": st.integers(0, 5),
    "initial": st.booleans(),
    "config": st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"])),
    "explicit": st.lists(st.sampled_from(["a", "b"]), max_size=2),
    "destination": st.just("d"),
    "compacted": st.booleans(),
    "max_message_bytes": st.integers(1, 9),
    "refused": st.none() | st.just("why"),
    "reason": st.just("r"),
    "detail": st.just("it is so"),
    "next": st.none() | st.integers(0, 5),
    "to": st.none() | st.integers(0, 5),
    "available": st.none() | st.integers(0, 5),
    "held": st.none() | st.tuples(st.integers(0, 2), st.integers(0, 9)).map(list),
    "held_start": st.none() | st.integers(0, 5),
    "n": st.integers(0, 3),
    "definition": st.just("{}"),
    "sha256": st.just("00"),
}


@st.composite
def control_records(draw: st.DrawFn) -> dict[str, object]:
    """A well-formed control record of any kind (with more fields than the kind needs: newer releases may add
    some)."""
    return {"kind": draw(st.sampled_from(CONTROL_KINDS)), **draw(st.fixed_dictionaries(_CONTROL_FIELDS))}


@st.composite
def hostile_control_records(draw: st.DrawFn) -> dict[str, object]:
    """A control record with some fields missing or of any type."""
    record = draw(control_records())
    for name in draw(st.lists(st.sampled_from(sorted(record)), min_size=1, max_size=3)):
        if draw(st.booleans()):
            record.pop(name, None)
        else:
            record[name] = draw(JSON_VALUES)
    return record


def rows_of(
    offsets: Sequence[int],
    timestamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[list[Header] | None] | None = None,
    size: int = 0,
) -> Rows:
    """Rows of records that are given column by column."""
    batch = encode_rows(offsets, timestamps, [1] * len(offsets), keys, values, headers)
    return Rows(offsets, batch, size)


def chunk_of(records: Sequence[Record], end: int | None = None, epoch: int = 0) -> Chunk:
    """What came of orders-0: these records, and behind them nothing as far as `end`."""
    chunk = Chunk("orders", 0, records[-1].at + 1 if end is None else end, epoch)
    if records:
        at, stamps, kinds, keys, values, headers = zip(*map(astuple, records), strict=True)
        chunk.rows = encode_rows(at, stamps, kinds, keys, values, headers if any(headers) else None)
    return chunk
