"""What `verify` says of a partition whose topic changes under it, and which comparison it chooses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from verbatim.verify.comparison import Batch, Kind, PartitionReport, digest
from verbatim.verify.control import Said
from verbatim.verify.expected import Pipelines
from verbatim.verify.letters import Letters
from verbatim.verify.link_mappings import PartitionMappings
from verbatim.verify.mappings import Runs
from verbatim.verify.partition_check import LinkContext, Pair, check_partition
from verbatim.verify.reading import LogStartMoved, TopicState


def record(number: int) -> bytes:
    return digest(number, b"k%d" % number, b"v", None)


class FakeCluster:
    """One partition with these records; the log start moves under the first `moves` readings."""

    def __init__(self, numbers: list[int], moves: int = 0) -> None:
        self.numbers = numbers
        self.moves = moves
        self.state: TopicState | None = TopicState("id", 1, False, True)
        self.readings = 0

    def topic(self, _: str) -> TopicState | None:
        return self.state

    def bounds(self, *_: Any) -> tuple[int, int]:
        return 0, len(self.numbers)

    def settled(self, *_: Any) -> tuple[int, int]:
        return self.bounds()

    def high_watermark(self, *_: Any) -> int:
        return len(self.numbers)

    def records(self, topic: str, partition: int, begin: int, end: int, *how: Any) -> Iterator[Batch]:
        self.readings += 1
        if self.readings <= self.moves:
            raise LogStartMoved("moved")
        if begin < end:
            yield list(range(begin, end)), [record(n) for n in self.numbers[begin:end]]


class FakeMappings:
    """Source offsets 0 to `length` went to the destination's from `to` on; 0: no mapping is left."""

    several = False

    def __init__(self, length: int, to: int) -> None:
        self.entry = PartitionMappings(0, length, True) if length else PartitionMappings()
        begin, there, count = (np.array([n], dtype=np.int64) for n in (0, to, length))
        self.found = Runs(begin, there, count, 0, length, True) if length else None

    def of(self, *_: Any) -> PartitionMappings:
        return self.entry

    def runs(self, *_: Any) -> Runs | None:
        return self.found


def checked(
    source: FakeCluster,
    destination: FakeCluster,
    mapped: int,
    partition: int = 0,
    to: int = 0,
    sample: tuple[float, int] | None = None,
) -> PartitionReport:
    cluster: Any = {"source": source, "destination": destination, "mappings": FakeMappings(mapped, to)}
    link = LinkContext(
        **cluster,
        said=Said("l"),
        hear=lambda: None,
        destinations={"t": ["d"]},
        from_earliest=True,
        clusters=None,
        sample=sample,
        ends={},
        pipelines=Pipelines({}, {}, "l"),
        letters=Letters("l", "c"),
        together={},
    )
    state = TopicState("id", 1, False, True)
    return check_partition(link, Pair("t", partition, state, "d", destination.state))


def test_sides_that_agree_and_their_mappings_give_no_finding() -> None:
    report = checked(FakeCluster([1, 2, 3]), FakeCluster([1, 2, 3]), 3)
    assert (report.equal, report.findings, report.notes) == (3, {}, [])


def test_mappings_that_point_elsewhere_are_found() -> None:
    report = checked(FakeCluster([1, 2]), FakeCluster([1, 2]), 1, to=1)
    assert report.equal == 2 and list(report.findings) == [Kind.MAPPING]


@pytest.mark.parametrize(("mapped", "lost", "behind"), [(3, 1, 0), (2, 0, 1), (0, 0, 1)])
def test_what_the_mappings_call_delivered_and_is_not_there_is_lost(
    mapped: int, lost: int, behind: int
) -> None:
    report = checked(FakeCluster([1, 2, 3]), FakeCluster([1, 2]), mapped)
    found = report.findings.get(Kind.LOST)
    assert (found.count if found else 0, report.behind) == (lost, behind)
    assert any("judged without them" in note for note in report.notes) is (mapped == 0)


def test_a_log_start_that_moves_while_it_is_read_has_the_partition_read_anew_a_few_times() -> None:
    source = FakeCluster([1, 2], moves=2)
    report = checked(source, FakeCluster([1, 2]), 2)
    assert (report.equal, report.source_records, source.readings) == (2, 2, 3)
    with pytest.raises(LogStartMoved):
        checked(FakeCluster([1, 2], moves=3), FakeCluster([1, 2]), 2)


@pytest.mark.parametrize("now", [None, TopicState("other", 1, False, True)])
def test_a_topic_that_was_deleted_or_made_again_meanwhile_is_said_to_mean_nothing(
    now: TopicState | None,
) -> None:
    source = FakeCluster([1])
    source.state = now
    assert "this report means nothing" in checked(source, FakeCluster([1]), 1).notes[-1]


@pytest.mark.parametrize(("there", "what"), [(None, "topic"), (TopicState("d", 1, False, True), "partition")])
def test_a_destination_without_the_partition_leaves_it_behind(there: TopicState | None, what: str) -> None:
    source, destination = FakeCluster([1, 2]), FakeCluster([])
    destination.state = there
    report = checked(source, destination, 0, partition=0 if there is None else 1)
    assert f"the destination has no such {what}" in report.notes
    assert report.behind == (2 if there is None else 0)


def test_a_sample_without_mappings_reads_all_and_says_so() -> None:
    assert checked(FakeCluster([1, 2]), FakeCluster([1, 2]), 2, sample=(1.0, 0)).notes == []
    report = checked(FakeCluster([1, 2]), FakeCluster([1, 2]), 0, sample=(1.0, 0))
    assert report.equal == 2 and any(note.startswith("read whole") for note in report.notes)
