"""The floor: copies a topic with the plainest loop there is, one process, one phase, no guarantees. What any
copier in Python pays.

python copy_loop.py SOURCE TARGET TOPIC DESTINATION PARTITIONS LINGER_MS
"""

from __future__ import annotations

import gc
import sys

from confluent_kafka import Consumer, Producer, TopicPartition

_MANY = 10_000


def main(source: str, target: str, topic: str, destination: str, partitions: int, linger_ms: int) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": source,
            "group.id": "floor",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
            # With its queue full, librdkafka fetches no more for a second: longer than it takes to empty the
            # queue.
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    producer = Producer(
        {
            "bootstrap.servers": target,
            "linger.ms": linger_ms,
            "compression.type": "lz4",
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    # As in the lanes: messages come by the thousand, and none is part of a cycle.
    gc.disable()
    produce, poll = producer.produce, producer.poll
    while True:
        # The first is waited for, the others are those that are there: a batch must not wait to be full.
        first = consumer.poll(1.0)
        if first is None:
            continue
        for message in (first, *consumer.consume(_MANY, 0)):
            error = message.error()
            if error is not None:
                sys.exit(str(error))
            key, value, partition = message.key(), message.value(), message.partition() or 0
            timestamp, headers = message.timestamp()[1], message.headers()
            while True:
                try:
                    produce(destination, value, key, partition, timestamp=timestamp, headers=headers)
                    break
                except BufferError:
                    poll(0.05)
        poll(0)


if __name__ == "__main__":
    source, target, topic, destination, partitions, linger_ms = sys.argv[1:]
    main(source, target, topic, destination, int(partitions), int(linger_ms))
