"""When two schemas are the same, which subjects are a link's, and in which order versions are copied."""

from __future__ import annotations

import pytest

from common.errors import RegistryError
from common.link.schema_map import Reference
from common.pipeline.registries import Schemas
from schemas.matching import Matching
from schemas.model import Schema, Version, context_of, unqualified
from schemas.subjects import ordered, referred, renamed, selected

TOPICS = {"orders": "eu.orders", "orders-eu": "eu.orders-eu"}


def version(
    subject: str, number: int, text: str = '"int"', *references: Reference, deleted: bool = False
) -> Version:
    return Version(subject, number, number, Schema(text, references=references), deleted)


def test_schemas_are_the_same_however_their_json_is_laid_out_and_differ_by_what_differs() -> None:
    one = Schema('{"type": "long", "doc": 1.10}', metadata={"tags": {}}, rules={"domainRules": [1]})
    same = Schema('{"doc":1.1,"type":"long"}', rules={"domainRules": [1], "migrationRules": None})
    assert one.differences(same) == [] and one.sha256 == same.sha256
    other = Schema('{"type": "int"}', "JSON", (Reference("a", "b", 1),), {"owner": "x"})
    assert one.differences(other) == ["type", "text", "references", "metadata", "rule set"]
    assert Schema("message A {\n }", "PROTOBUF").sha256 == Schema("message A { }", "PROTOBUF").sha256
    assert Schema('"int"').sha256 != Schema('"int"', "JSON").sha256


@pytest.mark.parametrize(
    ("subject", "context", "parts"),
    [
        ("orders-value", ".", ("", "orders-value")),
        (":.eu:orders-value", ".eu", (":.eu:", "orders-value")),
        (":.:orders-value", ".", (":.:", "orders-value")),
        (":.odd", ".", ("", ":.odd")),
    ],
)
def test_a_subject_has_a_context(subject: str, context: str, parts: tuple[str, str]) -> None:
    assert context_of(subject) == context and unqualified(subject) == parts


def test_a_links_subjects_are_named_after_its_topics() -> None:
    subjects = ["orders-value", "orders-key", "orders-eu-value", "orders-eu.Order", ":.ctx:orders-acme.Order"]
    others = ["orders", "orders-", "orders-a-b", "orders-us-value", "Order", "payments-value", "orders-1x"]
    assert selected([*others, *subjects], Schemas(), TOPICS) == sorted(subjects)
    assert selected(["a", "b"], Schemas(subjects="all"), {}) == ["a", "b"]
    assert selected(["a.b", "axb", "c-1"], Schemas(subjects=["a.b", "c-.*"]), {}) == ["a.b", "axb", "c-1"]
    to = Schemas(rename="topics")
    assert [renamed(s, to, TOPICS) for s in ("orders-value", ":.ctx:orders-eu-a.B", "Order")] == [
        "eu.orders-value",
        ":.ctx:eu.orders-eu-a.B",
        "Order",
    ]
    assert renamed("orders-value", Schemas(), TOPICS) == "orders-value"


def test_what_is_referred_to_comes_first_and_versions_in_order() -> None:
    uses = version("a", 1, '"a1"', Reference("b", "b", 2))
    newest = version("c", 1, '"c1"', Reference("a", "a", -1))
    versions = [newest, uses, version("a", 2, '"a2"'), version("b", 2), version("b", 1, '"b1"')]
    order = [(v.subject, v.version) for v in ordered(versions)]
    assert order == [("b", 1), ("b", 2), ("a", 1), ("a", 2), ("c", 1)]
    assert referred(Reference("n", "b", 1), ":.ctx:a") == ":.ctx:b"
    assert referred(Reference("n", ":.x:b", 1), ":.ctx:a") == ":.x:b"
    # Subjects may refer to each other, versions may not.
    mutual = [
        version("a", 1),
        version("b", 1, '"b"', Reference("a", "a", 1)),
        version("a", 2, '"x"', Reference("b", "b", 1)),
    ]
    assert [(v.subject, v.version) for v in ordered(mutual)] == [("a", 1), ("b", 1), ("a", 2)]
    circle = [version("a", 1, '"a"', Reference("b", "b", 1)), version("b", 1, '"b"', Reference("a", "a", 1))]
    with pytest.raises(RegistryError, match="in a circle: .*a version 1"):
        ordered(circle)


def test_a_schema_that_was_registered_twice_is_found_twice_whatever_the_numbers() -> None:
    source = [version("a", 2, '"A"', deleted=True), version("a", 3, '"B"'), version("a", 5, '"A"')]
    there = [
        version("a", 1, '"A"', deleted=True),
        version("a", 2, '"X"'),
        version("a", 3, '"B"'),
        version("a", 4, '"A"'),
    ]
    matching = Matching(there)
    found = [matching.take(v, v.schema) for v in source]
    assert [v and v.version for v in found] == [1, 3, 4]
    assert matching.take(version("a", 6, '"A"'), Schema('"A"')) is None
    # A live version is not one that is soft-deleted.
    assert Matching(there[:1]).take(source[2], source[2].schema) is None
