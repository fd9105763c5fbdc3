"""What the copying takes from outside: Kafka's clients, the clock, threads and their locks. All in one place;
decides nothing.

Everything between the driver's loop and a record's delivery reaches the world through these names, looked up
at each call and never for each record. tests/simulation puts others in their place, and runs the same code
under a scheduler of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from contextvars import copy_context
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer

from common.ports.pending import as_raised
from common.ports.reconnecting_admin import shared_admin

__all__ = [
    "Condition",
    "Consumer",
    "Deadline",
    "Lock",
    "Producer",
    "monotonic",
    "shared_admin",
    "sleep",
    "thread",
    "wait",
]

monotonic = time.monotonic
sleep = time.sleep
Lock = threading.RLock
Condition = threading.Condition


class Producer(confluent_kafka.Producer):
    """The client's, of which what ends it comes as the same KafkaException from every call."""

    def flush(self, *args: Any) -> int:
        with as_raised():
            return super().flush(*args)


def thread(target: Callable[[], None], name: str) -> threading.Thread:
    """A thread, not started yet, that does not keep the process alive; what it logs is of the same link as
    what its maker does."""
    return threading.Thread(target=copy_context().run, args=(target,), name=name, daemon=True)


class Deadline:
    """A point in time by which a chain of bounded calls must be over; one object is passed through all of
    them."""

    def __init__(self, seconds: float) -> None:
        self.at = monotonic() + seconds

    def left(self, most: float = float("inf")) -> float:
        """Seconds left, never below 0, and never above `most`."""
        return max(0.0, min(self.at - monotonic(), most))

    def passed(self) -> bool:
        return monotonic() >= self.at
