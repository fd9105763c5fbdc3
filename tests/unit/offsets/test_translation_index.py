"""The index against a list of all that was ever copied: exact where it says so, and never past a record,
however much it has forgotten."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.link.offset_mappings import Mapping, Routed
from offsets import translation_index
from offsets.translation_index import Destination, Index, PartitionIndex, Point, Translation

KEY = ("id", 0)
TO = Destination("orders", 0)


@dataclass
class History:
    """What a deduplicator has done to one partition: `pairs` of source and destination offset, and the
    mappings that say so."""

    origin: int
    start: int
    mappings: list[Mapping] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)

    @property
    def next(self) -> int:
        return self.mappings[-1].next if self.mappings else self.origin

    @property
    def end(self) -> int:
        return self.pairs[-1][1] + 1 if self.pairs else self.start

    def truth(self, offset: int) -> int:
        """Destination offset of the first copied record at or after the source offset, by looking at each."""
        return next((d for s, d in self.pairs if s >= offset), self.end)

    def truth_back(self, offset: int) -> int:
        return next((s for s, d in self.pairs if d >= offset), self.pairs[-1][0] + 1 if self.pairs else 0)

    def same(self, ours: int, truth: int) -> bool:
        """Whether a reader from either destination offset reads the same record next."""
        low, high = sorted((ours, truth))
        return not any(low <= d < high for _, d in self.pairs)

    def same_back(self, ours: int, truth: int) -> bool:
        low, high = sorted((ours, truth))
        return not any(low <= s < high for s, _ in self.pairs)


def mapping(
    start: int, following: int, runs: list[list[int]], topic_id: str = "id", to: str = "orders"
) -> Mapping:
    return Mapping(
        "c", "orders", topic_id, 0, start, following, to, 0, 0, sum(n for *_, n in runs), 0, 0, runs
    )


@st.composite
def histories(draw: st.DrawFn, empty: bool = True) -> History:
    """Transactions with gaps at the source (compaction, markers), gaps at the destination (markers, others'
    records)."""
    origin = draw(st.integers(0, 20))
    history = History(origin, draw(st.integers(0, 20)))
    at, to = origin, history.start
    history.mappings.append(mapping(at, at, []))
    for _ in range(draw(st.integers(0 if empty else 1, 12))):
        start, runs = at, []
        for _ in range(draw(st.integers(0 if empty else 1, 4))):
            at += draw(st.integers(0, 3))
            length = draw(st.integers(1, 4))
            runs.append([at, to, length])
            history.pairs += [(at + i, to + i) for i in range(length)]
            at, to = at + length, to + length + draw(st.integers(0, 2))
        at += draw(st.integers(0, 3))
        to += draw(st.integers(1, 2))
        history.mappings.append(mapping(start, at, runs))
    return history


def indexed(
    history: History, limit: int = 10**6, first: int = 0, retention_ms: float = 10**9
) -> PartitionIndex:
    found = Index(limit, retention_ms)
    for number, m in enumerate(history.mappings[first:]):
        found.add(m, number)
    return found.partitions[KEY]


def all_offsets(history: History) -> range:
    return range(max(0, history.origin - 3), history.next + 4)


def check_never_past(history: History, partition: PartitionIndex) -> None:
    for offset in all_offsets(history):
        found = partition.translate(offset, history.origin)
        truth = history.truth(offset)
        if found.offset is not None:
            assert found.offset <= truth or history.same(found.offset, truth), (offset, found, truth)
        if found.exact:
            assert found.offset is not None and history.same(found.offset, truth), (offset, found, truth)
        assert found.exact == (found.why is None)
    for offset in range(history.end + 5):
        back = partition.reverse(offset, history.origin)
        truth = history.truth_back(offset)
        if back.offset is not None:
            assert back.offset <= truth or history.same_back(back.offset, truth), (offset, back, truth)
        if back.exact:
            assert back.offset is not None and history.same_back(back.offset, truth), (offset, back, truth)


@settings(deadline=None)
@given(histories(empty=False))
def test_every_offset_of_a_whole_history_is_exact(history: History) -> None:
    partition = indexed(history)
    for offset in all_offsets(history):
        found = partition.translate(offset, history.origin)
        below = offset < history.origin
        assert found.offset == (None if below else history.truth(offset))
        assert found.exact == (not below and offset <= history.next)
    for offset in range(history.end + 2):
        back = partition.reverse(offset, history.origin)
        below = history.origin > 0 and offset < history.pairs[0][1]
        assert back.offset == (None if below else history.truth_back(offset))
        assert back.exact == (not below)
    check_never_past(history, partition)


@settings(deadline=None)
@given(histories(), st.data())
def test_a_history_cut_below_never_passes_a_record(history: History, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(history.mappings) - 1))
    check_never_past(history, indexed(history, first=first))


@settings(deadline=None)
@given(histories(), st.data())
def test_missing_mappings_never_pass_a_record(history: History, data: st.DataObject) -> None:
    kept = [m for m in history.mappings if data.draw(st.booleans())] or history.mappings[-1:]
    history.mappings, whole = kept, history.mappings
    partition = indexed(history)
    history.mappings = whole
    check_never_past(history, partition)


@settings(deadline=None)
@given(histories(), st.integers(1, 4))
def test_thinned_history_never_passes_a_record(history: History, times: int) -> None:
    partition = indexed(history)
    for _ in range(times):
        partition.thin()
    check_never_past(history, partition)


@settings(deadline=None)
@given(histories(), st.integers(0, 14))
def test_forgotten_history_never_passes_a_record_and_recent_ones_stay_exact(
    history: History, age: int
) -> None:
    found = Index(10**6, 1.0)
    for number, m in enumerate(history.mappings):
        found.add(m, number)
    found.forget(age + 1.0)
    partition = found.partitions[KEY]
    check_never_past(history, partition)
    assert found.entries == len(partition)
    for m in history.mappings[age + 1 :]:
        for source, destination, length in m.runs:
            for i in range(length):
                assert partition.translate(source + i, history.origin) == (destination + i, True, None)


@settings(deadline=None)
@given(histories(), st.data())
def test_translations_made_earlier_stand_in_for_mappings_that_are_gone(
    history: History, data: st.DataObject
) -> None:
    whole = indexed(history)
    offsets = data.draw(st.lists(st.sampled_from([*all_offsets(history)]), max_size=5))
    made = [(o, whole.translate(o, history.origin)) for o in offsets]
    points = [Point(o, t.offset, t.exact) for o, t in made if t.offset is not None]
    first = data.draw(st.integers(0, len(history.mappings)))
    found = Index(10**6, 10**9)
    early = data.draw(st.booleans())
    if early:
        found.seed("orders", KEY, TO, points)
    for m in history.mappings[first:]:
        found.add(m, 0)
    if not early:
        found.seed("orders", KEY, TO, points)
    # Again, as after a target that was out of reach: newer ones join those that are there.
    found.seed("orders", KEY, TO, [*points[1:], *points[:1]])
    partition = found.partitions[KEY]
    check_never_past(history, partition)
    assert found.entries == len(partition) and list(partition._source) == sorted(set(partition._source))
    for point in points:
        if point.source <= history.next and not (early and first < len(history.mappings)):
            again = partition.translate(point.source, history.origin)
            assert again.offset is not None and again.offset >= point.destination
            assert again.exact or not point.exact


@settings(deadline=None)
@given(st.lists(histories(), min_size=1, max_size=3))
def test_memory_is_bounded(several: list[History]) -> None:
    limit = 12
    found = Index(limit, 10**9)
    for number, history in enumerate(several):
        for m in history.mappings:
            found.add(dataclasses.replace(m, topic_id=f"id{number}"), 0)
    assert found.entries == sum(map(len, found.partitions.values()))
    assert found.entries <= max(limit + 4, 8 * len(several) + 4)
    for number, history in enumerate(several):
        check_never_past(history, found.partitions[(f"id{number}", 0)])


def test_thinning_reaches_the_oldest_first_and_halves_what_is_kept() -> None:
    runs = [[10 * i, 11 * i, 5] for i in range(16)]
    partition = PartitionIndex(TO)
    partition.add(mapping(0, 160, runs))
    partition.thin()
    assert len(partition) == 12
    assert partition.translate(10, 0) == (0, False, translation_index.THINNED)
    assert partition.translate(20, 0) == (22, True, None)
    assert partition.translate(153, 0) == (168, True, None)


def test_an_empty_partition_stands_at_the_log_start_until_a_record_is_copied() -> None:
    partition = indexed(History(7, 0, [mapping(7, 7, [])]))
    assert partition.translate(7, 7) == (None, False, translation_index.NOTHING_COPIED)
    assert partition.reverse(0, 7) == (None, False, translation_index.BEFORE_ORIGIN)
    assert indexed(History(0, 0, [mapping(0, 0, [])])).reverse(0, 0) == (0, True, None)
    partition.add(mapping(7, 9, [[8, 3, 1]]))
    assert partition.translate(7, 7) == (3, True, None)


def test_what_others_have_copied_below_the_origin_is_never_left_out() -> None:
    partition = indexed(History(7, 0, [mapping(7, 7, [])]))
    partition.held = 9
    assert partition.translate(7, 7) == (9, True, None)
    assert partition.translate(8, 7) == (9, False, translation_index.AHEAD)
    assert partition.translate(6, 7) == (None, False, translation_index.BEFORE_ORIGIN)
    partition.add(mapping(7, 12, [[8, 11, 2], [11, 13, 1]]))
    assert partition.translate(6, 7) == (None, False, translation_index.BEFORE_ORIGIN)
    assert [partition.translate(offset, 7) for offset in (7, 8, 10, 12)] == [
        (11, True, None),
        (11, True, None),
        (13, True, None),
        (14, True, None),
    ]
    assert partition.reverse(10, 7) == (None, False, translation_index.BEFORE_ORIGIN)
    assert [partition.reverse(offset, 7) for offset in (11, 12, 14)] == [
        (8, True, None),
        (9, True, None),
        (12, True, None),
    ]


@pytest.mark.parametrize(
    ("runs", "at_end"), [([[8, 11, 2], [11, 13, 1]], 14), ([], 9)], ids=["copied", "nothing copied"]
)
def test_where_others_write_behind_the_copies_a_group_at_the_sources_end_stands_before_them(
    runs: list[list[int]], at_end: int
) -> None:
    """Promise: exact, whatever the destination's end is by now, also once the mappings are gone."""
    partition = indexed(History(7, 0, [mapping(7, 12, runs)]))
    assert partition.end == (at_end if runs else None)
    partition.held, partition.final = 30, Point(12, at_end, True)
    assert partition.translate(12, 7) == (at_end, True, None)
    assert partition.translate(13, 7) == (at_end, False, translation_index.AHEAD)
    assert partition.translate(8, 7) == (11 if runs else at_end, True, None)
    assert partition.translate(6, 7) == (None, False, translation_index.BEFORE_ORIGIN)
    forgotten = PartitionIndex(TO)
    forgotten.final = Point(12, at_end, True)
    assert forgotten.translate(12, 7) == (at_end, True, None)
    assert forgotten.translate(11, 7) == (None, False, translation_index.BEFORE_HISTORY)


