"""Fills source topics with records of a given shape; the same records every time. Measures nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from bench.clusters import Broker

HEADERS: list[tuple[str, str | bytes | None]] = [
    ("trace", b"0123456789abcdef"),
    ("type", b"order-created"),
    ("schema", b"17"),
]
_VALUES_BYTES = 32 << 20
_SEED = 7
ROOM_S = 0.05
"""How long to wait for room in the client's queue."""
RUN_BYTES = 500_000
"""Of values, so that with keys and headers it fits into one batch."""


@dataclass(frozen=True)
class Shape:
    """What the records of a topic are like.

    size: bytes of a value. fill: "half" (half random, half one letter, so that compression finds about half
    to do), "random" (nothing for it to do), "text" (of which little is left) or "json" (an object with an
    email). headers: three short ones, or none. topics: how many, each with so many partitions. long: so many
    records that they are another shape, by name only. batch_bytes: the source's batches as their producer
    fills them, before compression (0: about a megabyte). batch_records: so many records in each of them at
    most, and uncompressed where that is one (0: as many as there is room for).
    """

    size: int
    records: int
    partitions: int = 4
    headers: bool = False
    fill: str = "half"
    topics: int = 1
    long: bool = False
    batch_bytes: int = 0
    batch_records: int = 0

    @property
    def name(self) -> str:
        """As tables and topics call it."""
        size = f"{self.size // 1000}KB" if self.size >= 1000 else f"{self.size}B"
        parts = [size, f"{self.topics}x{self.partitions}p" if self.topics > 1 else f"{self.partitions}p"]
        if self.headers:
            parts.append("headers")
        if self.fill != "half":
            parts.append(self.fill)
        if self.long:
            parts.append("long")
        if self.batch_bytes:
            parts.append(f"in-{self.batch_bytes >> 10}KiB")
        if self.batch_records:
            parts.append(f"by-{self.batch_records}")
        return "-".join(parts)

    def times(self, share: float) -> Shape:
        """The same with so many times the records."""
        return replace(self, records=round(self.records * share))


