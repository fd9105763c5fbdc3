"""Every careless version of the protocol is noticed, and the table that says by what is as it was
generated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import mutants
from tests.simulation.mutants import MUTANTS, Mutant

README = Path(__file__).parent / "README.md"
SCHEDULES = range(200)
"""Looked through where what was known to notice a mutant does no longer."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_careless_version_is_noticed(mutant: Mutant) -> None:
    assert mutants.hunt(mutant, SCHEDULES) is not None


def test_what_notices_a_mutant_finds_nothing_in_the_code_as_it_is() -> None:
    for by, names in {(m.killed_by, m.names) for m in MUTANTS if isinstance(m.killed_by, int)}:
        assert mutants.notices(by, names) is None


def test_the_table_is_as_generated() -> None:
    assert mutants.table() in README.read_text()
