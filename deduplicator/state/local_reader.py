"""Reads a Delta table that lies on this machine's disk, without Spark.

The first DataFrame of a session that has just started costs seconds of CPU, ten of them on a busy machine,
while nothing is delivered.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of the table's newest version; `folder` is absolute. Raises whatever deltalake or pyarrow
    does: Spark's reader says what is wrong with a table."""
    if unfit := {character for character in "%\\" if character in str(folder)}:
        # It decodes one and takes the other for a slash, and so may look into another folder.
        raise ValueError(f"its path has {' and '.join(sorted(unfit))}")
    from deltalake import DeltaTable

    found: list[dict[str, Any]] = DeltaTable(folder).to_pyarrow_table().to_pylist()
    return found
