"""What a broker sent, taken apart: which batches are committed, which stay whole, and what is told of a
partition that can't go on."""

from __future__ import annotations

import os
import select
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import google_crc32c
import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from common import ports
from common.kafka.wire import batch_consumer, fetch_answers, fetch_limits, fetch_protocol, fetch_sessions
from common.kafka.wire.batch_consumer import BatchConsumer, Event
from common.kafka.wire.broker_backoff import DATA
from common.kafka.wire.chunks import Chunk
from common.kafka.wire.connection import broken
from common.kafka.wire.fetch_answers import Budget, committed
from common.kafka.wire.fetch_protocol import Aborted, Part
from common.kafka.wire.protocol import Answer
from common.kafka.wire.record_batch import CODECS, headers, seal
from common.kafka.wire.record_encoder import encode_records
from common.kafka.wire.records import encode_rows
from common.partitions import PartitionId

ID = "ASNFZ4mrze8BI0VniavN7w"
KEY: PartitionId = (fetch_protocol.canonical(ID), 0)
AT = TopicPartition("orders", 0)
ANY = dict.fromkeys(CODECS.values(), 1 << 31)


def batch(
    first: int,
    count: int,
    producer: int = -1,
    transactional: bool = False,
    attributes: int = 0,
    epoch: int = 0,
    size: int = 10,
    missing: int = 0,
) -> bytes:
    """A batch at an offset; `attributes` are added to, `missing` offsets at its end are of no record."""
    rows = encode_rows(
        range(count),
        [1] * count,
        [1] * count,
        [None] * count,
        [b"%d" % (first + i) + b"v" * size for i in range(count)],
        None,
    )
    (records,) = encode_records(rows, 1 << 30)
    raw = bytearray(b"".join(seal(records, "none", None, producer, 0, 0, transactional)))
    struct.pack_into(">q", raw, 0, first)
    struct.pack_into(">i", raw, 12, epoch)
    found = next(headers(bytes(raw)))[1]
    struct.pack_into(">h", raw, 21, found.attributes | attributes)
    struct.pack_into(">i", raw, 23, count - 1 + missing)
    struct.pack_into(">I", raw, 17, google_crc32c.value(bytes(raw[21:])))
    return bytes(raw)


def marker(offset: int, producer: int) -> bytes:
    return batch(offset, 1, producer, True, 0x20)


def wanted(data: bytes, aborted: list[Aborted], position: int = 0) -> list[int]:
    return [h.base_offset for _, h, keep in committed(headers(data), aborted, position) if keep]


def test_records_of_a_transaction_that_was_aborted_are_left_out_and_no_others() -> None:
    log = b"".join(
        [
            batch(0, 2),
            batch(2, 1, 7, True),
            batch(3, 1, 8, True),
            marker(4, 7),
            batch(5, 1, 7, True),
            marker(6, 8),
            batch(7, 1, 8, True),
            marker(8, 7),
            batch(9, 1),
        ]
    )
    assert wanted(log, []) == [0, 2, 3, 5, 7, 9]
    assert wanted(log, [Aborted(7, 2)]) == [0, 3, 5, 7, 9], "its next transaction is another one"
    assert wanted(log, [Aborted(8, 7), Aborted(7, 5)]) == [0, 2, 3, 9]
    assert wanted(log, [Aborted(7, 2)], position=4) == [5, 7, 9]


def test_batches_that_end_before_the_position_and_those_that_compaction_emptied_are_left_out() -> None:
    log = batch(0, 4) + batch(4, 4) + batch(8, 2)
    assert wanted(log, [], 6) == [4, 8]
    positions = [(h.base_offset, h.next_offset, keep) for _, h, keep in committed(headers(log), [], 8)]
    assert positions == [(8, 10, True)]


class Fixed(BatchConsumer):
    """Without brokers: takes what it is told they have sent."""

    def __init__(self, codecs: dict[int, int] = ANY, apart: frozenset[str] = frozenset()) -> None:
        super().__init__({"bootstrap.servers": "b:1"}, codecs, apart)

    def got(
        self, data: bytes = b"", error: int = 0, diverges: int | None = None, at: float = 0.0
    ) -> list[Any]:
        part = Part(error, 1000, 1000, [], memoryview(data), diverges)
        position = self._positions[KEY]
        return [] if position.stopped else list(self._take_part(position, part, at))


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Fixed:
    monkeypatch.setattr(batch_consumer, "WHOLE_BYTES", 500)
    made = Fixed()
    made.assign([("orders", ID, 0, 0, None)])
    return made


