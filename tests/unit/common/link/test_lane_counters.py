"""How often a lane says what it has done."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import orjson

from common.link.lane_counters import INTERVAL_S, UNCHANGED_S, Counters
from common.link.lane_work import Work
from common.link.link_status import SILENT_MS


class Producer:
    def __init__(self) -> None:
        self.said: list[int] = []

    def produce(self, topic: str, value: bytes, key: bytes, on_delivery: Any) -> None:
        self.said.append(orjson.loads(value)["records"])


def test_what_is_new_is_said_soon_and_what_is_not_now_and_then() -> None:
    """Who hears nothing of a lane for longer takes it for one that does not run."""
    lane, producer = Counters("replicator", 1, 1, 0, "positions"), Producer()
    begun = 1000.0

    def looks(at: float, records: int) -> None:
        if lane.due(begun + at):
            lane.write(cast(Any, producer), begun + at, Work(Counter(records=records)))

    looks(0.0, 0)
    looks(INTERVAL_S - 0.1, 1)
    assert producer.said == [0]
    looks(INTERVAL_S, 1)
    looks(2 * INTERVAL_S, 1)
    assert producer.said == [0, 1]
    looks(INTERVAL_S + UNCHANGED_S - 0.1, 1)
    assert producer.said == [0, 1]
    looks(2 * INTERVAL_S + UNCHANGED_S, 1)
    assert producer.said == [0, 1, 1]
    looks(3 * INTERVAL_S + UNCHANGED_S, 2)
    assert producer.said == [0, 1, 1, 2]
    assert UNCHANGED_S + INTERVAL_S < SILENT_MS / 1000
