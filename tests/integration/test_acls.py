"""Access rules of copies, on brokers with Kafka's own authorizer: in step with the source's, nothing to
write, removals followed."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from common.kafka.client import acls as acl_calls
from common.kafka.model import Acl
from common.ports import Deadline
from tests.conftest import Names
from tests.integration.test_cutover import cutover
from tests.integration.test_promotions import demote
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link, assert_copied, eventually
from tests.support.secured import SecuredCluster
from verbatim.main import cli


def acls(cluster: SecuredCluster, of: str) -> set[Acl]:
    """The rules on topics whose name holds `of`, or on prefixes of it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    found = acl_calls.topic_acls(admin, "test's", Deadline(30))
    return {acl for acl in found if of in acl.name}


def change(cluster: SecuredCluster, grant: set[Acl], revoke: set[Acl] = frozenset()) -> None:  # type: ignore[assignment]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    acl_calls.grant(admin, grant, Deadline(30))
    acl_calls.revoke(admin, revoke, Deadline(30))


def rule(
    name: str, principal: str, operation: str, permission: str = "ALLOW", pattern: str = "LITERAL"
) -> Acl:
    return Acl(pattern, name, f"User:{principal}", "*", operation, permission)


def planned(link: Link) -> list[dict[str, Any]]:
    """What `verbatim acls` says."""
    result = CliRunner().invoke(cli.commands["acls"], ["--output", "json"], env=link.variables)
    assert result.exit_code == 0, result.output
    lines: list[dict[str, Any]] = json.loads(result.stdout)
    return lines


def may_write(cluster: SecuredCluster, user: str, topic: str) -> bool:
    """Whether a user that comes in with a password can write to a topic."""
    # Idempotent, the producer of a user without any right to write would end before it tries.
    properties: dict[str, Any] = {
        **cluster.user(user),
        "message.timeout.ms": 5000,
        "enable.idempotence": "false",
    }
    try:
        produce(cluster.secure_servers, topic, [Record(b"by a user")], config=properties)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise
        return False
    return True


def test_rights_follow_their_source_to_the_copy_but_none_to_write(
    guarded: tuple[SecuredCluster, SecuredCluster], names: Names
) -> None:
    """Promise: off unless asked for; then rights to read a copied topic, by name or by prefix, hold for its
    copy and for nothing else, no right to write does; a right taken away at the source is taken away, one
    that somebody else has granted stays, one that somebody took away comes back; what is due is shown
    before."""
    source, target = guarded
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic, copy, other = names.topic("orders"), f"copy.{names.topic('orders')}", names.topic("other")
    create_topic(at, topic)
    create_topic(at, other)
    produce(at, topic, [Record(b"one")])
    reader, by_prefix = (
        rule(topic, "reader", "READ"),
        rule(topic[:-2], "by-prefix", "DESCRIBE", pattern="PREFIXED"),
    )
    change(
        source,
        {
            reader,
            by_prefix,
            rule(topic, "writer", "WRITE"),
            rule(topic, "admin", "ALL"),
            rule(topic, "barred", "READ", "DENY"),
            rule(f"{topic}.", "nearly", "READ", pattern="PREFIXED"),
            rule(other, "reader", "READ"),
        },
    )
    off = Link(at, to, names.link, topic, KAFKA_CLUSTERS_DESTINATION_TOPIC="copy.{topic}")
    assert off.copy() == (0, 0)
    assert acls(target, topic) == set()
    assert Counter(line["action"] for line in planned(off)) == {"grant": 5}
    local = rule(copy, "local", "READ")
    change(target, {local})
    expected = {
        rule(copy, "reader", "READ"),
        rule(copy, "by-prefix", "DESCRIBE"),
        rule(copy, "admin", "READ"),
        rule(copy, "admin", "DESCRIBE_CONFIGS"),
        rule(copy, "barred", "READ", "DENY"),
    }
    variables = {"KAFKA_CLUSTERS_DESTINATION_TOPIC": "copy.{topic}", "ACL_SYNC": "read"}
    link = Link(at, to, names.link, topic, **variables)
    with link.running():
        eventually(lambda: acls(target, topic) == expected | {local}, "the rules of the copy")
        assert not any(may_write(target, user, copy) for user in ("reader", "writer", "admin"))
        change(source, set(), {reader})
        change(target, set(), {rule(copy, "by-prefix", "DESCRIBE")})
        left = expected - {rule(copy, "reader", "READ")} | {local}
        eventually(lambda: acls(target, topic) == left, "what was taken away, and what came back")
        change(source, {rule(topic, "newcomer", "READ")})
        eventually(lambda: rule(copy, "newcomer", "READ") in acls(target, topic), "a new right")
    assert Counter(line["action"] for line in planned(link)) == {"in-step": 5, "foreign": 1}
    assert acls(target, other) == set()
    # Taken away while nobody looked.
    change(source, set(), {by_prefix})
    revoked = [line["principal"] for line in planned(link) if line["action"] == "revoke"]
    assert revoked == ["User:by-prefix"]
    assert link.copy() == (0, 0)
    assert rule(copy, "by-prefix", "DESCRIBE") not in acls(target, topic)
    assert local in acls(target, topic)
    assert_copied(link, topic, copy)


