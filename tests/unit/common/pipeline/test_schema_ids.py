"""The stage `schema-ids`: what becomes of ids, and of what has none; and that it is the same in the second
implementation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kafka.wire.records import Header, Item
from common.pipeline.batch import Awaited
from common.pipeline.engine import Outcome
from common.pipeline.models import Pipeline
from tests.support.pipelines import FIRST_OFFSET, Given, applied, judged_alike, pipeline

BOTH = {"key": "confluent", "value": "confluent"}
EIGHT = {"key": "apicurio", "value": "apicurio"}


def made(
    *before: Any, wire: dict[str, str] | None = None, on_error: Any = "halt", **options: str
) -> Pipeline:
    stages = [*before, {"schema-ids": options}]
    return pipeline(*stages, value="bytes", wire=wire or BOTH, onError=on_error)


def framed(schema_id: int, payload: bytes = b"", size: int = 4) -> bytes:
    return b"\0" + schema_id.to_bytes(size, "big") + payload


def ids(**known: int) -> dict[tuple[str, int], int]:
    return {(".", int(name[1:])): target for name, target in known.items()}


def one(flow: Pipeline, record: Given, known: dict[tuple[str, int], int]) -> tuple[Outcome, Any]:
    found = judged_alike(flow, [record], ids=known)
    rows = found.rows.to_pylist()
    return Outcome(found.outcomes[0]), (rows[0]["key"], rows[0]["value"]) if rows else None


def test_the_id_is_another_one_and_all_behind_it_is_as_it_was() -> None:
    """Protobuf's message indexes, too."""
    key, value = framed(7, b"\2\4k"), framed(0x01020304, b"\0\0\0\0\7payload")
    known = ids(_7=0xFFFFFFFE, _16909060=1)
    wanted = framed(0xFFFFFFFE, b"\2\4k"), framed(1, b"\0\0\0\0\7payload")
    assert one(made(), (key, value, [("a", b"b")], 5), known) == (Outcome.CHANGED, wanted)
    only = made(wire={"value": "confluent"})
    assert one(only, (key, value, None, 5), known) == (Outcome.CHANGED, (key, wanted[1]))


def test_ids_of_eight_bytes_become_others_of_as_many() -> None:
    """As Apicurio's own serializers write them; one kind beside the other, too."""
    large = (1 << 62) + 7
    known = {(".", 7): large, (".", large): 3}
    record = (framed(large, b"k", 8), framed(7, b"\2v", 8), None, 5)
    assert one(made(wire=EIGHT), record, known) == (
        Outcome.CHANGED,
        (framed(3, b"k", 8), framed(large, b"\2v", 8)),
    )
    mixed = {"key": "confluent", "value": "apicurio"}
    record = (framed(7, b"k"), framed(large, b"v", 8), None, 5)
    assert one(made(wire=mixed), record, {(".", 7): 8, (".", large): 3}) == (
        Outcome.CHANGED,
        (framed(8, b"k"), framed(3, b"v", 8)),
    )
    assert one(made(wire=EIGHT), (None, framed(7, b"", 8), None, 5), ids(_7=7))[0] == Outcome.KEPT
    assert one(made(wire=EIGHT), (None, framed(9, b"", 8), None, 5), ids(_7=7))[0] == Outcome.WAITS


@pytest.mark.parametrize("item", [framed(7, b"abc"), bytes(9), b"\1" + bytes(15) + b"\7", b""])
def test_what_has_no_id_of_eight_bytes_in_front_is_refused_or_kept(item: bytes) -> None:
    record = (None, item, None, 5)
    assert one(made(wire=EIGHT), record, ids(_7=8)) == (Outcome.FAILED, None)
    assert one(made(wire=EIGHT, onUnframed="keep"), record, ids(_7=8)) == (Outcome.KEPT, (None, item))


def test_tombstones_null_keys_and_ids_that_stay_are_kept() -> None:
    known = ids(_7=7)
    for record in ((None, framed(7)), (framed(7), None), (None, None), (framed(7), framed(7, b"x"))):
        assert one(made(), (*record, None, 0), known) == (Outcome.KEPT, record)


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize(
    ("item", "headers"),
    [
        (b"", None),
        (b"\0\0\0\0", None),
        (b'{"a": 1}', None),
        (b"\1" + bytes(16) + b"guid", None),
        (b"\0" + (7).to_bytes(8, "big") + b"an id of 8 bytes", None),
        (framed(7), [("__{}_schema_id", b"\1" + bytes(16))]),
    ],
)
def test_what_has_no_id_in_front_is_refused_or_kept(
    side: str, item: bytes, headers: list[Header] | None
) -> None:
    """A schema that is named by a GUID, in front or in a header, is none that the map knows."""
    headers = [(name.format(side), value) for name, value in headers or ()] or None
    record = (item, None, headers, 0) if side == "key" else (None, item, headers, 0)
    assert one(made(), record, ids(_7=8)) == (Outcome.FAILED, None)
    assert one(made(onUnframed="keep"), record, ids(_7=8)) == (Outcome.KEPT, record[:2])
    (failure,) = applied(made(), [record]).failures
    assert failure.stage == "stage 1 (schema-ids)" and failure.reason.startswith(
        f"the {side} has no schema's id"
    )


