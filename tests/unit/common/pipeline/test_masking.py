"""What masks hide, and that nothing slips past them."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.pipeline import masking
from tests.support.pipelines import KEYS, applied, pipeline, values


@given(st.binary(min_size=1, max_size=200), st.binary())
def test_hmac_is_that_of_the_standard_library(key: bytes, text: bytes) -> None:
    assert masking.hmac(key)(text) == hmac.new(key, text, hashlib.sha256).hexdigest().encode()


def token(text: str) -> bytes:
    return b'{"a":"%b"}' % hmac.new(KEYS["k1"], text.encode(), hashlib.sha256).hexdigest().encode()


def test_the_same_text_has_the_same_token_however_it_is_escaped() -> None:
    made = pipeline({"mask": {"key": "k1", "fields": {"a": "hmac"}}})
    assert values(made, '{"a":"é/"}'.encode(), rb'{"a":"\u00e9\/"}') == [token("é/")] * 2
    assert values(made, b'{"a":1.10}', b'{"a":true}') == [token("1.10"), token("true")]


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        ({"last": 4}, "+491234567", "******4567"),
        ({"first": 1, "last": 1, "with": "#"}, "abcd", "a##d"),
        ({"last": 4}, "4567", "****"),
        ({}, "abc", "***"),
    ],
)
def test_partial_never_shows_the_whole(options: dict[str, object], text: str, expected: str) -> None:
    made = pipeline({"mask": {"fields": {"a": {"partial": options}}}})
    assert values(made, b'{"a":"%b"}' % text.encode()) == [b'{"a":"%b"}' % expected.encode()]


SECRET = b"s3cret-content"


@pytest.mark.parametrize(
    "value",
    [
        b'{"a":"s3cret-content","a":1}',
        rb'{"\u0061":"s3cret-content","a":1}',
        rb'{"a":"s3cret-content","\u0061":1}',
        b'{"b":{"c":"s3cret-content","c":1}}',
        b'{"b":{"c":1},"b":{"c":"s3cret-content"}}',
        b'{"b":["s3cret-content"]}',
        b'{"b":"s3cret-content"}',
        b'[{"a":"s3cret-content"}]',
        b'{"a":{"x":"s3cret-content"}}',
        b'{"a":"s3cret-content"',
        b'{"a":"s3cret-content\xff"}',
        b"s3cret-content",
        b'"s3cret-content"',
    ],
)
@pytest.mark.parametrize("neighbour", [b"{}", b'{"a":"x","z":"a"}', rb'{"z":"\u0061"}'])
def test_what_a_mask_cannot_reach_goes_no_further_and_is_in_no_reason(value: bytes, neighbour: bytes) -> None:
    made = pipeline({"mask": {"key": "k1", "fields": {"a": "hmac", "b.c": "redact"}}}, onError="skip")
    found = applied(made, [(None, v, None, 0) for v in (neighbour, value, neighbour)])
    assert [failure.offset for failure in found.failures] == [41] and found.on_error == "skip"
    assert SECRET.decode() not in found.failures[0].reason and found.failures[0].stage == "stage 1 (mask)"
    assert found.rows.column(0).to_pylist() == [40, 42]


def test_a_name_that_is_escaped_in_one_record_does_not_make_up_for_one_that_is_twice_in_another() -> None:
    made = pipeline({"mask": {"fields": {"a": "redact"}}})
    records = [rb'{"\u0061":1}', b'{"a":"s3cret","a":1}', b'{"a":1}']
    found = applied(made, [(None, value, None, 0) for value in records])
    assert found.outcomes.tolist() == [1, 4, 1]


@pytest.mark.parametrize(
    "value",
    [
        rb'{"\u0061":"s3cret-content"}',
        rb'{"x":"\u0061","a":"s3cret-content"}',
        b'{"x":{"a":1},"a":"s3cret-content"}',
        b'{"x":"a","a":"s3cret-content"}',
    ],
)
def test_a_name_is_the_same_name_however_it_is_written(value: bytes) -> None:
    (found,) = values(pipeline({"mask": {"fields": {"a": "redact"}}}), value)
    assert found == value.replace(SECRET, b"***")


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        (rb'{"a\/b":1}', [rb'{"a\/b":"***"}']),
        (rb'{"a/b":"s3cret","a\/b":1}', []),
        (rb'{"a\/b":"s3cret","a/b":1}', []),
    ],
)
def test_a_slash_may_be_escaped_without_its_number(value: bytes, masked: list[bytes]) -> None:
    assert values(pipeline({"mask": {"fields": {'"a/b"': "redact"}}}), value) == masked


def test_headers_of_the_name_are_hidden_all_of_them_and_a_whole_key_too() -> None:
    made = pipeline(
        {"mask": {"fields": {"header.h": {"partial": {"last": 1}}, "key": "redact"}}}, value="bytes"
    )
    found = applied(
        made,
        [(b"k", b"v", [("h", b"ab"), ("i", b"ab"), ("h", None), ("h", b"cd")], 0), (None, None, None, 0)],
    )
    assert found.rows.to_pylist()[0]["headers"] == [
        {"key": "h", "value": b"*b"},
        {"key": "i", "value": b"ab"},
        {"key": "h", "value": None},
        {"key": "h", "value": b"*d"},
    ]
    assert found.rows.column(3).to_pylist() == [b"***", None] and found.outcomes.tolist() == [1, 0]
