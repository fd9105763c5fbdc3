"""What a producer of whole batches asks again and what it does not, before brokers that answer as they are
told. Real ones: tests/integration/test_batches.py."""

from __future__ import annotations

import random
import select
import struct
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.kafka.wire import open_transactions, protocol, record_batch
from common.kafka.wire.batch_producer import BatchProducer, Refused
from common.kafka.wire.broker_backoff import CONTROL, DATA
from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.compression import codec_name
from common.kafka.wire.connection import broken
from common.kafka.wire.open_transactions import OpenTransactions
from common.kafka.wire.protocol import Answer, Api, text
from common.kafka.wire.record_encoder import encode_records
from common.ports import Deadline
from tests.support.strategies import rows_of

ONE, TWO = ("one", 1), ("two", 2)


class Line:
    """A connection: what was sent, and the answers that come; None: it breaks."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[tuple[str, int, int]]]] = []
        self.answers: deque[bytes | None] = deque()

    def send(self, api: Api, body: Any, _: Any) -> None:
        whole = b"".join(bytes(piece) for piece in body)
        self.sent.append((api.name, batches(whole) if api.name == "Produce" else []))

    def ask(self, api: Api, body: Any, deadline: Any) -> Answer:
        self.sent.append((api.name, []))
        answer = self.answers.popleft()
        if answer is None:
            raise broken("gone")
        return Answer(answer)

    def complete(self) -> bool:
        return bool(self.answers)

    def received(self) -> Answer:
        answer = self.answers.popleft()
        if answer is None:
            raise broken("gone")
        return Answer(answer)

    def fresh(self) -> bool:
        return True

    def ready(self) -> bool:
        return True

    used = float("inf")
    quiet_until = 0.0

    def open(self, _: Any) -> None:
        """It is."""

    def close(self) -> None:
        pass

    def fileno(self) -> int:
        raise AssertionError("nobody waits where an answer has come")


def batches(body: bytes) -> list[tuple[str, int, int]]:
    """Topic, partition and sequence of each batch in a Produce request."""
    answer = Answer(body)
    answer.text()
    answer.take("hi")
    found = []
    for _ in answer.each():
        topic = answer.text() or ""
        for _ in answer.each():
            partition, size = answer.take("ii")
            ((_, header),) = record_batch.headers(bytes(answer.raw(size)))
            found.append((topic, partition, header.base_sequence))
    return found


def produced(*results: tuple[int, int], topic: str = "t") -> bytes:
    """Error and first offset of a batch for partitions 0, 1, ..."""
    parts = b"".join(
        struct.pack(">ihqqq", partition, error, offset, -1, 0) + struct.pack(">i", 0) + text(None)
        for partition, (error, offset) in enumerate(results)
    )
    return struct.pack(">i", 1) + text(topic) + struct.pack(">i", len(results)) + parts + b"\0\0\0\0"


def added(error: int = 0, topic: str = "t", partitions: int = 1) -> bytes:
    parts = b"".join(struct.pack(">ih", partition, error) for partition in range(partitions))
    return struct.pack(">ii", 0, 1) + text(topic) + struct.pack(">i", partitions) + parts


def simple(error: int = 0) -> bytes:
    return struct.pack(">ih", 0, error)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]

    def monotonic() -> float:
        now[0] += 0.0005
        return now[0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(ports, "monotonic", monotonic)
    monkeypatch.setattr(ports, "sleep", wait)
    poll = SimpleNamespace(register=lambda line, _: line.fileno(), poll=lambda ms: wait(ms / 1000))
    monkeypatch.setattr(select, "poll", lambda: poll)
    return now


class World:
    """A producer in the middle of its first transaction, and its connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.producer = BatchProducer({"bootstrap.servers": "one:1"}, "tx", 60_000, "g")
        self.lines = {(at, what): Line() for at in (ONE, TWO) for what in (DATA, CONTROL)}
        brokers = self.producer._brokers
        brokers._connections = dict(self.lines)  # type: ignore[arg-type]
        brokers._coordinators = {protocol.TRANSACTION: ONE, protocol.GROUP: ONE}
        self.leaders = {("t", p): 1 for p in range(3)}
        brokers._addresses = {1: ONE, 2: TWO}
        self.described = 0

        def describe(of: BrokerConnections, topics: Any, deadline: Any) -> dict[str, int]:
            self.described += 1
            of._leaders.update(self.leaders)
            return {}

        monkeypatch.setattr(BrokerConnections, "describe", describe)
        self.producer._number, self.producer._epoch = 7, 0
        self.told: list[tuple[int | None, int]] = []
        self.producer.begin_transaction()

    def send(self, partition: int = 0, count: int = 1) -> None:
        rows = rows_of(range(count), [1] * count, [None] * count, [b"v"] * count)
        for records in encode_records(rows.batch, 1 << 20):
            self.producer.produce_batch("t", partition, records, self._report)

    def _report(self, error: KafkaError | None, offset: int) -> None:
        self.told.append((None if error is None else error.code(), offset))

    @property
    def data(self) -> Line:
        return self.lines[ONE, DATA]

    @property
    def control(self) -> Line:
        return self.lines[ONE, CONTROL]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> World:
    return World(monkeypatch)


