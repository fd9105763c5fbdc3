"""What a rehearsed cutover tells apart: what passes by itself once producers and consumers stop, and what no
wait mends."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from common.errors import SettingsError
from tests.unit.verbatim.moves.test_moving import KEY, NAMES, PARTITION, a_link, a_row
from verbatim.commands.cutover import expected, rehearsal_lines
from verbatim.main import cli
from verbatim.moves import rehearsal_rules as rules
from verbatim.moves.link_progress import Link
from verbatim.moves.rehearsal import Doubted
from verbatim.moves.steps import Doubt


def test_what_is_left_is_told_apart_from_what_no_wait_mends() -> None:
    assert rules.lag(a_link(), {KEY: 10}, NAMES) == rules.Lag(0, [], [])
    assert rules.lag(a_link(mapped=4), {KEY: 10}, NAMES) == rules.Lag(
        6, [], ["t-0: delivered up to offset 4 of 10"]
    )
    found = rules.lag(a_link(mapped=4, stuck="halted"), {KEY: 10}, NAMES)
    assert (found.offsets, found.late) == (0, []) and found.never == ["t-0 stands still: halted"]
    assert rules.lag(Link({}, {}), {KEY: 10}, NAMES).late == ["t-0 is not copied yet"]
    # Nothing tells how far it is: from what is staged, or the origin, at most so much.
    assert rules.lag(a_link(False, mapped=None, staged=7), {KEY: 10}, NAMES).offsets == 3
    assert rules.lag(a_link(False, mapped=None, staged=None), {KEY: 10}, NAMES).offsets == 10


def test_a_partition_without_mappings_is_delivered_once_the_end_that_staging_had_is_passed() -> None:
    """Under load the deduplicator is never at staging's end."""
    first = Link({KEY: replace(PARTITION, mapped=None, staged=10)}, {0: (5, 9)})
    later = Link({KEY: replace(PARTITION, mapped=None, staged=30)}, {0: (8, 40)})
    assert rules.lag(rules.as_of(first, later), {KEY: 10}, NAMES).late == [
        "t-0: how far it is delivered can't be told yet"
    ]
    passed = replace(later, staging={0: (9, 40), 1: (0, 0)})
    assert rules.lag(rules.as_of(first, passed), {KEY: 10}, NAMES) == rules.Lag(0, [], [])
    # What was staged since is not what that end speaks of.
    assert rules.as_of(first, passed).partitions[KEY].staged == 10
    assert rules.as_of(Link({}, {}), passed).staging == passed.staging


def test_the_rest_takes_as_long_as_the_pace_says_or_nobody_knows() -> None:
    assert rules.seconds_left(300, 100, 10.0) == 5.0
    assert rules.seconds_left(300, 300, 10.0) is None
    assert rules.seconds_left(300, 400, 10.0) is None


def test_a_transaction_that_is_open_at_both_looks_is_told() -> None:
    before, stable = {("t", 0): 9, ("t", 1): 9, ("t", 2): 9}, {("t", 0): 4, ("t", 1): 4, ("t", 2): 9}
    found = rules.held_open(before, stable, {("t", 0): 4, ("t", 1): 6, ("t", 2): 9})
    assert len(found) == 1 and found[0].startswith("t-0: a transaction is open from offset 4")


def test_a_group_at_what_is_not_copied_yet_is_no_doubt_unless_more_copies_would_not_mend_it() -> None:
    passing, not_late, never = a_row("written"), a_row("written", exact=False), a_row("beyond-source")
    assert rules.drained_first([passing, not_late, never], [True, False, True]) == (
        [not_late, never],
        [passing],
    )


def test_a_group_that_is_moved_on_while_it_is_looked_at_is_not_ahead() -> None:
    first = replace(a_row("target-ahead", offset=12), committed=14)
    assert rules.passed(first, a_row("in-step", offset=14))
    assert not rules.passed(first, a_row("target-ahead", offset=13))
    assert not rules.passed(first, None)
    # A group that is in use at the target stays so, wherever it stands.
    assert not rules.passed(replace(a_row("active", offset=12), committed=14), a_row("active", offset=15))


def test_the_end_of_a_rehearsal_tells_every_doubt_and_how_long_it_takes() -> None:
    doubts = [Doubted("lag", "t-0 stands still: halted"), Doubted("groups", "group g: beyond-source")]
    run: Any = SimpleNamespace(doubts=doubts, expected={"link": 0.21, "lag": 3.0}, expected_s=3.21)
    lines = rehearsal_lines(run, Doubt("no"))
    assert lines[:2] == [
        "doubt   lag       t-0 stands still: halted",
        "doubt   groups    group g: beyond-source",
    ]
    assert lines[2] == "a cutover stands still for about 3 s: link 0.2 s, lag 3.0 s"
    assert lines[3].startswith("REFUSED")
    assert expected(run) == {
        "doubts": [
            {"step": "lag", "what": "t-0 stands still: halted"},
            {"step": "groups", "what": "group g: beyond-source"},
        ],
        "expected": {"link": 0.21, "lag": 3.0},
        "expected_seconds": 3.21,
    }
    run = SimpleNamespace(doubts=[], expected={}, expected_s=0.0)
    assert rehearsal_lines(run, None) == ["ok: nothing would stop a cutover now"]


@pytest.mark.parametrize("alone", ["--rehearse", "--undo"])
@pytest.mark.parametrize("more", [["--topic", "t"], ["--producers-first"], ["--dry-run"]])
def test_what_is_of_the_whole_link_goes_with_no_single_topics(alone: str, more: list[str]) -> None:
    environ = {
        "APPLICATION_NAME": "l",
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "s:1",
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "t:1",
        "KAFKA_CLUSTERS_SOURCE_TOPIC": "t",
    }
    found = CliRunner().invoke(cli.commands["cutover"], [alone, *more], env=environ)
    assert isinstance(found.exception, SettingsError) and found.exception.exit_code == 2
    assert str(found.exception).startswith(f"{alone}: goes with no --topic")
