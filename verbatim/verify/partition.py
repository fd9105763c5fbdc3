"""Walks through one partition with the tools of verbatim/verify/comparison.py and fills its report. Pure as
well: batches in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from verbatim.verify.alignment import Alignment
from verbatim.verify.comparison import (
    CONFIRM,
    Batch,
    History,
    Kind,
    PartitionReport,
    Pending,
    Side,
    common_prefix,
    differing_parts,
    in_order,
    resync,
    similar,
)
from verbatim.verify.gone import Gone
from verbatim.verify.mappings import MappingCheck

# What a record is known by when one part of every record has been altered: all but that part.
_WITHOUT: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("timestamp", lambda r: r[8:]),
    ("headers", lambda r: r[:36]),
    ("value", lambda r: r[:20] + r[36:]),
    ("key", lambda r: r[:8] + r[20:]),
)


class Comparison:
    """Compares the two sides of one partition.

    `delivered_below`: the mappings say that every source offset below it has been delivered, so a missing one
    is lost and not behind. `lenient_source` / `lenient_destination`: that side may hold records at its head
    which the other no longer has or never had; they are skipped up to the first place where both agree, those
    of the source handed to `gone`. `paired` is told of all that are equal. Memory: `window` records of each
    side, `history` source records, and as many pending ones, at about 130 B each."""

    def __init__(
        self,
        source: Iterable[Batch],
        destination: Iterable[Batch],
        report: PartitionReport,
        *,
        mappings: MappingCheck | None = None,
        delivered_below: int | None = None,
        lenient_source: bool = False,
        lenient_destination: bool = False,
        gone: Gone | None = None,
        paired: Callable[[PartitionReport, list[int], list[int]], None] | None = None,
        window: int = 20_000,
        history: int = 200_000,
    ) -> None:
        self._source = Side(source)
        self._destination = Side(destination)
        self._report = report
        self._mappings = mappings
        self._delivered_below = delivered_below or 0
        self._lenient = (lenient_source, lenient_destination)
        self._gone = gone
        self._paired = paired
        self._window = window
        self._history = History(history)
        self._missing = Pending(history)
        self._surplus = Pending(history)
        self._gap_source: Batch = ([], [])
        self._gap_destination: Batch = ([], [])
        # Of a gap that outgrows its bound only first offset and count are kept.
        self._more_missing = 0
        self._first_more_missing = -1

    def run(self) -> PartitionReport:
        source, destination = self._source, self._destination
        if any(self._lenient):
            Alignment(source, destination, self._report, self._lenient, self._window, self._gone).run()
        while source.fill(1) and destination.fill(1):
            at_hand = min(len(source), len(destination))
            equal = common_prefix(source.digests, destination.digests)
            if equal:
                self._pair(equal)
            if equal < at_hand:
                self._resolve()
        while source.fill(1) or destination.fill(1):
            self._set_aside(len(source), len(destination))
        self._close(final=True)
        for offset in self._missing.offsets():
            self._report.add(Kind.LOST, offset, None)
        for offset in self._surplus.offsets():
            self._report.add(Kind.FOREIGN, None, offset)
        return self._report

    # Finding the way

    def _resolve(self) -> None:
        """Both heads differ: sets aside what must be passed to agree again, or a part of it where no such
        place is in sight."""
        source, destination, window = self._source, self._destination, self._window
        if not source.fill(window) or not destination.fill(window):
            return
        if common_prefix(source.digests, destination.digests):
            return
        head = destination.digests[0]
        unknown = self._history.get(head) is None and head not in source.digests and head not in self._missing
        for confirm in CONFIRM:
            hit = resync(
                source.digests, destination.digests, confirm, unknown, source.ended and destination.ended
            )
            if hit is not None:
                self._set_aside(*hit)
                return
            if confirm == CONFIRM[0]:
                seen = 0
                while seen < len(destination) and self._history.get(destination.digests[seen]) is not None:
                    seen += 1
                # A block delivered again that is longer than the window.
                if seen >= min(confirm, len(destination)):
                    self._set_aside(0, seen)
                    return
        if self._pair_altered():
            return
        keep = CONFIRM[0]
        if (source.ended and destination.ended) or min(len(source), len(destination)) <= keep:
            self._set_aside(len(source), len(destination))
        elif source.ended:
            self._set_aside(0, max(1, len(destination) - keep))
        else:
            self._set_aside(max(1, len(source) - keep), 0)

    def _pair_altered(self) -> bool:
        """Where one part of every record is altered (a destination that sets its own timestamps), pairs by
        the others."""
        source, destination = self._source, self._destination
        for _, without in _WITHOUT:
            one, other = [without(r) for r in source.digests], [without(r) for r in destination.digests]
            length = common_prefix(one, other)
            if not length:
                hit = resync(one, other, CONFIRM[1])
                if hit is None:
                    continue
                self._set_aside(*hit)
                length = common_prefix(one, other, *hit)
            self._close()
            self._take_pairs(length)
            return True
        return False

    # Moving on

    def _take_pairs(self, count: int) -> None:
        """Takes `count` records of each side as pairs, equal or altered."""
        s_offsets, s_digests = self._source.take(count)
        d_offsets, d_digests = self._destination.take(count)
        self._count(s_offsets, s_digests, d_offsets, d_digests)
        for s, r, d, v in zip(s_offsets, s_digests, d_offsets, d_digests, strict=True):
            if r == v:
                self._equal([s], [d], [r])
            else:
                self._altered(s, r, d, v)

    def _pair(self, count: int) -> None:
        self._close()
        s_offsets, digests = self._source.take(count)
        d_offsets, _ = self._destination.take(count)
        self._count(s_offsets, digests, d_offsets, digests)
        self._equal(s_offsets, d_offsets, digests)
        if len(self._surplus):
            # A copy that came early is a duplicate once its source record has arrived in its place.
            for s, record in zip(s_offsets, digests, strict=True):
                while record in self._surplus:
                    self._report.add(Kind.DUPLICATED, s, self._surplus.pop(record))

    def _count(
        self, s_offsets: list[int], s_digests: list[bytes], d_offsets: list[int], d_digests: list[bytes]
    ) -> None:
        self._report.source_records += len(s_offsets)
        self._report.destination_records += len(d_offsets)
        if s_offsets:
            self._history.add(s_offsets, s_digests)
        if self._mappings and d_offsets:
            self._mappings.read(d_offsets, d_digests)

    def _set_aside(self, source: int, destination: int) -> None:
        """Moves records into the gap. Once it has a window's worth of them the rest is judged at once."""
        s_offsets, s_digests = self._source.take(source)
        d_offsets, d_digests = self._destination.take(destination)
        self._count(s_offsets, s_digests, d_offsets, d_digests)
        room = max(0, self._window - len(self._gap_source[0]))
        self._gap_source[0].extend(s_offsets[:room])
        self._gap_source[1].extend(s_digests[:room])
        if s_offsets[room:]:
            if not self._more_missing:
                self._first_more_missing = s_offsets[room]
            self._more_missing += len(s_offsets) - room
        room = max(0, self._window - len(self._gap_destination[0]))
        self._gap_destination[0].extend(d_offsets[:room])
        self._gap_destination[1].extend(d_digests[:room])
        for d, record in zip(d_offsets[room:], d_digests[room:], strict=True):
            self._left_over(d, record)

    # Judging

    def _close(self, final: bool = False) -> None:
        """Judges the gap: see the table in verbatim/verify/comparison.py."""
        (s_offsets, s_digests), (d_offsets, d_digests) = self._gap_source, self._gap_destination
        if not s_offsets and not d_offsets:
            return
        self._gap_source, self._gap_destination = ([], []), ([], [])
        left_source = dict(enumerate(s_digests))
        ordered = in_order(s_digests, d_digests)
        taken = {j for _, j in ordered}
        reached = -1
        for i, j in ordered:
            del left_source[i]
            reached = max(reached, i)
            self._equal([s_offsets[i]], [d_offsets[j]], [s_digests[i]])
        waiting: dict[bytes, list[int]] = {}
        for i in sorted(left_source, reverse=True):
            waiting.setdefault(left_source[i], []).append(i)
        unknown: list[int] = []
        for j, record in enumerate(d_digests):
            if j in taken:
                continue
            if waiting.get(record):
                i = waiting[record].pop()
                del left_source[i]
                reached = max(reached, i)
                self._reordered(s_offsets[i], d_offsets[j], record)
            elif record in self._missing:
                self._reordered(self._missing.pop(record), d_offsets[j], record)
            elif self._history.get(record) is not None:
                self._left_over(d_offsets[j], record)
            else:
                unknown.append(j)
        self._take_early_copies(s_offsets, left_source)
        altered = _pairs_between(ordered, left_source, unknown, s_digests, d_digests)
        for i, j in altered.items():
            del left_source[i]
            reached = max(reached, i)
            self._altered(s_offsets[i], s_digests[i], d_offsets[j], d_digests[j])
        paired = set(altered.values())
        for j in unknown:
            if j not in paired:
                self._left_over(d_offsets[j], d_digests[j])
        for i, record in left_source.items():
            self._left_behind(s_offsets[i], record, trailing=final and i > reached)
        self._close_overflow(final)

    def _take_early_copies(self, s_offsets: list[int], left: dict[int, bytes]) -> None:
        """Pairs what is left of the source with copies that came before it, and takes it out of `left`."""
        for i, record in list(left.items()):
            if record in self._surplus:
                del left[i]
                self._reordered(s_offsets[i], self._surplus.pop(record), record)

    def _close_overflow(self, final: bool) -> None:
        if not self._more_missing:
            return
        if final and self._first_more_missing >= self._delivered_below:
            self._report.add_behind(self._first_more_missing, self._more_missing)
        else:
            self._report.add(Kind.LOST, self._first_more_missing, None, count=self._more_missing)
        self._more_missing = 0

    def _left_behind(self, offset: int, record: bytes, trailing: bool) -> None:
        if trailing and offset >= self._delivered_below:
            self._report.add_behind(offset)
            return
        if self._mappings:
            self._mappings.missing(offset, record)
        pushed_out = self._missing.add(offset, record)
        if pushed_out is not None:
            self._report.add(Kind.LOST, pushed_out, None)

    def _left_over(self, offset: int, record: bytes) -> None:
        original = self._history.get(record)
        if original is not None:
            self._report.add(Kind.DUPLICATED, original, offset)
            return
        pushed_out = self._surplus.add(offset, record)
        if pushed_out is not None:
            self._report.add(Kind.FOREIGN, None, pushed_out)

    def _equal(self, source: list[int], destination: list[int], digests: list[bytes]) -> None:
        self._report.equal += len(source)
        if self._paired:
            self._paired(self._report, source, destination)
        if self._mappings:
            self._mappings.paired(source, destination, digests)

    def _reordered(self, source: int, destination: int, record: bytes) -> None:
        self._report.add(Kind.REORDERED, source, destination)
        if self._mappings:
            self._mappings.paired([source], [destination], [record])

    def _altered(self, source: int, expected: bytes, destination: int, found: bytes) -> None:
        parts = ", ".join(differing_parts(expected, found))
        self._report.add(
            Kind.ALTERED, source, destination, f"{parts} differ" + ("s" if "," not in parts else "")
        )
        if self._mappings:
            self._mappings.altered(source, destination)


