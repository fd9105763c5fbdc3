"""`verbatim plan` on real brokers: it says what the link then does, and what would keep it from that, and
changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from common.kafka.client import topics as common_topics
from common.kafka.errors import retrying
from common.ports import Deadline
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce, topics
from tests.support.harness import Link
from tests.support.unchanged import assert_unchanged, everything
from verbatim.local.kafka_cluster import Cluster
from verbatim.main import cli

CALL_S = 20.0
KEPT = {"retention.ms": "-1"}
WIDE = {**KEPT, "message.timestamp.after.max.ms": "9223372036854775807"}


def plan(link: Link, *more: str, **variables: str) -> tuple[dict[str, Any], int]:
    """The report and the exit code."""
    found = CliRunner().invoke(
        cli.commands["plan"],
        ["--output", "json", "--seconds", "0.2", *more],
        env={**link.variables, **variables},
    )
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return json.loads(found.stdout), found.exit_code


def consume_somewhere(bootstrap: str) -> None:
    """Have the cluster make the topic that groups are kept in."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "somebody"})
    with closing(consumer):
        retrying(
            "asking for a group",
            lambda t: consumer.committed([TopicPartition("somewhere", 0)], t),
            Deadline(CALL_S),
        )


def test_a_plan_says_what_the_link_then_makes_and_changes_nothing(
    source: Kafka, target: Kafka, names: Names
) -> None:
    at, to = source.bootstrap_servers, target.bootstrap_servers
    fresh, grown = names.topic("fresh"), names.topic("grown")
    create_topic(at, fresh, 3, {**KEPT, "max.message.bytes": str(80 << 20)})
    create_topic(at, grown, 2, KEPT)
    create_topic(to, grown, 2, WIDE)
    produce(at, fresh, [Record(b"v" * 90, b"k" * 10, partition=i % 3) for i in range(30)])
    link = Link(at, to, names.link, f"{fresh},{grown}")
    consume_somewhere(at)
    before = {bootstrap: everything(bootstrap) for bootstrap in (at, to)}
    report, code = plan(link)
    for bootstrap in (at, to):
        assert_unchanged(bootstrap, before[bootstrap])
    assert code == 0 and report["ok"] and report["new"] and not report["failures"]
    told = {t["topic"]: t for t in report["topics"]}
    assert (told[fresh]["action"], told[grown]["action"]) == ("make", "there")
    assert (told[fresh]["records"], told[fresh]["to_copy"], told[fresh]["record_bytes"]) == (30, 30, 100.0)
    assert report["cost"]["copy_bytes"] == 3000.0 and report["cost"]["disk_bytes"] == 3000.0

    assert link.copy() == (0, 0)
    made = topics(to) - before[to]["topics"].keys()
    promised = {c["name"] for c in report["changes"] if c["what"] == "topic" and c["by"] == ""}
    assert made - {"__consumer_offsets", "__transaction_state"} == promised
    admin, deadline = AdminClient({"bootstrap.servers": to}), Deadline(CALL_S)
    for change in report["changes"]:
        if change["by"]:
            continue
        have = common_topics.configs(admin, [change["name"]], deadline)[change["name"]]
        assert change["config"].items() <= have.items()
        if change["partitions"] is not None:
            found = common_topics.describe(admin, [change["name"]], deadline)[change["name"]]
            assert found.partitions == change["partitions"]
    # The 80 MiB of the source's topic, and the envelope.
    staging = next(c for c in report["changes"] if c["name"] == link.settings.staging_topic)
    assert int(staging["config"]["max.message.bytes"]) == 81 << 20

    again, code = plan(link)
    assert code == 0 and not again["new"]
    assert [c["name"] for c in again["changes"]] == [link.settings.group_offsets_topic]
    assert all(t["to_copy"] == 0 for t in again["topics"])
    common_topics.add_partitions(AdminClient({"bootstrap.servers": at}), grown, 3, deadline)
    again, code = plan(link)
    assert code == 0 and {t["topic"]: t["action"] for t in again["topics"]} == {fresh: "there", grown: "grow"}


