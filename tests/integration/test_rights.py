"""The least rights of each principal, on brokers with Kafka's own authorizer and SCRAM over TLS: enough, and
nothing else is tried.

The rights are those of common/link/permissions.py, which the reference shows. That each is needed is proved
in test_rights_needed.py.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ScramMechanism,
    UserScramCredentialDeletion,
)

from common.app.health import Health, sending
from common.config import loading
from common.errors import VerbatimError
from common.kafka.client.topics import configs
from common.kafka.errors import NO_RIGHTS
from common.link.permissions import DEDUPLICATOR, OFFSETS, REPLICATOR, SCHEMAS, SOURCE, TARGET
from common.link.schema_map import Mapped, SchemaId, encode_id
from common.ports import Deadline
from offsets.groups import Groups
from tests.integration.test_destinations import alter
from tests.integration.test_topics_change import add_partitions
from tests.support.brokers import Record, create_topic, end_offsets, produce, read_all, start_offsets, topics
from tests.support.guarded import MADE_ONCE, PRINCIPALS, Guarded, commit, group_offset, needed, only_with
from tests.support.harness import Link, ThreadQuery, assert_copied, eventually
from tests.support.secured import Right, SecuredCluster, binding


@pytest.fixture(scope="module")
def link(guarded: tuple[SecuredCluster, SecuredCluster]) -> Guarded:
    """A link that was made, by users with the least rights."""
    found = Guarded(guarded, "least")
    create_topic(guarded[0].bootstrap_servers, found.topic("orders"), 1, {"segment.ms": "100000000"})
    assert [found.run(principal) for principal in PRINCIPALS] == [0, 0, 0, 0]
    return found


def test_the_rights_in_the_readme_are_enough_and_nothing_else_is_tried(
    link: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: with the rights of the reference, and not one more, a link makes its topics, copies, follows a
    topic that grows and changes, trims staging and translates groups; none of its principals ever tries what
    it has no right to; the source is left as it was. Its lanes come in as users with passwords, none of which
    is in a plan."""
    plans: list[str] = []
    submit = ThreadQuery.submit

    def seen(query: ThreadQuery, lanes: list[dict[str, Any]]) -> None:
        plans.append(json.dumps(lanes))
        submit(query, lanes)

    monkeypatch.setattr(ThreadQuery, "submit", seen)
    at, to = (link.clusters[which].bootstrap_servers for which in (SOURCE, TARGET))
    topic = link.topic("orders")
    client = AdminClient({"bootstrap.servers": at})
    before, configured = topics(at) | {"__consumer_offsets"}, configs(client, [topic], Deadline(30))
    for turn in range(1, 3):
        produce(at, topic, [Record(b"%d" % turn, partition=p) for p in range(turn)])
        commit(at, f"{link.name}-g1", topic, turn)
        ends = end_offsets(at, topic)
        assert [link.run(principal) for principal in PRINCIPALS] == [0, 0, 0, 0]
        assert (end_offsets(at, topic), configs(client, [topic], Deadline(30))) == (ends, configured)
        with closing(Groups({"bootstrap.servers": at}, "source")) as groups:
            assert groups.committed([f"{link.name}-g1"], Deadline(30)) == {
                f"{link.name}-g1": {(topic, 0): (turn, "")}
            }
            members = groups.members(Deadline(30))
        if turn == 1:
            add_partitions(at, topic, 2)
            alter(at, topic, segment_ms="200000000")
            configured = configs(client, [topic], Deadline(30))
    for principal in PRINCIPALS:
        assert link.denied(principal) == {SOURCE: [], TARGET: []}, principal
    assert_copied(Link(at, to, link.name, topic), topic)
    passwords = [
        cluster.user(link.user(principal))["sasl.password"]
        for cluster in link.clusters.values()
        for principal in (REPLICATOR, DEDUPLICATOR)
    ]
    assert len(plans) >= 4 and not [1 for plan in plans if any(password in plan for password in passwords)]
    assert topics(at) == before
    staged = link.links[REPLICATOR].settings.staging_topic
    assert sum(start_offsets(to, staged).values()) > 0
    assert {group for group in members if group.startswith(link.name)} == {f"{link.name}-g1"}
    assert group_offset(link, "g1", "orders") > 0


