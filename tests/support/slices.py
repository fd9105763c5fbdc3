"""Where the default run takes a slice of many like cases and `pytest -m whole` the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def each(step: int, cases: Iterable[Any]) -> list[Any]:
    """Cases for `parametrize`, of which the default run takes the first and each `step`-th behind it."""
    return [
        pytest.param(case, marks=() if number % step == 0 else pytest.mark.whole)
        for number, case in enumerate(cases)
    ]
