"""The two programs that measure latency, each a process of its own: a producer that keeps a pace, a
read-committed reader that notes arrivals.

    python probe.py produce SERVERS TOPICS PARTITIONS RATE SECONDS SIZE FIRST FILE
    python probe.py read SERVERS TOPICS FILE

TOPICS are names with commas between them, of so many PARTITIONS each. A value begins with the moment it was
made (the monotonic clock, which all processes of a machine share; ns) and a running number, 8 bytes each,
which also chooses the partition, topic by topic. Both programs end on SIGTERM too and
write what they know to FILE: the producer JSON; the reader three arrays of int64 one after the other, made
at, arrived at, number. While it runs, the reader keeps the newest `made at` of each partition in FILE.newest.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import struct
import sys
import time
from array import array
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import TopicMetadata

from common.kafka.wire.batch_sender import Batch, BatchSender
from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.protocol import unsigned
from common.kafka.wire.record_batch import Records, seal
from common.partitions import PartitionName
from common.ports import Deadline

_HEAD = struct.Struct("<qq")
# A record alone costs more than its share of a batch: at thousands a second a client that sends them one by
# one is what is measured.
_TICK_NS = 2_000_000
_LINGER_MS = 1
_MANY = 100
"""Past so many partitions a request for each is what would be measured."""
_NEWEST_EVERY_NS = 50_000_000
_ended = False


def produce(
    servers: str,
    topics: list[str],
    partitions: int,
    rate: float,
    seconds: float,
    size: int,
    first: int,
    file: Path,
) -> None:
    """Make `rate` records/s, those due in a tick together, numbered from `first`."""
    places = [(topic, partition) for topic in topics for partition in range(partitions)]
    producer = _Library(servers) if len(places) <= _MANY else _Batches(servers, places)
    padding = b"v" * (size - _HEAD.size)
    begin = planned = time.monotonic_ns()
    total = round(rate * seconds)
    sent = late = 0
    while sent < total and not _ended:
        now = time.monotonic_ns()
        late = max(late, now - planned)
        due = min(total, int((now - begin) * rate / 1e9) + 1)
        for number in range(sent, due):
            value = _HEAD.pack(now, first + number) + padding
            producer.produce(places[(first + number) % len(places)], value)
        sent = due
        producer.go_on()
        planned = max(planned + _TICK_NS, now)
        time.sleep(max(0, planned - time.monotonic_ns()) / 1e9)
    end = time.monotonic_ns()
    unsent = producer.unsent()
    file.write_text(
        json.dumps({"begin_ns": begin, "end_ns": end, "sent": sent - unsent, "latest_tick_ms": late / 1e6})
    )


class _Library:
    """The client library's producer. Of each partition it makes a request of its own."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": _LINGER_MS})

    def produce(self, place: PartitionName, value: bytes) -> None:
        self._producer.produce(place[0], value, partition=place[1])

    def go_on(self) -> None:
        self._producer.poll(0)

    def unsent(self) -> int:
        return self._producer.flush(60)


class _Batches:
    """Requests of many partitions, as Java's producers make them, a record a batch."""

    def __init__(self, servers: str, places: list[PartitionName]) -> None:
        self._failed: list[KafkaError] = []
        brokers = BrokerConnections({"bootstrap.servers": servers})
        # Of topics that were just made a broker hears one after the other.
        brokers.find_leaders(places, Deadline(300.0))
        self._sender = BatchSender(brokers, None, lambda *_: None, KafkaException)

    def produce(self, place: PartitionName, value: bytes) -> None:
        now, size = int(time.time() * 1000), unsigned(2 * len(value))
        # Attributes, both deltas, no key; the value; no headers.
        record = b"\0\0\0\1" + size + value + b"\0"
        data = pa.py_buffer(unsigned(2 * len(record)) + record)
        pieces = seal(Records(1, now, now, data), "none")
        self._sender.add(Batch(place, pieces, sum(map(len, pieces)), self._reported))

    def _reported(self, error: KafkaError | None, _: int) -> None:
        if error is not None:
            self._failed.append(error)

    def go_on(self) -> None:
        if self._sender.unsettled:
            self._sender.wait(0)
        # As Java's producers do, what comes meanwhile goes together.
        if not self._sender.in_flight:
            self._sender.send(30.0)

    def unsent(self) -> int:
        give_up = time.monotonic() + 60
        while self._sender.unsettled and time.monotonic() < give_up:
            self._sender.wait(1.0)
        return len(self._sender) + len(self._failed)


def read(servers: str, topics: list[str], file: Path) -> None:
    """Note every record of topics from their beginning, once there are such topics."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "probe",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
        }
    )
    there = dict[str, TopicMetadata]()
    while not there.keys() >= set(topics) and not _ended:
        there = consumer.list_topics(timeout=30).topics
        time.sleep(0.05)
    partitions = [(topic, partition) for topic in topics for partition in sorted(there[topic].partitions)]
    place = {at: number for number, at in enumerate(partitions)}
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in partitions])
    made, arrived, numbers = array("q"), array("q"), array("q")
    newest_file = os.open(f"{file}.newest", os.O_CREAT | os.O_WRONLY)
    newest = array("q", [0] * len(partitions))
    noted, written = newest[:], 0
    gc.disable()
    while not _ended:
        # The first is waited for, the others are those that are there: `consume` would wait until it has as
        # many as asked for.
        first = consumer.poll(0.1)
        messages = [] if first is None else [first, *consumer.consume(10_000, 0)]
        now = time.monotonic_ns()
        for message in messages:
            if message.error() is not None:
                sys.exit(str(message.error()))
            at, number = _HEAD.unpack_from(message.value() or b"")
            made.append(at)
            arrived.append(now)
            numbers.append(number)
            where = place[message.topic() or "", message.partition() or 0]
            newest[where] = max(newest[where], at)
        # Also when nothing came: the last of a phase may have come right after a note.
        if noted != newest and now - written > _NEWEST_EVERY_NS:
            os.pwrite(newest_file, newest.tobytes(), 0)
            noted, written = newest[:], now
    with file.open("wb") as output:
        for values in (made, arrived, numbers):
            values.tofile(output)


def _end(*_: object) -> None:
    global _ended
    _ended = True


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    if sys.argv[1] == "produce":
        servers, names, partitions, rate, seconds, size, first, file = sys.argv[2:]
        topics = names.split(",")
        produce(
            servers, topics, int(partitions), float(rate), float(seconds), int(size), int(first), Path(file)
        )
    else:
        servers, names, file = sys.argv[2:]
        read(servers, names.split(","), Path(file))
