"""Which destination partitions are set aside, when, and until when; and which transactional ids are
nobody's."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from common import ports
from common.kafka.client import topics
from common.kafka.wire.protocol import KnownTransaction
from common.link.control_state import Control
from common.link.halt_reasons import HaltReason
from deduplicator.lane.transactional_ids import TransactionalIds
from deduplicator.lane.unavailable import FIRST_LOOK_S, GRACE_S, LAST_LOOK_S, Unavailable
from tests.support.control_json import encode

AT, OTHER = ("orders", 0), ("orders", 1)
ID = Uuid(1, 2)
LEADERLESS = {AT: KafkaError(KafkaError.LEADER_NOT_AVAILABLE)}


class Target:
    """An admin client that tells of one topic; `answers` False: it says nothing yet."""

    def __init__(self) -> None:
        self.leader: int | None = -1
        self.id = ID
        self.in_sync = 1
        self.least = "1"
        self.asked = 0
        self.answers = True

    def _future(self, value: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.answers:
            future.set_result(value)
        return future

    def describe_topics(self, wanted: Any, **_: Any) -> Any:
        self.asked += 1
        led = None if self.leader is None else SimpleNamespace(id=self.leader)
        partition = SimpleNamespace(id=0, leader=led, isr=[None] * self.in_sync, replicas=[None] * 2)
        return {"orders": self._future(SimpleNamespace(topic_id=self.id, partitions=[partition]))}

    def describe_configs(self, wanted: Any, **_: Any) -> Any:
        return {wanted[0]: self._future({"min.insync.replicas": SimpleNamespace(value=self.least)})}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(ports, "monotonic", lambda: now[0])
    return now


def unavailable(target: Target) -> Unavailable:
    return Unavailable(target, lambda topic: topics.id_text(ID))  # type: ignore[arg-type]


def test_who_refuses_again_after_the_grace_is_set_aside_and_nobody_sooner(clock: list[float]) -> None:
    found = unavailable(Target())
    assert found.refused(LEADERLESS, ("mappings",)) == []
    clock[0] += GRACE_S - 0.1
    assert found.refused(LEADERLESS, ("mappings",)) == []
    clock[0] += 0.2
    assert found.refused({**LEADERLESS, OTHER: LEADERLESS[AT]}, ("mappings",)) == [AT]
    assert found.aside[AT].reason == HaltReason.UNAVAILABLE and "orders-0" in found.aside[AT].detail


@pytest.mark.parametrize(
    "between",
    [
        {},
        {("mappings", 0): KafkaError(KafkaError._TRANSPORT), **LEADERLESS},
        {AT: KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)},
    ],
)
def test_a_target_that_is_down_as_a_whole_sets_nobody_aside(
    clock: list[float], between: dict[Any, KafkaError]
) -> None:
    """A thousand partitions would be halted one by one for a broker that is restarted."""
    found = unavailable(Target())
    found.refused(LEADERLESS, ("mappings",))
    clock[0] += 60
    assert found.refused(between, ("mappings",)) == []
    assert found.refused(LEADERLESS, ("mappings",)) == []


def test_an_election_that_ends_well_leaves_no_trace(clock: list[float]) -> None:
    found = unavailable(Target())
    found.refused(LEADERLESS, ())
    found.took([AT])
    clock[0] += 60
    assert found.refused(LEADERLESS, ()) == []


def set_aside(clock: list[float], target: Target) -> Unavailable:
    found = unavailable(target)
    found.set_aside(AT, KafkaError.LEADER_NOT_AVAILABLE, "no leader", clock[0])
    return found


@pytest.mark.parametrize("sick", [{"leader": -1}, {"leader": None}, {"least": "2"}, {"id": Uuid(3, 4)}])
def test_it_is_looked_at_ever_more_seldom_until_it_is_well(clock: list[float], sick: dict[str, Any]) -> None:
    target = Target()
    target.leader = 1
    well = dict(vars(target))
    vars(target).update(sick)
    found = set_aside(clock, target)
    found.look()
    assert target.asked == 0
    for _ in range(40):
        clock[0] += FIRST_LOOK_S
        found.look()
        found.look()
    assert AT in found.aside and 4 <= target.asked <= 80 / LAST_LOOK_S + 5
    vars(target).update({name: well[name] for name in sick})
    clock[0] += LAST_LOOK_S
    found.look()
    found.look()
    assert AT not in found.aside


def test_nobody_waits_for_the_answer(clock: list[float]) -> None:
    target = Target()
    target.answers = False
    found = set_aside(clock, target)
    clock[0] += FIRST_LOOK_S
    found.look()
    found.look()
    assert AT in found.aside and target.asked == 1


def test_one_that_fails_its_trial_is_set_aside_at_once_and_for_longer(clock: list[float]) -> None:
    """Metadata may call a broker well that is not."""
    target = Target()
    target.leader = 1
    found = set_aside(clock, target)
    clock[0] += FIRST_LOOK_S
    found.look()
    found.look()
    assert found.aside == {}
    assert found.refused({AT: KafkaError(KafkaError.INVALID_RECORD)}, ()) == [AT]
    assert found.aside[AT].pause_s == 2 * FIRST_LOOK_S


def test_a_topic_that_is_not_there_is_gone_and_the_line_says_what_to_do(clock: list[float]) -> None:
    found = unavailable(Target())
    found.set_aside(AT, KafkaError.UNKNOWN_TOPIC_OR_PART, "unknown", 0.0)
    assert found.aside[AT].reason == HaltReason.GONE
    assert "verbatim accept-destination orders" in found.aside[AT].detail


def test_an_answer_that_is_an_error_is_no_sign_of_health(clock: list[float]) -> None:
    found = unavailable(Target())
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
    assert not found._well(AT, future, future)


@pytest.mark.parametrize("leader", [-1, 1])
def test_what_was_inherited_is_looked_at_once_before_a_bounded_run_is_done(
    clock: list[float], leader: int
) -> None:
    """Well again, it is gone back for first."""
    target = Target()
    target.leader = leader
    found = unavailable(target)
    found.stood_still(AT, HaltReason.UNAVAILABLE, "it has no leader")
    assert found.to_be_looked_at()
    found.look()
    assert found.to_be_looked_at()
    found.look()
    assert (AT in found.aside, found.to_be_looked_at()) == ((True, False) if leader < 0 else (False, True))
    found.gone_back()
    assert not found.to_be_looked_at()


# transactional ids

BEFORE = KnownTransaction("Ongoing", 7, 3, 1000, frozenset({AT}))
RAISED = replace(BEFORE, state="PrepareAbort", epoch=4)


def ids(*given_up: tuple[int, int]) -> TransactionalIds:
    state = Control()
    for number, epoch in given_up:
        said = {"transactional_id": "l.0", "producer_id": number, "epoch": epoch}
        state.apply(state.position, encode("given-up", **said))
    return TransactionalIds(SimpleNamespace(state=state))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "nobodys"),
    [
        (BEFORE, RAISED, True),
        (BEFORE, None, False),
        (None, RAISED, False),
        # Its owner has ended it before it was fenced, and may begin another one when that is completed.
        (BEFORE, replace(BEFORE, state="PrepareAbort"), False),
        (BEFORE, replace(BEFORE, state="PrepareCommit"), False),
        # Another owner got the next epoch, and has ended a transaction of its own.
        (BEFORE, replace(RAISED, began_ms=2000), False),
        (BEFORE, replace(RAISED, epoch=5), False),
        (BEFORE, replace(RAISED, number=8), False),
    ],
)
def test_an_epoch_that_fencing_has_raised_is_nobodys_and_no_other(
    before: KnownTransaction | None, after: KnownTransaction | None, nobodys: bool
) -> None:
    assert ids().nobodys("l.0", before, after) is nobodys


def test_what_was_given_up_and_what_this_owner_had_is_nobodys() -> None:
    prepared = replace(BEFORE, state="PrepareCommit")
    assert ids((7, 3)).nobodys("l.0", prepared, prepared)
    assert not ids((7, 3), (7, 5)).nobodys("l.0", prepared, prepared), "the newest counts"
    assert not ids((7, 3)).nobodys("l.0.1", prepared, prepared)
    own = ids()
    own.have("l.0", 7, 3)
    assert own.nobodys("l.0", prepared, prepared)
    assert not own.nobodys("l.0", BEFORE, BEFORE), "not decided: what this owner sent may be on its way"