def test_where_the_link_itself_has_copied_before_the_first_record_copied_is_the_next() -> None:
    found = Index(1000, 10**9)
    found.add(mapping(0, 10, [[0, 0, 10]], "old"), 0)
    found.add(mapping(5, 8, [[5, 11, 3]], "new"), 0)
    assert found.partitions[("new", 0)].translate(2, 5) == (11, False, translation_index.BEFORE_ORIGIN)
    assert found.partitions[("new", 0)].reverse(4, 5) == (5, True, None)


def test_a_topic_made_again_goes_on_where_the_one_before_ended() -> None:
    found = Index(1000, 10**9)
    found.add(mapping(0, 10, [[0, 0, 10]], "old"), 0)
    found.add(mapping(0, 0, [], "new"), 0)
    assert found.topics == {"orders": {"old", "new"}}
    assert found.partitions[("new", 0)].translate(0, 0) == (10, True, None)
    assert found.partitions[("new", 0)].translate(7, 0) == (10, False, translation_index.AHEAD)
    found.add(mapping(0, 3, [[0, 11, 3]], "new"), 0)
    assert found.partitions[("new", 0)].translate(1, 0) == (12, True, None)
    assert found.partitions[("old", 0)].translate(1, 0) == (1, True, None)
    assert found.partitions[("new", 0)].reverse(5, 0) == (0, True, None)