def shown(items: list[Any]) -> list[tuple[int, int, str, list[int]]]:
    """Of each chunk: position behind it, epoch, what it is, and the offsets of its records."""
    out = []
    for chunk in items:
        assert isinstance(chunk, Chunk)
        if chunk.rows is not None:
            kind, offsets = "rows", chunk.rows.column(0).to_pylist()
        else:
            kind = "alone" if chunk.alone else "whole" if chunk.wholes else "nothing"
            offsets = [o for h, _ in chunk.wholes for o in range(h.base_offset, h.next_offset)]
        out.append((chunk.next, chunk.leader_epoch, kind, offsets))
    return out


def test_large_batches_stay_whole_and_so_does_a_small_one_that_comes_alone_others_become_records_in_order(
    consumer: Fixed,
) -> None:
    large, alone = batch(2, 3, size=500), batch(6, 1)
    got = consumer.got(batch(0, 1) + batch(1, 1) + large + marker(5, 1) + alone)
    assert shown(got) == [(2, 0, "rows", [0, 1]), (6, 0, "whole", [2, 3, 4]), (7, 0, "alone", [6])]
    assert [bytes(chunk.wholes[0][1]) for chunk in got[1:]] == [large, alone], "to the byte"
    assert consumer._positions[KEY].offset == 7
    assert consumer.get_watermark_offsets(AT, cached=True) == (OFFSET_INVALID, 1000)


def test_no_batch_of_a_topic_that_is_taken_apart_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_consumer, "WHOLE_BYTES", 500)
    for apart, kind in (("orders", "rows"), ("others", "whole")):
        made = Fixed(apart=frozenset({apart}))
        made.assign([("orders", ID, 0, 0, None)])
        assert shown(made.got(batch(0, 3, size=500))) == [(3, 0, kind, [0, 1, 2])]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (batch(0, 3, size=500, missing=2), "an offset at its end is missing"),
        (batch(0, 3, size=500, attributes=0x08), "its times are the broker's"),
        (batch(0, 3, size=500, attributes=0x40), "compaction has written in its header"),
    ],
)
def test_a_batch_that_can_t_go_as_it_is_becomes_records(consumer: Fixed, data: bytes, why: str) -> None:
    ((_, _, kind, offsets),) = shown(consumer.got(data))
    assert (kind, offsets) == ("rows", [0, 1, 2]), why


def test_a_batch_in_whose_middle_the_position_is_becomes_the_records_from_there_on(consumer: Fixed) -> None:
    consumer._positions[KEY].offset = 2
    log = batch(0, 4, size=500) + batch(4, 1)
    assert shown(consumer.got(log)) == [(5, 0, "rows", [2, 3, 4])]


def test_a_chunk_is_of_one_leader_epoch(consumer: Fixed) -> None:
    got = consumer.got(batch(0, 1, epoch=1) + batch(1, 1, epoch=2) + batch(2, 1, epoch=2))
    assert shown(got) == [(1, 1, "alone", [0]), (3, 2, "rows", [1, 2])]
    assert consumer._positions[KEY].wanted(9) == fetch_protocol.Wanted(3, 2, 9)


