"""The stage `python`: what a function may give back, what becomes of what it raises, and which text of it
runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.errors import SettingsError
from common.kafka.wire.records import headers_of
from common.pipeline import definition, own_code
from common.pipeline.engine import Engine, Outcome
from common.pipeline.models import Pipeline
from tests.support import own_stages
from tests.support.pipelines import KEYS, applied, pipeline
from verbatim.verify.pipeline.own_code import missing

OWN = "tests.support.own_stages"
BAD = b"secret \xff"


def calling(function: str, **flow: Any) -> Pipeline:
    return pipeline({"python": f"{OWN}:{function}"}, **flow)


RECORDS: list[Any] = [(b"k%d" % n, b"v" * n, [("x-a", b"1"), ("x-b", None)], n) for n in range(6)]


def test_rows_go_on_changed_left_out_or_as_they_were() -> None:
    found = applied(calling("tidy"), [*RECORDS, (None, b"x", None, 9)])
    assert found.outcomes.tolist() == [
        Outcome.TOMBSTONE, *[Outcome.CHANGED] * 5, Outcome.LEFT_OUT,
    ]  # fmt: skip
    rows = found.rows.to_pylist()
    assert [(r["offset"], r["value"], r["timestamp"]) for r in rows] == [
        (40, None, 0), (41, b"V", 2), (42, b"vv", 2), (43, b"VVV", 4), (44, b"vvvv", 4), (45, b"VVVVV", 6),
    ]  # fmt: skip
    assert headers_of(found.rows)[1:3] == [[("x-b", None), ("offset", b"41")], [("x-b", None)]]
    assert found.rows.schema.names == ["offset", "timestamp", "timestamp_type", "key", "value", "headers"]
    same = applied(calling("unchanged"), RECORDS)
    assert same.outcomes.tolist() == [Outcome.KEPT] * 6
    assert same.rows.column(4).to_pylist() == [value for _, value, _, _ in RECORDS]
    assert applied(calling("nothing"), RECORDS).outcomes.tolist() == [Outcome.LEFT_OUT] * 6
    assert applied(calling("upper"), RECORDS).rows.column(4).to_pylist()[2] == b"+vv"


def test_only_the_records_fail_on_which_it_raises_and_only_the_type_is_told() -> None:
    """Whoever else is in the batch."""
    records = [*RECORDS[:3], (b"k", BAD, None, 0), *RECORDS[3:], (b"k", BAD, None, 0)]
    found = applied(calling("tidy", onError="skip"), records)
    assert [(f.offset, f.stage, f.reason) for f in found.failures] == [
        (43, "stage 1 (python)", "raises UnicodeDecodeError"),
        (47, "stage 1 (python)", "raises UnicodeDecodeError"),
    ]
    assert found.rows.column(0).to_pylist() == [40, 41, 42, 44, 45, 46]
    assert found.on_error == "skip"
    every = applied(calling("raises"), [(b"k", b"secret", None, 0)] * 3)
    assert [f.reason for f in every.failures] == ["raises ZeroDivisionError"] * 3


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("backwards", "gives rows back in another order, or one twice"),
        ("twice", "gives rows back in another order, or one twice"),
        ("elsewhere", "gives back an offset that it was not given"),
        ("a_table", "gives back a Table, not a RecordBatch"),
        ("without_a_column", "gives back columns other than offset, timestamp, key, value, headers"),
        ("numbers", "gives back value as int64, not as binary"),
        ("no_time", "gives back no timestamp"),
        ("before_time", "gives back a timestamp below -1"),
        ("our_headers", "changes headers that begin with verbatim."),
        ("nameless_headers", "gives back a header without a name"),
    ],
)
def test_what_no_function_may_give_back_halts_whatever_the_flow_says(function: str, why: str) -> None:
    """It is no record's fault, so none is skipped or goes on; the first one stands for all."""
    for said in ("halt", "skip", "dead-letter", {"tolerate": {"records": 100, "per": 1000}}):
        found = applied(calling(function, onError=said), RECORDS)
        assert [(f.offset, f.stage, f.reason) for f in found.failures] == [(40, "stage 1 (python)", why)]
        assert len(found.rows) == 0 and found.on_error == "halt"


