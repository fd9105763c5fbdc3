"""Which version of the pipeline a record is of, by the mappings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from verbatim.verify.versions import Versions

MAPPINGS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12
)
"""Source offsets that each covers, records delivered of them, and the version."""


@given(MAPPINGS, st.integers(0, 5))
def test_each_record_is_of_the_version_of_its_mapping_on_both_sides(
    given_: list[tuple[int, int, int]], start: int
) -> None:
    versions, there = Versions(), 0
    here: dict[int, int] = {}
    delivered: dict[int, int] = {}
    source = start
    for covered, count, version in given_:
        count = min(count, covered)
        versions.add(source, [[source, there, count]] if count else [], version)
        here |= dict.fromkeys(range(source, source + covered), version)
        delivered |= dict.fromkeys(range(there, there + count), version)
        source, there = source + covered, there + count
    assert {offset: versions.of_source(offset) for offset in here} == here
    assert {offset: versions.of_destination(offset) for offset in delivered} == delivered
    assert versions.last == given_[-1][2] and (start == 0 or versions.of_source(start - 1) is None)


def test_nothing_is_known_without_mappings() -> None:
    versions = Versions()
    assert (versions.last, versions.of_source(0), versions.of_destination(0)) == (None, None, None)
