"""What a transaction does to one source partition, and the mapping that says so. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.link.control_records import Destination
from common.link.frame import Frame
from common.link.offset_mappings import Letters, Mapping
from common.partitions import PartitionName
from deduplicator.lane.offset_runs import Run, merge


@dataclass(slots=True)
class Moved:
    """`letters_to`: where its dead letters go, if it has any; `letters`: which of these lie where."""

    frame: Frame
    start: int
    next: int
    destination: Destination
    runs: list[Run] = field(default_factory=list)
    records: int = 0
    duplicates: int = 0
    lost: int = 0
    letters_to: PartitionName | None = None
    letters: list[Run] = field(default_factory=list)

    @property
    def written(self) -> set[PartitionName]:
        """The partitions that records go to."""
        to = {(self.destination.topic, self.frame.partition)} if self.runs else set()
        return to if self.letters_to is None else to | {self.letters_to}

    def goes_with(self, frame: Frame, letters_to: PartitionName | None) -> bool:
        """Whether the same mapping can be of this frame: it names one pipeline, and one place of letters."""
        return self.frame.pipeline == frame.pipeline and self.letters_to in (None, letters_to)

    def topic_of(self, run: Run) -> str | None:
        """Which topic a run went to; None: it is another partition's."""
        if any(run is one for one in self.runs):
            return self.destination.topic
        letter = self.letters_to is not None and any(run is one for one in self.letters)
        return self.letters_to[0] if letter and self.letters_to is not None else None

    def mapping(self, runs: list[Run], position: int) -> Mapping:
        """`position`: in staging, behind the transaction."""
        f, to = self.frame, self.letters_to
        return Mapping(
            f.cluster,
            f.topic,
            f.topic_id,
            f.partition,
            self.start,
            self.next,
            self.destination.topic,
            f.partition,
            position,
            self.records,
            self.duplicates,
            self.lost,
            merge(runs),
            f.pipeline,
            None if to is None else Letters(*to, merge(self.letters)),
        )
