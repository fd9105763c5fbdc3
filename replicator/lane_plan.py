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
    name. `tolerated`: the offsets before `position` that `onError: tolerate` has counted by this pipeline."""

    topic: str
    topic_id: str
    partition: int
    origin: int
    position: int | None
    leader_epoch: int | None
    handled: int
    end: int | None
    same_name: bool
    tolerated: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """The link's newest pipeline. `keys`: name -> where it is, as the pipeline's file says: a lane reads them
    where it runs."""

    n: int
    definition: str
    keys: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class ReplicatorShare(LaneShare):
    """`pipeline`: None where the link never had one. `partitions_of` and `partitions_in_all`, partitions of
    each topic and of the link, are what each limit is shared out by."""

    source_consumer: Config
    source_admin: Config
    staging_producer: Config
    partitions_of: dict[str, int]
    partitions_in_all: int
    pipeline: PipelinePlan | None
    schemas_topic: str
    partitions: list[SourcePartition]


@dataclass(frozen=True, kw_only=True)
class ReplicatorPlan(LanePlan, ReplicatorShare):
    """A lane's whole plan."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ReplicatorPlan:
        partitions = [SourcePartition(**p) for p in data["partitions"]]
        pipeline = data["pipeline"] and PipelinePlan(**data["pipeline"])
        return cls(**{**data, "partitions": partitions, "pipeline": pipeline})
