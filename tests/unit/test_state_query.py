"""When the deduplicator starts the state query, and starts it again."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from common import outside
from common.control import Control
from common.health import Health
from deduplicator import main
from deduplicator.main import FOLD_AGAIN_S, FOLD_BYTES, FOLD_MAPPINGS, FOLD_S, Deduplicator
from deduplicator.state import FoldResult
from tests.simulation.world import SETTINGS


@pytest.mark.parametrize("bounded", [False, True])
def test_the_state_query_starts_behind_the_lanes_and_again_some_time_after_it_died(
    monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    started: list[Any] = []

    def start(_: Any, due: Any, on_folded: Any) -> Any:
        started.append(SimpleNamespace(isActive=True, exception=lambda: "no slot"))
        return started[-1]

    monkeypatch.setattr(main, "start_state_query", start)
    application = Deduplicator.__new__(Deduplicator)
    application.bounded, application.state_query = bounded, None
    application.state, application._fold_again_at = None, 20.0  # type: ignore[assignment]

    def folding_at(now: float) -> int:
        application._keep_folding(now)
        return len(started)

    assert folding_at(19.9) == 0
    if bounded:
        assert folding_at(1000.0) == 0
        return
    assert folding_at(20.0) == folding_at(1000.0) == 1
    started[0].isActive = False
    assert folding_at(1001.0) == 2
    started[1].isActive = False
    assert folding_at(1001.0 + FOLD_AGAIN_S - 0.1) == 2
    assert folding_at(1001.0 + FOLD_AGAIN_S) == 3


def test_a_fold_is_due_after_so_much_of_staging_so_many_mappings_or_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(outside, "monotonic", lambda: now)
    application = Deduplicator.__new__(Deduplicator)
    application.health = Health("deduplicator")
    application.control = SimpleNamespace(refresh=lambda _: Control())  # type: ignore[assignment]
    application.settings, application.admin, application.term = SETTINGS, None, 1  # type: ignore[assignment]
    application._folded_at, application._folded_with = -math.inf, {}

    def due(**counters: int) -> bool:
        application.health.counters = {f"{name}_total": value for name, value in counters.items()}
        return application._fold_due()

    def folded() -> None:
        application._folded(FoldResult({}, {}, {}, 0, 0, {}, 0, 0.0))

    assert due(), "the first one, whatever was before"
    due(bytes=FOLD_BYTES, mappings=FOLD_MAPPINGS)
    folded()
    assert not due(bytes=FOLD_BYTES, mappings=FOLD_MAPPINGS)
    now += FOLD_S - 1
    assert not due(bytes=2 * FOLD_BYTES - 1, mappings=2 * FOLD_MAPPINGS - 1)
    assert due(bytes=2 * FOLD_BYTES, mappings=0)
    assert due(bytes=0, mappings=2 * FOLD_MAPPINGS)
    now += 1
    assert due(bytes=0, mappings=0)
    folded()
    assert not due(bytes=0, mappings=0)
