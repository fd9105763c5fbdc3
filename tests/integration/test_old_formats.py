"""Segments of Kafka's time before 0.11, put into a broker's log folder by hand while it is down: it serves
them as they are, and so they are copied."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.conftest import Kafka, Names
from tests.support.brokers import Record, Seen, create_topic, end_offsets, produce, wait_until
from tests.support.harness import Link, assert_copied
from tests.support.old_format import NOW, Old, compressed, message
from verbatim.local.kafka_cluster import Cluster
from verbatim.main import cli

TOPIC = "old"
SOME = [
    Old(b"key", b"value", NOW),
    Old(None, b"", NOW + 1),
    Old(b"", None, NOW - 7),
    Old(b"\xff", b"\0" * 300, NOW),
]
LATE = NOW + 999
Written = tuple[bytes, list[tuple[int, Old, int]]]
"""A log, and of each record its offset, itself, and the timestamp that it must have."""


def log(magic: int) -> Written:
    """Messages alone, and compressed ones of each codec, as large as a batch that would go whole; with gaps,
    as compaction leaves them."""
    data, records = b"", []
    offset = 0

    def add(made: bytes, some: list[Old], places: list[int], stamp: int | None = None) -> None:
        nonlocal data, offset
        data += made
        for place, record in zip(places, some, strict=True):
            time_ = record.stamp if stamp is None else stamp
            records.append((offset + place, record, time_ if magic else -1))
        offset += places[-1] + 1

    for record in SOME:
        add(message(offset, record, magic), [record], [0])
    many = [Old(b"%d" % i, bytes((i * j) % 251 for j in range(100)), NOW + i) for i in range(1500)]
    for codec in ("gzip", "snappy", "lz4"):
        add(compressed(offset, many, magic, codec), many, list(range(len(many))))
        add(compressed(offset, SOME, magic, codec, places=[0, 2, 3, 9]), SOME, [0, 2, 3, 9])
    add(compressed(offset, many, magic, "snappy", xerial=False), many, list(range(len(many))))
    if magic:
        add(message(offset, Old(b"k", b"late", LATE), magic, 0x08), [Old(b"k", b"late")], [0], LATE)
        add(compressed(offset, SOME, magic, "lz4", 0x08, LATE), SOME, [0, 1, 2, 3], LATE)
    return data, records


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, list[list[Seen]]]]:
    """A source whose topic has magic 0 in partition 0, magic 1 in 1, and both and record batches behind them
    in 2; and what is in there."""
    first, second = log(0), log(1)
    last = first[1][-1][0] + 1
    both = first[0] + b"".join(message(last + i, r, 1) for i, r in enumerate(SOME))
    both_records = first[1] + [(last + i, r, r.stamp) for i, r in enumerate(SOME)]
    logs = [first, second, (both, both_records)]
    cluster = Cluster(data_folder=tmp_path_factory.mktemp("old"))
    with cluster:
        create_topic(cluster.bootstrap_servers, TOPIC, 3, {"retention.ms": "-1"})
        segments = [cluster.folder / "node-1" / f"{TOPIC}-{p}" / f"{0:020}.log" for p in range(len(logs))]
        # The controller answers before the broker has made them, and written down whose they are: a folder
        # without that is a stray one.
        whose = [segment.parent / "partition.metadata" for segment in segments]
        wait_until(lambda: all(file.exists() and file.stat().st_size for file in whose), "segments")
        wait_until(lambda: all(segment.exists() for segment in segments), "segments")
        cluster.kill()
        for segment, (data, _) in zip(segments, logs, strict=True):
            assert segment.stat().st_size == 0
            segment.write_bytes(data)
        cluster.restart()
        produce(cluster.bootstrap_servers, TOPIC, [Record(b"new", b"k", 2, NOW + 5)])
        ends = [records[-1][0] + 1 for _, records in logs]
        assert end_offsets(cluster.bootstrap_servers, TOPIC) == {0: ends[0], 1: ends[1], 2: ends[2] + 1}
        there = [[Seen(at, r.key, r.value, None, 1, stamp) for at, r, stamp in each] for _, each in logs]
        there[2].append(Seen(ends[2], b"k", b"new", None, 1, NOW + 5))
        yield cluster, there


def verified(link: Link) -> str:
    done = CliRunner().invoke(cli, ["verify"], env=link.variables)
    assert done.exit_code == 0, done.output
    return done.output


def test_records_of_old_formats_are_copied_with_their_times_or_none(
    old: tuple[Cluster, list[list[Seen]]], target: Kafka, names: Names
) -> None:
    """Promise: byte for byte, whatever they were compressed with; who has no timestamp has none at the target
    either, which is -1 and not 0."""
    cluster, there = old
    variables = {"KAFKA_CLUSTERS_DESTINATION_TOPIC": f"{names.link}.{{topic}}"}
    link = Link(cluster.bootstrap_servers, target.bootstrap_servers, names.link, TOPIC, **variables)
    assert link.copy() == (0, 0)
    assert link.halted() == {}
    assert_copied(link, TOPIC, f"{names.link}.{TOPIC}", there)
    verified(link)
