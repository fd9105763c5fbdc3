"""When the deduplicator starts the state query, and starts it again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deduplicator import main
from deduplicator.main import FOLD_AGAIN_S, Deduplicator


@pytest.mark.parametrize("bounded", [False, True])
def test_the_state_query_starts_behind_the_lanes_and_again_some_time_after_it_died(
    monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    started: list[Any] = []

    def start(_: Any, on_folded: Any) -> Any:
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
