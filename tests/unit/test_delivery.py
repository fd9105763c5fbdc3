"""How long a delivery rests between transactions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from common import outside
from deduplicator.delivery import LEAST_REST_S, MOST_REST_S, SMALL_BYTES, Delivery


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    naps: list[float] = []
    monkeypatch.setattr(outside, "sleep", naps.append)
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
    delivery(SMALL_BYTES)._rest(0.010)
    assert slept == []