def _done(asked: Any) -> None:
    """Wait for what an admin client was asked. Raises the first error."""
    for future in asked.values():
        for partition in getattr(future.result(30), "topic_partitions", ()):
            if partition.error is not None:
                raise KafkaException(partition.error)


@pytest.mark.parametrize("principal", [REPLICATOR, OFFSETS])
def test_a_user_at_the_source_can_do_nothing_but_read(link: Guarded, principal: str) -> None:
    """Promise: whatever is tried at the source with the user of the replicator, or of `offsets`, other than
    to read, the authorizer denies."""
    cluster, topic, user = link.clusters[SOURCE], link.topic("orders"), link.user(principal)
    mine = cluster.user(user)
    properties: dict[str, Any] = {**mine, "bootstrap.servers": cluster.secure_servers}
    admin = AdminClient(properties)
    before = end_offsets(cluster.bootstrap_servers, topic)
    tried = len(cluster.denied(user))
    config = ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)],
    )
    offset = ConsumerGroupTopicPartitions(f"{link.name}-g1", [TopicPartition(topic, 0, 0)])
    password = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
    attempts: tuple[Callable[[], Any], ...] = (
        lambda: produce(
            cluster.secure_servers, topic, [Record(b"x")], config=mine | {"enable.idempotence": "false"}
        ),
        lambda: admin.create_topics([NewTopic(link.topic("more"), 1)]),
        lambda: admin.create_partitions([NewPartitions(topic, 9)]),
        lambda: admin.incremental_alter_configs([config]),
        lambda: admin.delete_records([TopicPartition(topic, 0, 1)]),
        lambda: admin.delete_topics([topic]),
        lambda: admin.alter_consumer_group_offsets([offset]),
        lambda: admin.delete_consumer_groups([offset.group_id]),
        lambda: admin.alter_user_scram_credentials([password]),
        lambda: admin.create_acls([AclBinding(*binding(user, Right("WRITE", "TOPIC", topic)))]),
    )
    for attempt in attempts:
        with pytest.raises(KafkaException) as refused:
            _done(attempt())
        assert refused.value.args[0].code() in NO_RIGHTS
    denied = cluster.denied(user)[tried:]
    assert {one.operation for one in denied} >= {"WRITE", "CREATE", "ALTER", "ALTER_CONFIGS", "DELETE"}
    assert len(denied) >= len(attempts)
    assert end_offsets(cluster.bootstrap_servers, topic) == before


def test_access_rules_are_copied_with_the_rights_for_it_and_without_them_records_go_on(
    guarded: tuple[SecuredCluster, SecuredCluster],
) -> None:
    """Promise: ACL_SYNC needs rights on the clusters, each of them: without it the log says so once, records
    are copied all the same, no rule is granted and none taken back; with it the rules follow, also one that
    was taken away meanwhile."""
    link = Guarded(guarded, "ruled")
    at, to = (link.clusters[which] for which in (SOURCE, TARGET))
    topic, reader = link.topic("orders"), Right("READ", "TOPIC", link.topic("orders"))
    create_topic(at.bootstrap_servers, topic)
    at.grant("reader", [reader])
    for one in link.links.values():
        one.variables["ACL_SYNC"] = "read"
    rule = AclBindingFilter(*binding("reader", reader))
    admin = AdminClient({"bootstrap.servers": to.bootstrap_servers})
    for turn, right in enumerate(only_with("ACL_SYNC")):
        produce(at.bootstrap_servers, topic, [Record(b"%d" % turn)])
        told = [link.tell(principal) for principal in (REPLICATOR, DEDUPLICATOR)]
        said = told[(REPLICATOR, DEDUPLICATOR).index(right.principal)].log
        assert [one.code for one in told] == [0, 0] and said.count("not allowed") == 1, told
        assert not admin.describe_acls(rule).result(30)
        link.grant(right)
    assert [link.run(principal) for principal in (REPLICATOR, DEDUPLICATOR)] == [0, 0]
    assert admin.describe_acls(rule).result(30)
    for right in only_with("ACL_SYNC"):
        if right.principal == DEDUPLICATOR:
            at.revoke("reader", [reader])
        with link.without(right):
            told = [link.tell(principal) for principal in (REPLICATOR, DEDUPLICATOR)]
        assert "ot allowed" in told[(REPLICATOR, DEDUPLICATOR).index(right.principal)].log
        assert admin.describe_acls(rule).result(30), f"{right}: {told}"
    assert link.run(DEDUPLICATOR) == 0
    assert not admin.describe_acls(rule).result(30)
    plain = Link(at.bootstrap_servers, to.bootstrap_servers, link.name, topic, STAGING_PARTITIONS="1")
    assert_copied(plain, topic)


