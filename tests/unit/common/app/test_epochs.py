"""Epochs of a driver, with a double in place of the query: which report ends which, and what a bounded run
believes."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common import ports
from common.app import application
from common.app.application import BEGIN_S, EPOCH_S, FAILURES, RETRY_S, Application
from common.app.health import Health
from common.app.lane_term import LaneTerm
from common.app.work_report import WorkReport
from common.errors import Deposed, KafkaTimeout, VerbatimError
from common.link import lane_progress
from common.link.control_kinds import ControlRecord, EndEpoch, Halted, Leader, encode
from common.link.control_state import Control
from common.link.lane_plan import LaneShare
from common.link.lane_progress import Done, Row
from common.link.lane_work import Work
from common.ports import Deadline
from common.spark.lane_jobs import Behind, Progress, Reports
from common.spark.lane_task import Plan

LANES = [LaneShare(), LaneShare()]
ONE, MANY = (lane_progress.encode(Done(Work(Counter(records=n)))) for n in (1, 100))


class FakeLog:
    """A control topic in memory; while `down`, nothing can be appended."""

    def __init__(self, said: list[str]) -> None:
        self.state, self.said, self.down = Control(), said, 0

    def append(self, record: ControlRecord, _: Any) -> int:
        if self.down and isinstance(record, EndEpoch):
            self.down -= 1
            self.said.append("not told")
            raise KafkaTimeout("no acknowledgement in time")
        offset = self.state.position
        self.state.apply(offset, encode(record, "l"))
        self.said.append(f"{record.kind} {getattr(record, 'epoch', '')}".strip())
        return offset

    def poll(self) -> Control:
        return self.state

    def refresh(self, _: Any) -> Control:
        return self.state


class FakeQuery:
    """What each epoch comes to is said by `script`: it is called with the epoch's plans, and reports or fails
    as it likes."""

    def __init__(
        self, reports: Reports, said: list[str], script: Callable[[FakeQuery, list[Plan]], None]
    ) -> None:
        self.reports, self.said, self.script = reports, said, script
        self.active, self.why = True, ""

    def submit(self, lanes: list[Plan]) -> None:
        self.active = True
        self.said.append(f"epoch {lanes[0]['epoch']}")
        self.script(self, lanes)

    def failure(self) -> str | None:
        return self.why

    def fail(self, why: str) -> None:
        self.active, self.why = False, why

    give_up = fail

    def close(self) -> None:
        self.active = False


def ends(query: FakeQuery, lanes: list[Plan]) -> None:
    query.reports.put([Progress(plan["term"], plan["epoch"], ONE) for plan in lanes])


class Driven(Application):
    """An application that does nothing but run epochs."""

    name = "replicator"
    needs_source = True

    def __init__(self, script: Callable[[FakeQuery, list[Plan]], None], bounded: bool = True) -> None:
        self.said: list[str] = []
        self.script = script
        self.settings: Any = SimpleNamespace(
            application_name="l", control_topic="c", topic_refresh_interval_s=0.0
        )
        self.bounded, self.live, self.instance = bounded, None, "i"
        self.health, self.stopping = Health("replicator"), threading.Event()
        self.link: Any = SimpleNamespace(source_reached=True, source_cluster="s", target_cluster="t")
        self.control: Any = FakeLog(self.said)
        self.leadership: Any = SimpleNamespace(poll=lambda _: True)
        self.counters: Any = SimpleNamespace(sums=lambda *_: Work(), silence=lambda *_: None)
        self.report = WorkReport(self.health)
        self.term, self.epoch, self.lanes_wanted = -1, 0, 2
        self.planned = LANES
        self.plans: list[Plan] = []
        self.stands: list[dict[str, Behind]] = []
        """What Kafka says after each epoch; all is copied once there is nothing left of it."""

    def show_link(self) -> None:
        """Nobody looks."""

    def became_leader(self) -> None:
        pass

    def plan(self) -> list[LaneShare]:
        return self.planned

    def must_replan(self) -> bool:
        return True

    def behind(self, rows: list[Row]) -> dict[str, Behind]:
        return self.stands.pop(0) if self.stands else {}

    def caught_up(self, rows: list[Row]) -> int | None:
        return 0

    def make_jobs(self) -> Any:
        self.query = FakeQuery(self.reports, self.said, self.script)
        return self.query

    def lane_plan(self, share: LaneShare, lane: int) -> Plan:
        return {"lane": lane, "term": self.term, "epoch": self.epoch}

    def epochs(self) -> int:
        return len([line for line in self.said if line.startswith("epoch")])


@pytest.fixture(autouse=True)
def time_flies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "sleep", lambda _: None)
    monkeypatch.setattr(application, "STOP_S", 3.2)


@pytest.mark.parametrize(("term", "epoch"), [(-1, 0), (0, -1), (1, 0)])
def test_a_report_of_another_epoch_or_term_ends_nothing(term: int, epoch: int) -> None:
    def script(query: FakeQuery, lanes: list[Plan]) -> None:
        query.reports.put([Progress(lanes[0]["term"] + term, lanes[0]["epoch"] + epoch, MANY)])
        ends(query, lanes)

    driven = Driven(script)
    assert driven._lead() == 0
    assert driven.report.totals.counts == {"records": 2}


def test_a_late_report_of_an_old_term_is_not_the_new_ones() -> None:
    """Promise: an instance that leads again, after another one did, does not take for its own what its first
    query still reports."""
    queries: list[FakeQuery] = []

    def script(query: FakeQuery, lanes: list[Plan]) -> None:
        queries.append(query)
        if len(queries) == 1:
            driven.control.append(Leader("replicator", "another"), None)
        else:
            queries[0].reports.put([Progress(driven.term, driven.epoch, MANY)])
            ends(query, lanes)

    driven = Driven(script)
    assert driven._lead() is None, "deposed"
    assert driven._lead() == 0
    assert driven.report.totals.counts == {"records": 2}


def test_a_bounded_run_believes_kafka_and_not_its_lanes() -> None:
    """Promise: what is not copied up to the end that was given gets another epoch, for as long as any brings
    it further."""
    driven = Driven(ends)
    driven.stands = [{"orders-0": Behind(n, 9)} for n in range(9)]
    assert driven._lead() == 0
    assert driven.epochs() == 10


def test_a_bounded_run_that_comes_no_further_ends_with_an_error_that_says_where() -> None:
    driven = Driven(ends)
    # The ends of a source that is written to move on, which is no progress.
    driven.stands = [{"orders-1": Behind(7, 9 + n), "orders-0": Behind(3, 5)} for n in range(99)]
    with pytest.raises(
        VerbatimError, match="failed 5 times in a row: 2 partitions are not caught up, orders-0 is at 3 of 5"
    ) as e:
        driven._lead()
    assert e.value.exit_code == 1
    assert driven.epochs() == FAILURES + 1


def test_with_nothing_to_copy_a_bounded_run_is_done_and_another_one_waits() -> None:
    """Promise: no epoch is run without lanes, over and over, where the source has no topic to copy yet."""
    driven = Driven(ends)
    driven.planned = []
    assert driven._lead() == 0
    assert driven.epochs() == 0

    waits = Driven(lambda query, lanes: waits.stopping.set(), bounded=False)
    waits.planned = []
    waits.must_replan = lambda: bool(waits.__dict__.update(planned=LANES)) or True  # type: ignore[method-assign]
    assert waits._lead() == 0
    assert waits.said == ["leader", "epoch 2", "end-epoch 2"]


def test_after_a_failure_the_lanes_are_told_to_end_before_the_next_ones_begin() -> None:
    """Promise: lanes of an epoch that failed, which may go on, find its end in the control topic before the
    next epoch's fence them."""

    def script(query: FakeQuery, lanes: list[Plan]) -> None:
        if driven.epochs() == 1:
            driven.control.down = 3
            query.fail("KafkaTimeout: a lane failed")
        else:
            ends(query, lanes)

    driven = Driven(script)
    assert driven._lead() == 0
    assert driven.said == ["leader", "epoch 1", "not told", "not told", "not told", "end-epoch 1", "epoch 2"]
    assert json.dumps(driven.report.totals.counts) == '{"records": 2}'


