"""Metrics as records of the link's topic at the target, each an ExportMetricsServiceRequest in OTLP's JSON.
Needs the extra `otel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer
from google.protobuf.json_format import MessageToJson
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData

from common.app.otel.families import each_metric
from common.errors import KafkaTimeout
from common.kafka.client import clients
from common.kafka.errors import denied, lacks_right
from common.link.identity import make_topics, metrics_topic
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

EXPORT_S = 20.0
"""Records that are not taken in this time are given up: newer ones say the same."""


class TopicExporter(MetricExporter):
    """For one thread. Makes the topic where it is missing. Raises VerbatimError and KafkaException from
    `export`; the next one begins with a new producer then."""

    def __init__(self, settings: Settings, instance: str) -> None:
        """`instance`: the key of its records, so that they stay in order."""
        super().__init__()
        self._settings = settings
        self._key = instance.encode()
        self._producer: Producer | None = None

    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **_: Any) -> MetricExportResult:
        deadline = Deadline(EXPORT_S)
        producer, self._producer = self._producer or self._new(deadline), None
        topic, refused = self._settings.metrics_topic, list[KafkaError]()
        for one in each_metric(metrics_data):
            said = MessageToJson(encode_metrics(one), indent=None, use_integers_for_enums=True)
            producer.produce(
                topic, said, self._key, on_delivery=lambda error, _: refused.append(error) if error else None
            )
        left = producer.flush(deadline.left())
        if refused and lacks_right(refused[0]):
            raise denied(f"writing to {topic}", refused[0], right="WRITE")
        if refused:
            raise KafkaException(refused[0])
        if left:
            producer.purge()
            raise KafkaTimeout(f"{topic} has not taken {left} records in {EXPORT_S:.0f} s")
        self._producer = producer
        return MetricExportResult.SUCCESS

    def _new(self, deadline: Deadline) -> Producer:
        config = self._settings.client_config("destination", "admin")
        make_topics(self._settings, clients.admin(config), metrics_topic(self._settings), deadline)
        return clients.producer(
            self._settings.client_config("destination", "producer"),
            message_timeout_ms=int(EXPORT_S * 1000),
            enable_gapless_guarantee=False,
        )

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        self._producer = None
