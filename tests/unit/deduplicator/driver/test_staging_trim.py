"""How far staging may be trimmed: what is delivered, and never past a frame that was skipped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.link.control_records import Request
from common.link.control_state import Control
from deduplicator.driver.staging_trim import limits


def holding(*held: tuple[int, int] | None) -> Control:
    return Control(holds={("id", i): Request(i, "t", 0, at) for i, at in enumerate(held)})


def test_what_is_delivered_may_go() -> None:
    assert limits({0: 10, 1: 0}, Control()) == {0: 10, 1: 0}


def test_the_first_frame_that_was_skipped_stays() -> None:
    assert limits({0: 10, 1: 10}, holding((0, 4))) == {0: 4, 1: 10}
    assert limits({0: 10}, holding((0, 7), (0, 4), (0, 9))) == {0: 4}
    assert limits({0: 10}, holding((0, 0))) == {0: 0}


def test_a_hold_lets_nothing_go_that_is_not_delivered() -> None:
    assert limits({0: 10}, holding((0, 50), (3, 1), None)) == {0: 10}


@given(
    st.dictionaries(st.integers(0, 3), st.integers(0, 20)),
    st.lists(st.none() | st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=5),
)
def test_no_limit_passes_what_is_delivered_or_held(
    delivered: dict[int, int], held: list[tuple[int, int] | None]
) -> None:
    found = limits(delivered, holding(*held))
    assert found.keys() == delivered.keys()
    for partition, limit in found.items():
        bounds = [delivered[partition], *(o for at in held if at for p, o in [at] if p == partition)]
        assert limit == min(bounds)
