"""Injects faults into random streams and states what the comparison must find, and that it finds nothing
where nothing is wrong."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from verbatim.verify.compacted import compare_compacted
from verbatim.verify.comparison import Batch, Kind, PartitionReport, differing_parts, digest, in_order, resync
from verbatim.verify.mappings import MappingCheck, Runs, check_shape
from verbatim.verify.partition import Comparison
from verbatim.verify.reading import _timestamp_ms

Stream = list[tuple[int, bytes]]


def record(number: int) -> bytes:
    return digest(
        1_700_000_000_000 + number, b"k%d" % (number % 7), b"value %d" % number, [("h", b"%d" % number)]
    )


def stream(records: list[bytes], *, first: int = 0, holes: random.Random | None = None) -> Stream:
    """Gives records ascending offsets; with `holes`, some are left out as transaction markers leave them
    out."""
    placed, offset = [], first
    for one in records:
        if holes and holes.random() < 0.1:
            offset += holes.randint(1, 3)
        placed.append((offset, one))
        offset += 1
    return placed


def batches(placed: Stream, size: int) -> list[Batch]:
    return [
        ([o for o, _ in placed[i : i + size]], [r for _, r in placed[i : i + size]])
        for i in range(0, len(placed), size)
    ]


def compare(
    source: Stream, destination: Stream, sizes: tuple[int, int] = (50, 37), **options: Any
) -> PartitionReport:
    report = PartitionReport("t", 0, "t")
    mappings = options.get("mappings")
    Comparison(batches(source, sizes[0]), batches(destination, sizes[1]), report, **options).run()
    if mappings is not None:
        mappings.finish()
    return report


def counts(report: PartitionReport) -> dict[Kind, int]:
    return {kind: finding.count for kind, finding in report.findings.items()}


def runs_of(pairs: list[tuple[int, int]], start: int | None = None, end: int | None = None) -> Runs:
    """Builds runs from (source offset, destination offset) pairs."""
    runs: list[list[int]] = []
    for s, d in pairs:
        if runs and runs[-1][0] + runs[-1][2] == s and runs[-1][1] + runs[-1][2] == d:
            runs[-1][2] += 1
        else:
            runs.append([s, d, 1])
    columns = np.array(runs, dtype=np.int64).reshape(-1, 3).T.copy()
    begin = pairs[0][0] if start is None else start
    return Runs(columns[0], columns[1], columns[2], begin, pairs[-1][0] + 1 if end is None else end, True)


# Streams of few different records are the hard ones: many are identical.
records_of_few_kinds = st.lists(st.integers(0, 3).map(record), max_size=300)
seeds = st.integers(0, 2**32)
sizes = st.tuples(st.integers(1, 64), st.integers(1, 64))
windows = st.sampled_from([64, 500, 20_000])


@given(records_of_few_kinds, seeds, sizes, windows)
def test_equal_streams_with_identical_records_give_no_finding(
    records: list[bytes], seed: int, sizes: tuple[int, int], window: int
) -> None:
    chance = random.Random(seed)
    source, destination = stream(records, holes=chance), stream(records, holes=chance, first=5)
    report = compare(source, destination, sizes, window=window)
    assert (report.findings, report.behind, report.equal) == ({}, 0, len(records))
    assert (report.source_records, report.destination_records) == (len(records), len(records))


@given(records_of_few_kinds, seeds, sizes, windows, st.integers(0, 300))
def test_trailing_records_are_behind_and_not_lost(
    records: list[bytes], seed: int, sizes: tuple[int, int], window: int, missing: int
) -> None:
    chance = random.Random(seed)
    source = stream(records, holes=chance)
    kept = max(0, len(records) - missing)
    report = compare(source, stream(records[:kept]), sizes, window=window)
    assert (report.findings, report.behind) == ({}, len(records) - kept)
    assert report.first_behind == (source[kept][0] if kept < len(records) else None)


def test_trailing_records_that_the_mappings_call_delivered_are_lost() -> None:
    source = stream([record(n) for n in range(10)])
    report = compare(source, source[:6], delivered_below=8)
    assert counts(report) == {Kind.LOST: 2}
    assert report.findings[Kind.LOST].source_offset == 6
    assert (report.behind, report.first_behind) == (2, 8)


@settings(max_examples=300)
@given(
    st.integers(1, 400),
    seeds,
    sizes,
    windows,
    st.sampled_from(["lost", "duplicated", "altered", "foreign", "late", "early"]),
    st.data(),
)
def test_one_fault_among_distinct_records_is_found_where_it_is(
    length: int, seed: int, sizes: tuple[int, int], window: int, fault: str, data: st.DataObject
) -> None:
    chance = random.Random(seed)
    records = [record(n) for n in range(length)]
    source = stream(records, holes=chance)
    changed = list(records)
    at = data.draw(st.integers(0, length - 1))
    expected: dict[Kind, int]
    place: tuple[int | None, int | None] | None
    if fault == "lost":
        del changed[at]
        last = at == length - 1
        expected, place = ({}, None) if last else ({Kind.LOST: 1}, (source[at][0], None))
    elif fault == "duplicated":
        behind = data.draw(st.integers(at + 1, length))
        changed.insert(behind, changed[at])
        expected, place = {Kind.DUPLICATED: 1}, (source[at][0], behind)
    elif fault == "altered":
        changed[at] = record(10_000)
        expected, place = {Kind.ALTERED: 1}, (source[at][0], at)
    elif fault == "foreign":
        changed.insert(at, record(10_000))
        expected, place = {Kind.FOREIGN: 1}, (None, at)
    else:
        to = data.draw(st.integers(0, length - 1))
        changed.insert(to, changed.pop(at))
        expected, place = ({Kind.REORDERED: 1} if to != at else {}), None
    report = compare(source, stream(changed), sizes, window=window)
    assert counts(report) == expected
    if place is not None:
        (finding,) = report.findings.values()
        assert (finding.source_offset, finding.destination_offset) == place
    assert report.behind == (1 if fault == "lost" and at == length - 1 else 0)


@settings(max_examples=300)
@given(st.lists(st.integers(0, 2).map(record), min_size=2, max_size=200), sizes, st.data())
def test_one_fault_among_identical_records_gives_its_class_and_no_other(
    records: list[bytes], sizes: tuple[int, int], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(records) - 2))
    fault = data.draw(st.sampled_from(["lost", "duplicated", "altered", "foreign"]))
    changed = list(records)
    if fault == "lost":
        del changed[at]
    elif fault == "duplicated":
        changed.insert(at, changed[at])
    elif fault == "altered":
        changed[at] = record(10_000)
    else:
        changed.insert(at, record(10_000))
    report = compare(stream(records), stream(changed), sizes)
    kind = Kind(fault)
    # Of the equal records at the end, the one that is missing can't be told from one that has not arrived
    # yet.
    if fault == "lost" and len(set(records[at:])) == 1:
        assert (counts(report), report.behind) == ({}, 1)
    else:
        assert (counts(report), report.behind) == ({kind: 1}, 0)
        (finding,) = report.findings.values()
        if fault == "lost":
            run_end = next(i for i in range(at, len(records)) if records[i] != records[at]) - 1
            assert finding.source_offset is not None and at <= finding.source_offset
            assert records[finding.source_offset] == records[at] or finding.source_offset >= run_end
        else:
            place = finding.destination_offset
            assert place is not None and place >= at if fault == "duplicated" else place == at


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 40).map(record), max_size=200),
    st.lists(st.integers(0, 40).map(record), max_size=200),
    sizes,
)
def test_counts_balance_whatever_the_streams_hold(
    source: list[bytes], destination: list[bytes], sizes: tuple[int, int]
) -> None:
    report = compare(stream(source), stream(destination), sizes, window=64)
    found = counts(report)
    paired = report.equal + found.get(Kind.REORDERED, 0) + found.get(Kind.ALTERED, 0)
    assert paired + found.get(Kind.LOST, 0) + report.behind == len(source)
    assert paired + found.get(Kind.DUPLICATED, 0) + found.get(Kind.FOREIGN, 0) == len(destination)
    if source != destination:
        assert found or report.behind


@pytest.mark.parametrize("block", [1, 40, 700, 5000])
def test_a_block_that_is_missing_is_lost_whatever_the_window(block: int) -> None:
    records = [record(n) for n in range(8000)]
    report = compare(
        stream(records), stream(records[:1000] + records[1000 + block :]), (500, 500), window=600
    )
    assert counts(report) == {Kind.LOST: block}
    assert report.findings[Kind.LOST].source_offset == 1000


@pytest.mark.parametrize("block", [1, 40, 700, 5000])
def test_a_block_delivered_again_is_duplicated_whatever_the_window(block: int) -> None:
    records = [record(n) for n in range(8000)]
    report = compare(
        stream(records),
        stream(records[:6000] + records[6000 - block : 6000] + records[6000:]),
        (500, 500),
        window=600,
    )
    assert counts(report) == {Kind.DUPLICATED: block}
    finding = report.findings[Kind.DUPLICATED]
    assert (finding.source_offset, finding.destination_offset) == (6000 - block, 6000)


@pytest.mark.parametrize("part", ["timestamp", "value", "headers", "key"])
def test_records_that_are_all_altered_in_one_part_are_altered_and_not_lost(part: str) -> None:
    def made(n: int, altered: bool) -> bytes:
        def this(name: str) -> bool:
            return altered and name == part

        return digest(
            n + 1_000_000 * this("timestamp"),
            b"k%d" % (n + this("key")),
            b"v%d" % (n - this("value")),
            [("h", b"x")] * (1 + this("headers")),
        )

    source = [made(n, False) for n in range(3000)]
    report = compare(stream(source), stream([made(n, n >= 100) for n in range(3000)]), (500, 500), window=600)
    assert counts(report) == {Kind.ALTERED: 2900}
    finding = report.findings[Kind.ALTERED]
    assert (finding.source_offset, finding.destination_offset) == (100, 100)
    assert finding.detail.startswith(part)


def test_faults_close_to_each_other_are_told_apart() -> None:
    records = [record(n) for n in range(300)]
    changed = list(records)
    changed[150] = record(10_000)
    changed.insert(140, changed[120])
    changed[130], changed[131] = changed[131], changed[130]
    del changed[110]
    report = compare(stream(records), stream(changed))
    assert counts(report) == {Kind.LOST: 1, Kind.REORDERED: 1, Kind.DUPLICATED: 1, Kind.ALTERED: 1}
    assert report.findings[Kind.LOST].source_offset == 110
    assert report.findings[Kind.ALTERED].source_offset == 150


@given(st.integers(0, 3000), st.integers(0, 1000), st.integers(0, 60), windows)
@example(70, 0, 31, 64)  # the end of what is at hand lies in the run across the cut
@example(99, 70, 2, 64)  # a record that both hold once is the last at hand
def test_a_source_that_was_trimmed_is_compared_from_its_log_start(
    trimmed: int, rest: int, same: int, window: int
) -> None:
    records = (
        [record(n) for n in range(trimmed)]
        + [record(5_000)] * same
        + [record(n) for n in range(trimmed, trimmed + rest)]
    )
    cut = trimmed + same // 2
    source = stream(records[cut:], first=cut)
    report = compare(source, stream(records), (50, 50), window=window, lenient_destination=True)
    # A run of equal records across the cut that is longer than the window can't be placed.
    if window > 2 * same:
        assert report.findings == {}
    if rest > same and window > 2 * same:
        assert (report.behind, report.equal) == (0, len(records) - cut)


def test_a_record_lost_behind_a_trimmed_head_is_lost() -> None:
    records = [record(n) for n in range(2000)]
    source = stream(records[500:], first=500)
    report = compare(source, stream(records[:700] + records[701:]), lenient_destination=True)
    assert counts(report) == {Kind.LOST: 1}
    assert report.findings[Kind.LOST].source_offset == 700


def test_a_destination_that_was_trimmed_is_compared_from_its_log_start() -> None:
    records = [record(n) for n in range(2000)]
    report = compare(stream(records), stream(records[500:], first=500), lenient_source=True)
    assert (report.findings, report.equal) == ({}, 1500)


class TestDigest:
    def test_null_and_empty_differ_in_key_value_and_header(self) -> None:
        plain = digest(1, None, None, [("a", None)])
        assert differing_parts(plain, digest(1, b"", None, [("a", None)])) == ["key"]
        assert differing_parts(plain, digest(1, None, b"", [("a", None)])) == ["value"]
        assert differing_parts(plain, digest(1, None, None, [("a", b"")])) == ["headers"]

    def test_order_and_repetition_of_headers_count(self) -> None:
        one = digest(1, None, None, [("a", b"1"), ("b", b"2")])
        assert one != digest(1, None, None, [("b", b"2"), ("a", b"1")])
        assert one != digest(1, None, None, [("a", b"1"), ("b", b"2"), ("b", b"2")])

    def test_bytes_do_not_slip_from_one_header_to_the_next(self) -> None:
        assert digest(1, None, None, [("a", b"', b'b")]) != digest(1, None, None, [("a", b""), ("", b"b")])

    def test_no_headers_and_an_empty_list_are_one(self) -> None:
        assert digest(1, b"k", b"v", []) == digest(1, b"k", b"v", None)

    def test_a_negative_timestamp_has_a_digest(self) -> None:
        assert digest(-1, None, None, None) != digest(1, None, None, None)


class TestMappings:
    def check(self, source: Stream, destination: Stream, runs: Runs) -> PartitionReport:
        report = PartitionReport("t", 0, "t")
        sound = check_shape(runs, report)
        check = MappingCheck(runs, report) if sound else None
        Comparison(
            batches(source, 50), batches(destination, 37), report, mappings=check, delivered_below=runs.next
        ).run()
        if check:
            check.finish()
        return report

    @given(records_of_few_kinds.filter(len), seeds)
    def test_true_mappings_give_no_finding(self, records: list[bytes], seed: int) -> None:
        chance = random.Random(seed)
        source, destination = stream(records, holes=chance), stream(records, holes=chance)
        runs = runs_of([(s, d) for (s, _), (d, _) in zip(source, destination, strict=True)])
        assert self.check(source, destination, runs).findings == {}

    @given(st.integers(2, 300), st.data())
    def test_a_record_lost_among_identical_ones_leaves_true_mappings_true(
        self, length: int, data: st.DataObject
    ) -> None:
        records = [record(1)] * length + [record(2)]
        at = data.draw(st.integers(0, length - 1))
        source = stream(records)
        destination = stream(records[:at] + records[at + 1 :])
        pairs = [(s, s if s < at else s - 1) for s in range(length + 1) if s != at]
        report = self.check(source, destination, runs_of(pairs, start=0, end=length + 1))
        assert report.findings[Kind.LOST].count == 1
        # The record that the mapping leaves out can't be told from its like: one that has a copy is without a
        # run.
        assert counts(report).get(Kind.MAPPING, 0) <= 1

    @given(st.integers(3, 300), st.data())
    def test_an_offset_that_points_at_another_record_is_found(self, length: int, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, length - 2))
        source = stream([record(n) for n in range(length)])
        pairs = [(s, s if s < at else s + 1) for s in range(length)]
        report = self.check(source, source, runs_of(pairs))
        assert counts(report) == {Kind.MAPPING: length - at}
        assert (
            report.findings[Kind.MAPPING].source_offset,
            report.findings[Kind.MAPPING].destination_offset,
        ) == (at, at + 1)

    def test_an_offset_without_a_run_is_found(self) -> None:
        source = stream([record(n) for n in range(100)])
        report = self.check(source, source, runs_of([(s, s) for s in range(100) if s != 40]))
        assert counts(report) == {Kind.MAPPING: 1}
        assert report.findings[Kind.MAPPING].source_offset == 40

    def test_an_offset_covered_twice_is_found(self) -> None:
        source = stream([record(n) for n in range(10)])
        columns = np.array([[0, 4], [0, 4], [5, 6]], dtype=np.int64)
        report = self.check(source, source, Runs(columns[0], columns[1], columns[2], 0, 10, True))
        assert counts(report) == {Kind.MAPPING: 1}
        assert report.findings[Kind.MAPPING].source_offset == 4

    def test_mappings_that_are_not_monotone_are_found(self) -> None:
        source = stream([record(n) for n in range(10)])
        columns = np.array([[0, 5], [5, 0], [5, 5]], dtype=np.int64)
        report = self.check(source, source, Runs(columns[0], columns[1], columns[2], 0, 10, True))
        assert report.findings[Kind.MAPPING].count == 1

    def test_a_lost_record_that_the_mappings_leave_out_is_lost_only(self) -> None:
        source = stream([record(n) for n in range(100)])
        destination = stream([record(n) for n in range(100) if n != 40])
        runs = runs_of([(s, s if s < 40 else s - 1) for s in range(100) if s != 40])
        assert counts(self.check(source, destination, runs)) == {Kind.LOST: 1}

    def test_an_altered_record_leaves_its_mapping_true(self) -> None:
        source = stream([record(n) for n in range(100)])
        destination = stream([record(n if n != 40 else 999) for n in range(100)])
        assert counts(self.check(source, destination, runs_of([(s, s) for s in range(100)]))) == {
            Kind.ALTERED: 1
        }

    def test_translation_looks_past_holes(self) -> None:
        runs = runs_of([(0, 10), (1, 11), (5, 13)])
        assert [runs.first_at_or_after(s) for s in range(7)] == [10, 11, 13, 13, 13, 13, None]
        assert [runs.first_source_at_or_after(d) for d in (0, 11, 12, 13, 14)] == [0, 1, 5, 5, None]


def keyed(key: int, value: int | None, timestamp: int = 0) -> bytes:
    return digest(timestamp, b"%d" % key, None if value is None else b"%d" % value, None)


def compacted(placed: Stream, chance: random.Random) -> Stream:
    """Drops some records that have a later one of the same key, as a cleaner that is part of the way
    would."""
    last = {r[8:20]: o for o, r in placed}
    return [(o, r) for o, r in placed if last[r[8:20]] == o or chance.random() < 0.5]


class TestCompacted:
    def compare(self, source: Stream, destination: Stream, **options: Any) -> PartitionReport:
        report = PartitionReport("t", 0, "t")
        options.setdefault("records", max(len(source), len(destination)))
        return compare_compacted(lambda: (batches(source, 50), batches(destination, 37)), report, **options)

    @given(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5) | st.none()), max_size=200),
        seeds,
        st.sampled_from([7, 50, 1000]),
    )
    def test_sides_compacted_differently_agree(
        self, writes: list[tuple[int, int | None]], seed: int, keys_per_pass: int
    ) -> None:
        chance = random.Random(seed)
        placed = stream([keyed(k, v, n) for n, (k, v) in enumerate(writes)])
        report = self.compare(
            compacted(placed, chance), compacted(placed, chance), keys_per_pass=keys_per_pass
        )
        assert (report.findings, report.behind) == ({}, 0)

    def test_a_key_whose_latest_record_is_missing_is_lost_when_a_later_one_arrived(self) -> None:
        source = stream([keyed(1, 1, 0), keyed(1, 2, 1), keyed(2, 1, 2)])
        report = self.compare(source, [source[0], source[2]])
        assert counts(report) == {Kind.LOST: 1}
        assert report.findings[Kind.LOST].source_offset == 1

    def test_a_key_whose_latest_record_is_at_the_end_is_behind(self) -> None:
        source = stream([keyed(1, 1, 0), keyed(2, 1, 1), keyed(1, 2, 2)])
        report = self.compare(source, source[:2])
        assert (report.findings, report.behind, report.first_behind) == ({}, 1, 2)

    def test_a_latest_record_that_was_altered_is_found(self) -> None:
        source = stream([keyed(1, 1, 0), keyed(2, 1, 1)])
        report = self.compare(source, [(0, keyed(1, 7, 0)), source[1]])
        assert counts(report) == {Kind.ALTERED: 1}

    def test_a_tombstone_that_was_not_copied_is_lost(self) -> None:
        source = stream([keyed(1, 1, 0), keyed(1, None, 1), keyed(2, 1, 2)])
        assert counts(self.compare(source, [source[0], source[2]])) == {Kind.LOST: 1}

    def test_a_tombstone_that_expired_on_one_side_is_no_finding(self) -> None:
        source = stream([keyed(1, None, 1), keyed(2, 1, 2)])
        assert self.compare(source, source[1:]).findings == {}
        assert self.compare(source[1:], source).findings == {}

    def test_records_of_a_key_in_another_order_are_reordered(self) -> None:
        source = stream([keyed(1, 1, 0), keyed(1, 2, 1), keyed(2, 1, 2)])
        report = self.compare(source, stream([source[1][1], source[0][1], source[2][1]]))
        assert Kind.REORDERED in report.findings


@given(
    st.lists(st.integers(0, 3).map(record), max_size=40), st.lists(st.integers(0, 3).map(record), max_size=40)
)
def test_pairs_in_order_are_strictly_increasing_and_equal(one: list[bytes], other: list[bytes]) -> None:
    pairs = in_order(one, other)
    assert all(one[i] == other[j] for i, j in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))


def test_resync_finds_nothing_where_nothing_agrees() -> None:
    assert resync([record(1)] * 50, [record(2)] * 50, 8) is None


def test_a_record_without_a_timestamp_is_one_of_minus_1() -> None:
    """As Kafka has it at the destination; the client library says 0, and of no type, where the source has an
    old format."""
    told = {(0, 0): -1, (1, -1): -1, (1, 0): 0, (2, 7): 7}
    for stamp, ms in told.items():
        message: Any = SimpleNamespace(timestamp=lambda stamp=stamp: stamp)
        assert _timestamp_ms(message) == ms
