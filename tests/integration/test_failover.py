"""`verbatim failover` with a source that is killed: groups go on at the target where they stopped, and what
is missing is told exactly."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from common.link import identity
from offsets.group_offsets import decode
from tests.conftest import Kafka, Names
from tests.integration.test_cutover import refused_at, work
from tests.integration.test_offsets import commit, committed, in_step
from tests.support.beside import beside
from tests.support.brokers import Record, create_topic, member, produce, read_all, topics
from tests.support.harness import Link, eventually
from verbatim.local.kafka_cluster import Cluster
from verbatim.main import cli

KEPT = {"retention.ms": "-1"}
AT_MS = 1_700_000_000_000


def failover(link: Link, wait_s: float = 30, **variables: str) -> tuple[dict[str, Any], int]:
    """The report and the exit code."""
    found = CliRunner().invoke(
        cli.commands["failover"],
        ["--output", "json", "--wait", str(wait_s)],
        env={**link.variables, **variables},
    )
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return json.loads(found.stdout), found.exit_code


@contextmanager
def trap() -> Iterator[tuple[str, list[Any]]]:
    """Listens where nobody but those who are told so takes a cluster to be: its address, and who has
    called."""
    callers: list[Any] = []
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(0.1)

        def main(stop: threading.Event) -> None:
            while not stop.is_set():
                try:
                    connection, caller = listening.accept()
                except TimeoutError:
                    continue
                callers.append(caller)
                connection.close()

        with beside(main, 5):
            yield f"127.0.0.1:{listening.getsockname()[1]}", callers


def on_record(link: Link) -> list[int]:
    """The source offsets of the group-offsets topic, by key; none where there is no such topic yet."""
    if link.settings.group_offsets_topic not in topics(link.target):
        return []
    records = [
        record
        for partition in read_all(link.target, link.settings.group_offsets_topic)
        for record in partition
    ]
    found = dict(decode(record.key, record.value) for record in records)
    return [value.source_offset for _, value in sorted(found.items()) if value is not None]


def test_groups_go_on_at_the_target_when_the_source_is_gone_and_what_is_missing_is_told(
    target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 records of each partition are delivered, 20 staged, 10 only at the source; the group stopped within
    what is staged of one, and beyond that of the other."""
    monkeypatch.setattr(identity, "SOURCE_S", 0.5)
    to, topic, group = target.bootstrap_servers, names.topic(), f"{names.link}.g"

    def write(begin: int, end: int) -> None:
        for p in (0, 1):
            produce(
                link.source,
                topic,
                [Record(b"%d-%d" % (p, i), partition=p, timestamp=AT_MS + i) for i in range(begin, end)],
            )

    began_ms = time.time() * 1000
    with Cluster() as source:
        link = Link(source.bootstrap_servers, to, names.link, topic)
        create_topic(link.source, topic, 2, KEPT)
        write(0, 30)
        assert link.copy() == (0, 0)
        write(30, 50)
        assert link.replicate() == 0
        staged_ms = time.time() * 1000
        write(50, 60)
        with in_step(link):
            for partition, offset in ((0, 40), (1, 55)):
                commit(link.source, group, topic, offset, partition)
            eventually(lambda: on_record(link) == [40, 55], "the group to be on record")
        source.kill(1)

        report, code = failover(link, wait_s=60)
        assert (code, refused_at(report)) == (1, "staging") and "does not run" in report["refused"]
        assert report["seconds"] < 50
        (first, _) = read_all(to, topic)
        assert committed(to, group, topic, 0) == first[29].offset + 1

        deduplicator = link.start_deduplicator()
        try:
            eventually(lambda: link.arrived(topic) == [50, 50], "what is staged to be delivered")
            with trap() as (there, callers):
                report, code = failover(link, KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS=there)
            assert (code, report["refused"]) == (0, None)
            assert callers == [], "nobody is to call the source"
        finally:
            deduplicator.stop()

        (first, _) = read_all(to, topic)
        assert committed(to, group, topic, 0) == first[40].offset
        with closing(member(to, group, topic)) as consumer:
            assert work(consumer, 11, 5) == [b"0-%d" % i for i in range(40, 50)]
        told = {m["partition"]: m for m in report["missing"]}
        assert [told[p]["delivered"] for p in (0, 1)] == [50, 50]
        assert [told[p]["at_least"] for p in (0, 1)] == [0, 5]
        assert [told[p]["newest_ms"] for p in (0, 1)] == [AT_MS + 49] * 2
        assert began_ms < report["last_staged_ms"] < staged_ms


def test_it_waits_for_a_replicator_to_end_and_leaves_a_group_in_use_alone(
    source: Kafka, target: Kafka, names: Names
) -> None:
    at, to, topic, group = (
        source.bootstrap_servers,
        target.bootstrap_servers,
        names.topic(),
        f"{names.link}.g",
    )
    link = Link(at, to, names.link, topic)
    create_topic(at, topic, 1, KEPT)
    produce(at, topic, [Record(b"%d" % i) for i in range(10)])
    with link.running():
        eventually(lambda: link.arrived(topic) == [10], "all to be copied")
        (here,) = read_all(to, topic)
        with in_step(link):
            commit(at, group, topic, 4)
            eventually(lambda: committed(to, group, topic) == here[4].offset, "the group to be in step")
        report, code = failover(link, wait_s=0)
        assert (code, refused_at(report)) == (1, "stopped") and "replicator still runs" in report["refused"]
    deduplicator = link.start_deduplicator()
    try:
        with closing(member(to, group, topic)) as consumer:
            assert work(consumer, 2) == [b"4", b"5"]
            at_target = committed(to, group, topic)
            report, code = failover(link)
            assert code == 1 and "active" in report["refused"]
            # What is missing is told all the same.
            assert report["missing"][0]["delivered"] == 10
        report, code = failover(link)
        assert (code, [g["outcome"] for g in report["groups"]]) == (0, ["target-ahead"])
        assert committed(to, group, topic) == at_target
    finally:
        deduplicator.stop()


def test_a_partition_that_stands_still_is_told_and_does_not_keep_the_others(
    source: Kafka, target: Kafka, names: Names
) -> None:
    at, to = source.bootstrap_servers, target.bootstrap_servers
    fine, kept = names.topic("fine"), names.topic("kept")
    for topic in (fine, kept):
        create_topic(at, topic, 1, KEPT)
        produce(at, topic, [Record(b"v", timestamp=AT_MS)])
    create_topic(to, kept, 1, {"retention.ms": "3600000"})
    link = Link(at, to, names.link, f"{fine},{kept}")
    assert link.copy() == (0, 3)
    report, code = failover(link, wait_s=5)
    assert code == 3 and "1 partitions stand still" in report["refused"]
    assert [step["state"] for step in report["steps"]] == ["done"] * 5
    there, held = sorted(report["missing"], key=lambda m: str(m["topic"]))
    assert (there["topic"], there["delivered"], there["newest_ms"], there["why"]) == (fine, 1, AT_MS, None)
    assert (held["topic"], held["delivered"], held["known_to"]) == (kept, None, 1)
    assert held["why"].startswith("destination-refused")
