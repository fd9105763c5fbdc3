"""What two pipelines make of the same records is told, record by record."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import SettingsError
from common.kafka.wire.records import encode_rows
from common.pipeline.engine import Engine
from tests.support.pipelines import KEYS, pipeline, rows_of
from verbatim.pipeline.trying import TopicTried, Tried, differing, lines, record_lines, tried

ROWS = {
    ("orders", 3): rows_of(
        [
            (b"a", b'{"a":1}', None, 5),
            (b"b", b'{"a":2,"ip":"1"}', [("x", b"1"), ("y", None)], 6),
            (None, b"no json", None, 7),
            (b"c", None, None, 8),
        ]
    ),
    ("others", 0): rows_of([(b"z", b"\xff", None, 9)]),
}
MADE = pipeline(
    {"filter": {"drop": {"value.a": 1}}},
    {"fields": {"drop": ["ip"]}},
    {"headers": {"remove": ["x"]}},
    topics=["orders"],
)


def test_each_record_has_its_outcome_and_what_goes_on() -> None:
    found = tried(Engine(MADE, KEYS), "link", ROWS)
    orders, others = found["orders"], found["others"]
    assert [record.outcome for record in orders.records] == ["left-out", "changed", "failed", "kept"]
    assert [record.offset for record in orders.records] == [40, 41, 42, 43]
    changed, failed = orders.records[1:3]
    assert changed.before["value"] == '{"a":2,"ip":"1"}' and changed.after is not None
    assert (changed.after["value"], changed.after["headers"]) == ('{"a":2}', [["y", None]])
    assert failed.why is not None and failed.why.startswith("stage 1 (filter): ") and failed.after is None
    assert (orders.halts, others.halts) == (True, False)
    same = {"timestamp": 9, "key": "z", "value": "\\xff", "headers": []}
    assert others.records == [Tried(0, 40, "kept", same, same)]
    assert orders.us > 0 and orders.outcomes == {"left-out": 1, "changed": 1, "failed": 1, "kept": 1}


@pytest.mark.parametrize(
    ("on_error", "word"), [("skip", "skipped"), ("dead-letter", "dead-letter"), ("halt", "failed")]
)
def test_a_record_that_a_stage_fails_on_is_counted_as_what_the_flow_makes_of_it(
    on_error: str, word: str
) -> None:
    made = pipeline({"fields": {"drop": ["ip"]}}, topics=["orders"], onError=on_error)
    orders = tried(Engine(made, KEYS), "link", ROWS)["orders"]
    assert orders.outcomes[word] == 1 and orders.records[2].outcome == word
    assert (orders.records[2].why or "").startswith("stage 1 (fields): ")
    assert orders.halts == (on_error == "halt")


@pytest.mark.parametrize("letters", [True, False])
def test_one_too_many_is_a_failure_where_some_are_tolerated(letters: bool) -> None:
    said = {"tolerate": {"records": 1, "per": 20}} | ({"dead-letter": {}} if letters else {})
    made = pipeline({"fields": {"drop": ["ip"]}}, topics=["orders"], onError=said)
    bad, word = (b"", b"{", None, 0), "dead-letter" if letters else "skipped"
    # From 40 on: what is counted are offsets, in windows that begin at 40, 60 and 80.
    rows = {
        ("orders", 0): rows_of([bad, *[(b"", b"{}", None, 0)] * 20, bad]),
        ("orders", 1): rows_of([bad] * 3),
    }
    orders = tried(Engine(made, KEYS), "link", rows)["orders"]
    assert [r.outcome for r in orders.records if r.why] == [word, word, word, "failed", word]
    assert orders.halts


@pytest.mark.parametrize(
    ("function", "how"),
    [("drawn", "once more"), ("counted", "once more"), ("among_others", "in other batches")],
)
def test_a_function_that_is_not_pure_is_caught_by_the_double_run(function: str, how: str) -> None:
    engine = Engine(pipeline({"python": f"tests.support.own_stages:{function}"}), KEYS)
    with pytest.raises(SettingsError, match=rf"orders/0 offset 40: comes out otherwise when it is run {how}"):
        tried(engine, "link", {("orders", 0): rows_of([(b"k", b"v", None, 0)] * 5)})


@pytest.mark.parametrize("function", ["tidy", "unchanged", "nothing", "raises"])
def test_a_function_that_is_pure_is_not(function: str) -> None:
    engine = Engine(pipeline({"python": f"tests.support.own_stages:{function}"}, onError="skip"), KEYS)
    given: list[Any] = [(b"k" * n, b"v" * n, [("x", None)], n) for n in range(40)]
    assert (
        len(
            tried(engine, "link", {("orders", 0): rows_of([*given, (b"", b"\xff", None, 0)])})[
                "orders"
            ].records
        )
        == 41
    )


def test_a_stage_that_is_broken_halts_also_where_failures_are_skipped() -> None:
    engine = Engine(pipeline({"python": "tests.support.own_stages:backwards"}, onError="skip"), KEYS)
    orders = tried(engine, "link", {("orders", 0): rows_of([(b"k", b"v", None, 0)] * 5)})["orders"]
    assert orders.halts and orders.outcomes == {"failed": 5}
    assert orders.records[0].why == "stage 1 (python): gives rows back in another order, or one twice"


def test_only_what_comes_out_differently_is_a_difference() -> None:
    old = pipeline({"filter": {"drop": {"value.a": 2}}}, {"headers": {"remove": ["x"]}}, topics=["orders"])
    was, now = (tried(Engine(made, KEYS), "link", ROWS) for made in (old, MADE))
    assert differing(now["orders"], now["orders"]) == []
    pairs = differing(was["orders"], now["orders"])
    assert [(a.offset, a.outcome, b.outcome) for a, b in pairs] == [
        (40, "kept", "left-out"),
        (41, "left-out", "changed"),
    ]
    none = tried(None, "link", ROWS)["orders"]
    assert [b.offset for _, b in differing(none, now["orders"])] == [40, 41, 42]


def test_changed_otherwise_and_failed_instead_of_left_out_are_differences_too() -> None:
    rows = {
        ("orders", 0): rows_of(
            [(None, b'{"a":1}', None, 5), (None, b"no json", None, 6), (None, None, None, 7)]
        )
    }

    def made(method: str, dropped: Any) -> TopicTried:
        stages = {"filter": {"drop": dropped}}, {"mask": {"key": "k1", "fields": {"a": method}}}
        return tried(Engine(pipeline(*stages), KEYS), "link", rows)["orders"]

    no_json = {"size": {"gt": 7}}
    pairs = differing(made("redact", {"value.a": 5}), made("hmac", {"value.a": 5}))
    assert [(b.offset, b.outcome) for _, b in pairs] == [(40, "changed")]
    pairs = differing(made("redact", {"size": 7}), made("redact", no_json))
    assert [(a.outcome, b.outcome) for a, b in pairs] == [("left-out", "changed"), ("left-out", "failed")]


def test_a_record_is_shown_by_the_parts_that_differ() -> None:
    left_out, changed, failed, kept = tried(Engine(MADE, KEYS), "link", ROWS)["orders"].records
    assert list(lines("at", changed.before, changed.after)) == [
        "at", '  - value {"a":2,"ip":"1"}', '  + value {"a":2}', "  - header x 1",
    ]  # fmt: skip
    assert list(lines("at", kept.before, kept.after)) == ["at"]
    assert list(lines("at", left_out.before, left_out.after)) == [
        "at",
        "  - timestamp 5",
        "  - key a",
        '  - value {"a":1}',
    ]
    assert list(lines("at", failed.before, None))[2] == "  - key (null)"
    long = {**kept.before, "value": "v" * 3000}
    assert list(lines("at", long, kept.after))[1].endswith("... (3,000 characters)")


def test_the_engine_sees_where_records_are_from() -> None:
    made = pipeline({"headers": {"set": {"from": "{link}/{topic}/{partition}@{offset}"}}})
    rows = {("orders", 7): encode_rows([5], [1], [1], [None], [b"v"], None)}
    (record,) = tried(Engine(made, KEYS), "l", rows)["orders"].records
    assert record.after is not None and record.after["headers"] == [["from", "l/orders/7@5"]]


def test_records_that_go_elsewhere_come_out_differently() -> None:
    route = {"cases": [{"when": {"value.a": 1}, "topic": "one"}], "else": "two"}
    options = {"topics": ["orders"], "onError": "skip"}
    one = tried(Engine(pipeline({"route": route}, **options), KEYS), "link", ROWS)["orders"]
    assert [record.topic for record in one.records] == ["one", "two", None, "two"]
    assert list(record_lines("orders", one.records[0])) == ["orders/3 offset 40: kept, to one"]
    other = tried(Engine(pipeline({"route": route | {"else": "three"}}, **options), KEYS), "link", ROWS)
    assert [a.offset for a, _ in differing(one, other["orders"])] == [41, 43]