def test_partitions_are_registered_once_and_their_batches_go_together(world: World) -> None:
    world.control.answers += [added(partitions=2), simple()]
    world.data.answers.append(produced((0, 5), (0, 9)))
    world.send(0, 3)
    world.send(1)
    assert len(world.producer) == 2
    assert world.producer.flush(1) == 0
    assert world.told == [(None, 5), (None, 9)]
    assert world.data.sent == [("Produce", [("t", 0, 0), ("t", 1, 0)])]
    world.data.answers.append(produced((0, 8)))
    world.send(0)
    world.producer.commit_transaction(1)
    assert world.data.sent[1] == ("Produce", [("t", 0, 3)]), "the sequence goes on"
    assert [name for name, _ in world.control.sent] == ["AddPartitionsToTxn", "EndTxn"]


def test_what_each_transaction_writes_to_is_registered_with_what_it_writes_to_first(world: World) -> None:
    world.producer._in_each = [("t", 2)]
    for sequence in (0, 1):
        world.control.answers += [added(partitions=2), added(), simple()]
        world.data.answers += [produced((0, 5)), produced((0, 0), (0, 0), (0, 7)), produced((0, 0), (0, 6))]
        world.send(0)
        world.producer.flush(1)
        world.send(2)
        world.producer.flush(1)
        world.send(1)
        world.producer.commit_transaction(1)
        assert [name for name, _ in world.control.sent] == ["AddPartitionsToTxn"] * 2 + ["EndTxn"]
        assert world.data.sent[1] == ("Produce", [("t", 2, sequence)])
        world.control.sent.clear()
        world.data.sent.clear()
        world.producer.begin_transaction()
    world.producer.commit_transaction(1)
    assert world.control.sent == [], "where nothing is written, nothing is registered"


def test_each_request_has_one_batch_of_a_partition(world: World) -> None:
    world.control.answers.append(added())
    world.data.answers += [produced((0, 0)), produced((0, 1)), produced((0, 2))]
    for _ in range(3):
        world.send()
    world.producer.flush(1)
    assert [sent for _, sent in world.data.sent] == [[("t", 0, 0)], [("t", 0, 1)], [("t", 0, 2)]]
    assert world.told == [(None, 0), (None, 1), (None, 2)]


def test_what_a_broker_that_does_not_lead_has_not_taken_goes_to_the_one_that_does_in_order(
    world: World,
) -> None:
    """Two batches are on their way; the first is refused, and the second, without it, is out of order; a
    third waits behind them."""
    world.control.answers.append(added())
    world.data.answers += [
        produced((KafkaError.NOT_LEADER_FOR_PARTITION, -1)),
        produced((KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)),
    ]
    world.send()
    world.send()
    world.producer._batches._send(outside_deadline())
    world.send()
    world.producer._batches.take_answers()
    world.leaders["t", 0] = 2
    world.lines[TWO, DATA].answers += [produced((0, 4)), produced((0, 5)), produced((0, 6))]
    assert world.producer.flush(5) == 0
    assert [sent for _, sent in world.lines[TWO, DATA].sent] == [[("t", 0, 0)], [("t", 0, 1)], [("t", 0, 2)]]
    assert world.told == [(None, 4), (None, 5), (None, 6)]
    assert len(world.data.sent) == 2