def test_a_new_link_without_the_right_to_make_its_topics_is_refused(
    guarded: tuple[SecuredCluster, SecuredCluster],
) -> None:
    """Promise: an application that may not make a topic which is missing says so by name and ends; given the
    right, it makes it."""
    link = Guarded(guarded, "fresh")
    create_topic(guarded[0].bootstrap_servers, link.topic("orders"))
    creating = [right for right in needed() if (right.operation, right.name) in MADE_ONCE]
    assert len(creating) == len(MADE_ONCE)
    for right in creating:
        link.revoke(right)
        with pytest.raises(VerbatimError, match="making topic fresh.*uthorization failed") as refused:
            link.run(right.principal)
        assert refused.value.exit_code == 2
        link.grant(right)
        assert link.run(right.principal) == 0


def test_nothing_at_all_can_be_done_without_rights(guarded: tuple[SecuredCluster, SecuredCluster]) -> None:
    """Promise: a topic that is named and may not be read is refused by name, exit 2, instead of a link that
    copies nothing in silence."""
    link = Guarded(guarded, "poor")
    topic = link.topic("orders")
    create_topic(guarded[0].bootstrap_servers, topic)
    for right in needed():
        if right.cluster == SOURCE:
            link.revoke(right)
    link.links[REPLICATOR].variables["KAFKA_CLUSTERS_SOURCE_TOPIC"] = topic
    with pytest.raises(VerbatimError, match=f"topic {topic} of the source: .*not allowed") as refused:
        link.run(REPLICATOR)
    assert refused.value.exit_code == 2


def test_heartbeats_need_their_own_rights_and_no_other(
    guarded: tuple[SecuredCluster, SecuredCluster],
) -> None:
    """Promise: with the rights that the reference lists for heartbeats the replicator makes their topic at
    the source, writes to it and reads the copy, and tries nothing else; without the right to make it, the
    link is refused by name."""
    link = Guarded(guarded, "beats")
    create_topic(guarded[0].bootstrap_servers, link.topic("orders"))
    mine = only_with("HEARTBEATS_INTERVAL")
    assert {right.principal for right in mine} == {REPLICATOR}
    assert {right.operation for right in mine if right.cluster == SOURCE} == {
        "READ",
        "WRITE",
        "DESCRIBE_CONFIGS",
        "CREATE",
    }
    for right in mine:
        link.grant(right)
    for principal in (REPLICATOR, DEDUPLICATOR):
        link.links[principal].variables |= {
            "HEARTBEATS_INTERVAL": "200ms",
            "HEARTBEATS_TOPIC": link.topic("heartbeats"),
        }
    (creating,) = (right for right in mine if right.operation == "CREATE")
    link.revoke(creating)
    with pytest.raises(VerbatimError, match=f"making topic {link.topic('heartbeats')}.*uthorization failed"):
        link.start(REPLICATOR, bounded=False).wait(60)
    link.grant(creating)
    before = {principal: link.denied(principal) for principal in (REPLICATOR, DEDUPLICATOR)}
    running = [link.start(principal, bounded=False) for principal in (REPLICATOR, DEDUPLICATOR)]
    try:
        health = running[0].application.health
        eventually(
            lambda: health.heartbeat is not None and health.heartbeat.delay_s,
            "a heartbeat that has arrived",
            60,
        )
        time.sleep(1)
    finally:
        for instance in running:
            instance.stop()
    assert {principal: link.denied(principal) for principal in before} == before


