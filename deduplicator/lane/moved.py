"""What a transaction does to one source partition, and the mapping that says so. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.link.control_records import Destination
from common.link.frame import Frame
from common.link.offset_mappings import Letters, Mapping, Routed
from common.partitions import PartitionName
from deduplicator.lane.offset_runs import Run, merge

Place = tuple[str, int | None]
"""A topic, and its partition; None: the one that has the number of the source's."""


@dataclass(slots=True)
class Moved:
    """`letters_to`: where its dead letters go, if it has any; `letters`: which of these lie where. `routed`:
    the same of records in each place that a stage took some to; `runs` are those in the destination."""

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
    routed: dict[Place, list[Run]] = field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        """Where its records may go."""
        return {self.destination.topic, *(topic for topic, _ in self.routed)}

    @property
    def each_run(self) -> list[Run]:
        return [*self.runs, *self.letters, *(run for runs in self.routed.values() for run in runs)]

    def runs_in(self, place: Place) -> list[Run]:
        """Those there, to be added to."""
        return self.runs if place == (self.destination.topic, None) else self.routed.setdefault(place, [])

    def partition(self, place: Place) -> PartitionName:
        """The partition that a place is."""
        return place[0], self.frame.partition if place[1] is None else place[1]

    @property
    def written(self) -> set[PartitionName]:
        """The partitions that records go to."""
        places: list[Place] = [(self.destination.topic, None), *self.routed]
        to = {self.partition(place) for place in places if self.runs_in(place)}
        return to if self.letters_to is None else to | {self.letters_to}

    def goes_with(self, frame: Frame, letters_to: PartitionName | None) -> bool:
        """Whether the same mapping can be of this frame: it names one pipeline, and one place of letters."""
        return self.frame.pipeline == frame.pipeline and self.letters_to in (None, letters_to)

    def topic_of(self, run: Run) -> str | None:
        """Which topic a run went to; None: it is another partition's."""
        for topic, runs in (
            (self.destination.topic, self.runs),
            *((t, its) for (t, _), its in self.routed.items()),
        ):
            if any(run is one for one in runs):
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
            tuple(Routed(topic, merge(its), at) for (topic, at), its in sorted(self.routed.items())),
        )
