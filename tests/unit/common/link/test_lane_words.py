"""What lanes have said: which word counts, and what was done between two looks, whatever epochs end."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from common.link.lane_words import Heard, Said, delays_between, delivered_per_second, hear, per_second, work
from common.link.lane_work import ALL, Delays, Work

NAME = "deduplicator"


def said(lane: int, epoch: int, records: int, term: int = 4, delays: Delays | None = None) -> Said:
    return Said(NAME, lane, term, epoch, Work(Counter(records=records), delays=delays or Delays()))


def heard(*words: tuple[Said, int]) -> Heard:
    found: Heard = {}
    for one, at_ms in words:
        hear(found, one, at_ms)
    return found


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 1000)), min_size=1, max_size=30))
def test_all_that_was_done_is_counted_once_whatever_epochs_end(
    steps: list[tuple[int, bool, int]],
) -> None:
    """Promise: what lanes say in the end is all that they did, though each epoch counts from nought."""
    now: Heard = {}
    epoch, in_epoch, done = 1, Counter[int](), 0
    for lane in range(3):
        hear(now, said(lane, 1, 0), 0)
    before = dict(now)
    for i, (lane, ends, records) in enumerate(steps, start=1):
        if ends:
            epoch, in_epoch = epoch + 1, Counter()
        in_epoch[lane] += records
        done += records
        hear(now, said(lane, epoch, in_epoch[lane]), i)
    assert sum(word.done().counts["records"] for word in now.values()) == done
    found = per_second(before, now, NAME)
    assert found is not None and found["records"] >= 0


def test_a_word_of_an_older_epoch_that_comes_late_says_nothing() -> None:
    found = heard((said(0, 2, 7), 1000), (said(0, 1, 999), 1500), (said(0, 9, 999, term=3), 1600))
    assert work(found, NAME).counts["records"] == 7
    assert found[NAME, 0].done().counts["records"] == 7


def test_a_rate_is_by_the_lanes_own_time() -> None:
    before = heard((said(0, 1, 100), 1000), (said(1, 1, 0), 2500))
    now = dict(before)
    hear(now, said(0, 1, 400), 4000)
    hear(now, said(1, 1, 60), 5500)
    assert per_second(before, now, NAME) == {"records": 100 + 20}


def test_a_rate_goes_on_over_the_end_of_an_epoch() -> None:
    before = heard((said(0, 1, 100), 1000))
    now = dict(before)
    hear(now, said(0, 1, 300), 4000)
    hear(now, said(0, 2, 100), 7000)
    assert per_second(before, now, NAME) == {"records": 50.0}


def test_a_lane_that_says_nothing_more_does_nothing() -> None:
    before = heard((said(0, 1, 100), 1000))
    assert per_second(before, dict(before), NAME) == {}
    assert per_second({}, before, NAME) is None, "not known, whatever it had done before it was heard of"


def test_a_lane_that_is_new_counts_from_nought() -> None:
    before = heard((said(0, 1, 100), 1000))
    now = dict(before)
    hear(now, said(0, 2, 10), 3000)
    hear(now, said(1, 2, 40), 3000)
    assert per_second(before, now, NAME) == {"records": 5 + 20}


def test_delays_between_two_looks_are_those_of_the_records_between_them() -> None:
    first, second, third = Delays(), Delays(), Delays()
    first.took(10, 5)
    second.took(10, 5)
    second.took(900, 2)
    third.took(40, 3)
    before = heard((said(0, 1, 5, delays=first), 1000))
    now = dict(before)
    hear(now, said(0, 1, 7, delays=second), 4000)
    hear(now, said(0, 2, 3, delays=third), 7000)
    wanted = Delays()
    wanted.took(900, 2)
    wanted.took(40, 3)
    assert delays_between(before, now, NAME) == wanted
    assert delays_between({}, now, NAME) == Delays()


def test_lanes_that_tell_of_topics_only_are_added_up() -> None:
    def whole(lane: int, reached: int) -> Said:
        return Said(NAME, lane, 4, 1, Work(of={("orders", ALL): Counter(delivered_offset=reached)}))

    before = heard((whole(0, 100), 1000), (whole(1, 50), 1000))
    now = heard((whole(0, 130), 11_000), (whole(1, 70), 11_000))
    assert delivered_per_second(before, now, NAME) == {("orders", ALL): 5.0}
