"""Where serializers of a schema registry put a schema's id, and the options of the stage that changes it.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from common.pipeline.options import Model, checked, wrong

DEFAULT_CONTEXT = "."
"""Of a registry."""


Kind = Literal["confluent", "apicurio"]
ID_BYTES: dict[Kind, int] = {"confluent": 4, "apicurio": 8}
"""How many an id has, behind a byte 0; big-endian."""


class Wire(Model):
    """Of which parts of a record a schema's id stands in front, and whose serializers have put it there."""

    key: Kind | None = None
    """of keys: a byte 0 and 4 bytes by Confluent's and those that do as they do (`confluent`), 0 and 8 by
    Apicurio's own, unless they are told otherwise (`apicurio`)"""
    value: Kind | None = None
    """of values, likewise"""

    @model_validator(mode="after")
    def _something(self) -> Wire:
        if self.key is None and self.value is None:
            raise wrong("say key or value, or both")
        return self


def _context(text: str) -> None:
    if not text.startswith(".") or ":" in text:
        raise ValueError("a context's name begins with a dot, and has no colon")


class SchemaIds(Model):
    """Gives schemas the ids that they have at the target, as `wire` says where."""

    on_unknown: Literal["wait"] = Field("wait", alias="onUnknown")
    """of a schema whose id at the target is not written down yet: its partition waits there until it is"""
    on_unframed: Literal["halt", "keep"] = Field("halt", alias="onUnframed")
    """of what has no id in front: the stage fails, and `onError` says what becomes of the record; or it stays
    as it is"""
    context: Annotated[str, checked(_context)] = DEFAULT_CONTEXT
    """the context of the registry in which the ids are; `.` is the default one"""


def check_wire(wire: Wire | None, formats: dict[str, str], stages: Sequence[str]) -> None:
    """Whether `wire`, what keys and values are, and the names of a flow's stages go together. Raises
    PydanticCustomError."""
    at = [number for number, name in enumerate(stages) if name == "schema-ids"]
    if not at:
        if wire is not None:
            raise wrong("only the stage schema-ids asks for it, and there is none", "wire")
        return
    first = at[0]
    where = ("stages", first, "schema-ids")
    if wire is None:
        raise wrong("say where ids are, in the flow: wire: {value: confluent}", *where)
    if len(at) > 1:
        raise wrong("is there twice: ids would be changed again", "stages", at[1], "schema-ids")
    for name in stages[first + 1 :]:
        if name != "route":
            raise wrong(f"comes last, but for route; {name} stands behind it", *where)
    for side, form in formats.items():
        if getattr(wire, side) is not None and form == "json":
            raise wrong(f"an id stands in front of it, so it is no {form}", side)
        if getattr(wire, side) == "apicurio" and form == "avro":
            raise wrong("no Avro is read behind ids of 8 bytes", "wire", side)
