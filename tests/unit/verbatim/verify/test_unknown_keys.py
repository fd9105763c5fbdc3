"""What of a record can't be told without the key of a mask."""

from __future__ import annotations

from typing import Any

import pytest

from verbatim.verify.pipeline.unknown_keys import masked_parts

HMAC = {"mask": {"key": "k", "fields": {"email": "hmac", "phone": {"partial": {}}}}}
ON_KEY = {"mask": {"key": "k", "side": "key", "fields": {"id": "hmac"}}}


def flow(*stages: dict[str, Any]) -> dict[str, Any]:
    return {"topics": ["t"], "value": "json", "key": "json", "stages": [*stages]}


@pytest.mark.parametrize(
    ("stages", "parts"),
    [
        ([{"filter": {"keep": {"value.email": "a"}}}], set()),
        ([{"filter": {"keep": {"value.email": "a"}}}, HMAC], {"value"}),
        ([ON_KEY], {"key"}),
        ([{"mask": {"key": "k", "fields": {"header.x": "hmac", "a": "redact"}}}], {"header"}),
        ([{"mask": {"key": "k", "fields": {"header.x": "encrypt", "a": "redact"}}}], {"header"}),
        ([HMAC, {"filter": {"keep": {"value.phone": "a"}}}], {"value"}),
        ([HMAC, {"key": "value.email"}], {"key", "value"}),
        ([HMAC, {"key": "value.id"}], {"value"}),
        ([ON_KEY, {"key": "value.id"}], set()),
        ([HMAC, {"timestamp": "value.email"}], {"value"}),
    ],
)
def test_only_what_a_mask_has_made_is_not_known(stages: list[dict[str, Any]], parts: set[str]) -> None:
    assert masked_parts(flow(*stages), {}) == parts
    assert masked_parts(flow(*stages), {"k": b"key"}) == set()


@pytest.mark.parametrize(
    "stage",
    [
        {"filter": {"keep": {"value.email": {"prefix": "a"}}}},
        {"filter": {"drop": [{"key": "a"}, {"value.email.a": 1}]}},
        {"when": {"value": {"exists": True}}, "headers": {"remove": ["x"]}},
        {"validate": {"schema": {}}},
        {"convert": {"to": "avro", "id": 7}},
        {"route": {"cases": [{"when": {"size": 1}, "topic": "a"}, {"when": {"email": "b"}, "topic": "a"}]}},
    ],
)
def test_where_it_decides_nothing_is_known(stage: dict[str, Any]) -> None:
    with pytest.raises(LookupError):
        masked_parts(flow(HMAC, stage), {})
    assert masked_parts(flow(stage, HMAC), {}) == {"value"}


def test_a_key_that_chooses_the_partition_decides() -> None:
    spread = {"route": {"topic": "a", "partition": {"hash": 2}}}
    with pytest.raises(LookupError):
        masked_parts(flow(ON_KEY, spread), {})
    assert masked_parts(flow(HMAC, spread), {}) == {"value"}


def test_what_makes_json_of_masked_avro_decides_nothing() -> None:
    avro = flow(HMAC, {"convert": {"to": "json"}}) | {"value": "avro"}
    assert masked_parts(avro, {}) == {"value"}


def test_a_field_may_have_been_moved() -> None:
    asked = {"filter": {"keep": {"value.mail": {"prefix": "a"}}}}
    assert masked_parts(flow(HMAC, asked), {}) == {"value"}
    with pytest.raises(LookupError):
        masked_parts(flow(HMAC, {"fields": {"rename": {"email": "mail"}}}, asked), {})