def test_a_header_of_the_other_side_or_without_a_value_names_nothing() -> None:
    for name, value in (("__key_schema_id", b"\1"), ("__value_schema_id", None)):
        flow = made(wire={"value": "confluent"})
        record = (None, framed(7), [(name, value)], 0)
        assert one(flow, record, ids(_7=8)) == (Outcome.CHANGED, (None, framed(8)))


def test_who_waits_is_told_with_its_schema_and_others_are_judged_without_it() -> None:
    records = [(framed(1), framed(n), None, 0) for n in (1, 2, 1, 3)]
    found = judged_alike(made(), records, ids=ids(_1=11, _3=13))
    assert [Outcome(o).name for o in found.outcomes] == ["CHANGED", "WAITS", "CHANGED", "CHANGED"]
    (wait,) = found.waits
    assert (wait.offset, wait.schema, wait.stage) == (
        FIRST_OFFSET + 1,
        Awaited(".", 2),
        "stage 1 (schema-ids)",
    )
    assert "schema 2 of the value" in wait.reason and not found.failures


def test_ids_are_those_of_a_context() -> None:
    known = {(".", 7): 1, (".eu", 7): 2}
    record = (None, framed(7), None, 0)
    assert one(made(context=".eu"), record, known) == (Outcome.CHANGED, (None, framed(2)))
    assert one(made(), record, known) == (Outcome.CHANGED, (None, framed(1)))


def test_a_record_that_fails_fails_whatever_becomes_known() -> None:
    record = (framed(7), b"nothing", None, 0)
    for known in (ids(), ids(_7=8)):
        assert one(made(), record, known) == (Outcome.FAILED, None)


def test_what_an_earlier_stage_leaves_out_needs_no_id() -> None:
    flow = made({"filter": {"drop": {"header.x": "y"}}})
    assert one(flow, (None, framed(7), [("x", b"y")], 0), ids()) == (Outcome.LEFT_OUT, None)


def test_where_the_stage_is_not_meant_ids_stay() -> None:
    flow = pipeline(
        {"when": {"header.x": {"exists": False}}, "schema-ids": {}},
        value="bytes",
        wire={"value": "confluent"},
    )
    records: list[Given] = [
        (None, framed(7), [("x", b"y")], 0),
        (None, framed(7), None, 0),
        (None, framed(9), None, 0),
    ]
    found = judged_alike(flow, records, ids=ids(_7=8))
    assert [Outcome(o).name for o in found.outcomes] == ["KEPT", "CHANGED", "WAITS"]
    assert found.waits[0].offset == FIRST_OFFSET + 2


items: st.SearchStrategy[Item] = (
    st.none()
    | st.builds(framed, st.integers(0, 6), st.binary(max_size=3), st.sampled_from([4, 4, 8]))
    | st.sampled_from([b"", b"\0\0\0\0", b"\1abcdefgh", framed(1 << 31)])
)
names = st.sampled_from(["__key_schema_id", "__value_schema_id", "x"])
headers = st.none() | st.lists(st.tuples(names, st.none() | st.just(b"\1")), max_size=2)
batches = st.lists(st.tuples(items, items, headers, st.integers(0, 2**40)), max_size=8)
maps = st.dictionaries(st.tuples(st.just("."), st.integers(0, 6)), st.integers(0, 2**32 - 1), max_size=7)


@given(batches, maps, st.sampled_from(["halt", "keep"]), st.sampled_from([BOTH, EIGHT, {"key": "confluent"}]))
def test_both_implementations_make_the_same_of_it(
    records: list[Given], known: dict[tuple[str, int], int], on_unframed: str, wire: dict[str, str]
) -> None:
    judged_alike(made(wire=wire, onUnframed=on_unframed), records, ids=known)


@given(batches, maps, st.sampled_from([BOTH, EIGHT]), st.data())
def test_what_was_decided_stays_when_more_becomes_known_and_however_records_are_cut(
    records: list[Given], known: dict[tuple[str, int], int], wire: dict[str, str], data: st.DataObject
) -> None:
    """Sent again, later, by another lane that has read more of the map, or in other batches, a record that
    went on is what it was; no id goes through that the map does not know."""
    flow, end = made(wire=wire, on_error="skip"), 9 if wire is EIGHT else 5
    less = dict(data.draw(st.permutations(list(known.items())))[: data.draw(st.integers(0, len(known)))])
    before, after = applied(flow, records, less), applied(flow, records, known)
    later = {row["offset"]: row for row in after.rows.to_pylist()}
    for row in before.rows.to_pylist():
        assert later[row["offset"]] == row
    for number, record in enumerate(records):
        alone = applied(flow, [record], known)
        assert alone.outcomes[0] == after.outcomes[number]
    for row in after.rows.to_pylist():
        for side in ("key", "value"):
            item = row[side]
            assert item is None or int.from_bytes(item[1:end], "big") in known.values()
