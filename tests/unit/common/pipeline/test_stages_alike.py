"""Each stage makes of records what its second implementation makes of them, whatever JSON they hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from common.pipeline.engine import Outcome
from common.pipeline.paths import parse
from tests.support.pipelines import FEW, applied, batches, judged_alike, pipeline

paths = st.sampled_from(
    [
        "a",
        "b",
        "value.id",
        "a.b",
        "b.id",
        "a[*].b",
        "a[*]",
        "value[*]",
        "value[*].a",
        '"a/b"',
        "straße.a",
        "value",
        "b[*][*].a",
    ]
)
places = paths | st.sampled_from(["key", "key.a", "header.x-a", "header.x-b", "timestamp", "size"])
scalars = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, 5, 1.1, -2.5, 1000, "5", "true", "email", "a", "1.10", ""])
)


@st.composite
def asked(draw: st.DrawFn, path: str) -> Any:
    if path in ("timestamp", "size"):
        return draw(st.sampled_from([{"gt": 20}, {"lt": 1000.5}, 7, {"in": [3, 4]}, {"exists": True}]))
    text = path.startswith("header.")
    some = st.sampled_from(["5", "abc", "a"]) if text else scalars
    if draw(st.booleans()):
        return draw(some)
    number_or_text = st.sampled_from(["5", "b"]) if text else st.sampled_from([1, 1.1, "b", "5"])
    one = st.fixed_dictionaries(
        {},
        optional={
            "in": st.lists(some, min_size=1, max_size=3),
            "matches": st.sampled_from([".*", "[a-z]+", "."]),
            "lt": number_or_text,
            "gt": number_or_text,
            "prefix": st.sampled_from(["", "a", "em"]),
        },
    ).filter(bool)
    return draw(one | st.sampled_from([{"exists": True}, {"exists": False}]))


@st.composite
def all_of(draw: st.DrawFn) -> Any:
    chosen = draw(st.lists(places, min_size=1, max_size=2, unique=True))
    found = {path: draw(asked(path)) for path in chosen}
    if draw(st.integers(0, 5)) == 0:
        found["value"] = {"is": "tombstone"}
    return found


conditions = all_of() | st.lists(all_of(), min_size=1, max_size=2)
JSON = {"key": "json", "value": "json"}


routed_to = st.sampled_from(["de", "eu.{topic}", "{link}.{topic}"])
routes = st.fixed_dictionaries(
    {
        "cases": st.lists(
            st.fixed_dictionaries({"when": conditions, "topic": routed_to}), min_size=1, max_size=3
        )
    },
    optional={"else": routed_to, "partition": st.sampled_from(["same", {"hash": 1}, {"hash": 7}])},
) | st.fixed_dictionaries({"topic": routed_to}, optional={"partition": st.just({"hash": 3})})


@FEW
@given(routes, st.none() | conditions, conditions, batches)
def test_route(options: Any, when: Any, drop: Any, records: Any) -> None:
    stage = {"route": options} | ({} if when is None else {"when": when})
    judged_alike(pipeline({"filter": {"drop": drop}}, stage, **JSON), records)


@FEW
@given(conditions, st.sampled_from(["keep", "drop"]), st.sampled_from(["drop", "tombstone"]), batches)
def test_filter(found: Any, which: str, otherwise: str, records: Any) -> None:
    judged_alike(pipeline({"filter": {which: found, "otherwise": otherwise}}, **JSON), records)


methods = st.sampled_from(
    [
        "redact",
        "null",
        "hmac",
        "encrypt",
        {"partial": {"last": 2}},
        {"partial": {"first": 1, "last": 1, "with": '"'}},
        {"partial": {}},
    ]
)


def apart(chosen: list[str]) -> bool:
    found = [parse(path) for path in chosen]
    return not any(a is not b and a.covers(b) for a in found for b in found)


several = st.lists(paths, min_size=1, max_size=3, unique=True).filter(apart)


@FEW
@given(several, st.data(), batches)
def test_mask(chosen: list[str], data: st.DataObject, records: Any) -> None:
    more = data.draw(st.sampled_from([[], ["key"], ["header.x-a"], ["key.a", "header.x-b"]]))
    fields = {path: data.draw(methods) for path in (*chosen, *more)}
    judged_alike(pipeline({"mask": {"key": "k1", "fields": fields}}, **JSON), records)


SCALARS = [
    b'{"a":%b, "b":[{"id" : %b}]}' % (text, text)
    for text in (b"5", b'"5"', b"-1.10e0", b"true", b'"true"', b"null", b'""', rb'"\u00e9\/"', b"[5]", b"{}")
]


@pytest.mark.parametrize("method", ["hmac", "encrypt", {"partial": {"last": 1}}])
@FEW
@given(records=batches)
def test_mask_of_each_kind_of_scalar(method: Any, records: Any) -> None:
    fields = dict.fromkeys(["a", "b[*].id", "header.x-a", "key"], method)
    given = [(b"5", value, [("x-a", b"5"), ("x-a", b"\xff")], 7) for value in SCALARS]
    judged_alike(pipeline({"mask": {"key": "k1", "fields": fields}}, key="bytes"), [*given, *records])


@FEW
@given(st.sampled_from(["key", "value"]), methods, batches)
def test_mask_of_what_is_no_json(side: str, method: Any, records: Any) -> None:
    judged_alike(
        pipeline({"mask": {"key": "k1", "fields": {side: method}}}, key="bytes", value="bytes"), records
    )


named = st.sampled_from(["a", "b", "id", "a.b", "b.id", "a[*].b", "value[*].a", '"a/b"', "straße.a", "email"])
some_named = st.lists(named, min_size=1, max_size=3, unique=True).filter(apart)
single = st.sampled_from(["a", "b", "a.b", "b.id.a", "email", "a.a.a"])


@FEW
@given(
    st.one_of(
        some_named.map(lambda found: {"drop": found}),
        some_named.map(lambda found: {"keep": found}),
        st.dictionaries(named, st.sampled_from(["b", "id", "new"]), min_size=1, max_size=1).map(
            lambda found: {"rename": found}
        ),
        st.dictionaries(
            paths, st.sampled_from(["string", "integer", "number", "boolean"]), min_size=1, max_size=1
        )
        .filter(lambda found: "value" not in found)
        .map(lambda found: {"cast": found}),
        st.tuples(single, st.sampled_from([1, "{topic}/{offset} {{}}", None, {"x": [1.5, "é"]}])).map(
            lambda found: {"set": {found[0]: found[1]}}
        ),
        st.sampled_from([".", "_", '"']).map(lambda found: {"flatten": found}),
        single.map(lambda found: {"extract": found}),
        st.just({"wrap": "payload"}),
    ),
    batches,
)
def test_fields(options: Any, records: Any) -> None:
    judged_alike(pipeline({"fields": options}), records)


@FEW
@given(batches)
def test_fields_of_the_key(records: Any) -> None:
    made = pipeline({"fields": {"side": "key", "drop": ["a"], "set": {"b": 1}, "wrap": "k"}}, **JSON)
    judged_alike(made, records)


@FEW
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "keep": st.sampled_from([["x-.*"], ["nothing"], []]),
            "remove": st.sampled_from([["x-a"], ["x-.*", "keep"]]),
            "rename": st.sampled_from([{"x-a": "x-b"}, {"x-a": "x-b", "x-b": "x-a"}]),
            "set": st.sampled_from([{"x-b": "{topic}/{partition}@{offset}"}, {"new": "a{{b}}", "x-a": None}]),
            "add": st.sampled_from([{"x-a": "{link} {timestamp}"}, {"x-b": None}]),
        },
    ).filter(bool),
    batches,
)
def test_headers(options: Any, records: Any) -> None:
    judged_alike(pipeline({"headers": options}), records)


TIMES = [
    b'{"a":1700000000000}',
    b'{"a":"2024-02-29T12:00:00.1239Z"}',
    b'{"a":"2024-02-29 12:00:00+05:30"}',
    b'{"a":"2023-02-29T12:00:00Z"}',
    b'{"a":"1969-12-31T23:59:59Z"}',
    b'{"a":"1970-01-01T00:30:00+01:00"}',
    b'{"a":1e3}',
    b'{"a":-1}',
    b'{"a":99999999999999999999}',
    b'{"a":9223372036854775807}',
    b'{"a":"12"}',
    b'{"a":null}',
    b'{"a":["x"]}',
    b'{"a":"x"}',
    b'{"a":true}',
    b'{"a":{"b":[1 , 2]}}',
    b'{"a":"2024-02-29T12:00:60Z"}',
    b'{"a":"9999-12-31T23:59:59-23:59"}',
    b'{"a":"0001-01-01T00:00:00+01:00"}',
    b"[]",
    None,
]


@pytest.mark.parametrize("stage", ["key", "timestamp"])
@pytest.mark.parametrize("path", ["a", "a.b", "header.x-a", "key.a"])
@FEW
@given(records=batches)
def test_key_and_timestamp(stage: str, path: str, records: Any) -> None:
    timed = [(b"k", value, [("x-a", b"2024-01-01T00:00:00Z")], 7) for value in TIMES]
    judged_alike(pipeline({stage: path}, **JSON), [*timed, *records])


SCHEMA = {
    "type": "object",
    "required": ["a"],
    "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"type": ["number", "object"]}},
    "$defs": {"a": {"not": {"type": "null"}}},
}


@FEW
@given(batches)
def test_validate(records: Any) -> None:
    judged_alike(pipeline({"validate": {"schema": SCHEMA}}), records)


@FEW
@given(st.sampled_from(["tidy", "unchanged", "nothing", "upper", "raises"]), batches)
def test_python(function: str, records: Any) -> None:
    judged_alike(pipeline({"python": f"tests.support.own_stages:{function}"}), records)


@FEW
@given(conditions, batches)
def test_python_among_other_stages(found: Any, records: Any) -> None:
    stages = [
        {"when": found, "python": "tests.support.own_stages:tidy"},
        {"fields": {"set": {"a.c": "{offset}"}}},
        {"python": "tests.support.own_stages:unchanged"},
    ]
    judged_alike(pipeline(*stages, **JSON), records)


SELECTS = [
    "SELECT * FROM records",
    "SELECT * FROM records WHERE value->>'$.a' IS NOT NULL OR timestamp % 2 = 0",
    "SELECT * REPLACE (json_merge_patch(value, '{\"a\":null}') AS value) FROM records WHERE key IS NOT NULL",
    "SELECT * REPLACE (value->>'$.id' AS key, (value->>'$.a')::BIGINT AS timestamp) FROM records",
    "SELECT * REPLACE (list_filter(headers, lambda h: h.key <> 'x-a') AS headers) FROM records",
    'SELECT * REPLACE (upper(value) AS value, NULL::BLOB AS key) FROM records WHERE "offset" % 3 > 0',
    'SELECT * REPLACE (topic || partition || "offset" AS key) FROM records WHERE len(headers) > 0',
]


@pytest.mark.parametrize("key", ["json", "bytes"])
@pytest.mark.parametrize("text", SELECTS)
@settings(max_examples=8)
@given(records=batches)
def test_sql(text: str, key: str, records: Any) -> None:
    judged_alike(pipeline({"sql": text}, key=key, value="json"), records)


@FEW
@given(conditions, batches)
def test_sql_among_other_stages(found: Any, records: Any) -> None:
    stages = [
        {"when": found, "sql": SELECTS[2]},
        {"fields": {"set": {"a.c": "{offset}"}}},
        {"sql": SELECTS[4]},
    ]
    judged_alike(pipeline(*stages, **JSON), records)


@FEW
@given(conditions, batches)
def test_several_stages_where_some_are_for_some_records(found: Any, records: Any) -> None:
    stages = [
        {"when": found, "mask": {"fields": {"a": "redact", "b.id": "null"}}},
        {"filter": {"drop": {"value.email": {"exists": True}, "size": {"gt": 30}}, "otherwise": "tombstone"}},
        {"when": {"header.x-a": {"exists": True}}, "fields": {"drop": ["id"], "set": {"a.c": "x"}}},
        {"headers": {"rename": {"x-a": "x-c"}, "add": {"at": "{offset}"}}},
        {"when": found, "headers": {"remove": ["x-b"]}},
        {"when": {"value.a": "***"}, "key": "value.a"},
    ]
    judged_alike(pipeline(*stages, **JSON), records)


@pytest.mark.parametrize("outcome", [Outcome.KEPT, Outcome.CHANGED, Outcome.FAILED])
def test_the_records_of_these_tests_meet_every_outcome(outcome: Outcome) -> None:
    """The strategies are worth nothing otherwise."""
    made = pipeline({"mask": {"fields": {"a.b": "redact"}}})

    def met(records: Any) -> bool:
        return outcome in applied(made, records).outcomes.tolist()

    find(batches, met, settings=settings(max_examples=500, phases=[Phase.generate]))