def test_metrics_in_a_topic_need_their_own_rights_and_no_other(
    guarded: tuple[SecuredCluster, SecuredCluster], caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: with the rights that the reference lists for it, whichever application comes first makes the
    topic of metrics, all write to it, and none tries anything else; without one of them the log says once
    which is missing, and the application goes on."""
    link = Guarded(guarded, "figures")
    mine = {
        principal: [r for r in only_with("OTEL_METRICS_EXPORTER") if r.principal == principal]
        for principal in PRINCIPALS
    }
    assert {right.operation for right in mine[OFFSETS]} == {"CREATE", "WRITE", "DESCRIBE_CONFIGS"}

    def send(principal: str) -> str:
        """Once; what is logged."""
        health = Health(principal, instance=principal)
        settings = loading.load(environ=link.links[principal].variables | {"OTEL_METRICS_EXPORTER": "kafka"})
        caplog.clear()
        with sending(health, settings):
            (thread,) = [thread for thread in threading.enumerate() if thread.name == "metrics-kafka"]
        thread.join(30)
        assert health.exports["kafka"] + health.exports_failed["kafka"] == 1
        assert bool(health.exports_failed["kafka"]) == bool(caplog.messages)
        return "".join(caplog.messages)

    for right in mine[OFFSETS]:
        assert "figures.metrics" in (told := send(OFFSETS)) and "grant" in told, right
        link.grant(right)
    before = {principal: link.denied(principal) for principal in PRINCIPALS}
    assert send(OFFSETS) == ""
    for principal in (REPLICATOR, DEDUPLICATOR, SCHEMAS):
        for right in mine[principal]:
            link.grant(right)
        assert send(principal) == ""
    assert {principal: link.denied(principal) for principal in PRINCIPALS} == before
    written = read_all(guarded[1].bootstrap_servers, "figures.metrics")[0]
    assert {record.key for record in written} == {principal.encode() for principal in PRINCIPALS}


def test_dead_letters_need_their_own_rights_and_no_other(
    guarded: tuple[SecuredCluster, SecuredCluster], tmp_path: Path
) -> None:
    """Promise: with the rights that the reference lists for them the deduplicator makes the topic of dead
    letters and writes to it, and tries nothing else; without the right to make it, or to write to it, what
    would need it halts by name, and goes on once it is granted."""
    link = Guarded(guarded, "dead")
    topic, dead = link.topic("orders"), f"{link.name}.dead-letters"
    create_topic(guarded[0].bootstrap_servers, topic)
    produce(guarded[0].bootstrap_servers, topic, [Record(b"no json"), Record(b"{}")])
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "version: 1\nflows: [{topics: ['.*'], value: json, onError: dead-letter, stages: [{filter: {drop: {a: 1}}}]}]"
    )
    link.links[REPLICATOR].variables["PIPELINE"] = str(file)
    mine = {right.operation: right for right in only_with("onError: dead-letter")}
    assert mine.keys() == {"WRITE", "DESCRIBE_CONFIGS", "READ", "CREATE"}
    assert {right.principal for right in mine.values()} == {DEDUPLICATOR}
    assert link.run(REPLICATOR) == 0
    assert link.run(DEDUPLICATOR) == 3
    assert link.links[DEDUPLICATOR].halted() == {(topic, 0): "dead-letters-refused"}
    for operation in ("CREATE", "DESCRIBE_CONFIGS"):
        link.grant(mine[operation])
    assert link.run(DEDUPLICATOR) == 3
    (halt,) = link.links[DEDUPLICATOR].control().halts.values()
    assert f"describing topic {dead}: not allowed" in halt.detail
    link.grant(mine["WRITE"])
    before = link.denied(DEDUPLICATOR)
    assert link.run(DEDUPLICATOR) == 0
    assert link.denied(DEDUPLICATOR) == before
    assert sum(map(len, read_all(guarded[1].bootstrap_servers, dead))) == 1


def test_the_map_of_schemas_needs_its_own_right_and_no_other(
    guarded: tuple[SecuredCluster, SecuredCluster], tmp_path: Path
) -> None:
    """Promise: without the right to read the map a record with a schema waits, and it is said which one that
    is; with it, the record goes on, and nothing else is tried."""
    link = Guarded(guarded, "ids")
    topic, at = link.topic("orders"), f"{link.name}.schemas"
    create_topic(guarded[0].bootstrap_servers, topic)
    produce(guarded[0].bootstrap_servers, topic, [Record(b"\0\0\0\0\7x"), Record(None, b"gone")])
    create_topic(guarded[1].bootstrap_servers, at, 1, {"cleanup.policy": "compact"})
    key, value = encode_id(SchemaId(".", 7), Mapped(8, ""))
    produce(guarded[1].bootstrap_servers, at, [Record(value, key)])
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "version: 1\nregistries: {source: {url: 'http://a'}, target: {url: 'http://b'}}\nschemas: {}\n"
        "flows: [{topics: ['.*'], wire: {value: confluent}, stages: [schema-ids]}]"
    )
    link.links[REPLICATOR].variables["PIPELINE"] = str(file)
    (mine,) = only_with("schema-ids")
    assert (mine.principal, mine.operation, mine.name) == (REPLICATOR, "READ", "<link>.schemas")
    assert link.run(REPLICATOR) == 3
    (halt,) = link.links[REPLICATOR].control().halts.values()
    assert halt.reason == "schema-unknown" and f"{at} can't be read: grant READ on it" in halt.detail
    link.grant(mine)
    before = link.denied(REPLICATOR)
    assert [link.run(REPLICATOR), link.run(DEDUPLICATOR)] == [0, 0]
    assert link.denied(REPLICATOR) == before
    there = read_all(guarded[1].bootstrap_servers, topic)[0]
    assert [record.value for record in there] == [b"\0\0\0\0\x08x", None]


def test_a_topic_of_a_route_needs_the_rights_of_a_destination_and_no_other(
    guarded: tuple[SecuredCluster, SecuredCluster], tmp_path: Path
) -> None:
    """Promise: where records are routed to, the deduplicator needs what it needs on destinations: without it
    the partition halts, and says where and what; with it, it goes on, and nothing else is tried."""
    link = Guarded(guarded, "routed")
    topic, elsewhere = link.topic("orders"), f"{link.name}-elsewhere"
    create_topic(guarded[0].bootstrap_servers, topic)
    produce(guarded[0].bootstrap_servers, topic, [Record(b"v", b"here"), Record(b"v", b"there")])
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "version: 1\nflows: [{topics: ['.*'], stages: "
        f"[{{route: {{cases: [{{when: {{key: there}}, topic: {elsewhere}}}]}}}}]}}]"
    )
    link.links[REPLICATOR].variables["PIPELINE"] = str(file)
    mine = [r for r in needed() if (r.principal, r.name) == (DEDUPLICATOR, "<destinations>")]
    rights = {r.operation: Right(r.operation, r.resource, elsewhere) for r in mine}
    assert rights.keys() >= {"READ", "WRITE", "DESCRIBE_CONFIGS", "CREATE", "ALTER", "ALTER_CONFIGS"}
    user = link.user(DEDUPLICATOR)
    assert link.run(REPLICATOR) == 0
    guarded[1].grant(user, [*rights.values()])
    for missing in ("CREATE", "WRITE"):
        guarded[1].revoke(user, [rights[missing]])
        assert link.run(DEDUPLICATOR) == 3, missing
        (halt,) = link.links[DEDUPLICATOR].control().halts.values()
        assert (halt.topic, elsewhere in halt.detail) == (topic, True), halt
        assert "not allowed" in halt.detail or "grant" in halt.detail, halt
        guarded[1].grant(user, [rights[missing]])
    before = link.denied(DEDUPLICATOR)
    assert link.run(DEDUPLICATOR) == 0
    assert link.denied(DEDUPLICATOR) == before
    keys = [[r.key for r in read_all(guarded[1].bootstrap_servers, name)[0]] for name in (topic, elsewhere)]
    assert keys == [[b"here"], [b"there"]]
