"""What a round brings to the target, what it leaves alone, and what it refuses, between stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from common.errors import Deposed, RegistryError, SchemaMismatch
from common.link.schema_map import Reference, Restore, encode_id, encode_restore
from schemas.model import Schema
from tests.support.registry import Refused, StandIn, stand_in
from tests.support.schemas import Pair, avro, client, clients_closed, mapped, record, told

__all__ = ["clients_closed"]


@pytest.fixture
def source() -> Iterator[StandIn]:
    with stand_in() as registry:
        yield registry


@pytest.fixture
def target() -> Iterator[StandIn]:
    with stand_in() as registry:
        yield registry


@pytest.fixture
def pair(source: StandIn, target: StandIn) -> Pair:
    # The target has given ids away already.
    client(target.url).register("others-value", avro("Other", "a"))
    return Pair(source.url, target.url)


def filled(source: StandIn) -> None:
    """An incompatible history, a version that was soft-deleted and made again, a reference."""
    registry = client(source.url, "source")
    source.level = "NONE"
    for schema in (avro("Order", "a"), avro("Order", "a", "b")):
        registry.register("orders-value", schema)
    registry.delete("orders-value", 1)
    registry.register("orders-value", avro("Order", "a"))
    registry.register("address", avro("Address", "street"))
    uses = Schema(record("Customer", "a"), references=(Reference("Address", "address", 1),))
    registry.register("customers-value", uses)
    source.level = "FULL"
    source.levels["customers-value"] = "FORWARD"


def texts(registry: StandIn, subject: str) -> list[tuple[str, bool]]:
    return [(v.content["schema"], v.deleted) for v in registry.subjects[subject]]


def test_all_is_copied_in_order_deleted_what_is_deleted_and_ids_are_written_down(
    source: StandIn, target: StandIn, pair: Pair
) -> None:
    filled(source)
    lines = pair.round()
    assert told(lines) == [
        ("address", 1, 1, "copied"),
        ("customers-value", 1, 1, "copied"),
        ("orders-value", 1, 1, "copied"),
        ("orders-value", 2, 2, "copied"),
        ("orders-value", 3, 3, "copied"),
    ]
    for subject in ("orders-value", "address", "customers-value"):
        assert texts(target, subject) == texts(source, subject)
    assert [deleted for _, deleted in texts(target, "orders-value")] == [True, False, False]
    # By each id of the source, the target has the same schema.
    ids = pair.log.ids
    assert ids.keys() == {1, 2, 3, 4} and ids != {n: n for n in ids}
    for source_id, target_id in ids.items():
        theirs = client(target.url).by_id(".", target_id)
        mine = client(source.url).by_id(".", source_id)
        assert mine is not None and theirs is not None and not mine.differences(theirs)
    # Compatibility is the source's, and the target's own level is what it was.
    assert target.levels == {"orders-value": "FULL", "address": "FULL", "customers-value": "FORWARD"}
    assert target.level == "BACKWARD" and not pair.log.map.restores
    # Again, by another leader: nothing to do.
    target.asked.clear()
    assert {state for *_, state in told(pair.round())} == {"in-step"}
    assert all(asked.startswith("GET") for asked in target.asked)


def test_what_comes_later_follows_and_what_is_in_step_is_not_asked_for_again(
    source: StandIn, target: StandIn, pair: Pair
) -> None:
    filled(source)
    copying = pair.copying()
    copying.round({})
    target.asked.clear()
    copying.round({})
    assert target.asked == []
    client(source.url).register("address", avro("Address", "street", optional=("zip",)))
    client(source.url).delete("orders-value", 2)
    source.levels["customers-value"] = "NONE"
    lines = copying.round({})
    assert ("address", 2, 2, "copied") in told(lines) and ("orders-value", 2, 2, "copied") in told(lines)
    assert [deleted for _, deleted in texts(target, "orders-value")] == [True, True, False]
    assert target.levels["customers-value"] == "NONE"
    assert {state for *_, state in told(copying.round({}))} == {"in-step"}


def test_without_writing_it_says_what_it_would_do(source: StandIn, target: StandIn, pair: Pair) -> None:
    filled(source)
    before = texts(target, "others-value")
    lines = pair.round(write=False)
    assert {state for *_, state in told(lines)} == {"due"} and len(lines) == 8
    assert list(target.subjects) == ["others-value"] and texts(target, "others-value") == before
    assert not target.levels and not pair.log.records
    pair.round()
    pair.log.map.ids.clear()
    lines = pair.round(write=False)
    assert {line.state for line in lines} == {"due"}
    assert {line.detail for line in lines} == {"its id is not written down"}


def test_subjects_are_called_after_their_topics_copies_and_references_follow(
    source: StandIn, target: StandIn, pair: Pair
) -> None:
    registry = client(source.url, "source")
    registry.register("orders-acme.Item", avro("Item", "n"))
    registry.delete("orders-acme.Item", 1)
    registry.register("orders-acme.Item", avro("Item", "n", optional=("m",)))
    reference = Reference("Item", "orders-acme.Item", 2)
    registry.register("orders-value", Schema(record("Order", "a"), references=(reference,)))
    registry.register("elsewhere-value", avro("E", "e"))
    lines = pair.round({"orders": "eu.orders"}, subjects="link", rename="topics", deleted=False)
    # The soft-deleted version is left out, so numbers differ.
    assert [(x.subject, x.version, x.target_subject, x.target_version) for x in lines] == [
        ("orders-acme.Item", 2, "eu.orders-acme.Item", 1),
        ("orders-value", 1, "eu.orders-value", 1),
    ]
    (order,) = target.subjects["eu.orders-value"]
    assert order.content["references"] == [{"name": "Item", "subject": "eu.orders-acme.Item", "version": 1}]
    assert "elsewhere-value" not in target.subjects
    joined = pair.round({"orders": "one", "elsewhere": "one"}, rename="topics")
    failed = {line.subject: line.detail for line in joined if line.state == "failed"}
    assert failed == dict.fromkeys(
        ("elsewhere-value", "orders-value"),
        "elsewhere-value and orders-value would both be one-value at the target",
    )


def test_ids_are_kept_by_mode_import_which_is_put_back(source: StandIn, target: StandIn) -> None:
    filled(source)
    pair = Pair(source.url, target.url)
    target.modes["orders-value"] = "READWRITE"
    pair.round(ids="keep")
    assert pair.log.ids == {n: n for n in range(1, 5)}
    for subject, of in source.subjects.items():
        assert [(v.version, v.id) for v in target.subjects[subject]] == [(v.version, v.id) for v in of]
    assert target.modes == {"orders-value": "READWRITE"} and not pair.log.map.restores
    # Later versions, too, of subjects that have some.
    client(source.url).register("address", avro("Address", "street", optional=("zip",)))
    pair.round(ids="auto")
    assert pair.log.ids == {n: n for n in range(1, 6)}


def test_contexts_have_ids_of_their_own(source: StandIn, target: StandIn) -> None:
    for subject in ("orders-value", ":.eu:orders-value"):
        client(source.url).register(subject, avro(f"Of{len(subject)}", "a"))
    pair = Pair(source.url, target.url)
    pair.round({"orders": "orders"}, subjects="link", ids="keep")
    assert {(key.context, key.id) for key in pair.log.map.ids} == {(".", 1), (".eu", 1)}
    assert texts(target, ":.eu:orders-value") == texts(source, ":.eu:orders-value")
    pair.copying().check_fingerprints()


def test_where_ids_can_not_be_kept_that_is_an_error_or_they_are_mapped(
    source: StandIn, target: StandIn, pair: Pair
) -> None:
    client(source.url).register("a", avro("A", "a"))
    client(source.url).register("b", avro("B", "b"))
    (line, other) = pair.round(ids="keep")
    # 1 is taken, 2 is free.
    assert line.state == "failed" and "id 1 of a version 1 is another schema's there" in line.detail
    assert other.state == "copied" and other.target_id == 2
    target.has_modes = False
    client(source.url).register("c", avro("C", "c"))
    lines = pair.round(ids="keep")
    assert "there is no mode IMPORT" in lines[2].detail and "c" not in target.subjects
    lines = pair.round(ids="auto")
    assert {line.state for line in lines} == {"copied", "in-step"}
    assert pair.log.ids == {1: 3, 2: 2, 3: 4} or pair.log.ids == {1: 3, 2: 2, 3: 3}


def test_a_version_of_somebody_elses_is_never_overwritten(source: StandIn, target: StandIn) -> None:
    client(source.url).register("a", avro("A", "a"))
    client(target.url).register("a", avro("X", "x"))
    source.subjects["a"][0].id = 77
    pair = Pair(source.url, target.url)
    (line,) = pair.round(ids="keep")
    assert line.state == "failed" and "subject a has another version 1 already" in line.detail
    (line,) = pair.round(ids="auto")
    assert (line.target_version, line.target_id) == (2, 2)
    assert texts(target, "a")[0] == (record("X", "x"), False)


LIES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "another id": (
        lambda s, c, i: (c, i + 1000),
        {"ids": "keep"},
        "id 1 was to be kept, and became version 1, id 1001",
    ),
    "no rules": (
        lambda s, c, i: ({n: v for n, v in c.items() if n != "ruleSet"}, i),
        {},
        "read back by version 1 with another rule set",
    ),
    "no metadata": (
        lambda s, c, i: ({n: v for n, v in c.items() if n != "metadata"}, i),
        {},
        "read back by version 1 with another metadata",
    ),
    "another text": (lambda s, c, i: ({**c, "schema": '"int"'}, i), {}, "with another text"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_registry_that_does_not_do_what_it_says_is_refused_by_name(
    source: StandIn, target: StandIn, lie: str
) -> None:
    rules = {"domainRules": [{"name": "r", "kind": "CONDITION", "type": "CEL", "expr": "true"}]}
    schema = Schema(record("A", "a"), metadata={"properties": {"owner": "x"}}, rules=rules)
    client(source.url).register("a-value", schema)
    target.lie, config, words = LIES[lie]
    pair = Pair(source.url, target.url)
    (line,) = pair.round(**config)
    assert line.state == "failed" and words in line.detail and "subject a-value" in line.detail
    assert not pair.log.ids and not pair.log.map.restores


def test_a_registry_that_takes_mode_import_and_gives_other_ids_is_not_asked_to_keep_them_again(
    source: StandIn, target: StandIn
) -> None:
    client(source.url).register("a", avro("A", "a"))
    client(source.url).register("b", avro("B", "b"))
    target.lie = lambda subject, content, schema_id: (content, schema_id + 1000)
    pair = Pair(source.url, target.url)
    assert {line.state for line in pair.round(ids="auto")} == {"copied"}
    assert pair.log.ids.keys() == {1, 2} and all(n > 1000 for n in pair.log.ids.values())
    assert sum("PUT /mode" in asked for asked in target.asked) == 1 and not target.modes


def test_an_id_that_is_answered_and_not_given_is_refused_by_name(source: StandIn, target: StandIn) -> None:
    client(source.url).register("a-value", avro("A", "a"))
    register = target._register

    def other(subject: str, body: Any) -> int:
        return register(subject, body) + 7

    target._register = other  # type: ignore[method-assign]
    (line,) = Pair(source.url, target.url).round()
    assert (
        line.state == "failed" and "registered as id 8, but none of its versions has that id" in line.detail
    )


def test_one_subject_that_is_refused_keeps_no_other_from_being_copied(
    source: StandIn, target: StandIn, pair: Pair
) -> None:
    filled(source)

    def before(method: str, path: str) -> None:
        if method == "POST" and path == "/subjects/address/versions":
            raise Refused(422, 42201, "no such schema is wanted here")

    target.before = before
    lines = pair.round()
    states = {line.subject: (line.state, line.detail) for line in lines}
    assert states["orders-value"][0] == "copied"
    assert states["address"][0] == "failed" and "no such schema is wanted here" in states["address"][1]
    assert states["customers-value"] == ("failed", "it refers to address version 1, which is not copied")
    target.before = lambda method, path: None
    assert {line.state for line in pair.round()} == {"copied", "in-step"}


class Killed(BaseException):
    pass


def test_a_death_between_setting_compatibility_aside_and_putting_it_back_is_made_good(
    source: StandIn, target: StandIn, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(source)
    target.levels["orders-value"] = "FULL_TRANSITIVE"
    copying = pair.copying(ids="auto")
    assert copying._writing is not None
    with monkeypatch.context() as broken:
        broken.setattr(copying._writing, "restore", lambda: None)
        broken.setattr(copying, "_level", lambda subject: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            copying.round({})
    assert target.levels["orders-value"] == "NONE"
    assert pair.log.map.restores["orders-value"] == Restore("FULL")
    # Whoever leads next does it before anything else.
    pair.copying(ids="auto")
    assert target.levels["orders-value"] == "FULL" and not pair.log.map.restores
    assert "IMPORT" not in target.modes.values()


def test_a_leader_that_was_deposed_in_mid_round_leaves_to_its_successor_what_is_to_be_put_back(
    source: StandIn, target: StandIn, pair: Pair
) -> None:
    filled(source)
    copying = pair.copying()

    def go_on() -> None:
        if "orders-value" in pair.log.map.restores:
            raise Deposed("another instance leads now")

    copying._go_on = go_on
    with pytest.raises(Deposed):
        copying.round({})
    left = {"orders-value": Restore("FULL")}
    assert {s: r for s, r in pair.log.map.restores.items() if s == "orders-value"} == left
    target.level = "NONE"
    assert {line.state for line in pair.round()} == {"copied", "in-step"}
    assert target.levels["orders-value"] == "FULL" and not pair.log.map.restores


def test_what_is_referred_to_is_soft_deleted_behind_what_refers_to_it(
    source: StandIn, target: StandIn, pair: Pair
) -> None:
    registry = client(source.url)
    registry.register("base", avro("Base", "a"))
    registry.register("uses", Schema(record("Uses", "a"), references=(Reference("Base", "base", 1),)))
    registry.delete("uses", 1)
    registry.delete("base", 1)
    assert {line.state for line in pair.round()} == {"copied"}
    assert texts(target, "base") == texts(source, "base") and texts(target, "uses") == texts(source, "uses")
    assert {line.state for line in pair.round()} == {"in-step"}


def test_compatibility_that_can_not_be_put_back_now_is_put_back_later(
    source: StandIn, target: StandIn, pair: Pair
) -> None:
    filled(source)

    def before(method: str, path: str) -> None:
        if method == "PUT" and path == "/config/orders-value" and target.levels.get("orders-value") == "NONE":
            raise Refused(422, 42203, "not now")

    target.before = before
    copying = pair.copying()
    copying.round({})
    assert target.levels["orders-value"] == "NONE" and "orders-value" in pair.log.map.restores
    target.before = lambda method, path: None
    copying.round({})
    assert target.levels["orders-value"] == "FULL" and not pair.log.map.restores


def test_what_was_never_there_needs_nothing_put_back(target: StandIn, source: StandIn, pair: Pair) -> None:
    pair.log.append([encode_restore("gone", Restore("FULL"))], None)  # type: ignore[arg-type]
    pair.copying()
    assert not pair.log.map.restores and target.levels == {}


@pytest.mark.parametrize("where", ["source", "target", "gone"])
def test_an_id_that_means_another_schema_now_ends_it_by_name(
    source: StandIn, target: StandIn, pair: Pair, where: str
) -> None:
    client(source.url).register("a", avro("A", "a"))
    pair.round()
    pair.copying().check_fingerprints()
    if where == "gone":
        del target.subjects["a"]
    else:
        (version,) = (source if where == "source" else target).subjects["a"]
        version.content = {"schema": record("Reused", "x")}
    words = "is gone" if where == "gone" else "is another schema now"
    with pytest.raises(
        SchemaMismatch,
        match=rf"schema-mismatch: registry .* \({'source' if where == 'source' else 'target'}\): id .* {words}",
    ):
        pair.copying().check_fingerprints()
    if where == "source":
        with pytest.raises(SchemaMismatch, match="subject a, id 1 is another schema now"):
            pair.round()
        # Gone for good at the source says nothing of what records have.
        del source.subjects["a"]
        pair.copying().check_fingerprints()


def test_a_mapped_id_is_never_mapped_anew(source: StandIn, target: StandIn, pair: Pair) -> None:
    client(source.url).register("a", avro("A", "a"))
    client(target.url).register("b", avro("A", "a"))
    pair.log.append([encode_id(*mapped(1, 99, avro("A", "a")))], None)  # type: ignore[arg-type]
    pair.round()
    assert pair.log.ids == {1: 99}


def test_a_registry_that_is_not_there_ends_the_round_and_is_worth_another_try(
    source: StandIn, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schemas.http.PAUSES_S", (0.0,))
    filled(source)
    with pytest.raises(RegistryError, match=r"registry 127.0.0.1:1 \(target\): .*can't be reached") as caught:
        Pair(source.url, "http://127.0.0.1:1").round()
    assert caught.value.retriable


def test_texts_of_avro_are_written_down_also_of_ids_that_an_earlier_release_mapped(
    source: StandIn, pair: Pair
) -> None:
    """By their ids: what has been soft-deleted, or is no longer selected, is still in records."""
    registry = client(source.url)
    schema = avro("A", "a")
    registry.register("a", schema)
    registry.register("j", Schema('{"type": "object"}', "JSON"))
    registry.register("long", Schema(record("L", *(f"f{n}" for n in range(10_000)))))
    pair.round()
    known = dict(pair.log.map.ids)
    assert [m.avro for m in known.values()] == [schema.canonical, "", ""]
    for key, of in known.items():
        pair.log.map.ids[key] = replace(of, avro=None)
    registry.delete("a", 1)
    pair.copying(write=False).check_fingerprints()
    assert {m.avro for m in pair.log.map.ids.values()} == {None}
    written = len(pair.log.records)
    for _ in range(2):
        pair.copying(subjects=["j"]).check_fingerprints()
        assert pair.log.map.ids == known and len(pair.log.records) == written + 3
