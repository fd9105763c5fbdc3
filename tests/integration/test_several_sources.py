"""Several source topics in one destination, on real brokers: each exact, told apart, and what can't be is
refused by name."""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from common.kafka.client.topics import add_partitions, configs
from common.link.partitioning import staging_partition
from common.ports import Deadline
from offsets.service import read_only
from tests.conftest import Kafka, Names
from tests.integration.test_cutover import cutover, refused_at
from tests.integration.test_failover import failover
from tests.integration.test_offsets import commit, committed, run
from tests.integration.test_plan import plan
from tests.support.brokers import Record, create_topic, delete_topic, produce, read_all, topic_id
from tests.support.control_json import encode
from tests.support.harness import Link, assert_mapped, eventually
from verbatim.main import cli

MAP = "KAFKA_CLUSTERS_DESTINATION_TOPIC_MAP"
STAGING = 4
BACKLOG = 1500
"""Of records of 1.5 KB: more than one batch, for both owners to send at once."""


def apart(names: Names) -> tuple[str, str]:
    """Two topics whose partitions of one number have owners of their own."""
    first = names.topic("orders")
    ways = (names.topic(f"returns{n}") for n in range(100))
    return first, next(
        t for t in ways if staging_partition(t, 0, STAGING) != staging_partition(first, 0, STAGING)
    )


def link_of(source: Kafka, target: Kafka, names: Names, into: dict[str, str]) -> Link:
    return Link(
        source.bootstrap_servers,
        target.bootstrap_servers,
        names.link,
        ",".join(into),
        STAGING_PARTITIONS=str(STAGING),
        **{MAP: ",".join(f"{topic}={name}" for topic, name in into.items())},
        SEVERAL_SOURCES="merge",
    )


def records(begin: int, end: int, partition: int = 0) -> list[Record]:
    return [Record(b"%d" % i, b"k%d" % i, partition=partition) for i in range(begin, end)]


def verify(link: Link, *options: str) -> dict[str, Any]:
    found = CliRunner().invoke(cli.commands["verify"], ["--output", "json", *options], env=link.variables)
    assert found.exit_code in (0, 1), found.output
    return dict(json.loads(found.stdout))


def findings(report: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(p["topic"], p["partition"]): p["findings"] for p in report["partitions"] if p["findings"]}


def assert_merged(link: Link, into: str, *topics: str) -> None:
    """Each record of each source is once in the destination, where its mapping says, in the source
    partition's order; nothing else is."""
    here = read_all(link.target, into)
    held = [0] * len(here)
    for topic in topics:
        there = read_all(link.source, topic)
        assert_mapped(link, topic, there, here[: len(there)])
        for partition, expected in enumerate(there):
            held[partition] += len(expected)
    assert [len(partition) for partition in here] == held


def mapped(link: Link, *topics: str) -> int:
    """How many records have arrived: less to read than these."""
    return sum(
        mapping.records
        for topic in topics
        for of_partition in link.mappings(topic).values()
        for mapping in of_partition
    )


def interleaved(link: Link, *topics: str) -> bool:
    """Whether something of another owner stands between the records of a transaction."""
    return any(
        a[1] + a[2] < b[1]
        for topic in topics
        for mapping in link.mappings(topic).get(0, [])
        for a, b in pairwise(mapping.runs)
    )