def test_a_destination_made_again_is_never_read_from_behind_its_first_record() -> None:
    partition = PartitionIndex(TO)
    partition.add(mapping(0, 10, [[0, 100, 10]]))
    partition.add(mapping(10, 12, [[10, 0, 2]]))
    assert partition.translate(3, 0) == (0, False, translation_index.MISSING)
    assert partition.translate(11, 0) == (1, True, None)
    assert partition.reverse(0, 0) == (10, True, None)


def test_records_copied_twice_translate_to_their_first_copy() -> None:
    partition = PartitionIndex(TO)
    partition.add(mapping(0, 10, [[0, 0, 10]]))
    partition.add(mapping(5, 15, [[5, 11, 10]]))
    assert partition.translate(7, 0) == (7, True, None)
    assert partition.translate(10, 0) == (16, True, None)


def test_an_accepted_loss_translates_to_the_record_behind_it() -> None:
    partition = PartitionIndex(TO)
    partition.add(mapping(0, 10, [[0, 0, 10]]))
    partition.add(mapping(10, 50, []))
    assert partition.translate(30, 0) == (10, True, None)
    partition.add(mapping(50, 52, [[50, 12, 2]]))
    assert partition.translate(30, 0) == (12, True, None)


def test_destinations_count_once_records_have_gone_there() -> None:
    partition = PartitionIndex(TO)
    partition.add(mapping(0, 0, [], to="a"))
    partition.add(mapping(0, 1, [[0, 0, 1]], to="b"))
    assert {d.topic for d in partition.destinations} == {"b"}
    partition.add(mapping(1, 2, [[1, 0, 1]], to="c"))
    assert {d.topic for d in partition.destinations} == {"b", "c"}


