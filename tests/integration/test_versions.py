"""A real source of Kafka 2.8, which knows topic ids but is asked for records by topics' names. All versions:
tests/versions.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError

from common.kafka.wire.batch_consumer import Event
from common.kafka.wire.chunks import Chunk
from common.kafka.wire.record_batch import CODECS
from replicator.lane import lane as lanes
from replicator.lane.partition_copy import CutFrame
from replicator.lane.source_reader import Source
from replicator.lane.topic_id_check import TopicIdCheck
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, _answer, create_topic, delete_topic, produce, read_all, topic_id
from tests.support.harness import Link, assert_mapped, contents, eventually
from tests.support.old_brokers import VersionCluster
from tests.versions import OLD_FORMATS, RECORDS, copy

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def old() -> Iterator[VersionCluster]:
    with VersionCluster("2.8.2") as cluster:
        yield cluster


def test_all_that_brokers_of_2_8_hold_is_copied_in_batches(
    old: VersionCluster, target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: batches of each codec on both sides of 64 KiB, transactions that were committed and aborted,
    odd records, and messages of the formats before, from a broker that is asked by name; large ones as they
    are."""
    whole: set[int] = set()
    unpacked: set[str] = set()
    read = Source.read

    def seen(self: Source, timeout_s: float) -> list[Chunk | Event]:
        came = read(self, timeout_s)
        for piece in came:
            if isinstance(piece, Chunk):
                # Looked at now: frames take them out.
                whole.update(header.codec for header, _ in piece.wholes)
                unpacked.update([piece.topic] if piece.rows is not None else [])
        return came

    monkeypatch.setattr(Source, "read", seen)
    copy(old, target, names.link)
    assert whole == {CODECS[codec] for codec in ("gzip", "snappy", "lz4", "zstd")}
    assert unpacked == {RECORDS, *OLD_FORMATS}


@pytest.mark.parametrize("batches", [(5, 7), (12,)], ids=["goes on", "does not fit"])
def test_records_of_a_topic_made_again_are_never_taken_for_the_old_ones_where_names_are_asked_for(
    old: VersionCluster,
    target: Kafka,
    names: Names,
    monkeypatch: pytest.MonkeyPatch,
    batches: tuple[int, ...],
) -> None:
    """Promise: a topic is deleted and made again behind a consumer that asks by name, and refilled past its
    position, so that the broker goes on there without an error: what it sends does not leave before the id is
    confirmed. Nor does it halt anything where it begins within a batch of the new log."""
    topic, at = names.topic(), old.bootstrap_servers
    create_topic(at, topic)
    produce(at, topic, [Record(b"old %d" % n) for n in range(5)])
    link = Link(at, target.bootstrap_servers, names.link, topic, TOPIC_REFRESH_INTERVAL="120s")
    may_read = threading.Event()
    mistaken: list[CutFrame] = []
    may_read.set()
    consume, answers = lanes.Lane._consume, TopicIdCheck.answers

    def gated(self: lanes.Lane) -> None:
        if may_read.wait(0.02):
            consume(self)

    def noted(self: TopicIdCheck, now: float) -> Any:
        found = answers(self, now)
        mistaken.extend(cut for cut, same in found if not same)
        return found

    monkeypatch.setattr(lanes.Lane, "_consume", gated)
    monkeypatch.setattr(TopicIdCheck, "answers", noted)
    with link.running():
        eventually(lambda: link.arrived(topic) == [5], "the first records")
        first, first_id = read_all(at, topic), topic_id(at, topic)
        may_read.clear()
        delete_topic(at, topic)
        # With ZooKeeper its name is free a little later.
        _answer(lambda: create_topic(at, topic), (KafkaError.TOPIC_ALREADY_EXISTS,))
        for number, count in enumerate(batches):
            produce(at, topic, [Record(b"new %d.%d" % (number, n)) for n in range(count)])
        may_read.set()
        eventually(lambda: link.arrived(topic) == [17], "the records of the new topic")
    assert bool(mistaken) == (len(batches) > 1), "where nothing is read on, this has shown nothing"
    assert link.halted() == {}
    second, here = read_all(at, topic), read_all(link.target, topic)
    assert [contents(r) for r in here[0]] == [contents(r) for r in first[0] + second[0]]
    assert_mapped(link, topic, first, here, first_id)
    assert_mapped(link, topic, second, here, topic_id(at, topic))