def test_a_read_only_copy_can_not_be_written_by_those_who_write_its_source(
    guarded: tuple[SecuredCluster, SecuredCluster], names: Names
) -> None:
    """Promise: with ACL_READ_ONLY whoever may write the source is denied it on the copy, though a right of
    the target would let them; not the principal that writes the copy. With ACL_SYNC=all rights to write
    follow."""
    source, target = guarded
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic = names.topic()
    create_topic(at, topic)
    produce(at, topic, [Record(b"one")])
    change(source, {rule(topic, "writer", "WRITE"), rule(topic, "verbatim", "ALL")})
    change(target, {rule(names.link, user, "WRITE", pattern="PREFIXED") for user in ("writer", "verbatim")})
    variables = {"ACL_SYNC": "read", "ACL_READ_ONLY": "true", "ACL_EXEMPT": "User:verbatim"}
    link = Link(at, to, names.link, topic, **variables)
    assert link.copy() == (0, 0)
    assert acls(target, topic) == {
        rule(topic, "writer", "WRITE", "DENY"),
        rule(topic, "verbatim", "READ"),
        rule(topic, "verbatim", "DESCRIBE_CONFIGS"),
    }
    eventually(lambda: not may_write(target, "writer", topic), "the denial")
    assert_copied(link, topic)
    assert may_write(target, "verbatim", topic)
    everything = Link(at, to, names.link, topic, ACL_SYNC="all", ACL_EXEMPT="User:verbatim")
    assert everything.copy() == (0, 0)
    assert acls(target, topic) == {rule(topic, "writer", "WRITE"), rule(topic, "verbatim", "ALL")}
    eventually(lambda: may_write(target, "writer", topic), "the right")


@pytest.mark.whole
def test_whoever_writes_the_source_may_write_a_copy_once_it_is_promoted_and_no_more_when_it_is_given_back(
    guarded: tuple[SecuredCluster, SecuredCluster], names: Names, tmp_path: Path
) -> None:
    """Promise: ACL_READ_ONLY is lifted for a promoted topic when the command says so, all other rules stay as
    they are, and nothing of the source's is followed until it is given back."""
    source, target = guarded
    at, to, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic()
    create_topic(at, topic)
    produce(at, topic, [Record(b"one")])
    writes, reads, denied = (
        rule(topic, "writer", "WRITE"),
        rule(topic, "reader", "READ"),
        rule(topic, "writer", "WRITE", "DENY"),
    )
    change(source, {writes, reads})
    change(target, {rule(names.link, "writer", "WRITE", pattern="PREFIXED")})
    link = Link(at, to, names.link, topic, ACL_SYNC="read", ACL_READ_ONLY="true", ACL_EXEMPT="User:verbatim")
    with link.running():
        eventually(lambda: acls(target, topic) == {denied, reads} and sum(link.arrived(topic)), "the copy")
        report, code = cutover(link, tmp_path / "memory.json", "--topic", topic, quiet_s=0.1)
        assert code == 0 and acls(target, topic) == {reads}, report
        assert "ACL_READ_ONLY" not in str(report["steps"])
        change(source, set(), {reads})
        change(target, {foreign := rule(topic, "local", "READ")})
        time.sleep(2.5)
        assert acls(target, topic) == {reads, foreign}
        report, code = demote(link, topic)
        assert code == 0, report
        eventually(lambda: acls(target, topic) == {denied, foreign}, "the rules as before")
        assert {line["action"] for line in planned(link)} == {"in-step", "foreign"}
        eventually(lambda: not may_write(target, "writer", topic), "the denial")
