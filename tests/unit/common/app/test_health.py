"""Health endpoints: what they answer in each role, over HTTP."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from common.app.health import STALE_S, Health
from common.app.health_server import HealthServer
from common.app.link_pages import LinkPages
from common.errors import SettingsError
from common.link.throttling import Limit
from tests.support.metrics import sample


@pytest.fixture
def health() -> Health:
    return Health("replicator")


@pytest.fixture
def server(health: Health) -> Iterator[HealthServer]:
    server = HealthServer(LinkPages(health), "127.0.0.1", 0)
    yield server
    server.close()


def get(server: HealthServer, path: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


@pytest.mark.parametrize(
    ("role", "source", "target", "ready"),
    [
        ("starting", True, True, False),
        ("standby", False, False, True),
        ("leader", True, True, True),
        ("leader", False, True, False),
        ("leader", True, False, False),
    ],
)
def test_ready_is_a_leader_that_reaches_both_clusters_or_one_standing_by(
    health: Health, server: HealthServer, role: str, source: bool, target: bool, ready: bool
) -> None:
    health.role, health.source_reached, health.target_reached = role, source, target
    status, kind, body = get(server, "/readyz")
    assert status == (200 if ready else 503) and kind == "application/json"
    assert json.loads(body)["role"] == role
    assert get(server, "/healthz")[0] == 200, "alive all the while"


def test_a_main_loop_that_does_not_turn_is_not_alive(health: Health, server: HealthServer) -> None:
    health.turned = time.monotonic() - STALE_S - 1
    assert get(server, "/healthz")[0] == 503
    health.turned = time.monotonic()
    assert get(server, "/healthz?verbose")[0] == 200


def test_a_halted_partition_degrades_and_stays_alive_and_ready(health: Health, server: HealthServer) -> None:
    health.role, health.source_reached, health.target_reached = "leader", True, True
    assert json.loads(get(server, "/healthz")[2])["status"] == "ok"
    health.halted["orders-3"] = "source-lost"
    for path in ("/healthz", "/readyz"):
        status, _, body = get(server, path)
        assert status == 200
        assert (json.loads(body)["status"], json.loads(body)["halted"]) == (
            "degraded",
            {"orders-3": "source-lost"},
        )


def test_a_promoted_topic_is_told_and_is_neither_halted_nor_paused(
    health: Health, server: HealthServer
) -> None:
    health.promoted = ["orders"]
    found = json.loads(get(server, "/healthz")[2])
    assert (found["status"], found["promoted"], found["paused"]) == ("ok", ["orders"], [])
    assert sample(health, "verbatim_promoted_topics") == 1


def test_a_pause_and_a_limit_are_told_and_nothing_is_degraded(health: Health, server: HealthServer) -> None:
    health.paused, health.limits = ["orders"], {"*": Limit(5_000_000, 100), "payments": Limit(None, 7)}
    found = json.loads(get(server, "/healthz")[2])
    assert (found["status"], found["paused"]) == ("paused", ["orders"])
    assert found["limits"]["payments"] == {"bytes_per_second": None, "records_per_second": 7}
    assert sample(health, "verbatim_paused_topics") == 1
    assert sample(health, "verbatim_limit_bytes_per_second", topic="*") == 5_000_000
    assert sample(health, "verbatim_limit_bytes_per_second", topic="payments") is None
    assert sample(health, "verbatim_limit_records_per_second", topic="*") == 100
    assert sample(health, "verbatim_limit_records_per_second", topic="payments") == 7
    health.halted["orders-3"] = "source-lost"
    assert json.loads(get(server, "/healthz")[2])["status"] == "degraded"


def test_another_path_is_not_found(server: HealthServer) -> None:
    assert get(server, "/nothing")[0] == 404


def test_a_port_in_use_is_named(server: HealthServer) -> None:
    with pytest.raises(SettingsError, match="^HEALTH_PORT"):
        HealthServer(LinkPages(Health("replicator")), "127.0.0.1", server.port)
