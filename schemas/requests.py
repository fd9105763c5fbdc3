"""What is asked of a registry by Confluent's API, and what its answers say. Pure; who sends them is
schemas/http.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from common.link.schema_map import Reference
from common.pipeline.wire import DEFAULT_CONTEXT
from schemas.model import AVRO, Schema, Version


@dataclass(frozen=True, slots=True)
class Request:
    """`path` lies below the registry's URL; `about`: what it is about, in words."""

    method: str
    path: str
    about: str
    body: Mapping[str, Any] | None = None


class Unexpected(ValueError):
    """An answer that is not as the API says."""


def _path(*parts: str | int, **query: str) -> str:
    found = "/" + "/".join(quote(str(part), safe="") for part in parts)
    return f"{found}?{urlencode(query)}" if query else found


def subjects() -> Request:
    """All there are, soft-deleted ones too."""
    return Request("GET", _path("subjects", deleted="true"), "all subjects")


def versions(subject: str, deleted: bool) -> Request:
    """Numbers of a subject's versions; `deleted`: with soft-deleted ones."""
    more = {"deleted": "true"} if deleted else {}
    return Request("GET", _path("subjects", subject, "versions", **more), f"subject {subject}")


def version(subject: str, number: int) -> Request:
    path = _path("subjects", subject, "versions", number, deleted="true")
    return Request("GET", path, f"subject {subject}, version {number}")


def by_id(context: str, schema_id: int) -> Request:
    more = {} if context == DEFAULT_CONTEXT else {"subject": f":{context}:"}
    where = "" if context == DEFAULT_CONTEXT else f" of context {context}"
    return Request("GET", _path("schemas", "ids", schema_id, **more), f"schema id {schema_id}{where}")


def register(
    subject: str, schema: Schema, number: int | None = None, schema_id: int | None = None
) -> Request:
    """`number` and `schema_id`: for a subject in mode IMPORT."""
    body: dict[str, Any] = {"schema": schema.text}
    if schema.type != AVRO:
        body["schemaType"] = schema.type
    if schema.references:
        body["references"] = [reference._asdict() for reference in schema.references]
    if schema.metadata:
        body["metadata"] = schema.metadata
    if schema.rules:
        body["ruleSet"] = schema.rules
    if number is not None:
        body |= {"version": number, "id": schema_id}
    what = "" if number is None else f", version {number}"
    return Request("POST", _path("subjects", subject, "versions"), f"subject {subject}{what}", body)


def delete(subject: str, number: int) -> Request:
    path = _path("subjects", subject, "versions", number)
    return Request("DELETE", path, f"subject {subject}, version {number}")


def remove(subject: str, permanent: bool) -> Request:
    """All of a subject's versions: softly at first, then for good."""
    more = {"permanent": "true"} if permanent else {}
    return Request("DELETE", _path("subjects", subject, **more), f"subject {subject}")


def level(subject: str, inherited: bool) -> Request:
    """A subject's own compatibility level; `inherited`: whichever holds for it."""
    more = {"defaultToGlobal": "true"} if inherited else {}
    return Request("GET", _path("config", subject, **more), _of(subject, "compatibility"))


def general_level() -> Request:
    return Request("GET", _path("config"), "the compatibility")


def set_level(subject: str, to: str) -> Request:
    return Request("PUT", _path("config", subject), _of(subject, "compatibility"), {"compatibility": to})


def forget_level(subject: str) -> Request:
    return Request("DELETE", _path("config", subject), _of(subject, "compatibility"))


def mode(subject: str) -> Request:
    return Request("GET", _path("mode", subject), _of(subject, "mode"))


def set_mode(subject: str, to: str | None) -> Request:
    """None: none of its own. IMPORT is forced: there may be versions already."""
    if to is None:
        return Request("DELETE", _path("mode", subject), _of(subject, "mode"))
    return Request("PUT", _path("mode", subject, force="true"), _of(subject, "mode"), {"mode": to})


def _of(subject: str, what: str) -> str:
    return f"subject {subject}, {what}"


# answers


def names(answer: Any) -> list[str]:
    return [_text(name) for name in _list(answer)]


def numbers(answer: Any) -> list[int]:
    return sorted(_number(number) for number in _list(answer))


def number(answer: Any, name: str) -> int:
    return _number(_get(answer, name))


def text(answer: Any, *any_of: str) -> str:
    """Under the first of these names that is there."""
    found = next((name for name in any_of if isinstance(answer, dict) and name in answer), any_of[0])
    return _text(_get(answer, found))


def mode_of(answer: Any) -> str | None:
    """None: some registries answer without saying anything."""
    return None if answer is None else text(answer, "mode")


def schema(answer: Any) -> Schema:
    return Schema(
        _text(_get(answer, "schema")),
        _text(answer.get("schemaType") or AVRO),
        tuple(
            Reference(_text(_get(r, "name")), _text(_get(r, "subject")), _number(_get(r, "version")))
            for r in _list(answer.get("references") or [])
        ),
        _object(answer.get("metadata") or {}),
        _object(answer.get("ruleSet") or {}),
    )


def version_of(answer: Any, subject: str, deleted: bool) -> Version:
    found, schema_id = _number(_get(answer, "version")), _number(_get(answer, "id"))
    return Version(subject, found, schema_id, schema(answer), deleted)


def _get(answer: Any, name: str) -> Any:
    if not isinstance(answer, dict) or name not in answer:
        raise Unexpected(f"there is no {name}")
    return answer[name]


def _list(answer: Any) -> list[Any]:
    if not isinstance(answer, list):
        raise Unexpected("a list is missing")
    return answer


def _object(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise Unexpected("an object is missing")
    return answer


def _text(answer: Any) -> str:
    if not isinstance(answer, str):
        raise Unexpected("a text is missing")
    return answer


def _number(answer: Any) -> int:
    if type(answer) is not int:
        raise Unexpected("a number is missing")
    return answer
