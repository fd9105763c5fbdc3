"""What the destination of a partition no longer has, though the source still does, for `verbatim verify`.
Pure: batches in, findings out."""

from __future__ import annotations

from dataclasses import dataclass

from verbatim.verify.comparison import Kind, PartitionReport

DETAIL = "the destination's log begins behind it: retention there, or somebody, has deleted it"


@dataclass
class Gone:
    """Takes source records that lie before all that the destination has.

    `delivered_below`: what lies below that source offset has been there (None: not known, then it counts so);
    what does not is behind.
    `copied_from`: below it nothing was ever copied. `source_keeps_from_ms`: what is older the source is about
    to delete itself (None: nothing); it goes segment by segment, so that of two logs with one retention
    either may have more for a while. `overdue`: how many of these there were.
    """

    report: PartitionReport
    delivered_below: int | None
    copied_from: int
    source_keeps_from_ms: float | None
    overdue: int = 0

    def take(self, offsets: list[int], digests: list[bytes]) -> None:
        gone = []
        for offset, record in zip(offsets, digests, strict=True):
            if offset < self.copied_from:
                continue
            if self.delivered_below is not None and offset >= self.delivered_below:
                self.report.add_behind(offset)
            elif self._due(record):
                self.overdue += 1
            else:
                gone.append(offset)
        if gone:
            self.report.add(Kind.GONE, gone[0], None, DETAIL, len(gone))
            self.report.gone_to = max(self.report.gone_to, gone[-1] + 1)

    def finish(self) -> None:
        if self.overdue:
            self.report.note(
                f"{self.overdue:,} source records that the destination has deleted are past the source's own retention: not counted"
            )

    def _due(self, record: bytes) -> bool:
        timestamp_ms = int.from_bytes(record[:8], "big", signed=True)
        return self.source_keeps_from_ms is not None and timestamp_ms < self.source_keeps_from_ms
