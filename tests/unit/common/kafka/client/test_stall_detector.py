"""When a consumer counts as silent. That brokers answer as the admin client here is shown in
tests/integration/test_tails.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.kafka.client.stall_detector import Positions, StallDetector

AT = ("orders", 0)


@dataclass
class Answer:
    offset: int
    late: bool = False

    def result(self, _: float) -> Answer:
        if self.late:
            raise TimeoutError
        if self.offset < 0:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return self


@dataclass
class Broker:
    """Answers each question with the end that the partition has when it is asked."""

    end: int = 0
    late: bool = False
    asked: list[list[str]] = field(default_factory=list)

    def list_offsets(self, wanted: Any, **_: Any) -> dict[Any, Answer]:
        self.asked.append([at.topic for at in wanted])
        return {at: Answer(self.end, self.late) for at in wanted}


@dataclass
class Looks:
    """`look` is one, ten seconds after the one before."""

    broker: Broker
    monkeypatch: pytest.MonkeyPatch
    now: float = 0.0

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(ports, "monotonic", lambda: self.now)
        self.silence = StallDetector(self.broker, 10.0)  # type: ignore[arg-type]

    def look(self, positions: Positions) -> list[tuple[str, int]]:
        self.now += 10.0
        return self.silence.found(lambda: positions)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(Broker(), monkeypatch)


def test_who_stands_still_below_an_end_is_silent_and_its_successor_has_time(looks: Looks) -> None:
    looks.broker.end = 5
    assert [looks.look({AT: 3}) for _ in range(6)] == [[], [], [AT], [], [AT], []]


def test_who_moves_however_slowly_is_not(looks: Looks) -> None:
    looks.broker.end = 100
    assert not any(looks.look({AT: position}) for position in range(10))


def test_who_has_all_there_is_is_not_though_it_stands_still(looks: Looks) -> None:
    looks.broker.end = 3
    assert not any(looks.look({AT: 3}) for _ in range(6))


def test_an_end_is_known_for_a_whole_interval_before_it_counts(looks: Looks) -> None:
    looks.broker.end = 3
    assert not looks.look({AT: 3})
    assert not looks.look({AT: 3})
    looks.broker.end = 4
    assert [looks.look({AT: 3}) for _ in range(3)] == [[], [], [AT]]


@pytest.mark.parametrize(("end", "late"), [(-1, False), (5, True)])
def test_where_nobody_answers_nothing_is_known(looks: Looks, end: int, late: bool) -> None:
    looks.broker.end, looks.broker.late = end, late
    assert not any(looks.look({AT: 3}) for _ in range(6))


def test_what_is_paused_for_a_while_is_not_silent(looks: Looks) -> None:
    looks.broker.end = 5
    assert not any(looks.look(positions) for positions in ({AT: 3}, {AT: 3}, {}, {AT: 3}, {AT: 3}))
    assert looks.broker.asked == [["orders"], ["orders"], ["orders"], ["orders"]]


def test_between_looks_nothing_is_asked(looks: Looks) -> None:
    looks.look({AT: 3})
    for _ in range(100):
        looks.now += 0.05
        looks.silence.found(lambda: pytest.fail("no look is due"))
    assert looks.broker.asked == [["orders"]]
