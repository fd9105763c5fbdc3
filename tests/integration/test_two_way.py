"""Links in both directions between topics of one name: nothing goes round, nothing is lost for it, and a link
not asked to adds nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from common.kafka.client import clients
from common.kafka.wire.records import Header
from common.link import provenance
from offsets.readers import MappingTail
from tests.conftest import Kafka, Names
from tests.integration.test_plan import plan
from tests.support.brokers import (
    Headers,
    Record,
    Seen,
    create_topic,
    end_offsets,
    produce,
    read_all,
    topic_id,
)
from tests.support.harness import Link, assert_copied, assert_mapped, eventually
from verbatim.verify.comparison import Kind
from verbatim.verify.link import LinkReport, Options, verify_link

ON = {"PROVENANCE_HEADERS": "true"}
KEPT = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
OWN: list[Headers | None] = [None, [("h", b"1"), ("h", None)], None, [("verbatim", b"")]]


def mark(cluster: str) -> Header:
    """The header that a link adds to what it copies from there."""
    return ("verbatim.provenance", cluster.encode())


def written(who: str, begin: int, end: int, partition: int = 0) -> list[Record]:
    return [
        Record(b"%s-%d" % (who.encode(), i), b"k%d" % i, partition, None, OWN[i % 4])
        for i in range(begin, end)
    ]


def told(bootstrap: str) -> str:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    return str(admin.describe_cluster().result(10).cluster_id)


def plain(records: list[Seen]) -> list[tuple[Any, ...]]:
    return [(r.key, r.value, r.headers, r.timestamp) for r in records]


def of(records: list[Seen], *marks: Header) -> list[Seen]:
    """Those that have come by these clusters, in this order, as they were before."""
    found = []
    for r in records:
        own = r.headers or []
        passed = [h for h in own if h[0] == provenance.NAME]
        if passed == list(marks):
            assert own[len(own) - len(passed) :] == passed, "added behind a record's own headers"
            found.append(r._replace(headers=own[: len(own) - len(passed)] or None))
    return found


class Load:
    """Writes to a topic in small batches until stopped: each record says who wrote it, and its number."""

    def __init__(self, bootstrap: str, topic: str, who: str, partitions: int) -> None:
        self.count = [0] * partitions
        self._at, self._topic, self._who = bootstrap, topic, who
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        producer: Any = Producer({"bootstrap.servers": self._at, "enable.idempotence": True, "linger.ms": 2})
        while not self._stop.wait(0.1):
            for partition in range(len(self.count)):
                begin = self.count[partition]
                for record in written(self._who, begin, begin + 20, partition):
                    producer.produce(
                        self._topic, record.value, record.key, partition, headers=record.headers or []
                    )
                self.count[partition] = begin + 20
            producer.flush(10)
        assert not producer.flush(30)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(40)
        assert not self._thread.is_alive()


@contextmanager
def running(*links: Link) -> Iterator[None]:
    with ExitStack() as stack:
        for link in links:
            stack.enter_context(link.running())
        yield


def verified(link: Link) -> LinkReport:
    report = verify_link(link.settings, Options())
    assert not report.failed(), [(p.partition, p.findings, p.behind) for p in report.partitions]
    return report


def assert_all_there(
    topic: str, at: str, own: list[list[Seen]], *others: tuple[tuple[Header, ...], list[list[Seen]]]
) -> None:
    """The partitions at `at` hold their own records and those of the others, each once and in its order, and
    nothing else."""
    for partition, records in enumerate(read_all(at, topic)):
        assert plain(of(records)) == plain(own[partition])
        for marks, theirs in others:
            assert plain(of(records, *marks)) == plain(theirs[partition])
        assert len(records) == len(own[partition]) + sum(len(theirs[partition]) for _, theirs in others)


@pytest.mark.whole
def test_both_directions_under_load_with_restarts_copy_each_record_once_and_echo_none(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: with PROVENANCE_HEADERS on both links, two topics of one name that are written on both sides
    end with each record once on either side, in its order, with its own headers and one more on the copy;
    across restarts of all four applications; verify says so."""
    a, b, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic("orders")
    create_topic(a, topic, 2, KEPT)
    create_topic(b, topic, 2, KEPT)
    to_b = Link(a, b, f"{names.link}.ab", topic, **ON)
    to_a = Link(b, a, f"{names.link}.ba", topic, **ON)
    loads = [Load(a, topic, "a", 2), Load(b, topic, "b", 2)]
    try:
        for _ in range(2):
            with running(to_b, to_a):
                time.sleep(4)
    finally:
        for load in loads:
            load.stop()
    with running(to_b, to_a):

        def all_there() -> bool:
            wanted = [sum(load.count[p] for load in loads) for p in range(2)]
            return to_b.arrived(topic) == wanted and to_a.arrived(topic) == wanted

        eventually(all_there, "all records on both sides", 60)
        # An echo would come now.
        ends = end_offsets(a, topic), end_offsets(b, topic)
        time.sleep(2)
        assert (end_offsets(a, topic), end_offsets(b, topic)) == ends
        both = [verified(link) for link in (to_b, to_a)]
    marks = mark(told(a)), mark(told(b))
    ours, theirs = read_all(a, topic), read_all(b, topic)
    own = [of(p) for p in ours], [of(p) for p in theirs]
    for partition in range(2):
        assert [r.value for r in own[0][partition]] == [
            r.value for r in written("a", 0, loads[0].count[partition])
        ]
        assert [r.value for r in own[1][partition]] == [
            r.value for r in written("b", 0, loads[1].count[partition])
        ]
        assert [r.headers for r in own[0][partition]] == [
            OWN[i % 4] for i in range(loads[0].count[partition])
        ]
    assert_all_there(topic, a, own[0], ((marks[1],), own[1]))
    assert_all_there(topic, b, own[1], ((marks[0],), own[0]))
    assert not to_b.halted() and not to_a.halted()
    for report, (copied, other) in zip(both, (loads, loads[::-1]), strict=True):
        for p in report.partitions:
            assert p.equal == p.source_records == p.destination_records == copied.count[p.partition]
            assert any(
                f"{other.count[p.partition]} source records that came from the target, and {other.count[p.partition]} destination"
                in note
                for note in p.notes
            )


