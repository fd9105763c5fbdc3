"""What the replicator's driver tells its lanes to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from common.link.lane_plan import Config, LanePlan, LaneShare


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePartition:
    """A partition to copy. `origin`: where copying began; `position`: where staging is known to be whole up
    to, None where nothing is known, and `leader_epoch` that of the record before it; `handled`: the newest
    demand that is answered up to there; `end`: of a bounded run. `same_name`: its destination has its
    name."""

    topic: str
    topic_id: str
    partition: int
    origin: int
    position: int | None
    leader_epoch: int | None
    handled: int
    end: int | None
    same_name: bool


@dataclass(frozen=True, kw_only=True)
class ReplicatorShare(LaneShare):
    """`partitions_of` and `partitions_in_all`, partitions of each topic and of the link, are what each limit
    is shared out by."""

    source_consumer: Config
    source_admin: Config
    staging_producer: Config
    partitions_of: dict[str, int]
    partitions_in_all: int
    partitions: list[SourcePartition]


@dataclass(frozen=True, kw_only=True)
class ReplicatorPlan(LanePlan, ReplicatorShare):
    """A lane's whole plan."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ReplicatorPlan:
        return cls(**{**data, "partitions": [SourcePartition(**p) for p in data["partitions"]]})
