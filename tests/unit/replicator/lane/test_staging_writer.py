"""How frames reach the producer: what is held until those before it have arrived, and in which order it
leaves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.errors import LinkRefused
from common.kafka.client import clients
from common.link.partitioning import staging_partition
from replicator.lane import staging_writer
from replicator.lane.partition_copy import CutFrame, PartitionCopy
from replicator.lane.staging_writer import Writer, WriterFailed
from tests.support.strategies import Record, chunk_of

PLAN = SimpleNamespace(
    staging_producer={}, staging_topic="l.staging", staging_partitions=2, positions_topic="l.positions"
)


class Client:
    """A producer that acknowledges when a test says so, and one message when it is waited for."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[tuple[str, bytes]]]] = []
        self.unreported: list[tuple[int, Callable[[KafkaError | None, Any], None]]] = []
        self.arrived: list[int] = []
        """Partitions of which the first message in flight has arrived, in order."""

    def produce(
        self, topic: str, value: Any, key: Any, partition: int, on_delivery: Any, headers: Any
    ) -> None:
        self.sent.append((partition, headers))
        self.unreported.append((partition, on_delivery))

    def list_topics(self, topic: str, timeout: float) -> None:
        pass

    def poll(self, timeout: float) -> int:
        if timeout and not self.arrived:
            self.arrived = [p for p, _ in self.unreported[:1]]
        for partition in self.arrived:
            at = next(i for i, (p, _) in enumerate(self.unreported) if p == partition)
            self.unreported.pop(at)[1](None, None)
        self.arrived = []
        return 0

    def flush(self, timeout: float) -> int:
        self.arrived = [p for p, _ in self.unreported]
        return self.poll(timeout)

    def starts(self, partition: int) -> list[int]:
        return [int(dict(headers)["start"]) for p, headers in self.sent if p == partition]


class Term:
    ended = False

    def look(self, now: float) -> bool:
        return True

    def over(self, now: float) -> bool:
        return self.ended


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    monkeypatch.setattr(clients, "producer", lambda *_, **__: made)
    monkeypatch.setattr(staging_writer, "BATCH_BYTES", 2000)
    monkeypatch.setattr(staging_writer, "IN_FLIGHT", 2)
    return made


def copying(partition: int) -> PartitionCopy:
    return PartitionCopy("c", "orders", "id", partition, "w", 0, 0)


def at(staging: int) -> PartitionCopy:
    """A source partition whose frames go to this staging partition."""
    return next(copying(p) for p in range(99) if staging_partition("orders", p, 2) == staging)


def cuts(copy: PartitionCopy, count: int, size: int = 1500) -> list[CutFrame]:
    found = []
    for i in range(count):
        copy.take_chunk(chunk_of([Record(i, v=b"v" * size)]))
        found += copy.cut(True)
    return found


def send(target: Writer, copy: PartitionCopy, found: list[CutFrame]) -> None:
    for cut in found:
        target.send(copy, cut)


def test_frames_wait_here_while_enough_is_in_flight_to_their_partition_and_leave_in_order(
    client: Client,
) -> None:
    target = Writer(PLAN, Term(), None)  # type: ignore[arg-type]
    one, other = at(0), at(1)
    found = cuts(one, 6)
    send(target, one, found[:5])
    send(target, other, cuts(other, 1))
    assert (client.starts(0), client.starts(1)) == ([0, 1], [0])
    assert target.holds()
    client.arrived = [0]
    target.poll()
    assert client.starts(0) == [0, 1, 2]
    assert one.acked == 1
    client.arrived = [0]
    target._poll(0)  # as happens while the client's own queue is full
    target.send(one, found[5])
    assert target.flush(5.0)
    assert client.starts(0) == [0, 1, 2, 3, 4, 5]
    assert (one.acked, other.acked, target.holds()) == (6, 1, False)


def test_small_frames_are_not_held(client: Client) -> None:
    """They go into one batch, however many there are."""
    target = Writer(PLAN, Term(), None)  # type: ignore[arg-type]
    copy = at(0)
    send(target, copy, cuts(copy, 2, 1))
    assert not target.holds()
    assert client.starts(0) == [0, 1]


