"""The deduplicator lets go of partitions that are promoted, and says how far they were delivered."""

from __future__ import annotations

from typing import Any

from common.link.control_kinds import LetGo
from common.link.control_state import Control
from common.link.partitioning import staging_partition
from deduplicator.lane.letting_go import LettingGo
from deduplicator.lane.partition_state import StagingPartitionState
from tests.support.control_json import encode

COUNT = 3


class Log:
    """Stands in for the control topic, and for the lane's term."""

    def __init__(self) -> None:
        self.state = Control()
        self.control = self
        self.answers: list[LetGo] = []
        self.ended = False

    def over(self, now: float) -> bool:
        return self.ended

    def append_all(self, records: list[LetGo], deadline: Any) -> None:
        self.answers += records


def taken(log: Log, **more: Any) -> None:
    fields = {"topic": "t", "topic_id": "id", "destination": "t", "ends": [5] * 8, **more}
    log.state.apply(log.state.position, encode("promotion", state="promoting", **fields))


def test_each_owner_answers_for_its_own_partitions_once() -> None:
    log = Log()
    taken(log)
    for owned in range(COUNT):
        state = StagingPartitionState(f"staging-{owned}", owned, {("id", p): 5 for p in range(4)})
        letting_go = LettingGo(log, state, COUNT)  # type: ignore[arg-type]
        answers = letting_go.due()
        assert {a.partition for a in answers} == {
            p for p in range(8) if staging_partition("t", p, COUNT) == owned
        }
        assert all((a.next, a.answers) == (5 if a.partition < 4 else 0, 0) for a in answers)
        letting_go.answer()
        assert letting_go.due() == []
        taken(log)  # another run
        assert {a.answers for a in letting_go.due()} == ({log.state.position - 1} if answers else set())
        log.state = Control()
        taken(log)
    assert sorted(a.partition for a in log.answers) == list(range(8))


def test_an_owner_whose_epoch_is_over_answers_nothing() -> None:
    """Promise: whoever answers is fenced by nobody who does not know: the next one would bring what lies
    beyond the end."""
    log = Log()
    taken(log, ends=[5])
    state = StagingPartitionState("s", staging_partition("t", 0, COUNT), {("id", 0): 5})
    letting_go = LettingGo(log, state, COUNT)  # type: ignore[arg-type]
    log.ended = True
    assert letting_go.due() == []
    log.ended = False
    assert [(a.partition, a.next, a.answers) for a in letting_go.due()] == [(0, 5, 0)]
