"""Finds where the records of two sides begin to agree, where one side's head is deleted, or was never copied.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from verbatim.verify.comparison import CONFIRM, PartitionReport, Side, common_prefix
from verbatim.verify.gone import Gone


@dataclass
class Alignment:
    """Takes from both sides what lies before the first place where they agree.

    `lenient`: whether the source, and whether the destination, may hold records at its head which the other
    no longer has or never had; those of the source are handed to `gone`. `window`: how many records of each
    side are looked at together."""

    source: Side
    destination: Side
    report: PartitionReport
    lenient: tuple[bool, bool]
    window: int
    gone: Gone | None = None

    def run(self) -> None:
        source, destination = self.source, self.destination
        while source.fill(self.window) and destination.fill(self.window):
            for known, other, swap in ((source, destination, False), (destination, source, True)):
                if not self.lenient[0 if swap else 1]:
                    continue
                at = anchor(known, other)
                if at is None:
                    continue
                i, j = (at[1], at[0]) if swap else at
                shift = min(i, j)
                self._skip(i - shift if self.lenient[0] else 0, j - shift if self.lenient[1] else 0)
                return
            if source.ended and destination.ended:
                break
            step = max(1, self.window // 2)
            skip_source = self.lenient[0] and (
                not self.lenient[1] or source.digests[0][:8] < destination.digests[0][:8]
            )
            skipped, kept = (source, destination) if skip_source else (destination, source)
            if skipped.ended:
                break
            # Not past where both may agree: what follows the window would tell.
            step = min(step, next(_agreeing_to_the_end(kept.digests, skipped.digests), step))
            if not step:
                return
            self._skip(step if skip_source else 0, 0 if skip_source else step)
        if self.report.source_records + len(source) and self.report.destination_records + len(destination):
            self.report.note("no record was found that both sides still have: their order can't be compared")
        while self.lenient[0] and source.fill(1):
            self._skip(len(source), 0)
        while self.lenient[1] and destination.fill(1):
            self._skip(0, len(destination))

    def _skip(self, source: int, destination: int) -> None:
        if source:
            skipped = self.source.take(source)
            self.report.source_records += source
            if self.gone is not None:
                self.gone.take(*skipped)
            self.report.note(
                "source records at the head were skipped: the destination no longer has or never had them"
            )
        if destination:
            self.report.destination_records += len(self.destination.take(destination)[0])
            self.report.note("destination records at the head were skipped: the source no longer has them")


def anchor(known: Side, other: Side) -> tuple[int, int] | None:
    """Where what is at hand of `known` begins to agree with `other`, as (index in known, index in other);
    None: not in sight yet.

    Sought with a record that each holds once: in a run of equal records any shift would fit. Agreement up to
    where a side ends counts, agreement up to the last record at hand does not."""
    ours, theirs = Counter(known.digests), Counter(other.digests)
    once = [i for i, record in enumerate(known.digests) if ours[record] == 1]
    where = {record: j for j, record in enumerate(other.digests) if theirs[record] == 1}
    for i in once:
        j = where.get(known.digests[i], -1)
        if j < 0:
            continue
        agree = common_prefix(known.digests, other.digests, i, j)
        to_the_end = other.ended if j + agree == len(other) else known.ended and i + agree == len(known)
        if agree >= CONFIRM[1] or to_the_end:
            return i, j
    if once and not other.ended:
        return None
    # Nothing but repetition. Agreement up to an end contradicts neither side, and the latest place skips
    # most.
    ends = list(_agreeing_to_the_end(known.digests, other.digests))
    longest = max(ends, key=lambda j: (min(len(known), len(other) - j), j), default=None)
    if longest is None:
        return None
    # The run may go on behind the last record at hand, unless all that is at hand belongs to it.
    if not other.ended and ends[0] > 0 and longest + len(known) >= len(other):
        return None
    return 0, longest


def _agreeing_to_the_end(known: list[bytes], other: list[bytes]) -> Iterator[int]:
    """Places in `other` from which it agrees with the beginning of `known` up to the last record at hand of
    either."""
    return (
        j for j in range(len(other)) if common_prefix(known, other, 0, j) == min(len(known), len(other) - j)
    )
