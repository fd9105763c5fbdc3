"""MirrorMaker 2's settings as Verbatim's: nothing that was said gets lost, and what comes out loads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from common.config import loading, start_offsets
from common.config.start_offsets import MirrorMaker, StartOffsets
from common.errors import SettingsError
from verbatim.convert import mirror_maker, settings
from verbatim.convert.settings import Converted
from verbatim.main import cli

PROPERTIES = r"""
# two clusters
clusters = eu, us
eu.bootstrap.servers = eu1:9092, eu2:9092
us.bootstrap.servers = us1:9093
us.security.protocol = SASL_SSL
us.sasl.mechanism = SCRAM-SHA-512
us.sasl.jaas.config = org.apache.kafka.common.security.scram.ScramLoginModule required \
    username="mm" password="s3cret";
us.producer.compression.type = zstd
us.consumer.fetch.min.bytes = 7
eu.consumer.auto.offset.reset = latest
eu->us.enabled = true
eu->us.topics = orders, payments\\..*
eu->us.groups = billing-.*
us->eu.enabled = false
replication.factor = 3
refresh.topics.interval.seconds = 60
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 10
emit.heartbeats.interval.seconds = 5
offset.lag.max = 100
tasks.max = 8
"""


def converted(text: str) -> list[Converted]:
    return [settings.converted(mirror) for mirror in mirror_maker.read(text, "mm2")]


def one(text: str) -> Converted:
    (found,) = converted(text)
    return found


def test_properties_become_the_settings_of_each_flow_that_is_enabled() -> None:
    found = one(PROPERTIES)
    assert found.name == "eu->us" and found.missing == []
    assert found.settings == {
        "APPLICATION_NAME": "eu-to-us",
        "KAFKA_CLUSTERS_SOURCE_NAME": "eu",
        "KAFKA_CLUSTERS_DESTINATION_TOPIC": "{source}.{topic}",
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "eu1:9092, eu2:9092",
        "START_OFFSETS": ".*=mirrormaker:mm2-offsets.eu.internal:eu:MirrorSourceConnector,latest",
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "us1:9093",
        "KAFKA_CLUSTERS_DESTINATION_PROPERTIES_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_CLUSTERS_DESTINATION_PROPERTIES_SASL_MECHANISM": "SCRAM-SHA-512",
        "KAFKA_CLUSTERS_DESTINATION_PROPERTIES_SASL_JAAS_CONFIG": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="mm" password="s3cret";'
        ),
        "KAFKA_CLUSTERS_DESTINATION_PRODUCER_COMPRESSION_TYPE": "zstd",
        "KAFKA_CLUSTERS_SOURCE_TOPIC": r"orders,payments\..*",
        "KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE": (
            r".*\.replica,mm2.*\.internal,.*\.checkpoints\.internal,\..*,heartbeats,.*\.heartbeats,(.*\.)?us\..*"
        ),
        "TOPIC_REFRESH_INTERVAL": "60s",
        "REPLICATION_FACTOR": "3",
        "ACL_SYNC": "read",
        "CONSUMER_GROUPS": "billing-.*",
        "CONSUMER_GROUPS_EXCLUDE": "console-consumer-.*,connect-.*,__.*",
        "OFFSETS_INTERVAL": "10s",
        "HEARTBEATS_INTERVAL": "5s",
    }
    assert [line.partition("=")[0] for line in found.unneeded] == [
        "us.consumer.fetch.min.bytes",
        "offset.lag.max",
        "tasks.max",
    ]


def test_what_comes_out_means_the_same_topics_with_the_same_names() -> None:
    loaded = loading.load(environ=one(PROPERTIES).settings)
    chosen = ("orders", "payments.new", "payments.us.x", "us.orders", "heartbeats", "eu.heartbeats", "other")
    assert [name for name in chosen if loaded.selects(name)] == ["orders", "payments.new"]
    assert loaded.destination_topic("orders", "eu") == "eu.orders"
    identity = one(PROPERTIES + "replication.policy.class=org.x.IdentityReplicationPolicy\n")
    loaded = loading.load(environ=identity.settings)
    assert loaded.destination_topic("orders", "eu") == "orders"
    assert loaded.selects("payments.us.x"), "names tell nothing then"


@pytest.mark.parametrize(
    ("line", "variable", "value"),
    [
        ("topics.exclude = secret.*, tmp", "KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE", r"secret\.\*,tmp,mm2.*"),
        ("topics.blacklist = tmp", "KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE", r"tmp,mm2.*"),
        ("sync.topic.configs.enabled = false", "TOPIC_CONFIG_SYNC", "false"),
        ("config.properties.exclude = a\\\\..*, b", "TOPIC_CONFIG_EXCLUDE", r"a\\\.\.\*,b"),
        ("replication.policy.separator = _", "KAFKA_CLUSTERS_DESTINATION_TOPIC", r"\{source\}_\{topic\}"),
        ("emit.heartbeats.enabled = true", "HEARTBEATS_INTERVAL", "5s"),
        ("eu->us.replication.factor = 1", "REPLICATION_FACTOR", "1"),
        ("eu.admin.socket.timeout.ms = 9000", "KAFKA_CLUSTERS_SOURCE_ADMIN_SOCKET_TIMEOUT_MS", "9000"),
        ("source.consumer.fetch.min.bytes = 3", "KAFKA_CLUSTERS_SOURCE_CONSUMER_FETCH_MIN_BYTES", "3"),
        ("client.id = mm", "KAFKA_CLUSTERS_SOURCE_PROPERTIES_CLIENT_ID", "mm"),
    ],
)
def test_a_setting_becomes_its_equivalent(line: str, variable: str, value: str) -> None:
    found = one(PROPERTIES + line + "\n")
    assert re.match(value, found.settings[variable]), found.settings[variable]
    assert found.missing == []


@pytest.mark.parametrize(
    ("line", "topic"),
    [
        ("", "mm2-offsets.eu.internal"),
        ("us.offset.storage.topic = theirs", "theirs"),
        ("eu.offset.storage.topic = not-of-the-target", "mm2-offsets.eu.internal"),
        ("us.offset.storage.topic = theirs\noffset.storage.topic = of-all", "of-all"),
        ("eu->us.offsets.storage.topic = its-own", "its-own"),
    ],
)
def test_copying_goes_on_where_its_positions_say(line: str, topic: str) -> None:
    found = one(PROPERTIES.replace("auto.offset.reset = latest", "auto.offset.reset = earliest") + line)
    assert found.settings["START_OFFSETS"] == f"mirrormaker:{topic}:eu:MirrorSourceConnector"
    assert "stop it before" in found.why["START_OFFSETS"] and found.missing == []
    start = start_offsets.parsed(loading.load(environ=found.settings).start_offsets)
    assert start == StartOffsets(MirrorMaker(topic, "eu", "MirrorSourceConnector"))


def test_what_is_off_is_left_out() -> None:
    off = "sync.topic.acls.enabled=false\nsync.group.offsets.enabled=false\nemit.heartbeats.enabled=false\n"
    found = one(PROPERTIES + off)
    assert not {"ACL_SYNC", "CONSUMER_GROUPS", "HEARTBEATS_INTERVAL"} & found.settings.keys()
    assert any(line.startswith("groups ") for line in found.unneeded)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("transforms = route", "transforms=route"),
        (
            "us.ssl.truststore.location = /ca.jks",
            "us.ssl.truststore.location=/ca.jks (ssl.truststore of type JKS",
        ),
        ("us.ssl.truststore.password = s3cret", "us.ssl.truststore.password=..."),
        ("eu.consumer.fetch.max.wait.ms = 1", "its nearest is fetch.wait.max.ms"),
        ("replication.policy.class = com.acme.Policy", "replication.policy.class=com.acme.Policy"),
        ("eu->us.topics = orders, a(?>b)++c)", "topics: a(?>b)++c)"),
        ("eu.consumer.auto.offset.reset = none", "auto.offset.reset=none"),
        ("replication.factor = many", "REPLICATION_FACTOR"),
    ],
)
def test_what_has_no_equivalent_is_told(line: str, told: str) -> None:
    found = one(PROPERTIES + line + "\n")
    assert any(told in one for one in found.missing), found.missing
    assert "s3cret" not in "".join(found.missing + found.unneeded)


CONNECTORS: list[dict[str, Any]] = [
    {
        "name": "source",
        "config": {
            "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
            "source.cluster.alias": "a",
            "target.cluster.alias": "b",
            "source.cluster.bootstrap.servers": "a:9092",
            "target.cluster.bootstrap.servers": "b:9092",
            "target.cluster.security.protocol": "SSL",
            "topics": "orders",
            "tasks.max": 4,
            "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        },
    },
    {
        "name": "checkpoint",
        "config": {
            "connector.class": "org.apache.kafka.connect.mirror.MirrorCheckpointConnector",
            "source.cluster.alias": "a",
            "target.cluster.alias": "b",
            "sync.group.offsets.enabled": True,
            "groups": "billing",
        },
    },
]


def test_connectors_of_the_same_clusters_are_one_link() -> None:
    found = one(json.dumps(CONNECTORS))
    assert found.missing == []
    assert found.settings["KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS"] == "a:9092"
    assert found.settings["KAFKA_CLUSTERS_DESTINATION_PROPERTIES_SECURITY_PROTOCOL"] == "SSL"
    assert found.settings["CONSUMER_GROUPS"] == "billing"
    assert found.settings["START_OFFSETS"] == "earliest"
    assert "mirrormaker:<OFFSETS TOPIC>:a:source " in found.why["START_OFFSETS"]
    (alone,) = converted(json.dumps(CONNECTORS[0]["config"]))
    assert (
        "CONSUMER_GROUPS" not in alone.settings and alone.settings["KAFKA_CLUSTERS_SOURCE_TOPIC"] == "orders"
    )


AUTHENTICATION = {
    "type": "scram-sha-512",
    "username": "mm",
    "passwordSecret": {"secretName": "mm-user", "password": "password"},
}
TLS = {"trustedCertificates": [{"secretName": "ca", "certificate": "ca.crt"}]}
OLD_FORM: dict[str, Any] = {
    "clusters": [
        {"alias": "a", "bootstrapServers": "a:9092"},
        {"alias": "b", "bootstrapServers": "b:9093", "tls": TLS, "authentication": AUTHENTICATION},
    ],
    "mirrors": [
        {
            "sourceCluster": "a",
            "targetCluster": "b",
            "topicsPattern": "orders|paid",
            "groupsPattern": ".*",
            "sourceConnector": {"tasksMax": 2, "config": {"replication.factor": 3}},
            "checkpointConnector": {"config": {"sync.group.offsets.enabled": True}},
        }
    ],
}
NEW_FORM: dict[str, Any] = {
    "target": {**OLD_FORM["clusters"][1], "offsetStorageTopic": "told"},
    "mirrors": [{**OLD_FORM["mirrors"][0], "source": OLD_FORM["clusters"][0]}],
}
for key in ("sourceCluster", "targetCluster"):
    del NEW_FORM["mirrors"][0][key]


@pytest.mark.parametrize("spec", [OLD_FORM, NEW_FORM], ids=["v1beta2", "v1"])
def test_strimzis_resource_becomes_a_link_and_what_lies_in_secrets_is_named(spec: Any) -> None:
    found = one(yaml.safe_dump({"kind": "KafkaMirrorMaker2", "spec": spec}))
    assert found.settings["KAFKA_CLUSTERS_SOURCE_TOPIC"] == "orders|paid"
    assert found.settings["REPLICATION_FACTOR"] == "3"
    assert found.settings["KAFKA_CLUSTERS_DESTINATION_PROPERTIES_SECURITY_PROTOCOL"] == "SASL_SSL"
    assert found.settings["KAFKA_CLUSTERS_DESTINATION_PROPERTIES_SASL_USERNAME"] == "mm"
    assert "CONSUMER_GROUPS" in found.settings
    at = "mirrormaker2-cluster-offsets" if spec is OLD_FORM else "told"
    assert found.settings["START_OFFSETS"] == f"mirrormaker:{at}:a:a->b.MirrorSourceConnector"
    assert found.missing[:2] == [
        "b: sasl.password, from the Secret mm-user (password)",
        "b: ssl.ca.location, from the Secret ca (ca.crt)",
    ]


def test_a_login_of_strimzi_that_is_custom_is_what_its_configuration_says() -> None:
    """With Amazon's mechanism for IAM it is by tokens here."""
    plain = {
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": 'PlainLoginModule required username="u" password="p";',
    }
    iam = {"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": "IAMLoginModule required;"}
    target: dict[str, Any] = {**OLD_FORM["clusters"][0], "alias": "b"}
    for config in (plain, iam):
        custom: dict[str, Any] = {"authentication": {"type": "custom", "sasl": True, "config": config}}
        custom |= {} if config is plain else {"tls": {}}
        spec = {**OLD_FORM, "clusters": [OLD_FORM["clusters"][0], {**target, **custom}]}
        found = one(yaml.safe_dump({"kind": "KafkaMirrorMaker2", "spec": spec}))
        login = loading.load(found.settings).client_config("destination", "admin")
        if config is plain:
            assert login["security.protocol"] == "sasl_plaintext" and found.missing == []
            assert (login["sasl.username"], login["sasl.password"]) == ("u", "p")
        else:
            assert login["security.protocol"] == "sasl_ssl" and login["sasl.mechanism"] == "OAUTHBEARER"
            assert login["sasl.oauthbearer.provider"] == "aws-msk-iam"
            assert found.missing == ["b: ssl.ca.location, from the system"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "neither MirrorMaker 2's properties"),
        ("a.b=c", "neither MirrorMaker 2's properties"),
        ("clusters=a,b\na->b.enabled=false", "no flow is enabled"),
        ("{", "mm2: "),
        ('{"connector.class": "x.FileStreamSource"}', "connector.class is FileStreamSource"),
        ("[1]", "not a connector"),
        ("kind: KafkaMirrorMaker2\nspec: {mirrors: [{sourceCluster: a}]}", "a mirror from a to None"),
        ("kind: KafkaMirrorMaker2\nspec: [", "mm2: "),
    ],
)
def test_what_is_none_of_these_is_refused_in_a_line(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(why)) as caught:
        converted(text)
    assert "\n" not in str(caught.value)


def run(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(cli, ["convert", *args], standalone_mode=False, **more)


def test_the_command_writes_a_file_of_variables(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(PROPERTIES + "us->eu.enabled=true\n")
    done = run(str(file))
    blocks = done.output.strip().split("\n\n")
    assert done.return_value == 0 and len(blocks) == 2
    for block in blocks:
        pairs = (line.partition("=") for line in block.splitlines() if not line.startswith("#"))
        loading.load(environ={name: value for name, _, value in pairs})
    chosen = run("--mirror", "us->eu", str(file)).output
    assert chosen.strip() == blocks[1].strip()
    assert isinstance(run("--mirror", "x->y", str(file)).exception, SettingsError)
    assert run("-", input=PROPERTIES + "transforms=x\n").return_value == 3
    assert isinstance(run(str(tmp_path / "none")).exception, SettingsError)
