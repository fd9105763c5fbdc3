"""Receivers of OpenTelemetry's metrics and spans, over HTTP and over gRPC, which read what official exporters
send."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from common.app.health import Health
from common.app.metrics import registry_of

HOST = "127.0.0.1"
CUMULATIVE = 2
Figures = dict[tuple[str, frozenset[tuple[str, str]]], tuple[Any, ...]]
"""By name and attributes: the kind, and what there is of it."""


class Receiver:
    """What has come, each with its headers; `status` is what HTTP answers."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.status = 200
        self.came: list[tuple[dict[str, str], ExportMetricsServiceRequest]] = []
        self.traces: list[tuple[dict[str, str], ExportTraceServiceRequest]] = []

    @property
    def figures(self) -> Figures:
        """Of the request that came last."""
        return figures(self.came[-1][1])

    @property
    def spans(self) -> list[Sent]:
        return [span for _, request in self.traces for span in spans(request)]


@contextmanager
def over_http(port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            if self.path == "/v1/metrics" and receiver.status == 200:
                receiver.came.append((headers, ExportMetricsServiceRequest.FromString(body)))
            if self.path == "/v1/traces" and receiver.status == 200:
                receiver.traces.append((headers, ExportTraceServiceRequest.FromString(body)))
            self.send_response(receiver.status if self.path in ("/v1/metrics", "/v1/traces") else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((HOST, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    receiver.endpoint = f"http://{HOST}:{server.server_address[1]}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def over_grpc() -> Iterator[Receiver]:
    receiver = Receiver()

    class Service(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> ExportMetricsServiceResponse:  # noqa: N802 - its name
            receiver.came.append((dict(context.invocation_metadata()), request))
            return ExportMetricsServiceResponse()

    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:  # noqa: N802 - its name
            receiver.traces.append((dict(context.invocation_metadata()), request))
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)  # type: ignore[no-untyped-call]
    receiver.endpoint = f"http://{HOST}:{server.add_insecure_port(f'{HOST}:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


@dataclass(frozen=True)
class Sent:
    """A span: ids in hexadecimal, times in ns since 1970; attributes also those of who sent it."""

    name: str
    trace: str
    id: str
    parent: str
    begin: int
    end: int
    kind: int
    attributes: dict[str, str | int]


def spans(request: ExportTraceServiceRequest) -> list[Sent]:
    def value(of: Any) -> str | int:
        return of.int_value if of.WhichOneof("value") == "int_value" else str(of.string_value)

    return [
        Sent(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.kind,
            {one.key: value(one.value) for one in [*of_resource.resource.attributes, *span.attributes]},
        )
        for of_resource in request.resource_spans
        for scope in of_resource.scope_spans
        for span in scope.spans
    ]


def figures(request: ExportMetricsServiceRequest) -> Figures:
    found: Figures = {}
    for of_resource in request.resource_metrics:
        for scope in of_resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind)
                for point in data.data_points:
                    at = metric.name, frozenset((one.key, one.value.string_value) for one in point.attributes)
                    assert at not in found, at
                    found[at] = _of(kind, data, point)
    return found


def _of(kind: str, data: Any, point: Any) -> tuple[Any, ...]:
    if kind == "histogram":
        assert not point.HasField("min") and not point.HasField("max"), "nobody knows them"
        buckets = tuple(point.bucket_counts), tuple(point.explicit_bounds)
        return kind, data.aggregation_temporality, point.count, point.sum, *buckets
    if kind == "sum":
        return kind, data.aggregation_temporality, data.is_monotonic, point.as_double
    return kind, point.as_double


def attributes(request: ExportMetricsServiceRequest) -> dict[str, str]:
    """Of the resource."""
    (of_resource,) = request.resource_metrics
    return {one.key: one.value.string_value for one in of_resource.resource.attributes}


def served(health: Health) -> Figures:
    """What /metrics has of an instance at this moment, as it is to arrive; but for its process and for what
    sending itself counts."""
    found: Figures = {}
    for family in registry_of(health).collect():
        if not family.name.startswith("verbatim_") or family.name.startswith("verbatim_metric_exports"):
            continue
        if family.type == "histogram":
            labels = frozenset(family.samples[-1].labels.items())
            by_name = {name: [s for s in family.samples if s.name == family.name + name] for name in ENDINGS}
            below = [0.0, *(s.value for s in by_name["_bucket"])]
            counts = tuple(int(after - before) for before, after in pairwise(below))
            bounds = tuple(float(s.labels["le"]) for s in by_name["_bucket"][:-1])
            (count,), (total,) = by_name["_count"], by_name["_sum"]
            at = family.name, labels
            found[at] = "histogram", CUMULATIVE, count.value, total.value, counts, bounds
        for sample in family.samples if family.type != "histogram" else ():
            at = sample.name.removesuffix("_total"), frozenset(sample.labels.items())
            counter = family.type == "counter"
            found[at] = ("sum", CUMULATIVE, True, sample.value) if counter else ("gauge", float(sample.value))
    return found


ENDINGS = ("_bucket", "_count", "_sum")


def own(found: Figures) -> Figures:
    """What of it `served` has."""
    return {
        at: value
        for at, value in found.items()
        if at[0].startswith("verbatim_") and not at[0].startswith("verbatim_metric_exports")
    }