@pytest.fixture(scope="module")
def pair(source: Kafka, target: Kafka) -> tuple[Link, Link, str]:
    """Both directions, copied once and at rest, the topic on the other side made by the link: a0..a3 were
    there, then b0..b2, then a4."""
    import secrets

    a, b, name = source.bootstrap_servers, target.bootstrap_servers, f"t{secrets.token_hex(4)}"
    topic = f"{name}.t.rest"
    create_topic(a, topic, 1, KEPT)
    to_b, to_a = Link(a, b, f"{name}.ab", topic, **ON), Link(b, a, f"{name}.ba", topic, **ON)
    produce(a, topic, written("a", 0, 4))
    assert to_b.copy() == (0, 0)
    produce(b, topic, written("b", 0, 3))
    assert to_a.copy() == (0, 0)
    produce(a, topic, written("a", 4, 5))
    assert to_b.copy() == (0, 0)
    assert to_a.copy() == (0, 0)
    return to_b, to_a, topic


def test_records_left_out_are_gaps_that_positions_mappings_and_group_offsets_pass(
    pair: tuple[Link, Link, str],
) -> None:
    """Promise: what is not copied back holds up nothing: a bounded run ends, the mappings reach the source's
    end and name the copied records only, and an offset among those left out is, by the mappings, that of the
    next one copied."""
    _, to_a, topic = pair
    there = read_all(to_a.source, topic)[0]
    assert [r.value for r in there] == [b"a-0", b"a-1", b"a-2", b"a-3", b"b-0", b"b-1", b"b-2", b"a-4"]
    mappings = to_a.mappings(topic)[0]
    assert mappings[-1].next == end_offsets(to_a.source, topic)[0]
    expected = [[r for r in there if r.value is not None and r.value.startswith(b"b-")]]
    here = [
        [
            r._replace(headers=(r.headers or [])[:-1] or None)
            if r.value in {e.value for e in expected[0]}
            else r
            for r in p
        ]
        for p in read_all(to_a.target, topic)
    ]
    assert_mapped(to_a, topic, expected, here)
    settings = to_a.settings
    with closing(
        MappingTail(settings, clients.admin(settings.client_config("destination", "admin")))
    ) as tail:
        tail.catch_up()
        index = tail.index.partitions[topic_id(to_a.source, topic), 0]
        at = {r.value: r.offset for r in here[0]}
        where = [index.translate(r.offset, 0) for r in there]
    copied = [b"b-0"] * 5 + [b"b-1", b"b-2"]
    assert [(w.offset, w.exact) for w in where[:7]] == [(at[value], True) for value in copied]
    assert where[7].offset == at[b"b-2"] + 1