@pytest.mark.parametrize("offset", [0, 4])
def test_without_any_mapping_the_log_start_is_the_answer(offset: int) -> None:
    assert PartitionIndex(TO).translate(offset, 0) == Translation(
        None, False, translation_index.BEFORE_HISTORY
    )


@settings(deadline=None)
@given(histories())
def test_translation_never_goes_back_while_the_source_goes_on(history: History) -> None:
    partition = indexed(history)
    found = [partition.translate(o, history.origin).offset for o in all_offsets(history)]
    assert all((a or 0) <= (b or 0) for a, b in pairwise(found))


def test_an_earlier_translation_of_an_offset_beyond_says_nothing_about_offsets_before_it() -> None:
    """A group stood at 100 when the copies ended at 50. What is copied after that, up to 100, lies behind 50,
    but no longer below."""
    found = Index(1000, 10**9)
    found.seed("orders", KEY, TO, [Point(100, 50, False)])
    found.add(mapping(60, 80, []), 0)
    assert found.partitions[KEY].translate(70, 0) == (None, False, translation_index.BEFORE_HISTORY)
    found.add(mapping(80, 90, [[80, 45, 10]]), 0)
    assert found.partitions[KEY].translate(70, 0) == (45, True, None)
    assert found.partitions[KEY].translate(100, 0) == (55, False, translation_index.AHEAD)


ROUTES = ["orders", "de", "fr"]


