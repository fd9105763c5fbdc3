"""How long a transaction gathers, and what commits that queue make of that."""

from __future__ import annotations

import pytest

from deduplicator.lane.transaction_linger import (
    ALONE_S,
    LINGER_S,
    MOST_MUCH_S,
    MUCH_BYTES,
    MUCH_S,
    QUEUED_TIMES,
    TRANSACTION_S,
    TransactionLinger,
)


def after(*commits_s: float) -> TransactionLinger:
    linger = TransactionLinger()
    for took_s in commits_s:
        linger.committed(took_s)
    return linger


def test_what_holds_much_waits_for_more_for_a_while_and_what_holds_little_ends_at_once() -> None:
    linger = TransactionLinger()
    assert linger.waits_s(0.0, MUCH_BYTES - 1) == 0
    assert linger.waits_s(0.0, MUCH_BYTES) == LINGER_S
    assert linger.waits_s(MUCH_S - LINGER_S / 2, MUCH_BYTES) == pytest.approx(LINGER_S / 2)
    assert linger.waits_s(MUCH_S, MUCH_BYTES) == linger.waits_s(MUCH_S + 1, MUCH_BYTES) == 0


@pytest.mark.parametrize(
    ("commits_s", "much_s"),
    [
        ((), MUCH_S),
        ((0.3,), MUCH_S),  # nothing to compare it with
        ((0.005, 0.008, 0.008), MUCH_S),  # not queued for long
        ((0.2, 0.2, 0.205), MUCH_S),  # a long way, and no queue
        ((0.005, 0.1), MUCH_S),  # one alone: a garbage collection
        ((0.005, 0.1, 0.006), MUCH_S),
        ((0.005, 0.1, 0.045), QUEUED_TIMES * 0.040),
        ((0.005, 0.045, 0.1), QUEUED_TIMES * 0.040),
        ((0.005, 0.17), QUEUED_TIMES * (0.165 - ALONE_S)),  # longer than any
        ((0.005, 0.5, 0.04), QUEUED_TIMES * 0.035),
        ((0.2, 0.26, 0.26), QUEUED_TIMES * 0.060),
        ((0.005, 0.5, 0.5), MOST_MUCH_S),
        ((0.005, 0.5, 0.5, 0.005), MUCH_S),  # the queue has gone
    ],
)
def test_it_gathers_for_longer_where_commits_queue(commits_s: tuple[float, ...], much_s: float) -> None:
    assert after(*commits_s).much_s == pytest.approx(much_s)


def test_where_commits_queue_what_holds_much_lasts_longer_and_waits_longer_for_a_frame() -> None:
    linger = after(0.005, 0.5, 0.5)
    longer_s = LINGER_S * MOST_MUCH_S / MUCH_S
    assert linger.waits_s(0.0, MUCH_BYTES) == pytest.approx(longer_s)
    assert linger.waits_s(MOST_MUCH_S - 0.01, MUCH_BYTES) == pytest.approx(0.01)
    assert linger.waits_s(MOST_MUCH_S, MUCH_BYTES) == 0
    assert not linger.over(MOST_MUCH_S - 0.01, MUCH_BYTES)
    assert linger.over(MOST_MUCH_S, MUCH_BYTES)


def test_what_holds_little_does_not_wait_and_is_over_as_ever_where_commits_queue() -> None:
    """A trickle over many partitions has long commits, too."""
    linger = after(0.005, 0.5, 0.5)
    assert linger.waits_s(0.0, MUCH_BYTES - 1) == 0
    assert not linger.over(TRANSACTION_S - 0.01, MUCH_BYTES - 1)
    assert linger.over(TRANSACTION_S, MUCH_BYTES - 1)


def test_one_with_input_is_over_after_a_quarter_of_a_second_where_none_queues() -> None:
    linger = after(0.005, 0.005)
    assert not linger.over(TRANSACTION_S - 0.01, MUCH_BYTES)
    assert linger.over(TRANSACTION_S, MUCH_BYTES)
