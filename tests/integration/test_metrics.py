"""What metrics say of a link under load is so: asked of Kafka, and seen by a real Prometheus."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition

from common.app.health_server import HealthServer
from common.app.link_pages import LinkPages
from common.app.link_view import status
from common.partitions import PartitionName
from tests.conftest import Kafka, Names
from tests.support.beside import beside
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link, Running, eventually
from tests.support.metrics import sample
from verbatim.local.processes import HOST, free_ports, spawn
from verbatim.main import cli

PARTITIONS = 3
SOON_S = 5.0
SCRAPED_S = float(os.environ.get("VERBATIM_SCRAPED_S", "6"))
"""For how long Prometheus looks on."""
LAG = (
    "max by (link, topic, partition) (verbatim_source_end_offset)"
    " - max by (link, topic, partition) (verbatim_delivered_offset)"
)
"""As docs/reference/metrics.md has it."""


@contextmanager
def load(source: Kafka, topic: str) -> Iterator[None]:
    """Some hundred records a second."""

    def write(stopping: threading.Event) -> None:
        number = 0
        while not stopping.wait(0.1):
            some = [Record(b"%d" % n, b"k", partition=n % PARTITIONS) for n in range(number, number + 50)]
            produce(source.bootstrap_servers, topic, some)
            number += 50

    with beside(write):
        yield


def ends(source: Kafka, topic: str) -> dict[int, int]:
    config = {"bootstrap.servers": source.bootstrap_servers, "group.id": "ends"}
    with closing(Consumer(config)) as consumer:
        return {
            p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1]
            for p in range(PARTITIONS)
        }


def of_each(running: Running, metric: str, topic: str) -> dict[int, float | None]:
    health = running.application.health
    return {p: sample(health, metric, topic=topic, partition=str(p)) for p in range(PARTITIONS)}


def delivered(link: Link, topic: str) -> dict[int, int]:
    """As the mappings say."""
    return {p: mappings[-1].next for p, mappings in link.mappings(topic).items()}


def test_lag_by_partition_is_what_the_source_has_beyond_what_is_delivered(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Under load no metric is more than some seconds behind, and none is ahead; after it, they are exact."""
    topic = f"{names.link}.t.a"
    create_topic(source.bootstrap_servers, topic, PARTITIONS)
    link = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, rf"{names.link}\.t\..*")
    with link.running() as (replicator, deduplicator):
        with load(source, topic):
            eventually(lambda: len(delivered(link, topic)) == PARTITIONS, "the first records", 60)
            time.sleep(SOON_S)
            for _ in range(2):
                before = ends(source, topic), delivered(link, topic)
                time.sleep(SOON_S)
                told = [
                    of_each(replicator, "verbatim_source_end_offset", topic),
                    of_each(deduplicator, "verbatim_delivered_offset", topic),
                ]
                after = ends(source, topic), delivered(link, topic)
                for was, said, is_now in zip(before, told, after, strict=True):
                    for p in range(PARTITIONS):
                        value = said[p]
                        assert value is not None and was[p] <= value <= is_now[p], (p, before, told, after)
        end = ends(source, topic)
        eventually(lambda: delivered(link, topic) == end, "all of it", 30)
        exact = {p: float(offset) for p, offset in end.items()}
        for running, metric in (
            (replicator, "verbatim_source_end_offset"),
            (replicator, "verbatim_staged_offset"),
            (deduplicator, "verbatim_delivered_offset"),
            (replicator, "verbatim_records_total"),
            (deduplicator, "verbatim_records_total"),
        ):
            eventually(lambda r=running, m=metric: of_each(r, m, topic) == exact, metric, 2 * SOON_S)  # type: ignore[misc]
        assert of_each(replicator, "verbatim_lag", topic) == dict.fromkeys(exact, 0.0)
        found = shown(link)
        assert [(one["application"], one["runs"]) for one in found["applications"]] == [
            ("replicator", True),
            ("deduplicator", True),
        ]
        assert all(one["said_s"] < SOON_S and one["instance"] for one in found["applications"])
        assert (found["lag"], found["halts"]) == (0, [])
        (line,) = found["topics"]
        assert (line["topic"], line["destination"], line["partitions"]) == (topic, topic, PARTITIONS)
        for running in (replicator, deduplicator):
            eventually(lambda r=running: page_of(r, exact), f"the page of the {running.application.name}", 30)  # type: ignore[misc]
        health = deduplicator.application.health
        assert sample(health, "verbatim_delay_seconds_count") == sum(exact.values())
        spent = sample(health, "verbatim_delay_seconds_sum")
        assert spent is not None and 0 < spent / sum(exact.values()) < 30
    stopped = shown(link)
    assert [one["runs"] for one in stopped["applications"]] == [False, False]
    assert stopped["lag"] == 0, "as it was said last"


