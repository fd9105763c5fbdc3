"""kafka-reo's variables as settings, wherever a deployment has them."""

from __future__ import annotations

import pytest
import yaml
from click.testing import CliRunner

from common.config import loading
from verbatim.convert import formats
from verbatim.convert.settings import Converted
from verbatim.main import cli

VARIABLES = {
    "APPLICATION_NAME": "billing-copy",
    "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "near:9092",
    "KAFKA_CLUSTERS_SOURCE_TOPIC": "bills",
    "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "far:9092",
    "KAFKA_CLUSTERS_DESTINATION_TOPIC": "bills-copy",
    "KAFKA_CLUSTERS_DESTINATION_TOPIC_PROXY": "bills-proxy",
    "KAFKA_CONFIG_CONSUMER_AUTO_RESET": "latest",
    "KAFKA_CONFIG_CONSUMER_FETCH_MIN_BYTES": "2048",
    "KAFKA_CONFIG_PRODUCER_LINGER_MS": "20",
    "KAFKA_CONFIG_PRODUCER_COMPRESSION_TYPE": "gzip",
    "KAFKA_CONFIG_PRODUCER_ACKS": "all",
    "STREAMS_REPLICATION_FACTOR": "2",
    "STREAMS_NUM_STREAM_THREADS": "4",
    "STREAMS_NUM_STANDBY_REPLICAS": "1",
    "STREAMS_COMMIT_INTERVAL": "PT1S",
    "JAVA_OPTS": "-Xmx1g -Dpassword=s3cret",
}
SETTINGS = {
    "APPLICATION_NAME": "billing-copy",
    "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "near:9092",
    "KAFKA_CLUSTERS_SOURCE_TOPIC": "bills",
    "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "far:9092",
    "KAFKA_CLUSTERS_DESTINATION_TOPIC": "bills-copy",
    "START_OFFSETS": "latest",
    "KAFKA_CLUSTERS_SOURCE_CONSUMER_FETCH_MIN_BYTES": "2048",
    "KAFKA_CLUSTERS_DESTINATION_PRODUCER_COMPRESSION_TYPE": "gzip",
    "REPLICATION_FACTOR": "2",
    "PARALLELISM": "4",
}
ENV_FILE = "# ours\n" + "".join(f"{name}={value}\n" for name, value in VARIABLES.items())
COMPOSE = {
    "services": {"db": {"image": "x"}, "reo": {"environment": [f"{n}={v}" for n, v in VARIABLES.items()]}}
}
MAPPED = {"services": {"reo": {"environment": VARIABLES}}}
DEPLOYMENT = {
    "kind": "Deployment",
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {"name": "sidecar"},
                    {"name": "reo", "env": [{"name": n, "value": v} for n, v in VARIABLES.items()]},
                ]
            }
        }
    },
}


def one(text: str) -> Converted:
    (found,) = formats.converted(text, "reo")
    return found


@pytest.mark.parametrize(
    "text",
    [ENV_FILE, *(yaml.safe_dump(given, sort_keys=False) for given in (COMPOSE, MAPPED, DEPLOYMENT))],
    ids=["env", "compose", "compose-mapping", "deployment"],
)
def test_its_variables_become_settings_wherever_they_stand(text: str) -> None:
    found = one(text)
    assert found.settings == SETTINGS
    assert loading.load(found.settings).warnings == []
    (anew,) = found.missing
    assert anew.startswith("going on where kafka-reo has stopped")
    assert [line.partition("=")[0].partition(" ")[0] for line in found.unneeded] == [
        "KAFKA_CLUSTERS_DESTINATION_TOPIC_PROXY",
        "KAFKA_CONFIG_PRODUCER_LINGER_MS",
        "KAFKA_CONFIG_PRODUCER_ACKS",
        "STREAMS_NUM_STANDBY_REPLICAS",
        "STREAMS_COMMIT_INTERVAL",
        "JAVA_OPTS",
    ]
    assert "s3cret" not in "\n".join(found.lines())


def test_its_own_configuration_file_says_the_same() -> None:
    file = """
application: {name: billing-copy}
kafka:
  clusters:
    source: {bootstrap-servers: "near:9092", topic: bills}
    destination: {bootstrap-servers: "far:9092", topic: bills-copy, topic-proxy: bills-proxy}
  config:
    consumer: {fetch-min-bytes: "2048", auto-reset: latest}
    producer: {linger-ms: "20", compression-type: gzip, acks: all}
streams: {replication-factor: 2, num-stream-threads: "4", buffer-config: {max-bytes: "9"}}
"""
    assert one(file).settings == SETTINGS


def test_an_env_file_is_read_as_it_stands() -> None:
    found = one(ENV_FILE.replace("TOPIC=bills\n", "TOPIC=bills\\..*,a=b\n"))
    assert found.settings["KAFKA_CLUSTERS_SOURCE_TOPIC"] == "bills\\..*,a=b"


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("KAFKA_CLUSTERS_SOURCE_TOPIC", "${TOPIC:-bills}", "KAFKA_CLUSTERS_SOURCE_TOPIC: its value stands"),
        ("KAFKA_CONFIG_CONSUMER_ISOLATION", "x", "kafka.config.consumer.isolation=x"),
        ("KAFKA_CONFIG_CONSUMER_AUTO_RESET", "none", "START_OFFSETS"),
        ("STREAMS_REPLICATION_FACTOR", "many", "REPLICATION_FACTOR"),
        ("KAFKA_CONFIG_PRODUCER_COMPRESSION_TYPE", "brotli", "COMPRESSION_TYPE"),
    ],
)
def test_what_has_no_equivalent_is_told(variable: str, value: str, told: str) -> None:
    found = one(yaml.safe_dump({"services": {"reo": {"environment": VARIABLES | {variable: value}}}}))
    assert any(told in line for line in found.missing), found.missing


def test_defaults_that_count_there_and_here() -> None:
    few = {n: v for n, v in VARIABLES.items() if n.startswith("KAFKA_CLUSTERS_")}
    found = one(
        yaml.safe_dump({"services": {"reo": {"environment": {**few, "STREAMS_REPLICATION_FACTOR": -1}}}})
    )
    assert found.settings["APPLICATION_NAME"] == "exactly-once-replicator"
    assert "REPLICATION_FACTOR" not in found.settings and "START_OFFSETS" not in found.settings


def test_several_are_several_links_and_a_value_from_elsewhere_is_told() -> None:
    other = {**DEPLOYMENT, "spec": {"containers": [{"name": "b", "env": [{"name": n} for n in VARIABLES]}]}}
    text = yaml.safe_dump_all([COMPOSE, other])
    done = CliRunner().invoke(cli, ["convert", "-"], input=text, standalone_mode=False)
    first, second = done.output.strip().split("\n\n")
    assert first.startswith("# kafka-reo's reo\n") and second.startswith("# kafka-reo's b\n")
    assert "# NO EQUIVALENT: APPLICATION_NAME: its value stands elsewhere" in second
    assert done.return_value == 3
    chosen = CliRunner().invoke(cli, ["convert", "--mirror", "reo", "-"], input=text, standalone_mode=False)
    assert chosen.output.strip() == first
