"""Frames on their way from the lane's consumer to a delivery. A queue between two threads; judges nothing."""

from __future__ import annotations

from collections import deque

from common import ports
from common.kafka.client.clients import Received


class Inbox:
    """Frames on their way from the lane's consumer to a delivery, counted in bytes."""

    def __init__(self) -> None:
        self._items: deque[Received] = deque()
        self._arrived = ports.Condition()
        self.bytes = 0
        self.generation = 0

    def put(self, messages: list[Received], generation: int) -> None:
        """Add messages read since the position was set for the `generation`th time; older ones are
        dropped."""
        with self._arrived:
            if generation == self.generation:
                self._items.extend(messages)
                self.bytes += sum(map(len, messages))
                self._arrived.notify()

    def take(self, timeout: float) -> Received | None:
        with self._arrived:
            if not self._items and timeout > 0:
                self._arrived.wait(timeout)
            if not self._items:
                return None
            message = self._items.popleft()
            self.bytes -= len(message)
            return message

    def restart(self) -> int:
        """Forget what is in here and what is still on its way; the new generation."""
        with self._arrived:
            self._items.clear()
            self.bytes = 0
            self.generation += 1
            return self.generation

    def wake(self) -> None:
        with self._arrived:
            self._arrived.notify()
