"""How far a topic is on its way out of the link: which of several records counts, and up to where it is
copied."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ControlError
from common.link.control_state import Control
from common.link.promotions import destinations
from tests.support.control_json import encode

KEYS = [("id", 0), ("id", 1)]


def promotion(state: str, **more: Any) -> tuple[str, dict[str, Any]]:
    ends = {} if state == "copied" else {"ends": [10, 20]}
    return "promotion", {
        "topic": "t",
        "topic_id": "id",
        "destination": "copy.t",
        "state": state,
        **ends,
        **more,
    }


def let_go(partition: int, reached: int, answers: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return "let-go", {
        "topic": "t",
        "topic_id": "id",
        "partition": partition,
        "next": reached,
        "answers": answers,
        **more,
    }


def control(*records: tuple[str, dict[str, Any]]) -> Control:
    out = Control()
    for kind, fields in records:
        out.apply(out.position, encode(kind, **fields))
    return out


TAKEN = (promotion("promoting"), let_go(0, 10, 0), let_go(1, 20, 0))
DONE = promotion("promoted", copied=[7, 0], answers=0)


def state(*records: tuple[str, dict[str, Any]]) -> str | None:
    found = control(*records).steering.promotions.get("t")
    return None if found is None else found.state


def test_a_topic_that_is_taken_is_not_read_and_nothing_is_copied_beyond_its_ends() -> None:
    steering = control(("pause", {"topics": ["u"], "paused": True}), promotion("promoting")).steering
    assert [steering.stops(name) for name in ("t", "u", "v")] == [True, True, False]
    assert steering.paused_by("t") is None
    of = steering.promotions["t"]
    assert [of.end(key) for key in (*KEYS, ("id", 2), ("made again", 0))] == [10, 20, 0, 0]
    assert [of.copied_end(key) for key in KEYS] == [None, None]
    # What is said of others leaves it as it is.
    for saying in (steering.with_pause([], False), steering.with_limit([], steering.link_limit)):
        assert saying.promotions == steering.promotions


def test_it_is_promoted_once_the_deduplicator_has_let_go_of_all_of_it() -> None:
    found = control(*TAKEN, DONE).steering.promotions
    assert [found["t"].copied_end(key) for key in (*KEYS, ("id", 2), ("made again", 0))] == [
        (10, 7),
        (20, 0),
        None,
        None,
    ]
    assert destinations(found) == {"copy.t"} and destinations(control(*TAKEN).steering.promotions) == set()
    assert state(*TAKEN[:2], DONE) == "promoting", "nobody has answered for partition 1"
    assert state(*TAKEN[:2], let_go(1, 21, 0), DONE) == "promoting", "it was delivered further"


@pytest.mark.parametrize(
    ("records", "wanted"),
    [
        ((*TAKEN, promotion("promoting"), DONE), "promoting"),  # another run has taken it
        ((promotion("promoting"), promotion("promoting"), *TAKEN[1:], DONE), "promoting"),
        ((*TAKEN[:2], let_go(1, 20, 0, topic_id="another"), DONE), "promoting"),
        ((*TAKEN, DONE, promotion("promoting")), "promoted"),
        ((*TAKEN, promotion("copied", answers=0), DONE), None),
        ((*TAKEN, DONE, promotion("copied", answers=0)), None),
        ((*TAKEN, DONE, promotion("copied", answers=3)), "promoted"),  # of a run long gone
        ((*TAKEN, DONE, promotion("copied")), "promoted"),
        ((DONE,), None),
    ],
)
def test_what_speaks_of_another_run_changes_nothing(
    records: tuple[tuple[str, dict[str, Any]], ...], wanted: str | None
) -> None:
    assert state(*records) == wanted


@pytest.mark.parametrize(
    "fields", [{"state": "gone"}, {"copied": [1], "state": "promoted"}, {"ends": [-1]}, {"ends": "10"}]
)
def test_a_damaged_record_is_told(fields: dict[str, Any]) -> None:
    with pytest.raises(ControlError):
        control(("promotion", {**promotion("promoting")[1], **fields}))


RECORDS = st.one_of(
    st.sampled_from([promotion("promoting"), *TAKEN[1:], DONE, let_go(0, 11, 0)]),
    st.integers(0, 6).map(lambda at: let_go(0, 10, at)),
    st.integers(0, 6).map(lambda at: let_go(1, 20, at)),
    st.integers(0, 6).map(lambda at: promotion("promoted", copied=[7, 0], answers=at)),
    st.integers(0, 6).map(lambda at: promotion("copied", answers=at)),
)


@given(st.lists(RECORDS, max_size=12))
def test_it_is_never_promoted_but_by_the_run_that_was_answered(
    records: list[tuple[str, dict[str, Any]]],
) -> None:
    found = control(*records).steering.promotions.get("t")
    if found is None or found.state != "promoted":
        return
    after = [fields for kind, fields in records[found.at + 1 :] if fields.get("answers") == found.at]
    answered = {fields["partition"]: fields["next"] for fields in after if "partition" in fields}
    assert records[found.at] == promotion("promoting")
    assert answered.keys() == {0, 1} and any(fields.get("state") == "promoted" for fields in after)
