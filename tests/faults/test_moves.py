"""A short slice of the moves that are killed, for CI, and the proof that the oracle is no show. All of them:
python -m tests.faults.moves (CONTRIBUTING.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.moves.play import Player
from tests.faults.moves.stage import World
from tests.faults.rounds.play import BAD

SEED = int(os.environ.get("VERBATIM_SEED", "1"))
KILLED = (
    ("move-group", 0, None),
    ("cutover", 0, "0 control handed-over, after 2"),
    ("cutover --topic", 1, "0 control promotion promoted, before 2"),
    ("demote", 0, None),
    ("back", 1, "0 file's name, after 1"),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("moves")) as world:
        yield world


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("scenario", "number", "point"), KILLED)
def test_killed_at_a_step_a_move_comes_to_its_end_and_each_group_reads_each_record_once(
    world: World, tmp_path: Path, scenario: str, number: int, point: str | None
) -> None:
    """Promise: a command may be run again at any time; nothing is lost, nothing comes twice."""
    result = Player(world, SEED, tmp_path).play(scenario, number, point)
    assert result.verdict != BAD and result.kills, result.line()
    assert result.records and result.read >= result.records, result.line()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("broken", "scenario", "number", "point", "said"),
    [
        ("done-before", "move-group", 2, "0 group's offsets, before 1", "twice"),
        ("one-off", "cutover", 2, "0 step link 1", "lost"),
        ("ends-off", "cutover", 4, "0 step link 1", "was written down"),
        ("not-given-back", "demote", 2, "0 step link 1", "is promoted"),
    ],
)
def test_a_command_that_is_broken_is_found_out(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
    scenario: str,
    number: int,
    point: str,
    said: str,
) -> None:
    monkeypatch.setattr(world, "broken", broken)
    result = Player(world, SEED, tmp_path).play(scenario, number, point)
    assert result.verdict == BAD
    assert any(said in problem for problem in result.problems), result.line()
