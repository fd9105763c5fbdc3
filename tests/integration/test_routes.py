"""Records that a stage takes to other topics, on real brokers: each lies in one of them, once and in order,
whatever becomes of transactions, and groups go on at the first record that they have not read."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from common.link import identity
from common.link.halt_reasons import HaltReason
from offsets.group_offsets import GroupKey
from tests.conftest import Kafka, Names
from tests.integration.test_failover import KEPT, failover, on_record
from tests.integration.test_offsets import commit, committed, group_offsets, in_step, once, run
from tests.integration.test_pipelines import dies_in_transactions, verified
from tests.support.brokers import Record, Seen, create_topic, delete_topic, produce, read_all
from tests.support.harness import Link, eventually
from verbatim.local.kafka_cluster import Cluster
from verbatim.main import cli

BY_COUNTRY = """\
version: 1
flows:
  - topics: ['.*\\.events']
    value: json
    onError: dead-letter
    stages:
      - filter: {drop: {test: true}}
      - route: {cases: [{when: {country: DE}, topic: '{topic}.de'}, {when: {country: FR}, topic: '{topic}.fr'}]}
"""
OTHERWISE = BY_COUNTRY.replace("{topic}.fr'}]", "{topic}.de'}], else: '{topic}.rest'")
COUNTRIES = ("DE", "FR", "IT", "DE")


@pytest.fixture
def servers(source: Kafka, target: Kafka) -> tuple[str, str]:
    return source.bootstrap_servers, target.bootstrap_servers


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(BY_COUNTRY)
    return path


def link_of(servers: tuple[str, str], name: str, file: Path, **more: str) -> Link:
    return Link(*servers, name, rf"{name}\.t\..*", PIPELINE=str(file), **more)


def event(number: int, partition: int = 0) -> Record:
    """Each seventh is left out, each eleventh no JSON."""
    value = b'{"n":%d,"country":"%s","test":%s}' % (
        number, COUNTRIES[number % 4].encode(), b"true" if number % 7 == 0 else b"false",
    )  # fmt: skip
    return Record(b"{" if number % 11 == 0 else value, b"k%d" % number, partition, headers=[("h", b"1")])


def places(link: Link, topic: str) -> dict[tuple[str, int], dict[int, int]]:
    """By topic at the target and partition: source offset -> offset there, as mappings say. Each offset of
    the source is in one of them at most, and all that is there is one of these."""
    found: dict[tuple[str, int], dict[int, int]] = {}
    for partition, mappings in link.mappings(topic).items():
        assert all(a.next == b.start for a, b in pairwise(mappings))
        for mapping in mappings:
            for at, runs in mapping.places.items():
                its = found.setdefault(at, {})
                its |= {s + i: d + i for s, d, n in runs for i in range(n)}
        of = [offset for (_, p), its in found.items() if p == partition for offset in its]
        assert len(of) == len(set(of)), "an offset is in two topics"
    for (name, partition), its in found.items():
        here = read_all(link.target, name)[partition]
        assert [seen.offset for seen in here] == sorted(its.values()) == list(its.values())
    return found


def values(of: list[Seen]) -> list[bytes | None]:
    return [seen.value for seen in of]


def delivered(link: Link, topic: str, count: int) -> Any:
    def all_there() -> bool:
        reached = {p: m[-1].next for p, m in link.mappings(topic).items() if m}
        return reached == {p: len(r) for p, r in enumerate(read_all(link.source, topic))} and (
            sum(reached.values()) >= count
        )

    return all_there


@pytest.mark.whole
def test_records_of_one_topic_lie_in_several_once_whatever_becomes_of_transactions(
    servers: tuple[str, str], file: Path, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: each is in the one topic that its version takes it to, in its partition and in order, or left
    out, or a dead letter; what was given up is seen by nobody; the topics are made as destinations are;
    `verify` finds nothing, and what is done to one of them."""
    name = names.link
    events = f"{name}.t.events"
    link = link_of(servers, name, file)
    create_topic(link.source, events, 2, {"max.message.bytes": "2000000"})
    dies_in_transactions(monkeypatch)
    with link.running():
        for i in range(0, 60, 2):
            produce(link.source, events, [event(i, 0), event(i + 1, 1)])
            time.sleep(0.05)
        eventually(delivered(link, events, 60), "the first version's", 120)
        file.write_text(OTHERWISE)
        eventually(lambda: len(link.control().pipelines) == 2, "the second version", 120)
        for i in range(60, 120, 2):
            produce(link.source, events, [event(i, 0), event(i + 1, 1)])
            time.sleep(0.05)
        eventually(delivered(link, events, 120), "all", 120)
    found = places(link, events)
    assert {topic for topic, _ in found} == {events, f"{events}.de", f"{events}.fr", f"{events}.rest"}
    for partition, there in enumerate(read_all(link.source, events)):
        versions = {seen.offset: m.pipeline for m in link.mappings(events)[partition] for seen in there
                    if m.start <= seen.offset < m.next}  # fmt: skip
        wanted: dict[str, list[bytes | None]] = {}
        for seen in there:
            number = 2 * seen.offset + partition
            if number % 7 == 0 or number % 11 == 0:
                continue
            country = COUNTRIES[number % 4]
            rest = "" if versions[seen.offset] == 1 else ".rest"
            ends = {1: {"DE": ".de", "FR": ".fr"}, 2: {"DE": ".de", "FR": ".de"}}[versions[seen.offset]]
            wanted.setdefault(events + ends.get(country, rest), []).append(seen.value)
        for topic, its in wanted.items():
            assert values(read_all(link.target, topic)[partition]) == its, topic
    uncommitted = sum(len(p) for p in read_all(link.target, f"{events}.de", "read_uncommitted"))
    assert uncommitted > sum(len(p) for p in read_all(link.target, f"{events}.de")), "some were given up"
    config = ConfigResource(ResourceType.TOPIC, f"{events}.de")
    admin = AdminClient({"bootstrap.servers": link.target})
    assert admin.describe_configs([config])[config].result()["max.message.bytes"].value == "2000000"

    code, report = verified(link)
    assert code == 0, report
    assert {p["destination_topic"] for p in report} == {topic for topic, _ in found}
    own = [p for p in report if p["destination_topic"] == events]
    assert [p["source_records"] for p in own] == [60, 60] and all(p["routed"] > 20 for p in own)
    (stray,) = read_all(link.source, events)[0][2:3]
    produce(link.target, f"{events}.fr", [Record(stray.value, stray.key, 0, headers=stray.headers)])
    code, report = verified(link)
    wrong = [(p["destination_topic"], p["partition"], list(p["findings"])) for p in report if p["findings"]]
    assert (code, wrong) == (1, [(f"{events}.fr", 0, ["foreign"])])


