"""What watches a link: every metric that alerts and dashboards name is there, each alert fires for what it is
about and for nothing else, and says where to read on."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.deployed import K8S, ROOT, of_kind, passes, rendered
from tests.unit.test_documents import metrics

FOLDER = K8S / "overlays" / "monitoring"
RULES = yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}
RECORDS = {rule["record"]: rule for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in (FOLDER / "dashboards").iterdir()}

DEDUPLICATOR = 'application="deduplicator",link="l",source="s",target="t"'
REPLICATOR = 'application="replicator",link="l",source="s",target="t"'
OFFSETS = 'application="offsets",link="l",source="s",target="t"'
SCHEMAS = 'application="schemas",link="l",source="s",target="t"'
PARTITION = 'topic="orders",partition="0"'
WELL = {
    f"verbatim_leader{{{REPLICATOR}}}": "1x60",
    f"verbatim_leader{{{DEDUPLICATOR}}}": "1x60",
    f"verbatim_source_reached{{{REPLICATOR}}}": "1x60",
    f"verbatim_target_reached{{{REPLICATOR}}}": "1x60",
    f"verbatim_source_end_offset{{{REPLICATOR},{PARTITION}}}": "1000+6000x60",
    f"verbatim_delivered_offset{{{DEDUPLICATOR},{PARTITION}}}": "900+6000x60",
    f"verbatim_records_total{{{DEDUPLICATOR},{PARTITION}}}": "900+6000x60",
    f"verbatim_frames_total{{{DEDUPLICATOR}}}": "0+10x60",
    f'verbatim_delay_seconds_bucket{{{DEDUPLICATOR},le="1.0"}}': "0+6000x60",
    f'verbatim_delay_seconds_bucket{{{DEDUPLICATOR},le="300.0"}}': "0+6000x60",
    f'verbatim_delay_seconds_bucket{{{DEDUPLICATOR},le="+Inf"}}': "0+6000x60",
    f"verbatim_transactions_aborted_total{{{DEDUPLICATOR}}}": "1x60",
    f"verbatim_epochs_failed_total{{{DEDUPLICATOR}}}": "2x60",
    f"verbatim_folds_total{{{DEDUPLICATOR}}}": "0x9 1x9 2x9 3x9 4x9 5x10",
    f"verbatim_folds_failed_total{{{DEDUPLICATOR}}}": "0+1x60",
    f"verbatim_heartbeat_timestamp_seconds{{{REPLICATOR}}}": "0+60x60",
    f"verbatim_source_throttle_seconds_total{{{REPLICATOR}}}": "0+6x60",
    f"verbatim_target_throttle_seconds_total{{{DEDUPLICATOR}}}": "3x60",
    f"verbatim_rounds_total{{{OFFSETS}}}": "0+12x60",
    f"verbatim_rounds_total{{{SCHEMAS}}}": "0+6x60",
    f"verbatim_schema_subjects_failed{{{SCHEMAS}}}": "0x60",
}
"""By the minute, of a link that is well: six thousand records. Nine folds of ten fail: no alert yet."""
FAULTS: dict[str, dict[str, str]] = {
    "VerbatimHalted": {f'verbatim_halted_partitions{{{DEDUPLICATOR},reason="missing"}}': "_x30 2x30"},
    "VerbatimNobodyLeads": {f"verbatim_leader{{{DEDUPLICATOR}}}": "1x30 0x30"},
    "VerbatimLinkFailed": {'verbatim_link_failed{application="replicator",link="l"}': "0x30 1x30"},
    "VerbatimSourceUnreachable": {f"verbatim_source_reached{{{REPLICATOR}}}": "1x30 0x30"},
    "VerbatimTargetUnreachable": {f"verbatim_target_reached{{{REPLICATOR}}}": "1x30 0x30"},
    "VerbatimFallsBehind": {
        f"verbatim_source_end_offset{{{REPLICATOR},{PARTITION}}}": "1000+6000x30 181000+120000x30"
    },
    "VerbatimLate": {f'verbatim_delay_seconds_bucket{{{DEDUPLICATOR},le="1.0"}}': "0+6000x30 180000x30"},
    "VerbatimThrottled": {f"verbatim_target_throttle_seconds_total{{{DEDUPLICATOR}}}": "3x30 3+45x30"},
    "VerbatimTransactionsAbort": {f"verbatim_transactions_aborted_total{{{DEDUPLICATOR}}}": "1x30 1+1x30"},
    "VerbatimEpochsFail": {f"verbatim_epochs_failed_total{{{DEDUPLICATOR}}}": "2x45 3x15"},
    "VerbatimFoldsFail": {f"verbatim_folds_total{{{DEDUPLICATOR}}}": "0x9 1x9 2x40"},
    "VerbatimRestarts": {f"verbatim_frames_total{{{DEDUPLICATOR}}}": "0+10x40 0+1x5 0+1x5 0+1x5 0+1x5"},
    "VerbatimHeartbeatsLate": {f"verbatim_heartbeat_timestamp_seconds{{{REPLICATOR}}}": "0+60x30 1800x30"},
    "VerbatimGroupsStandStill": {f"verbatim_rounds_total{{{OFFSETS}}}": "0+12x30 360x30"},
    "VerbatimSchemasStandStill": {f"verbatim_rounds_total{{{SCHEMAS}}}": "0+6x30 180x30"},
    "VerbatimSubjectsFail": {f"verbatim_schema_subjects_failed{{{SCHEMAS}}}": "0x30 2x30"},
}
"""What happens in the last half of an hour."""


AT_THE_SOURCE = {f"verbatim_source_throttle_seconds_total{{{REPLICATOR}}}": "0+6x30 180+45x30"}


def expressions(found: Any) -> Iterator[str]:
    """PromQL, wherever it stands."""
    if isinstance(found, list):
        for item in found:
            yield from expressions(item)
    if isinstance(found, dict):
        for key, value in found.items():
            if key in ("expr", "query") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)


def known() -> set[str]:
    endings = ("_bucket", "_sum", "_count")
    return {*metrics(), *RECORDS, *("verbatim_delay_seconds" + ending for ending in endings)}


@pytest.mark.parametrize("where", ["rules", *DASHBOARDS])
def test_every_metric_that_is_named_is_there(where: str) -> None:
    found = list(expressions(RULES if where == "rules" else DASHBOARDS[where]))
    named = {name for one in found for name in re.findall(r"\bverbatim[_:][\w:]+", one)}
    assert len(named) > 4 and named <= known()


def test_dashboards_show_every_metric_of_the_copying() -> None:
    shown = "".join(expressions(list(DASHBOARDS.values())))
    left = {name for name in metrics() if name not in shown}
    assert left <= {
        "verbatim_build_info",
        "verbatim_link_failed",
        "verbatim_deleted_topics",
        "verbatim_limit_bytes_per_second",
        "verbatim_limit_records_per_second",
        "verbatim_heartbeat_timestamp_seconds",
        "verbatim_epochs_total",
        "verbatim_folds_total",
        "verbatim_frames_total",
        "verbatim_mappings_total",
        "verbatim_metric_exports_total",
        "verbatim_metric_exports_failed_total",
        "verbatim_rounds_total",
    }


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    page = (ROOT / "docs/operations/alerts.md").read_text()
    sections = dict(re.findall(r"^## `(\w+)` \{#([\w-]+)\}$", page, re.MULTILINE))
    told = {name: rule["annotations"]["runbook"] for name, rule in ALERTS.items()}
    assert told == {name: f"docs/operations/alerts.md#{anchor}" for name, anchor in sections.items()}
    assert all(rule["labels"]["severity"] in ("warning", "critical") for rule in ALERTS.values())


def test_each_alert_is_played_with_a_real_fault_or_is_said_not_to_be() -> None:
    """By name: that test takes five minutes, and is not played with each change."""
    played = (ROOT / "tests/faults/test_alerts.py").read_text()
    assert [name for name in ALERTS if f'"{name}"' not in played] == []


def test_what_is_applied_is_what_the_operator_and_grafana_look_for() -> None:
    documents = rendered("overlays/monitoring")
    assert sorted(d["kind"] for d in documents) == ["ConfigMap", "PodMonitor", "PrometheusRule"]
    (dashboards,) = of_kind(documents, "ConfigMap")
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {json.loads(text)["uid"] for text in dashboards["data"].values()} == {
        board["uid"] for board in DASHBOARDS.values()
    }
    (monitor,) = of_kind(documents, "PodMonitor")
    (chosen,) = monitor["spec"]["selector"]["matchExpressions"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for folder in (".", "overlays/offsets", "overlays/schemas"):
        for deployment in of_kind(rendered(folder), "Deployment"):
            template = deployment["spec"]["template"]
            assert template["metadata"]["labels"][chosen["key"]] in chosen["values"]
            (container,) = template["spec"]["containers"]
            assert endpoint["port"] in [port["name"] for port in container["ports"]]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (of Prometheus) is not installed")
def test_each_alert_fires_for_its_fault_and_no_other_does(tmp_path: Path) -> None:
    assert FAULTS.keys() == ALERTS.keys()
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump(RULES))
    passes("promtool", "check", "rules", rules)
    gone = {f"verbatim_leader{{{DEDUPLICATOR}}}": "1x50 stale"}
    cases = [("", {}), *FAULTS.items(), ("VerbatimNobodyLeads", gone), ("VerbatimThrottled", AT_THE_SOURCE)]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in (WELL | fault).items()],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": f"{minute}m",
                    "exp_samples": [
                        {"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing if name
                    ],
                }
                for minute, firing in ((29, []), (58, [name]))
            ],
        }
        for name, fault in cases
    ]
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    passes("promtool", "test", "rules", file)
