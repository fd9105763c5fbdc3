"""What the chart has Strimzi make: users with the rights that the applications need and no other, and the
link's own topics as the applications make them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest

from common.config import loading, own_topic_config
from common.link import permissions
from common.link.identity import dead_letters_topic, metrics_topic, own_topics
from common.link.permissions import DEDUPLICATOR, OFFSETS, REPLICATOR, SCHEMAS, SOURCE, TARGET, Right
from replicator.driver.heartbeats import CONFIG as HEARTBEATS
from tests.deploy.deployed import K8S, of_kind, run
from tests.deploy.test_chart import charted, helm

RIGHTS = tuple(right for right in permissions.RIGHTS if right.principal != SCHEMAS)
"""Of the applications that run without schema registries."""

Rule = tuple[str, str, str, str]
"""(type of resource, its name, literal or prefix, operation), in Strimzi's words."""

CLUSTERS = {SOURCE: "here", TARGET: "there"}
BOTH = "offsets.enabled=true,strimzi.source.cluster=here,strimzi.target.cluster=there"
EACH = f"{BOTH},strimzi.users=each"
SERVERS = {
    "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "source:9092",
    "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "target:9092",
    "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders,payments",
}
TOPICS = [("orders", "literal"), ("payments", "literal")]
MEANT = {"<topics>": TOPICS, "<destinations>": TOPICS, "<groups>": [("*", "literal")]}
"""What the base's settings mean."""
ONLY_WITH = {
    "ACL_SYNC": "settings.ACL_SYNC=read",
    "HEARTBEATS_INTERVAL": "settings.HEARTBEATS_INTERVAL=5s",
    "onError": "settings.PIPELINE=/etc/verbatim/pipeline.yaml",
    "OTEL_METRICS_EXPORTER": "settings.OTEL_METRICS_EXPORTER=prometheus\\,kafka",
    "START_OFFSETS": "settings.START_OFFSETS=mirrormaker:mm2-offsets.a.internal:a,strimzi.connectGroup=mm2",
    "--reverse": "strimzi.reverse=true",
}
"""Words of a right's `when` -> the values without which it is not needed."""
TYPES = {"TOPIC": "topic", "GROUP": "group", "CLUSTER": "cluster", "TRANSACTIONAL_ID": "transactionalId"}


def users(*values: str) -> dict[str, dict[str, Any]]:
    """By name, each KafkaUser."""
    made = of_kind(charted("--set", ",".join(values)), "KafkaUser")
    return {user["metadata"]["name"]: dict(user) for user in made}


def granted(user: dict[str, Any]) -> set[Rule]:
    """Raises AssertionError where a rule stands twice."""
    authorization = user["spec"].get("authorization", {"type": "simple", "acls": []})
    assert authorization["type"] == "simple"
    found = [
        (r["type"], r.get("name", ""), r.get("patternType", "literal"), operation)
        for acl in authorization["acls"]
        for r in [acl["resource"]]
        for operation in acl["operations"]
    ]
    assert len(found) == len(set(found))
    return set(found)


def rules(rights: Iterable[Right], **meant: list[tuple[str, str]]) -> set[Rule]:
    """The same of rights, for the link `verbatim`; `meant` adds to what placeholders mean."""
    special = {"<offsets topic>": [("mm2-offsets.a.internal", "literal")]}
    special["<Connect's group>"] = [("mm2", "literal")]
    names = {name: [*entries, *meant.get(name.strip("<>"), [])] for name, entries in MEANT.items()} | special

    def named(right: Right) -> list[tuple[str, str]]:
        if right.resource == "CLUSTER":
            return [("", "literal")]
        name = right.name.replace("<link>", "verbatim")
        return names.get(right.name, [(name.rstrip("*"), "prefix" if name.endswith("*") else "literal")])

    return {
        (TYPES[right.resource], name, pattern, right.operation.title().replace("_", ""))
        for right in rights
        for name, pattern in named(right)
    }


def ours(principal: str, cluster: str) -> list[Right]:
    return [right for right in RIGHTS if (right.principal, right.cluster) == (principal, cluster)]


def plain(rights: Iterable[Right]) -> list[Right]:
    """Those that a link needs without any of ONLY_WITH."""
    return [right for right in rights if not any(words in right.when for words in ONLY_WITH)]