def _pairs_between(
    ordered: list[tuple[int, int]],
    left: Container[int],
    unknown: list[int],
    s_digests: list[bytes],
    d_digests: list[bytes],
) -> dict[int, int]:
    """Pairs what is left over on both sides, from each of the places `ordered` where they agree to the
    next."""
    pairs: dict[int, int] = {}
    before = (-1, -1)
    for bound in [*ordered, (len(s_digests), len(d_digests))]:
        ours = [i for i in range(before[0] + 1, bound[0]) if i in left]
        theirs = [j for j in unknown if before[1] < j < bound[1]] if ours and unknown else []
        pairs.update(_altered_pairs(ours, theirs, s_digests, d_digests, len(ours) == len(theirs)))
        before = bound
    return pairs


def _altered_pairs(
    ours: list[int], theirs: list[int], s_digests: list[bytes], d_digests: list[bytes], positional: bool
) -> dict[int, int]:
    """Pairs, in order, what is left over at one place: one by one when as many are left on both sides, else
    by likeness."""
    if positional:
        return dict(zip(ours, theirs, strict=True))
    pairs: dict[int, int] = {}
    begin = 0
    for j in theirs:
        for at in range(begin, len(ours)):
            if similar(s_digests[ours[at]], d_digests[j]):
                pairs[ours[at]] = j
                begin = at + 1
                break
    return pairs
