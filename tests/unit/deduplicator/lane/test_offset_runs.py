"""Runs: maximal, exact, and joined only where both sides continue."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from deduplicator.lane.offset_runs import Run, merge, placed, segments

INCREASING = st.lists(st.integers(0, 40), unique=True).map(sorted)


def test_segments_of_what_is_known() -> None:
    assert segments([]) == []
    assert segments([7]) == [(0, 1)]
    assert segments([7, 8, 9]) == [(0, 3)]
    assert segments([1, 2, 4, 6, 7]) == [(0, 2), (2, 3), (3, 5)]
    assert segments([1, 3]) == [(0, 1), (1, 2)]


@given(INCREASING)
def test_segments_are_consecutive_maximal_and_cover_everything(offsets: list[int]) -> None:
    found = segments(offsets)
    assert [i for begin, end in found for i in range(begin, end)] == list(range(len(offsets)))
    for begin, end in found:
        assert offsets[begin:end] == list(range(offsets[begin], offsets[begin] + end - begin))
        assert end == len(offsets) or offsets[end] > offsets[end - 1] + 1


def test_runs_are_placed_one_behind_the_other() -> None:
    assert placed([Run(5, 3), Run(9, 1), Run(11, 2)], 10) == [Run(5, 3, 10), Run(9, 1, 13), Run(11, 2, 14)]


def test_runs_join_only_where_both_sides_continue() -> None:
    assert merge([]) == []
    assert merge([Run(5, 2, 10), Run(7, 1, 12), Run(8, 2, 13)]) == [[5, 10, 5]]
    assert merge([Run(5, 2, 10), Run(8, 1, 12)]) == [[5, 10, 2], [8, 12, 1]]
    assert merge([Run(5, 2, 10), Run(7, 1, 13)]) == [[5, 10, 2], [7, 13, 1]]


@given(INCREASING, st.lists(st.integers(0, 2), min_size=41, max_size=41))
def test_merged_runs_say_exactly_what_the_runs_said(offsets: list[int], gaps: list[int]) -> None:
    runs, at = [], 0
    for (begin, end), gap in zip(segments(offsets), gaps, strict=False):
        at += gap // 2
        for i in range(begin, end):
            runs.append(Run(offsets[i], 1, at))
            at += 1
    merged = merge(runs)
    assert [(s + i, d + i) for s, d, n in merged for i in range(n)] == [(r.source, r.first) for r in runs]
    for a, b in pairwise(merged):
        assert not (a[0] + a[2] == b[0] and a[1] + a[2] == b[1])
