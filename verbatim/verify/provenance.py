"""What `verbatim verify` expects of a link with PROVENANCE_HEADERS: which records are its own, and the one
header that it adds.

Pure, and takes nothing from the applications that it checks, not even the header's name.
"""

from __future__ import annotations

from collections.abc import Callable

from verbatim.verify.comparison import PartitionReport

Headers = list[tuple[str, bytes | None]] | None
Prepare = Callable[[Headers], tuple[bool, Headers]]
"""A record's headers -> whether it is to be compared, and the headers to compare it by."""


def every(headers: Headers) -> tuple[bool, Headers]:
    """Where it does not matter who wrote what."""
    return True, headers


_NAME = "verbatim.provenance"


class Provenance:
    """One reading of one partition. `left_out` counts what is none of the link's, by side."""

    def __init__(self, source_cluster: str, target_cluster: str) -> None:
        self._came_from_there = (_NAME, target_cluster.encode())
        self._came_from_here = (_NAME, source_cluster.encode())
        self.left_out = {"source": 0, "destination": 0}

    def source(self, headers: Headers) -> tuple[bool, Headers]:
        """Not expected at the destination: what has been there."""
        if headers and self._came_from_there in headers:
            self.left_out["source"] += 1
            return False, headers
        return True, headers

    def destination(self, headers: Headers) -> tuple[bool, Headers]:
        """A copy bears the link's header behind its own ones; all else was put there by others."""
        if headers and headers[-1] == self._came_from_here:
            return True, headers[:-1] or None
        self.left_out["destination"] += 1
        return False, headers

    def tell(self, report: PartitionReport) -> None:
        report.note(
            f"PROVENANCE_HEADERS: not compared are {self.left_out['source']} source records that came from the target, and "
            f"{self.left_out['destination']} destination records that others wrote; the header of the link is expected on the rest"
        )
