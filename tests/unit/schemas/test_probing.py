"""What is found out of a registry by trying, and that nothing of it stays, on stand-ins that do wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from common.errors import RegistryError
from schemas.probing import SUBJECT, probe
from tests.support.registry import Refused, StandIn, stand_in
from tests.support.schemas import avro, client, clients_closed

__all__ = ["clients_closed"]


@pytest.fixture
def registry() -> Iterator[StandIn]:
    with stand_in() as found:
        client(found.url).register("there-value", avro("A", "a"))
        yield found


def unchanged(registry: StandIn) -> None:
    assert set(registry.subjects) == {"there-value"} and not registry.levels and not registry.modes


@pytest.mark.parametrize("ids", ["auto", "keep"])
def test_that_ids_are_kept_is_seen_and_nothing_stays(registry: StandIn, ids: Any) -> None:
    found = probe(client(registry.url), ids, {5, 17})
    assert found.keeps_ids is True and found.subject.startswith(SUBJECT)
    unchanged(registry)
    # Far from those that are about to be given, at this registry or at the source.
    assert client(registry.url).register("next-value", avro("B", "b")).id > 17 + 100


def test_an_id_that_is_taken_is_not_asked_for(registry: StandIn) -> None:
    registry.modes["taken-value"] = "IMPORT"
    client(registry.url).register("taken-value", avro("T", "t"), 1, 117)
    del registry.modes["taken-value"]
    assert probe(client(registry.url), "keep", {17}).keeps_ids is True


def test_where_ids_are_mapped_no_mode_is_touched(registry: StandIn) -> None:
    assert probe(client(registry.url), "map", ()).keeps_ids is None
    assert not any("/mode/" in asked and not asked.startswith("GET") for asked in registry.asked)
    unchanged(registry)


@pytest.mark.parametrize("how", ["no modes", "another id", "another version"])
def test_a_registry_that_does_not_keep_ids_is_told_as_such_or_refused(registry: StandIn, how: str) -> None:
    if how == "no modes":
        registry.has_modes = False
    elif how == "another id":
        registry.lie = lambda _, content, schema_id: (content, schema_id + 1)
    else:
        before = registry._register

        def counted(subject: str, body: dict[str, Any]) -> int:
            return before(subject, {**body, **({"version": 1} if "version" in body else {})})

        registry._register = counted  # type: ignore[method-assign]
    assert probe(client(registry.url), "auto", ()).keeps_ids is False
    with pytest.raises(RegistryError, match=r"does not keep ids, as ids: keep would have it; use ids: map$"):
        probe(client(registry.url), "keep", ())
    unchanged(registry)


def refusing(method: str, ending: str) -> Any:
    def before(asked: str, path: str) -> None:
        if asked == method and path.endswith(ending):
            raise Refused(403, 40301, "User is denied operation Write")

    return before


def test_who_may_not_write_learns_it_and_has_left_nothing(registry: StandIn) -> None:
    registry.before = refusing("POST", "/versions")
    with pytest.raises(RegistryError, match=r"POST answers 403: User is denied operation Write$"):
        probe(client(registry.url), "map", ())
    unchanged(registry)


def test_a_schema_that_is_changed_on_its_way_is_an_error_and_removed(registry: StandIn) -> None:
    registry.lie = lambda _, content, schema_id: ({"schema": '"string"'}, schema_id)
    with pytest.raises(RegistryError, match=r"read back by version \d with another text$"):
        probe(client(registry.url), "auto", ())
    unchanged(registry)


def test_an_id_that_a_soft_deletion_takes_away_is_an_error(registry: StandIn) -> None:
    def forgets(method: str, path: str) -> None:
        deleted = [v for s, of in registry.subjects.items() if s.startswith(SUBJECT) for v in of if v.deleted]
        if method == "GET" and any(path == f"/schemas/ids/{v.id}" for v in deleted):
            raise Refused(404, 40403, "Schema not found")

    registry.before = forgets
    with pytest.raises(RegistryError, match=r"deleted softly, and its id \d+ is not readable any more$"):
        probe(client(registry.url), "map", ())
    unchanged(registry)


@pytest.mark.parametrize("and_fails", [False, True])
def test_what_can_not_be_removed_is_named(registry: StandIn, and_fails: bool) -> None:
    def keeps(method: str, path: str) -> None:
        if method == "DELETE" and path.startswith("/subjects/") and "/versions/" not in path:
            raise Refused(403, 40301, "Deleting is not allowed")
        if and_fails and method == "PUT" and path.startswith("/config/"):
            raise Refused(422, 42203, "Invalid compatibility level")

    registry.before = keeps
    with pytest.raises(
        RegistryError, match=rf"subject {SUBJECT}\w+ is left there, remove it by hand: .*403"
    ) as found:
        probe(client(registry.url), "map", ())
    assert ("42203" in str(found.value) or "PUT answers 422" in str(found.value)) == and_fails
    (left,) = set(registry.subjects) - {"there-value"}
    assert left in str(found.value)


def test_a_mode_that_can_not_be_ended_is_an_error(registry: StandIn) -> None:
    registry.before = refusing("DELETE", "")
    with pytest.raises(RegistryError, match=r"mode.*DELETE answers 403"):
        probe(client(registry.url), "keep", ())
