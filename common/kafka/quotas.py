"""For how long brokers have wanted to be left alone by this process, since quotas of its users were used
up."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from confluent_kafka import ThrottleEvent


@dataclass
class Throttled:
    """Sums in ms of what each answer said: of the connections of our own, and of the client library's."""

    own_ms: int = 0
    library_ms: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def all_ms(self) -> int:
        return self.own_ms + self.library_ms

    def add(self, ms: int) -> None:
        with self._lock:
            self.own_ms += ms

    def told(self, event: ThrottleEvent) -> None:
        """A client's `throttle_cb`."""
        with self._lock:
            self.library_ms += round(event.throttle_time * 1000)


THROTTLED = Throttled()