def test_records_that_a_when_leaves_to_others_are_not_shown_to_it() -> None:
    made = pipeline(
        {"when": {"key": "k2"}, "python": f"{OWN}:tidy"}, {"when": {"key": "k3"}, "python": f"{OWN}:nothing"}
    )
    found = applied(made, RECORDS)
    assert found.outcomes.tolist() == [
        Outcome.KEPT, Outcome.KEPT, Outcome.CHANGED, Outcome.LEFT_OUT, Outcome.KEPT, Outcome.KEPT,
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def written(folder: Path, sign: str) -> Pipeline:
    """Texts of one length, within one second: no compiled one is to be taken for another."""
    text = "import pyarrow as pa\n\ndef f(rows):\n    return rows.set_column(3, 'value', pa.array([b'%s'] * len(rows)))\n"
    (folder / "own_module_of_a_test.py").write_text(text % sign)
    return pipeline({"python": "own_module_of_a_test:f"})


def test_what_runs_is_what_the_definition_names_and_another_text_is_another_version(folder: Path) -> None:
    told = []
    for sign in ("a", "b"):
        made = written(folder, sign)
        engine = Engine(made, KEYS)
        text = definition.definition(made, KEYS, engine.code).decode()
        told.append(text)
        assert json.loads(text)["code"] == engine.code
        assert applied(made, RECORDS[:1]).rows.column(4).to_pylist() == [sign.encode()]
        definition.must_be_its_code(text, engine.code)
        assert definition.defined(text, made.keys) == made.model_copy(update={"tests": []})
        flow = json.loads(text)["flows"][0]
        assert missing(flow, engine.code) is None
    assert told[0] != told[1]
    with pytest.raises(
        SettingsError, match="own_module_of_a_test is another one here than in the pipeline's v"
    ):
        definition.must_be_its_code(told[0], engine.code)
    assert missing(flow, json.loads(told[0])["code"]) == "its module own_module_of_a_test is another one here"
    assert missing({"stages": [{"python": "nowhere.x:f"}]}, {}) is None
    assert (
        missing({"stages": [{"python": "nowhere.x:f"}]}, {"nowhere.x": "y"})
        == "its module nowhere.x is not there here"
    )


def test_the_identity_of_a_module_has_the_version_of_its_package() -> None:
    import importlib.metadata

    found = own_code.module("yaml.nodes", "stage").identity
    assert found.startswith(f"PyYAML {importlib.metadata.version('PyYAML')}, sha256 ")
    assert (
        own_code.module(OWN, "stage").identity.rpartition("sha256 ")[2]
        == __import__("hashlib").sha256(Path(own_stages.__file__).read_bytes()).hexdigest()
    )


@pytest.mark.parametrize(
    ("what", "text", "why"),
    [
        ("nowhere_at_all:f", None, "module nowhere_at_all can't be imported here: there is no such module"),
        ("nowhere.at.all:f", None, "module nowhere.at.all can't be imported here: No module named 'nowhere'"),
        ("math:floor", None, "module math can't be imported here: there is no such module with a text"),
        ("broken_of_a_test:f", "1 +", "module broken_of_a_test can't be imported here: SyntaxError"),
        ("broken_of_a_test:f", "raise ValueError('secret')", "can't be imported here: ValueError"),
        ("broken_of_a_test:f", "g = 1", "module broken_of_a_test has no function f"),
        ("broken_of_a_test:f", "f = 1", "module broken_of_a_test has no function f"),
    ],
)
def test_a_function_that_is_not_there_is_refused_with_the_stage(
    folder: Path, what: str, text: str | None, why: str
) -> None:
    if text is not None:
        (folder / "broken_of_a_test.py").write_text(text)
    with pytest.raises(SettingsError, match=why) as error:
        Engine(pipeline({"headers": {"remove": ["x"]}}, {"python": what}), KEYS)
    assert str(error.value).startswith("flow 1, stage 2 (python): ") and "secret" not in str(error.value)


def test_the_function_and_the_select_of_the_guide_do_what_it_says(folder: Path) -> None:
    page = (Path(__file__).parents[4] / "docs/guides/pipelines.md").read_text()
    part = page[page.index("## A function of your own") : page.index("## When a stage fails")]
    (folder / "acme").mkdir()
    (folder / "acme/stages.py").write_text(part.partition("```python\n")[2].partition("```")[0])
    python, sql = (yaml.safe_load(text.partition("```")[0])["stages"] for text in part.split("```yaml\n")[1:])
    found = applied(pipeline(*python), [(b"K\xc3\x84", b"1", None, 0), (None, b"2", None, 0)])
    assert [(r["key"], r["value"]) for r in found.rows.to_pylist()] == [("k\u00e4".encode(), b"1")]
    values = [b'{"ip":"1","user":{"id":"u"}}', b'{"bot":true}', None]
    found = applied(pipeline(*sql), [(b"k", value, None, 0) for value in values])
    assert [(r["key"], r["value"]) for r in found.rows.to_pylist()] == [
        (b"u", b'{"user":{"id":"u"}}'),
        (None, None),
    ]
