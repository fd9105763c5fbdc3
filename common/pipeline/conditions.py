"""Conditions of a pipeline's file: what must be so at which paths. Whether a comparison makes sense there is
looked at when the file is read. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from common.pipeline.options import Expression, Model, PathText, located, wrong
from common.pipeline.paths import SIDES, Kind, Path, Side, parse

Format = Literal["bytes", "json", "avro"]
Scalar = bool | int | float | str | None


class Operators(Model):
    """All of them must hold."""

    one_of: list[Scalar] | None = Field(None, alias="in", min_length=1)
    """equals one of these"""
    matches: Expression | None = None
    """text that a regular expression matches as a whole"""
    exists: bool | None = None
    """whether it is there; null is there"""
    lt: int | float | str | None = None
    """less than this: numbers by their value, text by its code points"""
    gt: int | float | str | None = None
    """greater than this"""
    prefix: str | None = None
    """text that begins so"""
    what: Literal["tombstone"] | None = Field(None, alias="is")
    """of `value`: whether the record has none"""

    @model_validator(mode="after")
    def _together(self) -> Operators:
        given = self.model_dump(exclude_none=True, by_alias=True)
        if not given:
            raise wrong("no operator is given")
        for alone in ("exists", "is"):
            if alone in given and len(given) > 1 and (alone == "is" or not self.exists):
                raise wrong(f"{alone} stands alone", alone)
        return self


def is_map(given: Any) -> str:
    return "map" if isinstance(given, dict | BaseModel) else "other"


Test = Annotated[
    Annotated[Operators, Tag("map")] | Annotated[Scalar, Tag("other")],
    Discriminator(is_map),
]
"""What must be so at a path: an equal value, or operators."""
All = Annotated[dict[PathText, Test], Field(min_length=1)]
Conditions = Annotated[
    Annotated[All, Tag("map")] | Annotated[list[All], Tag("other"), Field(min_length=1)],
    Discriminator(is_map),
]
"""Paths and what must be so at each of them; of a list, one entry must hold."""


def alternatives(conditions: Conditions) -> list[dict[str, Operators]]:
    """Conditions in one form: one of these, and of it all."""
    found = conditions if isinstance(conditions, list) else [conditions]
    return [
        {
            path: test if isinstance(test, Operators) else Operators.model_validate({"in": [test]})
            for path, test in one.items()
        }
        for one in found
    ]


class Formats(Model):
    """What keys and values are."""

    key: Format = "bytes"
    """what keys are: `json`; `avro`, with a schema's id in front; or `bytes`, which conditions compare as
    text"""
    value: Format = "bytes"
    """what values are"""

    @property
    def avro(self) -> list[Side]:
        """The sides that are Avro."""
        return [side for side in SIDES if getattr(self, side) == "avro"]

    def kind(self, path: Path) -> Kind:
        """Raises PydanticCustomError where the path looks into what is not JSON."""
        if path.root in ("timestamp", "size"):
            return "number"
        if path.root == "header":
            return "text"
        if (self.key if path.root == "key" else self.value) in ("json", "avro"):
            return "json"
        if path.steps:
            raise wrong(f"{path} looks into the {path.root}: say {path.root}: json in the flow")
        return "text"


def _check_test(path: Path, kind: Kind, test: Operators) -> None:
    if test.what and path != Path("value", ()):
        raise wrong("only a value is a tombstone", "is")
    if kind == "number" and (test.matches is not None or test.prefix is not None):
        raise wrong(f"{path} is a number", "matches" if test.matches is not None else "prefix")
    for name, operands in (("in", test.one_of or []), ("lt", [test.lt]), ("gt", [test.gt])):
        for operand in operands:
            number = isinstance(operand, int | float) and not isinstance(operand, bool)
            if operand is None and name == "in":
                if kind != "json" and path.root != "header":
                    raise wrong(f"{path} equals no null: say exists: false", name)
            elif kind == "text" and operand is not None and not isinstance(operand, str):
                raise wrong(f"{path} is text: put {operand} in quotes", name)
            elif kind == "number" and operand is not None and not number:
                raise wrong(f"{path} is a number, and can't be compared with {operand!r}", name)


def check_conditions(conditions: Conditions, formats: Formats, *at: str) -> None:
    """Raises PydanticCustomError, which says where below `at`."""
    for number, one in enumerate(alternatives(conditions)):
        where: tuple[str | int, ...] = (*at, number) if isinstance(conditions, list) else at
        for text, test in one.items():
            with located(*where, text):
                path = parse(text)
                _check_test(path, formats.kind(path), test)
