"""One offset for what a group has read of both sides' records, against two logs and all that may be said of
them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from common.errors import KafkaTimeout
from common.link.offset_mappings import Mapping
from offsets import return_link
from offsets.readers import MappingTail
from offsets.return_link import settle
from offsets.translation_index import (
    AHEAD,
    BEFORE_HISTORY,
    NOTHING_COPIED,
    THINNED,
    Destination,
    PartitionIndex,
)
from offsets.two_way import INTERLEAVED, NOT_BACK_YET, cut

TO = Destination("orders", 0)
Record = tuple[str, int]
"""The side that it was produced at, and its number there."""


@dataclass
class Side:
    name: str
    log: list[Record | None] = field(default_factory=list)
    """None: a transaction's marker."""

    def produce(self) -> None:
        self.log.append((self.name, sum(r is not None and r[0] == self.name for r in self.log)))


@dataclass
class OneWay:
    """Copies what was produced at its source, in its order, and leaves out what came from its target."""

    source: Side
    target: Side
    index: PartitionIndex = field(default_factory=lambda: PartitionIndex(TO, 0))
    next: int = 0

    def copy(self, most: int) -> None:
        start, runs = self.next, list[list[int]]()
        self.next = min(self.next + most, len(self.source.log))
        if start == self.next and self.index.start is not None:
            return
        for offset in range(start, self.next):
            record = self.source.log[offset]
            if record is not None and record[0] == self.source.name:
                runs.append([offset, len(self.target.log), 1])
                self.target.log.append(record)
        if runs:
            self.target.log.append(None)
        at = TO.topic, TO.partition
        self.index.add(
            Mapping("c", "orders", "id", 0, start, self.next, *at, self.next, len(runs), 0, 0, runs)
        )


class World:
    def __init__(self) -> None:
        self.here, self.there = Side("here"), Side("there")
        self.going, self.coming = OneWay(self.here, self.there), OneWay(self.there, self.here)

    def act(self, what: str, most: int) -> None:
        if what in ("here", "there"):
            for _ in range(most):
                getattr(self, what).produce()
        else:
            getattr(self, what).copy(most)

    def fits(self, offset: int, at: int) -> bool:
        """Whether who has read all below `offset` here, and goes on from `at` there, reads each once."""
        read = {r for r in self.here.log[:offset] if r is not None}
        passed = {r for r in self.there.log[:at] if r is not None}
        return read == passed and read <= {r for r in self.there.log if r is not None}


ACTS = st.lists(
    st.tuples(st.sampled_from(["here", "there", "going", "coming"]), st.integers(1, 4)), max_size=30
)


@settings(max_examples=400)
@given(ACTS, st.integers(0, 3), st.data())
def test_it_is_exact_where_it_says_so_and_refused_where_nothing_would_be(
    acts: list[tuple[str, int]], thinned: int, data: st.DataObject
) -> None:
    """Promise: an exact one repeats nothing and skips nothing. Refused for good is only what no offset there
    would be right for; what is told as inexact skips nothing, also of mappings that were thinned."""
    world = World()
    for act in acts:
        world.act(*act)
    for _ in range(thinned):
        world.going.index.thin()
        world.coming.index.thin()
    offset = data.draw(st.integers(0, len(world.here.log)))
    found = cut(world.going.index, world.coming.index, offset, 0, 0)
    event(str(found.why))
    fitting = [at for at in range(len(world.there.log) + 1) if world.fits(offset, at)]
    if found.exact:
        assert found.offset in fitting or (found.offset == 0 and not world.here.log[:offset])
    elif found.why == INTERLEAVED:
        assert thinned or not fitting
        assert found.offset is not None
        read = {r for r in world.here.log[:offset] if r is not None}
        assert {r for r in world.there.log[: found.offset] if r is not None} <= read
    else:
        assert found.why in (AHEAD, NOT_BACK_YET, BEFORE_HISTORY, NOTHING_COPIED, *[THINNED] * bool(thinned))
        for link in (world.going, world.coming, world.going):
            link.copy(1000)
        again = cut(world.going.index, world.coming.index, offset, 0, 0)
        assert again.exact or again.why == INTERLEAVED or thinned, again


def test_what_stands_between_there_and_was_not_read_is_not_left_out() -> None:
    """Promise: a1 and b1 are read here; there stand b1, b2, a1, a2. Behind a1, b2 would be skipped; before
    it, a1 read again."""
    world = World()
    for act in (
        ("there", 1),
        ("here", 1),
        ("coming", 9),
        ("there", 1),
        ("going", 9),
        ("here", 1),
        ("going", 9),
    ):
        world.act(*act)
    for link in (world.coming, world.going):
        link.copy(9)
    assert [r for r in world.here.log if r] == [("here", 0), ("there", 0), ("here", 1), ("there", 1)]
    assert [r for r in world.there.log if r] == [("there", 0), ("there", 1), ("here", 0), ("here", 1)]
    assert cut(world.going.index, world.coming.index, 2, 0, 0).why == INTERLEAVED
    # Once all is read that stands before it there, the group can go.
    end = cut(world.going.index, world.coming.index, len(world.here.log), 0, 0)
    assert end.exact and end.offset is not None and world.fits(len(world.here.log), end.offset)


@pytest.mark.parametrize("begun", [True, False])
def test_nothing_is_moved_while_the_link_back_has_said_nothing(begun: bool) -> None:
    world = World()
    world.act("here", 3)
    world.act("going", 3)
    back = world.coming.index if begun else None
    assert cut(world.going.index, back, 3, 0, 0).why == NOT_BACK_YET


def test_a_group_that_has_read_only_what_came_from_there_goes_there() -> None:
    """Promise: where nothing is produced on this side, too."""
    world = World()
    for act in (("there", 3), ("coming", 9), ("going", 9), ("coming", 9)):
        world.act(*act)
    for offset, at in ((0, 0), (2, 2), (4, 3)):
        assert cut(world.going.index, world.coming.index, offset, 0, 0) == (at, True, None)


def test_a_link_back_that_began_later_takes_what_stood_there_for_read() -> None:
    """Promise: what it does not copy, since it began behind it, is neither told apart nor read again."""
    world = World()
    world.act("here", 3)
    world.act("going", 3)
    origin = len(world.there.log)
    world.coming.next = origin
    world.act("there", 2)
    world.act("coming", 9)
    behind = cut(world.going.index, world.coming.index, 3, 0, origin)
    assert behind.exact and behind.offset == origin
    assert cut(world.going.index, world.coming.index, 1, 0, origin).why == INTERLEAVED


class Tail:
    """Mappings of which some lie in a transaction that is open for a while."""

    def __init__(self, open_for: int) -> None:
        self.open_for = open_for

    def ends(self, deadline: object) -> dict[int, int]:
        return {0: 5}

    def catch_up(self) -> bool:
        self.open_for -= 1
        return True

    def has_read(self, ends: dict[int, int]) -> bool:
        return ends == {0: 5} and self.open_for < 0


def test_mappings_of_open_transactions_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: a copy that a group has read is known; one whose transaction never ends is named."""
    tail = Tail(open_for=2)
    settle(cast(MappingTail, tail))
    assert tail.open_for == -1
    monkeypatch.setattr(return_link, "SETTLED_S", 0.1)
    with pytest.raises(KafkaTimeout, match="stays open"):
        settle(cast(MappingTail, Tail(open_for=10**6)))
