"""What the stage `fields` refuses to do, since a field would get lost or slip past."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.pipelines import applied, pipeline


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"rename": {"a": "b"}}, b'{"a":1,"b":2}'),
        ({"rename": {"a[*].x": "y"}}, b'{"a":[{"x":1},{"x":1,"y":2}]}'),
        ({"flatten": "_"}, b'{"x":1,"x":2,"a":{"b":1}}'),
        ({"flatten": "_"}, b'{"a":{"b":1,"b":2}}'),
        ({"flatten": "_"}, b'{"a_b":1,"a":{"b":2}}'),
        ({"flatten": "_"}, b"[]"),
        ({"drop": ["a"]}, b'{"a":1,"a":2}'),
        ({"drop": ["a.b"]}, b'{"a":[{"b":1}]}'),
        ({"keep": ["a.b"]}, b'{"a":1}'),
        ({"keep": ["a.b"]}, b'{"a":{"b":1,"b":2}}'),
        ({"set": {"a.b": 1}}, b'{"a":null}'),
        ({"set": {"a.b": 1}}, b'{"a":[]}'),
        ({"set": {"a": 1}}, b"[]"),
        ({"cast": {"a": "integer"}}, b'{"a":1.0}'),
        ({"cast": {"a": "number"}}, b'{"a":"01"}'),
        ({"cast": {"a": "number"}}, b'{"a":"NaN"}'),
        ({"cast": {"a": "string"}}, b'{"a":[]}'),
        ({"cast": {"a": "boolean"}}, b'{"a":1}'),
        ({"extract": "a"}, b'{"b":1}'),
        ({"wrap": "a"}, b'{"b":1'),
    ],
)
def test_a_record_fails_where_an_option_cannot_be_done(options: dict[str, Any], value: bytes) -> None:
    untouched = b'{"b":1,"b":2}'
    found = applied(pipeline({"fields": options}), [(None, v, None, 0) for v in (value, None)])
    assert [failure.offset for failure in found.failures] == [40] and found.rows.column(4).to_pylist() == [
        None
    ]
    if "rename" in options:
        # What its own fields are called is no matter of other records.
        beside = applied(pipeline({"fields": options}), [(None, v, None, 0) for v in (value, untouched)])
        assert beside.rows.column(4).to_pylist() == [untouched]
