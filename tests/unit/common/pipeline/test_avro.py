"""Avro: what filters and masks make of records of any schema is what the second implementation makes of them,
what fastavro reads is what was written but for what is masked, and no bytes do harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.link.schema_map import Mapped, Reference
from common.pipeline.avro_values import Schemas
from common.pipeline.batch import Awaited
from common.pipeline.engine import Outcome
from tests.support.avro import AVRO, batches, of_one, read, written
from tests.support.pipelines import FEW, applied, judged_alike, pipeline

paths = st.sampled_from(
    ["a", "b", "a.b", "a.a", "a[*]", "a[*].b", "b[*].a", "value", "x.a", "b.x", "a[*][*]"]
)
tests = st.sampled_from(
    [
        "a",
        5,
        None,
        True,
        {"exists": True},
        {"exists": False},
        {"gt": 0},
        {"lt": 1.5},
        {"matches": ".*"},
        {"in": ["a", 0]},
    ]
)
conditions = st.dictionaries(paths, tests, min_size=1, max_size=2)
methods = st.sampled_from(["redact", "null", "hmac", "encrypt", {"partial": {"last": 2}}])


@FEW
@given(batches(), conditions)
def test_filter(batch: Any, asked: Any) -> None:
    texts, given_records = batch
    judged_alike(pipeline({"filter": {"keep": asked}}, **AVRO), given_records, texts=texts)


@FEW
@given(
    batches(),
    st.dictionaries(st.sampled_from(["a.b", "b[*].a", "x", "a[*]"]), methods, min_size=1, max_size=2),
)
def test_mask(batch: Any, fields: Any) -> None:
    if len(fields) > 1 and {"a.b", "a[*]"} <= set(fields):
        del fields["a.b"]
    texts, given_records = batch
    found = judged_alike(
        pipeline({"mask": {"key": "k1", "fields": fields}}, **AVRO), given_records, texts=texts
    )
    for item in found.rows.column(4).to_pylist():
        if item is not None:
            read(json.loads(texts[int.from_bytes(item[1:5], "big")]), item)


SCHEMA = {
    "type": "record",
    "name": "n.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "email", "type": ["null", "string"]},
        {"name": "cards", "type": {"type": "array", "items": {
            "type": "record", "name": "Card", "fields": [{"name": "iban", "type": "string"}]}}},
        {"name": "next", "type": ["null", "Order"]},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}  # fmt: skip
TEXTS = {7: json.dumps(SCHEMA)}


def order(n: int, **given_fields: Any) -> dict[str, Any]:
    uid = f"6b1bd2a4-0000-4000-8000-00000000000{n % 10}"
    return {
        "id": n,
        "email": f"{n}@x",
        "cards": [{"iban": "I" * (60 + n)}] * (n % 4),
        "next": None,
        "uid": uid,
    } | given_fields


def out(made: Any, *items: bytes | None) -> list[bytes | None]:
    return list(
        applied(made, [(None, item, None, 0) for item in items], texts=TEXTS).rows.column(4).to_pylist()
    )


def test_what_is_masked_is_hidden_and_all_else_is_what_it_was() -> None:
    orders = [order(n, next=order(n + 1)) for n in range(50)] + [order(3, email=None)]
    made = pipeline(
        {"mask": {"fields": {"email": "null", "cards[*].iban": {"partial": {"last": 1}}}}}, **AVRO
    )
    for was, item in zip(orders, out(made, *(written(SCHEMA, one) for one in orders)), strict=True):
        cards = [{"iban": "*" * (len(card["iban"]) - 1) + "I"} for card in was["cards"]]
        assert item == written(SCHEMA, was | {"email": None, "cards": cards})


def test_what_its_schema_can_not_hold_is_a_failure_of_the_stage_by_name() -> None:
    for path, method, why in [
        ("id", "redact", "long"),
        ("id", "null", "can't be null"),
        ("uid", "hmac", "string"),
    ]:
        made = pipeline({"mask": {"key": "k1", "fields": {path: method}}}, **AVRO)
        found = judged_alike(made, [(None, written(SCHEMA, order(1)), None, 0)], texts=TEXTS)
        assert path in found.failures[0].reason and why in found.failures[0].reason


def test_a_record_whose_schema_is_not_known_waits_before_its_first_stage() -> None:
    made = pipeline({"headers": {"remove": ["x"]}}, **AVRO)
    found = judged_alike(made, [(None, written(SCHEMA, order(1), n), None, 0) for n in (7, 8)], texts=TEXTS)
    assert found.outcomes.tolist() == [Outcome.KEPT, Outcome.WAITS]
    assert found.waits[0].schema == Awaited(".", 8, text=True)


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize(
    "item",
    [
        b"\x02\x02" + b"a" * 10,
        b"\x80" * 30,
        b"\x02\x00" + b"\xfe" * 9 + b"\x01",
        b"\x02\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x02\x00\x00" + b"\x02\x02\x00\x00" * 200,
        b"\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    ],
)
def test_ill_formed_bytes_are_a_failure_of_the_stage(item: bytes, count: int) -> None:
    made = pipeline({"filter": {"keep": {"email": {"exists": True}}}}, **AVRO)
    whole = b"\0\0\0\0\7" + item
    found = judged_alike(made, [(None, whole, None, 0)] * count, texts=TEXTS)
    assert (found.outcomes == Outcome.FAILED).all()
    assert {failure.reason for failure in found.failures} == {"the value is not as its schema says"}


ARRAY = {"type": "array", "items": "string"}
LEAST_LONG = b"\xff" * 9 + b"\1"


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize(
    ("kind", "sound", "ill"),
    [
        ("long", LEAST_LONG, b"\x80" * 9 + b"\2"),
        ("boolean", b"\1", b"\2"),
        (ARRAY, b"\0", LEAST_LONG + b"\0"),
        (ARRAY, b"\2\0\0", b"\4\0\0"),
        (ARRAY, b"\1\2\0\0", b"\1\2\0\0\0"),
    ],
)
def test_of_each_type_what_is_none_is_told_from_what_is(
    kind: Any, sound: bytes, ill: bytes, count: int
) -> None:
    made = pipeline({"filter": {"keep": {"a": {"exists": True}}}}, **AVRO)
    for body, outcome in ((sound, {Outcome.KEPT, Outcome.LEFT_OUT}), (ill, {Outcome.FAILED})):
        found = judged_alike(made, [(None, b"\0\0\0\0\7" + body, None, 0)] * count, texts=of_one(kind))
        assert set(found.outcomes) <= outcome


@pytest.mark.parametrize("count", [1, 20])
def test_what_a_path_does_not_lead_to_and_what_is_no_text_fails_the_stage_by_name(count: int) -> None:
    no_text = b"\0\0\0\0\7\2\xff"
    deep = order(0)
    for n in range(40):
        deep = order(n, next=deep)
    for stage, texts, item, why in [
        ({"mask": {"fields": {"id.x": "redact"}}}, TEXTS, written(SCHEMA, order(1)), "something else"),
        ({"mask": {"fields": {"a": "redact"}}}, of_one("string"), no_text, "UTF-8"),
        ({"filter": {"keep": {"a": "b"}}}, of_one("string"), no_text, "UTF-8"),
        ({"filter": {"keep": {"id": 1}}}, TEXTS, written(SCHEMA, deep), "is not as its schema says"),
    ]:
        found = judged_alike(pipeline(stage, **AVRO), [(None, item, None, 0)] * count, texts=texts)
        assert [why in failure.reason for failure in found.failures] == [True] * count


@pytest.mark.parametrize("count", [1, 20])
def test_null_stays_null_and_what_is_no_number_is_no_number(count: int) -> None:
    made = pipeline({"mask": {"fields": {"email": "redact"}}}, **AVRO)
    item = written(SCHEMA, order(1, email=None))
    found = judged_alike(made, [(None, item, None, 0)] * count, texts=TEXTS)
    assert set(found.outcomes) == {Outcome.KEPT}
    for test in ({"lt": 0}, {"gt": 0}, {"in": [0]}):
        made = pipeline({"filter": {"keep": {"a": test}}}, **AVRO)
        for kind in ("float", "double"):
            texts = of_one(kind)
            items = [written(json.loads(texts[7]), {"a": float(n)}) for n in ("nan", "inf", "-inf")]
            found = judged_alike(made, [(None, item, None, 0) for item in items * count], texts=texts)
            assert set(found.outcomes) == {Outcome.LEFT_OUT}


def test_a_schema_that_refers_to_others_is_none_to_read_by() -> None:
    of = Mapped(1, "", (Reference("a", "b", 1),), TEXTS[7])
    assert Schemas(lambda *_: of, ".").of(7) == "refers to others"


def _doubling(depth: int) -> Any:
    """A record of nothing but 2^depth records."""
    if not depth:
        return {"type": "record", "name": "R0", "fields": []}
    of = [{"name": "a", "type": _doubling(depth - 1)}, {"name": "b", "type": f"R{depth - 1}"}]
    return {"type": "record", "name": f"R{depth}", "fields": of}


@pytest.mark.parametrize("count", [1, 20])
def test_types_that_hold_each_other_end_where_the_bytes_do(count: int) -> None:
    twice = [{"name": name, "type": ["R", "null"]} for name in "ab"]
    text = json.dumps({"type": "record", "name": "R", "fields": twice})
    made = pipeline({"filter": {"keep": {"a": None}}}, **AVRO)
    for body in (b"", bytes(10), bytes(100), b"\0" * 5 + b"\2" * 6, b"\2\2"):
        judged_alike(made, [(None, b"\0\0\0\0\7" + body, None, 0)] * count, texts={7: text})


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]x", '"other.Name"', '{"type":"array","items":"null"}', '{"type":"nothing"}', '{"type":"fixed","name":"F"}',
     json.dumps(_doubling(13)), '{"type":"array","items":' * 70 + '"int"' + "}" * 70],
)  # fmt: skip
def test_a_schema_that_records_can_not_be_read_by_is_a_failure_of_the_stage(text: str) -> None:
    made = pipeline({"filter": {"keep": {"email": {"exists": True}}}}, **AVRO)
    found = judged_alike(made, [(None, b"\0\0\0\0\7\0", None, 0)], texts={7: text})
    assert found.failures[0].reason.startswith("the value has schema 7, which ")


def test_stages_that_do_not_read_avro_are_refused() -> None:
    for stage in [{"fields": {"drop": ["a"]}}, {"key": "a"}, {"sql": "SELECT * FROM records"}]:
        with pytest.raises(Exception, match="not built for Avro"):
            pipeline(stage, **AVRO)
    pipeline({"key": "header.x"}, **AVRO)
