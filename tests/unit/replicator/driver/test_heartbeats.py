"""Heartbeats: what their times come to, how they are shown, and which settings can't go together with
them."""

from __future__ import annotations

import pytest

from common.app.health import Health, Heartbeat
from common.config import loading
from common.config.settings import Settings
from common.errors import SettingsError
from replicator.driver.heartbeats import Delays
from tests.support.metrics import sample, text

REQUIRED = {
    "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders",
}


def load(**variables: str) -> Settings:
    return loading.load(environ={**REQUIRED, **variables})


def test_the_delay_is_that_of_the_last_one_that_came_or_grows_while_none_comes() -> None:
    delays = Delays()
    assert delays.seen(1000) == Heartbeat(None, None)
    delays.wrote(1000)
    assert delays.seen(1500) == Heartbeat(0.5, None)
    delays.read(1000, True, 1600)
    assert delays.seen(9000) == Heartbeat(0.6, 1000)
    for at in (2000, 3000, 4000):
        delays.wrote(at)
    delays.read(3000, True, 3020)
    assert delays.seen(4010) == Heartbeat(0.02, 3000)
    assert delays.seen(7000) == Heartbeat(3.0, 3000)
    delays.never_wrote(4000)
    delays.never_wrote(4000)
    assert delays.seen(7000) == Heartbeat(0.02, 3000)


def test_a_heartbeat_of_another_instance_tells_no_delay_for_its_clock_may_be_another() -> None:
    delays = Delays()
    delays.read(5000, False, 1000)
    assert delays.seen(1000) == Heartbeat(None, 5000)


def test_metrics_and_health_show_heartbeats_only_where_there_are_any() -> None:
    health = Health("replicator")
    assert "heartbeat" not in text(health) and "heartbeat" not in health.report()
    health.heartbeat = Heartbeat(None, None)
    assert "heartbeat" not in text(health)
    health.heartbeat = Heartbeat(0.25, 1_700_000_000_123)
    assert sample(health, "verbatim_heartbeat_delay_seconds") == 0.25
    assert sample(health, "verbatim_heartbeat_timestamp_seconds") == 1_700_000_000.123
    assert health.report()["heartbeat"] == {"delay_s": 0.25, "newest_ms": 1_700_000_000_123}


def test_heartbeats_are_off_unless_asked_for_and_then_copied_whatever_is_selected() -> None:
    for off in ({}, {"HEARTBEATS_INTERVAL": "0"}, {"HEARTBEATS_INTERVAL": "none"}):
        settings = load(**off)
        assert settings.heartbeats_interval_s == 0 and not settings.selects("verbatim.heartbeats")
    on = load(HEARTBEATS_INTERVAL="5s", KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE=r"verbatim\..*")
    assert on.heartbeats_interval_s == 5 and on.selects("verbatim.heartbeats")
    named = load(HEARTBEATS_INTERVAL="5s", HEARTBEATS_TOPIC="pulse", KAFKA_CLUSTERS_SOURCE_TOPIC=".*")
    assert named.selects("pulse") and named.heartbeats_topic == "pulse"
    still = named.without_heartbeats()
    assert still.selects("orders") and not still.selects("pulse") and not still.heartbeats_interval_s


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"HEARTBEATS_TOPIC": "verbatim.staging"}, "HEARTBEATS_TOPIC"),
        ({"HEARTBEATS_TOPIC": "__consumer_offsets"}, "HEARTBEATS_TOPIC"),
        (
            {"KAFKA_CLUSTERS_DESTINATION_TOPIC": "all"},
            "KAFKA_CLUSTERS_DESTINATION_TOPIC_MAP: verbatim.heartbeats=",
        ),
        ({"HEARTBEATS_INTERVAL": "-5s"}, "HEARTBEATS_INTERVAL"),
        ({"HEARTBEATS_INTERVAL": "5"}, "HEARTBEATS_INTERVAL"),
    ],
)
def test_settings_that_leave_heartbeats_no_topic_of_their_own_are_refused(
    variables: dict[str, str], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        load(**{"HEARTBEATS_INTERVAL": "5s", **variables})
    mapped = {
        "KAFKA_CLUSTERS_DESTINATION_TOPIC": "all",
        "KAFKA_CLUSTERS_DESTINATION_TOPIC_MAP": "verbatim.heartbeats=pulse",
    }
    assert load(HEARTBEATS_INTERVAL="5s", **mapped).destination_topic("verbatim.heartbeats", "s") == "pulse"
