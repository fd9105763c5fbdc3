"""When a transaction ends though more waits for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common import outside
from deduplicator.owned import Owned
from deduplicator.transaction import (
    LONGEST_S,
    PARTITION_S,
    TRANSACTION_BYTES,
    TRANSACTION_RUNS,
    TRANSACTION_S,
    Transaction,
)

NOW = 1000.0


@pytest.fixture
def transaction(monkeypatch: pytest.MonkeyPatch) -> Transaction:
    """One that was opened at NOW."""
    monkeypatch.setattr(outside, "monotonic", lambda: NOW)
    made = Transaction({"provenance": False}, Owned("staging-0", 0), None, lambda *_: False)
    fencing: Any = SimpleNamespace(client=object(), begin=lambda: None)
    made.use(fencing)
    made.begin()
    return made


@pytest.mark.parametrize(
    ("partitions", "seconds"),
    [(1, TRANSACTION_S), (31, TRANSACTION_S), (125, 125 * PARTITION_S), (10_000, LONGEST_S)],
)
def test_the_more_partitions_it_moves_the_longer_it_may_take(
    transaction: Transaction, partitions: int, seconds: float
) -> None:
    moved: Any = dict.fromkeys(range(partitions))
    transaction.moved = moved
    assert not transaction.full(NOW + seconds - 0.001)
    assert transaction.full(NOW + seconds + 0.001)


def test_bytes_and_runs_end_it_before_its_time(transaction: Transaction) -> None:
    assert not transaction.full(NOW)
    transaction.bytes = TRANSACTION_BYTES
    assert transaction.full(NOW)
    transaction.bytes, transaction._runs = 0, TRANSACTION_RUNS
    assert transaction.full(NOW)
