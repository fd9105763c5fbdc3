"""/metrics: what an instance's health says, in the formats of Prometheus."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from io import StringIO

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_fd_to_metric_families

from common.app.group_state import GroupState
from common.app.health import Health
from common.app.metrics import exposed, registry_of
from common.link import lane_work
from common.link.throttling import Limit
from common.spark.usage import Usage
from tests.support.metrics import delivering, sample, text

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def health() -> Health:
    health = delivering()
    health.work.delays.took(-5, 1)
    health.halted = {"orders-3": "missing", "orders-4": "missing", "paid-0": "loop"}
    return health


def test_every_sample_says_which_link_between_which_clusters(health: Health) -> None:
    families = list(text_fd_to_metric_families(StringIO(text(health))))
    own = [one for family in families for one in family.samples if one.name.startswith("verbatim_")]
    of_all = {"application": "deduplicator", "link": "east", "source": "s-1", "target": "t-1"}
    assert len(own) > 20 and all(of_all.items() <= one.labels.items() for one in own)
    assert "process_resident_memory_bytes" in {family.name for family in families}


def test_what_lanes_have_done_is_shown_by_partition_of_the_source(health: Health) -> None:
    assert sample(health, "verbatim_records_total", topic="orders", partition="3") == 5
    assert sample(health, "verbatim_records_total", topic="orders", partition="10") == 0
    assert sample(health, "verbatim_delivered_offset", topic="orders", partition="3") == 9
    assert sample(health, "verbatim_frames_total") == 7
    assert sample(health, "verbatim_staging_lag") == 4
    assert sample(health, "verbatim_transaction_seconds_total") == 2.5
    assert sample(health, "verbatim_lag", topic="orders", partition="3") is None, "nobody counts it"


def test_delays_are_a_histogram(health: Health) -> None:
    def below(bound: str) -> float | None:
        return sample(health, "verbatim_delay_seconds_bucket", le=bound)

    assert [below(bound) for bound in ("0.005", "0.5", "1.0", "1800.0", "+Inf")] == [11, 11, 13, 13, 14]
    assert sample(health, "verbatim_delay_seconds_count") == 14
    assert sample(health, "verbatim_delay_seconds_sum") == 0.04 + 1.4 + 2000


def test_halts_are_counted_by_their_reasons(health: Health) -> None:
    assert sample(health, "verbatim_halted_partitions", reason="missing") == 2
    assert sample(health, "verbatim_halted_partitions", reason="loop") == 1
    health.halted = {}
    assert "verbatim_halted_partitions{" not in text(health)


def test_with_many_partitions_topics_are_shown(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_work, "MOST_PARTITIONS", 2)
    assert sample(health, "verbatim_records_total", topic="orders", partition="3") == 5
    health.work.of["paid", 0] = Counter(records=4)
    assert sample(health, "verbatim_records_total", topic="orders", partition="") == 5
    assert sample(health, "verbatim_records_total", topic="paid", partition="") == 4
    assert sample(health, "verbatim_records_total", topic="orders", partition="3") is None


def test_what_held_the_lanes_back_is_told_in_seconds(health: Health) -> None:
    health.work.counts.update(limit_wait_ms=1500, source_throttle_ms=250, target_throttle_ms=0)
    assert sample(health, "verbatim_limit_wait_seconds_total") == 1.5
    assert sample(health, "verbatim_source_throttle_seconds_total") == 0.25
    assert sample(health, "verbatim_target_throttle_seconds_total") == 0


def test_folds_are_told_where_there_are_any_and_those_that_fail_from_the_first(health: Health) -> None:
    names = ("verbatim_folds_total", "verbatim_folds_failed_total")
    health.folds = health.folds_failed = 0
    assert [sample(health, name) for name in names] == [None] * 2
    health.folds_failed = 1
    assert [sample(health, name) for name in names] == [0, 1]


def test_what_spark_has_is_told_where_there_is_spark(health: Health) -> None:
    names = ("verbatim_spark_task_slots", "verbatim_spark_executors", "verbatim_spark_active_tasks")
    assert [sample(health, name) for name in names] == [None] * 3
    health.spark = Usage(8, 2, 5)
    assert [sample(health, name) for name in names] == [8, 2, 5]


def groups_of(health: Health, group: str) -> list[float | None]:
    """Partitions exact, behind and held back; offsets written; when it was in step last, in seconds."""
    states = [
        sample(health, "verbatim_group_partitions", group=group, state=state)
        for state in ("exact", "behind", "held_back")
    ]
    written = sample(health, "verbatim_group_offsets_written_total", group=group)
    return [*states, written, sample(health, "verbatim_group_in_step_timestamp_seconds", group=group)]


def test_groups_are_told_one_by_one_unless_there_are_too_many(
    health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "verbatim_group" not in text(health)
    health.groups = {"a": GroupState(3, 0, 0, 7, 5_000_000), "b": GroupState(1, 2, 4)}
    assert groups_of(health, "a") == [3, 0, 0, 7, 5000]
    assert groups_of(health, "b") == [1, 2, 4, 0, None], "never in step yet"
    monkeypatch.setattr(lane_work, "MOST_PARTITIONS", 2)
    health.groups |= {"c": GroupState(1, 0, 0, 1, 3_000_000)}
    assert groups_of(health, "a") == [None] * 5
    assert groups_of(health, "") == [5, 2, 4, None, 3000], "in step as long ago as the last of them"


def test_names_of_topics_are_escaped(health: Health) -> None:
    health.limits = {'a"b\\c': Limit(1, None)}
    assert sample(health, "verbatim_limit_bytes_per_second", topic='a"b\\c') == 1
    assert r'topic="a\"b\\c"' in text(health)


def test_whoever_asks_for_openmetrics_gets_that(health: Health) -> None:
    registry = registry_of(health)
    body, kind = exposed(registry, OPEN_METRICS)
    assert kind.startswith("application/openmetrics-text") and body.endswith(b"# EOF\n")
    found = open_metrics(body.decode())  # type: ignore[no-untyped-call]
    assert {m.name for m in found} >= {"verbatim_leader", "verbatim_records"}
    body, kind = exposed(registry, "*/*")
    assert kind.startswith("text/plain") and b"# EOF" not in body


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (of Prometheus) is not installed")
def test_promtool_has_nothing_to_complain_of(health: Health) -> None:
    found = subprocess.run(
        ["promtool", "check", "metrics"], input=text(health), capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout + found.stderr) == (0, "")
