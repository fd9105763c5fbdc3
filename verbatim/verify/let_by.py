"""Counts, of one reading of a partition, the records that a stage fails on and that `onError: tolerate` let
by: more of them than it says are a note. Pure.

They are no finding. What becomes of each record is the same; above the rate a halt was to come, which does
not come where the replicator has lost its position, or where an operator has accepted the loss of a record.
"""

from __future__ import annotations

from typing import Any

from verbatim.verify.comparison import PartitionReport


class LetBy:
    """Offsets ascend, versions too."""

    def __init__(self) -> None:
        self._at: tuple[int, int] | None = None
        """Version, and number of the window."""
        self._count = 0
        self._over: dict[int, tuple[int, int, str]] = {}
        """By version: the first offset above, how many windows have one, and what is tolerated."""

    def count(self, version: int, tolerate: dict[str, Any] | None, offset: int, failed: bool = True) -> None:
        """Take in the next one."""
        if tolerate is None or not failed:
            return
        most, per = tolerate["records"], tolerate["per"]
        at = version, offset // per
        self._count = self._count + 1 if at == self._at else 1
        self._at = at
        if self._count == most + 1:
            first, windows, _ = self._over.get(version, (offset, 0, ""))
            self._over[version] = first, windows + 1, f"{most} of {per}"

    def finish(self, report: PartitionReport) -> None:
        for version, (first, windows, rate) in self._over.items():
            report.note(
                f"pipeline version {version} tolerates {rate} offsets; more were let by in {windows:,} windows, the"
                f" first at source offset {first}: positions were lost, or an operator has accepted it"
            )
