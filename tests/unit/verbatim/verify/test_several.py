"""`verify` of several source topics in one destination: whose a record is, what is nobody's, and what can't
be told."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verbatim.verify.common_part import Plan
from verbatim.verify.comparison import Kind, PartitionReport, digest
from verbatim.verify.link_mappings import Mappings, Topics
from verbatim.verify.mappings import Runs
from verbatim.verify.partition import Comparison
from verbatim.verify.several import Claims, claimed, leave_out_unmapped, report_unclaimed, visible_below


def runs(*found: tuple[int, int, int]) -> Runs:
    source, destination, length = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return Runs(source, destination, length, 0, int(length.sum()), True)


def report() -> PartitionReport:
    return PartitionReport("a", 0, "all")


def record(name: str) -> bytes:
    return digest(1, None, name.encode(), None)


@given(st.lists(st.sampled_from("ab-x"), max_size=60), st.integers(1, 7))
def test_each_source_is_compared_with_its_own_and_the_rest_is_reported(log: list[str], batch: int) -> None:
    """A destination of records of a and b, markers and a stranger's, in any order: each source equals what is
    claimed for it."""
    offsets = [at for at, who in enumerate(log) if who != "-"]
    names = {at: f"{log[at]}{log[:at].count(log[at])}" for at in offsets}
    batches = [
        (offsets[i : i + batch], [record(names[o]) for o in offsets[i : i + batch]])
        for i in range(0, len(offsets), batch)
    ]
    of = {
        who: runs(*((n, at, 1) for n, at in enumerate(o for o in offsets if log[o] == who))) for who in "ab"
    }
    for who in "ab":
        count = log.count(who)
        source = [(list(range(count)), [record(f"{who}{n}") for n in range(count)])]
        found = Comparison(source if count else [], claimed(batches, Claims([of[who]])), report()).run()
        assert (found.equal, found.findings, found.behind) == (count, {}, 0)
    unclaimed = report()
    claims = Claims(of.values())
    claims.check_apart(unclaimed)
    report_unclaimed(batches, claims, 0, unclaimed)
    strangers = [at for at, who in enumerate(log) if who == "x"]
    foreign = unclaimed.findings.get(Kind.FOREIGN)
    assert (
        (foreign.count, foreign.destination_offset) == (len(strangers), strangers[0])
        if foreign
        else not strangers
    )
    assert set(unclaimed.findings) <= {Kind.FOREIGN} and not unclaimed.notes


def test_a_record_that_is_lost_altered_or_delivered_twice_is_found_among_those_of_another_source() -> None:
    """Of a: 0 is at 0, 1 is lost (at 2), 2 is altered (at 3), 3 is at 4 and once more at 5, without a
    mapping; b is at 1 and 6."""
    there = [([0, 1, 3, 4, 5, 6], [record(n) for n in ("a0", "b0", "other", "a3", "a3", "b1")])]
    of_a, of_b = runs((0, 0, 1), (1, 2, 3)), runs((0, 1, 1), (1, 6, 1))
    source = [([0, 1, 2, 3], [record(f"a{n}") for n in range(4)])]
    found = Comparison(source, claimed(there, Claims([of_a])), report(), delivered_below=4).run()
    assert {kind: f.count for kind, f in found.findings.items()} == {Kind.LOST: 1, Kind.ALTERED: 1}
    report_unclaimed(there, Claims([of_a, of_b]), 0, unclaimed := report())
    assert unclaimed.findings[Kind.FOREIGN].destination_offset == 5


def test_two_sources_that_are_mapped_to_one_offset_are_found() -> None:
    Claims([runs((0, 0, 5)), runs((0, 5, 3), (3, 9, 2))]).check_apart(apart := report())
    assert not apart.findings
    Claims([runs((0, 0, 5)), runs((0, 4, 1), (1, 9, 2))]).check_apart(together := report())
    assert together.findings[Kind.MAPPING].destination_offset == 4
    Claims([runs((0, 0, 10)), runs((0, 2, 1), (1, 8, 1))]).check_apart(inside := report())
    assert inside.findings[Kind.MAPPING].count == 2


@pytest.mark.parametrize(("known_from", "foreign", "untold"), [(0, 3, 0), (3, 1, 2), (None, 0, 3)])
def test_what_may_have_had_a_mapping_that_expired_is_no_finding(
    known_from: int | None, foreign: int, untold: int
) -> None:
    there = [([0, 1, 2, 3], [record("x")] * 4)]
    report_unclaimed(there, Claims([runs((7, 2, 1))]), known_from, found := report())
    assert sum(f.count for f in found.findings.values()) == foreign
    assert [note.split()[0] for note in found.notes] == ([str(untold)] if untold else [])


@pytest.mark.parametrize(
    ("stable", "end", "visible", "noted"),
    [(20, 20, 8, False), (15, 30, 6, True), (12, 30, 5, True), (2, 8, 8, False)],
)
def test_what_an_open_transaction_of_another_source_hides_is_behind_and_what_is_gone_is_not(
    stable: int, end: int, visible: int, noted: bool
) -> None:
    """Source offsets 0 to 4 are at 0, 5 at 12, 6 and 7 at 15."""
    found = report()
    assert visible_below(runs((0, 0, 5), (5, 12, 1), (6, 15, 2)), stable, end, found) == visible
    assert bool(found.notes) == noted


@pytest.mark.parametrize(
    ("known_from", "start", "begin"),
    [(0, 7, 2), (0, None, 2), (5, 1, 2), (5, 7, 7), (None, 7, 7), (None, None, 20)],
)
def test_what_mappings_that_expired_would_tell_is_not_compared_and_that_is_said(
    known_from: int | None, start: int | None, begin: int
) -> None:
    plan, found = Plan((2, 20), (0, 30)), report()
    at = np.array([start or 0], dtype=np.int64)
    mine = None if start is None else Runs(at, at, at, start, 20, True)
    leave_out_unmapped(plan, mine, known_from, found)
    assert plan.source == (begin, 20)
    assert [f"below source offset {begin}:" in note for note in found.notes] == ([True] if begin > 2 else [])


def mapping(topic: str, topic_id: str, start: int, found: list[list[int]], to: str = "all") -> bytes:
    return orjson.dumps(
        {
            "cluster": "c", "topic": topic, "topic_id": topic_id, "partition": 0, "start": start,
            "next": start + sum(n for _, _, n in found), "destination_topic": to, "destination_partition": 0, "runs": found,
        }
    )  # fmt: skip


def test_what_lies_in_a_destination_is_known_also_of_topics_that_are_gone_made_again_or_renamed() -> None:
    topics: Topics = {"a": ("id", ("all",)), "b": ("id", ("elsewhere",))}
    with Mappings("c", topics, several=True) as found:
        for value in (
            mapping("a", "before", 0, [[0, 0, 2]]),
            mapping("a", "id", 0, [[0, 2, 2]]),
            mapping("gone", "id", 0, [[0, 4, 1]]),
            mapping("b", "id", 0, [[0, 5, 1]]),
            mapping("b", "id", 1, [[1, 0, 1]], to="elsewhere"),
            mapping("b", "id", 2, [[2, 9, 1]], to="nobody's"),
        ):
            found.add(value, first_of_log=True)
        mine = found.runs("a", 0)
        assert mine is not None and mine.destination.tolist() == [2]
        assert sorted(r.destination.tolist() for r in found.others("all", 0)) == [[0], [4], [5]]
        assert found.topics_in("all") == {"a", "gone", "b"} and found.topics_in("elsewhere") == set()
        assert found.known_from("all", 0) == 0


def test_mappings_tell_from_where_on_none_has_expired() -> None:
    with Mappings("c", {"a": ("id", ("all",))}, several=True) as found:
        found.whole_from_ms = 1000.0
        found.add(mapping("a", "id", 5, [[5, 10, 2]]), False, 999)
        assert found.known_from("all", 0) is None
        found.add(mapping("gone", "id", 0, [[0, 20, 1], [1, 22, 1]]), False, 1000)
        found.add(mapping("a", "id", 7, [[7, 30, 2]]), False, 2000)
        assert found.known_from("all", 0) == 20
