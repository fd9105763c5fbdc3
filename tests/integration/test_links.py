"""`verbatim links` on real brokers: links that the project's own applications have made, one that runs, one
that has halted, one that stands still, some that can't be read; and many at once."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from common.kafka.wire.batch_consumer import BatchConsumer
from common.link.control_kinds import Identity, Leader, SourceTopic, encode
from common.link.control_records import DEDUPLICATOR, REPLICATOR
from common.link.lane_counters import Counters
from common.link.lane_work import Work
from common.link.link_status import SILENT_MS
from common.ports import Deadline
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, delete_records, produce, read_all
from tests.support.guarded import variables
from tests.support.harness import Link, eventually
from tests.support.secured import Right, SecuredCluster
from verbatim.commands.links import WIDTH
from verbatim.links import tails
from verbatim.main import cli

TARGET_ONLY = "KAFKA_CLUSTERS_DESTINATION_"


def links(target: str, *options: str, **environ: str) -> Result:
    """The command, told of nothing but the target."""
    env = {f"{TARGET_ONLY}BOOTSTRAP_SERVERS": target, **environ}
    found = CliRunner().invoke(cli.commands["links"], list(options), env=env)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


def rows(target: str, names: Names, *options: str, **environ: str) -> dict[str, dict[str, Any]]:
    """What is found of the links of this test."""
    found = json.loads(links(target, "--json", *options, **environ).stdout)
    return {row["link"]: row for row in found["links"] if row["link"].startswith(names.link)}


def of(names: Names, source: Kafka, target: Kafka, what: str, **given: str) -> tuple[Link, str]:
    """A link of this test, and the topic that it copies, with ten records."""
    topic = f"{names.link}.t.{what}"
    create_topic(source.bootstrap_servers, topic, 2)
    produce(source.bootstrap_servers, topic, [Record(b"%d" % i, partition=i % 2) for i in range(10)])
    name = f"{names.link}-{what}"
    return Link(source.bootstrap_servers, target.bootstrap_servers, name, topic, **given), topic


def halt(link: Link, topic: str) -> None:
    """More comes, and is gone before it is copied."""
    assert link.copy() == (0, 0)
    produce(link.source, topic, [Record(b"more", partition=0) for _ in range(10)])
    delete_records(link.source, topic, {0: 10})
    # The replicator asks, the deduplicator answers how far it is, the replicator halts.
    assert (link.replicate(), link.deduplicate(), link.replicate())[0::2] == (3, 3)
    assert link.halted() == {(topic, 0): "source-lost"}


@pytest.mark.whole
def test_each_link_is_told_by_itself_whatever_becomes_of_the_others(
    guarded: tuple[SecuredCluster, SecuredCluster], names: Names, tmp_path: Path
) -> None:
    """Promise: given nothing but the way to the target, by a user who may read nothing but links' topics, all
    links are found; the one that runs is well, with its lag; one that has halted, one that stands still, and
    one whose control topic is denied, empty or damaged are told by name, with the reason; none of them is in
    the others' way; the sick come first, and the exit code says that there are some."""
    source, target = guarded
    at = target.bootstrap_servers
    still, _ = of(names, source, target, "still")
    assert still.copy() == (0, 0)
    runs, topic = of(names, source, target, "runs")
    halted, halted_topic = of(names, source, target, "halted")
    halt(halted, halted_topic)
    denied, _ = of(names, source, target, "denied")
    assert denied.copy() == (0, 0)
    silenced, _ = of(names, source, target, "silenced")
    assert silenced.copy() == (0, 0)
    damaged, _ = of(names, source, target, "damaged")
    assert damaged.copy() == (0, 0)
    cut = encode(Leader("replicator", "host"), damaged.settings.application_name)[:-3]
    produce(at, damaged.settings.control_topic, [Record(cut)])
    create_topic(at, f"{names.link}-empty.control", 1)
    create_topic(at, f"{names.link}-of-somebody-else.control", 1)
    produce(at, f"{names.link}-of-somebody-else.control", [Record(b"lights on"), Record(b'{"link": 7}')])
    create_topic(at, f"{names.link}-wide.control", 3)

    user = f"{names.link}-operator"
    way_in = variables("DESTINATION", target.user(user), tmp_path)
    target.grant(user, [Right("READ", "TOPIC", f"{names.link}*")])
    unreadable = [
        Right("READ", "TOPIC", denied.settings.control_topic),
        Right("READ", "TOPIC", silenced.settings.positions_topic),
    ]
    with runs.running(), target.denying(user, unreadable):
        eventually(lambda: sum(runs.arrived(topic)) == 10, "the records")
        eventually(lambda: rows(at, names)[f"{names.link}-runs"]["lag"] == 0, "the lag")
        # Who sees no groups knows by what lanes say alone, which is fresh for fifteen seconds.
        time.sleep(SILENT_MS / 1000)
        shown = links(target.secure_servers, **way_in)
        tried = target.denied(user)
        found = rows(target.secure_servers, names, **way_in)
        # Who may see groups is told of them.
        allowed = rows(at, names)[f"{names.link}-runs"]
    said = {name.removeprefix(f"{names.link}-"): row for name, row in found.items()}
    assert {what: row["state"] for what, row in said.items()} == {
        "damaged": "unread",
        "denied": "unread",
        "empty": "unread",
        "silenced": "unread",
        "halted": "halted",
        "still": "silent",
        "runs": "runs",
    }
    assert [row["sick"] for row in said.values()] == [True] * 6 + [False], "the sick come first"
    well = said["runs"]
    assert (well["topics"], well["partitions"], well["lag"], well["topics_without_lag"]) == (1, 2, 0, 0)
    assert (well["source"], well["why"], well["halts"]) == (source.cluster_id, [], {})
    for line in [*well["applications"], *allowed["applications"]]:
        assert line["runs"] is True and line["said_s"] < 15, line
    assert [line["application"] for line in well["applications"]] == ["replicator", "deduplicator"]
    assert (said["halted"]["halts"], said["halted"]["halted_partitions"]) == ({"source-lost": 1}, 1)
    assert said["halted"]["why"][0] == "halted: source-lost 1"
    assert [why.partition(";")[0] for why in said["still"]["why"]] == [
        "replicator does not run",
        "deduplicator does not run",
    ]
    assert said["still"]["lag"] == 0
    (words,) = said["denied"]["why"]
    assert denied.settings.control_topic in words and "authorization failed; grant READ" in words
    assert silenced.settings.positions_topic in said["silenced"]["why"][0]
    assert (said["silenced"]["topics"], said["silenced"]["lag"]) == (1, None)
    assert said["empty"]["why"] == [f"topic {names.link}-empty.control: it is empty"]
    assert "can't be understood" in said["damaged"]["why"][0]
    assert shown.exit_code == 3
    assert all(len(line) <= WIDTH for line in shown.stdout.splitlines())
    assert f"{names.link}-halted: halted: source-lost 1" in shown.stdout
    assert {(one.resource.upper(), one.name) for one in tried} <= {
        ("TOPIC", right.name) for right in unreadable
    } | {("CLUSTER", "kafka-cluster"), ("TOPIC", "verbatim.control")}