def outside_deadline() -> Any:
    return Deadline(5)


def test_a_sequence_that_is_out_of_order_by_itself_is_an_error(world: World) -> None:
    world.control.answers.append(added())
    world.data.answers.append(produced((KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)))
    world.send()
    world.producer.flush(1)
    assert world.told == [(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]


def test_a_transaction_that_is_still_being_completed_is_waited_for(world: World, clock: list[float]) -> None:
    busy = added(KafkaError.CONCURRENT_TRANSACTIONS)
    world.control.answers += [busy, busy, busy, added(KafkaError.UNKNOWN_TOPIC_OR_PART), added()]
    world.data.answers.append(produced((0, 0)))
    world.send()
    assert world.producer.flush(1) == 0
    assert clock[0] - 100 < 0.05
    assert len(world.data.sent) == 1, "nothing was sent before it was registered"


def test_a_coordinator_that_has_moved_is_looked_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerConnections, "any", lambda _, *asked: world.control.ask(*asked))
    found = struct.pack(">ih", 0, 0) + text(None) + struct.pack(">i", 2) + text("two") + struct.pack(">i", 2)
    world.control.answers += [added(KafkaError.NOT_COORDINATOR), found]
    world.lines[TWO, CONTROL].answers.append(added())
    world.data.answers.append(produced((0, 0)))
    world.send()
    assert world.producer.flush(1) == 0
    assert [name for name, _ in world.lines[TWO, CONTROL].sent] == ["AddPartitionsToTxn"]


@pytest.mark.parametrize("error", [KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.INVALID_PRODUCER_ID_MAPPING])
def test_whoever_is_fenced_has_ended(world: World, error: int) -> None:
    world.control.answers.append(added(error))
    world.send()
    with pytest.raises(KafkaException) as caught:
        world.producer.flush(1)
    assert caught.value.args[0].fatal()
    with pytest.raises(KafkaException):
        world.producer.abort_transaction(1)
    with pytest.raises(KafkaException):
        world.producer.begin_transaction()
    with pytest.raises(KafkaException):
        world.send()