def test_verify_finds_a_copy_that_is_doubled_and_one_that_is_missing_among_the_records_of_others(
    pair: tuple[Link, Link, str], names: Names
) -> None:
    """Promise: that others write there too does not hide a fault: a copy that is there twice, or a record
    that never arrived, is found."""
    to_b, _, topic = pair
    verified(to_b)
    (copy, *_) = of(read_all(to_b.target, topic)[0], mark(told(to_b.source)))
    again = Record(copy.value, copy.key, 0, copy.timestamp, [*(copy.headers or []), mark(told(to_b.source))])
    produce(to_b.target, topic, [again])
    (report,) = verify_link(to_b.settings, Options()).partitions
    assert set(report.findings) == {Kind.DUPLICATED} and report.findings[Kind.DUPLICATED].count == 1
    off = verify_link(Link(to_b.source, to_b.target, f"{names.link}.none", topic).settings, Options())
    assert off.failed(allow_behind=True)
    produce(to_b.source, topic, written("a", 5, 6))
    (report,) = verify_link(to_b.settings, Options()).partitions
    assert report.behind == 1


def test_a_plan_warns_of_a_link_that_takes_copies_back_unless_both_mark_them(
    pair: tuple[Link, Link, str],
) -> None:
    """Promise: where the control topic of a link in the other direction can be read at the source, `verbatim
    plan` names it and the topic."""
    to_b, to_a, topic = pair
    for link, other in ((to_b, to_a), (to_a, to_b)):
        planned = [plan(link, PROVENANCE_HEADERS=value)[0]["warnings"] for value in ("false", "true")]
        said, unsaid = ([line for line in lines if "goes round" in line] for lines in planned)
        assert len(said) == 1 and said[0].startswith(
            f"topic {topic} goes round: link {other.settings.application_name} has copied {topic}"
        )
        assert not unsaid
    assert not [
        w
        for w in plan(to_b, KAFKA_CLUSTERS_DESTINATION_TOPIC="eu.{topic}", PROVENANCE_HEADERS="false")[0][
            "warnings"
        ]
        if "round" in w
    ]


def test_without_the_setting_no_header_is_added_and_what_comes_back_halts_by_name(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: a link that is not asked to copies byte for byte, also records that bear such headers already;
    where one would take a record back under the name that it had, the partition halts and says why, and goes
    on once the setting is on."""
    a, b, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic("orders")
    create_topic(a, topic, 1, KEPT)
    to_b = Link(a, b, f"{names.link}.ab", topic)
    elsewhere: Headers = [("verbatim.provenance", b"another")]
    produce(a, topic, [*written("a", 0, 5), Record(b"far", None, 0, None, elsewhere)])
    assert to_b.copy() == (0, 0)
    assert_copied(to_b, topic)
    produce(a, topic, written("a", 5, 8))
    marking = Link(a, b, f"{names.link}.ab", topic, **ON)
    assert marking.copy() == (0, 0)
    assert [
        len(r.headers or []) - len(OWN[i % 4] or []) for i, r in enumerate(read_all(b, topic)[0][6:], 5)
    ] == [1, 1, 1]
    back = Link(b, a, f"{names.link}.ba", topic, START_OFFSETS="latest")
    assert back.replicate() == 0
    back.accept_destination(topic)
    assert back.deduplicate() == 0
    produce(a, topic, written("a", 8, 9))
    assert marking.copy() == (0, 0)
    before = end_offsets(a, topic)
    capsys.readouterr()
    assert back.replicate() == 3
    assert (
        "came from the target cluster, and would go round; set PROVENANCE_HEADERS" in capsys.readouterr().err
    )
    assert back.halted() == {(topic, 0): "loop"}
    assert end_offsets(a, topic) == before
    produce(b, topic, written("b", 0, 2))
    mended = Link(b, a, f"{names.link}.ba", topic, START_OFFSETS="latest", **ON)
    assert mended.copy() == (0, 0)
    assert not mended.halted()
    assert [r.value for r in of(read_all(a, topic)[0], mark(told(b)))] == [b"b-0", b"b-1"]
