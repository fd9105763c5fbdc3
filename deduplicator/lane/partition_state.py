"""What the owner of a staging partition knows of it, shared by the parts of a delivery. Only holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from common.link.lane_work import Delays
from common.partitions import PartitionId, PartitionName


@dataclass(slots=True)
class StagingPartitionState:
    """`next`, `pipelines`, `complete`, `position` and `committed` are loaded together, by recovery alone;
    frames move them on.

    `next` says of each source partition how far it is delivered, `pipelines` by which pipeline last, if by
    any, `complete` whether an unknown one is new.
    `position` is the staging offset of the next frame, `committed` the group's offset. The rest is for
    metrics.
    """

    name: str
    partition: int
    next: dict[PartitionId, int] = field(default_factory=dict)
    complete: bool = False
    position: int = -1
    committed: int = -1
    pipelines: dict[PartitionId, int] = field(default_factory=dict)
    reached: dict[PartitionId, int] = field(default_factory=dict)
    """As `next`, of what is committed."""
    done: dict[PartitionName, Counter[str]] = field(default_factory=dict)
    """Of each source partition, records that are committed, and duplicates."""
    delays: Delays = field(default_factory=Delays)
    """From a record's timestamp until it was committed."""
    frames: int = 0
    bytes: int = 0
    """Of frames."""
    transactions: int = 0
    transaction_ms: int = 0
    """From their beginning until they were committed."""
    aborted: int = 0
    mappings: int = 0
    recoveries: int = 0

    def count(self, topic: str, partition: int, **counts: int) -> None:
        self.done.setdefault((topic, partition), Counter()).update(counts)