def test_topics_that_may_not_be_written_are_named(world: World) -> None:
    world.control.answers.append(added(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    world.send()
    with pytest.raises(Refused) as caught:
        world.producer.flush(1)
    assert caught.value.topics == ["t"] and "(t)" in caught.value.error.str()


@pytest.mark.parametrize("answer", [None, simple(KafkaError.INVALID_TXN_STATE)])
def test_an_end_whose_outcome_is_not_known_is_not_asked_for_again(world: World, answer: bytes | None) -> None:
    world.control.answers += [added(), answer, simple()]
    world.data.answers.append(produced((0, 0)))
    world.send()
    with pytest.raises(KafkaException):
        world.producer.commit_transaction(1)
    with pytest.raises(KafkaException):
        world.producer.abort_transaction(1)
    assert [name for name, _ in world.control.sent] == ["AddPartitionsToTxn", "EndTxn"]


def test_what_was_refused_in_part_is_not_committed_whoever_looks_at_its_reports(world: World) -> None:
    """Mappings are produced behind the flush that their records were waited for with: the commit itself sends
    them."""
    world.control.answers += [added(), added(topic="m"), simple()]
    world.producer._brokers._leaders["m", 0] = 1
    world.data.answers += [produced((0, 0)), produced((KafkaError.NOT_ENOUGH_REPLICAS, -1), topic="m")]
    world.send()
    assert world.producer.flush(1) == 0
    world.producer.produce("m", b"mapping", None, 0)
    with pytest.raises(KafkaException) as caught:
        world.producer.commit_transaction(1)
    assert caught.value.args[0].code() == KafkaError.NOT_ENOUGH_REPLICAS
    with pytest.raises(KafkaException):
        world.producer.abort_transaction(1)
    assert [name for name, _ in world.control.sent] == ["AddPartitionsToTxn"] * 2, "no end of any kind"


def test_a_connection_that_breaks_with_records_on_their_way_ends_the_producer(world: World) -> None:
    world.control.answers.append(added())
    world.data.answers.append(None)
    world.send()
    with pytest.raises(KafkaException):
        world.producer.flush(1)
    with pytest.raises(KafkaException):
        world.producer.commit_transaction(1)
    assert world.told == [], "whether it was taken nobody knows"


def test_a_transaction_with_nothing_in_it_is_not_ended(world: World) -> None:
    world.producer.commit_transaction(1)
    world.producer.begin_transaction()
    world.producer.abort_transaction(1)
    assert world.control.sent == []


def test_an_abort_waits_for_what_is_on_its_way(world: World) -> None:
    """It would come into the next transaction."""
    world.control.answers.append(added())
    world.send()
    world.producer._batches._send(outside_deadline())
    world.data.answers.append(produced((0, 0)))
    world.control.answers.append(simple())
    world.producer.abort_transaction(5)
    assert world.told == [(None, 0)]
    assert [name for name, _ in world.control.sent] == ["AddPartitionsToTxn", "EndTxn"]


def test_a_producer_that_forgot_records_is_not_used_again(world: World) -> None:
    """They have had their numbers in the partition's sequence."""
    world.send()
    world.producer.abort_transaction(1)
    with pytest.raises(KafkaException, match="has forgotten records"):
        world.producer.begin_transaction()


def test_single_records_become_one_batch_with_a_report_for_each(world: World) -> None:
    world.control.answers += [added(topic="m")]
    world.producer._brokers._leaders["m", 0] = 1
    world.data.answers.append(produced((0, 20), topic="m"))
    offsets: list[Any] = []
    for number in range(3):
        world.producer.produce(
            "m", b"%d" % number, None, 0, lambda error, m: offsets.append((error, m.offset()))
        )
    world.producer.produce("m", b"silent", None, 0)
    assert len(world.producer) == 4
    assert world.producer.flush(1) == 0
    assert offsets == [(None, 20), (None, 21), (None, 22)]
    assert len(world.data.sent) == 1


def hard(size: int, seed: int = 5) -> bytes:
    """What LZ4 makes little smaller, and entropy coding half as large: sixteen letters, in no order."""
    return bytes(b"abcdefghijklmnop"[byte & 15] for byte in random.Random(seed).randbytes(size))


def produce_one(world: World, value: bytes, most_bytes: int | None) -> Any:
    (records,) = encode_records(rows_of([0], [1], [None], [value]).batch, 1 << 30)
    world.producer.produce_batch("t", 0, records, world._report, most_bytes)
    ((batch,),) = world.producer._batches._waiting.values()
    head = next(record_batch.headers(b"".join(map(bytes, batch.pieces))))[1]
    return codec_name(head.codec), batch


def test_a_record_that_is_too_large_as_usual_is_compressed_harder(world: World) -> None:
    """Its source may have taken it because it was compressed well."""
    value = hard(200_000)
    codec, batch = produce_one(world, value, 110_000)
    assert codec == "zstd" and batch.bytes <= 110_000 and not batch.tried
    (record,) = record_batch.decode(b"".join(map(bytes, batch.pieces)))
    assert record.value == value


def test_what_is_small_enough_or_goes_where_no_limit_is_known_is_compressed_once(world: World) -> None:
    assert produce_one(world, b"v" * 9000, 1000)[0] == "lz4"
    world.producer.purge()
    assert produce_one(world, b"v" * 9000, None)[0] == "lz4"


def test_what_nothing_makes_small_enough_says_what_was_tried(world: World) -> None:
    world.control.answers.append(added())
    world.data.answers.append(produced((KafkaError.MSG_SIZE_TOO_LARGE, -1)))
    told: list[str] = []
    (records,) = encode_records(rows_of([0], [1], [None], [hard(200_000)]).batch, 1 << 30)
    world.producer.produce_batch("t", 0, records, lambda error, _: told.append(str(error)), 90_000)
    world.producer.flush(1)
    assert "with lz4" in told[0] and "with zstd" in told[0] and "with gzip" in told[0]
    assert "its source may have compressed it better" in told[0]


def test_an_operator_s_codec_is_kept_to(world: World) -> None:
    world.producer._codec, world.producer._may_choose = "lz4", False
    codec, batch = produce_one(world, hard(200_000), 110_000)
    assert codec in ("lz4", "none") and "with lz4" in batch.tried and "zstd" not in batch.tried


def known(error: int = 0) -> bytes:
    """A DescribeTransactions answer: one id, with one partition."""

    def compact(value: str) -> bytes:
        return bytes([len(value) + 1]) + value.encode()

    head = b"\0" + struct.pack(">i", 0) + b"\2" + struct.pack(">h", error)
    told = compact("l.0") + compact("PrepareCommit") + struct.pack(">iqqh", 60_000, 5, 7, 3)
    return head + told + b"\2" + compact("t") + b"\2" + struct.pack(">i", 4) + b"\0\0\0"


def found_at() -> bytes:
    return struct.pack(">ih", 0, 0) + text(None) + struct.pack(">i", 1) + text("one") + struct.pack(">i", 1)


def test_what_a_coordinator_knows_of_an_id_is_told(world: World) -> None:
    world.control.answers += [found_at(), known(), found_at(), known(105)]
    told = world.producer.known_transaction("l.0", 1)
    assert told == protocol.KnownTransaction("PrepareCommit", 7, 3, 5, frozenset({("t", 4)}))
    assert world.producer.known_transaction("l.0", 1) is None
    assert protocol.describe_transaction("l.0") == b"\2\4l.0\0"


@pytest.mark.parametrize("code", [KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.INVALID_RECORD])
def test_a_partition_that_refuses_is_to_blame_and_no_other(world: World, code: int) -> None:
    world.control.answers.append(added(partitions=2))
    world.data.answers.append(produced((0, 0), (code, -1)))
    world.send(0)
    world.send(1)
    world.producer.flush(1)
    assert {at: error.code() for at, error in world.producer.refused.items()} == {("t", 1): code}


def test_a_partition_without_a_leader_is_named_before_it_is_registered(
    world: World, clock: list[float]
) -> None:
    """Registered, it would keep the transaction from ending, and all others of the transactional id from
    beginning."""
    world.leaders["t", 1] = -1
    world.send(0)
    world.send(1)
    begun = clock[0]
    with pytest.raises(KafkaException):
        world.producer.flush(30)
    assert list(world.producer.refused) == [("t", 1)]
    assert world.control.sent == [] and clock[0] - begun < 10


def test_a_leader_that_can_t_be_reached_is_to_blame_before_its_partitions_are_registered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.leaders["t", 1] = 2
    reach = BrokerConnections.connected

    def connected(of: BrokerConnections, line: Any, deadline: Deadline) -> Any:
        if line[0] == TWO:
            raise broken("refused")
        return reach(of, line, deadline)

    monkeypatch.setattr(BrokerConnections, "connected", connected)
    world.send(0)
    world.send(1)
    with pytest.raises(KafkaException):
        world.producer.flush(30)
    assert list(world.producer.refused) == [("t", 1)] and world.control.sent == []


def test_a_broker_that_goes_on_saying_elsewhere_is_not_believed_for_long(
    world: World, clock: list[float]
) -> None:
    world.control.answers.append(added())
    world.send()
    world.data.answers += [produced((KafkaError.NOT_LEADER_FOR_PARTITION, -1))] * 400
    world.producer.flush(30)
    assert list(world.producer.refused) == [("t", 0)]
    assert len(world.data.answers) > 100


def test_an_unknown_topic_is_named_and_what_goes_with_it_is_not(world: World, clock: list[float]) -> None:
    parts = struct.pack(">ihih", 0, KafkaError.UNKNOWN_TOPIC_OR_PART, 1, KafkaError.OPERATION_NOT_ATTEMPTED)
    answer = struct.pack(">ii", 0, 1) + text("t") + struct.pack(">i", 2) + parts
    world.control.answers += [answer] * 2000
    world.send(0)
    world.send(1)
    begun = clock[0]
    with pytest.raises(KafkaException):
        world.producer.flush(30)
    assert list(world.producer.refused) == [("t", 0)] and clock[0] - begun < 10


def asking(monkeypatch: pytest.MonkeyPatch, told: OpenTransactions) -> list[list[tuple[str, int]]]:
    """What leaders are asked about, and are told of that."""
    asked: list[list[tuple[str, int]]] = []

    def ask(_: Any, partitions: list[tuple[str, int]], __: Any) -> OpenTransactions:
        asked.append(partitions)
        return told if partitions else OpenTransactions()

    monkeypatch.setattr(open_transactions, "open_transactions", ask)
    return asked


@pytest.mark.parametrize(
    ("told", "goes_on"),
    [
        (OpenTransactions(), True),
        (OpenTransactions({("t", 0): {8: 3}}), True),
        (OpenTransactions({("t", 0): {7: 3, 8: 3}}), False),
        (OpenTransactions({}, {("t", 0): KafkaError(KafkaError.LEADER_NOT_AVAILABLE)}), False),
    ],
    ids=["nothing", "another's", "its own", "not told"],
)
def test_a_leader_that_is_reached_by_another_connection_may_lack_a_marker(
    world: World, monkeypatch: pytest.MonkeyPatch, told: OpenTransactions, goes_on: bool
) -> None:
    """It may have died before it had the marker of the transaction before. Registered and aborted, this one
    would take that one with it. So what is open there is asked first."""
    asked = asking(monkeypatch, told)
    world.control.answers += [added(), simple(), added()]
    world.data.answers.append(produced((0, 5)))
    world.send()
    world.producer.commit_transaction(1)
    assert asked == [[]]
    world.producer._brokers._connections[ONE, DATA] = other = Line()  # type: ignore[assignment]
    world.producer.begin_transaction()
    world.control.sent.clear()
    world.send()
    if goes_on:
        other.answers.append(produced((0, 6)))
        assert world.producer.flush(1) == 0
    else:
        with pytest.raises(KafkaException, match="t-0: .* lacks its marker"):
            world.producer.flush(1)
        assert world.control.sent == [] and other.sent == []
    assert asked[1] == [("t", 0)] and (len(asked) > 10) is not goes_on, "a marker takes a moment"


def test_one_that_is_part_of_each_transaction_may_have_lost_its_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leader leads nothing else, and is not connected before something goes there."""
    asked = asking(monkeypatch, OpenTransactions())
    world.producer._in_each = [("t", 2)]
    world.leaders["t", 2] = 2
    world.control.answers += [added(partitions=2), simple(), added(partitions=2)]
    world.data.answers += [produced((0, 5)), produced((0, 6))]
    world.lines[TWO, DATA].answers.append(produced((0, 0), (0, 0), (0, 7)))
    world.send(0)
    world.send(2)
    world.producer.commit_transaction(1)
    del world.producer._brokers._connections[TWO, DATA]
    world.producer.begin_transaction()
    world.send(0)
    assert world.producer.flush(1) == 0 and asked == [[], [("t", 2)]]


def test_a_partition_that_was_never_written_to_may_have_any_connection(world: World) -> None:
    world.producer._brokers._connections[ONE, DATA] = other = Line()  # type: ignore[assignment]
    world.control.answers.append(added())
    other.answers.append(produced((0, 5)))
    world.send()
    assert world.producer.flush(1) == 0


def test_a_marker_alone_is_put_with_what_each_transaction_has_or_without(world: World) -> None:
    """By that a successor knows what is to be committed."""
    world.producer._in_each = [("t", 2)]
    for in_each in (True, False):
        world.control.answers += [added(partitions=2), simple()]
        world.producer.take_part([("t", 0)], 1, in_each)
        assert world.producer._registered == {("t", 0), *([("t", 2)] if in_each else [])}
        world.producer.abort_transaction(1)
        world.producer.begin_transaction()


def test_what_a_predecessor_has_under_way_is_committed_as_its(world: World) -> None:
    asked: list[bytes] = []

    def ask(api: Api, body: Any, deadline: Any) -> Answer:
        asked.extend(body)
        return Answer(simple())

    world.control.ask = ask  # type: ignore[method-assign]
    world.producer.commit_of_predecessor(41, 3, 1)
    assert asked == [protocol.end("tx", 41, 3, True)]
