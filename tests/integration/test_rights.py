"""The least rights of each principal, on brokers with Kafka's own authorizer and SCRAM over TLS: enough, and nothing else is tried.

The rights are those of common/rights.py, which the README shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from common import rights
from common.errors import VerbatimError
from common.mappings import decode
from common.rights import DEDUPLICATOR, OFFSETS, REPLICATOR, RIGHTS, SOURCE, TARGET
from deduplicator.state import FoldResult
from offsets.service import Service
from tests.brokers import Record, create_topic, end_offsets, produce, read_all, start_offsets, topics
from tests.harness import (
    Link,
    NoTable,
    Running,
    ThreadDeduplicator,
    ThreadReplicator,
    assert_copied,
    eventually,
)
from tests.integration.test_destinations import alter
from tests.integration.test_topics_change import add_partitions
from tests.secured import Right, SecuredCluster


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SecuredCluster]]:
    """A source and a target of this module's own, where nothing is allowed that was not granted."""
    with (
        SecuredCluster(tmp_path_factory.mktemp("source")) as source,
        SecuredCluster(tmp_path_factory.mktemp("target")) as target,
    ):
        yield {SOURCE: source, TARGET: target}


def variables(cluster: str, properties: dict[str, str]) -> dict[str, str]:
    """Client properties as the settings take them."""
    prefix = f"KAFKA_CLUSTERS_{cluster}_PROPERTIES_"
    return {prefix + key.upper().replace(".", "_"): value for key, value in properties.items()}


class Folded(NoTable):
    """A state table that is always folded to the end, so that staging is trimmed."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def fold_now(self) -> FoldResult:
        reached: dict[int, int] = {}
        for p, records in enumerate(read_all(self.link.target, self.link.settings.mappings_topic)):
            for record in records:
                reached[p] = decode(record.value).staging_offset
        return FoldResult({}, {}, reached, 0, 0, {}, 0, 0.0)


@dataclass
class Guarded:
    """A link whose applications come in as users of their own, each with the rights that it needs and no other."""

    clusters: dict[str, SecuredCluster]
    name: str
    links: dict[str, Link] = field(default_factory=dict)

    def __post_init__(self) -> None:
        source, target = self.clusters[SOURCE], self.clusters[TARGET]
        for principal in (REPLICATOR, DEDUPLICATOR, OFFSETS):
            link = Link(source.bootstrap_servers, target.bootstrap_servers, self.name, rf"{self.name}-t\..*")
            user = self.user(principal)
            link.variables |= variables("SOURCE", source.user(user)) | variables(
                "DESTINATION", target.user(user)
            )
            link.variables["KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS"] = source.secure_servers
            link.variables["KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS"] = target.secure_servers
            link.variables["CONSUMER_GROUPS"] = rf"{self.name}-g.*"
            self.links[principal] = link
        for right in needed():
            self.grant(right)

    def user(self, principal: str) -> str:
        return f"{self.name}-{principal}"

    def topic(self, what: str) -> str:
        return f"{self.name}-t.{what}"

    def on(self, right: rights.Right) -> Right:
        names = {
            "<topics>": f"{self.name}-t.*",
            "<destinations>": f"{self.name}-t.*",
            "<groups>": f"{self.name}-g*",
        }
        name = names.get(right.name, right.name.replace("<link>", self.name))
        return Right(right.operation, right.resource, name)

    def grant(self, right: rights.Right) -> None:
        self.clusters[right.cluster].grant(self.user(right.principal), [self.on(right)])

    def revoke(self, right: rights.Right) -> None:
        self.clusters[right.cluster].revoke(self.user(right.principal), [self.on(right)])

    def denied(self, principal: str) -> dict[str, list[Any]]:
        return {which: cluster.denied(self.user(principal)) for which, cluster in self.clusters.items()}

    def run(self, principal: str) -> int | None:
        settings = self.links[principal].settings
        if principal == REPLICATOR:
            return Running(ThreadReplicator(settings, True)).wait(60)
        if principal == DEDUPLICATOR:
            deduplicator = ThreadDeduplicator(settings, True)
            deduplicator.table = Folded(self.links[principal])
            return Running(deduplicator).wait(60)
        return Service(settings, True)._run()


def needed() -> list[rights.Right]:
    """What a link needs that has no need of what is only for some."""
    return [right for right in RIGHTS if "ACL_SYNC" not in right.when and "--reverse" not in right.when]


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def group_offset(link: Guarded) -> int:
    """Where the link's group is at the target."""
    servers = link.clusters[TARGET].bootstrap_servers
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"{link.name}-g1"})

    def ask() -> list[TopicPartition]:
        with contextlib.suppress(KafkaException):  # a cluster that has just started has no coordinator yet
            return list(consumer.committed([TopicPartition(link.topic("orders"), 0)], timeout=30))
        return []

    (found,) = eventually(ask, "the group's offset")
    consumer.close()
    return int(found.offset)


