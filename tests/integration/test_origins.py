"""Where copying begins: START_OFFSETS, decided once and before anything is read, so that nothing that comes
later is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from common.errors import SettingsError
from common.link.lane_progress import Done, Row, encode
from common.link.lane_work import Work
from common.spark.lane_jobs import Behind
from common.spark.lane_task import Plan
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, delete_records, produce, read_all
from tests.support.harness import Link, Running, ThreadReplicator, assert_copied, assert_mapped

KEPT = {"retention.ms": "-1"}
"""The records here are old by their timestamps."""


def dies_before_its_first_frame(link: Link) -> None:
    """Run a replicator whose lanes end before they have sent anything, and that ends with them."""

    class Dying(ThreadReplicator):
        @staticmethod
        def run_lane(plan: Plan) -> Iterator[str]:
            yield encode(Done(Work()))

        def behind(self, rows: list[Row]) -> dict[str, Behind]:
            return {}

    assert Running(Dying(link.settings, True)).wait() == 0


def records(begin: int, end: int, partition: int = 0) -> list[Record]:
    return [
        Record(b"%d" % i, partition=partition, timestamp=1_700_000_000_000 + i) for i in range(begin, end)
    ]


@pytest.mark.parametrize("start", ["earliest", pytest.param("latest", marks=pytest.mark.whole)])
def test_records_that_come_after_the_origin_was_decided_are_never_lost(
    source: Kafka, target: Kafka, names: Names, start: str
) -> None:
    """Promise: an empty partition's origin is 0 once the link has begun, whatever dies before its first
    record; records already there are copied with earliest and left out with latest; a topic that comes later
    is copied from its beginning with either."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    empty, filled, later = names.topic("empty"), names.topic("filled"), names.topic("later")
    create_topic(at, empty, 2, KEPT)
    create_topic(at, filled, 2, KEPT)
    produce(at, filled, records(0, 7))
    delete_records(at, filled, {0: 2})
    link = Link(at, to, names.link, rf"{names.link}\.t\..*", START_OFFSETS=start)
    dies_before_its_first_frame(link)
    # Resolved again now, `latest` would be above these.
    produce(at, empty, records(0, 3))
    produce(at, filled, records(7, 10))
    dies_before_its_first_frame(link)
    produce(at, empty, records(3, 4) + records(4, 6, 1))
    create_topic(at, later, 1, KEPT)
    produce(at, later, records(0, 5))
    assert link.copy() == (0, 0)
    assert_copied(link, empty)
    assert_copied(link, later)
    there = read_all(at, filled)
    if start == "latest":
        there = [[r for r in there[0] if r.offset >= 7], []]
    assert_copied(link, filled, there=there)
    assert [m[0].start for _, m in sorted(link.mappings(filled).items())] == [
        2 if start == "earliest" else 7,
        0,
    ]


def test_a_time_selects_the_first_record_at_or_after_it(source: Kafka, target: Kafka, names: Names) -> None:
    """Promise: with a timestamp each partition begins at its first record of that time or later; one without
    any begins at its end, as it was when the link began."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic = names.topic()
    create_topic(at, topic, 3, KEPT)
    produce(at, topic, records(0, 10) + records(0, 4, 1))
    link = Link(at, to, names.link, topic, START_OFFSETS=str(1_700_000_000_006))
    dies_before_its_first_frame(link)
    produce(at, topic, records(0, 2, 1) + records(0, 2, 2))
    assert link.copy() == (0, 0)
    there, here = read_all(at, topic), read_all(to, topic)
    there = [there[0][6:], there[1][4:], there[2]]
    assert [[r.value for r in p] for p in here] == [[r.value for r in p] for p in there]
    assert_mapped(link, topic, there, here)


def test_retention_before_the_first_record_halts_instead_of_beginning_later(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: the origin is a promise too: when retention takes records at or above it before they were
    read, the partition halts."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic = names.topic()
    create_topic(at, topic, 1, KEPT)
    produce(at, topic, records(0, 10))
    link = Link(at, to, names.link, topic)
    dies_before_its_first_frame(link)
    delete_records(at, topic, {0: 4})
    assert link.replicate() == 3
    assert link.deduplicate() == 0
    assert link.arrived(topic) == [0]
    capsys.readouterr()
    assert link.replicate() == 3
    assert (
        f"{topic}-0 halted: records [0, 4) of {topic}-0 are gone from the source" in capsys.readouterr().err
    )
    assert link.halted() == {(topic, 0): "source-lost"}


def test_each_topic_and_partition_begins_where_it_is_told_to(
    source: Kafka, target: Kafka, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: the first entry of START_OFFSETS that means a topic counts, a partition's own offset before
    all, an entry alone for the others; a restart with another START_OFFSETS moves nothing, and says so; a
    topic that comes later is copied from its beginning."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    exact, late, timed, other, later = (names.topic(n) for n in ("exact", "late", "timed", "other", "later"))
    for topic in (exact, late, timed, other):
        create_topic(at, topic, 2, KEPT)
        produce(at, topic, records(0, 10) + records(0, 10, 1))
    given = f"{exact}:1=4,{exact}=latest,{names.link}.*l[a]te=latest,{timed}=1700000000007,earliest"
    link = Link(at, to, names.link, rf"{names.link}\.t\..*", START_OFFSETS=given)
    dies_before_its_first_frame(link)
    for topic in (exact, late, timed, other):
        produce(at, topic, records(10, 12) + records(10, 12, 1))
    create_topic(at, later, 1, KEPT)
    produce(at, later, records(0, 3))
    link.variables["START_OFFSETS"] = f"{exact}:1=8,latest"
    assert link.copy() == (0, 0)
    assert f"START_OFFSETS is {exact}:1=8,latest, but the link has begun with {given}" in caplog.text
    begins = {exact: (10, 4), late: (10, 10), timed: (7, 7), other: (0, 0), later: (0,)}
    for topic, starts in begins.items():
        there = read_all(at, topic)
        expected = [[r for r in p if r.offset >= begin] for p, begin in zip(there, starts, strict=True)]
        assert_copied(link, topic, there=expected)
        assert [m[0].start for _, m in sorted(link.mappings(topic).items())] == list(starts)


def test_an_offset_that_its_log_does_not_hold_is_refused_before_anything_is_decided(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: an offset outside of the partition's log, and a partition that is not there, are one line
    naming them; with the line mended the link begins as told, for nothing was written down. The end itself is
    within."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic = names.topic()
    create_topic(at, topic, 2, KEPT)
    produce(at, topic, records(0, 10))
    delete_records(at, topic, {0: 3})
    wrong = {
        f"{topic}:0=2": f"START_OFFSETS: {topic}:0=2: the source's log of {topic}-0 goes from offset 3 to 10",
        f"{topic}:0=11": f"START_OFFSETS: {topic}:0=11: the source's log of {topic}-0 goes from offset 3 to 10",
        f"{topic}:2=0": f"START_OFFSETS: {topic}:2: topic {topic} of the source has 2 partitions",
        "nobody:0=0": "START_OFFSETS: nobody:0: topic nobody of the source is not copied, or not there",
    }
    for given, said in wrong.items():
        with pytest.raises(SettingsError) as caught:
            Link(at, to, names.link, topic, START_OFFSETS=given).replicate()
        assert str(caught.value) == said
        assert caught.value.exit_code == 2
    link = Link(at, to, names.link, topic, START_OFFSETS=f"{topic}:0=8,{topic}:1=0")
    assert link.control().origins == {} and not link.control().started
    assert link.copy() == (0, 0)
    assert [[r.value for r in p] for p in read_all(to, topic)] == [[b"8", b"9"], []]
