"""A short slice of the fault rounds, for CI, and the proof that a round notices what it is there to notice.

The whole of them: python -m tests.faults.rounds (CONTRIBUTING.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.rounds.faults import deck
from tests.faults.rounds.play import BAD, GOOD, Player, deal
from tests.faults.rounds.world import World

SEED = int(os.environ.get("VERBATIM_SEED", "1"))
RECORDS = 10_000
PATIENCE = 2.0
"""CI machines are slow to start Spark."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("rounds")) as world:
        yield world


@pytest.mark.timeout(600)
def test_faults_one_after_the_other_and_two_at_once_change_nothing_that_arrives(
    world: World, tmp_path: Path
) -> None:
    """Promise: whatever breaks, each record arrives once, in order, word for word, its mapping is exact, and
    no transaction is left open. And lanes in Spark are found, to be killed."""
    player = Player(world, SEED, deck(), RECORDS, 1, tmp_path, patience=PATIENCE)
    try:
        result = player.play(
            1,
            [
                ["point/replicator-frame-acknowledged", "broker/kill-transaction-coordinator"],
                ["net/commit-arrives-late"],
                ["app/kill-replicator-worker"],
            ],
        )
    finally:
        player.drop_link()
    assert result.verdict == GOOD, result.line()
    assert result.records >= RECORDS


@pytest.mark.timeout(600)
def test_faults_as_the_seed_deals_them_change_nothing_that_arrives(world: World, tmp_path: Path) -> None:
    """Promise: the same, for a round of the long run, with lanes in processes of the applications' own
    instead of Spark."""
    faults = deck(light=True)
    player = Player(world, SEED + 2, faults, RECORDS, 1, tmp_path, patience=PATIENCE, light=True)
    try:
        result = player.play(1, deal(SEED, 1, list(faults), singly=False)[0])
    finally:
        player.drop_link()
    assert result.verdict != BAD, result.line()
    assert any(fault["reached"] for fault in result.faults), result.line()


@pytest.mark.timeout(600)
def test_a_round_notices_records_that_are_committed_but_not_delivered(world: World, tmp_path: Path) -> None:
    """Promise: the rounds are no show: production that now and then commits a position without its records is
    found out."""
    # What is lost is waited for in vain.
    player = Player(
        world,
        SEED + 1,
        deck(),
        RECORDS,
        1,
        tmp_path,
        "commit-without-records",
        PATIENCE,
        light=True,
        drained_s=15.0,
    )
    try:
        result = player.play(1, [["net/reset-target"]])
    finally:
        player.drop_link()
    assert result.verdict == BAD
    assert any("missing" in problem for problem in result.problems), result.line()