@pytest.fixture(scope="module")
def link(guarded: dict[str, SecuredCluster]) -> Guarded:
    """A link in the middle of its work, by users with the least rights."""
    found = Guarded(guarded, "least")
    at = guarded[SOURCE].bootstrap_servers
    topic = found.topic("orders")
    create_topic(at, topic, 1, {"segment.ms": "100000000"})
    assert [found.run(principal) for principal in (REPLICATOR, DEDUPLICATOR, OFFSETS)] == [0, 0, 0]
    return found


def test_the_rights_in_the_readme_are_enough_and_nothing_else_is_tried(link: Guarded) -> None:
    """Promise: with the rights of the README, and not one more, a link makes its topics, copies, follows a topic that grows and changes,
    trims staging and translates groups; none of its principals ever tries what it has no right to; the source is left as it was."""
    at, to = (link.clusters[which].bootstrap_servers for which in (SOURCE, TARGET))
    topic = link.topic("orders")
    before = topics(at) | {"__consumer_offsets"}
    for turn in range(1, 3):
        produce(at, topic, [Record(b"%d" % turn, partition=p) for p in range(turn)])
        commit(at, f"{link.name}-g1", topic, turn)
        ends = end_offsets(at, topic)
        assert [link.run(principal) for principal in (REPLICATOR, DEDUPLICATOR, OFFSETS)] == [0, 0, 0]
        assert end_offsets(at, topic) == ends
        if turn == 1:
            add_partitions(at, topic, 2)
            alter(at, topic, segment_ms="200000000")
    for principal in (REPLICATOR, DEDUPLICATOR, OFFSETS):
        assert link.denied(principal) == {SOURCE: [], TARGET: []}, principal
    assert_copied(Link(at, to, link.name, topic), topic)
    assert topics(at) == before
    staged = link.links[REPLICATOR].settings.staging_topic
    assert sum(start_offsets(to, staged).values()) > 0
    admin = AdminClient({"bootstrap.servers": at})
    groups = {group.group_id for group in admin.list_consumer_groups().result(30).valid}
    assert {group for group in groups if group.startswith(link.name)} == {f"{link.name}-g1"}
    assert group_offset(link) > 0


MADE_ONCE = {
    ("CREATE", "TOPIC", "<link>.*"),
    ("CREATE", "TOPIC", "<link>.group-offsets"),
}
"""Rights that only a new link needs."""


def test_a_new_link_without_the_right_to_make_its_topics_is_refused(
    guarded: dict[str, SecuredCluster],
) -> None:
    """Promise: an application that may not make a topic which is missing says so by name and ends; given the right, it makes it."""
    link = Guarded(guarded, "fresh")
    create_topic(guarded[SOURCE].bootstrap_servers, link.topic("orders"))
    creating = [right for right in needed() if (right.operation, right.resource, right.name) in MADE_ONCE]
    assert len(creating) == len(MADE_ONCE)
    for right in creating:
        link.revoke(right)
        with pytest.raises(VerbatimError, match="making topic fresh.*uthorization failed") as refused:
            link.run(right.principal)
        assert refused.value.exit_code == 2
        link.grant(right)
        assert link.run(right.principal) == 0


def test_nothing_at_all_can_be_done_without_rights(guarded: dict[str, SecuredCluster]) -> None:
    """Promise: a topic that is named and may not be read is refused by name, exit 2, instead of a link that copies nothing in silence."""
    link = Guarded(guarded, "poor")
    topic = link.topic("orders")
    create_topic(guarded[SOURCE].bootstrap_servers, topic)
    for right in needed():
        if right.cluster == SOURCE:
            link.revoke(right)
    link.links[REPLICATOR].variables["KAFKA_CLUSTERS_SOURCE_TOPIC"] = topic
    with pytest.raises(VerbatimError, match=f"topic {topic} of the source: .*not allowed") as refused:
        link.run(REPLICATOR)
    assert refused.value.exit_code == 2