PRINCIPALS = (REPLICATOR, DEDUPLICATOR, OFFSETS)
AT = [(principal, cluster) for principal in PRINCIPALS for cluster in (SOURCE, TARGET)]


def test_each_application_has_the_rights_that_it_needs_and_no_other() -> None:
    found = users(EACH)
    for principal, cluster in AT:
        user = found.pop(f"verbatim-{principal}-{cluster}")
        assert granted(user) == rules(plain(ours(principal, cluster))), (principal, cluster)
        assert user["metadata"]["labels"]["strimzi.io/cluster"] == CLUSTERS[cluster]
    assert found == {}


def test_schemas_has_its_rights_where_it_runs() -> None:
    assert not any("schemas" in name for name in users(EACH))
    found = users(EACH, "schemas.enabled=true")
    needed = plain(right for right in permissions.RIGHTS if right.principal == SCHEMAS)
    assert granted(found["verbatim-schemas-target"]) == rules(needed)
    assert ("topic", "verbatim.schemas", "literal", "Write") in rules(needed)
    assert granted(found["verbatim-schemas-source"]) == set(), "no more than its id"


def test_each_condition_of_a_right_is_known_here() -> None:
    found = {words for right in RIGHTS for words in re.findall(r"\b(?:with|for) `([\w-]+)", right.when)}
    assert found == ONLY_WITH.keys()


def test_every_right_that_there_is_can_be_had() -> None:
    found = users(EACH, *ONLY_WITH.values())
    heartbeats = [("verbatim.heartbeats", "literal")]
    for principal, cluster in AT:
        expected = rules(ours(principal, cluster), topics=heartbeats, destinations=heartbeats)
        assert granted(found[f"verbatim-{principal}-{cluster}"]) == expected, (principal, cluster)


@pytest.mark.parametrize("words", ONLY_WITH)
def test_what_only_a_setting_needs_comes_with_that_setting(words: str) -> None:
    before, after = users(EACH), users(EACH, ONLY_WITH[words])
    heartbeats = [("verbatim.heartbeats", "literal")] if words == "HEARTBEATS_INTERVAL" else []
    for principal, cluster in AT:
        rights = [r for r in ours(principal, cluster) if words in r.when or r in plain([r])]
        expected = rules(rights, topics=heartbeats, destinations=heartbeats)
        assert granted(after[f"verbatim-{principal}-{cluster}"]) == expected, (principal, cluster)
    assert before != after


def test_one_user_of_a_cluster_has_the_rights_of_all_applications() -> None:
    found = users(BOTH)
    assert found.keys() == {"verbatim-source", "verbatim-target"}
    for cluster in (SOURCE, TARGET):
        expected = rules(plain(right for right in RIGHTS if right.cluster == cluster))
        assert granted(found[f"verbatim-{cluster}"]) == expected


def test_without_consumer_groups_nobody_has_the_rights_for_them() -> None:
    (user,) = users("strimzi.target.cluster=there").values()
    copying = [r for r in RIGHTS if r.cluster == TARGET and r.principal != OFFSETS]
    assert granted(user) == rules(plain(copying))


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ("settings.CREATE_TOPICS=false", "by hand"),
        ("settings.TOPIC_CONFIG_SYNC=false", "TOPIC_CONFIG_SYNC=false"),
    ],
)
def test_what_is_done_by_hand_needs_no_right(values: str, gone: str) -> None:
    user = users(BOTH, values)["verbatim-target"]
    assert granted(user) == rules(plain(r for r in RIGHTS if r.cluster == TARGET and gone not in r.when))


def test_names_and_prefixes_are_what_the_settings_mean() -> None:
    topics = r"settings.KAFKA_CLUSTERS_SOURCE_TOPIC=orders\, eu\\.pay-.*\,audit.*"
    source, target = users(BOTH, topics, "settings.CONSUMER_GROUPS=billing.*").values()
    meant = {("orders", "literal"), ("eu.pay-", "prefix"), ("audit", "prefix")}
    assert {rule[1:3] for rule in granted(source) if rule[0] == "topic"} == meant
    assert {rule[1:3] for rule in granted(target) if rule[3] == "Create"} > meant
    assert {rule[1:3] for rule in granted(source) if rule[0] == "group"} == {("billing", "prefix")}


