"""A partition that stands still: it asks less and less often, and is over when what it skipped has been
delivered."""

from __future__ import annotations

from itertools import pairwise

from common.link.halt_reasons import HaltReason
from deduplicator.lane.blocked_partition import FIRST_ASK_AGAIN_S, LAST_ASK_AGAIN_S, BlockedPartition


def test_it_asks_at_once_then_each_time_later_up_to_a_limit() -> None:
    trouble = BlockedPartition(HaltReason.MISSING, 40, 10, 15)
    now = 0.0
    asked: list[float] = []
    while len(asked) < 12:
        if trouble.asks_now(now):
            asked.append(now)
            assert not trouble.asks_now(now)
        now += FIRST_ASK_AGAIN_S / 2
    waits = [b - a for a, b in pairwise(asked)]
    assert asked[0] == 0.0 and waits[0] == FIRST_ASK_AGAIN_S
    assert waits == sorted(waits) and waits[1] == 2 * waits[0]
    assert waits[-1] == waits[-2] == LAST_ASK_AGAIN_S


def test_it_is_over_when_all_that_was_skipped_is_delivered() -> None:
    trouble = BlockedPartition(HaltReason.MISSING, 40, 10, 15)
    assert not trouble.closed(14, 100)
    assert trouble.closed(15, 41)


def test_it_is_not_over_before_the_reader_is_back_where_it_was() -> None:
    """Going back to the first skipped frame, those between are delivered again as seen: what was skipped
    among them for other reasons must not be trimmed before."""
    trouble = BlockedPartition(HaltReason.MISSING, 40, 10, 15, until=60)
    assert not trouble.closed(15, 59)
    assert trouble.closed(15, 60)
