"""Records of the schemas topic: which id a schema has at the target's registry, and what of a registry is to
be put back. Pure.

The topic is compacted. A key is either a schema id of the source, with its context, or a subject of the
target whose compatibility level (and mode) is another one while versions are copied into it. Of an id the
first record counts, for good: what has been rewritten by it stays readable. Only a text that it lacks may
come later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from common.errors import StateError

VERSION = 1


class SchemaId(NamedTuple):
    """A schema at the source: ids are those of a context; the default one is called `.`."""

    context: str
    id: int


class Reference(NamedTuple):
    """What a schema refers to: by the name that it uses, a version of a subject."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Mapped:
    """`target`: the schema's id there. `sha256`: in hex, of its text in the form that registries agree on
    (schemas/model.py); `references`: as they are at the source. `avro`: an Avro schema's text in that form;
    empty for one of another type, or too long to be written down; None: a release wrote it that did not."""

    target: int
    sha256: str
    references: tuple[Reference, ...] = ()
    avro: str | None = None


@dataclass(frozen=True, slots=True)
class Restore:
    """What a subject of the target is to have again. `mode` None: none of its own."""

    compatibility: str
    mode: str | None = None


def encode_id(key: SchemaId, mapped: Mapped) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    value: dict[str, Any] = {
        "v": VERSION,
        "target": mapped.target,
        "sha256": mapped.sha256,
        "references": [reference._asdict() for reference in mapped.references],
    }
    if mapped.avro is not None:
        value["avro"] = mapped.avro
    return orjson.dumps(key._asdict()), orjson.dumps(value)


def encode_restore(subject: str, restore: Restore | None) -> tuple[bytes, bytes | None]:
    """The same of a subject; None: it has been put back."""
    key = orjson.dumps({"subject": subject})
    if restore is None:
        return key, None
    return key, orjson.dumps({"v": VERSION, "compatibility": restore.compatibility, "mode": restore.mode})


@dataclass(slots=True)
class SchemaMap:
    """What the topic says."""

    ids: dict[SchemaId, Mapped] = field(default_factory=dict)
    restores: dict[str, Restore] = field(default_factory=dict)
    """Subject of the target -> what it is to have again."""
    disputed: set[SchemaId] = field(default_factory=set)
    """Ids of which a later record says something else: compaction would keep that one."""

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take in a record. Raises StateError for one that can't be understood."""
        try:
            k, v = orjson.loads(key or b""), orjson.loads(value) if value else None
            if v is not None and v["v"] != VERSION:
                raise StateError(f"a schema's record of version {v['v']}: a newer release wrote it")
            if "subject" in k:
                self._restore(_text(k["subject"]), v)
            elif v is not None:
                self._id(SchemaId(_text(k["context"]), _number(k["id"])), v)
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise StateError(f"a schema's record can't be understood: {error!r}") from None

    def target(self, context: str, schema_id: int) -> int | None:
        """The id at the target; None: not known yet."""
        found = self.ids.get(SchemaId(context, schema_id))
        return None if found is None else found.target

    def avro(self, context: str, schema_id: int) -> Mapped | None:
        """An Avro schema's text and references; None: not known yet."""
        found = self.ids.get(SchemaId(context, schema_id))
        return None if found is None or found.avro is None else found

    def _restore(self, subject: str, v: Any) -> None:
        if v is None:
            self.restores.pop(subject, None)
        else:
            mode = None if v["mode"] is None else _text(v["mode"])
            self.restores[subject] = Restore(_text(v["compatibility"]), mode)

    def _id(self, key: SchemaId, v: Any) -> None:
        references = tuple(
            Reference(_text(r["name"]), _text(r["subject"]), _number(r["version"], least=-1))
            for r in v["references"]
        )
        avro = None if v.get("avro") is None else _text(v["avro"])
        found = Mapped(_number(v["target"]), _text(v["sha256"]), references, avro)
        first = self.ids.setdefault(key, found)
        if replace(first, avro=avro) != found:
            self.disputed.add(key)
            return
        self.disputed.discard(key)
        if first.avro is None:
            self.ids[key] = found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: Any, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise TypeError(f"{value!r} is not a number from {least}")
    return value
