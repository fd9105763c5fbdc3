"""What a driver tells a lane to do. A plan travels to an executor as JSON, without secrets
(common/config/credentials.py). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from common.config.credentials import TracesPlan

Config = Mapping[str, Any]
"""A client's properties."""


@dataclass(frozen=True, kw_only=True)
class LaneShare:
    """What a lane has to itself; each application adds what it needs."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class LanePlan:
    """What the plans of all lanes of an epoch have in common.

    `term` and `epoch` say whose plan it is, `epoch_s` how long the epoch lasts at most, in seconds. `cluster`
    and `target_cluster` are cluster ids. `log_link`: what lines of the log name as the link, if anything.
    `traces`: where spans of frames go. `again`: Spark runs this lane a second time."""

    application: str
    link: str
    instance: str
    term: int
    epoch: int
    epoch_s: float
    lane: int
    bounded: bool
    cluster: str
    target_cluster: str
    provenance: bool
    log_level: str
    log_format: str
    log_link: str
    staging_topic: str
    staging_partitions: int
    positions_topic: str
    control_topic: str
    mappings_topic: str
    control_consumer: Config
    control_producer: Config
    control_admin: Config
    traces: TracesPlan | None = None
    again: bool = False

    def with_share(self, share: LaneShare) -> dict[str, Any]:
        """The whole plan, as JSON."""
        return asdict(self) | share.to_json()