def test_what_would_unpack_into_too_much_at_once_comes_in_parts(
    consumer: Fixed, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = b"".join(batch(at, 1, size=300) for at in range(5)) + marker(5, 1)
    monkeypatch.setattr(fetch_answers, "LEAST_BYTES", 100)
    got: list[Any] = []
    for _ in range(3):
        consumer._budget = Budget(1100)
        got += consumer.got(log)
    assert shown(got) == [(2, 0, "rows", [0, 1]), (4, 0, "rows", [2, 3]), (6, 0, "alone", [4])]


def test_what_has_no_records_moves_the_position_all_the_same(consumer: Fixed) -> None:
    assert shown(consumer.got(marker(0, 1) + marker(1, 2))) == [(2, 0, "nothing", [])]


def test_codecs_that_are_not_asked_for_are_not_handed_on(consumer: Fixed) -> None:
    other = Fixed({CODECS["zstd"]: 1 << 31})
    other.assign([("orders", ID, 0, 0, None)])
    assert shown(other.got(batch(0, 3, size=500)))[0][2] == "rows"
    plain = Fixed({CODECS["none"]: len(batch(0, 1, size=100))})
    plain.assign([("orders", ID, 0, 0, None)])
    assert shown(plain.got(batch(0, 1, size=100)))[0][2] == "alone"
    assert shown(plain.got(batch(1, 1, size=101)))[0][2] == "rows", "nor what is larger than is asked for"


@pytest.mark.parametrize("spoil", [30, 70, 1000])
def test_a_damaged_batch_stops_its_partition_by_name(consumer: Fixed, spoil: int) -> None:
    good, data = batch(0, 1), bytearray(batch(1, 3, size=500))
    data[spoil] ^= 1
    *chunks, event = consumer.got(good + bytes(data))
    assert isinstance(event, Event) and event.error.code() == KafkaError._BAD_MSG
    assert all(offset < 1 for _, _, _, offsets in shown(chunks) for offset in offsets)
    assert consumer.got(good) == [], "nothing comes after it"


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ({"error": KafkaError.OFFSET_OUT_OF_RANGE}, KafkaError.OFFSET_OUT_OF_RANGE),
        ({"error": KafkaError.TOPIC_AUTHORIZATION_FAILED}, KafkaError.TOPIC_AUTHORIZATION_FAILED),
        ({"diverges": 5}, KafkaError._LOG_TRUNCATION),
    ],
)
def test_what_stands_in_the_way_is_told_once_and_nothing_comes_after_it(
    consumer: Fixed, told: dict[str, Any], code: int
) -> None:
    (event,) = consumer.got(**told)
    assert (event.topic, event.partition, event.error.code()) == ("orders", 0, code)
    assert consumer.got(batch(0, 1)) == []


@pytest.mark.parametrize("error", [KafkaError.UNKNOWN_TOPIC_OR_PART, 100, 103])
def test_a_topic_that_a_broker_has_not_heard_of_yet_is_waited_for_a_little(
    consumer: Fixed, error: int
) -> None:
    assert consumer.got(error=error, at=10.0) == []
    assert consumer.got(error=error, at=11.0) == []
    (event,) = consumer.got(error=error, at=10.0 + batch_consumer.UNKNOWN_S)
    assert event.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_another_leader_is_looked_for(consumer: Fixed) -> None:
    consumer._sessions.brokers._leaders, consumer._sessions.brokers._addresses = (
        {("orders", 0): 1},
        {1: ("b", 1)},
    )
    assert consumer.got(error=KafkaError.NOT_LEADER_FOR_PARTITION) == []
    assert consumer._sessions.brokers.leader(("orders", 0)) is None
    assert shown(consumer.got(batch(0, 1))) == [(1, 0, "alone", [0])], "and what comes from it goes on"


