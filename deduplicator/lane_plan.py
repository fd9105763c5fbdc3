"""What the deduplicator's driver tells its lanes to do, and what they leave for the next plan. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from common.link.lane_plan import Config, LanePlan, LaneShare
from common.link.lane_progress import Row
from deduplicator.lane.recovery import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingPartition:
    """A staging partition to own: up to `end` in a bounded run, beginning with what `snapshot` knows of
    it."""

    partition: int
    end: int | None
    snapshot: Snapshot

    def to_json(self) -> dict[str, Any]:
        return {"partition": self.partition, "end": self.end, **self.snapshot.to_plan()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StagingPartition:
        return cls(partition=data["partition"], end=data["end"], snapshot=Snapshot.from_plan(data))


@dataclass(frozen=True, kw_only=True)
class DeduplicatorShare(LaneShare):
    """`group`: whose offsets the transactions commit."""

    consumer: Config
    reader: Config
    producer: Config
    group: str
    partitions: list[StagingPartition]

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "partitions": [p.to_json() for p in self.partitions]}


@dataclass(frozen=True, kw_only=True)
class DeduplicatorPlan(LanePlan, DeduplicatorShare):
    """A lane's whole plan."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DeduplicatorPlan:
        return cls(**{**data, "partitions": [StagingPartition.from_json(p) for p in data["partitions"]]})


@dataclass(frozen=True)
class Left(Row):
    """What a lane knows of a staging partition as its epoch ends."""

    partition: int
    snapshot: Snapshot

    def to_json(self) -> dict[str, Any]:
        return {"partition": self.partition, **self.snapshot.to_plan()}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Left:
        return cls(said["partition"], Snapshot.from_plan(said))
