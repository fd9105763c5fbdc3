"""Batches through a pipeline: which flow, what goes on, and that nothing but the record decides."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kafka.wire.record_encoder import encode_records
from common.link import frame
from common.link.frame import Frame
from common.pipeline.definition import definition
from common.pipeline.engine import Engine, Outcome
from common.pipeline.route_names import has_stage, routed_topics
from tests.support.pipelines import (
    FEW,
    FIRST_OFFSET,
    KEYS,
    ORIGIN,
    applied,
    batches,
    pipeline,
    records,
    rows_of,
)

STAGES = [
    {"filter": {"drop": {"value.a": 5}, "otherwise": "tombstone"}},
    {"filter": {"drop": {"value.b": {"exists": True}}}},
    {"when": {"header.x-a": {"exists": True}}, "mask": {"fields": {"id": "redact"}}},
    {"headers": {"set": {"at": "{offset}"}}},
]


@FEW
@given(batches, st.integers(0, 8))
def test_what_becomes_of_a_record_does_not_depend_on_what_it_comes_with(records: Any, cut: int) -> None:
    flow = Engine(pipeline(*STAGES), KEYS).flow_of("orders")
    assert flow is not None
    rows = rows_of(records)
    whole = flow.apply(rows, ORIGIN)
    parts = [flow.apply(part, ORIGIN) for part in (rows.slice(0, cut), rows.slice(cut))]
    assert [row for part in parts for row in part.rows.to_pylist()] == whole.rows.to_pylist()
    assert [o for part in parts for o in part.outcomes.tolist()] == whole.outcomes.tolist()
    assert [f for part in parts for f in part.failures] == whole.failures


def test_the_first_flow_that_takes_a_topic_is_its_flow_and_a_topic_of_none_is_told_so() -> None:
    made = pipeline({"headers": {"add": {"a": "b"}}}, topics=["orders", "x.*"])
    engine = Engine(made, KEYS)
    assert engine.flow_of("orders") is engine.flow_of("orders") is not None
    assert engine.flow_of("xyz") is not None
    assert engine.flow_of("orders2") is None and engine.flow_of("ax") is None


def test_outcomes_are_told_apart() -> None:
    values = [b'{"a":5}', b'{"b":1}', b'{"c":1}', None, b"{"]
    found = applied(
        pipeline(*STAGES[:2], {"mask": {"fields": {"c": "null"}}}), [(b"k", v, None, 0) for v in values]
    )
    assert [Outcome(o).name for o in found.outcomes] == ["TOMBSTONE", "LEFT_OUT", "CHANGED", "KEPT", "FAILED"]
    assert found.rows.column(0).to_pylist() == [40, 42, 43]
    assert found.rows.column(4).to_pylist() == [None, b'{"c":null}', None]
    assert [(f.offset, f.stage, f.reason) for f in found.failures] == [
        (44, "stage 1 (filter)", "the value is no JSON")
    ]


def test_a_size_is_that_of_the_record_as_it_came() -> None:
    made = pipeline({"mask": {"fields": {"a": "redact"}}}, {"filter": {"drop": {"size": {"lt": 10}}}})
    found = applied(made, [(b"k", b'{"a":1}', None, 0), (b"k", b'{"a":1234}', None, 0)])
    assert found.rows.column(4).to_pylist() == [b'{"a":"***"}']


@pytest.mark.parametrize(
    ("test", "value", "holds"),
    [
        (1.1, b"1.10", True),
        (1, b"1.0", True),
        (1, b"true", False),
        (1, b'"1"', False),
        ("1", b"1", False),
        (True, b"1", False),
        (None, b"null", True),
        ("a/é", rb'"a\/\u00e9"', True),
        (9007199254740993, b"9007199254740992", False),
        ({"gt": 5}, b"5.0000000000000000000001", True),
        ({"lt": 5}, b"-1e400", True),
        ({"gt": 0}, b"1e99999999999999999999", False),
        ({"lt": "b"}, b'"a"', True),
        ({"gt": 5}, b'"6"', False),
        ({"matches": "a.*"}, b'"ab\\n"', True),
        ({"matches": "a"}, b'"ab"', False),
        ({"prefix": "a"}, b'["a"]', False),
        ({"exists": True}, b"null", True),
        ({"exists": False}, b"null", False),
        ({"in": [1, "x"], "prefix": "x"}, b'"x"', True),
    ],
)
def test_conditions_compare_values_not_digits(test: Any, value: bytes, holds: bool) -> None:
    made = pipeline({"filter": {"keep": {"a": test}}})
    found = applied(made, [(None, b'{"a":%b}' % value, None, 0)])
    assert (len(found.rows) == 1) is holds


def test_one_element_is_enough_and_of_alternatives_one() -> None:
    made = pipeline({"filter": {"keep": [{"a[*].b": {"gt": 1, "lt": 3}}, {"c": 1, "d": 2}]}})
    values = [
        b'{"a":[{"b":0},{"b":2}]}',
        b'{"a":[{"b":0},{"b":4}]}',
        b'{"c":1}',
        b'{"c":1,"d":2}',
        b'{"a":{"b":2}}',
    ]
    found = applied(made, [(None, v, None, 0) for v in values])
    assert found.rows.column(0).to_pylist() == [40, 43]


def test_what_is_not_there_is_neither_equal_nor_less_but_absent() -> None:
    values = [b'{"a":1}', b"{}", b"[]", None]
    for test, kept in (({"exists": False}, [41, 42, 43]), ({"lt": 5}, [40]), ({"in": [None]}, [])):
        found = applied(pipeline({"filter": {"keep": {"a": test}}}), [(None, v, None, 0) for v in values])
        assert found.rows.column(0).to_pylist() == kept


@pytest.mark.parametrize("which", ["keep", "drop"])
def test_a_record_that_cannot_be_judged_is_neither_kept_nor_left_out(which: str) -> None:
    found = applied(pipeline({"filter": {which: {"a": 1}}}), [(None, b"{", None, 0)])
    assert found.outcomes.tolist() == [Outcome.FAILED] and not len(found.rows)


def test_a_stage_for_some_records_leaves_the_others_as_they_are() -> None:
    made = pipeline({"when": {"a": 1}, "mask": {"fields": {"b": "hmac"}, "key": "k1"}}, key="bytes")
    values = [b'{"b":2}', b'{"a":1,"b":null}', b'{"b":[]}', b'{"a":1,"b":[]}', b'{"a":1,"b":2}', b"{"]
    found = applied(made, [(None, v, None, 0) for v in values])
    assert [Outcome(o).name for o in found.outcomes] == [
        "KEPT",
        "KEPT",
        "KEPT",
        "FAILED",
        "CHANGED",
        "FAILED",
    ]
    assert found.rows.column(4).to_pylist()[:3] == values[:3]
    assert [failure.offset for failure in found.failures] == [43, 45]


@FEW
@given(st.lists(records, max_size=4), st.sampled_from([1, 60]))
def test_what_goes_on_can_be_framed_and_is_read_again_as_it_is(some: Any, times: int) -> None:
    """With gaps where records were left out: so the replicator will send it."""
    found = applied(pipeline(*STAGES), some * times)
    offsets = found.rows.column(0).to_pylist()
    framed = Frame("c", "t", "id", 0, FIRST_OFFSET, FIRST_OFFSET + len(some) * times, len(offsets), "w")
    value = frame.pack(found.rows).to_pybytes() if offsets else b""
    again = frame.decode_rows(framed, crc32(value), value)
    assert list(again.offsets) == offsets and again.batch.to_pylist() == found.rows.to_pylist()
    sections = list(encode_records(found.rows, 1 << 20))
    assert sum(section.count for section in sections) == len(offsets)


def test_the_first_case_that_holds_says_where_a_record_goes() -> None:
    cases = [
        {"when": {"value.a": 1}, "topic": "one"},
        {"when": {"value.a": {"exists": True}}, "topic": "{link}.{topic}"},
    ]
    values = [b'{"a":1}', b'{"a":2}', b"{}", b"{", None]
    given: Any = [(None, v, None, 0) for v in values]
    found = applied(pipeline({"route": {"cases": cases}}, onError="skip"), given)
    assert found.topics == ["one", "link.orders", None, None]
    assert found.outcomes.tolist() == [Outcome.KEPT] * 3 + [Outcome.FAILED, Outcome.KEPT]
    found = applied(pipeline({"route": {"cases": cases, "else": "rest"}}, onError="skip"), given)
    assert found.topics == ["one", "link.orders", "rest", "rest"]


def test_a_route_takes_what_earlier_stages_leave_and_only_what_it_is_for() -> None:
    stages = [
        {"filter": {"drop": {"value.b": 1}}},
        {"when": {"header.x-a": {"exists": True}}, "route": {"topic": "eu.{topic}"}},
    ]
    values = [(b'{"b":1}', [("x-a", b"")]), (b"{}", None), (b"{}", [("x-a", b"")])]
    found = applied(pipeline(*stages), [(None, value, headers, 0) for value, headers in values])
    assert found.topics == [None, "eu.orders"] and len(found.rows) == 2
    nothing = applied(pipeline(*stages), [(None, b"{}", None, 0)])
    assert nothing.routed is None and nothing.topics == [None]


def test_the_topics_of_routes_are_told_by_the_definition_alone() -> None:
    cases = [{"when": {"size": 1}, "topic": "a.{link}"}, {"when": {"size": 2}, "topic": "b"}]
    stage = {"route": {"cases": cases, "else": "{topic}.rest"}}
    told = definition(pipeline({"headers": {"remove": ["x"]}}, stage, topics=["o.*"]), KEYS).decode()
    assert has_stage(told, "route") and routed_topics(told, "orders", "l") == dict.fromkeys(
        ["a.l", "b", "orders.rest"]
    )
    assert routed_topics(told, "returns", "l") == {}
    spread = definition(pipeline({"route": {"topic": "{topic}.k", "partition": {"hash": 6}}}), KEYS).decode()
    assert routed_topics(spread, "orders", "l") == {"orders.k": 6}
    assert not has_stage(definition(pipeline(*STAGES), KEYS).decode(), "route")
