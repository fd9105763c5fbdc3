"""Pipelines of K2K as settings: what they say is in one list or another, and what comes out loads."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from common.config import loading
from common.errors import SettingsError
from verbatim.convert import formats
from verbatim.convert.settings import Converted

PIPELINE = r"""
name: shop to archive
license: {acceptEula: true, token: l1cence}
features:
  exactlyOnce: disabled
  offsetMapping: enabled
  checkKafkaConnectionOnStartup: enabled
source:
  kafka:
    common:
      "bootstrap.servers": "shop-1:9093,shop-2:9093"
      "security.protocol": SASL_SSL
      sasl.mechanism: SCRAM-SHA-512
      sasl.jaas.config: ${env:string:SHOP_JAAS}
      ssl.truststore.type: PEM
      ssl.truststore.location: /certificates/shop.pem
    consumer: {group.id: k2k.archive, fetch.min.bytes: 5000, auto.offset.reset: latest}
  registry: {config: {schema.registry.url: "http://registry", basic.auth.user.info: "who:s3cret"}}
target:
  kafka:
    common: {bootstrap.servers: "archive:9092"}
    producer: {compression.type: zstd, enable.idempotence: true, fetch.sizes: 7}
coordination: {kafka: {commit: {topic: __k2k, batchSize: 10}}}
groups: {consumerGroups: "till-.*", pollInterval: 5 seconds}
errorHandling: {onActiveConsumerGroupCommit: ignore, onCommitSyncTimeout: fail}
replication:
  - source: {name: s, topic: [receipts, returns.v1]}
  - sink: {name: t, topic: {prefix: "shop.", suffix: ".copy"}, partition: source}
