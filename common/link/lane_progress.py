"""What a lane tells its driver of its progress: rows of a kind each, and their way to JSON and back. Pure.

A row lives for an epoch, and both ends are of one release: nothing here is a persisted format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import orjson

from common.link.lane_work import Work

KINDS: dict[str, type[Row]] = {}


class Row:
    """A kind with a field that JSON does not have brings its own `to_json` and `from_json`."""

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls

    def to_json(self) -> dict[str, Any]:
        return vars(self)

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Self:
        return cls(**said)


@dataclass(frozen=True)
class Refused(Row):
    """The lane may not do what it must: another epoch would end in the same way."""

    detail: str


@dataclass(frozen=True)
class PartitionHalted(Row):
    """A source partition stands still, and an operator must look at it."""

    topic: str
    partition: int
    detail: str


@dataclass(frozen=True)
class PartitionPaused(Row):
    """A source partition is not copied up to the end of a bounded run, since an operator has paused it."""

    topic: str
    partition: int


@dataclass(frozen=True)
class FrameRefused(Row):
    """The staging topic takes no frame of a source partition: it is left out of the next plans."""

    topic_id: str
    partition: int


@dataclass(frozen=True)
class Unfinished(Row):
    """The lane ended before all was done that it was planned to do."""


@dataclass(frozen=True)
class Done(Row):
    """What the lane has done."""

    work: Work

    def to_json(self) -> dict[str, Any]:
        return self.work.to_json()

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Self:
        return cls(Work.from_json(said))


def encode(row: Row) -> str:
    return orjson.dumps([type(row).__name__, row.to_json()]).decode()


def decode(text: str) -> Row:
    kind, said = orjson.loads(text)
    return KINDS[kind].from_json(said)