def test_a_frame_that_is_held_while_its_copy_goes_back_is_left_out(client: Client) -> None:
    target = Writer(PLAN, Term(), None)  # type: ignore[arg-type]
    copy = at(0)
    send(target, copy, cuts(copy, 3))
    copy.rewind(1)
    copy.take_chunk(chunk_of([Record(1, v=b"again"), Record(2)]))
    send(target, copy, copy.cut(True))
    assert target.flush(5.0)
    assert client.starts(0) == [0, 1, 1]
    assert copy.acked == 3


@pytest.mark.parametrize("position", [False, True], ids=["staging", "positions"])
def test_what_may_not_be_written_is_named(client: Client, position: bool) -> None:
    """Also where the report of a frame that failed after it comes in the same call."""
    target = Writer(PLAN, Term(), None)  # type: ignore[arg-type]
    copy = at(0)
    send(target, copy, cuts(copy, 1))
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    frame = client.unreported.pop()[1]
    if position:
        target._reported("l.positions", denied, None)
        frame(KafkaError(KafkaError._FATAL), None)
    else:
        frame(denied, None)
    with pytest.raises(
        LinkRefused, match=f"writing to l.{'positions' if position else 'staging'}: .*grant WRITE"
    ):
        target.poll()


def test_what_may_not_be_written_is_named_where_no_report_comes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_writer, "REPORT_S", 0.0)
    words = "ProduceRequest for l.positions [0] with 1 message(s) failed: Broker: Topic authorization failed: unable to satisfy gap-less guarantee"

    def ended(timeout: float) -> int:
        raise KafkaException(KafkaError(KafkaError._GAPLESS_GUARANTEE, words, True))

    monkeypatch.setattr(client, "poll", ended)
    target = Writer(PLAN, Term(), None)  # type: ignore[arg-type]
    with pytest.raises(LinkRefused, match=r"writing to l\.positions: .*grant WRITE"):
        target.poll()


def test_frames_that_nobody_acknowledges_end_the_epoch(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those to a partition that acknowledges some, nor a partition to which nothing is on its way."""
    now = 1000.0
    monkeypatch.setattr(ports, "monotonic", lambda: now)
    said: list[str] = []
    halts = SimpleNamespace(replan=said.append)
    target = Writer(PLAN, Term(), halts)  # type: ignore[arg-type]
    one, other = at(0), at(1)
    send(target, one, cuts(one, 2))
    now += 59.0
    client.arrived = [0]
    target.poll()
    now += 59.0
    send(target, other, cuts(other, 1))
    target.poll()
    assert not said
    now += 2.0
    with pytest.raises(
        WriterFailed, match=r"none of 1 frames on their way to l\.staging-0 was acknowledged for 60 s"
    ):
        target.poll()
    assert len(said) == 1


def test_what_is_held_is_bounded_and_given_up_when_the_epoch_ends(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_writer, "HELD_BYTES", 2500)
    term = Term()
    target = Writer(PLAN, term, None)  # type: ignore[arg-type]
    copy = at(0)
    found = cuts(copy, 4)
    send(target, copy, found[:3])
    term.ended = True
    with pytest.raises(WriterFailed, match="staging took no more frames"):
        target.send(copy, found[3])


@pytest.mark.parametrize(
    ("config", "producers"),
    [
        ({}, "none"),
        ({"compression.type": "zstd", "compression.level": "3"}, "none"),
        ({"compression.type": "gzip"}, None),
        ({"compression.type": "none"}, None),
    ],
)
def test_either_frames_are_compressed_or_the_producer_does_what_it_has_been_told_to(
    config: dict[str, str], producers: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[dict[str, str], dict[str, Any]]] = []

    def producer(config: dict[str, str], **own: Any) -> Client:
        made.append((config, own))
        return Client()

    monkeypatch.setattr(clients, "producer", producer)
    Writer(SimpleNamespace(**{**vars(PLAN), "staging_producer": config}), Term(), None)  # type: ignore[arg-type]
    assert [(theirs, own.get("compression_type")) for theirs, own in made] == [(config, producers)]