def test_a_group_stands_in_each_topic_before_the_first_record_that_it_has_not_read(
    servers: tuple[str, str], file: Path, names: Names
) -> None:
    """Promise: of each source offset, exactly, in each of the topics."""
    name = names.link
    events = f"{name}.t.events"
    link = link_of(servers, name, file, CONSUMER_GROUPS="g")
    create_topic(link.source, events)
    produce(link.source, events, [event(i) for i in range(1, 31)])
    assert link.copy() == (0, 0)
    found = places(link, events)
    for at in (0, 3, 11, 17, 29, 30):
        commit(link.source, "g", events, at)
        once(link)
        rows = group_offsets(link)
        for topic in (events, f"{events}.de", f"{events}.fr"):
            its = found[topic, 0]
            behind = [there for source, there in its.items() if source >= at]
            wanted = min(behind) if behind else max(its.values()) + 1
            row = rows[GroupKey("g", events, 0, "" if topic == events else topic)]
            assert (row.offset, row.exact, row.destination_topic) == (wanted, True, topic)
            assert committed(link.target, "g", topic) == wanted
    told = run(link, "describe")
    assert f"{events} -> {events}.de" in told and f"{events} -> {events}.fr" in told
    words = f"topic {events}: version 1 of the pipeline routes its records to {events}.de, {events}.fr"
    commands = (
        ["cutover"], ["cutover", "--rehearse"], ["cutover", "--topic", events], ["cutover", "--topic", events, "--dry-run"],
        ["move-group", "g"], ["back"], ["drill", "--cut", "true", "--stop", "true", "--restore", "true"],
    )  # fmt: skip
    for command in commands:
        done = CliRunner().invoke(cli, command, env=link.variables)
        assert done.exit_code != 0 and words in f"{done.output} {done.exception}", (command, done)


