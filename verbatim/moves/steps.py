"""Steps of a move, one after the other: each says what it found, or why the move stops there. Knows nothing
of Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from common.errors import VerbatimError
from common.ports import Deadline

LOOK_S = 0.25


class Doubt(VerbatimError):
    """Something is not as a move needs it. Nothing is undone; once it is mended, the command goes on from
    there."""


@dataclass
class Step:
    """`state`: done, kept (a former run's result still holds) or refused. `found` is what it came to, for
    people."""

    name: str
    state: Literal["done", "kept", "refused"] = "done"
    seconds: float = 0.0
    found: list[str] = field(default_factory=list)

    def line(self) -> str:
        mark = "REFUSED" if self.state == "refused" else "ok"
        kept = " (from the last run)" if self.state == "kept" else ""
        return f"{mark:7} {self.name:9} {self.seconds:6.1f} s  {'; '.join(self.found)}{kept}"


class Steps:
    """The report as it grows. `tell` is called with each step that is over."""

    def __init__(self, tell: Callable[[Step], None] = lambda step: None) -> None:
        self.steps: list[Step] = []
        self._tell = tell
        self._began = self._last = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def waited(self) -> float:
        """Seconds since the last step that `over` has told, or the beginning."""
        return time.monotonic() - self._last

    def over(self, name: str, state: Literal["done", "kept", "refused"], found: list[str]) -> None:
        """A step that others were under way beside: it has lasted since the last one."""
        step = Step(name, state, self.waited, found)
        self._last = time.monotonic()
        self.steps.append(step)
        self._tell(step)

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """One step. What it raises is its refusal, and is raised on."""
        step, began = Step(name), time.monotonic()
        try:
            yield step
        except Exception as error:
            step.state = "refused"
            step.found = [str(error)]
            raise
        finally:
            step.seconds = time.monotonic() - began
            self.steps.append(step)
            self._tell(step)

    def as_json(self) -> list[dict[str, Any]]:
        return [{**asdict(step), "seconds": round(step.seconds, 3)} for step in self.steps]


def wait_for(look: Callable[[], list[str]], deadline: Deadline, pause_s: float = LOOK_S) -> None:
    """Look until nothing stands in the way any more. Raises Doubt with what still does at the deadline."""
    while True:
        obstacles = look()
        if not obstacles:
            return
        if deadline.passed():
            raise Doubt(listed(obstacles))
        time.sleep(min(pause_s, max(0.0, deadline.left())))


def listed(texts: list[str], most: int = 5) -> str:
    """Some of them, and how many more there are."""
    more = len(texts) - most
    return "; ".join(texts[:most]) + (f"; and {more} more" if more > 0 else "")
