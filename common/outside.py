"""What the copying takes from outside: Kafka's clients, the clock, threads and their locks. All in one place; decides nothing.

Everything between the driver's loop and a record's delivery reaches the world through these names, looked up at each call and never
for each record. tests/simulation puts others in their place, and runs the same code under a scheduler of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import wait

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

__all__ = [
    "AdminClient",
    "Condition",
    "Consumer",
    "Lock",
    "Producer",
    "monotonic",
    "sleep",
    "thread",
    "wait",
]

monotonic = time.monotonic
sleep = time.sleep
Lock = threading.RLock
Condition = threading.Condition


def thread(target: Callable[[], None], name: str) -> threading.Thread:
    """A thread, not started yet, that does not keep the process alive."""
    return threading.Thread(target=target, name=name, daemon=True)
