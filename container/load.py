"""Writes orders to a topic, so many a second, until it is stopped: something to watch being copied
(docker-compose.yml).

Records have a key (the customer), a JSON value, a header and a timestamp of their own. Verifies nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import sys
import threading
import time
import uuid

from confluent_kafka import KafkaError, Message, Producer

TICKS_A_SECOND = 20


def order(number: int, rng: random.Random) -> tuple[str, str]:
    """Key and value of the order with that number."""
    customer = f"customer-{rng.randrange(5000)}"
    items = [
        {"article": rng.randrange(100_000), "count": rng.randrange(1, 5), "cents": rng.randrange(100, 20_000)}
        for _ in range(rng.randrange(1, 4))
    ]
    return customer, json.dumps({"order": number, "customer": customer, "items": items})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=int, default=500, metavar="RECORDS", help="a second")
    parser.add_argument("--count", type=int, metavar="RECORDS", help="stop after so many")
    given = parser.parse_args()
    if given.rate < 1:
        parser.error("--rate must be at least 1")

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    failed: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error.str())

    producer = Producer(
        {"bootstrap.servers": given.bootstrap_servers, "enable.idempotence": True, "compression.type": "lz4"}
    )
    headers = [("run", uuid.uuid4().hex.encode())]
    rng = random.Random(1)
    began, written = time.monotonic(), 0
    for tick in itertools.count(1):
        due = tick * given.rate // TICKS_A_SECOND
        while written < min(due, given.count or due):
            key, value = order(written, rng)
            try:
                producer.produce(
                    given.topic,
                    value,
                    key,
                    timestamp=time.time_ns() // 1_000_000,
                    headers=headers,
                    on_delivery=delivered,
                )
            except BufferError:
                break  # the cluster is slower than the rate: what is due is written later
            written += 1
        producer.poll(0)
        if failed or (given.count and written >= given.count):
            break
        if stop.wait(max(0.0, began + tick / TICKS_A_SECOND - time.monotonic())):
            break
    left = producer.flush(10)
    if failed or left:
        print(f"error: {failed[0] if failed else f'{left} records are not acknowledged'}", file=sys.stderr)
        return 1
    print(f"{written} records written to {given.topic}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
