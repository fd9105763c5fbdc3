"""OTEL_METRICS_EXPORTER=kafka, on real brokers: the topic, and what is in it."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from common.app.health import Health, sending
from common.kafka.client.topics import configs
from common.link.lane_work import Work
from common.ports import Deadline
from tests.conftest import Kafka, Names
from tests.support.brokers import create_topic, read_all, topics
from tests.support.harness import Link, eventually
from tests.support.otlp import attributes, figures, own, served


@pytest.fixture
def health() -> Health:
    """Of as many partitions as are told one by one, with names as long as they may be."""
    health = Health("deduplicator", "leader", link="east", source="s-1", target="t-1", instance="host-1-42")
    of = {
        (f"{'long' * 60}-{i:03}", p): Counter(records=5, delivered_offset=9)
        for i in range(100)
        for p in range(10)
    }
    health.work = Work(Counter(frames=7), of)
    health.work.delays.took(4, 10)
    return health


def test_the_topic_has_the_figures_of_metrics_in_otlps_json(
    health: Health, source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: the topic is made as the reference has it; what is sent is what /metrics serves, each record
    a request of its own that a collector reads, in order."""
    to = target.bootstrap_servers
    link = Link(source.bootstrap_servers, to, names.link, "t", OTEL_METRICS_EXPORTER="kafka,prometheus")
    link.variables["LINK_TOPIC_CONFIG"] = "metrics:retention.ms=3600000,segment.ms=7777777"
    topic = link.settings.metrics_topic
    assert topic == f"{names.link}.metrics" and topic not in topics(to)
    with sending(health, link.settings):
        expected = served(health)
    assert (health.exports["kafka"], health.exports_failed["kafka"]) == (1, 0)
    (written,) = read_all(to, topic)
    requests = [Parse(record.value or b"", ExportMetricsServiceRequest()) for record in written]
    merged = {at: value for request in requests for at, value in figures(request).items()}
    assert own(merged) == expected and len(merged) > 2000
    assert {record.key for record in written} == {b"host-1-42"}
    assert all(attributes(request)["service.instance.id"] == "host-1-42" for request in requests)
    frames = next(json.loads(r.value or b"") for r in written if b'"verbatim_frames"' in (r.value or b""))
    (metric,) = frames["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    (point,) = metric["sum"]["dataPoints"]
    assert metric["sum"]["aggregationTemporality"] == 2 and metric["sum"]["isMonotonic"] is True
    assert point["asDouble"] == 7 and point["startTimeUnixNano"] == str(health.started_ms * 1_000_000)
    have = configs(AdminClient({"bootstrap.servers": to}), [topic], Deadline(30))[topic]
    asked = {"cleanup.policy": "delete", "retention.ms": "3600000", "segment.ms": "7777777"}
    assert asked.items() <= have.items()


def test_a_topic_that_is_missing_is_told_and_once_it_is_made_metrics_are_sent(
    health: Health, source: Kafka, target: Kafka, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: a failure is told once, with what to do, and counted; nobody has to start anything again."""
    to, own_name = target.bootstrap_servers, f"ops.{names.link}"
    link = Link(
        source.bootstrap_servers, to, names.link, "t", OTEL_METRICS_EXPORTER="kafka", CREATE_TOPICS="false"
    )
    link.variables |= {"METRICS_TOPIC": own_name, "OTEL_METRIC_EXPORT_INTERVAL": "50"}
    caplog.set_level("INFO")
    with sending(health, link.settings):
        eventually(lambda: health.exports_failed["kafka"] > 2, "some failures", 60)
        (line,) = [m for m in caplog.messages if "can't be sent" in m]
        assert own_name in line and "CREATE_TOPICS is false" in line and "retention.ms=604800000" in line
        with_it = {"cleanup.policy": "delete", "retention.ms": "604800000"}
        create_topic(to, own_name, 1, with_it)
        eventually(lambda: health.exports["kafka"] > 1, "metrics", 60)
    assert [m for m in caplog.messages if m == "metrics are sent by kafka again"]
    assert read_all(to, own_name)[0] and f"{names.link}.metrics" not in topics(to)
