"""Schemas that are none are refused before a record is looked at, and a record that does not fit fails,
without a word of what it holds."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from common.errors import SettingsError
from common.pipeline.engine import Engine
from tests.support.pipelines import applied, pipeline

SCHEMA = {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "string", "pattern": "^x"}}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strange"}, r"flow 1, stage 1 \(validate\): the schema is none, at \$\.type"),
        ({"$ref": "#/$defs/none"}, r"flow 1, stage 1 \(validate\): the schema has no #/\$defs/none"),
    ],
)
def test_a_schema_that_is_none_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Engine(pipeline({"validate": {"schema": schema}}), {})


def test_without_the_extra_the_stage_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(SettingsError, match=r"flow 1, stage 1 \(validate\) needs the extra validate"):
        Engine(pipeline({"validate": {"schema": {}}}), {})


def test_a_reason_has_keywords_of_the_schema_and_nothing_of_the_record() -> None:
    found = applied(
        pipeline({"validate": {"schema": SCHEMA}}),
        [(None, b'{"a":"s3cret"}', None, 0), (None, b'{"a":"x"}', None, 0)],
    )
    (failure,) = found.failures
    assert failure.reason == "the value does not fit the schema: properties/a/pattern"
    assert found.rows.column(4).to_pylist() == [b'{"a":"x"}'] and found.outcomes.tolist() == [4, 0]
