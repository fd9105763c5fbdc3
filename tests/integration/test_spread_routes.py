"""Records that a stage spreads over the partitions of another topic by their keys, on real brokers: each
where Kafka's own partitioner would put it, once, in the order of its source partition."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Producer

from common.link import identity
from common.link.halt_reasons import HaltReason
from offsets.group_offsets import GroupKey
from tests.conftest import Names
from tests.integration import test_routes
from tests.integration.test_failover import KEPT, failover, on_record
from tests.integration.test_offsets import commit, committed, group_offsets, in_step, once, run
from tests.integration.test_pipelines import dies_in_transactions, verified
from tests.integration.test_routes import delivered, servers
from tests.support.brokers import Record, Seen, create_topic, produce, read_all
from tests.support.harness import Link, eventually
from verbatim.local.kafka_cluster import Cluster

__all__ = ["servers"]
SPREAD = """\
version: 1
flows:
  - topics: ['.*\\.events']
    value: json
    onError: dead-letter
    stages:
      - filter: {drop: {test: true}}
      - route: {cases: [{when: {country: DE}, topic: '{topic}.de'}], else: '{topic}.rest', partition: {hash: 6}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(SPREAD)
    return path


def link_of(servers: tuple[str, str], name: str, file: Path, **more: str) -> Link:
    return Link(*servers, name, rf"{name}\.t\.events", PIPELINE=str(file), STAGING_PARTITIONS="3", **more)


def event(number: int, partition: int) -> Record:
    """As test_routes has them, with keys that come again; each thirteenth has none."""
    key = None if number % 13 == 0 else b"key-%d" % (number % 40)
    return replace(test_routes.event(number, partition), key=key)


def chosen(server: str, topic: str, keys: set[bytes], partitions: int) -> dict[bytes, int]:
    """Where librdkafka's producer puts keys, by the partitioner that is Java's default."""
    create_topic(server, topic, partitions)
    producer = Producer({"bootstrap.servers": server, "partitioner": "murmur2_random"})
    for key in sorted(keys):
        producer.produce(topic, b"", key)
    assert producer.flush(30) == 0
    return {
        seen.key: p for p, its in enumerate(read_all(server, topic)) for seen in its if seen.key is not None
    }


def assert_spread(link: Link, topic: str, to: list[str], partitions: int, rule: dict[bytes, int]) -> None:
    """All that is in these topics lies where it belongs, in the order of each source partition; and nothing
    is anywhere twice, or lacking."""
    there = read_all(link.source, topic)
    told: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
    for source_partition, mappings in link.mappings(topic).items():
        assert all(a.next == b.start for a, b in pairwise(mappings))
        for at, runs in ((at, runs) for mapping in mappings for at, runs in mapping.places.items()):
            its = told.setdefault(at, {})
            for source, here, count in runs:
                assert not its.keys() & range(here, here + count), "two records at one offset"
                its |= {here + n: (source_partition, source + n) for n in range(count)}
    arrived: list[tuple[int, int]] = []
    for name in to:
        copies = read_all(link.target, name)
        assert len(copies) == partitions
        for number, its_copies in enumerate(copies):
            origins = [original_of(there, seen) for seen in its_copies]
            assert told.get((name, number), {}) == dict(
                zip((seen.offset for seen in its_copies), origins, strict=True)
            )
            for seen, (source_partition, _) in zip(its_copies, origins, strict=True):
                assert number == (source_partition % partitions if seen.key is None else rule[seen.key])
            for source_partition in range(len(there)):
                order = [offset for of, offset in origins if of == source_partition]
                assert order == sorted(order), (name, number)
            arrived += origins
    goes_on = [
        (p, seen.offset)
        for p, its_records in enumerate(there)
        for seen in its_records
        if seen.value != b"{" and b"true" not in (seen.value or b"")
    ]
    assert sorted(arrived) == sorted(goes_on)


def original_of(there: list[list[Seen]], seen: Seen) -> tuple[int, int]:
    """Partition and offset of the source's record that this is a copy of."""
    ((partition, found),) = [
        (p, one) for p, its in enumerate(there) for one in its if one.value == seen.value
    ]
    assert found.key == seen.key and found.timestamp == seen.timestamp
    return partition, found.offset


def test_keys_lie_where_kafkas_partitioner_puts_them_whatever_becomes_of_transactions(
    servers: tuple[str, str], file: Path, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: of a topic of 4 partitions, in topics of 6 that the link makes: each record once, those of a
    key together with what any producer writes there, in the order of their source partition; what was given
    up is seen by nobody; `verify` finds nothing, and what is done to one of the topics; groups are refused by
    name."""
    name = names.link
    events = f"{name}.t.events"
    to = [f"{events}.de", f"{events}.rest"]
    link = link_of(servers, name, file, CONSUMER_GROUPS="g")
    create_topic(link.source, events, 4)
    dies_in_transactions(monkeypatch)
    with link.running():
        for i in range(0, 120, 4):
            produce(link.source, events, [event(i + p, p) for p in range(4)])
            time.sleep(0.05)
        eventually(delivered(link, events, 120), "all", 200)
    rule = chosen(link.target, f"{name}.reference", {b"key-%d" % n for n in range(40)}, 6)
    assert len(set(rule.values())) == 6
    assert_spread(link, events, to, 6, rule)
    uncommitted = sum(len(p) for t in to for p in read_all(link.target, t, "read_uncommitted"))
    assert uncommitted > sum(len(p) for t in to for p in read_all(link.target, t)), "some were given up"

    code, report = verified(link)
    assert code == 0, report
    lines = {p["destination_topic"] for p in report}
    assert lines == {events, *(f"{topic}/{p}" for topic in to for p in range(6))}

    commit(link.source, "g", events, 3, 1)
    once(link)
    rows = group_offsets(link)
    for topic in to:
        row = rows[GroupKey("g", events, 1, topic)]
        assert (row.outcome, row.offset) == ("repartitioned", None)
        assert committed(link.target, "g", topic) is None
    told = run(link, "describe")
    assert told.count("repartitioned") >= 2

    (stray,) = read_all(link.target, to[0])[rule[b"key-8"]][:1]
    produce(link.target, to[0], [Record(stray.value, stray.key, rule[b"key-8"], headers=stray.headers)])
    code, report = verified(link)
    wrong = [(p["destination_topic"], list(p["findings"])) for p in report if p["findings"]]
    assert (code, wrong) == (1, [(f"{to[0]}/{rule[b'key-8']}", ["foreign"])])


@pytest.mark.whole
def test_topics_grow_with_the_version_and_one_of_other_partitions_is_refused_by_name(
    servers: tuple[str, str], file: Path, names: Names
) -> None:
    """Promise: nothing is put where a producer would not put it; what was held comes once the version says
    how many there are."""
    name = names.link
    events = f"{name}.t.events"
    to = [f"{events}.de", f"{events}.rest"]
    link = link_of(servers, name, file)
    create_topic(link.source, events, 2)
    file.write_text(SPREAD.replace("hash: 6", "hash: 3"))
    produce(link.source, events, [event(i, i % 2) for i in range(20)])
    with link.running():
        eventually(delivered(link, events, 20), "the first version's", 100)
        assert [len(read_all(link.target, topic)) for topic in to] == [3, 3]
        file.write_text(SPREAD)
        eventually(lambda: len(link.control().pipelines) == 2, "the second version", 60)
        produce(link.source, events, [event(i, i % 2) for i in range(20, 40)])
        eventually(delivered(link, events, 40), "the second version's", 100)
        assert [len(read_all(link.target, topic)) for topic in to] == [6, 6]
        file.write_text(SPREAD.replace("hash: 6", "hash: 4"))
        eventually(lambda: len(link.control().pipelines) == 3, "the third version", 60)
        produce(link.source, events, [event(i, i % 2) for i in range(40, 60)])
        halted = {(events, p): HaltReason.REFUSED for p in (0, 1)}
        eventually(lambda: link.halted() == halted, "the halts", 100)
        halts = [halt.detail for halt in link.control().halts.values()]
        assert all("6 partitions, and a stage spreads keys over 4: say {hash: 6}" in why for why in halts), (
            halts
        )
        file.write_text(SPREAD)
        eventually(delivered(link, events, 60), "what was held", 200)
    code, report = verified(link)
    assert code == 0, report


@pytest.mark.whole
def test_a_group_of_what_is_spread_is_named_and_left_alone_when_the_source_is_gone(
    servers: tuple[str, str], file: Path, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: `failover` writes no position into topics whose partitions are not the source's, and names the
    group; in the link's own destination it goes on as ever."""
    monkeypatch.setattr(identity, "SOURCE_S", 0.5)
    file.write_text(SPREAD.replace(" else: '{topic}.rest',", ""))
    name = names.link
    events, group = f"{name}.t.events", f"{name}.g"
    with Cluster() as source:
        link = link_of((source.bootstrap_servers, servers[1]), name, file, CONSUMER_GROUPS=group)
        create_topic(link.source, events, 1, KEPT)
        produce(link.source, events, [event(i, 0) for i in range(1, 31)])
        assert link.copy() == (0, 0)
        with in_step(link):
            commit(link.source, group, events, 9)
            eventually(lambda: on_record(link) == [9, 9], "the group to be on record", 60)
        source.kill(1)
        report, code = failover(link, wait_s=60)
    assert code == 1 and "repartitioned" in report["refused"], report
    told = {(g["destination_topic"], g["outcome"]) for g in report["groups"]}
    assert (f"{events}.de", "repartitioned") in told
    assert all(committed(link.target, group, f"{events}.de", p) is None for p in range(6))
    (own,) = read_all(link.target, events)
    first = next(seen.offset for seen in own if seen.key not in {b"key-%d" % n for n in range(1, 10)})
    assert committed(link.target, group, events) == first