class Line:
    """A connection whose answers are given."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.answers: list[bytes] = []
        self.begun = 0
        """For so many looks, of the next answer only the beginning is there."""
        self.readable, other = os.pipe()
        os.close(other)

    def knows(self, _: object) -> bool:
        return True

    def send(self, _: Any, body: list[bytes], __: Any) -> None:
        self.bodies.append(b"".join(body))

    def complete(self) -> bool:
        self.begun -= 1
        return bool(self.answers) and self.begun < 0

    def received(self) -> Answer:
        assert self.begun < 0
        return Answer(self.answers.pop(0))

    def fileno(self) -> int:
        """Something has always come."""
        return self.readable

    used = begun = quiet_until = 0.0

    def ready(self) -> bool:
        return True

    def opening(self) -> bool:
        return False

    def ended(self) -> bool:
        return False

    def waits_for(self) -> tuple[int, int]:
        return self.readable, select.POLLIN

    def late(self) -> KafkaException:
        return broken("no answer")

    def close(self) -> None:
        """It may be given up."""


class Told:
    """A question for leaders that is answered by a change of what is known."""

    def __init__(self, learn: Callable[[], None]) -> None:
        self._learn = learn

    def answer(self) -> Answer:
        self._learn()
        return Answer(struct.pack(">ii", 0, 0) + b"\xff\xff" + struct.pack(">ii", -1, 0))


def leading(consumer: Fixed, monkeypatch: pytest.MonkeyPatch, leaders: dict[tuple[str, int], int]) -> None:
    """Who leads, whenever that is asked."""
    brokers = consumer._sessions.brokers

    def leaders_of(topics: Iterable[str]) -> Told:
        assert set(topics) == {"orders"}
        return Told(lambda: brokers._leaders.update(leaders))

    monkeypatch.setattr(brokers, "leaders_of", leaders_of)


@pytest.fixture
def line(consumer: Fixed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    monkeypatch.setattr(batch_consumer, "JUST_ASKED_S", 0.0)
    address = ("b", 1)
    consumer._sessions.brokers._leaders = {("orders", p): 1 for p in (0, 1)}
    consumer._sessions.brokers._addresses = {1: address}
    made = Line()
    consumer._sessions.brokers._connections = {(address, DATA): made}  # type: ignore[dict-item]
    consumer.assign([("orders", ID, p, 5, 2) for p in (0, 1)])
    yield made
    os.close(made.readable)


@pytest.fixture
def other(consumer: Fixed, line: Line) -> Iterator[Line]:
    """Another broker's, which leads nothing yet: node 2."""
    consumer._sessions.brokers._addresses[2] = ("c", 1)
    made = Line()
    consumer._sessions.brokers._connections[("c", 1), DATA] = made  # type: ignore[assignment]
    yield made
    os.close(made.readable)


def answer(session: int, error: int = 0, records: bytes = b"", part_error: int = 0) -> bytes:
    head = b"\0" + struct.pack(">ihi", 0, error, session)
    if not records and not part_error:
        return head + b"\x01\0"
    size = len(records) + 1
    length = bytes([size & 0x7F | 0x80, size >> 7])
    part = (
        struct.pack(">ihqqq", 0, part_error, 9, 9, 0)
        + b"\x00"
        + struct.pack(">i", -1)
        + length
        + records
        + b"\0"
    )
    topic = uuid.UUID(KEY[0]).bytes
    return head + b"\x02" + topic + b"\x02" + part + b"\0" + b"\0"


def told(body: bytes) -> tuple[int, int, int]:
    """Session, its epoch, and how long the rest is."""
    _, _, _, _, _, session, epoch = struct.unpack_from(">iiiibii", body)
    return session, epoch, len(body)


def test_a_session_is_told_only_what_has_changed(consumer: Fixed, line: Line) -> None:
    consumer.read(0)
    assert told(line.bodies[0])[:2] == (0, 0)
    assert len(line.bodies) == 1, "one request at a time"
    line.answers.append(answer(77, records=batch(5, 1)))
    assert shown(consumer.read(0)) == [(6, 0, "alone", [5])]
    line.answers.append(answer(77))
    consumer.read(0)
    consumer.read(0)
    first, second, third = map(told, line.bodies)
    assert second[:2] == (77, 1) and third[:2] == (77, 2)
    assert third[2] < second[2] < first[2], "both, one, none of them"


