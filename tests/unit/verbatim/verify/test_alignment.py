"""Where two sides begin to agree, of which one has lost its head: what lies before it is taken, and nothing
behind it."""

from __future__ import annotations

import pytest

from verbatim.verify.alignment import Alignment, anchor
from verbatim.verify.comparison import PartitionReport, Side
from verbatim.verify.gone import Gone


def records(text: str) -> list[bytes]:
    return [f"{letter}-------".encode() for letter in text]


def side(text: str, first: int = 0, batch: int = 3) -> Side:
    found = records(text)
    return Side(
        (list(range(first + i, first + i + len(found[i : i + batch]))), found[i : i + batch])
        for i in range(0, len(found), batch)
    )


def at_hand(text: str, ended: bool) -> Side:
    found = side(text)
    found.fill(len(text) + ended)
    return found


@pytest.mark.parametrize(
    ("source", "destination", "lenient", "left"),
    [
        ("abcdefgh", "cdefgh", (True, False), ("cdefgh", "cdefgh")),
        ("cdefgh", "abcdefgh", (False, True), ("cdefgh", "cdefgh")),
        # What neither side may lack stays, to be judged.
        ("xcdefgh", "abcdefgh", (False, True), ("xcdefgh", "bcdefgh")),
        # Nothing that both have.
        ("abc", "xyz", (True, False), ("", "xyz")),
        ("abc", "xyz", (False, True), ("abc", "")),
        ("", "xyz", (False, True), ("", "")),
        # Of equal records the latest place skips most.
        ("aaaa", "aa", (True, False), ("aa", "aa")),
    ],
)
def test_only_what_one_side_has_no_more_is_taken(
    source: str, destination: str, lenient: tuple[bool, bool], left: tuple[str, str]
) -> None:
    sides, report = (side(source), side(destination)), PartitionReport("t", 0, "t")
    Alignment(*sides, report, lenient, 100).run()
    for one in sides:
        one.fill(100)
    assert tuple("".join(chr(record[0]) for record in one.digests) for one in sides) == left
    assert report.source_records == len(source) - len(left[0])
    assert report.destination_records == len(destination) - len(left[1])
    assert bool(report.notes) == (report.source_records + report.destination_records > 0)


def test_what_is_taken_of_the_source_is_told_as_gone() -> None:
    report = PartitionReport("t", 0, "t")
    Alignment(
        side("abcdefgh", 20), side("cdefgh"), report, (True, False), 100, Gone(report, 99, 0, None)
    ).run()
    (found,) = report.findings.values()
    assert (found.count, found.source_offset, report.gone_to) == (2, 20, 22)


@pytest.mark.parametrize(
    ("known", "known_ended", "other", "other_ended", "found"),
    [
        ("abcdefgh", False, "xabcdefgh", False, (0, 1)),
        ("abc", False, "xabc", False, None),  # only up to the last records at hand
        ("abc", False, "xabc", True, (0, 1)),
        ("abc", True, "xabcd", False, (0, 1)),
        ("abc", True, "xyz", True, None),
        ("aaa", False, "baaa", True, (0, 1)),
        ("aaa", False, "baaa", False, None),  # the run may go on
    ],
)
def test_an_agreement_counts_once_it_is_long_or_reaches_an_end(
    known: str, known_ended: bool, other: str, other_ended: bool, found: tuple[int, int] | None
) -> None:
    assert anchor(at_hand(known, known_ended), at_hand(other, other_ended)) == found
