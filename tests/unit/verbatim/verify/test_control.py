from __future__ import annotations

import hashlib
from typing import Any

import orjson
import pytest

from common.errors import VerbatimError
from tests.unit.verbatim.moves.test_moving import a_row
from tests.unit.verbatim.verify.test_verify import batches, stream
from verbatim.moves.cutover_rules import judge_comparison
from verbatim.verify.comparison import Kind, PartitionReport, digest
from verbatim.verify.control import Halt, Said, report_halts
from verbatim.verify.gone import Gone
from verbatim.verify.partition import Comparison

AT = {"topic": "t", "topic_id": "i+d/", "partition": 0, "link": "mine"}


def said(*records: dict[str, Any] | bytes | None) -> Said:
    out = Said("mine")
    for offset, record in enumerate(records):
        out.add(offset, orjson.dumps(record) if isinstance(record, dict) else record)
    return out


def test_a_halt_counts_until_the_application_that_said_it_goes_on() -> None:
    halted = {**AT, "kind": "halted", "reason": "r", "next": 5}
    both = [{**halted, "application": name} for name in ("replicator", "deduplicator")]
    assert said(*both).halts("i-d_", 0) == [Halt("r", 5)] * 2
    resumed = {**AT, "kind": "resumed", "application": "replicator"}
    assert said(*both, resumed).halts("i-d_", 0) == [Halt("r", 5)]
    assert said(*both, resumed, {**resumed, "application": "deduplicator"}).halts("i-d_", 0) == []
    assert said(*both).halts("i-d_", 1) == said(*both).halts("another", 0) == []


def test_a_refused_destination_counts_until_it_is_accepted() -> None:
    refused = {**AT, "kind": "destination", "destination": "t", "refused": "too few partitions"}
    (halt,) = said(refused).halts("i-d_", 7)
    assert halt == Halt("destination-refused: too few partitions", None)
    assert said(refused, {**refused, "refused": None}).halts("i-d_", 7) == []


def test_where_others_write_behind_the_copies_their_end_is_known_until_the_link_goes_on() -> None:
    about = {"link": "mine", "kind": "promotion", "topic": "t", "topic_id": "i+d/", "destination": "c"}
    taken = {**about, "state": "promoting", "ends": [5, 6]}
    done = {**about, "state": "promoted", "ends": [5, 6], "copied": [3, 4], "answers": 0}
    back = {**about, "state": "copied", "answers": 0}

    def ends(*records: dict[str, Any]) -> list[int | None]:
        found = said(*records)
        places = (("t", "i-d_", 1), ("t", "i-d_", 2), ("t", "another", 0), ("u", "i-d_", 0))
        return [found.copies_end(*place) for place in places]

    assert ends(taken) == [None] * 4
    assert ends(taken, done) == ends(taken, done, taken) == [4, None, None, None]
    assert ends(taken, taken, done) == ends(taken, done, back) == [None] * 4, "overtaken, and given back"
    assert ends(taken, done, {**back, "answers": 1}) == [4, None, None, None]


def test_what_others_write_is_left_out_and_a_damaged_record_of_the_link_is_named() -> None:
    origin = {**AT, "kind": "origin", "offset": 5}
    strays = (None, b"", b"x", b"[1]", b"null", {**origin, "link": "other"}, {"kind": "order"})
    assert said(*strays) == Said("mine")
    found = said(*strays, origin, {**origin, "offset": 9})
    assert (found.origins, found.topic_ids) == ({("t", "i-d_", 0): 5}, {"t": {"i-d_"}})
    with pytest.raises(VerbatimError, match="control record at offset 1: a damaged 'halted'"):
        said(origin, {**AT, "kind": "halted"})


def test_the_first_record_of_a_pipelines_number_counts_and_a_damaged_one_is_named() -> None:
    def pipeline(n: int, text: str) -> dict[str, Any]:
        told = {"n": n, "definition": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        return {"link": "mine", "kind": "pipeline", **told}

    found = said(pipeline(1, "a"), pipeline(2, "b"), pipeline(2, "c"), pipeline(1, "d"), pipeline(3, "a"))
    assert found.pipelines == {1: "a", 2: "b", 3: "a"}
    with pytest.raises(VerbatimError, match="control record at offset 1: a damaged 'pipeline'"):
        said(pipeline(1, "a"), {**pipeline(2, "b"), "definition": "c"})


def test_a_halt_is_a_finding_with_its_reason() -> None:
    report = PartitionReport("t", 0, "t")
    report_halts([Halt("r: why", None)], report)
    assert (report.findings[Kind.HALTED].count, report.findings[Kind.HALTED].detail) == (1, "r: why")


def records(count: int, first_ms: int = 1000) -> list[bytes]:
    return [digest(first_ms + n, None, b"%d" % n, None) for n in range(count)]


def test_what_is_gone_is_told_from_what_is_behind_was_never_copied_or_is_due_at_the_source() -> None:
    report = PartitionReport("t", 0, "t")
    gone = Gone(report, delivered_below=8, copied_from=2, source_keeps_from_ms=1004)
    gone.take(list(range(5)), records(5))
    gone.take(list(range(5, 10)), records(5, 1005))
    gone.finish()
    found = report.findings[Kind.GONE]
    assert (found.count, found.source_offset, report.gone_to) == (4, 4, 8)
    assert (report.behind, report.first_behind) == (2, 8)
    assert report.notes == [
        "2 source records that the destination has deleted are past the source's own retention: not counted"
    ]


@pytest.mark.parametrize("left", [0, 1, 30])
def test_the_head_that_the_destination_has_no_more_is_counted_record_by_record(left: int) -> None:
    report, all_of_it = PartitionReport("t", 0, "t"), records(50)
    source = stream(all_of_it)
    gone = Gone(report, 50, 0, None)
    Comparison(
        batches(source, 7),
        batches(source[len(source) - left :], 5),
        report,
        delivered_below=50,
        lenient_source=True,
        gone=gone,
    ).run()
    assert report.findings.keys() == {Kind.GONE}
    assert (report.findings[Kind.GONE].count, report.equal, report.behind) == (50 - left, left, 0)


def test_what_is_gone_keeps_a_cutover_only_where_a_group_has_not_read_it() -> None:
    row = a_row()
    report = PartitionReport(row.key.topic, row.key.partition, "d", gone_to=row.record.source_offset)
    report.add(Kind.GONE, 0, None, "", 3)
    name = f"{row.key.topic}-{row.key.partition}"
    assert judge_comparison([report], [row]) == ([], [f"{name}: 3 gone-at-target"])
    report.gone_to += 1
    assert judge_comparison([report], [row]) == ([f"{name}: 3 gone-at-target"], [])
    report.add(Kind.HALTED, None, None, "why")
    report.add_behind(5)
    assert judge_comparison([report], [])[0] == [
        f"{name}: 1 halted (why)",
        f"{name}: 1 records not at the destination",
    ]
