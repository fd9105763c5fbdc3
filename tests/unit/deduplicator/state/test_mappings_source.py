"""When the stream of mappings has something new for the state query."""

from __future__ import annotations

import pytest

from deduplicator.state.mappings_source import CONFIG_OPTION, LOOK_S, MappingsStreamReader


def test_the_stream_moves_now_and_then_though_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: mappings that a batch left unfolded, since a fold was not due yet, are folded before long even
    when no other comes: the query has another batch."""
    now = 100 * LOOK_S
    monkeypatch.setattr("deduplicator.state.mappings_source.time.time", lambda: now)
    reader = MappingsStreamReader({CONFIG_OPTION: "{}", "topic": "mappings"})
    monkeypatch.setattr(reader, "_bounds", lambda: ({0: 3}, {0: 8}))
    first = reader.latestOffset()
    assert first["0"] == 8
    now += LOOK_S / 2
    assert reader.latestOffset() == first
    now += LOOK_S / 2
    later = reader.latestOffset()
    assert later != first and later["0"] == 8
    (partition,) = reader.partitions(reader.initialOffset(), later)
    assert partition.ranges == {0: (3, 8)}  # type: ignore[attr-defined]
