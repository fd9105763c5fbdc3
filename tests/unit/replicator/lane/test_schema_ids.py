"""What a lane knows of schemas' ids, when it looks, and which partitions go on by that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.errors import KafkaTimeout
from common.kafka.client import clients, topics
from common.link.control_records import REPLICATOR
from common.link.control_state import Control
from common.link.halt_reasons import HaltReason
from common.link.lane_progress import PartitionHalted
from common.pipeline.batch import Awaited
from replicator.lane import schema_ids
from replicator.lane.halts import Halts
from replicator.lane.partition_copy import PartitionCopy, Status
from replicator.lane.schema_ids import LOOK_INTERVAL_S, REST_S, SchemaIds
from replicator.lane.through_flow import StageFailed
from replicator.lane.unreadable import Unreadable


class Topic:
    """`<link>.schemas` as a lane reads it: `written`, as far as it was read `known`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there, self.hidden, self.error = True, False, cast("Exception | None", None)
        self.written: dict[tuple[str, int], int] = {}
        self.known: dict[tuple[str, int], int] = {}
        self.texts = True
        """Whether they are written down beside the ids."""
        self.reads, self.now, self.takes_s, self.closed = 0, 100.0, 0.0, False
        self.map = SimpleNamespace(
            target=lambda *schema: self.known.get(schema),
            avro=lambda *schema: self.known.get(schema) if self.texts else None,
        )
        monkeypatch.setattr(clients, "admin", lambda _: object())
        monkeypatch.setattr(topics, "describe", self.describe)
        monkeypatch.setattr(schema_ids, "SchemaMapReader", lambda *_: self)
        monkeypatch.setattr(ports, "monotonic", lambda: self.now)

    def describe(self, _: Any, names: list[str], __: Any, hidden: set[str]) -> list[str]:
        if self.hidden:
            hidden.update(names)
        return names if self.there and not self.hidden else []

    def catch_up(self, _: Any) -> None:
        self.reads += 1
        self.now += self.takes_s
        if self.error is not None:
            raise self.error
        self.known |= self.written

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    return Topic(monkeypatch)


@pytest.fixture
def ids() -> SchemaIds:
    return SchemaIds("link.schemas", {}, {})


def test_the_topic_is_read_when_an_id_is_met_that_is_not_known_and_not_again_at_once(
    topic: Topic, ids: SchemaIds
) -> None:
    topic.written = {(".", 1): 11}
    assert (topic.reads, ids.known(".", 1)) == (0, None)
    assert [ids.target(".", 1), ids.target(".", 1), ids.target(".", 2), ids.target(".", 2)] == [
        11,
        11,
        None,
        None,
    ]
    assert topic.reads == 1
    topic.written[".", 2] = 12
    topic.now += LOOK_INTERVAL_S
    assert [ids.target(".", 1), topic.reads] == [11, 1], "what is known is not asked for"
    assert [ids.target(".", 2), topic.reads] == [12, 2]
    ids.close()
    assert topic.closed


def test_the_longer_a_look_takes_the_longer_is_the_rest(topic: Topic, ids: SchemaIds) -> None:
    """A target that is far away must not take the time of partitions that wait for nothing."""
    topic.takes_s = 0.3
    ids.target(".", 1)
    for rest, reads in ((2.9, 1), (0.1, 2)):
        topic.now += rest
        ids.target(".", 1)
        assert topic.reads == reads
    topic.takes_s = 3.0
    topic.now += 3.0
    ids.target(".", 1)
    topic.now += REST_S
    ids.target(".", 1)
    assert topic.reads == 4


