"""Fills source topics with records of a given shape; the same records every time. Measures nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from confluent_kafka import Producer

from bench.clusters import Broker

HEADERS: list[tuple[str, str | bytes | None]] = [
    ("trace", b"0123456789abcdef"),
    ("type", b"order-created"),
    ("schema", b"17"),
]
_VALUES_BYTES = 32 << 20
_SEED = 7


@dataclass(frozen=True)
class Shape:
    """What the records of a topic are like.

    size: bytes of a value. fill: "half" (half random, half one letter, so that compression finds about half to do), "random" (nothing
    for it to do) or "text" (JSON, of which little is left). headers: three short ones, or none.
    """

    size: int
    records: int
    partitions: int = 4
    headers: bool = False
    fill: str = "half"

    @property
    def name(self) -> str:
        """As tables and topics call it."""
        size = f"{self.size // 1000}KB" if self.size >= 1000 else f"{self.size}B"
        parts = [size, f"{self.partitions}p"]
        if self.headers:
            parts.append("headers")
        if self.fill != "half":
            parts.append(self.fill)
        return "-".join(parts)

    def times(self, share: float) -> Shape:
        """The same with so many times the records."""
        return replace(self, records=round(self.records * share))

    @property
    def topic(self) -> str:
        return f"bench-{self.name}"


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
    text = bytearray()
    while len(text) < shape.size:
        amount, customer = rng.randrange(10_000), rng.randrange(1_000_000)
        text += b'{"customer":%d,"amount":%d,"currency":"EUR","state":"created","country":"DE"},' % (
            customer,
            amount,
        )
    return bytes(text[: shape.size])


def fill(broker: Broker, shape: Shape) -> None:
    """Make the topic and write its records, round about its partitions. Raises RuntimeError when they could not be written."""
    broker.create(shape.topic, shape.partitions)
    failed: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "linger.ms": 20,
            "compression.type": "lz4",
            "batch.size": 500_000,
            "message.max.bytes": 2 << 20,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 131_072,
            "error_cb": lambda error: failed.append(str(error)) if error.fatal() else None,
        }
    )
    some = values(shape)
    headers = HEADERS if shape.headers else None
    topic, partitions, produce = shape.topic, shape.partitions, producer.produce
    for i in range(shape.records):
        while True:
            try:
                produce(topic, some[i % len(some)], b"key-%d" % (i % 10_000), i % partitions, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
        if not i % 1000:
            producer.poll(0)
    if producer.flush(120) or failed or broker.visible(topic, partitions)() != shape.records:
        raise RuntimeError(f"topic {topic} could not be filled {failed}")
