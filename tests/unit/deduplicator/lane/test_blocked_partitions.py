"""When a partition that stood still goes on: once what was skipped is delivered, not before, whatever comes
between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common.link import control_kinds
from common.link.control_kinds import ControlRecord
from common.link.control_state import Control
from common.link.frame import Frame
from common.link.halt_reasons import HaltReason
from deduplicator.lane.blocked_partitions import BlockedPartitions
from deduplicator.lane.partition_state import StagingPartitionState
from deduplicator.lane.transaction import Again
from tests.support.control_json import encode

KEY = ("id", 0)


class Log:
    """A control topic that remembers what is appended, and shows it at once."""

    def __init__(self) -> None:
        self.state = Control()
        self.kinds: list[str] = []

    def append(self, record: ControlRecord, _: Any) -> None:
        self.kinds.append(record.kind)
        self.state.apply(self.state.position, control_kinds.encode(record, "link"))


def troubles(position: int, reached: int) -> tuple[BlockedPartitions, StagingPartitionState, Log]:
    log, owned = Log(), StagingPartitionState("staging-0", 0)
    owned.position, owned.next = position, {KEY: reached}
    term: Any = SimpleNamespace(control=log, state=log.state)
    nobody: Any = SimpleNamespace(aside={}, look=lambda: None)
    plan: Any = SimpleNamespace(staging_partitions=1)
    return BlockedPartitions(plan, term, owned, nobody, nobody), owned, log


def frame(start: int, end: int) -> Frame:
    return Frame("c", "orders", "id", 0, start, end, end - start, "w")


def test_a_seen_frame_before_the_first_skipped_one_does_not_close_an_inherited_gap() -> None:
    """The first frame of a lane's epoch, empty, lies before the one that was skipped, and was never passed in
    a transaction."""
    first, owned, log = troubles(31, 10)
    first.skip(KEY, frame(10, 15), 31, HaltReason.REFUSED, "may not be written")
    second, owned, _ = troubles(30, 10)
    second.term = first.term
    second.inherit_holds(30)
    second.close_gap(KEY, "orders")  # the empty frame at 30, [10, 10)
    owned.position = 31
    second.settle()
    assert log.kinds == ["halted"] and KEY in second.stuck
    assert second.first_returning(40) == 31
    owned.next[KEY], owned.position = 15, 32  # the frame at 31 is let in now
    second.settle()
    assert log.kinds == ["halted", "resumed"] and not second.stuck


def test_a_gap_that_opens_again_in_the_transaction_that_closed_it_stays_open() -> None:
    found, owned, log = troubles(40, 10)
    found.skip(KEY, frame(12, 15), 40, HaltReason.MISSING, "missing")
    owned.next[KEY], owned.position = 15, 41
    found.close_gap(KEY, "orders")
    found.skip(KEY, frame(17, 20), 41, HaltReason.MISSING, "missing")
    owned.position = 42
    found.settle()
    assert "resumed" not in log.kinds and found.stuck[KEY].held == 40
    owned.next[KEY], owned.position = 20, 43
    found.settle()
    assert log.kinds[-1] == "resumed" and not found.stuck


def go_to(found: BlockedPartitions, destination: str) -> None:
    said = {"topic": "orders", "topic_id": "id", "partitions": 1, "max_message_bytes": 1}
    state = found.term.state
    state.apply(state.position, encode("destination", **said, destination=destination))


def test_what_is_set_aside_again_is_not_read_again_unless_its_extent_is_unknown() -> None:
    """Each trial would read all of staging since the first frame skipped, and those beside it would wait for
    that."""
    aside: Any = SimpleNamespace(reason=HaltReason.UNAVAILABLE, detail="why")
    at = ("orders", 0)
    found, owned, log = troubles(31, 10)
    go_to(found, "orders")
    found.skip(KEY, frame(10, 15), 31, HaltReason.UNAVAILABLE, "why")
    owned.position = 40
    with pytest.raises(Again):
        found.go_back_where_cleared()
    assert found.first_returning(40) == 31
    found._unavailable.aside[at] = aside
    found.stay([at])
    assert found.first_returning(40) == 40
    found.go_back_where_cleared()
    found.settle()
    assert log.kinds == ["halted"], "it stands still, and is held"
    later, _, _ = troubles(30, 10)
    later.term = found.term
    stood: list[Any] = []
    later._unavailable = SimpleNamespace(  # type: ignore[assignment]
        aside={at: aside}, stood_still=lambda *args: stood.append(args), look=lambda: None
    )
    later.inherit_holds(40)
    later.stay([at])
    assert later.first_returning(40) == 31
    assert stood == [(at, HaltReason.UNAVAILABLE, "why")], "not tried before it was looked at"


def test_what_could_not_be_written_for_want_of_dead_letters_is_gone_back_for_once_they_can_be() -> None:
    blocked, owned, log = troubles(31, 10)
    state = log.state
    blocked.skip(KEY, frame(10, 15), 31, HaltReason.DEAD_LETTERS, "may not be made")
    blocked.go_back_where_cleared()
    refused: dict[str, Any] = {"topic": "dead", "topic_id": "d", "max_message_bytes": 9}
    state.apply(state.position, encode("dead-letters", **refused, refused="may not be made"))
    blocked.go_back_where_cleared()
    state.apply(state.position, encode("dead-letters", **refused))
    blocked._unavailable.aside["dead", owned.partition] = SimpleNamespace(detail="")  # type: ignore[assignment]
    blocked.go_back_where_cleared()
    blocked._unavailable.aside.clear()
    with pytest.raises(Again, match="dead: fit again"):
        blocked.go_back_where_cleared()
    assert blocked.first_returning(40) == 31
    blocked.go_back_where_cleared()


def route_to(found: BlockedPartitions, name: str, **more: Any) -> None:
    said = {"topic": "orders", "topic_id": "id", "partitions": 1, "max_message_bytes": 1, "destination": name}
    found.term.state.apply(found.term.state.position, encode("route", **said, **more))


@pytest.mark.parametrize("inherited", [False, True])
def test_what_stands_still_for_a_route_goes_on_once_that_is_fit_and_not_before(inherited: bool) -> None:
    """Otherwise it would go back again and again, for a destination that was never at fault."""
    blocked, _, _ = troubles(31, 10)
    go_to(blocked, "copy")
    route_to(blocked, "de", refused="it is full")
    if inherited:
        blocked.skip(KEY, frame(10, 15), 31, HaltReason.REFUSED, "it is full")
    blocked.skip(KEY, frame(10, 15), 31, HaltReason.REFUSED, "it is full", to=("de", 0))
    blocked.go_back_where_cleared()
    route_to(blocked, "de")
    blocked._unavailable.aside["de", 0] = SimpleNamespace(reason="x")  # type: ignore[assignment]
    blocked.go_back_where_cleared()
    blocked._unavailable.aside.clear()
    with pytest.raises(Again, match="de: fit again"):
        blocked.go_back_where_cleared()
    assert blocked.first_returning(40) == 31


def test_a_record_without_a_key_stands_still_until_its_route_is_not_compacted() -> None:
    blocked, _, _ = troubles(31, 10)
    go_to(blocked, "copy")
    route_to(blocked, "de", compacted=True)
    blocked.skip(KEY, frame(10, 15), 31, HaltReason.NO_KEY, "no key", to=("de", 0))
    blocked.go_back_where_cleared()
    route_to(blocked, "de", compacted=False)
    with pytest.raises(Again, match="de: fit again"):
        blocked.go_back_where_cleared()
