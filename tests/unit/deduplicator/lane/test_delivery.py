"""How long a delivery rests between transactions, and what it gathers in one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from common import ports
from deduplicator.lane.delivery import IDLE_S, LEAST_REST_S, LOOK_S, MOST_REST_S, Delivery
from deduplicator.lane.inbox import Inbox
from deduplicator.lane.partition_state import StagingPartitionState
from deduplicator.lane.recovery import Snapshot
from deduplicator.lane.transaction_linger import MUCH_BYTES


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    naps: list[float] = []
    monkeypatch.setattr(ports, "sleep", naps.append)
    return naps


def delivery(waiting: int) -> Delivery:
    made = Delivery.__new__(Delivery)
    made.inbox = SimpleNamespace(bytes=waiting)  # type: ignore[assignment]
    made.stopping, made._took_s = False, 0.0
    return made


def test_it_rests_as_long_as_the_shorter_of_its_last_two_transactions_took(slept: list[float]) -> None:
    """A broker's garbage collection slows one down, and is over; a busy machine slows all."""
    resting = delivery(0)
    for took in (0.010, 0.010, 0.040, 0.010, 0.040, 0.050, 0.001):
        resting._rest(took)
    assert slept == [LEAST_REST_S, 0.010, 0.010, 0.010, 0.010, MOST_REST_S, LEAST_REST_S]


def test_it_does_not_rest_while_much_waits(slept: list[float]) -> None:
    delivery(MUCH_BYTES)._rest(0.010)
    assert slept == []


def gathered(comes: list[str | None], waits: list[float]) -> tuple[list[str], list[float]]:
    """What a turn does with what comes, and how long it waited for each of those behind the first."""
    done: list[str] = []
    waited: list[float] = []

    def take(timeout: float) -> str | None:
        waited.append(timeout)
        return comes.pop(0)

    made = cast(Any, delivery(0))
    made.inbox = SimpleNamespace(bytes=0, take=take)
    made.restart, made.end, made._pending = False, None, None
    made.state = SimpleNamespace(position=7, committed=7)
    made._blocked = SimpleNamespace(answer_asks=lambda: None, go_back_where_cleared=lambda: None, stuck={})
    letting_go = SimpleNamespace(answer=lambda: None)
    made._frame_handler = SimpleNamespace(take=done.append, letting_go=letting_go)
    made._watch = SimpleNamespace(hangs=lambda *_: None)
    made._unavailable = SimpleNamespace(aside={}, gone_back=lambda: None, to_be_looked_at=lambda: False)
    made._transaction = SimpleNamespace(open=True, full=lambda _: False, waits_s=lambda _: waits.pop(0))
    made._commit = lambda: done.append("commit")
    made._turn()
    return done, waited[1:]


def test_where_the_transaction_waits_for_more_what_comes_goes_into_it(slept: list[float]) -> None:
    done, waited = gathered(["first", "second", None, "of the next one"], [0.03, 0.02, 9.0])
    assert done == ["first", "second", "commit"]
    assert waited == [0.03, 0.02]


def test_where_it_waits_for_nothing_it_ends_when_all_that_was_there_is_in_it(slept: list[float]) -> None:
    done, _ = gathered(["only", None], [0.0])
    assert done == ["only", "commit"]


def test_it_looks_round_seldom_where_there_is_nothing_to_look_for() -> None:
    made = cast(Any, delivery(0))

    def idle_s(end: int | None, stuck: dict[str, int], inherited: bool, position: int) -> float:
        made.end, made.state = end, SimpleNamespace(position=position, committed=7)
        made._blocked = SimpleNamespace(stuck=stuck)
        made._unavailable = SimpleNamespace(to_be_looked_at=lambda: inherited)
        return float(made._idle_s())

    assert idle_s(None, {}, False, 7) == IDLE_S > LOOK_S
    assert idle_s(9, {}, False, 7) == idle_s(None, {"p": 1}, False, 7) == LOOK_S
    assert idle_s(None, {}, True, 7) == idle_s(None, {}, False, 8) == LOOK_S


def test_who_waits_for_nothing_is_not_held_up_by_an_empty_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox()
    monkeypatch.setattr(inbox._arrived, "wait", lambda _: pytest.fail("waited"))
    assert inbox.take(0.0) is None


@pytest.mark.parametrize(
    ("is_open", "complete", "leaves"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_what_is_left_is_committed_and_known_to_be_all(is_open: bool, complete: bool, leaves: bool) -> None:
    """An owner whose plan is older than what the mappings begin with knows a part; the table may know all
    again, and what it would leave stands in front of that, epoch after epoch."""
    made, key = delivery(0), ("id", 0)
    state = made.state = StagingPartitionState("staging-0", 0, {key: 7}, complete)
    state.pipelines[key] = 2
    made._transaction = cast(
        Any, SimpleNamespace(open=is_open, has_producer=lambda: True, mappings_known=(5, 3))
    )
    assert made._leave() == (Snapshot(5, True, 3, {key: 7}, {key: 2}) if leaves else None)