@pytest.mark.parametrize("error", [KafkaTimeout("late"), KafkaException(KafkaError(KafkaError._TRANSPORT))])
def test_while_it_cannot_be_read_what_is_known_goes_on_and_why_is_said_once(
    topic: Topic, ids: SchemaIds, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    topic.written = {(".", 1): 11}
    assert ids.target(".", 1) == 11
    topic.error = error
    for _ in range(3):
        topic.now += LOOK_INTERVAL_S
        assert (ids.target(".", 2), ids.target(".", 1)) == (None, 11)
        assert ids.trouble.startswith("; link.schemas can't be read: ")
    assert len(caplog.records) == 1
    topic.error, topic.written[".", 2] = None, 12
    topic.now += LOOK_INTERVAL_S
    assert (ids.target(".", 2), ids.trouble) == (12, "")


def test_a_topic_that_is_not_there_or_hidden_is_told_and_looked_for_again(
    topic: Topic, ids: SchemaIds
) -> None:
    topic.there = False
    assert ids.target(".", 1) is None and "it is not there: start `schemas`" in ids.trouble
    topic.there, topic.hidden = True, True
    topic.now += LOOK_INTERVAL_S
    assert ids.target(".", 1) is None and "grant READ on it" in ids.trouble
    topic.hidden, topic.written = False, {(".", 1): 11}
    topic.now += LOOK_INTERVAL_S
    assert ids.target(".", 1) == 11
    ids.close()


class Source:
    """Counts how often it begins anew."""

    def __init__(self) -> None:
        self.begun = 1

    def by_id(self) -> bool:
        return True

    def read_from_positions(self) -> None:
        self.begun += 1


def test_those_go_on_whose_schema_is_known_by_now_and_no_others(topic: Topic, ids: SchemaIds) -> None:
    """Of those that stand, and of those that have something on its way in front of the record; not of one
    that stands for another reason."""
    copies = [PartitionCopy("c", "orders", "id", n, "w", 0, 5) for n in range(5)]
    told: list[Any] = []
    control = SimpleNamespace(append=lambda record, _: told.append(record))
    halts = Halts(cast(Any, SimpleNamespace(state=Control(), control=control)), copies)
    source = Source()
    unreadable = Unreadable(cast(Any, source), halts, ids)
    for copy, schema in zip(copies, (1, 1, 2, 1, None), strict=True):
        copy.read = 9
        copy.failed = StageFailed(7, "waits", None if schema is None else Awaited(".", schema))
        unreadable.stage_failed(copy, copy.failed)
    for n in (0, 2, 3, 4):
        copies[n].acked = 7
    copies[1].cut_at = 7
    unreadable.look()
    assert [copy.status for copy in copies] == [Status.HALTED, Status.RUNNING, *[Status.HALTED] * 3]
    assert [(t.partition, t.reason, t.next, t.available) for t in told] == [
        (0, HaltReason.SCHEMA_UNKNOWN, 7, 8),
        (2, HaltReason.SCHEMA_UNKNOWN, 7, 8),
        (3, HaltReason.SCHEMA_UNKNOWN, 7, 8),
        (4, HaltReason.STAGE_FAILED, 7, 8),
    ]
    # An operator, or the deduplicator, has turned this one elsewhere, where it stands for something else.
    halts.halt(copies[3], HaltReason.SOURCE_LOST, "gone", 5, 9)
    for _ in range(2):
        topic.now += LOOK_INTERVAL_S
        unreadable.look()
    assert source.begun == 1 and copies[1].failed is not None
    topic.written = {(".", 1): 11}
    topic.now += LOOK_INTERVAL_S
    unreadable.look()
    running = [copy.partition for copy in copies if copy.status is Status.RUNNING]
    assert (running, source.begun) == ([0, 1], 2)
    assert [(copy.read, copy.failed) for copy in copies[:2]] == [(7, None)] * 2, "read again from the record"
    halted = {row.partition for row in halts.rows if isinstance(row, PartitionHalted)}
    assert halted == {2, 3, 4}
    reads = topic.reads
    unreadable.look()
    assert source.begun == 2 and topic.reads == reads
    copies[2].rewind(7)
    for _ in range(3):
        topic.now += LOOK_INTERVAL_S
        unreadable.look()
    assert topic.reads == reads, "nobody waits"


def test_who_waits_for_a_text_does_not_go_on_by_the_id(topic: Topic, ids: SchemaIds) -> None:
    """An earlier release wrote the id down: who reads Avro would halt and go on in turns."""
    copy = PartitionCopy("c", "orders", "id", 0, "w", 0, 5)
    control = SimpleNamespace(append=lambda record, _: None)
    halts = Halts(cast(Any, SimpleNamespace(state=Control(), control=control)), [copy])
    unreadable = Unreadable(cast(Any, Source()), halts, ids)
    copy.read = 9
    copy.failed = StageFailed(7, "waits", Awaited(".", 1, text=True))
    unreadable.stage_failed(copy, copy.failed)
    copy.acked = 7
    topic.texts, topic.written = False, {(".", 1): 11}
    for _ in range(3):
        unreadable.look()
        topic.now += LOOK_INTERVAL_S
        assert copy.status is Status.HALTED and ids.avro(".", 1) is None
    topic.texts = True
    unreadable.look()
    assert copy.status is Status.RUNNING and ids.avro(".", 1) is not None


def test_a_halt_that_was_taken_back_is_said_again_though_that_was_not_read_yet() -> None:
    """A lane begins: its position is written, which takes the last epoch's halt back, and it meets the same
    record before it has read its own word."""
    copy = PartitionCopy("c", "orders", "id", 0, "w", 0, 5)
    told: list[str] = []
    what = (HaltReason.STAGE_FAILED, "fails", 5, 6)
    halt = SimpleNamespace(reason=what[0], next=5, available=6)
    state = SimpleNamespace(halts={(REPLICATOR, copy.key): halt})
    control = SimpleNamespace(append=lambda record, _: told.append(record.kind))
    halts = Halts(cast(Any, SimpleNamespace(state=state, control=control)), [copy])
    halts.halt(copy, *what)
    assert told == [], "said in the epoch before"
    copy.status = Status.RUNNING
    halts.resumed(copy)
    halts.halt(copy, *what)
    halts.halt(copy, *what)
    assert told == ["resumed", "halted"]
