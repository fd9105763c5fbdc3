"""Every careless version of the protocol is noticed, in the default run a slice of them; and the table that
says by what is as it was generated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import mutants
from tests.simulation.mutants import MUTANTS, Mutant
from tests.support.slices import each

README = Path(__file__).parent / "README.md"
SCHEDULES = range(200)
"""Looked through where what was known to notice a mutant does no longer."""


@pytest.mark.parametrize("mutant", each(6, MUTANTS), ids=lambda m: m.name)
def test_a_careless_version_is_noticed(mutant: Mutant) -> None:
    assert mutants.hunt(mutant, SCHEDULES) is not None


def test_what_notices_a_mutant_finds_nothing_in_the_code_as_it_is() -> None:
    known = {(m.killed_by, frozenset(m.way.items())) for m in MUTANTS if isinstance(m.killed_by, int)}
    for by, way in known:
        assert mutants.notices(by, **dict(way)) is None


def test_the_table_is_as_generated() -> None:
    assert mutants.table() in README.read_text()
