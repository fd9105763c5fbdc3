"""Compares a compacted topic, where both sides may have dropped different records. Pure: batches in, findings
out.

What can be promised there is less: for each key the latest record that survives agrees, a destination record
equals a source record or its source record may be gone, and what both sides still have stands in the same
order. Keys are split over several passes, each with its own reading of both sides, so that memory stays
bounded however many keys there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from verbatim.verify.comparison import (
    Batch,
    Kind,
    PartitionReport,
    differing_parts,
    has_key,
    is_tombstone,
    key_part,
)
from verbatim.verify.mappings import MappingCheck, Runs

KEYS_PER_PASS = 400_000

NOTE = (
    "compacted: only what both sides still have is compared, and the latest record of each key;"
    " a copy of a record that the source has dropped can't be told from the record itself"
)

Reader = Callable[[], tuple[Iterable[Batch], Iterable[Batch]]]


def compare_compacted(
    read: Reader,
    report: PartitionReport,
    *,
    records: int,
    delivered_below: int | None = None,
    trimmed: bool = False,
    keys_per_pass: int = KEYS_PER_PASS,
) -> PartitionReport:
    """`read` begins a new reading of both sides; `records` is an upper bound of the records of the longer
    one, which says how many passes it takes. `trimmed`: the source also deletes by age, so a key it no longer
    has proves nothing."""
    report.note(NOTE)
    passes = max(1, -(-records // keys_per_pass))
    for number in range(passes):
        source, destination = read()
        _one_pass(source, destination, report, number, passes, delivered_below, trimmed)
    if report.findings.get(Kind.LOST) is None and report.first_behind is not None:
        report.note("keys whose latest record is not at the destination yet are counted as behind")
    return report


def check_compacted_mappings(
    source: Iterable[Batch], destination: Iterable[Batch], runs: Runs, report: PartitionReport
) -> None:
    """Checks that where a mapped destination record still exists it equals the source record."""
    check = MappingCheck(runs, report, exact=False)
    theirs = iter(destination)
    read_to = -1
    for offsets, digests in source:
        mapped = runs.destination_of(np.array(offsets, dtype=np.int64))
        for offset, record in zip(offsets, digests, strict=True):
            check.missing(offset, record)
        while read_to < mapped.max(initial=-1):
            batch = next(theirs, None)
            if batch is None:
                break
            read_to = batch[0][-1]
            check.read(*batch)
    check.finish()


def _one_pass(
    source: Iterable[Batch],
    destination: Iterable[Batch],
    report: PartitionReport,
    number: int,
    passes: int,
    delivered_below: int | None,
    trimmed: bool,
) -> None:
    # By key: the latest offset and record. Every record is kept once more by content, to place the
    # destination's in the order.
    latest: dict[bytes, tuple[int, bytes]] = {}
    places: dict[bytes, int] = {}
    for offsets, digests in source:
        if number == 0:
            report.source_records += len(offsets)
        for offset, record in zip(offsets, digests, strict=True):
            if _in_pass(record, number, passes):
                latest[key_part(record)] = offset, record
                places[record] = offset
    newest: dict[bytes, tuple[int, bytes, int | None]] = {}
    reached = -1
    for offsets, digests in destination:
        if number == 0:
            report.destination_records += len(offsets)
        for offset, record in zip(offsets, digests, strict=True):
            if not _in_pass(record, number, passes):
                continue
            place = places.get(record)
            key = key_part(record)
            if place is not None:
                report.equal += 1
                before = newest.get(key)
                if before is not None and before[2] is not None and place < before[2]:
                    report.add(Kind.REORDERED, place, offset, "stands behind a later record of its key")
                reached = max(reached, place)
            newest[key] = offset, record, place
    limit = max(reached + 1, delivered_below or 0)
    _judge_latest(latest, newest, report, limit, trimmed)


def _judge_latest(
    latest: dict[bytes, tuple[int, bytes]],
    newest: dict[bytes, tuple[int, bytes, int | None]],
    report: PartitionReport,
    limit: int,
    trimmed: bool,
) -> None:
    for key, (s, expected) in latest.items():
        at_destination = newest.get(key)
        if at_destination is None:
            if s >= limit:
                report.add_behind(s)
            elif not is_tombstone(expected):  # a tombstone may be gone for good
                report.add(Kind.LOST, s, None, "the key is not at the destination")
            continue
        d, found, place = at_destination
        if found == expected:
            continue
        if s >= limit:
            report.add_behind(s)
        elif place is not None:
            # Also for a tombstone: compaction drops it only together with the records before it.
            report.add(Kind.LOST, s, d, "the destination has only an earlier record of the key")
        elif expected[:8] == found[:8] or expected[20:36] == found[20:36]:
            report.add(
                Kind.ALTERED, s, d, f"{', '.join(differing_parts(expected, found))}: latest record of the key"
            )
        else:
            report.add(Kind.LOST, s, d, "the destination's latest record of the key is another one")
    for key, (d, found, _) in newest.items():
        if key not in latest and not trimmed and not is_tombstone(found):
            report.note(
                "the destination has keys that the source has not: their tombstones may be gone, or not copied"
            )
            report.add(Kind.FOREIGN, None, d, "a key that the source has not")


def _in_pass(record: bytes, number: int, passes: int) -> bool:
    if not has_key(record):
        return False
    return passes == 1 or int.from_bytes(record[8:12], "big") % passes == number