def test_what_is_given_takes_the_place_of_what_the_settings_mean() -> None:
    access = "strimzi.access.destinations[0].name=eu.,strimzi.access.destinations[0].patternType=prefix"
    _, user = users(BOTH, access, "settings.KAFKA_CLUSTERS_DESTINATION_TOPIC=eu.{topic}").values()
    rights = [right for right in RIGHTS if right.cluster == TARGET]
    others = rules(right for right in plain(rights) if right.name != "<destinations>")
    copies = {("topic", "eu.", "prefix", rule[3]) for rule in granted(user) if rule[1] == "eu."}
    assert granted(user) == others | copies and len(copies) == 6


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            r"settings.KAFKA_CLUSTERS_SOURCE_TOPIC=a[bc]",
            "strimzi.access.topics: no access rule says what a[bc]",
        ),
        (r"settings.CONSUMER_GROUPS=a..*", "strimzi.access.groups: no access rule says what a..* means"),
        (
            "settings.KAFKA_CLUSTERS_DESTINATION_TOPIC=eu.{topic}",
            "strimzi.access.destinations: KAFKA_CLUSTERS_",
        ),
    ],
)
def test_what_no_access_rule_can_say_is_asked_for(values: str, told: str) -> None:
    helm("version")
    done = run("helm", "template", "verbatim", K8S, "--set", f"{BOTH},{values}")
    assert done.returncode != 0 and told in done.stderr, done.stderr


# --- topics


def topics(*values: str) -> dict[tuple[str, str], tuple[int, dict[str, str]]]:
    """(cluster, name) -> (partitions, configuration) of each KafkaTopic."""
    made = of_kind(charted("--set", ",".join([BOTH, "strimzi.topics=true", *values])), "KafkaTopic")
    return {
        (t["metadata"]["labels"]["strimzi.io/cluster"], t["spec"]["topicName"]): (
            t["spec"]["partitions"],
            t["spec"]["config"],
        )
        for t in made
    }


SETTINGS = {
    "STAGING_PARTITIONS": "12",
    "CONTROL_TOPIC": "Decided_here",
    "LINK_TOPIC_CONFIG": "min.insync.replicas=2, offset-mappings:retention.ms=1209600000",
    "OTEL_METRICS_EXPORTER": "kafka",
    "HEARTBEATS_INTERVAL": "5s",
    "PIPELINE": "/etc/verbatim/pipeline.yaml",
}


@pytest.mark.parametrize("given", [{}, SETTINGS], ids=["by default", "with settings"])
def test_topics_are_as_the_applications_make_them(given: dict[str, str]) -> None:
    settings = loading.load({**SERVERS, **given})
    made = own_topics(settings)
    # `schemas` comes with a pipeline's file.
    made |= dead_letters_topic(settings) | (metrics_topic(settings) if given else {})
    made[settings.group_offsets_topic] = made[settings.schemas_topic] = (1, {"cleanup.policy": "compact"})
    added = own_topic_config.configured(settings.link_topic_config)
    expected = {
        ("there", name): (partitions, config | added[settings.own_topic_kinds[name]])
        for name, (partitions, config) in made.items()
    }
    if given:
        expected["here", settings.heartbeats_topic] = (1, dict(HEARTBEATS))
    values = [f"settings.{name}={value.replace(',', chr(92) + ',')}" for name, value in given.items()]
    assert topics("schemas.enabled=true", *values) == expected


def test_topics_that_strimzi_makes_need_no_right_to_make_them() -> None:
    _, user = users(BOTH, "strimzi.topics=true").values()
    rights = [r for r in RIGHTS if r.cluster == TARGET and "made by hand" not in r.when]
    copies = [r for r in RIGHTS if r.name == "<destinations>"]
    assert granted(user) == rules(plain([*rights, *copies]))


def test_a_name_that_kubernetes_does_not_allow_is_the_topics_only() -> None:
    values = f"{BOTH},strimzi.topics=true,settings.CONTROL_TOPIC=Decided_here"
    made = list(of_kind(charted("--set", values), "KafkaTopic"))
    names = {topic["spec"]["topicName"]: topic["metadata"]["name"] for topic in made}
    assert names["Decided_here"] == "decided-here" and names["verbatim.staging"] == "verbatim.staging"
    # What is uninstalled leaves the topics.
    assert {t["metadata"]["annotations"]["helm.sh/resource-policy"] for t in made} == {"keep"}