@st.composite
def routed_histories(draw: st.DrawFn) -> tuple[History, dict[str, History]]:
    """Transactions whose records go to several topics, the own destination first; by topic, what lies
    there."""
    origin = draw(st.integers(0, 5))
    its = {topic: History(origin, draw(st.integers(0, 5))) for topic in ROUTES}
    ends = {topic: of.start for topic, of in its.items()}
    whole = History(origin, 0, [mapping(origin, origin, [])])
    at = origin
    for _ in range(draw(st.integers(1, 8))):
        start, runs = at, dict[str, list[list[int]]]()
        for _ in range(draw(st.integers(0, 5))):
            at += draw(st.integers(0, 1))
            topic = draw(st.sampled_from(ROUTES))
            runs.setdefault(topic, []).append([at, ends[topic], 1])
            its[topic].pairs.append((at, ends[topic]))
            whole.pairs.append((at, 0))
            at, ends[topic] = at + 1, ends[topic] + 1
        for topic in runs:
            ends[topic] += draw(st.integers(1, 2))
        at += draw(st.integers(0, 2))
        routed = tuple(Routed(topic, found) for topic, found in runs.items() if topic != "orders")
        one = dataclasses.replace(mapping(start, at, runs.get("orders", [])), routed=routed)
        whole.mappings.append(one)
    for of in its.values():
        of.mappings = whole.mappings
    return whole, its


@settings(deadline=None)
@given(routed_histories(), st.integers(0, 3))
def test_every_offset_is_exact_in_each_topic_that_records_go_to(
    made: tuple[History, dict[str, History]], first: int
) -> None:
    """Promise: the first record at or behind the offset that lies in this topic, or behind its last one; also
    of a topic that comes late, of which no earlier mapping tells."""
    whole, its = made
    found = Index(10**6, 10**9)
    for number, m in enumerate(whole.mappings):
        found.add(m, number)
    own = found.partitions[KEY]
    assert own.routes.keys() == {topic for topic, of in its.items() if of.pairs} - {"orders"}
    for topic, of in its.items():
        if not of.pairs:
            continue
        partition = own if topic == "orders" else own.routes[topic]
        for offset in range(whole.origin, whole.next + 1):
            there = partition.translate(offset, whole.origin)
            assert (there.offset, there.exact) == (of.truth(offset), True)
    assert found.entries == len(own) + sum(map(len, own.routes.values()))
    ends = {(topic, 0): of.end for topic, of in its.items() if of.pairs}
    assert found.copied_ends() == ends
    # Where mappings have expired, never past a record.
    later = Index(10**6, 10**9)
    for number, m in enumerate(whole.mappings[first:]):
        later.add(m, number)
    if KEY in later.partitions:
        for topic, partition in {"orders": later.partitions[KEY], **later.partitions[KEY].routes}.items():
            check_never_past(its[topic], partition)


@settings(deadline=None)
@given(routed_histories(), st.data())
def test_missing_mappings_never_pass_a_record_of_a_route(
    made: tuple[History, dict[str, History]], data: st.DataObject
) -> None:
    whole, its = made
    found = Index(10**6, 10**9)
    for m in whole.mappings:
        if data.draw(st.booleans()):
            found.add(m, 0)
    if KEY in found.partitions:
        for topic, partition in found.partitions[KEY].routes.items():
            check_never_past(its[topic], partition)


def test_what_is_spread_by_keys_has_no_position_and_disturbs_none() -> None:
    found = Index(10**6, 10**9)
    spread = (Routed("de", [[50, 0, 1]], 5), Routed("de", [[51, 7, 1], [53, 8, 1]], 0))
    found.add(dataclasses.replace(mapping(50, 60, [[52, 20, 1]]), routed=spread), 0)
    of = found.partitions[KEY]
    assert of.routes == {} and found.copied_ends() == {(TO.topic, TO.partition): 21}
    assert of.translate(50, 50) == Translation(20, True) and of.translate(53, 50) == Translation(21, True)


def test_what_was_translated_to_a_route_is_known_when_its_mappings_are_gone() -> None:
    found = Index(10**6, 10**9)
    found.seed("orders", KEY, TO, [Point(40, 9, True)])
    found.seed_route(KEY, "de", [Point(40, 3, True)])
    found.seed_route(("other", 0), "de", [Point(40, 3, True)])
    found.add(mapping(50, 60, [[50, 20, 10]]), 0)
    of = found.partitions[KEY].routes["de"]
    assert of.translate(40, 0) == Translation(3, True)
    assert of.translate(55, 0).offset == 3 and not of.translate(55, 0).exact
    found.add(dataclasses.replace(mapping(60, 70, []), routed=(Routed("de", [[65, 7, 1]]),)), 0)
    assert of.translate(55, 0) == Translation(7, True)
