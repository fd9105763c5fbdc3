"""When the deduplicator folds."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from common import ports
from common.app.health import Health
from common.errors import KafkaTimeout
from common.kafka.client import topics
from common.link.control_state import Control
from common.link.lane_progress import decode, encode
from common.link.lane_work import Work
from deduplicator import main
from deduplicator.lane import recovery
from deduplicator.lane_plan import Left
from deduplicator.main import FOLD_BYTES, FOLD_MAPPINGS, FOLD_S, Deduplicator
from deduplicator.state.snapshot import FoldResult, Snapshot
from deduplicator.state.table import StateTable
from tests.simulation.world import SETTINGS, settings


def test_a_fold_is_due_after_so_much_of_staging_so_many_mappings_or_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(ports, "monotonic", lambda: now)
    application = Deduplicator.__new__(Deduplicator)
    application.health = Health("deduplicator")
    application.control = SimpleNamespace(refresh=lambda _: Control())  # type: ignore[assignment]
    application.settings, application.admin, application.term = SETTINGS, None, 1  # type: ignore[assignment]
    application._folded_at, application._folded_with = -math.inf, Counter()

    def due(**counters: int) -> bool:
        application.health.work = Work(Counter(counters))
        return application._fold_due()

    def folded() -> None:
        application._folded(FoldResult({}, {}, {}, 0, {}, 0))

    assert due(), "something was mapped before, and there is no table"
    due(bytes=FOLD_BYTES, mappings=FOLD_MAPPINGS)
    folded()
    assert not due(bytes=FOLD_BYTES, mappings=FOLD_MAPPINGS)
    now += FOLD_S - 1
    assert not due(bytes=2 * FOLD_BYTES - 1, mappings=2 * FOLD_MAPPINGS - 1)
    assert due(bytes=2 * FOLD_BYTES, mappings=0)
    assert due(bytes=0, mappings=2 * FOLD_MAPPINGS)
    now += 1
    assert due(bytes=0, mappings=0)
    application._fold_failed()
    assert due(bytes=0, mappings=0)
    folded()
    assert not due(bytes=0, mappings=0)
    assert (application.health.folds, application.health.folds_failed) == (2, 1)


class Table:
    """A state table whose last fold was `age_s` seconds ago (None: there is no table) and had each mappings
    partition up to 10."""

    def __init__(self, age_s: float | None) -> None:
        self.age_s = age_s
        self.read = 0

    def check(self) -> None:
        pass

    def load(self) -> Snapshot:
        self.read += 1
        if self.age_s is None:
            return Snapshot()
        return Snapshot(exists=True, folded={0: 10, 1: 10}, updated=time.time() - self.age_s)


@pytest.fixture
def leading(monkeypatch: pytest.MonkeyPatch) -> Callable[[Table], Deduplicator]:
    """A deduplicator with two staging partitions that has taken over a link with that table."""

    def lead(table: Table) -> Deduplicator:
        for name in ("Destinations", "LetterTopic", "RouteTopics", "AclReplication"):
            monkeypatch.setattr(main, name, lambda *_: SimpleNamespace(settle=lambda again: None))
        monkeypatch.setattr(StateTable, "of", lambda *_: table)
        monkeypatch.setattr(topics, "offsets", lambda *_, **__: {("m", 0): 0, ("m", 1): 0})
        monkeypatch.setattr(main, "Folding", lambda *_: SimpleNamespace(close=lambda: None))
        application = Deduplicator(settings(STAGING_PARTITIONS="2"), until_caught_up=False)
        application.spark = application.control = None  # type: ignore[assignment]
        application.link = SimpleNamespace(source_cluster="s")  # type: ignore[assignment]
        application.lanes_wanted = 1
        application.became_leader()
        return application

    return lead


@pytest.mark.parametrize(
    ("mapped", "age_s", "first_due_after_s"),
    [
        (False, None, FOLD_S),  # a new link has nothing to fold
        (True, None, 0.0),  # who led before never came to the first fold
        (True, 200.0, FOLD_S - 200.0),
        (True, 2 * FOLD_S, 0.0),
        (True, -3600.0, FOLD_S),  # by another clock
    ],
)
def test_who_takes_over_goes_by_when_the_last_fold_was(
    monkeypatch: pytest.MonkeyPatch,
    leading: Callable[[Table], Deduplicator],
    mapped: bool,
    age_s: float | None,
    first_due_after_s: float,
) -> None:
    now = 1000.0
    monkeypatch.setattr(ports, "monotonic", lambda: now)
    application = leading(Table(age_s))
    monkeypatch.setattr(topics, "offsets", lambda *_, **__: {("m", 0): 0, ("m", 1): 7 if mapped else 0})
    application.plan()
    now += first_due_after_s - 1.0
    assert not application._fold_due() or first_due_after_s == 0.0
    now += 1.1
    assert application._fold_due()


def test_mappings_whose_ends_nobody_tells_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise KafkaTimeout("m: no leader")

    monkeypatch.setattr(topics, "offsets", unreachable)
    assert Deduplicator(SETTINGS, until_caught_up=False)._something_is_mapped()


def test_a_plan_says_whether_the_mappings_go_on_where_the_table_ends(
    monkeypatch: pytest.MonkeyPatch, leading: Callable[[Table], Deduplicator]
) -> None:
    """Asked before the table is read, which may be folded further meanwhile: then nothing is missing."""
    table = Table(0.0)
    application = leading(table)
    begins = {("m", 0): 10, ("m", 1): 11}
    asked: list[int] = []

    def offsets(*_: Any, **__: Any) -> dict[Any, int]:
        asked.append(table.read)
        return begins

    def complete() -> list[bool]:
        return [share.snapshot.complete for lane in application.plan() for share in lane.partitions]

    monkeypatch.setattr(topics, "offsets", offsets)
    assert complete() == [True, False] and asked[0] == 0
    del begins["m", 1]
    assert complete() == [True, True], "its leader does not tell"

    def unreachable(*_: Any, **__: Any) -> Any:
        raise KafkaTimeout("m: no leader")

    monkeypatch.setattr(topics, "offsets", unreachable)
    assert complete() == [True, True]


def test_a_plan_goes_by_what_the_epoch_before_left_and_reads_the_table_for_the_rest(
    leading: Callable[[Table], Deduplicator],
) -> None:
    table = Table(0.0)
    application = leading(table)

    def left(*partitions: int) -> None:
        application._count(
            [decode(encode(Left(p, recovery.Snapshot(20, True, 5, {("id", 3): 7})))) for p in partitions]
        )

    def folded() -> dict[int, int]:
        return {
            share.partition: share.snapshot.folded for lane in application.plan() for share in lane.partitions
        }

    assert (folded(), table.read) == ({0: 10, 1: 10}, 1)
    left(0, 1)
    assert (folded(), table.read) == ({0: 20, 1: 20}, 1)
    assert (folded(), table.read) == ({0: 10, 1: 10}, 2), "an epoch that failed leaves nothing"
    left(1)
    assert (folded(), table.read) == ({0: 10, 1: 20}, 3)
    left(0, 1)
    application.stepped_down()
    assert (folded(), table.read) == ({0: 10, 1: 10}, 4), "another may have led since"