def values(shape: Shape) -> list[bytes]:
    """Some different values, enough that no compressor's window spans them all."""
    rng = random.Random(_SEED)
    count = max(16, min(1000, _VALUES_BYTES // shape.size))
    return [_value(shape, rng) for _ in range(count)]


def _value(shape: Shape, rng: random.Random) -> bytes:
    if shape.fill == "random":
        return rng.randbytes(shape.size)
    if shape.fill == "half":
        half = shape.size // 2
        return rng.randbytes(half) + b"v" * (shape.size - half)
    if shape.fill == "json":
        known = b'{"customer":%d,"email":"customer%d@example.org","amount":%d.50,"country":"DE","note":"' % (
            rng.randrange(1_000_000), rng.randrange(1_000_000), rng.randrange(10_000),
        )  # fmt: skip
        note = shape.size - len(known) - len(b'"}')
        return known + rng.randbytes(note // 2 + 1).hex().encode()[:note] + b'"}'
    text = bytearray()
    while len(text) < shape.size:
        amount, customer = rng.randrange(10_000), rng.randrange(1_000_000)
        text += b'{"customer":%d,"amount":%d,"currency":"EUR","state":"created","country":"DE"},' % (
            customer,
            amount,
        )
    return bytes(text[: shape.size])


def runs(
    shape: Shape, topics: Sequence[str], count: int
) -> Iterator[tuple[str, int, list[dict[str, bytes]]]]:
    """So many records, spread over the partitions of the topics, as (topic, partition, run): a run makes a
    batch, and is as `Producer.produce_batch` takes it.

    However many partitions there are, each gets the same: every value in turn, and batches as large. Were
    records dealt out one by one, each of a thousand partitions would have one and the same value in all of
    them, of which compression leaves nothing, in batches of a few.
    """
    some = values(shape)
    places = [(topic, p) for p in range(shape.partitions) for topic in topics]
    run = max(1, RUN_BYTES // shape.size)
    for begin in range(0, -(-count // len(places)), run):
        for number, (topic, partition) in enumerate(places):
            its = (count + len(places) - 1 - number) // len(places)
            turns = range(begin, min(begin + run, its))
            yield (
                topic,
                partition,
                [{"key": b"key-%d" % (turn % 10_000), "value": some[turn % len(some)]} for turn in turns],
            )


FIRST_BYTES = 64 << 10
"""What each partition has before anything is measured. A broker's first entry in the index of a new log makes
a page of that file, which takes long: with 1,000 partitions of 2,000 records each it was the greatest single
part of what the target broker did. The entry comes after 4 KiB, as compressed."""


class Backlog:
    """Source topics whose records are written but invisible, in transactions that are open until `warm` and
    `reveal`.

    So a copier can be started on it, shown to work by the few records before them, be given so many to warm
    up with, and then all the others at once. Had it the backlog from its start, whichever part of it comes up
    first would run alone: not what a copier does when it runs.
    """

    def __init__(self, broker: Broker, shape: Shape, topic: str, warm: int = 0) -> None:
        self.shape, self.warm_records = shape, warm
        self.topics = [f"{topic}-{i}" for i in range(shape.topics)] if shape.topics > 1 else [topic]
        self.pattern = f"{topic}-.*" if shape.topics > 1 else topic
        """As copiers are told of them."""
        self.first = (FIRST_BYTES // shape.size + 1) * shape.partitions * shape.topics
        """How many records can be seen before `reveal`."""
        # Two, for a producer has one transaction at a time.
        self._warming, self._producer = (
            _producer(broker, f"{topic}-{part}", shape) for part in ("warm", "all")
        )
        broker.create(self.topics, shape.partitions)

    def fill(self) -> None:
        """Write visible records to each partition, then the invisible ones, round about the partitions.
        Raises RuntimeError."""
        self._warming.init_transactions(60)
        self._producer.init_transactions(60)
        self._write(self._producer, self.first)
        self._producer.commit_transaction(60)
        self._write(self._warming, self.warm_records)
        self._write(self._producer, self.shape.records)

    def warm(self) -> None:
        """Commit the first part: what there is to warm up with is there now, and nothing behind it."""
        self._warming.commit_transaction(60)

    def reveal(self) -> None:
        """Commit: every record is there now."""
        self._producer.commit_transaction(60)

    def _write(self, producer: Producer, records: int) -> None:
        """What fails ends the transaction, and is told by its commit."""
        producer.begin_transaction()
        headers = HEADERS if self.shape.headers else None
        for topic, partition, run in runs(self.shape, self.topics, records):
            write(producer, topic, partition, run, headers)
        if producer.flush(120):
            raise RuntimeError(f"{self.pattern} could not be filled in time")


def write(
    producer: Producer,
    topic: str,
    partition: int,
    run: list[dict[str, Any]],
    headers: list[tuple[str, str | bytes | None]] | None = None,
) -> None:
    """Hand over a run, as fast as there is room for it. Raises KafkaException."""
    while run and headers is None:
        producer.produce_batch(topic, run, partition)
        run = [record for record in run if "_error" in record]
        for record in run:
            if (error := record.pop("_error")).code() != KafkaError._QUEUE_FULL:
                raise KafkaException(error)
        if run:
            producer.poll(ROOM_S)
    # The client takes no headers with a run.
    for record in run:
        while True:
            try:
                producer.produce(topic, **record, partition=partition, headers=headers)
                break
            except BufferError:
                producer.poll(ROOM_S)


def _producer(broker: Broker, transactional_id: str, shape: Shape) -> Producer:
    return Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 900_000,
            "linger.ms": 20,
            "compression.type": "none" if shape.batch_records == 1 else "lz4",
            "batch.size": shape.batch_bytes or 2 * RUN_BYTES,
            "batch.num.messages": shape.batch_records or 10_000,
            "message.max.bytes": 2 << 20,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 131_072,
        }
    )
