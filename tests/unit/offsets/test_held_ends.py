"""Ends of destinations into which nothing was copied: believed only once the mappings are read to later."""

from __future__ import annotations

from typing import Any

import pytest

from common.kafka.client import topics
from common.kafka.client.topics import TopicInfo
from common.ports import Deadline
from offsets.held_ends import HeldEnds
from offsets.translation_index import Index
from tests.unit.offsets.test_translation_index import KEY, mapping


class Tail:
    """A tail whose mappings end at `written`, and are read up to `read`."""

    def __init__(self) -> None:
        self.index = Index(1000, 10**9)
        self.written, self.read = 1, 1

    def ends(self, deadline: Deadline) -> dict[int, int]:
        return {0: self.written}

    def has_read(self, ends: dict[int, int]) -> bool:
        return all(self.read >= end for end in ends.values())


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], int]:
    """What the brokers say of `orders`: its partitions' ends."""
    found = {("orders", 0): 9}

    def told(admin: Any, asked: Any, deadline: Deadline, committed: bool) -> dict[tuple[str, int], int]:
        assert committed, "a record in an open transaction may be the first of the link"
        return {at: found[at] for at in asked}

    monkeypatch.setattr(topics, "ends", told)
    monkeypatch.setattr(topics, "describe", lambda *_: {"orders": TopicInfo("orders", "id", 1)})
    return found


def test_an_end_is_told_once_the_mappings_are_read_to_where_they_ended_after_it(
    ends: dict[tuple[str, int], int],
) -> None:
    tail = Tail()
    held = HeldEnds(tail, None)  # type: ignore[arg-type]
    tail.index.add(mapping(7, 7, []), 0)
    partition = tail.index.partitions[KEY]
    tail.written = 2
    held.look(Deadline(1))
    held.tell()
    assert partition.held is None, "its first record may be in what was not read"
    ends["orders", 0] = 12
    held.look(Deadline(1))
    tail.read = 2
    held.tell()
    assert partition.held == 9, "the end that was seen before the mappings"


def test_a_record_that_was_committed_meanwhile_is_not_left_out(ends: dict[tuple[str, int], int]) -> None:
    tail = Tail()
    held = HeldEnds(tail, None)  # type: ignore[arg-type]
    tail.index.add(mapping(7, 7, []), 0)
    ends["orders", 0], tail.written = 11, 2
    held.look(Deadline(1))
    held.tell()
    tail.index.add(mapping(7, 8, [[7, 9, 1]]), 0)
    tail.read = 2
    held.tell()
    assert tail.index.partitions[KEY].translate(7, 7) == (9, True, None)


def test_where_copying_began_at_the_beginning_nobody_is_asked(ends: dict[tuple[str, int], int]) -> None:
    ends.clear()
    tail = Tail()
    tail.index.add(mapping(0, 0, []), 0)
    HeldEnds(tail, None).look(Deadline(1))  # type: ignore[arg-type]
