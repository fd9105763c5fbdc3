"""Ctrl-C, SIGTERM and a closed terminal end a command, but never in the middle of a client's call.

One that is interrupted may leave a lock of its futures taken. The client's threads wait for that, and who
closes the client for these: for ever.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """While entered, the first of these signals raises KeyboardInterrupt in the main thread: at once, or at
    the end of `later`. Those that follow do nothing."""

    def __init__(self) -> None:
        self._came = self._held_back = False

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._interrupt) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ignore(self) -> None:
        """From now on none does anything."""
        self._came = True

    @contextmanager
    def later(self) -> Iterator[None]:
        """Around what must not be interrupted."""
        before, self._held_back = self._came, True
        try:
            yield
        finally:
            self._held_back = False
        if self._came and not before:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._came:
            self._came = True
            if not self._held_back:
                raise KeyboardInterrupt