class Load:
    """Writes to both topics, partition after partition, until told to end."""

    def __init__(self, bootstrap: str, topics: dict[str, int]) -> None:
        self._bootstrap, self._topics, self._stop = bootstrap, topics, threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 2})
        while not self._stop.is_set():
            for topic, partitions in self._topics.items():
                for _ in range(4):
                    self.sent += 1
                    producer.produce(
                        topic, b"%s %d" % (topic.encode(), self.sent), partition=self.sent % partitions
                    )
            producer.poll(0)
            time.sleep(0.004)
        assert producer.flush(10) == 0

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.whole
def test_two_topics_in_one_are_exact_under_load_and_a_restart_and_what_cannot_be_told_is_refused(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: records of both topics arrive once, each partition in its order, mapped to where they are,
    whoever else writes there, also across a restart and as one of them grows; no transaction is given up for
    the other owner's sake; no group is moved, by whatever command; `verify` finds nothing, and then what
    somebody else writes there."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    orders, returns = apart(names)
    everything = f"{names.link}.all"
    create_topic(at, orders, 1)
    create_topic(at, returns, 2)
    link = link_of(source, target, names, {orders: everything, returns: everything})
    planned, code = plan(link)
    assert code == 0 and {t["topic"]: t["meets"] for t in planned["topics"]} == {
        orders: [returns],
        returns: [orders],
    }
    caplog.set_level(logging.INFO)
    with link.running() as (replicator, deduplicator):
        with closing(Load(at, {orders: 1, returns: 2})) as load:
            eventually(lambda: sum(link.arrived(everything)) > 300, "records")
            deduplicator.stop()
            backlog = [Record(b"%d" % n + bytes(1500)) for n in range(BACKLOG)]
            bursts = 1
            for topic in (orders, returns):
                produce(at, topic, backlog)
            again = link.start_deduplicator()
            try:
                admin = AdminClient({"bootstrap.servers": at})
                add_partitions(admin, orders, 3, Deadline(10))
                produce(at, orders, records(0, 20, 2))
                eventually(lambda: 2 in link.mappings(orders), "growth")
                while not interleaved(link, orders, returns):
                    assert bursts < 20, "no transaction met another's records"
                    bursts += 1
                    for topic in (orders, returns):
                        produce(at, topic, backlog)
                    time.sleep(1)
            finally:
                load.close()
        sent = load.sent + 20 + bursts * 2 * BACKLOG
        eventually(lambda: mapped(link, orders, returns) == sent, "all records")
        for group, topic in (("of-orders", orders), ("of-returns", returns)):
            commit(at, group, topic, 5)
        assert "2 never translated (several-sources)" in run(link, "--once")
        assert {line["outcome"] for line in json.loads(run(link, "describe", "--output", "json"))} == {
            "several-sources"
        }
        assert run(link, "--dry-run").count("several-sources: records of several source topics") == 2
        report, code = cutover(link, tmp_path / "memory", wait_s=1, quiet_s=0.5)
        assert (code, refused_at(report)) == (1, "groups")
        assert "of-orders" in str(report["steps"]) and "several-sources" in str(report["steps"])
        commit(to, "of-orders", everything, 7)
        assert run(link, "--reverse").count("several-sources: records of several source topics") == 2
        replicator.stop()
        report, code = failover(link)
        assert code == 1 and "of-orders" in str(report["steps"]) and "several-sources" in str(report["steps"])
        assert {p["newest_ms"] for p in report["missing"]} == {None}
        again.stop()
    assert_merged(link, everything, orders, returns)
    assert "another writer" not in caplog.text
    assert [committed(at, "of-orders", orders), committed(to, "of-returns", everything)] == [5, None]
    assert verify(link, "--complete")["ok"]
    copy = read_all(to, everything)[1][0]
    end = produce(to, everything, [Record(copy.value, copy.key, timestamp=copy.timestamp, partition=1)])[0]
    delete_topic(at, returns)
    # Of a topic that is gone its mappings still tell whose its records are.
    assert findings(verify(link)) == {
        (orders, 1): {"foreign": {"count": 1, "source_offset": None, "destination_offset": end, "pipeline": 0, "detail": "no mapping of any source topic leads to it"}}
    }  # fmt: skip


def test_what_may_not_meet_is_refused_by_name_and_the_first_goes_on(
    source: Kafka,
    target: Kafka,
    names: Names,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise: of two compacted topics the first is copied and the second refused by name; the configuration
    of a destination follows none of its sources; a link set back to fail refuses by name all that have met,
    until it is set to merge again."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    keys, more, one, other = (names.topic(what) for what in ("keys", "more", "one", "other"))
    compacted, both = f"{names.link}.compacted", f"{names.link}.both"
    for topic in (keys, more):
        create_topic(at, topic, 1, {"cleanup.policy": "compact"})
    create_topic(at, one, 1, {"segment.ms": "86400000"})
    create_topic(at, other, 1, {"segment.ms": "3600000"})
    for topic in (keys, more, one, other):
        produce(at, topic, records(0, 5))
    rewrite = f"{keys}|{more}={compacted},{one}|{other}={both}"
    selected = f"{keys},{more},{one},{other}"
    variables = {"KAFKA_CLUSTERS_DESTINATION_TOPIC_REWRITE": rewrite, "STAGING_PARTITIONS": str(STAGING)}
    link = Link(at, to, names.link, selected, SEVERAL_SOURCES="merge", **variables)
    assert link.replicate() == 0
    assert link.deduplicate() == 3
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    halted = link.halted()
    assert (
        len(halted) == 1
        and set(halted) < {(keys, 0), (more, 0)}
        and set(halted.values()) == {"destination-refused"}
    )
    assert len(lines) == 1 and "a record of one would delete those of the other with its key" in lines[0]
    assert link.arrived(compacted) == [5] and link.arrived(both) == [10]
    kept = {topic_id(at, one): "86400000", topic_id(at, other): "3600000"}
    first = next(which for which in link.control().destinations if which in kept)
    target_admin = AdminClient({"bootstrap.servers": to})
    assert configs(target_admin, [both], Deadline(10))[both]["segment.ms"] == kept[first]
    tell = CliRunner().invoke(cli.commands["topics"], ["--output", "json"], env=link.variables)
    shown = {line["topic"]: line for line in json.loads(tell.stdout)}
    assert shown[one]["meets"] == [other]
    assert all(
        "follows none of its sources" in change["kept"]
        for change in shown[one]["config"] + shown[other]["config"]
    )
    met = {(one, 0), (other, 0)}
    fail = Link(at, to, names.link, selected, **variables)
    assert fail.deduplicate() == 3
    assert met < refusals(link)
    assert f"topic {other} is copied there already, and SEVERAL_SOURCES is fail" in caplog.text
    assert link.deduplicate() == 3
    assert not met & refusals(link)
    ((refused, _),) = link.halted()
    alone = keys if refused == more else more
    assert_a_topic_that_joins_meanwhile_is_seen(link, alone, compacted, monkeypatch)


def assert_a_topic_that_joins_meanwhile_is_seen(
    link: Link, topic: str, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of a topic that is alone is translated, but not once another joins while the mappings are read,
    with its records in them."""
    commit(link.source, "alone", topic, 3)
    with closing(read_only(link.settings, needs_source=True)) as survey:
        assert {row.record.outcome for row in survey.look().rows if row.key.topic == topic} == {"written"}
        catch_up = survey.tail.catch_up

        def and_somebody_joins(*args: Any) -> bool:
            said = {"topic": "late", "topic_id": "late", "partitions": 1, "max_message_bytes": 1}
            joins = encode("destination", destination=destination, **said)
            produce(link.target, link.settings.control_topic, [Record(joins)])
            return catch_up(*args)

        monkeypatch.setattr(survey.tail, "catch_up", and_somebody_joins)
        assert {row.record.outcome for row in survey.look().rows if row.key.topic == topic} == {
            "several-sources"
        }


def refusals(link: Link) -> set[tuple[str, int]]:
    """Topics that are not let in now."""
    state = link.control()
    return {
        (s.topic, 0)
        for s in state.topics.values()
        if (to := state.destinations.get(s.topic_id)) and to.refused
    }
