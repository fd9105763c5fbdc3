"""The stage `sql`: which SELECTs are refused before a record is read, and what the others make of records."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from common.errors import SettingsError
from common.pipeline import definition, loading
from common.pipeline.engine import Engine, Outcome
from tests.support.pipelines import KEYS, ORIGIN, applied, pipeline, rows_of, values
from verbatim.verify.pipeline.own_code import missing

BOTS = """SELECT * REPLACE (CASE WHEN value IS NOT NULL THEN json_merge_patch(value, '{"ip":null}') END AS value)
 FROM records WHERE value->>'$.bot' IS DISTINCT FROM 'true'"""

FORM = "SELECT * REPLACE ({} AS {}) FROM records WHERE {}"


def replacing(expression: str, column: str = "value", where: str = "true") -> dict[str, str]:
    return {"sql": FORM.format(expression, column, where)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT 1", "it reads something else than records: write SELECT * REPLACE"),
        ("SELECT value FROM records", "write SELECT * REPLACE (expression AS column) FROM records WHERE condition"),
        ("SELECT *, 1 FROM records", "write SELECT * REPLACE"),
        ("SELECT * EXCLUDE (value) FROM records", "write SELECT * REPLACE"),
        ("SELECT * RENAME (value AS key) FROM records", "write SELECT * REPLACE"),
        ("SELECT COLUMNS('v') FROM records", "write SELECT * REPLACE"),
        ("SELECT * FROM records ORDER BY value", "not row by row: ORDER BY"),
        ("SELECT * FROM records LIMIT 1", "not row by row: LIMIT"),
        ("SELECT * FROM records LIMIT 10%", "not row by row: LIMIT"),
        ("SELECT * FROM records OFFSET 1", "not row by row: LIMIT"),
        ("SELECT DISTINCT * FROM records", "not row by row: DISTINCT"),
        ("SELECT * FROM records UNION ALL SELECT * FROM records", "not row by row: a set operation"),
        ("WITH x AS (SELECT 1) SELECT * FROM records", "not row by row: WITH"),
        ("SELECT * FROM records GROUP BY ALL", "not row by row: GROUP BY"),
        ("SELECT * FROM records HAVING true", "not row by row: having"),
        ("SELECT * FROM records QUALIFY true", "not row by row: qualify"),
        ("SELECT * FROM records USING SAMPLE 10", "not row by row: sample"),
        ("SELECT * FROM records TABLESAMPLE 10", "it reads something else"),
        ("SELECT * FROM records, records r", "it reads something else"),
        ("SELECT * FROM records JOIN records r USING (value)", "it reads something else"),
        ("SELECT * FROM (SELECT * FROM records)", "it reads something else"),
        ("SELECT * FROM other", "it reads something else"),
        ("SELECT * FROM duckdb_settings()", "it reads something else"),
        ("SELECT * FROM read_text('/etc/passwd')", "it reads something else"),
        ("SELECT * FROM '/etc/passwd'", "it reads something else"),
        ("SELECT * FROM records; SELECT * FROM records", "one SELECT is meant"),
        ("", "one SELECT is meant"),
        ("DROP TABLE records", "no SELECT, as DuckDB has it: Only SELECT statements"),
        ("SET threads = 4", "no SELECT, as DuckDB has it: Only SELECT statements"),
        ("COPY records TO '/tmp/x'", "no SELECT, as DuckDB has it: Only SELECT statements"),
        ("ATTACH '/tmp/x'", "no SELECT, as DuckDB has it: Only SELECT statements"),
        ("SELECT * FORM records", "no SELECT, as DuckDB has it: "),
    ],
)  # fmt: skip
def test_what_is_not_row_by_row_is_refused_with_its_line(text: str, why: str) -> None:
    refused(text, why)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("random()::VARCHAR", "random is volatile"),
        ("uuid()::VARCHAR", "uuid is volatile"),
        ("error('x')", "error is volatile"),
        ("pg_sleep(1)::VARCHAR", "sleep_ms is volatile"),
        ("now()::VARCHAR", "now goes by the clock"),
        ("today()::VARCHAR", "today goes by the clock"),
        ("current_timestamp::VARCHAR", "there is no column current_timestamp: goes by the clock"),
        ("current_date::VARCHAR", "there is no column current_date: goes by the clock"),
        ("localtime::VARCHAR", "there is no column localtime: goes by the clock"),
        ("get_current_time()::VARCHAR", "get_current_time goes by the clock"),
        ("ago(INTERVAL 1 DAY)::VARCHAR", "current_timestamp goes by the clock"),
        ("pg_conf_load_time()::VARCHAR", "current_timestamp goes by the clock"),
        ("age(make_timestamp(timestamp))::VARCHAR", "age of one time goes by the clock"),
        ("getvariable('x')", "getvariable goes by the clock or the session"),
        ("current_setting('threads')::VARCHAR", "current_setting goes by the clock or the session"),
        ("current_query()", "current_query goes by the clock or the session"),
        ("nextval('x')::VARCHAR", "nextval is volatile"),
        ("max(value)", "max is an aggregate"),
        ("count(*)::VARCHAR", "an aggregate"),
        ("list(value)::VARCHAR", "list is an aggregate"),
        ("string_agg(value, ',' ORDER BY value)", "string_agg is an aggregate"),
        ("max(value) OVER ()", "not row by row: a window function"),
        ("lag(value) OVER ()", "not row by row: a window function"),
        ("(SELECT 'x')", "not row by row: a subquery"),
        ("CASE WHEN EXISTS (SELECT 1) THEN 'x' END", "not row by row: a subquery"),
        ("pg_get_viewdef(1)", "not row by row: a subquery"),
        ("unnest(['a', 'b'])", "unnest is no function of a row"),
        ("read_text('x')", "read_text is no function of a row"),
        ("$1", "not row by row: a parameter"),
        ("rowid::VARCHAR", "there is no column rowid: there are topic, partition, offset, timestamp, key"),
        ("nothing", "there is no column nothing"),
        ("list_transform(['a'], lambda x: x || y)[1]", "there is no column y"),
        ("list_transform(['a'], lambda x: random()::VARCHAR)[1]", "random is volatile"),
        ("nope(value)", "as DuckDB says: Catalog Error: Scalar Function with name nope does not exist"),
        ("1", "value would be INTEGER, not BLOB or VARCHAR or JSON"),
        ("value::JSON::STRUCT(a INT)", "value would be STRUCT"),
    ],
)  # fmt: skip
def test_an_expression_of_more_than_a_record_is_refused(expression: str, why: str) -> None:
    refused(replacing(expression)["sql"], why)
    if "would be" not in why:
        refused(replacing("value", where=f"({expression})::VARCHAR = 'x'")["sql"], why)


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ("topic", "topic can't be replaced"),
        ("partition", "partition can't be"),
        ('"offset"', "offset can't be"),
    ],
)
def test_what_a_record_is_known_by_stays(column: str, why: str) -> None:
    refused(replacing("'a'", column)["sql"], why)


@pytest.mark.parametrize(
    ("column", "made"),
    [
        ("timestamp", "value"),
        ("timestamp", "1.5"),
        ("headers", "['a']"),
        ("headers", "map {'a': 'b'}"),
        ("key", "1"),
    ],
)
def test_a_column_keeps_its_type(column: str, made: str) -> None:
    refused(replacing(made, column)["sql"], f"{column} would be ")


def refused(text: str, why: str) -> None:
    told = f"version: 1\nflows:\n  - topics: [a]\n    value: json\n    stages:\n      - key: value.a\n      - sql: {json.dumps(text)}\n"
    with pytest.raises(SettingsError) as error:
        loading.parse(told, Path("p.yaml"))
    said = str(error.value)
    assert said.startswith("p.yaml:7: flow 1, stage 2, sql: ") and why in said and "\n" not in said


def test_columns_that_are_not_replaced_stay_to_the_byte_and_a_where_leaves_records_out() -> None:
    same = b'{ "b":1.10,"b" : 12345678901234567890123, "a":"\\u0041" }'
    records: list[Any] = [
        (b"\xff", same, [("h", b"\xff"), ("h", None)], 5),
        (None, b'{"bot":true}', None, -1),
        (b"", None, None, 7),
    ]
    found = applied(
        pipeline(
            {
                "sql": BOTS.replace(
                    "CASE WHEN value IS NOT NULL THEN json_merge_patch(value, '{\"ip\":null}') END", "'z'"
                ).replace("AS value", "AS key")
            }
        ),
        records,
    )
    assert found.outcomes.tolist() == [Outcome.CHANGED, Outcome.LEFT_OUT, Outcome.CHANGED]
    rows = found.rows.to_pylist()
    assert [(r["offset"], r["timestamp"], r["key"], r["value"]) for r in rows] == [
        (40, 5, b"z", same),
        (42, 7, b"z", None),
    ]
    assert rows[0]["headers"] == [{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}]
    assert (
        applied(pipeline({"sql": "SELECT * FROM records"}), records).outcomes.tolist() == [Outcome.KEPT] * 3
    )
    assert values(pipeline({"sql": BOTS}), b'{"ip":"x","a":"1"}', None) == [b'{"a":"1"}', None]


def test_it_fails_on_records_and_not_on_their_neighbours_and_shows_nothing_of_them() -> None:
    made = pipeline(replacing("(value->>'$.a')::INTEGER::VARCHAR"), onError="skip")
    records: list[Any] = [
        (b"k", b'{"a":"%s"}' % text, None, 0) for text in (b"1", b"secret", b"3", b"4", b"secret")
    ]
    found = applied(made, [*records, (b"k", b"{", None, 0), (b"k", b"\xff", None, 0)])
    assert [(f.offset, f.reason) for f in found.failures] == [
        (41, "raises ConversionException"), (44, "raises ConversionException"),
        (45, "the value is no JSON"), (46, "the value is no UTF-8"),
    ]  # fmt: skip
    assert found.rows.column(4).to_pylist() == [b"1", b"3", b"4"]
    late = applied(pipeline(replacing("(value->>'$.t')::BIGINT", "timestamp"), onError="skip"), [
        (None, b'{"t":7}', None, 0), (None, b"{}", None, 0), (None, b'{"t":-2}', None, 0), (None, b'{"t":-1}', None, 0),
    ])  # fmt: skip
    assert [(f.offset, f.reason) for f in late.failures] == [
        (n, "the timestamp is null, or below -1") for n in (41, 42)
    ]
    assert late.rows.column(1).to_pylist() == [7, -1]


def test_conditions_are_asked_in_their_order_however_often() -> None:
    """The second one raises on what the first has left out. An engine that puts the quicker one first, by
    what it has seen, would fail on some records at some times."""
    asked = "value->>'$.n' <> 'x' AND repeat(value, 3) <> '' AND (value->>'$.n')::INTEGER >= 0"
    records: list[Any] = [(None, b'{"n":"x"}' if n % 3 else b'{"n":"%d"}' % n, None, 0) for n in range(3000)]
    flow = Engine(pipeline(replacing("value", where=asked)), KEYS).flow_of("orders")
    assert flow is not None
    rows = rows_of(records)
    for _ in range(60):
        found = flow.apply(rows, ORIGIN)
        assert not found.failures and len(found.rows) == 1000
    other = pipeline(replacing("value", where=" AND ".join(reversed(asked.split(" AND ")))), onError="skip")
    assert len(applied(other, records[:9]).failures) == 6


def test_headers_are_a_list_in_which_names_may_be_there_twice() -> None:
    made = pipeline(
        replacing(
            "list_filter(headers, lambda h: h.key <> 'x') || [{'key': 'n', 'value': encode(value)}]",
            "headers",
        )
    )
    found = applied(
        made, [(None, b'"v"', [("a", b"1"), ("x", b""), ("a", None)], 0), (None, b'"w"', None, 0)]
    )
    assert found.rows.to_pylist()[0]["headers"] == [
        {"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "n", "value": b'"v"'},
    ]  # fmt: skip
    gone = applied(
        pipeline(replacing('[]::STRUCT("key" VARCHAR, "value" BLOB)[]', "headers")),
        [(None, None, [("a", b"1")], 0)],
    )
    assert gone.rows.to_pylist()[0]["headers"] is None


def test_rows_that_come_in_another_order_or_number_halt() -> None:
    """DuckDB keeps their order; if it did not, nothing would go on."""
    made = pipeline({"sql": "SELECT * FROM records"}, onError="skip")
    for other, why in (
        ('SELECT * FROM records ORDER BY "offset" DESC', "another order"),
        ("SELECT * FROM records UNION ALL SELECT * FROM records", "one twice"),
    ):
        ready = Engine(made, KEYS)
        flow = ready.flow_of("orders")
        assert flow is not None
        flow._stages[0].run.__self__._text = other  # type: ignore[attr-defined]

        found = flow.apply(rows_of([(None, b"1", None, 0)] * 3), ORIGIN)
        assert found.on_error == "halt" and why in found.failures[0].reason and not len(found.rows)


def test_the_version_of_duckdb_is_part_of_the_definition() -> None:
    made = pipeline({"sql": BOTS})
    engine = Engine(made, KEYS)
    assert engine.code == {"duckdb": duckdb.__version__}
    told = definition.definition(made, KEYS, engine.code).decode()
    flow = json.loads(told)["flows"][0]
    assert missing(flow, engine.code) is None
    assert (
        missing(flow, {"duckdb": "0.1"})
        == f"its stage sql was run by DuckDB 0.1, and here is {duckdb.__version__}"
    )
    with pytest.raises(SettingsError, match="duckdb is another one here than in the pipeline's version: "):
        definition.must_be_its_code(told.replace(duckdb.__version__, "0.1"), engine.code)


def test_without_the_extra_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    there = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "duckdb":
            raise ImportError(name)
        return there(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    made = pipeline({"sql": BOTS})
    with pytest.raises(
        SettingsError, match=r"flow 1, stage 1 \(sql\) needs the extra sql: install verbatim-kafka\[sql\]"
    ):
        Engine(made, KEYS)