def test_an_epoch_of_which_a_lane_hangs_is_given_up_and_another_begins() -> None:
    """Promise: a process that is frozen takes its partitions along for minutes, and not the link for good:
    nobody waits for its end. In a bounded run lanes that are done say nothing either."""

    def script(query: FakeQuery, lanes: list[Plan]) -> None:
        if driven.epochs() == 2:
            driven.stopping.set()

    driven = Driven(script, bounded=False)
    asked: list[tuple[int, float | None]] = []

    def silence(term: int, epoch: int, lanes: int, first_heard: float | None) -> str | None:
        asked.append((lanes, first_heard))
        return "lane 1 hangs" if epoch == 1 and first_heard is not None else None

    driven.counters.silence = silence
    begun = ports.monotonic()
    assert driven._lead() == 0
    assert asked[0] == (2, None)
    assert asked[1][0] == 2 and begun < cast("float", asked[1][1]) < ports.monotonic()
    assert driven.said == ["leader", "epoch 1", "end-epoch 1", "epoch 2", "end-epoch 2"]
    assert driven.failures == 1

    bounded = Driven(ends)
    bounded.counters.silence = lambda *_: "lane 1 hangs"
    assert bounded._lead() == 0
    assert (bounded.query.why, bounded.epochs()) == ("", 1)


