"""A cluster that can't be reached, while both applications run: told, by itself, and taken back when it is
there again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from common.app import cluster_watch
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link, Running, assert_copied, eventually
from verbatim.local.kafka_cluster import Cluster

TOPIC = "orders"


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    with Cluster() as source, Cluster() as target:
        create_topic(source.bootstrap_servers, TOPIC, 4)
        yield source, target


def report(running: Running) -> dict[str, Any]:
    """What /healthz tells."""
    found: dict[str, Any] = orjson.loads(orjson.dumps(running.application.health.report()))
    return found


def says(running: Running, status: str, **reached: bool) -> bool:
    """Whether that is all that is told of the clusters."""
    found = report(running)
    told = {name: value for name, value in found.items() if name.endswith("_reached")}
    return found["status"] == status and told == {
        f"{which}_reached": value for which, value in reached.items()
    }


def test_a_cluster_that_is_gone_shows_within_half_a_minute() -> None:
    """Promise: 30 s, with the questions as far apart and as patient as they are."""
    assert cluster_watch.IN_VAIN * (cluster_watch.LOOK_S + cluster_watch.ASK_S + 1.0) < 30.0


def test_each_cluster_is_told_of_by_who_uses_it(
    pair: tuple[Cluster, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: `source_reached: true` for ever is over. The one that is gone is told, degraded, the other one
    is not touched by it, the deduplicator tells nothing of a source that it never uses, and all is well again
    by itself."""
    monkeypatch.setattr(cluster_watch, "LOOK_S", 0.3)
    monkeypatch.setattr(cluster_watch, "ASK_S", 2.0)
    source, target = pair
    link = Link(source.bootstrap_servers, target.bootstrap_servers, "link", TOPIC)
    with link.running() as (replicator, deduplicator):

        def well() -> bool:
            return says(replicator, "ok", source=True, target=True) and says(deduplicator, "ok", target=True)

        eventually(
            lambda: replicator.application.health.role == deduplicator.application.health.role == "leader",
            "both",
        )
        eventually(well, "both well")
        source.pause()
        eventually(lambda: says(replicator, "degraded", source=False, target=True), "the source to be missed")
        assert says(deduplicator, "ok", target=True) and not replicator.application.health.ready()
        source.resume()
        eventually(well, "both well")
        target.kill()
        eventually(lambda: says(replicator, "degraded", source=True, target=False), "the target to be missed")
        eventually(lambda: says(deduplicator, "degraded", target=False), "the target to be missed")
        target.restart()
        eventually(well, "both well", 60)
        produce(source.bootstrap_servers, TOPIC, [Record(b"%d" % i, partition=i % 4) for i in range(40)])
        eventually(lambda: sum(link.arrived(TOPIC)) == 40, "all to arrive", 60)
        eventually(lambda: deduplicator.application.health.work.counts["records"] == 40, "its counters")
        # The target's restart costs each staging partition its owner a few times, and is no duel.
        assert (
            deduplicator.application.health.work.counts["recoveries"] <= 8 * link.settings.staging_partitions
        )
    assert_copied(link, TOPIC)