"""


def one(text: str) -> Converted:
    (found,) = formats.converted(text, "k2k.yml")
    return found


def changed(**more: Any) -> Converted:
    return one(yaml.safe_dump(yaml.safe_load(PIPELINE) | more))


def test_a_pipeline_becomes_the_settings_of_a_link() -> None:
    found = one(PIPELINE)
    assert found.lines()[0] == "# K2K's pipeline shop to archive"
    assert found.settings == {
        "APPLICATION_NAME": "shop-to-archive",
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "shop-1:9093,shop-2:9093",
        "KAFKA_CLUSTERS_SOURCE_PROPERTIES_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_CLUSTERS_SOURCE_PROPERTIES_SASL_MECHANISM": "SCRAM-SHA-512",
        "KAFKA_CLUSTERS_SOURCE_PROPERTIES_SSL_TRUSTSTORE_TYPE": "PEM",
        "KAFKA_CLUSTERS_SOURCE_PROPERTIES_SSL_TRUSTSTORE_LOCATION": "/certificates/shop.pem",
        "KAFKA_CLUSTERS_SOURCE_CONSUMER_FETCH_MIN_BYTES": "5000",
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "archive:9092",
        "KAFKA_CLUSTERS_DESTINATION_PRODUCER_COMPRESSION_TYPE": "zstd",
        "KAFKA_CLUSTERS_DESTINATION_PRODUCER_ENABLE_IDEMPOTENCE": "true",
        "KAFKA_CLUSTERS_SOURCE_TOPIC": "receipts,returns.v1",
        "KAFKA_CLUSTERS_DESTINATION_TOPIC": "shop.{topic}.copy",
        "START_OFFSETS": "latest",
        "CONSUMER_GROUPS": "till-.*",
        "OFFSETS_INTERVAL": "5s",
        "ON_ACTIVE_GROUP": "skip",
    }
    loaded = loading.load(found.settings)
    assert loaded.client_config("source", "consumer")["ssl.ca.location"] == "/certificates/shop.pem"
    assert loaded.destination_topic("returns.v1", "x") == "shop.returns.v1.copy"
    jaas, sizes, anew = found.missing
    assert jaas == (
        "source.sasl.jaas.config=${env:string:SHOP_JAAS} (set KAFKA_CLUSTERS_SOURCE_PROPERTIES_SASL_JAAS_CONFIG, or "
        "KAFKA_CLUSTERS_SOURCE_PROPERTIES_SASL_JAAS_CONFIG_FILE)"
    )
    assert sizes.startswith("target.producer.fetch.sizes=7 (") and anew.startswith(
        "going on where K2K has stopped"
    )
    assert [line.partition("=")[0] for line in found.unneeded] == [
        "license.acceptEula",
        "license.token",
        "features.exactlyOnce",
        "features.offsetMapping",
        "features.checkKafkaConnectionOnStartup",
        "source.kafka.consumer.group.id",
        "source.registry.config.schema.registry.url",
        "source.registry.config.basic.auth.user.info",
        "coordination.kafka.commit.topic",
        "coordination.kafka.commit.batchSize",
        "errorHandling.onCommitSyncTimeout",
    ]
    assert not {"l1cence", "s3cret"} & set(re.findall(r"\w+", "\n".join(found.lines())))


def test_the_values_of_its_chart_hold_one() -> None:
    """And the way in as older charts have it."""
    given = yaml.safe_load(PIPELINE)
    given["target"] = {"kafka": {"connection": {"servers": "old:9092"}, "registry": {"url": "http://r"}}}
    found = one(yaml.safe_dump({"k2k": {"replicationConfig": given}, "offsetMapper": {"enabled": True}}))
    assert found.settings["KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS"] == "old:9092"
    assert found.settings["KAFKA_CLUSTERS_SOURCE_TOPIC"] == "receipts,returns.v1"
    assert len(found.missing) == 2


@pytest.mark.parametrize(
    ("topic", "copied", "left"),
    [
        ("pay.v1", ["pay.v1", "payxv1"], "pay"),
        ("pay.*", ["pay", "pay.v1"], "repay"),
        ("pay", ["pay"], "pay.v1"),
    ],
)
def test_a_topic_that_is_no_list_is_an_expression(topic: str, copied: list[str], left: str) -> None:
    found = changed(
        replication=[{"source": {"topic": topic}, "sink": {"topic": "source", "partition": "source"}}]
    )
    loaded = loading.load(found.settings)
    assert all(map(loaded.selects, copied)) and not loaded.selects(left)
    assert loaded.destination_topic(copied[0], "x") == copied[0]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"features": {"headerReplication": "disabled"}}, "features.headerReplication=disabled (headers are"),
        ({"features": {"schemaMapping": "enabled"}}, "features.schemaMapping=enabled (schemas"),
        ({"features": {"keepRecordCreationTimestamp": "disabled"}}, "timestamps are always kept"),
        ({"features": {"tracingHeaders": {"offset": "enabled"}}}, "features.tracingHeaders.offset=enabled"),
        ({"features": {"brandNew": "enabled"}}, "features.brandNew=enabled"),
        ({"errorHandling": {"onActiveConsumerGroupCommit": "retry"}}, "(ON_ACTIVE_GROUP)"),
        ({"groups": {"pollInterval": "often"}}, "groups.pollInterval=often (OFFSETS_INTERVAL)"),
        ({"replication": [{"source": {"topic": ["a", "b*"]}, "sink": {}}]}, "source.topic: b* (a list"),
        ({"replication": [{"source": {"topic": "a"}, "sink": {"topic": "b"}}]}, "sink.topic=b (names of"),
        ({"replication": [{"source": {"topic": "a"}, "sink": {"topic": {"static": "b"}}}]}, "sink.topic="),
        (
            {"replication": [{"source": {"topic": "a"}, "sink": {"partition": "random"}}]},
            "sink.partition=random",
        ),
        (
            {"replication": [{"source": {"topic": "a", "where": "x"}, "sink": {}}]},
            "replication.source.where=x",
        ),
        ({"replication": [{"source": {"topic": "a"}}, {"filter": {}}]}, "a stage filter"),
        ({"replication": [{"source": {"topic": "a"}}, {"source": {"topic": "b"}}]}, "a stage source"),
        ({"source": {}}, "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS"),
    ],
)
def test_what_has_no_equivalent_is_told(more: Any, told: str) -> None:
    assert any(told in line for line in changed(**more).missing), changed(**more).missing


def test_topics_that_are_made_by_hand_stay_so() -> None:
    found = changed(features={"autoCreateTopics": "disabled", "autoCreateControlTopics": "disabled"})
    assert found.settings["CREATE_TOPICS"] == "false" and "by hand too" in found.why["CREATE_TOPICS"]


def test_a_pipeline_without_topics_is_refused() -> None:
    with pytest.raises(SettingsError, match="k2k.yml: replication: no source.topic"):
        changed(replication=[{"sink": {"topic": "source"}}])


KEYS = st.sampled_from(
    [
        "name",
        "source",
        "sink",
        "topic",
        "prefix",
        "kafka",
        "common",
        "consumer",
        "bootstrap.servers",
        "features",
        "groups",
        "replication",
        "k2k",
        "services",
        "replicationConfig",
        "environment",
        "clusters",
        "containers",
        "env",
        "value",
        "spec",
        "KAFKA_CLUSTERS_SOURCE_TOPIC",
        "pollInterval",
    ]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | KEYS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(KEYS, ANYTHING, max_size=6))
def test_whatever_stands_there_ends_in_settings_or_in_a_line(document: dict[str, Any]) -> None:
    with contextlib.suppress(SettingsError):
        for found in formats.converted(yaml.safe_dump(document), "x"):
            found.lines()
