"""Sends an instance's metrics where OTEL_METRICS_EXPORTER says, now and then, each way in a thread of its
own. A failure is told once, then counted, and stops nothing."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricExporter, MetricExportResult
from opentelemetry.sdk.resources import Resource

from common.app.metrics import registry_of
from common.app.otel.exporters import Said, environment, resource_of
from common.app.otel.families import metrics_data
from common.config import telemetry
from common.errors import SettingsError

if TYPE_CHECKING:
    from common.app.health import Health
    from common.config.settings import Settings

log = logging.getLogger(__name__)

LAST_S = 2.0
"""How long an instance that ends waits until its last metrics are sent."""


class Sending:
    """Begins at once. Raises SettingsError where a variable of an exporter's is wrong, ImportError where a
    package is missing."""

    def __init__(self, names: list[str], health: Health, settings: Settings) -> None:
        said = Said({**os.environ, **settings.otel_variables})
        with environment(settings.otel_variables):
            try:
                resource = resource_of(health.application, health.link, health.instance)
                made = {name: _exporter(name, settings, health.instance) for name in names}
            except (OSError, RuntimeError, ValueError) as error:
                raise SettingsError(f"OTEL_METRICS_EXPORTER: {said.hidden(error)}") from None
        if words := said.taken():
            log.warning("OTEL_METRICS_EXPORTER: %s", words)
        every_s = settings.metrics_interval_ms / 1000
        self._ways = [_Way(name, made[name], resource, health, every_s, said) for name in names]

    def close(self) -> None:
        """Send once more, by whatever works."""
        for way in self._ways:
            way.stop()
        until = time.monotonic() + LAST_S
        for way in self._ways:
            way.join(max(0.0, until - time.monotonic()))


class _Way(threading.Thread):
    """One exporter, and how it fares."""

    def __init__(
        self,
        way: str,
        exporter: MetricExporter,
        resource: Resource,
        health: Health,
        every_s: float,
        said: Said,
    ) -> None:
        super().__init__(name=f"metrics-{way}", daemon=True)
        self._way = way
        self._exporter = exporter
        self._resource = resource
        self._health = health
        self._registry = registry_of(health)
        self._every_s = every_s
        self._said = said
        self._stopping = threading.Event()
        self._fails = self._hopeless = False
        health.exports[way] = health.exports_failed[way] = 0
        self.start()

    def stop(self) -> None:
        self._hopeless = self._fails
        self._stopping.set()
        if self._hopeless:
            # It would wait for its next try.
            self._exporter.shutdown()

    def run(self) -> None:
        while not self._stopping.wait(self._every_s):
            self._send()
        if not self._hopeless:
            self._send()
            self._exporter.shutdown()

    def _send(self) -> None:
        why = self._said.failure(self._export, MetricExportResult.SUCCESS)
        counts = self._health.exports if why is None else self._health.exports_failed
        counts[self._way] += 1
        if why is not None and not self._fails:
            log.warning(
                "metrics can't be sent by %s: %s; tried again every %g s, without another word",
                self._way,
                why,
                self._every_s,
            )
        if why is None and self._fails:
            log.info("metrics are sent by %s again", self._way)
        self._fails = why is not None

    def _export(self) -> MetricExportResult:
        began_ns, now_ns = self._health.started_ms * 1_000_000, time.time_ns()
        data = metrics_data(self._registry.collect(), self._resource, began_ns, now_ns)
        return self._exporter.export(data)


def _exporter(name: str, settings: Settings, instance: str) -> MetricExporter:
    if name == "kafka":
        from common.app.otel.topic import TopicExporter

        return TopicExporter(settings, instance)
    if name == "console":
        return ConsoleMetricExporter(sys.stdout)
    if why := telemetry.wrong(os.environ):
        raise SettingsError(why)
    if telemetry.protocol(os.environ) == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as by_grpc

        return by_grpc.OTLPMetricExporter()
    from opentelemetry.exporter.otlp.proto.http import metric_exporter as by_http

    return by_http.OTLPMetricExporter()
