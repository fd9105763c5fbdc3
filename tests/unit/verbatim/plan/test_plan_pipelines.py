"""What a plan says of a pipeline beside the versions that the link has had, and of compacted topics."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest

from common.link.control_records import NO_FLOWS, PipelineVersion
from common.link.control_state import Control
from common.pipeline.definition import definition, sha256
from common.pipeline.engine import Engine
from common.pipeline.models import Pipeline
from common.pipeline.route_names import asks_for_schemas
from replicator.driver.pipeline_file import NONE, Configured
from tests.support.control_json import encode
from tests.support.pipelines import KEYS, pipeline
from verbatim.plan.pipelines import PipelineLook, TopicFlow
from verbatim.plan.report import PlanReport, RoutePlan, TopicPlan, as_json, as_text
from verbatim.plan.routes import look

FILTER: dict[str, Any] = {"filter": {"drop": {"value.a": 1}}}
HMAC: dict[str, Any] = {"mask": {"key": "k1", "fields": {"a": "hmac"}}}


def code_of(made: Pipeline) -> dict[str, str]:
    return Engine(made, KEYS).code


def configured(made: Pipeline | None) -> Configured:
    if made is None:
        return NONE
    told = definition(made, {}, code_of(made))
    return Configured(told.decode(), sha256(told), made.keys)


def versions(*made: Pipeline | None) -> dict[int, PipelineVersion]:
    texts = [NO_FLOWS if one is None else definition(one, {}, code_of(one)).decode() for one in made]
    return {
        n: PipelineVersion(n, text, hashlib.sha256(text.encode()).hexdigest())
        for n, text in enumerate(texts, 1)
    }


@pytest.mark.parametrize(
    ("made", "had", "number", "state"),
    [
        (pipeline(FILTER), [], 1, "new"),
        (pipeline(FILTER), [pipeline(FILTER)], 1, "same"),
        (pipeline(FILTER), [pipeline(FILTER), pipeline(HMAC)], 3, "changed"),
        (pipeline(FILTER), [pipeline(HMAC), None], 3, "changed"),
        (None, [pipeline(FILTER)], 2, "gone"),
        (None, [pipeline(FILTER), None], 2, "same"),
    ],
)
def test_a_plan_says_which_version_it_would_be(
    made: Pipeline | None, had: list[Pipeline | None], number: int, state: str
) -> None:
    found = PipelineLook(configured(made), versions(*had)).version()
    assert found is not None and (found.number, found.state) == (number, state)
    text = NO_FLOWS if made is None else definition(made, {}).decode()
    assert found.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_a_link_without_pipelines_is_told_nothing() -> None:
    look = PipelineLook(NONE, {})
    assert (look.version(), look.topic("orders"), list(look.doubts("orders", True))) == (None, None, [])
    assert not any("pipeline" in line for line in as_text(PlanReport("l")))


def test_each_topic_has_the_first_flow_that_takes_it_and_what_it_is_beside_the_newest() -> None:
    old = pipeline(FILTER, topics=["orders", "gone"])
    hiding = pipeline(HMAC, topics=["new"])
    new = hiding.model_copy(update={"flows": [*hiding.flows, *pipeline(FILTER, topics=["orders|all"]).flows]})
    look = PipelineLook(configured(new), versions(old))
    assert [look.topic(name) for name in ("orders", "gone", "new", "other")] == [
        TopicFlow(2, "same"), TopicFlow(None, "gone"), TopicFlow(1, "new"), None,
    ]  # fmt: skip
    assert PipelineLook(configured(pipeline(HMAC)), versions(old)).topic("orders") == TopicFlow(1, "changed")


@pytest.mark.parametrize(
    ("stage", "failures", "warnings"),
    [
        ({"mask": {"fields": {"key": "redact"}}}, ["stage 1 (mask) makes other keys"], []),
        ({"mask": {"fields": {"key.a": {"partial": {"last": 2}}}}}, ["stage 1 (mask) makes other keys"], []),
        ({"mask": {"side": "key", "fields": {"a": "null"}}}, ["stage 1 (mask) makes other keys"], []),
        ({"mask": {"key": "k1", "fields": {"key": "hmac"}}}, [], []),
        ({"mask": {"key": "k1", "fields": {"key.a": "encrypt"}}}, [], []),
        ({"mask": {"fields": {"a": "redact"}}}, [], []),
        ({"key": "value.id"}, ["stage 1 (key) makes other keys"], []),
        ({"fields": {"side": "key", "drop": ["a"]}}, ["stage 1 (fields) makes other keys"], []),
        ({"fields": {"drop": ["a"]}}, [], []),
        (
            {"python": "tests.support.own_stages:tidy"},
            [],
            ["stage 1 (python) may make other keys, and leave"],
        ),
        ({"sql": "SELECT * REPLACE ('a' AS key) FROM records"}, ["stage 1 (sql) makes other keys"], []),
        ({"sql": "SELECT * FROM records WHERE key <> 'a'"}, [], ["stage 1 (sql) may leave records out"]),
        (FILTER, [], ["`otherwise: tombstone` deletes it"]),
        ({"filter": {"drop": {"value.a": 1}, "otherwise": "tombstone"}}, [], []),
        ({"route": {"topic": "b"}}, [], ["stage 1 (route) takes records elsewhere"]),
    ],
)
def test_what_does_not_go_with_a_compacted_topic_is_refused_or_warned_of(
    stage: dict[str, Any], failures: list[str], warnings: list[str]
) -> None:
    look = PipelineLook(configured(pipeline(stage, key="json")), {})
    found = list(look.doubts("orders", True))
    told = {fails: [why for other, why in found if other is fails] for fails in (True, False)}
    for words, said in ((failures, told[True]), (warnings, told[False])):
        assert len(words) == len(said) and all(word in why for word, why in zip(words, said, strict=True)), (
            found
        )
    assert list(look.doubts("orders", False)) == []


def test_ids_in_keys_of_a_compacted_topic_are_warned_of() -> None:
    """Two schemas may be one at the target."""
    for side, words in (("key", ["stage 1 (schema-ids) changes ids in keys"]), ("value", [])):
        made = configured(pipeline("schema-ids", value="bytes", wire={side: "confluent"}))
        look = PipelineLook(made, {})
        assert asks_for_schemas(made.definition)
        told = list(look.doubts("orders", True))
        assert [fails for fails, _ in told] == [False] * len(words)
        assert all(word in why for word, (_, why) in zip(words, told, strict=True))


def test_who_reads_avro_asks_for_schemas() -> None:
    mask = {"mask": {"fields": {"a": "redact"}}}
    assert all(
        asks_for_schemas(configured(pipeline(mask, **formats)).definition)
        for formats in ({"value": "avro"}, {"key": "avro", "value": "json"})
    )
    assert not asks_for_schemas(configured(pipeline(FILTER)).definition)


def test_keys_of_a_compacted_topic_are_not_converted() -> None:
    for side, words in (("key", ["stage 1 (convert) makes other keys"]), ("value", [])):
        made = pipeline({"convert": {"to": "json", "side": side}}, **{"value": "bytes", side: "avro"})
        told = list(PipelineLook(configured(made), {}).doubts("orders", True))
        assert [fails for fails, _ in told] == [True] * len(words)
        assert all(word in why for word, (_, why) in zip(words, told, strict=True))


def test_a_record_that_is_skipped_leaves_an_older_one_in_a_compacted_topic() -> None:
    for said, word in (
        ("skip", "skipped"),
        ("dead-letter", "a dead letter"),
        ({"dead-letter": {"payload": True}}, "a dead letter"),
    ):
        found = list(PipelineLook(configured(pipeline(HMAC, onError=said)), {}).doubts("orders", True))
        assert [(fails, word in why) for fails, why in found] == [(False, True)]


def test_another_text_of_a_module_is_another_flow() -> None:
    made = pipeline({"python": "tests.support.own_stages:tidy"}, topics=["a"])
    other = pipeline({"filter": {"drop": {"key": "x"}}}, topics=["b"])
    both = made.model_copy(update={"flows": [*made.flows, *other.flows]})
    (number, before), *_ = versions(both).items()
    its = json.loads(configured(both).definition)["code"]["tests.support.own_stages"]
    text = configured(both).definition.replace(its, "sha256 0")
    look = PipelineLook(configured(both), {number: dataclasses.replace(before, definition=text)})
    assert look.topic("a") == TopicFlow(1, "changed") and look.topic("b") == TopicFlow(2, "same")
    assert PipelineLook(configured(both), versions(both)).topic("a") == TopicFlow(1, "same")


def test_a_plan_shows_it() -> None:
    look = PipelineLook(configured(pipeline(HMAC)), versions(pipeline(FILTER)))
    report = PlanReport("l", pipeline=look.version())
    report.topics.append(TopicPlan("orders", "id", 1, "orders", "there", pipeline=look.topic("orders")))
    report.topics[0].routes = [RoutePlan("de", "make"), RoutePlan("fr", "refused", "it is full")]
    text = "\n".join(as_text(report))
    assert text.count("; routed to de (to be made), fr (refused)") == 1
    assert "pipeline: version 2 would be written, beside version 1 changed (sha256 " in text
    assert "; flow 1, changed" in text
    told = as_json(report)
    assert told["pipeline"]["state"] == "changed" and told["topics"][0]["pipeline"] == {
        "flow": 1,
        "state": "changed",
    }


def test_a_plan_names_where_records_are_routed_to_and_what_is_refused_there() -> None:
    cases = [{"when": {"size": size}, "topic": name} for size, name in enumerate(("de", "fr", "it", "own"))]
    state = Control()
    told = definition(pipeline({"route": {"cases": cases}}, topics=["orders"]), {}).decode()
    state.apply(0, encode("pipeline", n=1, definition=told, sha256=""))
    verdicts: tuple[tuple[str, dict[str, Any]], ...] = (
        ("de", {}), ("fr", {"refused": "it is full"}), ("it", {"compacted": True}), ("old", {})
    )  # fmt: skip
    for name, more in verdicts:
        said = {"topic": "orders", "topic_id": "id", "partitions": 1, "max_message_bytes": 1}
        state.apply(state.position, encode("route", **said, destination=name, **more))
    report = PlanReport(
        "l", topics=[TopicPlan("orders", "id", 1, "own", "there"), TopicPlan("x", "y", 1, "x", "there")]
    )
    look(report, state, "link", lambda name: "make" if name == "de" else "there")
    assert report.topics[0].routes == [
        RoutePlan("de", "make"), RoutePlan("fr", "refused", "it is full"), RoutePlan("it", "there")
    ]  # fmt: skip
    assert report.topics[1].routes == []
    assert report.failures == ["topic orders, records that are routed: it is full"]
    (warning,) = report.warnings
    assert "routes to it, which is compacted" in warning
    spread = {"cases": cases, "partition": {"hash": 6}}
    told = definition(pipeline({"route": spread}, topics=["orders"]), {}).decode()
    state.apply(state.position, encode("pipeline", n=2, definition=told, sha256=""))
    report = PlanReport("l", topics=[TopicPlan("orders", "id", 1, "own", "there")])
    look(report, state, "link", lambda _: "there")
    assert report.warnings[0] == (
        "topic orders: a stage spreads records over 6 partitions of de by their keys: consumer groups are never translated there"
    )
    report = PlanReport("l", topics=[TopicPlan("orders", "id", 1, "own", "there")])
    look(report, Control(), "link", lambda _: "make")
    assert report.topics[0].routes == []
