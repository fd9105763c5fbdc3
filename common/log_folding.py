"""A logger's lines, of which those that say the same again are counted instead: the first at once, then how
many there were, once a minute.

While a broker is away, each of a process's clients says so at every try to connect, and the library tries
some tens of times a second.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from dataclasses import dataclass

EVERY_S = 60.0
MOST = 1000
"""So many different lines are remembered."""
_OWN = (
    # Which client, which of its threads, how long it took, and how many the library itself has left out.
    (re.compile(r"\[(?:rdkafka|thrd)[^\]]*\]:? ?|rdkafka#\S+"), ""),
    (re.compile(r"\b\d+ ?m?s\b|,? ?\d+ identical error\(s\) suppressed"), ""),
    (re.compile(r"/(?:bootstrap|\d+)(?=[:\]])"), ""),
    (re.compile(r"\s+"), " "),
)


@dataclass(slots=True)
class _Line:
    said_at: float
    left_out: int = 0


class Folding(logging.Filter):
    """Put on a logger, for any number of threads."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        text = record.getMessage()
        now = time.monotonic()
        with self._lock:
            known = self._lines.get(key := _key(text))
            if known is None:
                while len(self._lines) >= MOST:
                    del self._lines[next(iter(self._lines))]
                self._lines[key] = _Line(now)
                return True
            if now - known.said_at < EVERY_S:
                known.left_out += 1
                return False
            if known.left_out:
                record.msg, record.args = (
                    f"{text} ({known.left_out} more like it in {now - known.said_at:.0f} s)",
                    (),
                )
            self._lines[key] = _Line(now)
            return True


def _key(text: str) -> str:
    """What a line says, whoever says it."""
    for pattern, instead in _OWN:
        text = pattern.sub(instead, text)
    return text
