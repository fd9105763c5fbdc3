"""Prometheus' metric families as OpenTelemetry's: counters as monotonic sums, histograms as histograms, all
else as gauges, labels as attributes. Needs the extra `otel`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

SCOPE = InstrumentationScope("verbatim")
UNITS = {"seconds": "s", "bytes": "By"}
"""By the last word of a name."""
_CUMULATIVE = AggregationTemporality.CUMULATIVE


def metrics_data(families: Iterable[Family], resource: Resource, began_ns: int, now_ns: int) -> MetricsData:
    """All families as they are at `now_ns`, with counters that began at 0 at `began_ns`; both in ns since
    1970. A counter has its family's name, without `_total`, which Prometheus adds."""
    metrics = [_metric(family, began_ns, now_ns) for family in families if family.samples]
    scoped = [ScopeMetrics(SCOPE, metrics, "")]
    return MetricsData([ResourceMetrics(resource, scoped, "")])


def each_metric(data: MetricsData) -> Iterator[MetricsData]:
    """The same, a metric each."""
    for of_resource in data.resource_metrics:
        for scoped in of_resource.scope_metrics:
            for metric in scoped.metrics:
                one = ScopeMetrics(scoped.scope, [metric], scoped.schema_url)
                yield MetricsData([ResourceMetrics(of_resource.resource, [one], of_resource.schema_url)])


def _metric(family: Family, began_ns: int, now_ns: int) -> Metric:
    def points(ending: str) -> list[NumberDataPoint]:
        """Of the samples that are called so; others say when a counter was made."""
        return [
            NumberDataPoint(one.labels, began_ns, now_ns, float(one.value))
            for one in family.samples
            if one.name == family.name + ending
        ]

    name = family.name
    data: Gauge | Histogram | Sum
    if family.type == "counter":
        data = Sum(points("_total"), _CUMULATIVE, is_monotonic=True)
    elif family.type == "histogram":
        data = Histogram(list(_histograms(family, began_ns, now_ns)), _CUMULATIVE)
    elif family.type == "info":
        name, data = f"{name}_info", Gauge(points("_info"))
    else:
        data = Gauge(points(""))
    return Metric(name, family.documentation, UNITS.get(name.rpartition("_")[2], ""), data)


def _histograms(family: Family, began_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    """Samples of one set of labels stand together, buckets in order, each with what is below it."""

    def labels(sample: Sample) -> dict[str, str]:
        return {name: value for name, value in sample.labels.items() if name != "le"}

    for attributes, group in groupby(family.samples, labels):
        samples = list(group)
        buckets = [one for one in samples if one.name == f"{family.name}_bucket"]
        below = [int(one.value) for one in buckets]
        yield HistogramDataPoint(
            attributes,
            began_ns,
            now_ns,
            count=below[-1],
            sum=next(float(one.value) for one in samples if one.name == f"{family.name}_sum"),
            bucket_counts=[b - a for a, b in pairwise([0, *below])],
            explicit_bounds=[float(one.labels["le"]) for one in buckets[:-1]],
            # Nobody knows them, and none are sent.
            min=None,  # type: ignore[arg-type]
            max=None,  # type: ignore[arg-type]
        )
