"""Pure: what the state table says at one moment, what a fold is about to do and has done; reads and writes
nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class PartitionState:
    """What the table holds of one source partition. `stale`: a mapping of it may have been lost before it was
    folded. `pipeline`: the newest one of its mappings."""

    next: int
    topic: str
    destination_topic: str
    destination_partition: int
    mappings_partition: int
    records: int
    duplicates: int
    lost: int
    stale: bool
    pipeline: int = 0


@dataclass(frozen=True)
class Snapshot:
    """What the state table said at one moment, by default that there is none; pure, and safe when old.

    `folded`: mappings partition → M, every mapping below it is in `states` (absent: 0). `staging`: mappings
    partition → staging offset that those mappings reach. `states`: (cluster, topic id, partition) → state.
    `holes`: mappings partition → log start that a fold had to jump to, mappings below it being lost unfolded;
    absent means complete.
    `updated`: when the last fold was, in seconds since the epoch (None: there was none).
    """

    exists: bool = False
    folded: dict[int, int] = field(default_factory=dict)
    staging: dict[int, int] = field(default_factory=dict)
    states: dict[tuple[str, str, int], PartitionState] = field(default_factory=dict)
    holes: dict[int, int] = field(default_factory=dict)
    updated: float | None = None

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Snapshot:
        """What the rows of the table say.

        Raises ValueError for two rows of one key. Two drivers have written at once to a store that does not
        tell them apart: which row is right, and what else is lost, is not in the table any more. A `next`
        that is too high would be loss, one too low duplicates.
        """
        rows = list(rows)
        several = [key for key, count in Counter(map(_key, rows)).items() if count > 1]
        if several:
            raise ValueError(
                f"two rows of one {' '.join(map(str, min(several)))}, which no single writer leaves"
            )
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
                    # A table of an earlier release has none.
                    pipeline=row.get("pipeline") or 0,
                )
                for row in rows
                if row["kind"] == "source"
            },
            holes=holes,
            updated=max((row["updated"].timestamp() for row in own), default=None),
        )


@dataclass(frozen=True)
class FoldPlan:
    """What a fold is about to do, by mappings partition: `expected` is the M it read; it reads [start, end);
    `holes` where start is above M."""

    expected: dict[int, int]
    start: dict[int, int]
    end: dict[int, int]
    holes: dict[int, int]

    @classmethod
    def of(
        cls,
        folded: Mapping[int, int],
        low: Mapping[int, int],
        high: Mapping[int, int],
        until: Mapping[int, int] | None = None,
    ) -> FoldPlan:
        """From the table's M, and log start and end of each mappings partition; up to `until`, where that is
        given."""
        wanted = high if until is None else {p: min(o, high[p]) for p, o in until.items() if p in high}
        expected = {p: folded.get(p, 0) for p in high}
        # A log start above M: what lies between is gone, also where there is nothing else to fold.
        holes = {p: low[p] for p in wanted if low[p] > expected[p]}
        start = {p: max(low[p], expected[p]) for p in wanted}
        return cls(expected, start, {p: max(o, start[p]) for p, o in wanted.items()}, holes)

    def next_commit(self, most: int) -> FoldPlan:
        """The part that goes into one commit: partitions that move, by `most` offsets in all (one each at
        least)."""
        moving = [p for p, o in self.end.items() if o > self.expected[p]]
        share = max(1, most // max(1, len(moving)))
        return FoldPlan(
            {p: self.expected[p] for p in moving},
            {p: self.start[p] for p in moving},
            {p: min(self.end[p], self.start[p] + share) for p in moving},
            {p: o for p, o in self.holes.items() if p in moving},
        )

    def rows(self, folded: Iterable[Mapping[str, Any]], topic: str, now: datetime) -> list[dict[str, Any]]:
        """What a commit merges into the table of the mappings topic `topic`: `folded`, one row for each
        source partition, and M where it ends."""
        folded = list(folded)
        reached = staged_up_to(folded)
        of_sources = [{**row, "kind": "source", "staging_offset": None, "updated": now} for row in folded]
        own = {"kind": "mappings", "cluster": "", "topic_id": "", "topic": topic, "updated": now}
        return of_sources + [
            own
            | {"partition": p, "mappings_partition": p, "folded": end, "expected": self.expected[p]}
            | {"hole": self.holes.get(p), "staging_offset": reached.get(p)}
            for p, end in self.end.items()
        ]


def staged_up_to(folded: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Mappings partition -> the staging offset that its mappings reach."""
    reached: dict[int, int] = {}
    for row in folded:
        p = row["mappings_partition"]
        reached[p] = max(reached.get(p, 0), row["staging_offset"])
    return reached


@dataclass(frozen=True)
class FoldResult:
    """What a fold did, by mappings partition: M before and after, the staging offsets recorded, the holes
    that it jumped over."""

    start: dict[int, int]
    end: dict[int, int]
    staging: dict[int, int]
    mappings: int
    holes: dict[int, int]
    commits: int


def _key(row: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """What a fold's MERGE goes by."""
    return row["kind"], row["cluster"], row["topic_id"], row["partition"]
