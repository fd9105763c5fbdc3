"""What the owner of a staging partition knows of it, shared by the parts of a delivery. Only holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.partitions import PartitionId


@dataclass(slots=True)
class StagingPartitionState:
    """`next`, `complete`, `position` and `committed` are loaded together, by recovery alone; frames move them
    on.

    `next` says of each source partition how far it is delivered, `complete` whether an unknown one is new.
    `position` is the staging offset of the next frame, `committed` the group's offset. The rest are counters.
    """

    name: str
    partition: int
    next: dict[PartitionId, int] = field(default_factory=dict)
    complete: bool = False
    position: int = -1
    committed: int = -1
    delivered: int = 0
    duplicates: int = 0
    frames: int = 0
    bytes: int = 0
    """Of frames."""
    transactions: int = 0
    mappings: int = 0
    recoveries: int = 0
