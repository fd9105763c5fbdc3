"""When a partition that stood still goes on: once what was skipped is delivered, not before, whatever comes between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from common.control import Control, encode
from common.frame import Frame
from deduplicator import stuck
from deduplicator.owned import Owned
from deduplicator.troubles import Troubles

KEY = ("id", 0)


class Log:
    """A control topic that remembers what is appended, and shows it at once."""

    def __init__(self) -> None:
        self.state = Control()
        self.kinds: list[str] = []

    def append(self, kind: str, _: Any, **fields: Any) -> None:
        self.kinds.append(kind)
        self.state.apply(self.state.position, encode(kind, **fields))


def troubles(position: int, reached: int) -> tuple[Troubles, Owned, Log]:
    log, owned = Log(), Owned("staging-0", 0)
    owned.position, owned.next = position, {KEY: reached}
    term: Any = SimpleNamespace(control=log, state=log.state)
    nobody: Any = SimpleNamespace(aside={}, look=lambda: None)
    return Troubles({"staging_partitions": 1}, term, owned, SimpleNamespace(), nobody), owned, log  # type: ignore[arg-type]


def frame(start: int, end: int) -> Frame:
    return Frame("c", "orders", "id", 0, start, end, end - start, "w")


def test_a_seen_frame_before_the_first_skipped_one_does_not_close_an_inherited_gap() -> None:
    """The first frame of a lane's epoch, empty, lies before the one that was skipped, and was never passed in a transaction."""
    first, owned, log = troubles(31, 10)
    first.skip(KEY, frame(10, 15), 31, stuck.REFUSED, "may not be written")
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
    found.skip(KEY, frame(12, 15), 40, stuck.MISSING, "missing")
    owned.next[KEY], owned.position = 15, 41
    found.close_gap(KEY, "orders")
    found.skip(KEY, frame(17, 20), 41, stuck.MISSING, "missing")
    owned.position = 42
    found.settle()
    assert "resumed" not in log.kinds and found.stuck[KEY].held == 40
    owned.next[KEY], owned.position = 20, 43
    found.settle()
    assert log.kinds[-1] == "resumed" and not found.stuck