def test_paused_and_healthy_links_are_well_and_what_is_left_out_is_not_told(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: exit code 0 where no link is sick; a link that is paused as a whole is called so; a link is
    left out by a name or an expression."""
    at = target.bootstrap_servers
    paused, topic = of(names, source, target, "paused")
    still, _ = of(names, source, target, "still")
    assert still.copy() == (0, 0)
    with paused.running():
        eventually(lambda: sum(paused.arrived(topic)) == 10, "the records")
        CliRunner().invoke(cli.commands["pause"], [], env=paused.variables, catch_exceptions=False)
        only = f"(?!{names.link}-).*,{names.link}-s.*l"
        found = eventually(
            lambda: (
                (row := rows(at, names, "--exclude", only)[f"{names.link}-paused"])["lag"] == 0
                and not row["sick"]
                and row
            ),
            "the lag",
        )
        assert (found["state"], found["paused_topics"], found["topics"]) == ("paused", 1, 1)
        assert links(at, "--exclude", only).exit_code == 0
        both = rows(at, names)
    assert list(both) == [f"{names.link}-still", f"{names.link}-paused"]


def test_links_whose_topics_have_other_names_are_read_or_at_least_named(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: links that share a control topic are told one by one, also where it is called otherwise and
    given; the lanes' words are found under another name; without it the link is named by its other topics."""
    at = target.bootstrap_servers
    shared = {"CONTROL_TOPIC": f"{names.link}.agreed"}
    first, _ = of(names, source, target, "first", **shared)
    others = {"POSITIONS_TOPIC": f"{names.link}.where", "STAGING_PARTITIONS": "1"}
    second, second_topic = of(names, source, target, "second", **shared, **others)
    assert (first.copy(), second.copy()) == ((0, 0), (0, 0))
    halt(second, second_topic)
    found = rows(at, names, "--control-topic", shared["CONTROL_TOPIC"])
    assert {name: row["state"] for name, row in found.items()} == {
        f"{names.link}-first": "silent",
        f"{names.link}-second": "halted",
    }
    for row in found.values():
        assert [line["said_s"] is not None for line in row["applications"]] == [True, True], row["why"]
    assert found[f"{names.link}-second"]["control_topic"] == shared["CONTROL_TOPIC"]
    without = rows(at, names)
    assert {row["state"] for row in without.values()} == {"unread"}
    assert f"{names.link}-first" in without and "--control-topic" in without[f"{names.link}-first"]["why"][0]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("many", "turns"), [pytest.param(50, 200, marks=pytest.mark.whole), (10, 20)])