def page_of(running: Running, exact: dict[int, float]) -> bool:
    """Whether an instance's page shows the whole link, whichever application's it is: who runs, all is
    delivered, and a history."""
    found = status(running.application.health, int(time.time() * 1000))
    return (
        found["known"]
        and [one["runs"] for one in found["applications"]] == [True, True]
        and all(one["led_ms"] for one in found["applications"])
        and {one["partition"]: one["delivered"] for one in found["partitions"]} == exact
        and {part["state"] for part in found["flow"][1:5]} == {"ok"}
        and found["lag"] == 0
        and any(rate for rate in found["history"]["records_per_second"])
        and any(delay for delay in found["history"]["p99_s"])
    )


def shown(link: Link) -> dict[str, Any]:
    """What `verbatim status` says."""
    done = CliRunner().invoke(cli, ["status", "--output", "json"], env=link.variables)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def asked(port: int, query: str) -> list[Any]:
    url = f"http://{HOST}:{port}/api/v1/query?query={urllib.parse.quote(query)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return list(json.load(answer)["data"]["result"])


@contextmanager
def prometheus(folder: Path, targets: list[str], *rules: Path) -> Iterator[int]:
    """One that looks every second; its port."""
    (port,) = free_ports(1)
    config = folder / "prometheus.yml"
    jobs = [{"job_name": "verbatim", "static_configs": [{"targets": targets}]}]
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    known = {"global": every, "scrape_configs": jobs, "rule_files": list(map(str, rules))}
    config.write_text(json.dumps(known))
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={HOST}:{port}",
    ]
    process = spawn(command, folder / "prometheus.log")
    try:
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_a_real_prometheus_reads_both_applications(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    topic = f"{names.link}.t.a"
    create_topic(source.bootstrap_servers, topic, PARTITIONS)
    link = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, rf"{names.link}\.t\..*")
    with link.running() as instances:
        servers = [HealthServer(LinkPages(one.application.health), HOST, 0) for one in instances]
        try:
            with prometheus(tmp_path, [f"{HOST}:{server.port}" for server in servers]) as port:
                eventually(lambda: up(port) == 2, "both targets", 30)
                with load(source, topic):
                    eventually(lambda: len(asked(port, LAG)) == PARTITIONS, "lag by partition", 60)
                    time.sleep(SCRAPED_S)
                assert asked(port, f"min_over_time(up[{int(SCRAPED_S)}s]) == 0") == [], "each time"
                end = ends(source, topic)
                eventually(lambda: {*lags(port, topic).values()} == {0.0}, "no lag", 30)
                eventually(lambda: counted(port) == [sum(end.values())] * 2, "all records", 30)
                assert asked(port, "resets(verbatim_records_total[1h]) > 0") == []
                delay = "histogram_quantile(0.5, sum by (le) (verbatim_delay_seconds_bucket))"
                assert 0 < float(asked(port, delay)[0]["value"][1]) < 30
        finally:
            for server in servers:
                server.close()


def up(port: int) -> int:
    try:
        return sum(found["value"][1] == "1" for found in asked(port, "up"))
    except urllib.error.URLError:
        return 0


def lags(port: int, topic: str) -> dict[PartitionName, float]:
    return {
        (found["metric"]["topic"], int(found["metric"]["partition"])): float(found["value"][1])
        for found in asked(port, LAG)
        if found["metric"]["topic"] == topic
    }


def counted(port: int) -> list[float]:
    """Records of either application."""
    return [float(one["value"][1]) for one in asked(port, "sum by (application) (verbatim_records_total)")]
