"""Metrics of an instance for Prometheus: families made of its health whenever they are asked for. Decides
nothing."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from common.app.group_state import all_of
from common.link import lane_work
from common.link.lane_work import ALL, DELAYS_S, LEVELS

if TYPE_CHECKING:
    from common.app.health import Health

OF_ALL = ("application", "link", "source", "target")
OF_EACH = ("topic", "partition")

# name in a lane's work -> name of the metric, what it is. Of each source partition:
PARTITIONS = {
    "records": ("verbatim_records", "records staged, or delivered"),
    "left_out": ("verbatim_left_out", "records left out, since they have been at the target"),
    "filtered": ("verbatim_filtered", "records left out, since the pipeline's stages leave them out"),
    "dead_letters": (
        "verbatim_dead_letters",
        "records that have become dead letters, since a stage failed on them",
    ),
    "skipped": ("verbatim_skipped", "records left out, since a stage of the pipeline failed on them"),
    "duplicates": ("verbatim_duplicates", "records dropped, since they were delivered before"),
    "lag": ("verbatim_lag", "offsets of the source that are not in staging yet"),
    "end_offset": ("verbatim_source_end_offset", "where the source's log ends"),
    "staged_offset": ("verbatim_staged_offset", "up to which source offset staging holds all"),
    "delivered_offset": ("verbatim_delivered_offset", "up to which source offset all is delivered"),
}
# Of the application:
WHOLE = {
    "frames": ("verbatim_frames", "frames written, or read"),
    "bytes": ("verbatim_frame_bytes", "bytes of frames written, or read"),
    "staging_lag": ("verbatim_staging_lag", "frames of staging that are not read yet"),
    "transactions": ("verbatim_transactions", "transactions committed"),
    "aborted": ("verbatim_transactions_aborted", "transactions given up, those of recovery too"),
    "transaction_ms": (
        "verbatim_transaction_seconds",
        "how long transactions were open until they were committed, all together",
    ),
    "limit_wait_ms": (
        "verbatim_limit_wait_seconds",
        "how long records that had been read waited for a rate limit, all lanes together",
    ),
    "source_throttle_ms": (
        "verbatim_source_throttle_seconds",
        "for how long brokers of the source held us back, since a quota was used up, all lanes together",
    ),
    "target_throttle_ms": (
        "verbatim_target_throttle_seconds",
        "for how long brokers of the target held us back, since a quota was used up, all lanes together",
    ),
    "mappings": ("verbatim_mappings", "mapping records written"),
    "recoveries": ("verbatim_recoveries", "times that a staging partition's state was loaded anew"),
    "offsets_written": ("verbatim_offsets_written", "offsets written to groups of the target"),
    "rounds": ("verbatim_rounds", "rounds"),
    "schemas_registered": ("verbatim_schemas_registered", "versions of schemas registered at the target"),
    "subjects_failed": ("verbatim_schema_subjects_failed", "subjects of schemas that are not in step"),
}
Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]
DELAY = ("verbatim_delay_seconds", "from a record's timestamp until it was delivered")


class HealthCollector(Collector):
    """What an instance's health says, as metrics."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        health = self._health
        yield from self._instance()
        work = health.work.shown()
        for name, (metric, words) in WHOLE.items():
            if name in work.counts:
                value = work.counts[name]
                yield self._one(_kind(name), metric, words, value / 1000 if name.endswith("_ms") else value)
        for name, (metric, words) in PARTITIONS.items():
            shown = sorted((at, counts[name]) for at, counts in work.of.items() if name in counts)
            if shown:
                found = _kind(name)(metric, words, labels=(*OF_ALL, *OF_EACH))
                for (topic, partition), value in shown:
                    found.add_metric(
                        [*self._of_all(), topic, "" if partition == ALL else str(partition)], value
                    )
                yield found
        if any(work.delays.buckets):
            yield self._delays()

    def describe(self) -> Iterable[Metric]:
        """None is told beforehand: what there is depends on the application."""
        return ()

    def _instance(self) -> Iterator[Metric]:
        health = self._health
        info = InfoMetricFamily("verbatim_build", "what runs", labels=OF_ALL)
        info.add_metric(self._of_all(), _versions())
        yield info
        yield self._gauge("verbatim_leader", "1 on the instance that leads", health.role == "leader")
        halted = GaugeMetricFamily(
            "verbatim_halted_partitions", "partitions that are halted", labels=(*OF_ALL, "reason")
        )
        reasons = list(health.halted.values())
        for reason in sorted(set(reasons)):
            halted.add_metric([*self._of_all(), reason], reasons.count(reason))
        yield halted
        yield self._gauge(
            "verbatim_deleted_topics", "topics that are gone from the source", len(health.deleted)
        )
        yield self._gauge("verbatim_paused_topics", "topics that an operator has paused", len(health.paused))
        yield self._gauge(
            "verbatim_promoted_topics", "topics that are promoted: others write there", len(health.promoted)
        )
        yield from self._limits()
        for which, reached in health.reached().items():
            yield self._gauge(f"verbatim_{which}_reached", f"1 where the {which} can be reached", reached)
        yield from self._exports()
        yield from self._groups()
        if (spark := health.spark) is not None:
            yield self._gauge("verbatim_spark_task_slots", "tasks that Spark can run at once", spark.slots)
            yield self._gauge("verbatim_spark_executors", "executors that run tasks", spark.executors)
            yield self._gauge("verbatim_spark_active_tasks", "tasks that run", spark.active)
        if health.epochs or health.epochs_failed:
            yield self._counter("verbatim_epochs", "epochs that ended well", health.epochs)
            yield self._counter("verbatim_epochs_failed", "epochs that failed", health.epochs_failed)
        if health.folds or health.folds_failed:
            yield self._counter(
                "verbatim_folds", "times that mappings were folded into the state table", health.folds
            )
            yield self._counter("verbatim_folds_failed", "folds that failed", health.folds_failed)
        if (seen := health.heartbeat) is not None:
            if seen.delay_s is not None:
                yield self._gauge(
                    "verbatim_heartbeat_delay_seconds", "how long heartbeats take now", seen.delay_s
                )
            if seen.newest_ms is not None:
                yield self._gauge(
                    "verbatim_heartbeat_timestamp_seconds",
                    "the time of the newest heartbeat that has arrived",
                    seen.newest_ms / 1000,
                )

    def _groups(self) -> Iterator[Metric]:
        """Of each consumer group, or where there are too many of all together."""
        groups = self._health.groups
        if len(groups) > lane_work.MOST_PARTITIONS:
            groups = {"": all_of(groups.values())}
        labels = (*OF_ALL, "group")
        states = GaugeMetricFamily(
            "verbatim_group_partitions", "partitions of a consumer group", labels=(*labels, "state")
        )
        written = CounterMetricFamily(
            "verbatim_group_offsets_written", "offsets written to a group", labels=labels
        )
        in_step = GaugeMetricFamily(
            "verbatim_group_in_step_timestamp_seconds", "when all of a group was in step last", labels=labels
        )
        for group, of in sorted(groups.items()):
            at = [*self._of_all(), group]
            for state in ("exact", "behind", "held_back", "moved"):
                states.add_metric([*at, state], getattr(of, state))
            if group:
                # All together are in verbatim_offsets_written.
                written.add_metric(at, of.written)
            if of.in_step_ms is not None:
                in_step.add_metric(at, of.in_step_ms / 1000)
        yield from (family for family in (states, written, in_step) if family.samples)

    def _exports(self) -> Iterator[Metric]:
        """Of each exporter that metrics are sent by."""
        for name, words, counts in (
            ("verbatim_metric_exports", "times that metrics were sent", self._health.exports),
            ("verbatim_metric_exports_failed", "times that this failed", self._health.exports_failed),
        ):
            found = CounterMetricFamily(name, words, labels=(*OF_ALL, "exporter"))
            for exporter, count in sorted(counts.items()):
                found.add_metric([*self._of_all(), exporter], count)
            if found.samples:
                yield found

    def _limits(self) -> Iterator[Metric]:
        """Of each limit that is in force; the link's has the topic `*`, which is no topic's name."""
        for what in ("bytes_per_second", "records_per_second"):
            found = GaugeMetricFamily(
                f"verbatim_limit_{what}", "a rate limit in force", labels=(*OF_ALL, "topic")
            )
            for topic, limit in sorted(self._health.limits.items()):
                if (value := getattr(limit, what)) is not None:
                    found.add_metric([*self._of_all(), topic], value)
            if found.samples:
                yield found

    def _delays(self) -> Metric:
        delays = self._health.work.delays
        found = HistogramMetricFamily(*DELAY, labels=OF_ALL)
        below, buckets = 0, []
        for bound, count in zip([*map(str, DELAYS_S), "+Inf"], delays.buckets, strict=True):
            below += count
            buckets.append((bound, below))
        found.add_metric(self._of_all(), buckets, delays.sum_ms / 1000)
        return found

    def _of_all(self) -> list[str]:
        health = self._health
        return [health.application, health.link, health.source, health.target]

    def _gauge(self, name: str, words: str, value: float) -> Metric:
        return self._one(GaugeMetricFamily, name, words, value)

    def _counter(self, name: str, words: str, value: float) -> Metric:
        return self._one(CounterMetricFamily, name, words, value)

    def _one(self, kind: Kind, name: str, words: str, value: float) -> Metric:
        found = kind(name, words, labels=OF_ALL)
        found.add_metric(self._of_all(), value)
        return found


@cache
def _versions() -> dict[str, str]:
    """Of what runs. Read once: many links are asked of at a time."""
    return {
        "version": version("verbatim-kafka"),
        "python": platform.python_version(),
        "confluent_kafka": version("confluent-kafka"),
        "pyspark": version("pyspark"),
    }


def _kind(name: str) -> Kind:
    """Of what lanes count."""
    return GaugeMetricFamily if name in LEVELS else CounterMetricFamily


def registry_of(health: Health) -> CollectorRegistry:
    """Of one instance: its health, and the process that it runs in."""
    registry = CollectorRegistry()
    registry.register(HealthCollector(health))
    ProcessCollector(registry=registry)
    return registry


def exposed(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """What to answer to whom accepts this, and its content type: OpenMetrics or Prometheus' text format."""
    encode, kind = choose_encoder(accept)
    return encode(registry), kind