def test_many_links_are_read_within_one_calls_time(
    target: Kafka, names: Names, many: int, turns: int
) -> None:
    """Promise: many links are seen by one call, which tells of each whose end it did not reach in time."""
    at = target.bootstrap_servers

    def make(number: int) -> str:
        link = f"{names.link}-{number:02}"
        own = {name: f"id-{name}" for name in ("control", "staging", "positions", "offset-mappings")}
        said = [
            Identity(
                "source-id", "target-id", 2, {f"{link}.{name}": topic_id for name, topic_id in own.items()}
            ),
            *(Leader(application, "host") for application in (REPLICATOR, DEDUPLICATOR)),
            *(SourceTopic(f"topic-{i}", f"id-{i}", 4, {"retention.ms": "1"}) for i in range(100)),
        ]
        create_topic(at, f"{link}.control", 1)
        create_topic(at, f"{link}.positions", 1, {"cleanup.policy": "compact"})
        produce(at, f"{link}.control", [Record(encode(one, link)) for one in said])
        producer = Producer({"bootstrap.servers": at})
        for application, level in ((REPLICATOR, "end_offset"), (DEDUPLICATOR, "delivered_offset")):
            lane = Counters(application, 3, 1, 0, f"{link}.positions")
            for turn in range(turns):
                levels = {(f"topic-{i}", p): Counter({level: turn}) for i in range(100) for p in range(4)}
                lane.write(producer, turn, Work(Counter(), levels))
                producer.poll(0)
        assert producer.flush(30) == 0
        return link

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(make, range(many)))
    found = rows(at, names)
    assert sorted(found) == made
    for row in found.values():
        assert (row["topics"], row["partitions"], row["lag"]) == (100, 400, 0), row["why"]
    assert len(read_all(at, f"{made[0]}.positions")[0]) > 0


def test_topics_are_read_side_by_side(target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: all are asked for before any is waited for."""
    at, order = target.bootstrap_servers, list[str]()

    class Consumer(BatchConsumer):
        def assign(self, positions: Any) -> None:
            order.extend("assigned" for _ in positions)
            super().assign(positions)

        def read(self, timeout_s: float) -> Any:
            order.append("read")
            return super().read(timeout_s)

    monkeypatch.setattr(tails, "BatchConsumer", Consumer)
    topics = [f"{names.link}.tail-{i}" for i in range(4)]
    for topic in topics:
        create_topic(at, topic, 1)
        produce(at, topic, [Record(b"one")])
    admin = AdminClient({"bootstrap.servers": at})
    found, failed = tails.read({"bootstrap.servers": at}, admin, topics, None, Deadline(20))
    assert not failed
    assert {(name, entry.value) for name, entries in found.items() for entry in entries} == {
        (t, b"one") for t in topics
    }
    assert order[:5] == ["assigned"] * 4 + ["read"]
