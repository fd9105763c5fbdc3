"""The stage `convert`: JSON of Avro says what fastavro reads, Avro of JSON is read by fastavro as what was
said, back and forth is what there was, and the second implementation makes the same of all of it."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.pipeline.batch import Awaited
from common.pipeline.engine import Outcome
from tests.support.avro import AVRO, batches, name_each, of_one, read, records, written
from tests.support.pipelines import FEW, Given, applied, judged_alike, pipeline

IDS = {(".", schema_id): 100 + schema_id for schema_id in range(1, 8)}
TO_JSON = {"convert": {"to": "json"}}
WIRE = {"wire": {"value": "confluent"}}


def to_avro(schema_id: int = 7) -> list[Any]:
    return [{"convert": {"to": "avro", "id": schema_id}}, {"schema-ids": {}}]


def as_json(value: Any) -> Any:
    """What JSON says of a value that fastavro reads."""
    if isinstance(value, dict):
        return {name: as_json(one) for name, one in value.items()}
    if isinstance(value, list):
        return [as_json(one) for one in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def has_no_json(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(has_no_json, inner)) or (isinstance(value, float) and not math.isfinite(value))


@FEW
@given(batches())
def test_json_of_avro_is_what_fastavro_reads(batch: Any) -> None:
    texts, given_records = batch
    found = judged_alike(pipeline(TO_JSON, **AVRO), given_records, texts=texts)
    rows = {row["offset"]: row["value"] for row in found.rows.to_pylist()}
    for offset, (_, item, _, _) in enumerate(given_records, 40):
        if item is None:
            assert rows[offset] is None
        elif offset in rows:
            schema = json.loads(texts[int.from_bytes(item[1:5], "big")])
            assert json.loads(rows[offset]) == as_json(read(schema, item))


@st.composite
def values(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    schema, value = draw(records())
    return schema, draw(st.lists(value, min_size=1, max_size=3))


@FEW
@given(values(), st.sampled_from([1, 20]))
def test_back_and_forth_is_what_there_was(made: Any, times: int) -> None:
    schema, given_values = made
    numbered = json.loads(json.dumps(schema))
    name_each(numbered, itertools.count())
    items = [written(numbered, value) for value in given_values] * times
    through = pipeline(TO_JSON, *to_avro(), **AVRO, **WIRE)
    found = judged_alike(
        through, [(None, item, None, 0) for item in items], ids=IDS, texts={7: json.dumps(numbered)}
    )
    kept = [item for item, value in zip(items, given_values * times, strict=True) if not has_no_json(value)]
    assert found.rows.column(4).to_pylist() == [b"\0\0\0\0\x6b" + item[5:] for item in kept]


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
    | st.sampled_from(["a", "B", "\x80\xff\x01"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "x"]), inner, max_size=3),
    max_leaves=9,
)  # fmt: skip
UNIONS = [
    ["null", "int", "long", "string"],
    ["double", "long", "bytes"],
    [
        {"type": "fixed", "name": "F", "size": 3},
        {"type": "enum", "name": "E", "symbols": ["a", "B"]},
        "string",
    ],
    {"type": "array", "items": ["null", "boolean", "float", "T"]},
    {"type": "map", "values": ["T", "string", {"type": "array", "items": ["T", "null", "int"]}]},
]


@FEW
@given(st.lists(documents, min_size=1, max_size=9), st.permutations(UNIONS), st.booleans())
def test_whatever_json_says_both_write_or_refuse_it(given_values: Any, unions: Any, defaults: bool) -> None:
    fields = [{"name": name, "type": kind} for name, kind in zip("abx", unions[:3], strict=True)]
    if defaults:
        fields[0]["default"] = "a"
        fields[1]["default"] = 5
    texts = {7: json.dumps({"type": "record", "name": "T", "fields": fields})}
    given_records: list[Given] = [(None, json.dumps(value).encode(), None, 0) for value in given_values]
    given_records += [
        (None, json.dumps({"a": value, "b": value, "x": value}).encode(), None, 0) for value in given_values
    ]
    found = judged_alike(pipeline(*to_avro(), **WIRE), given_records, ids=IDS, texts=texts)
    for item in found.rows.column(4).to_pylist():
        read(json.loads(texts[7]), item)


def one(kind: Any, text: str, default: Any = ...) -> Any:
    """The value that fastavro reads of a record of one field, or why there is none."""
    texts = of_one(kind)
    if default is not ...:
        told = json.loads(texts[7])
        told["fields"][0]["default"] = default
        texts = {7: json.dumps(told)}
    found = judged_alike(pipeline(*to_avro(), **WIRE), [(None, text.encode(), None, 0)], ids=IDS, texts=texts)
    if found.failures:
        return found.failures[0].reason
    (item,) = found.rows.column(4).to_pylist()
    return read(json.loads(texts[7]), item)["a"]


@pytest.mark.parametrize(
    ("kind", "said", "wanted"),
    [
        ("long", "9223372036854775807", 2**63 - 1),
        ("long", "-9223372036854775808", -(2**63)),
        ("int", "-0", 0),
        ("double", "5", 5.0),
        ("double", "1.10", 1.1),
        ("float", "16777216", 2.0**24),
        ("bytes", '"\\u00ff\\u0000"', b"\xff\0"),
        (["null", "string"], "null", None),
        (["null", "string"], '"\\u00e4"', "ä"),
        (["int", "long"], "4294967296", 2**32),
        (["double", "long"], "1", 1.0),
        (["null", "float"], "1", 1.0),
        ([["null", "int"], "string"], '"x"', "x"),
        ({"type": "enum", "name": "E", "symbols": ["x", "y"]}, '"y"', "y"),
        ({"type": "array", "items": "int"}, "[]", []),
        ({"type": "map", "values": "int"}, '{"k": 1, "": 2}', {"k": 1, "": 2}),
        ({"type": "long", "logicalType": "timestamp-millis"}, "5", 5),
    ],
)
def test_what_a_type_can_hold(kind: Any, said: str, wanted: Any) -> None:
    found = one(kind, f'{{"a": {said}}}')
    assert (int(found.timestamp() * 1000) if hasattr(found, "timestamp") else found) == wanted


@pytest.mark.parametrize(
    ("kind", "said", "why"),
    [
        ("long", "9223372036854775808", "a: is too large"),
        ("int", "2147483648", "a: is too large"),
        ("int", "1.0", "a: is no whole number"),
        ("int", "1e2", "a: is no whole number"),
        ("int", "true", "a: is no whole number"),
        ("boolean", "1", "a: is no boolean"),
        ("double", "9007199254740993", "a: has more digits than its type keeps"),
        ("double", "1" * 400, "a: is too large"),
        ("double", "1e999", "a: is too large"),
        ("float", "1e39", "a: is too large"),
        ("float", "true", "a: is no number"),
        ("string", "5", "a: is no text"),
        ("string", '"\\ud800"', "a: has half a surrogate pair"),
        ("bytes", '"\\u0100"', "a: has a character that stands for no byte"),
        ({"type": "fixed", "name": "F", "size": 2}, '"abc"', "a: has another length than its schema says"),
        ({"type": "enum", "name": "E", "symbols": ["x"]}, '"y"', "a: is no symbol of its enum"),
        ("null", "0", "a: is not null"),
        (["null", "string"], "5", "a: fits no type of its union"),
        ({"type": "array", "items": "int"}, '[1, "secret"]', "a.[*]: is no whole number"),
        ({"type": "array", "items": "int"}, "{}", "a: is no array"),
        ({"type": "map", "values": "int"}, "[]", "a: is no object"),
        ({"type": "map", "values": "int"}, '{"secret": null}', "a.[*]: is no whole number"),
    ],
)
def test_what_it_can_not_hold_fails_the_stage_by_the_field_and_shows_nothing(
    kind: Any, said: str, why: str
) -> None:
    assert one(kind, f'{{"a": {said}}}') == f"the value does not fit schema 7, {why}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "does not fit schema 7, a: is not there, and has no default"),
        ('{"a": 1, "secret": 2}', "does not fit schema 7: has a field that the schema has not"),
        ('{"a": 1, "a": 1}', "does not fit schema 7: has a name twice"),
        ("[1]", "does not fit schema 7: is no object"),
        ('{"a": NaN}', "is no JSON"),
        ('{"a": 1', "is no JSON"),
        ("", "is no JSON"),
        ("[" * 5000, "is no JSON"),
        (f'{{"a": {"1" * 5000}}}', "is no JSON"),
    ],
)
def test_what_is_no_record_of_the_schema_fails_the_stage(text: str, why: str) -> None:
    assert one("long", text) == f"the value {why}"


def test_no_utf_8_fails_the_stage() -> None:
    item = b'{"a": "\xff"}'
    found = judged_alike(
        pipeline(*to_avro(), **WIRE), [(None, item, None, 0)], ids=IDS, texts=of_one("string")
    )
    assert found.failures[0].reason == "the value is no UTF-8"
    found = judged_alike(
        pipeline(TO_JSON, **AVRO), [(None, b"\0\0\0\0\7\2\xff", None, 0)], texts=of_one("string")
    )
    assert found.failures[0].reason == "the value is no UTF-8"


@pytest.mark.parametrize(
    ("kind", "default"),
    [("long", 5), (["null", "long"], None), ("bytes", "ÿ"), ({"type": "array", "items": "int"}, [1])],
)
def test_a_field_that_is_missing_gets_its_default(kind: Any, default: Any) -> None:
    assert one(kind, "{}", default) == (b"\xff" if kind == "bytes" else default)
    assert one(kind, "{}", {"no": "such"}).startswith("the value does not fit schema 7, a: ")


def test_what_has_no_json_fails_the_stage() -> None:
    for kind, body in (
        ("double", b"\0" * 6 + b"\xf0\x7f"),
        ({"type": "map", "values": "null"}, b"\4\2x\2x\0"),
    ):
        found = judged_alike(
            pipeline(TO_JSON, **AVRO), [(None, b"\0\0\0\0\7" + body, None, 0)], texts=of_one(kind)
        )
        assert "can't be JSON" in found.failures[0].reason


def test_a_name_that_is_half_a_surrogate_pair_makes_no_schema() -> None:
    text = json.dumps({"type": "enum", "name": "E", "symbols": ["\ud800"]})
    for made in (pipeline(TO_JSON, **AVRO), pipeline({"filter": {"keep": {"value": "x"}}}, **AVRO)):
        found = judged_alike(made, [(None, b"\0\0\0\0\7\0", None, 0)], texts={7: text})
        assert found.failures[0].reason == "the value has schema 7, which is none of Avro's"


def test_a_size_without_end_makes_no_schema() -> None:
    texts = {7: '{"type": "fixed", "name": "F", "size": 1e999}'}
    found = judged_alike(pipeline(TO_JSON, **AVRO), [(None, b"\0\0\0\0\7\0", None, 0)], texts=texts)
    assert found.failures[0].reason == "the value has schema 7, which is none of Avro's"


def test_a_schema_that_names_a_field_twice_has_no_json() -> None:
    field = {"name": "a", "type": "int"}
    texts = {7: json.dumps({"type": "record", "name": "R", "fields": [field, field]})}
    found = judged_alike(pipeline(TO_JSON, **AVRO), [(None, b"\0\0\0\0\7\0\0", None, 0)], texts=texts)
    assert "names a field twice" in found.failures[0].reason
    found = judged_alike(pipeline(*to_avro(), **WIRE), [(None, b'{"a": 0}', None, 0)], ids=IDS, texts=texts)
    assert "names a field twice" in found.failures[0].reason


FIXED = {"type": "fixed", "name": "F", "size": 2}


@pytest.mark.parametrize(
    ("again", "why"),
    [
        (FIXED, None),
        ({**FIXED, "doc": "the same"}, None),
        ({**FIXED, "size": 3}, "F"),
        ({"type": "enum", "name": "F", "symbols": ["x"]}, "F"),
        ({"type": "fixed", "name": "R", "size": 2}, "R"),
        ({"type": "record", "name": "R", "fields": []}, "R"),
        ({"type": "record", "name": "n.F", "fields": [{"name": "a", "type": "R"}]}, None),
        ({"type": "fixed", "name": "map", "size": 3}, None),
    ],
)
def test_a_name_stands_for_one_type(again: Any, why: str | None) -> None:
    """As Avro 1.12 has it, which takes a definition that is there again, if it says the same."""
    some = {"type": "map", "values": "int"}
    fields = [{"name": "a", "type": FIXED}, {"name": "b", "type": ["null", again, some]}]
    texts = {7: json.dumps({"type": "record", "name": "R", "fields": fields})}
    found = judged_alike(
        pipeline(*to_avro(), **WIRE), [(None, b'{"a": "xy", "b": {"c": 1}}', None, 0)], ids=IDS, texts=texts
    )
    got = found.failures[0].reason if found.failures else None
    assert got == (why and f"the value can't have schema 7, which defines {why} twice")


@pytest.mark.parametrize("deep", [20, *range(30, 35), 200])
def test_types_in_one_another_have_an_end(deep: int) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}
    text = '{"next":' * deep + "null" + "}" * deep
    found = judged_alike(
        pipeline(*to_avro(), **WIRE), [(None, text.encode(), None, 0)], ids=IDS, texts={7: json.dumps(schema)}
    )
    assert bool(found.failures) == (deep > 32)


def test_unions_in_unions_are_tried_once() -> None:
    """Promise: what fits only at its end is not tried by each way to get there: 2^30 of them, here."""
    kinds: list[Any] = ["A", "B", "null"]
    both = [{"type": "record", "name": name, "fields": [{"name": "next", "type": kinds}]} for name in "AB"]
    schema = [{**both[0], "fields": [{"name": "next", "type": ["A", both[1], "null"]}]}]
    text = '{"next":' * 30 + "5" + "}" * 30
    found = judged_alike(
        pipeline(*to_avro(), **WIRE), [(None, text.encode(), None, 0)], ids=IDS, texts={7: json.dumps(schema)}
    )
    assert "fits no type of its union" in found.failures[0].reason


def test_stages_behind_it_see_the_new_format() -> None:
    """Promise: Avro is changed as JSON is, between two conversions; conditions before, between and behind
    them see what is there."""
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
    }
    new = {"type": "record", "name": "N", "fields": [{"name": "c", "type": "long"}]}
    made = pipeline(
        {"filter": {"keep": {"a": {"gt": 1}}}},
        TO_JSON,
        {"when": {"b": "y"}, "fields": {"drop": ["b"], "rename": {"a": "c"}}},
        {"filter": {"keep": {"c": {"exists": True}}}},
        {"convert": {"to": "avro", "id": 6}},
        {"filter": {"drop": {"c": 3}}},
        {"schema-ids": {}},
        **AVRO,
        **WIRE,
    )
    items = [written(schema, {"a": n, "b": b}) for n, b in [(1, "y"), (2, "y"), (3, "y"), (4, "n"), (5, "y")]]
    texts = {7: json.dumps(schema), 6: json.dumps(new)}
    found = judged_alike(made, [(None, item, None, 0) for item in items], ids=IDS, texts=texts)
    assert [read(new, item) for item in found.rows.column(4).to_pylist()] == [{"c": 2}, {"c": 5}]
    assert {item[:5] for item in found.rows.column(4).to_pylist()} == {b"\0\0\0\0\x6a"}


def test_records_wait_until_the_text_is_known_and_those_without_a_value_do_not() -> None:
    made = pipeline(*to_avro(), **WIRE)
    given_records: list[Given] = [(None, b'{"a":1}', None, 0), (None, None, None, 0)]
    found = judged_alike(made, given_records, ids=IDS)
    assert found.outcomes.tolist() == [Outcome.WAITS, Outcome.KEPT]
    assert found.waits[0].schema == Awaited(".", 7, text=True)
    assert judged_alike(made, given_records, ids=IDS, texts=of_one("long")).outcomes.tolist() == [
        Outcome.CHANGED,
        Outcome.KEPT,
    ]
    assert judged_alike(made, given_records, texts=of_one("long")).outcomes.tolist() == [
        Outcome.WAITS,
        Outcome.KEPT,
    ]


def test_keys_are_converted_as_values_are() -> None:
    made = pipeline({"convert": {"to": "json", "side": "key"}}, key="avro", value="bytes")
    found = judged_alike(
        made, [(written(json.loads(of_one("int")[7]), {"a": 5}), b"v", None, 0)], texts=of_one("int")
    )
    assert found.rows.column(3).to_pylist() == [b'{"a":5}']
    made = pipeline(
        {"convert": {"to": "avro", "id": 7, "side": "key"}},
        {"schema-ids": {}},
        key="json",
        wire={"key": "confluent"},
    )
    found = judged_alike(made, [(b'{"a":5}', b"1", None, 0)], texts=of_one("int"), ids=IDS)
    assert found.rows.column(3).to_pylist() == [b"\0\0\0\0\x6b\x0a"]


@pytest.mark.parametrize(
    ("stages", "flow", "why"),
    [
        ([TO_JSON], {}, "stage 1, convert.to: makes json of avro, and the value is none here"),
        (to_avro(), AVRO | WIRE, "stage 1, convert.to: makes avro of json, and the value is none here"),
        ([TO_JSON, TO_JSON], AVRO, "stage 2, convert.to: makes json of avro"),
        (
            [{"convert": {"to": "avro"}}, {"schema-ids": {}}],
            WIRE,
            "convert.id: is missing: say which schema's",
        ),
        ([{"convert": {"to": "json", "id": 7}}], AVRO, "convert.id: is for avro"),
        (
            to_avro()[:1],
            {},
            "convert: its id is the source's: say schema-ids behind it, and wire: {value: confluent}",
        ),
        (to_avro(), {"wire": {"value": "apicurio"}}, "convert: its id is the source's"),
        ([TO_JSON, {"schema-ids": {}}], AVRO | WIRE, "an id stands in front of it, so it is no json"),
        ([{"when": {"key": "x"}, **TO_JSON}], AVRO, "when: convert is for all records of its flow"),
        (
            [{"fields": {"drop": ["a"]}}, TO_JSON],
            AVRO,
            "not built for Avro: value of this flow; convert makes JSON of it",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_place(stages: Any, flow: Any, why: str) -> None:
    with pytest.raises(Exception, match="pipeline.yaml:1: flow 1") as error:
        pipeline(*stages, **flow)
    assert why in str(error.value)


@pytest.mark.parametrize("count", [1, 20])
def test_a_union_may_be_all_there_is(count: int) -> None:
    items = [(None, b"\0\0\0\0\7\2\2x", None, 0), (None, b"\0\0\0\0\7\0", None, 0)] * count
    found = judged_alike(pipeline(TO_JSON, **AVRO), items, texts={7: '["null", "string"]'})
    assert found.rows.column(4).to_pylist() == [b'"x"', b"null"] * count


def test_a_batch_of_many_is_as_of_one() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "long"]}]}
    items = [written(schema, {"a": n if n % 3 else None}) for n in range(50)] + [None, b"x"]
    found = applied(
        pipeline(TO_JSON, **AVRO), [(None, i, None, 0) for i in items], texts={7: json.dumps(schema)}
    )
    assert found.rows.column(4).to_pylist() == [
        b'{"a":%d}' % n if n % 3 else b'{"a":null}' for n in range(50)
    ] + [None]
    assert found.outcomes.tolist() == [Outcome.CHANGED] * 50 + [Outcome.KEPT, Outcome.FAILED]


@pytest.mark.parametrize(
    ("kind", "body", "wanted"),
    [
        ({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x02\x06\0", b"[1,2,3]"),
        ({"type": "map", "values": "int"}, b"\x01\x06\x02k\x02\x02\x02l\x04\0", b'{"k":1,"l":2}'),
    ],
)
def test_blocks_that_say_their_size_are_read_as_others(kind: Any, body: bytes, wanted: bytes) -> None:
    found = judged_alike(
        pipeline(TO_JSON, **AVRO), [(None, b"\0\0\0\0\7" + body, None, 0)], texts=of_one(kind)
    )
    assert found.rows.column(4).to_pylist() == [b'{"a":%b}' % wanted]


@pytest.mark.parametrize(
    "stage",
    [
        {"mask": {"fields": {"a": "redact"}}},
        {"sql": "SELECT * FROM records WHERE value->>'$.a' = 'x'"},
        {"route": {"cases": [{"when": {"a": "x"}, "topic": "elsewhere"}]}},
        {"when": {"a": "x"}, "headers": {"set": {"is": "x"}}},
        {"key": "a"},
    ],
)
def test_each_stage_behind_it_reads_json(stage: Any) -> None:
    items = [written(json.loads(of_one("string")[7]), {"a": text}) for text in "xyx"]
    found = judged_alike(
        pipeline(TO_JSON, stage, **AVRO), [(None, item, None, 0) for item in items], texts=of_one("string")
    )
    assert not found.failures
    told = list(zip(found.rows.to_pylist(), found.topics, strict=True))
    assert told[0] != told[1] or len(told) == 2
