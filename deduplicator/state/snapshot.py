"""Pure: what the state table says at one moment, what a fold is about to do and has done; reads and writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PartitionState:
    """What the table holds of one source partition. `stale`: a mapping of it may have been lost before it was folded."""

    next: int
    topic: str
    destination_topic: str
    destination_partition: int
    mappings_partition: int
    records: int
    duplicates: int
    lost: int
    stale: bool


@dataclass(frozen=True)
class Snapshot:
    """What the state table said at one moment; pure, and safe when old.

    `folded`: mappings partition → M, every mapping below it is in `states` (absent: 0). `staging`: mappings partition →
    staging offset that those mappings reach. `states`: (cluster, topic id, partition) → state. `holes`: mappings
    partition → log start that a fold had to jump to, mappings below it being lost unfolded; absent means complete.
    `updated`: when the last fold was, in seconds since the epoch (None: there was none).
    """

    exists: bool = False
    folded: dict[int, int] = field(default_factory=dict)
    staging: dict[int, int] = field(default_factory=dict)
    states: dict[tuple[str, str, int], PartitionState] = field(default_factory=dict)
    holes: dict[int, int] = field(default_factory=dict)
    updated: float | None = None

    @classmethod
    def empty(cls) -> Snapshot:
        """The snapshot of no table: M is 0 everywhere."""
        return cls()

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], partitions: Collection[int] | None = None) -> Snapshot:
        """What these rows of the table say of some mappings partitions (None: of all).

        Raises ValueError for two rows of one key. Two drivers have written at once to a store that does not tell them apart: which row is
        right, and what else is lost, is not in the table any more. A `next` that is too high would be loss, one too low duplicates.
        """
        rows = list(rows)
        several = [key for key, count in Counter(map(_key, rows)).items() if count > 1]
        if several:
            raise ValueError(
                f"two rows of one {' '.join(map(str, min(several)))}, which no single writer leaves"
            )
        if partitions is not None:
            rows = [row for row in rows if row["mappings_partition"] in partitions]
        own = [row for row in rows if row["kind"] == "mappings"]
        holes = {row["partition"]: row["hole"] for row in own if row["hole"] is not None}
        return cls(
            exists=True,
            folded={row["partition"]: row["folded"] for row in own},
            staging={
                row["partition"]: row["staging_offset"] for row in own if row["staging_offset"] is not None
            },
            states={
                (row["cluster"], row["topic_id"], row["partition"]): PartitionState(
                    next=row["next"],
                    topic=row["topic"],
                    destination_topic=row["destination_topic"],
                    destination_partition=row["destination_partition"],
                    mappings_partition=row["mappings_partition"],
                    records=row["records"],
                    duplicates=row["duplicates"],
                    lost=row["lost"],
                    stale=row["mappings_offset"] < holes.get(row["mappings_partition"], 0),
                )
                for row in rows
                if row["kind"] == "source"
            },
            holes=holes,
            updated=max((row["updated"].timestamp() for row in own), default=None),
        )

    def complete(self, mappings_partition: int, log_start: int) -> bool:
        """Whether an unknown source partition may be taken for new, with the mappings' log start as it is now."""
        return mappings_partition not in self.holes and self.folded.get(mappings_partition, 0) >= log_start


@dataclass(frozen=True)
class FoldPlan:
    """What a fold is about to do: `expected` is the M it read; it reads [start, end); `holes` where start is above M."""

    expected: dict[int, int]
    start: dict[int, int]
    end: dict[int, int]
    holes: dict[int, int]


@dataclass(frozen=True)
class FoldResult:
    """What a fold did: M before and after, the staging offsets recorded, mappings and source partitions touched."""

    start: dict[int, int]
    end: dict[int, int]
    staging: dict[int, int]
    mappings: int
    source_partitions: int
    holes: dict[int, int]
    commits: int
    seconds: float


def _key(row: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """What a fold's MERGE goes by."""
    return row["kind"], row["cluster"], row["topic_id"], row["partition"]
