"""What a transaction does to one source partition, and the mapping that says so. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.link.control_records import Destination
from common.link.frame import Frame
from common.link.offset_mappings import Letters, Mapping, Routed
from common.partitions import PartitionName
from deduplicator.lane.offset_runs import Run, merge


@dataclass(slots=True)
class Moved:
    """`letters_to`: where its dead letters go, if it has any; `letters`: which of these lie where. `routed`:
    the same of records in each topic that a stage took some to; `runs` are those in the destination."""

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
    routed: dict[str, list[Run]] = field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        """Where its records may go."""
        return {self.destination.topic, *self.routed}

    @property
    def each_run(self) -> list[Run]:
        return [*self.runs, *self.letters, *(run for runs in self.routed.values() for run in runs)]

    def runs_in(self, topic: str) -> list[Run]:
        """Those in a topic, to be added to."""
        return self.runs if topic == self.destination.topic else self.routed.setdefault(topic, [])

    @property
    def written(self) -> set[PartitionName]:
        """The partitions that records go to."""
        to = {(topic, self.frame.partition) for topic in self.topics if self.runs_in(topic)}
        return to if self.letters_to is None else to | {self.letters_to}

    def goes_with(self, frame: Frame, letters_to: PartitionName | None) -> bool:
        """Whether the same mapping can be of this frame: it names one pipeline, and one place of letters."""
        return self.frame.pipeline == frame.pipeline and self.letters_to in (None, letters_to)

    def topic_of(self, run: Run) -> str | None:
        """Which topic a run went to; None: it is another partition's."""
        for topic in self.topics:
            if any(run is one for one in self.runs_in(topic)):
                return topic
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
            tuple(Routed(topic, merge(its)) for topic, its in sorted(self.routed.items())),
        )
