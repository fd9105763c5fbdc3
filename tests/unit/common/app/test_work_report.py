"""What an instance that leads shows of its lanes' work."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from common.app.health import Health
from common.app.work_report import WorkReport, halted_lines
from common.link.control_kinds import ControlRecord, Halted, Leader, Resumed, encode
from common.link.control_records import DEDUPLICATOR, REPLICATOR
from common.link.control_state import Control
from common.link.lane_progress import PartitionHalted, Unfinished
from common.link.lane_work import Delays, Work

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
    at = ("orders", 3)

    def work(records: int, lag: int) -> Work:
        delays = Delays()
        delays.took(20, records)
        return Work(Counter(records=records, lag=lag), {at: Counter(records=records, lag=lag)}, delays)

    report.epoch_ended([work(2, 7), work(3, 1)])
    assert health.work.counts == {"records": 5, "lag": 8}, "until the next ones say theirs"
    report.show_running(work(2, 4))
    assert health.work.counts == health.work.of[at] == {"records": 7, "lag": 4}
    assert (sum(health.work.delays.buckets), health.work.delays.sum_ms) == (7, 140)
    report.show_running(work(4, 3))
    assert health.work.counts == {"records": 9, "lag": 3}
    report.epoch_failed()
    assert health.work.counts == health.work.of[at] == {"records": 9, "lag": 3}, "no counter goes back"
    other = Work(Counter(records=1), {("paid", 0): Counter(records=1, lag=2)})
    report.show_running(other)
    assert health.work.of[at] == {"records": 9, "lag": 3}, "its lane has said nothing yet"
    assert health.work.of["paid", 0] == {"records": 1, "lag": 2}
    report.epoch_ended([other, work(2, 5)])
    assert health.work.counts == {"records": 12, "lag": 5}, (
        "what its lanes said at its end is all that they did"
    )
    report.leads_no_more()
    assert health.work.counts == {"records": 12} and health.work.of[at] == {"records": 11}
    assert (health.epochs, health.epochs_failed) == (2, 1)


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