def test_where_much_has_come_the_next_request_goes_out_at_once(
    consumer: Fixed, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has come is worked on while the broker gets the next answer ready; where little has, that would
    come with a single record."""
    consumer.read(0)
    line.answers.append(answer(77, records=batch(5, 1)))
    consumer.read(0)
    assert len(line.bodies) == 1 and not consumer.more_comes()
    monkeypatch.setattr(fetch_sessions, "AHEAD_BYTES", 50)
    consumer.read(0)
    assert not consumer.more_comes(), "what is asked of a broker that had little may come at any time"
    line.answers.append(answer(77, records=batch(6, 1)))
    consumer.read(0)
    assert len(line.bodies) == 3 and consumer.more_comes()
    line.answers.append(answer(77))
    consumer.read(0)
    assert not consumer.more_comes()


def test_a_broker_that_had_little_is_not_asked_ahead_because_another_had_much(
    consumer: Fixed, line: Line, other: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "AHEAD_BYTES", 50)
    consumer._sessions.brokers._leaders["orders", 1] = 2
    consumer.read(0)
    line.answers.append(answer(77, records=batch(5, 1)))
    other.answers.append(answer(78))
    consumer.read(0)
    assert (len(line.bodies), len(other.bodies)) == (2, 1)


def test_one_broker_is_asked_for_the_partitions_that_it_leads(consumer: Fixed, line: Line) -> None:
    assert consumer.asked_of_one() == 0
    consumer.read(0)
    assert consumer.asked_of_one() == 2


def test_of_two_brokers_each_is_asked_for_its_own(consumer: Fixed, line: Line, other: Line) -> None:
    consumer._sessions.brokers._leaders["orders", 1] = 2
    consumer.read(0)
    assert (len(line.bodies), len(other.bodies), consumer.asked_of_one()) == (1, 1, 1)


def test_a_partition_whose_leader_has_moved_is_asked_of_the_new_one_from_where_it_was_read(
    consumer: Fixed, line: Line, other: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer.read(0)
    line.answers.append(answer(77, records=batch(5, 1)))
    consumer.read(0)

    leading(consumer, monkeypatch, {("orders", 0): 2})
    consumer.read(0)
    line.answers.append(answer(77, part_error=KafkaError.NOT_LEADER_FOR_PARTITION))
    consumer.read(0)
    consumer._sessions._look_after = 0.0
    consumer.read(0)
    old, new = consumer._sessions.sessions["b", 1], consumer._sessions.sessions["c", 1]
    assert old.known.keys() == {(KEY[0], 1)}, "it is taken out of the old one's session"
    assert {key: w.offset for key, w in new.known.items()} == {KEY: 6}


def test_what_is_learnt_of_a_topic_s_other_partitions_on_the_way_is_followed(
    consumer: Fixed, line: Line, other: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    leading(consumer, monkeypatch, {("orders", p): 2 for p in (0, 1)})
    consumer.read(0)
    line.answers.append(answer(77, part_error=KafkaError.NOT_LEADER_FOR_PARTITION))
    consumer.read(0)
    consumer._sessions._look_after = 0.0
    consumer.read(0)
    assert consumer._sessions.sessions["c", 1].known.keys() == {(KEY[0], p) for p in (0, 1)}
    assert not consumer._sessions.sessions["b", 1].wanted


def test_an_answer_that_has_begun_is_waited_for(
    consumer: Fixed, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker sends records behind the beginning of their answer. Whoever took that for nothing let them
    wait for the next frame."""
    monkeypatch.setattr(batch_consumer, "JUST_ASKED_S", 60.0)
    line.answers.append(answer(77, records=batch(5, 1)))
    line.begun = 3
    assert shown(consumer.read(0)) == [(6, 0, "alone", [5])]


def test_a_session_that_the_broker_has_given_up_is_begun_anew(consumer: Fixed, line: Line) -> None:
    consumer.read(0)
    line.answers.append(answer(77))
    consumer.read(0)
    consumer.read(0)
    line.answers.append(answer(0, error=70))
    assert consumer.read(0) == []
    consumer.read(0)
    assert told(line.bodies[2]) == told(line.bodies[0]), "all is said again"


def test_what_is_held_is_taken_out_of_the_session_and_comes_back_where_it_stood(
    consumer: Fixed, line: Line
) -> None:
    consumer.read(0)
    consumer.pause([AT])
    line.answers.append(answer(77, records=batch(5, 1)))
    assert consumer.read(0) == [], "what was on its way is not taken"
    consumer.read(0)
    assert consumer._sessions.sessions["b", 1].known.keys() == {(KEY[0], 1)}
    consumer.resume([AT])
    line.answers.append(answer(77))
    consumer.read(0)
    consumer.read(0)
    assert consumer._positions[KEY].offset == 5
    assert consumer._sessions.sessions["b", 1].known.keys() == {(KEY[0], 0), (KEY[0], 1)}


def test_a_broker_that_owes_its_answer_for_too_long_is_given_up(
    consumer: Fixed, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(ports, "monotonic", lambda: now)
    consumer.read(0)
    now += fetch_limits.WAIT_MS / 1000 + fetch_sessions.ANSWER_S + 1
    consumer.read(0)
    assert not consumer._sessions.sessions and not consumer._sessions.brokers._connections
    assert consumer._sessions.brokers.leader(("orders", 0)) is None, "who leads is asked anew"


def test_what_was_asked_of_a_broker_that_is_lost_is_asked_of_whoever_leads_it_then(
    consumer: Fixed, line: Line, other: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes of a partition that nobody is asked for, and nobody would notice."""
    now = 100.0
    monkeypatch.setattr(ports, "monotonic", lambda: now)

    leading(consumer, monkeypatch, {("orders", p): 2 for p in (0, 1)})
    consumer.read(0)
    now += fetch_limits.WAIT_MS / 1000 + fetch_sessions.ANSWER_S + 1
    consumer.read(0)
    now += 1
    consumer.read(0)
    assert consumer._sessions.sessions.keys() == {("c", 1)}
    assert {key: w.offset for key, w in consumer._sessions.sessions["c", 1].known.items()} == {
        (KEY[0], p): 5 for p in (0, 1)
    }
    assert len(other.bodies) == 1


def waits_ms(body: bytes) -> int:
    return int(struct.unpack_from(">ii", body)[1])


def test_a_broker_may_wait_long_but_not_where_a_partition_was_held_lately(
    consumer: Fixed, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held comes back only with the next request."""
    now = 100.0
    monkeypatch.setattr(ports, "monotonic", lambda: now)
    consumer.read(0)
    for happens, at in ((consumer.pause, 100.0), (consumer.resume, 200.0), (lambda _: None, 250.0)):
        now = at
        happens([AT])
        line.answers.append(answer(77))
        consumer.read(0)
        consumer.read(0)
    now += fetch_limits.HELD_S
    line.answers.append(answer(77))
    consumer.read(0)
    consumer.read(0)
    long, short = fetch_limits.WAIT_MS, fetch_limits.SHORT_WAIT_MS
    assert [waits_ms(body) for body in line.bodies] == [long, short, short, short, long]


def test_a_request_that_may_wait_long_is_taken_back_where_another_partition_comes_to_its_broker(
    consumer: Fixed, line: Line, other: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing may come of those that it names for seconds, while much is there of the one that is new."""
    consumer._sessions.brokers._leaders["orders", 0] = 2
    consumer.read(0)
    assert (len(line.bodies), len(other.bodies)) == (1, 1)
    brokers = consumer._sessions.brokers
    dropped: list[Any] = []
    monkeypatch.setattr(brokers, "drop", dropped.append)
    leading(consumer, monkeypatch, {("orders", 0): 1})
    other.answers.append(answer(78, part_error=KafkaError.NOT_LEADER_FOR_PARTITION))
    consumer.read(0)
    assert dropped == []
    consumer._sessions._look_after = 0.0
    consumer.read(0)
    consumer.read(0)
    assert dropped == [(("b", 1), DATA)]
    assert len(line.bodies) == 2, "once"
    assert told(line.bodies[1])[:2] == (0, 0), "all is said again"
    assert consumer._sessions.sessions["b", 1].known.keys() == {(KEY[0], p) for p in (0, 1)}


@pytest.mark.parametrize("way", ["held and released", "short"])
def test_no_other_request_is_taken_back(
    consumer: Fixed, line: Line, other: Line, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    dropped: list[Any] = []
    monkeypatch.setattr(consumer._sessions.brokers, "drop", dropped.append)
    if way == "short":
        consumer._sessions.limits._given_wait_ms = fetch_limits.SHORT_WAIT_MS
        consumer._sessions.brokers._leaders["orders", 0] = 2
        consumer.read(0)
        leading(consumer, monkeypatch, {("orders", 0): 1})
        other.answers.append(answer(78, part_error=KafkaError.NOT_LEADER_FOR_PARTITION))
        consumer.read(0)
        consumer._sessions._look_after = 0.0
    else:
        consumer.read(0)
        consumer.pause([AT])
        consumer.read(0)
        consumer.resume([AT])
    consumer.read(0)
    consumer.read(0)
    assert (dropped, len(line.bodies)) == ([], 1)
