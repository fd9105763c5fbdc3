"""Metrics for OpenTelemetry, from the collector that serves /metrics. Needs the extra `otel`: only what
OTEL_METRICS_EXPORTER asks for is imported."""
