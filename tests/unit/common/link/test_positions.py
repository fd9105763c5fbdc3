"""Positions are hints: what was written is read back, and nothing is made of anything else."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.link import positions
from common.link.positions import Position
from tests.support import strategies

KEY = {"topic_id": "id", "partition": 3}
VALUE = {"topic": "orders", "next": 7, "leader_epoch": 2, "handled": 40}


@given(
    strategies.TEXT,
    strategies.TEXT,
    st.integers(0, 2**31 - 1),
    strategies.OFFSETS,
    st.none() | st.integers(0, 99),
    st.integers(-1, 2**62),
    st.just((0, ()))
    | st.tuples(st.integers(0, 99), st.lists(strategies.OFFSETS, min_size=1, max_size=3).map(tuple)),
)
def test_a_position_is_read_back(
    topic: str,
    tid: str,
    part: int,
    at: int,
    epoch: int | None,
    handled: int,
    let_by: tuple[int, tuple[int, ...]],
) -> None:
    position = Position(at, epoch, handled, *let_by)
    assert positions.decode(*positions.encode(topic, (tid, part), position)) == ((tid, part), position)


def test_the_record_does_not_change() -> None:
    key, value = positions.encode("orders", ("id", 3), Position(7, 2, 40))
    assert (orjson.loads(key), orjson.loads(value)) == (KEY, VALUE)


WRONG: list[Any] = ["5", 5.0, True, [5], {}, -2]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(({**KEY, "topic_id": x}, VALUE) for x in (None, 5, ["id"])),
        *(({**KEY, "partition": x}, VALUE) for x in [None, *WRONG, -1]),
        *((KEY, {**VALUE, "next": x}) for x in [None, *WRONG, -1]),
        *((KEY, {**VALUE, "handled": x}) for x in [None, *WRONG]),
        *((KEY, {**VALUE, "leader_epoch": x}) for x in WRONG[:-1]),
        *((KEY, {**VALUE, "pipeline": x, "tolerated": [1]}) for x in [None, *WRONG[:-1]]),
        *((KEY, {**VALUE, "pipeline": 1, "tolerated": x}) for x in (None, 5, ["5"], [None], [5.0], "x")),
        *(
            (KEY, {k: v for k, v in VALUE.items() if k != name})
            for name in ("next", "handled", "leader_epoch")
        ),
        ({}, VALUE),
        ([], []),
        ("id", "x"),
        (None, None),
    ],
)
def test_what_is_no_position_is_none(key: Any, value: Any) -> None:
    """A negative one above all: to the client, -1 is the end of the log."""
    assert positions.decode(orjson.dumps(key), orjson.dumps(value)) is None


@given(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=20))
def test_any_bytes_are_none(key: bytes | None, value: bytes | None) -> None:
    assert positions.decode(key, value) is None
    assert positions.decode(orjson.dumps(KEY), value) is None
    assert positions.decode(key, orjson.dumps(VALUE)) is None


def test_a_huge_number_is_none() -> None:
    for number in (b"1e308", b"1e400", b"1" + b"0" * 40):
        assert (
            positions.decode(orjson.dumps(KEY), b'{"next":' + number + b',"leader_epoch":1,"handled":1}')
            is None
        )


@given(strategies.JSON_VALUES, strategies.JSON_VALUES)
def test_any_json_is_none(key: Any, value: Any) -> None:
    assert positions.decode(orjson.dumps(key), orjson.dumps(value)) is None


@pytest.mark.parametrize(
    "key", [None, b"", b"x", b"[]", b'{"topic_id":[],"partition":0}', b'{"topic_id":"i","partition":"0"}']
)
def test_only_a_position_can_be_forgotten(key: bytes | None) -> None:
    assert positions.forgotten(key, None) is None
    assert positions.forgotten(orjson.dumps(KEY), None) == (KEY["topic_id"], KEY["partition"])
