"""Configurations of destinations are kept in step with their source's; a topic that is gone from the source
keeps its copy."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.conftest import Kafka, Names
from tests.integration.test_destinations import alter, config, link_of
from tests.support.brokers import Record, create_topic, delete_topic, produce, read_all
from tests.support.harness import Link, assert_copied, eventually
from verbatim.main import cli


def explicit(bootstrap: str, topic: str) -> dict[str, str]:
    """What was set on the topic itself."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource])[resource].result(30)
    return {name: entry.value for name, entry in entries.items() if entry.source == 1}


def described(link: Link) -> dict[str, dict[str, Any]]:
    """What `verbatim topics` says of each topic."""
    result = CliRunner().invoke(cli.commands["topics"], ["--output", "json"], env=link.variables)
    assert result.exit_code == 0, result.output
    return {line["topic"]: line for line in json.loads(result.stdout)}


def due(line: dict[str, Any]) -> dict[str, str | None]:
    return {change["key"]: change["to"] for change in line["config"] if change["kept"] is None}


@contextlib.contextmanager
def broker_default(cluster: Kafka, key: str, value: str) -> Iterator[None]:
    """Another default for all topics of a cluster (of one node), until the block ends."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    node = min(admin.list_topics(timeout=10).brokers)

    def change(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)

    change(AlterConfigOpType.SET)
    try:
        yield
    finally:
        change(AlterConfigOpType.DELETE)


def test_a_destination_follows_its_source_but_for_what_is_excluded_and_a_longer_retention_of_its_own(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: what is set, changed or unset on a source topic is so on its copy within moments, without a
    restart; not what is excluded; a retention that somebody made longer at the target stays, one that is too
    short does not, but a topic that the link did not make is not altered before it fits; what is due is shown
    before, and the largest record that is allowed is never lowered."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    made, longer, shorter = names.topic("made"), names.topic("longer"), names.topic("shorter")
    create_topic(at, made, 1, {"retention.ms": "86400000", "delete.retention.ms": "1000"})
    for topic in (longer, shorter):
        create_topic(at, topic, 1, {"retention.ms": "86400000", "segment.ms": "100000"})
    create_topic(to, longer, 1, {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)})
    create_topic(to, shorter, 1, {"retention.ms": "3600000"})
    for topic in (made, longer, shorter):
        produce(at, topic, [Record(b"one")])
    link = link_of(source, target, names, TOPIC_CONFIG_EXCLUDE=r"delete\.retention\.ms,min.insync.replicas")
    assert link.replicate() == 0
    assert due(described(link)[shorter])["retention.ms"] == "86400000"
    assert explicit(to, shorter)["retention.ms"] == "3600000"
    with link.running():
        eventually(lambda: all(link.arrived(t) == [1] for t in (made, longer)), "the records")
        eventually(lambda: link.halted() == {(shorter, 0): "destination-refused"}, "the halt")
        assert explicit(to, shorter)["retention.ms"] == "3600000"
        alter(to, shorter, retention_ms="86400000")
        eventually(lambda: link.arrived(shorter) == [1], "the records of the topic that was mended")
        assert explicit(to, made)["retention.ms"] == explicit(to, shorter)["retention.ms"] == "86400000"
        assert explicit(to, longer)["retention.ms"] == "-1"
        assert explicit(to, longer)["segment.ms"] == "100000"
        assert config(to, made)["delete.retention.ms"] == "86400000"
        for topic in (made, longer, shorter):
            alter(at, topic, retention_ms="7200000", max_message_bytes="2000000", delete_retention_ms="5")
        eventually(lambda: config(to, made)["max.message.bytes"] == "2000000", "the change")
        eventually(lambda: config(to, shorter)["retention.ms"] == "7200000", "the change")
        assert config(to, made)["retention.ms"] == "7200000"
        assert config(to, longer)["retention.ms"] == "-1"
        assert config(to, made)["delete.retention.ms"] == "86400000"
        # Somebody at the target changes what is not theirs to change, and the source lowers what is never
        # lowered.
        alter(to, made, retention_ms="60000", segment_ms="77777")
        alter(at, made, max_message_bytes="1500000")
        eventually(lambda: config(to, made)["retention.ms"] == "7200000", "what was shortened")
        eventually(lambda: config(to, made)["segment.ms"] == config(at, made)["segment.ms"], "the rest")
    lines = described(link)
    assert all(due(line) == {} for line in lines.values())
    assert {change["key"] for change in lines[longer]["config"]} == {"retention.ms"}
    assert {change["key"] for change in lines[made]["config"]} == {"max.message.bytes"}
    assert config(to, made)["max.message.bytes"] == "2000000"
    for topic in (made, longer, shorter):
        assert_copied(link, topic)


@pytest.mark.whole
def test_what_the_source_does_not_set_follows_the_default_that_was_chosen_but_never_a_shorter_retention(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: with TOPIC_CONFIG_DEFAULTS=source the source cluster's defaults hold for the copy, with
    `target` the target's; a default of the target that would delete what the source keeps is not taken."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic = names.topic()
    create_topic(at, topic, 1, {"segment.ms": "100000"})
    produce(at, topic, [Record(b"one")])
    links = {
        "source": Link(at, to, f"{names.link}s", topic, KAFKA_CLUSTERS_DESTINATION_TOPIC="s.{topic}"),
        "target": Link(
            at,
            to,
            f"{names.link}t",
            topic,
            KAFKA_CLUSTERS_DESTINATION_TOPIC="t.{topic}",
            TOPIC_CONFIG_DEFAULTS="target",
        ),
    }
    with (
        broker_default(source, "log.index.interval.bytes", "5000"),
        broker_default(target, "log.index.interval.bytes", "6000"),
        broker_default(target, "log.retention.ms", "3600000"),
    ):
        for which, interval in (("source", "5000"), ("target", "6000")):
            copy, link = f"{which[0]}.{topic}", links[which]
            assert link.copy() == (0, 0)
            assert config(to, copy)["index.interval.bytes"] == interval
            assert config(to, copy)["segment.ms"] == "100000"
            assert int(config(to, copy)["retention.ms"]) == int(config(at, topic)["retention.ms"]) > 3600000
            assert_copied(link, topic, copy)
        assert "index.interval.bytes" not in explicit(to, f"t.{topic}")
        # Set at the source and unset again: back to the default that was chosen.
        alter(at, topic, index_interval_bytes="7000")
        for which, link in links.items():
            assert link.copy() == (0, 0)
            assert config(to, f"{which[0]}.{topic}")["index.interval.bytes"] == "7000"
        unset(at, topic, "index.interval.bytes")
        for which, interval in (("source", "5000"), ("target", "6000")):
            assert links[which].copy() == (0, 0)
            assert config(to, f"{which[0]}.{topic}")["index.interval.bytes"] == interval


def unset(bootstrap: str, topic: str, key: str) -> None:
    entry = ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def test_configurations_are_left_alone_where_they_are_not_to_follow(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: with TOPIC_CONFIG_SYNC=false a topic that Verbatim makes is like its source, and never altered
    afterwards."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic, later = names.topic("one"), names.topic("later")
    create_topic(at, topic, 1, {"segment.ms": "100000"})
    link = link_of(source, target, names, TOPIC_CONFIG_SYNC="false")
    with link.running():
        eventually(lambda: link.arrived(topic) == [0], "the destination")
        eventually(lambda: link.control().destinations, "the verdict")
        assert config(to, topic)["segment.ms"] == "100000"
        alter(at, topic, segment_ms="200000")
        eventually(lambda: due(described(link)[topic]) == {}, "the change to be seen")
        # A topic that is found after the change was told: by then the change has been looked at, too.
        create_topic(at, later)
        eventually(lambda: link.arrived(later) == [0], "another topic")
    assert config(to, topic)["segment.ms"] == "100000"
    assert [c["kept"] for c in described(link)[topic]["config"]] == ["TOPIC_CONFIG_SYNC is false"]


def test_a_topic_deleted_at_the_source_keeps_its_copy_and_is_flagged_until_it_is_made_again(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: the copy of a topic that was deleted stays as it is; that the topic is gone shows in the
    control topic, in `verbatim topics` and in the health of both applications, and no longer when it is there
    again. One that the settings leave out from now on is not taken for deleted."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    gone, left_out = names.topic("gone"), names.topic("left-out")
    for topic in (gone, left_out):
        create_topic(at, topic)
        produce(at, topic, [Record(b"one"), Record(b"two")])
    assert link_of(source, target, names).copy() == (0, 0)
    link = link_of(source, target, names, KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE=left_out)
    with link.running() as instances:
        first = eventually(lambda: read_all(to, gone), "the copy")
        delete_topic(at, gone)
        eventually(lambda: link.control().deleted_topics() == [gone], "the flag")
        eventually(
            lambda: all(i.application.health.deleted == [gone] for i in instances), "the applications' health"
        )
        states = {topic: line["state"] for topic, line in described(link).items()}
        assert states == {gone: "deleted-at-source", left_out: "excluded"}
        assert read_all(to, gone) == first
        create_topic(at, gone)
        produce(at, gone, [Record(b"three")])
        eventually(lambda: link.arrived(gone) == [3], "the record of the topic made again")
        eventually(lambda: all(i.application.health.deleted == [] for i in instances), "the end of the flag")
    assert described(link)[gone]["state"] == "copied"
