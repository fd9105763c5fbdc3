"""What an instance that leads shows of its lanes' work."""

from __future__ import annotations

import logging

import pytest

from common.app.health import Health
from common.app.work_report import WorkReport, halted_lines
from common.link.control_kinds import ControlRecord, Halted, Leader, Resumed, encode
from common.link.control_records import DEDUPLICATOR, REPLICATOR
from common.link.control_state import Control
from common.link.lane_progress import PartitionHalted, Unfinished

WHERE = ("orders", "id", 3)


def test_a_halt_is_said_once_and_so_is_its_end_and_another_applications_not_at_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    health, state = Health(REPLICATOR), Control()
    report = WorkReport(health)

    def shown(*records: ControlRecord) -> list[str]:
        caplog.clear()
        for record in records:
            state.apply(state.position, encode(record, "l"))
        report.show_halts(state)
        return [line.getMessage() for line in caplog.records]

    assert shown(Halted(DEDUPLICATOR, *WHERE, "staging-missing", "not ours", 5, None)) == []
    (line,) = shown(Halted(REPLICATOR, *WHERE, "source-lost", "gone", 5, 9))
    assert line.startswith("orders-3 is halted, the others go on: gone; ") and line.endswith("#source-lost")
    assert health.halted == {"orders-3": "source-lost"}
    assert shown(Leader(REPLICATOR)) == []
    assert shown(Resumed(application=REPLICATOR, topic="orders", topic_id="id", partition=3)) == [
        "orders-3 goes on"
    ]
    assert health.halted == {}


def test_the_epoch_that_runs_counts_on_from_those_that_ended() -> None:
    health = Health(REPLICATOR)
    report = WorkReport(health)
    report.totals.update({"records": 5, "frames": 0})
    report.show_counters({"records": 2, "lag": 4})
    assert health.counters == {"records_total": 7, "frames_total": 0, "lag": 4}
    report.totals.update({"records": 3})
    report.show_counters({})
    assert health.counters == {"records_total": 8, "frames_total": 0}


def test_a_bounded_run_names_each_halted_partition_once_with_what_its_lane_said_last() -> None:
    state = Control()
    for application, partition in ((REPLICATOR, 3), (REPLICATOR, 4), (DEDUPLICATOR, 5)):
        halted = Halted(application, "orders", "id", partition, "source-lost", "gone")
        state.apply(state.position, encode(halted, "l"))
    rows = [PartitionHalted("orders", 4, "still gone"), PartitionHalted("a", 0, "bad"), Unfinished()]
    assert halted_lines(REPLICATOR, state, rows) == [
        "a-0 halted: bad",
        "orders-3 halted: gone",
        "orders-4 halted: still gone",
    ]
