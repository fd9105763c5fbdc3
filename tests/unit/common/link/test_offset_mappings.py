"""Mapping records are the truth: read back exactly, and refused when anything about them is odd."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import StateError
from common.link import offset_mappings
from common.link.offset_mappings import Mapping, Routed
from tests.support import strategies

SOME = Mapping("c", "orders", "id", 3, 5, 9, "copy", 3, 40, 3, 1, 0, [[5, 100, 2], [8, 102, 1]])
N = strategies.OFFSETS


@given(
    st.builds(
        Mapping, strategies.TEXT, strategies.TEXT, strategies.TEXT, N, N, N, strategies.TEXT, N, N, N, N, N,
        st.lists(st.lists(N, min_size=3, max_size=3), max_size=4), N,
    )
)  # fmt: skip
def test_a_mapping_is_read_back(mapping: Mapping) -> None:
    value = offset_mappings.encode(mapping)[1]
    assert offset_mappings.decode(value) == mapping
    assert offset_mappings.reached(value) == (
        (mapping.topic_id, mapping.partition),
        mapping.next,
        mapping.pipeline,
        mapping.staging_offset,
    )


def test_the_record_does_not_change() -> None:
    key, value = offset_mappings.encode(SOME)
    assert orjson.loads(key) == {"topic": "orders", "partition": 3}
    assert orjson.loads(value) == {
        "v": 1,
        "cluster": "c",
        "topic": "orders",
        "topic_id": "id",
        "partition": 3,
        "start": 5,
        "next": 9,
        "destination_topic": "copy",
        "destination_partition": 3,
        "staging_offset": 40,
        "records": 3,
        "duplicates": 1,
        "runs": [[5, 100, 2], [8, 102, 1]],
    }
    assert orjson.loads(offset_mappings.encode(dataclasses.replace(SOME, lost=2))[1])["lost"] == 2
    assert orjson.loads(offset_mappings.encode(dataclasses.replace(SOME, pipeline=2))[1])["pipeline"] == 2


READERS = pytest.mark.parametrize("read", [offset_mappings.decode, offset_mappings.reached])


@READERS
def test_another_version_is_refused(read: Callable[[bytes | None], object]) -> None:
    with pytest.raises(StateError, match="version 4"):
        read(orjson.dumps({**orjson.loads(offset_mappings.encode(SOME)[1]), "v": 4}))


def test_one_with_routes_has_a_version_that_an_earlier_release_refuses() -> None:
    """It would take what lies in other topics for left out."""
    some = dataclasses.replace(SOME, routed=(Routed("de", [[7, 0, 1]]),))
    value = orjson.loads(offset_mappings.encode(some)[1])
    assert value["v"] == 2 and offset_mappings.decode(orjson.dumps(value)) == some
    own = some.destination_partition
    assert some.places == {("copy", own): some.runs, ("de", own): [[7, 0, 1]]}
    del value["routed"]
    with pytest.raises(StateError):
        offset_mappings.decode(orjson.dumps(value))


def test_one_whose_records_are_in_other_partitions_has_a_version_of_its_own_too() -> None:
    some = dataclasses.replace(SOME, routed=(Routed("de", [[7, 0, 1]], 5), Routed("de", [[6, 4, 1]], 0)))
    value = orjson.loads(offset_mappings.encode(some)[1])
    assert value["v"] == 3 and offset_mappings.decode(orjson.dumps(value)) == some
    own = some.destination_partition
    assert some.places == {("copy", own): some.runs, ("de", 5): [[7, 0, 1]], ("de", 0): [[6, 4, 1]]}
    value["routed"][0]["partition"] = -1
    with pytest.raises(StateError):
        offset_mappings.decode(orjson.dumps(value))


@pytest.mark.parametrize("names", [("copy",), ("de", "de")])
def test_a_topic_has_its_runs_at_one_place(names: tuple[str, ...]) -> None:
    some = dataclasses.replace(SOME, routed=tuple(Routed(name, []) for name in names))
    with pytest.raises(StateError, match="one topic at two places"):
        offset_mappings.decode(offset_mappings.encode(some)[1])


FIELDS = [f.name for f in dataclasses.fields(Mapping)]
TEXTS = ["cluster", "topic", "topic_id", "destination_topic"]


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_is_missing_or_of_another_type_is_refused(name: str) -> None:
    dead = offset_mappings.Letters("dead", 1, [[7, 2, 1]])
    routed = (Routed("de", [[6, 0, 1]]),)
    some = dataclasses.replace(SOME, lost=1, pipeline=2, dead_letters=dead, routed=routed)
    good = orjson.loads(offset_mappings.encode(some)[1])
    assert offset_mappings.decode(orjson.dumps(good)) == some
    wrong: list[Any] = [None, {"a": 1}, 1.5, True, [[1]], [[1, 2, "x"]], [[1, 2, 3, 4]], [1], -1]
    wrong.append(7 if name in TEXTS else "x")
    cases = [{**good, name: value} for value in wrong]
    if name == "dead_letters":
        cases += [{**good, name: {**good[name], part: []}} for part in ("topic", "partition")]
        cases += [{**good, name: {**good[name], "runs": runs}} for runs in (7, [[1, 2]], [[1, 2, "x"]])]
    if name == "routed":
        cases += [{**good, name: [{**good[name][0], "runs": runs}]} for runs in (7, [[1, 2]], [[1, 2, "x"]])]
        cases += [{**good, name: [{**good[name][0], "topic": 7}]}]
    if name not in ("lost", "pipeline", "dead_letters"):
        cases.append({k: v for k, v in good.items() if k != name})
    for case in cases:
        with pytest.raises(StateError):
            offset_mappings.decode(orjson.dumps(case))
        if name in ("topic_id", "partition", "next", "pipeline", "staging_offset"):
            with pytest.raises(StateError):
                offset_mappings.reached(orjson.dumps(case))


@READERS
@given(st.none() | st.binary(max_size=30) | strategies.JSON_VALUES.map(orjson.dumps))
def test_anything_else_is_refused(read: Callable[[bytes | None], object], value: bytes | None) -> None:
    with pytest.raises(StateError):
        read(value)
