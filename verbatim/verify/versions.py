"""Which version of the link's pipeline the records of a partition are of, as the mappings say it. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

Steps = list[tuple[int, int]]
"""First offset, version."""


@dataclass
class Versions:
    """Of both sides where each version begins; kept only where it changes."""

    _source: Steps = field(default_factory=list)
    _destination: Steps = field(default_factory=list)

    def add(self, start: int, runs: list[list[int]], version: int) -> None:
        """Take in a mapping: all from source offset `start` to the next one's is of the version."""
        if not self._source or self._source[-1][1] != version:
            self._source.append((start, version))
        if runs and (not self._destination or self._destination[-1][1] != version):
            self._destination.append((runs[0][1], version))

    @property
    def last(self) -> int | None:
        """The version of the last mapping."""
        return self._source[-1][1] if self._source else None

    def of_source(self, offset: int) -> int | None:
        return _at(self._source, offset)

    def of_destination(self, offset: int) -> int | None:
        return _at(self._destination, offset)


def _at(steps: Steps, offset: int) -> int | None:
    """None: no mapping tells."""
    at = bisect_right(steps, offset, key=lambda step: step[0]) - 1
    return steps[at][1] if at >= 0 else None
