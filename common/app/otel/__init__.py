"""Metrics for OpenTelemetry, from the collector that serves /metrics, and spans of frames. Needs the extra
`otel`: only what OTEL_METRICS_EXPORTER or OTEL_TRACES_EXPORTER asks for is imported."""