@pytest.mark.whole
def test_groups_go_on_in_each_topic_of_a_route_when_the_source_is_gone(
    servers: tuple[str, str], file: Path, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: `failover` moves a group, without the source, before the first record of each topic that it
    has not read, also of records that were only staged when it stopped."""
    monkeypatch.setattr(identity, "SOURCE_S", 0.5)
    name, at = names.link, 17
    events = f"{name}.t.events"
    with Cluster() as source:
        link = link_of((source.bootstrap_servers, servers[1]), name, file, CONSUMER_GROUPS=f"{name}.g")
        create_topic(link.source, events, 1, KEPT)
        produce(link.source, events, [event(i) for i in range(1, 11)])
        assert link.copy() == (0, 0)
        produce(link.source, events, [event(i) for i in range(11, 31)])
        assert link.replicate() == 0
        with in_step(link):
            commit(link.source, f"{name}.g", events, at)
            # One in each topic, and all before what is staged only.
            eventually(lambda: on_record(link) == [at] * 3, "the group to be on record", 60)
        source.kill(1)
        deduplicator = link.start_deduplicator()
        try:
            eventually(lambda: link.mappings(events)[0][-1].next == 30, "what is staged to be delivered", 60)
            report, code = failover(link, wait_s=60)
        finally:
            deduplicator.stop()
    assert (code, report["refused"]) == (0, None)
    found = places(link, events)
    for topic in (events, f"{events}.de", f"{events}.fr"):
        wanted = min(there for source_offset, there in found[topic, 0].items() if source_offset >= at)
        assert committed(link.target, f"{name}.g", topic) == wanted, topic


def test_a_topic_of_a_route_that_is_refused_halts_by_name_and_what_was_held_comes_once_it_is_fit(
    servers: tuple[str, str], file: Path, names: Names
) -> None:
    """Promise: somebody's topic is not written to; the partition goes on once it may, with all of it in
    order."""
    name = names.link
    events = f"{name}.t.events"
    link = link_of(servers, name, file)
    create_topic(link.source, events)
    create_topic(link.target, f"{events}.de")
    produce(link.target, f"{events}.de", [Record(b"somebody's")])
    produce(link.source, events, [event(i) for i in (1, 2, 4, 5, 6, 8)])
    with link.running():
        halted = {(events, 0): HaltReason.REFUSED}
        eventually(lambda: link.halted() == halted, "the halt", 60)
        (halt,) = link.control().halts.values()
        assert f"{events}.de" in halt.detail and "accept-destination" in halt.detail
        time.sleep(1)
        assert values(read_all(link.target, f"{events}.de")[0]) == [b"somebody's"]
        delete_topic(link.target, f"{events}.de")
        eventually(lambda: link.arrived(f"{events}.de") == [2] and not link.halted(), "all to go on", 90)
    assert [seen.key for seen in read_all(link.target, f"{events}.de")[0]] == [b"k4", b"k8"]
    assert [seen.key for seen in read_all(link.target, f"{events}.fr")[0]] == [b"k1", b"k5"]
    assert [seen.key for seen in read_all(link.target, events)[0]] == [b"k2", b"k6"]
    code, report = verified(link)
    assert code == 0, report


INTO_ONE = BY_COUNTRY.replace("{topic}.de", "{link}.de").replace("{topic}.fr", "{link}.fr")


@pytest.mark.whole
def test_routes_of_several_topics_meet_in_one_where_that_is_asked_for(
    servers: tuple[str, str], file: Path, names: Names
) -> None:
    """Promise: of two source topics that are routed to one, the second is refused by name; with
    SEVERAL_SOURCES=merge each record is there once, in the order of its source partition, groups have no
    position there, and `verify` finds nothing, and what is done to it."""
    name, into = names.link, f"{names.link}.de"
    file.write_text(INTO_ONE)
    link = link_of(servers, name, file, CONSUMER_GROUPS="g", STAGING_PARTITIONS="3")
    events = [f"{name}.t.{which}.events" for which in ("a", "b")]
    for topic in events:
        create_topic(link.source, topic)
        produce(link.source, topic, [event(i) for i in range(1, 21)])
    assert link.replicate() == 0
    assert link.deduplicate() == 3
    (halt,) = link.control().halts.values()
    assert halt.reason == HaltReason.REFUSED and "SEVERAL_SOURCES" in halt.detail, halt
    link.variables["SEVERAL_SOURCES"] = "merge"
    assert link.copy() == (0, 0)
    for topic in events:
        produce(link.source, topic, [event(i) for i in range(21, 31)])
    assert link.copy() == (0, 0)
    arrived: list[tuple[str, int]] = []
    for topic in events:
        its: dict[int, int] = {}
        for mapping in link.mappings(topic)[0]:
            its |= {s + i: d + i for s, d, n in mapping.places.get((into, 0), []) for i in range(n)}
        there = read_all(link.source, topic)[0]
        assert list(its) == sorted(its) and list(its.values()) == sorted(its.values())
        german = [i for i in range(1, 31) if COUNTRIES[i % 4] == "DE" and i % 7 and i % 11]
        assert [there[offset].key for offset in its] == [b"k%d" % i for i in german]
        here = {seen.offset: seen for seen in read_all(link.target, into)[0]}
        assert all(here[to].value == there[offset].value for offset, to in its.items())
        arrived += [(topic, to) for to in its.values()]
    offsets = [seen.offset for seen in read_all(link.target, into)[0]]
    assert sorted(to for _, to in arrived) == offsets
    for topic in events:
        commit(link.source, "g", topic, 5)
    once(link)
    rows = group_offsets(link)
    assert {rows[GroupKey("g", topic, 0, into)].outcome for topic in events} == {"several-sources"}
    code, report = verified(link)
    assert code == 0, report
    produce(link.target, into, [Record(b"{}", b"k", 0)])
    code, report = verified(link)
    assert code == 1 and {p["destination_topic"] for p in report if p["findings"]} == {into}