def test_what_would_halt_or_be_refused_is_found_beforehand(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Each of them is what the link then stops at."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    kept, fine, held = names.topic("kept"), names.topic("fine"), names.topic("held")
    for name in (kept, fine, held):
        create_topic(at, name, 1, KEPT)
    create_topic(to, kept, 1, {**WIDE, "retention.ms": "3600000"})
    create_topic(to, held, 1, WIDE)
    produce(to, held, [Record(b"of somebody else")])
    for name in (kept, held):
        produce(at, name, [Record(b"v")])
    consume_somewhere(at)
    selected = f"{kept},{fine},{held},{names.link}.absent"
    link = Link(at, to, names.link, selected)
    report, code = plan(link)
    assert code == 1
    refused, foreign = sorted(report["failures"], key=lambda text: held in text)
    assert f"verbatim accept-destination {held}" in foreign
    assert "retention.ms=3600000" in refused and kept in refused
    assert f"{names.link}.absent" in report["warnings"][0]
    link.copy()
    assert link.halted() == {
        (kept, 0): "destination-refused",
        (held, 0): "destination-refused",
    }
    report, code = plan(link)
    assert code == 1
    assert any("is halted or would be, destination-refused" in text for text in report["failures"])

    together = f"{names.link}.all"
    report, code = plan(
        link, APPLICATION_NAME=f"{names.link}.other", KAFKA_CLUSTERS_DESTINATION_TOPIC=together
    )
    assert code == 1 and "copied there already" in report["failures"][0]


def test_a_link_that_was_made_with_something_else_is_refused(
    source: Kafka, target: Kafka, names: Names
) -> None:
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic = names.topic()
    create_topic(at, topic, 1, KEPT)
    link = Link(at, to, names.link, topic)
    assert link.copy() == (0, 0)
    report, code = plan(link, STAGING_PARTITIONS="3")
    assert code == 1 and any("STAGING_PARTITIONS is fixed" in text for text in report["failures"])
    report, code = plan(link, KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS=to)
    assert code == 1 and any("was made with source_cluster" in text for text in report["failures"])
    report, code = plan(link, REPLICATION_FACTOR="7", APPLICATION_NAME=f"{names.link}.other")
    assert code == 1 and sum("can't be made" in text for text in report["failures"]) >= 5


@pytest.fixture
def guarded() -> Iterator[Cluster]:
    """A cluster that says no where an ACL says so."""
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with Cluster(properties=rules) as cluster:
        yield cluster


def test_missing_rights_are_named(guarded: Cluster, names: Names) -> None:
    at, topic = guarded.bootstrap_servers, names.topic()
    create_topic(at, topic, 1, KEPT)
    produce(at, topic, [Record(b"v")])
    link = Link(at, at, names.link, topic, KAFKA_CLUSTERS_DESTINATION_TOPIC="copy.{topic}")
    before = everything(at)
    report, code = plan(link)
    assert (code, report["failures"]) == (0, [])
    # Not even the topic that groups are kept in, which any consumer's start makes.
    assert_unchanged(at, before)
    assert "__consumer_offsets" not in before["topics"]
    assert report["topics"][0]["record_bytes"] is None
    consume_somewhere(at)
    create_topic(at, f"copy.{topic}", 1, WIDE)
    denied = [
        (ResourceType.TOPIC, topic, AclOperation.READ),
        (ResourceType.TOPIC, f"copy.{topic}", AclOperation.WRITE),
        (ResourceType.GROUP, f"{names.link}.deduplicator", AclOperation.READ),
        (ResourceType.TOPIC, link.settings.positions_topic, AclOperation.CREATE),
        (ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE),
    ]
    admin = AdminClient({"bootstrap.servers": at})
    acls = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", what, permission)
        for kind, name, operation in denied
        for what, permission in (
            (AclOperation.ALL, AclPermissionType.ALLOW),
            (operation, AclPermissionType.DENY),
        )
    ]
    for future in admin.create_acls(acls).values():
        future.result(CALL_S)
    report, code = plan(link)
    assert code == 1
    for what in (
        f"source, topic {topic}: READ not allowed",
        f"destination topic copy.{topic}: not allowed to write to it",
        f"target, group {names.link}.deduplicator: READ not allowed",
        f"topic {link.settings.positions_topic}",
    ):
        assert any(what in text for text in report["failures"]), (what, report["failures"])
