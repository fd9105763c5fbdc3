"""Groups on topics that two links copy, one each way: moved by what both have copied, so that each record of
either side is read once; refused where no offset at the other side would do that."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer

from tests.conftest import Kafka, Names
from tests.integration.test_cutover import PARTITIONS, load
from tests.integration.test_group_moves import move, refusals, rest, states
from tests.integration.test_offsets import commit_all, committed
from tests.integration.test_two_way import KEPT, ON, running
from tests.support.brokers import Record, create_topic, member, produce, read_all
from tests.support.harness import Link, eventually


@dataclass
class Pair:
    """Links of one topic in both directions: `there` from a to b, `back` from b to a."""

    a: str
    b: str
    topic: str
    there: Link
    back: Link

    def move(self, group: str, *args: str, wait_s: float = 30.0) -> tuple[dict[str, object], int]:
        return move(
            self.there, group, "--return-link", self.back.settings.application_name, *args, wait_s=wait_s
        )

    def holds(self, bootstrap: str) -> int:
        return sum(map(len, read_all(bootstrap, self.topic)))


def read(consumer: Consumer, enough: Callable[[list[bytes]], bool]) -> list[bytes]:
    """What comes until it is enough, all of it committed."""
    values: list[bytes] = []
    give_up = time.monotonic() + 60
    while not enough(values):
        assert time.monotonic() < give_up, len(values)
        new = [value for message in consumer.consume(200, 0.2) if (value := message.value()) is not None]
        if new:
            consumer.commit(asynchronous=False)
        values += new
    return values


@pytest.fixture
def pair(source: Kafka, target: Kafka, names: Names) -> Pair:
    a, b, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic("orders")
    create_topic(a, topic, PARTITIONS, KEPT)
    create_topic(b, topic, PARTITIONS, KEPT)
    return Pair(
        a, b, topic, Link(a, b, f"{names.link}.ab", topic, **ON), Link(b, a, f"{names.link}.ba", topic, **ON)
    )


@pytest.mark.whole
def test_a_group_goes_there_and_back_beside_producers_of_both_sides_and_reads_each_record_once(
    pair: Pair, names: Names
) -> None:
    """Promise: while one side's producers are still, a group that has read what came from there goes, though
    the other side's go on; then they may, too."""
    a, b, topic, group = pair.a, pair.b, pair.topic, f"{names.link}.g"
    of_a: list[bytes] = []
    of_b: list[bytes] = []
    seen: list[bytes] = []
    with running(pair.there, pair.back):
        with load(a, topic, of_a, b"a"):
            with load(b, topic, of_b, b"b"), closing(member(a, group, topic)) as consumer:
                seen += read(consumer, lambda new: len(new) >= 500)
            with closing(member(a, group, topic)) as consumer:
                seen += read(consumer, lambda new: set(of_b) <= {*seen, *new})
            report, code = pair.move(group)
            assert (code, states(report)) == (0, {group: "done"}), report
            with load(b, topic, of_b, b"b", 10**6), closing(member(b, group, topic)) as consumer:
                seen += read(consumer, lambda new: len(new) >= 500)
        with load(b, topic, of_b, b"b", 2 * 10**6):
            with closing(member(b, group, topic)) as consumer:
                seen += read(consumer, lambda new: set(of_a) <= {*seen, *new})
            report, code = pair.move(group, "--back")
            assert (code, states(report)) == (0, {group: "done"}), report
        with closing(member(a, group, topic)) as consumer:
            eventually(
                lambda: pair.holds(a) == pair.holds(b) == len(of_a) + len(of_b), "both sides alike", 60
            )
            seen += rest(consumer, len(of_a) + len(of_b) - len(seen))
    assert Counter(seen) == Counter(of_a + of_b), "each record once"


def test_a_group_that_no_offset_there_would_be_right_for_is_refused_and_goes_once_it_has_read_on(
    pair: Pair, names: Names
) -> None:
    """Promise: at a it has read a1 and b1; at b stand b1, b2, a1, a2, so it would miss b2 or read a1 again.
    Nothing is changed. Where it was moved by one link, the other leaves it alone."""
    a, b, topic, group = pair.a, pair.b, pair.topic, f"{names.link}.g"

    def one(at: str, value: bytes) -> None:
        produce(at, topic, [Record(value)])

    one(a, b"a1")
    one(b, b"b1")
    assert pair.back.copy() == (0, 0)
    one(b, b"b2")
    assert pair.there.copy() == (0, 0)
    one(a, b"a2")
    assert pair.there.copy() == (0, 0)
    assert [r.value for r in read_all(b, topic)[0]] == [b"b1", b"b2", b"a1", b"a2"]
    (here,) = [records for records in read_all(a, topic) if records]
    assert [r.value for r in here] == [b"a1", b"b1", b"a2"]
    commit_all(a, topic, {group: here[1].offset + 1})
    # That b2 is unread is not known before the link back has come so far.
    report, code = pair.move(group, wait_s=0)
    assert code == 1 and "the link back is not where it would stand at the target" in refusals(report)[group]
    assert pair.back.copy() == (0, 0)
    report, code = pair.move(group, wait_s=0)
    assert (code, states(report)) == (1, {group: "refused"})
    assert refusals(report)[group].count("a record that it has not read stands at the target before one") == 1
    assert committed(b, group, topic) is None and committed(a, group, topic) == here[1].offset + 1
    assert pair.there.copy() == (0, 0)
    commit_all(a, topic, {group: read_all(a, topic)[0][-1].offset + 1})
    report, code = pair.move(group)
    assert (code, states(report)) == (0, {group: "done"}), report
    at_b = committed(b, group, topic)
    assert at_b is not None and [r.value for r in read_all(b, topic)[0] if r.offset >= at_b] == []
    report, code = move(pair.back, group, "--return-link", pair.there.settings.application_name)
    assert code == 1 and "has moved it here" in refusals(report)[group]
    assert committed(a, group, topic) == read_all(a, topic)[0][-1].offset + 1


def test_what_is_no_link_back_is_refused_by_name(pair: Pair, names: Names) -> None:
    produce(pair.a, pair.topic, [Record(b"1")])
    assert pair.there.copy() == (0, 0)
    report, code = move(pair.there, "g", "--return-link", "none")
    assert code != 0 and "--return-link none: there is no topic none.control at the source" in str(
        report["refused"]
    )
    report, code = move(pair.there, "g")
    assert code != 0 and "PROVENANCE_HEADERS" in str(report["refused"])
    third = Link(pair.a, pair.b, f"{names.link}.third", pair.topic, **ON)
    assert third.copy() == (0, 0)
    assert pair.back.copy() == (0, 0)
    report, code = pair.move("g")
    assert code != 0 and f"the link {names.link}.third copies into {pair.topic} at the target" in str(
        report["refused"]
    )
    plain = Link(pair.a, pair.b, f"{names.link}.plain", pair.topic)
    report, code = move(plain, "g", "--return-link", pair.back.settings.application_name)
    assert code == 2 and "--return-link: the link has no PROVENANCE_HEADERS" in str(report["refused"])
