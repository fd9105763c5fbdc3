"""Schemas as registries tell of them, and when two are the same. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from common.link.schema_map import Reference
from common.pipeline.wire import DEFAULT_CONTEXT

AVRO = "AVRO"
"""What a schema is of which no type is said."""
MOST_TEXT_BYTES = 1 << 18
"""Of an Avro schema, so many at most are written down for those who read records: a record of the map has
its place in a message of the broker's default size."""


@dataclass(frozen=True, slots=True)
class Schema:
    """`metadata` and `rules` are JSON as the registry has it; empty where there are none."""

    text: str
    type: str = AVRO
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    rules: dict[str, Any] = field(default_factory=dict)

    @property
    def canonical(self) -> str:
        """The text in a form that registries agree on: JSON with names in order and without white space,
        where it is JSON; else words with one space between."""
        try:
            return json.dumps(json.loads(self.text), sort_keys=True, separators=(",", ":"))
        except (ValueError, RecursionError):
            return " ".join(self.text.split())

    @property
    def sha256(self) -> str:
        """Of type and canonical text, in hex."""
        return hashlib.sha256(f"{self.type}\n{self.canonical}".encode()).hexdigest()

    @property
    def avro(self) -> str:
        """The canonical text, for those who read records; empty where it is no Avro, or too long."""
        text = self.canonical if self.type == AVRO else ""
        return text if len(text.encode()) <= MOST_TEXT_BYTES else ""

    def differences(self, other: Schema) -> list[str]:
        """What of the other is not the same, in words."""
        pairs = {
            "type": (self.type, other.type),
            "text": (self.canonical, other.canonical),
            "references": (sorted(self.references), sorted(other.references)),
            "metadata": (_without_empty(self.metadata), _without_empty(other.metadata)),
            "rule set": (_without_empty(self.rules), _without_empty(other.rules)),
        }
        return [what for what, (mine, theirs) in pairs.items() if mine != theirs]

    def referring(self, changed: Callable[[Reference], Reference]) -> Schema:
        """The same with other references."""
        return replace(self, references=tuple(map(changed, self.references)))


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a subject; `deleted`: soft-deleted."""

    subject: str
    version: int
    id: int
    schema: Schema
    deleted: bool = False

    @property
    def context(self) -> str:
        return context_of(self.subject)


def context_of(subject: str) -> str:
    """The context of a subject's full name, `:.context:subject`."""
    return subject.split(":")[1] if subject.startswith(":.") and subject.count(":") > 1 else DEFAULT_CONTEXT


def unqualified(subject: str) -> tuple[str, str]:
    """A subject's name in two: what names its context, which may be nothing, and the rest."""
    if context_of(subject) == DEFAULT_CONTEXT and not subject.startswith(":.:"):
        return "", subject
    context, rest = subject.split(":", 2)[1:]
    return f":{context}:", rest


def _without_empty(found: dict[str, Any]) -> dict[str, Any]:
    """Without what is said to be nothing: some registries say that, others leave it out."""
    return {name: value for name, value in found.items() if value not in (None, {}, [])}