@pytest.mark.parametrize(("halted", "ended_after_s"), [(True, RETRY_S), (False, None)])
def test_what_halts_in_mid_epoch_is_tried_again_and_nothing_else_ends_a_sound_one(
    halted: bool, ended_after_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: a partition that halts is tried again ten minutes after its epoch began; without one, nothing
    stops the flow."""
    now, told = [0.0], list[float]()
    monkeypatch.setattr(ports, "monotonic", lambda: now[0])

    class Sound(Driven):
        def must_replan(self) -> bool:
            return False

        def _look_at_control(self) -> None:
            now[0] += 5.0
            if now[0] == 100.0 and halted:
                halt = Halted("replicator", "orders", "id", 0, "internal-error", "a bug", None, None)
                self.control.append(halt, None)
            if now[0] >= EPOCH_S - 100:
                self.stopping.set()

        def _end_epoch(self) -> None:
            told.append(now[0])
            ends(self.query, self.plans)

        def _ended_rows(self) -> list[Row] | None:
            said = self.reports.ended(self.epoch, 0.0)
            return None if said is None else [lane_progress.decode(text) for text in said]

    def script(_: FakeQuery, lanes: list[Plan]) -> None:
        driven.plans = lanes

    driven = Sound(script, bounded=False)
    driven.settings.topic_refresh_interval_s = 60.0
    assert driven._lead() == 0
    assert told[0] == pytest.approx(ended_after_s or EPOCH_S - 100, abs=11)


@pytest.mark.parametrize(("speaks_after_s", "ended_at_s"), [(0.0, 5.0), (30.0, 60.0), (None, BEGIN_S)])
def test_what_changes_faster_than_lanes_begin_lets_them_copy_half_of_the_time(
    speaks_after_s: float | None, ended_at_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: an epoch is not ended for another pipeline or another topic before it has gone on for as long
    as its lanes took to begin; lanes that are not heard at all are waited for no longer than BEGIN_S."""
    now, told = [0.0], list[float]()
    monkeypatch.setattr(ports, "monotonic", lambda: now[0])

    class Changing(Driven):
        def _look_at_control(self) -> None:
            now[0] += 5.0

        def _end_epoch(self) -> None:
            told.append(now[0] - 5.0)  # since its lanes were asked for
            self.stopping.set()
            ends(self.query, self.plans)

        def _ended_rows(self) -> list[Row] | None:
            said = self.reports.ended(self.epoch, 0.0)
            return None if said is None else [lane_progress.decode(text) for text in said]

    def sums(*_: int) -> Work | None:
        return None if speaks_after_s is None or now[0] - 5.0 < speaks_after_s else Work()

    def script(_: FakeQuery, lanes: list[Plan]) -> None:
        driven.plans = lanes

    driven = Changing(script, bounded=False)
    driven.counters.sums = sums
    assert driven._lead() == 0
    assert told[0] == pytest.approx(ended_at_s, abs=6)


def test_another_number_of_lanes_ends_the_epoch_at_once() -> None:
    """Promise: where executors were lost, lanes that wait for a slot do not wait for the epoch's end."""

    class FewerLanes(Driven):
        def must_replan(self) -> bool:
            return False

        def show_link(self) -> None:
            self.lanes_wanted = 1

        def _end_epoch(self) -> None:
            super()._end_epoch()
            ends(self.query, self.plans)

    def script(_: FakeQuery, lanes: list[Plan]) -> None:
        driven.plans = lanes
        if driven.epochs() == 2:
            driven.stopping.set()

    driven = FewerLanes(script, bounded=False)
    driven.settings.topic_refresh_interval_s = 3600.0
    assert driven._lead() == 0
    assert driven.said == ["leader", "epoch 1", "end-epoch 1", "epoch 2", "end-epoch 2"]


def test_a_lane_of_an_epoch_that_is_over_fences_nobody() -> None:
    """Promise: who was fenced by the next epoch's lane, of the same term, finds the end of its own on record,
    and does not fence in turn."""
    control: Any = FakeLog([])
    term = control.append(Leader("deduplicator", "i"), None)
    plan = {"application": "deduplicator", "term": term, "epoch_s": 600.0, "again": False}
    lane, successor = (LaneTerm(cast(Any, SimpleNamespace(**plan, epoch=epoch)), control) for epoch in (1, 2))
    lane.must_lead(Deadline(1))
    control.append(EndEpoch("deduplicator", term, 1), None)
    successor.must_lead(Deadline(1))
    with pytest.raises(Deposed, match="epoch 1 is over"):
        lane.must_lead(Deadline(1))
    control.append(Leader("deduplicator", "another"), None)
    with pytest.raises(Deposed, match="another instance"):
        successor.must_lead(Deadline(1))
