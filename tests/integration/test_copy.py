"""What arrives at the destination is what was at the source: each kind of record and of log. One copy serves
all tests here but the last."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Producer

from common.link import batch_frame
from common.link.frame import decode_headers, decode_rows
from tests.conftest import Kafka
from tests.support.brokers import (
    Headers,
    Record,
    Seen,
    create_topic,
    end_offsets,
    produce,
    read_all,
    wait_until,
)
from tests.support.harness import Link, assert_copied
from tests.support.wire import produce_at

LARGEST = 3 << 20
ENVELOPE = 75
"""Bytes of a batch round the value of its only record, which has no key and no headers."""
FOREVER = str(2**63 - 1)
BIG = {"message.max.bytes": 100_000_000}


@dataclass
class Copied:
    """`there`: topic -> source records, noted before the last copy; `early`: transactional topic at the
    destination, after the first."""

    link: Link
    there: dict[str, list[list[Seen]]]
    early: list[Seen]
    exit_codes: list[tuple[int | None, int | None]]

    def check(self, what: str) -> list[list[Seen]]:
        topic = next(t for t in self.there if t.endswith(f".{what}"))
        assert_copied(self.link, topic, there=self.there[topic])
        return read_all(self.link.target, topic)


@pytest.fixture(scope="module")
def copied(source: Kafka, target: Kafka) -> Copied:
    """A link with a topic of each kind, copied in two goes, so that every kind goes on in the middle of its
    log."""
    at, to, name = source.bootstrap_servers, target.bootstrap_servers, f"t{secrets.token_hex(4)}"
    topics = {
        w: f"{name}.t.{w}"
        for w in ("kinds", "stamps", "appended", "large", "compacted", "transactional", "dense")
    }
    create_topic(at, topics["kinds"], 2)
    create_topic(
        at,
        topics["stamps"],
        1,
        {"message.timestamp.after.max.ms": FOREVER, "message.timestamp.before.max.ms": FOREVER},
    )
    create_topic(at, topics["appended"], 1, {"message.timestamp.type": "LogAppendTime"})
    create_topic(at, topics["large"], 1, {"max.message.bytes": str(LARGEST + ENVELOPE)})
    create_topic(at, topics["transactional"])
    create_topic(at, topics["dense"], 3)
    create_topic(
        at,
        topics["compacted"],
        config={"cleanup.policy": "compact", "segment.ms": "200", "min.cleanable.dirty.ratio": "0.01"},
    )
    # Not compacted itself, or it would not stay what was copied.
    create_topic(to, topics["compacted"], config={"cleanup.policy": "delete", "retention.ms": "-1"})
    _compact(at, topics["compacted"])
    opened = _first_half(at, topics)
    link = Link(at, to, name, rf"{name}\.t\..*")
    codes = [link.copy()]
    early = read_all(to, topics["transactional"])[0]
    opened.commit_transaction(30)
    _second_half(at, topics)
    there = {topic: read_all(at, topic) for topic in topics.values()}
    codes.append(link.copy())
    return Copied(link, there, early, codes)


def _compact(at: str, topic: str) -> None:
    for go in range(4):
        values = [None if (go, k) == (3, 3) else b"%d" % go for k in range(8)]
        produce(at, topic, [Record(v, b"key%d" % k) for k, v in enumerate(values)])
        time.sleep(0.3)
    produce(at, topic, [Record(b"last", b"last")])

    def unique() -> bool:
        keys = [r.key for r in read_all(at, topic)[0][:-1]]
        return len(keys) == len(set(keys))

    wait_until(unique, "compaction")


def _kinds() -> list[Record]:
    kinds = [None, b"", b"x", bytes(range(256))]
    headers: list[Headers | None] = [
        None,
        [("h", b"1"), ("h", None), ("g", b""), ("h", b"1")],
        [("", b"x")],
        [("ümläut ✓", bytes(range(256)))],
        [(f"h{i}", b"v" * i) for i in range(50)],
    ]
    return [Record(v, k, p, headers=h) for p in range(2) for k in kinds for v in kinds for h in headers]


def _stamps() -> list[Record]:
    now = int(time.time() * 1000)
    return [
        Record(b"%d" % t, timestamp=t)
        for t in (now, 1, now + 10 * 365 * 86_400_000, 1_000_000_000, 2**52, now)
    ]


def _first_half(at: str, topics: dict[str, str]) -> Producer:
    produce(at, topics["kinds"], _kinds())
    produce(at, topics["stamps"], _stamps())
    for stamp in (0, -1):
        produce_at(at, topics["stamps"], [b"at %d" % stamp] * 2, stamp)
    produce(at, topics["appended"], [Record(b"%d" % i, timestamp=1000 + i) for i in range(5)])
    produce(
        at,
        topics["large"],
        [Record(os.urandom(LARGEST)), Record(b"small"), Record(bytes(12 << 20))],
        config=BIG | {"compression.type": "lz4"},
    )
    produce(at, topics["dense"], [Record(b"%d" % i, partition=i % 2) for i in range(20_000)])
    log = topics["transactional"]
    produce(at, log, [Record(b"plain")])
    produce(at, log, [Record(b"committed %d" % i) for i in range(3)], "commit", f"{log}.1")
    produce(at, log, [Record(b"aborted %d" % i) for i in range(3)], "abort", f"{log}.1")
    produce(at, log, [Record(b"after")])
    opened = Producer(
        {"bootstrap.servers": at, "transactional.id": f"{log}.2", "transaction.timeout.ms": 300_000}
    )
    opened.init_transactions(30)
    opened.begin_transaction()
    opened.produce(log, b"open")
    opened.flush(30)
    produce(at, log, [Record(b"behind the open one")])
    return opened


def _second_half(at: str, topics: dict[str, str]) -> None:
    produce(at, topics["kinds"], _kinds())
    produce(at, topics["stamps"], _stamps())
    produce(at, topics["appended"], [Record(b"more")])
    produce(at, topics["large"], [Record(os.urandom(LARGEST), partition=0)], config=BIG)
    produce(at, topics["dense"], [Record(b"again %d" % i, partition=i % 2) for i in range(1000)])
    # The log ends with offsets that carry no record.
    produce(at, topics["transactional"], [Record(b"never")], "abort", f"{topics['transactional']}.1")


def test_a_bounded_run_ends_well(copied: Copied) -> None:
    """Promise: --until-caught-up ends with exit code 0 when all is copied, aborted tails and open
    transactions included."""
    assert copied.exit_codes == [(0, 0), (0, 0)]


def test_null_and_empty_keys_values_and_headers_arrive_as_they_were(copied: Copied) -> None:
    """Promise: null and empty are never confused; header order, duplicates, null values and odd names
    stay."""
    here = copied.check("kinds")
    assert {(r.key, r.value) for r in here[1]} >= {(None, None), (None, b""), (b"", None), (b"", b"")}


def test_old_and_future_timestamps_arrive_as_they_were(copied: Copied) -> None:
    """Promise: the destination takes every timestamp the source took, 0, none at all, and the far future
    included, unaltered."""
    assert {-1, 0, 1, 2**52} < {r.timestamp for r in copied.check("stamps")[0]}


def test_append_times_are_kept_as_the_time_of_the_record(copied: Copied) -> None:
    """Promise: where the source stamps records itself, its stamps are what arrives; the destination stamps
    nothing."""
    here = copied.check("appended")[0]
    there = next(v for t, v in copied.there.items() if t.endswith(".appended"))[0]
    assert {r.timestamp_type for r in there} == {TIMESTAMP_LOG_APPEND_TIME}
    assert {r.timestamp_type for r in here} == {TIMESTAMP_CREATE_TIME}


def test_the_largest_records_that_the_source_takes_arrive(copied: Copied) -> None:
    """Promise: a record of exactly max.message.bytes, and one many times a frame that only compression lets
    in, are copied."""
    assert [len(r.value or b"") for r in copied.check("large")[0]] == [LARGEST, 5, 12 << 20, LARGEST]


def test_a_compacted_log_arrives_with_its_holes_mapped(copied: Copied) -> None:
    """Promise: offsets that compaction removed are covered, tombstones are copied, and each survivor is
    mapped exactly."""
    here = copied.check("compacted")[0]
    there = next(v for t, v in copied.there.items() if t.endswith(".compacted"))[0]
    assert len(here) < there[-1].offset
    assert (b"key3", None) in {(r.key, r.value) for r in here}


def test_committed_transactions_arrive_and_aborted_ones_do_not(copied: Copied) -> None:
    """Promise: what a transaction wrote arrives when it has committed, never when it was aborted, and nothing
    behind an open one overtakes it."""
    first = [b"plain", b"committed 0", b"committed 1", b"committed 2", b"after"]
    assert [r.value for r in copied.early] == first
    here = copied.check("transactional")[0]
    assert [r.value for r in here] == [*first, b"open", b"behind the open one"]
    topic = next(t for t in copied.there if t.endswith(".transactional"))
    reached = copied.link.mappings(topic)[0][-1].next
    assert reached == end_offsets(copied.link.source, topic)[0]


def test_a_dense_log_is_mapped_in_few_runs(copied: Copied) -> None:
    """Promise: the partitions stay apart and in order, an empty one is no obstacle, and a mapping of
    thousands is one run."""
    copied.check("dense")
    topic = next(t for t in copied.there if t.endswith(".dense"))
    mappings = copied.link.mappings(topic)
    assert sorted(mappings) == [0, 1, 2]
    assert all(len(m.runs) <= 1 for records in mappings.values() for m in records)
    assert [(m.start, m.next, m.runs) for m in mappings[2]] == [(0, 0, [])]


@pytest.mark.parametrize("provenance", ["false", "true"])
def test_frames_are_staged_compressed(provenance: str, source: Kafka, target: Kafka) -> None:
    """Promise: a frame of some size is compressed by itself, so that the target's broker has nothing to
    unpack: a batch, or columns where each record gets a header on its way."""
    at, to, name = source.bootstrap_servers, target.bootstrap_servers, f"t{secrets.token_hex(4)}"
    values = [b"%d of many alike, %s" % (i, b"v" * 100) for i in range(2_000)]
    create_topic(at, f"{name}.t", 1)
    produce(at, f"{name}.t", [Record(value) for value in values])
    link = Link(at, to, name, rf"{name}\.t", PROVENANCE_HEADERS=provenance)
    assert link.replicate() == 0
    staged = [
        (frame, crc, record.value)
        for partition in read_all(to, link.settings.staging_topic)
        for record in partition
        for frame, crc in [decode_headers(record.headers)]
        if frame.count
    ]
    assert {frame.batches for frame, _, _ in staged} == {provenance == "false"}
    read = [
        batch_frame.decode(frame, crc, packed).rows() if frame.batches else decode_rows(frame, crc, packed)
        for frame, crc, packed in staged
    ]
    assert [value for rows in read for value in rows.values] == values
    assert sum(len(packed or b"") for _, _, packed in staged) < sum(map(len, values)) / 2
