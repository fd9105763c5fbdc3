"""The stages of a pipeline's file and their options. What does not fit the formats of the flow is refused
when the file is read. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from common.config.topic_names import check_topic_name
from common.pipeline import templates
from common.pipeline.conditions import Conditions, Formats, check_conditions, is_map
from common.pipeline.options import (
    Expression,
    HeaderName,
    Model,
    PathText,
    Template,
    checked,
    located,
    wrong,
)
from common.pipeline.paths import EACH, Path, Side, parse
from common.pipeline.route_names import MOST_PLACES, PLACES, filled
from common.pipeline.wire import SchemaIds


class Filter(Model):
    """Leaves records out."""

    keep: Conditions | None = None
    """those that go on"""
    drop: Conditions | None = None
    """those that don't"""
    otherwise: Literal["drop", "tombstone"] = "drop"
    """what becomes of the others: left out, or without a value"""

    def check(self, formats: Formats) -> None:
        if (self.keep is None) == (self.drop is None):
            raise wrong("give keep or drop")
        for name in ("keep", "drop"):
            if (conditions := getattr(self, name)) is not None:
                check_conditions(conditions, formats, name)


class Headers(Model):
    """Changes headers, in the order of these options."""

    keep: list[Expression] | None = None
    """only those that one of these expressions matches as a whole"""
    remove: list[Expression] = Field([])
    """those that one of these matches"""
    rename: dict[HeaderName, HeaderName] = Field({})
    """old name: new name"""
    set: dict[HeaderName, Template | None] = Field({})
    """one header of this name behind the others, instead of all of its name"""
    add: dict[HeaderName, Template | None] = Field({})
    """one more, behind the others"""

    def check(self, formats: Formats) -> None:
        if not self.model_fields_set:
            raise wrong("nothing is to be done")


class Partial(Model):
    """Characters of the beginning and the end that stay. Text that has no more than these has none left."""

    first: int = Field(0, ge=0)
    """so many at the beginning"""
    last: int = Field(0, ge=0)
    """so many at the end"""
    by: str = Field("*", alias="with", min_length=1, max_length=1)
    """what stands for each of the others"""


class PartialMethod(Model):
    """Leaves a part of a text."""

    partial: Partial


Method = Annotated[
    Annotated[PartialMethod, Tag("map")]
    | Annotated[Literal["redact", "null", "hmac", "encrypt"], Tag("other")],
    Discriminator(is_map),
]
KEYED = ("hmac", "encrypt")
"""Methods that take a key. What was different stays so."""


class Mask(Model):
    """Hides fields."""

    fields: dict[PathText, Method] = Field(min_length=1)
    """path: `redact` (`***`), `null`, `hmac` (HMAC-SHA256, in hex), `encrypt` (AES-SIV) or `partial`"""
    key: str | None = None
    """which of the file's keys `hmac` and `encrypt` take"""
    side: Side = "value"
    """where paths lie that don't say so"""

    def check(self, formats: Formats) -> None:
        paths = _separate("fields", self.fields, self.side)
        for text, path in paths.items():
            with located("fields", text):
                if formats.kind(path) == "number":
                    raise wrong(f"{path} can't be masked")
        for method in KEYED if self.key is None else ():
            if method in self.fields.values():
                raise wrong(f"{method} takes a key: say which one of keys", "fields")


def _separate(option: str, texts: Any, side: Side) -> dict[str, Path]:
    """The paths. Raises PydanticCustomError where one lies in another."""
    paths: dict[str, Path] = {}
    for text in texts:
        path = parse(text, side)
        for other, before in paths.items():
            if before.covers(path) or path.covers(before):
                raise wrong(f"{text} and {other} lie in one another", option, text)
        paths[text] = path
    return paths


class Fields(Model):
    """Changes the fields of JSON, in the order of these options."""

    drop: list[PathText] = Field([])
    """these go"""
    keep: list[PathText] = Field([])
    """all but these go"""
    rename: dict[PathText, str] = Field({})
    """path: the new name of what is there"""
    cast: dict[PathText, Literal["string", "integer", "number", "boolean"]] = Field({})
    """path: type"""
    set: dict[PathText, Any] = Field({})
    """path: value; text may hold `{topic}` and the like"""
    flatten: str | None = Field(None, min_length=1)
    """objects in objects go up, their names joined by this"""
    extract: PathText | None = None
    """the field becomes all there is"""
    wrap: str | None = Field(None, min_length=1)
    """all becomes a field of this name"""
    side: Side = "value"
    """whether the key or the value is meant"""

    def check(self, formats: Formats) -> None:
        if not self.model_fields_set - {"side"}:
            raise wrong("nothing is to be done")
        formats.kind(Path(self.side, ("",)))
        for option in ("drop", "keep", "rename", "cast", "set"):
            given = getattr(self, option)
            for text, path in _separate(option, given, self.side).items():
                with located(option, text):
                    self._check_path(option, path)
                    if option == "set" and isinstance(value := self.set[text], str):
                        _check_template(value)
        if self.extract is not None:
            with located("extract"):
                self._check_path("extract", parse(self.extract, self.side))
        for option in ("rename", "wrap"):
            for name in [self.wrap] if option == "wrap" else self.rename.values():
                if name is not None and re.search(r'["\\\x00-\x1f]|^$', name):
                    raise wrong(f"{name!r} is no name for a field", option)

    def _check_path(self, option: str, path: Path) -> None:
        if path.root != self.side or not path.steps:
            raise wrong(f"{path} is no field of the {self.side}")
        if path.steps[-1] is EACH and option in ("drop", "keep", "rename"):
            raise wrong(f"{path} has no name")
        if path.each and option in ("set", "extract"):
            raise wrong("one field is meant, not each of several")


def _check_template(text: str) -> None:
    try:
        templates.check(text)
    except ValueError as error:
        raise wrong(str(error)) from None


class Validate(Model):
    """Holds JSON against a JSON Schema (draft 2020-12, if it does not say another)."""

    json_schema: dict[str, Any] = Field(alias="schema")
    """the schema, or the name of its file, beside this one"""
    side: Side = "value"
    """whether the key or the value is meant"""

    def check(self, formats: Formats) -> None:
        formats.kind(Path(self.side, ("",)))
        for ref in references(self.json_schema):
            if not ref.startswith("#"):
                raise wrong(f"the schema refers to {ref}: only what begins with # is looked for", "schema")


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for name, inner in node.items():
            if name in ("$ref", "$dynamicRef") and isinstance(inner, str):
                yield inner
            yield from references(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from references(inner)


class Convert(Model):
    """Makes JSON of Avro, or Avro of JSON, of all records of its flow."""

    to: Literal["json", "avro"]
    """what it becomes"""
    id: int | None = Field(None, ge=1, lt=1 << 32)
    """for `avro`: the id, in the source's registry, of the schema that records get"""
    side: Side = "value"
    """whether the key or the value is meant"""

    def check(self, formats: Formats) -> None:
        was = "avro" if self.to == "json" else "json"
        if getattr(formats, self.side) != was:
            raise wrong(f"makes {self.to} of {was}, and the {self.side} is none here", "to")
        if self.to == "avro" and self.id is None:
            raise wrong("is missing: say which schema's", "id")
        if self.to == "json" and self.id is not None:
            raise wrong("is for avro", "id")


def _check_select(text: str, formats: Formats) -> None:
    from common.pipeline import selecting

    try:
        selecting.check(text, formats)
    except ValueError as error:
        raise wrong(str(error)) from None


FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")]


def _route_topic(text: str) -> object:
    templates.check(text, PLACES)
    return check_topic_name(filled(text, "t", "l"))


RouteTopic = Annotated[str, checked(_route_topic)]


class Case(Model):
    """One of the cases of `route`."""

    when: Conditions
    """the records that it is for, if no case before it is"""
    topic: RouteTopic
    """where these go"""


class Hash(Model):
    """The partition that Kafka's default partitioner chooses: murmur2 of the key. Of a record without a key,
    that of the source's partition, modulo their number."""

    hash: int = Field(ge=1, le=10_000)
    """so many partitions has each of the topics"""


class Route(Model):
    """Says which topic at the target records go to, and to which partition there."""

    topic: RouteTopic | None = None
    """where all go; `{topic}` stands for the source topic, `{link}` for the link"""
    cases: list[Case] | None = Field(None, min_length=1)
    """or: the first one that holds decides"""
    rest: RouteTopic | None = Field(None, alias="else")
    """where those go for which none holds; without it, to the link's own destination of their topic"""
    partition: Annotated[
        Annotated[Hash, Tag("map")] | Annotated[Literal["same"], Tag("other")], Discriminator(is_map)
    ] = "same"
    """which partition there: `same`, the one of the same number, or `{hash: 6}`, that of the key among so
    many"""

    @field_validator("partition", mode="before")
    @classmethod
    def _of_how_many(cls, given: Any) -> Any:
        if given == "hash":
            raise wrong("say of how many partitions: {hash: 6}")
        return given

    @property
    def topics(self) -> list[str]:
        """All that it names, by the numbers of its cases."""
        if self.topic is not None:
            return [self.topic]
        return [case.topic for case in self.cases or ()] + ([] if self.rest is None else [self.rest])

    def check(self, formats: Formats) -> None:
        if (self.topic is None) == (self.cases is None):
            raise wrong("give topic or cases")
        if self.topic is not None and self.rest is not None:
            raise wrong("stands beside cases", "else")
        if isinstance(self.partition, Hash) and len(self.topics) * self.partition.hash > MOST_PLACES:
            raise wrong(f"more than {MOST_PLACES} partitions of all topics", "partition")
        for number, case in enumerate(self.cases or ()):
            with located("cases", number):
                check_conditions(case.when, formats, "when")


class Stage(Model):
    """One of the stages, and when."""

    when: Conditions | None = None
    """the records that the stage is for; all, where it is not given"""
    filter: Filter | None = None
    """leaves records out"""
    headers: Headers | None = None
    """changes headers"""
    mask: Mask | None = None
    """hides fields, headers, keys"""
    fields: Fields | None = None
    """changes the fields of JSON"""
    key: PathText | None = None
    """the key becomes what is at this path: a field's text, or a header's bytes"""
    timestamp: PathText | None = None
    """the timestamp becomes what is at this path: ms since 1970, or a time as RFC 3339 has it"""
    validation: Validate | None = Field(None, alias="validate")
    """holds JSON against a schema"""
    python: FunctionName | None = None
    """a function of your own, as `module:function`: it gets records as a pyarrow.RecordBatch, and gives one
    back"""
    convert: Convert | None = None
    """makes JSON of Avro, or Avro of JSON"""
    sql: str | None = None
    """`SELECT * REPLACE (expression AS column) FROM records WHERE condition`, by DuckDB"""
    schema_ids: SchemaIds | None = Field(None, alias="schema-ids")
    """gives schemas the ids that they have at the target"""
    route: Route | None = None
    """says which topic records go to; the last stage of its flow"""

    @model_validator(mode="before")
    @classmethod
    def _one(cls, given: Any) -> Any:
        if given == "schema-ids":
            return {given: {}}
        if isinstance(given, dict) and len(set(given) - {"when"}) > 1:
            raise wrong(f"one stage an entry, not {' and '.join(sorted(set(given) - {'when'}))}")
        return given

    @property
    def name(self) -> str:
        """As the file has it; nothing where there is none."""
        names = ((info.alias or name, getattr(self, name)) for name, info in type(self).model_fields.items())
        return next((name for name, options in names if name != "when" and options is not None), "")

    @property
    def fits_avro(self) -> bool:
        """Whether it reads Avro, or looks at headers only."""
        from_header = [path.startswith("header.") for path in (self.key, self.timestamp) if path is not None]
        looks_only_there = bool(from_header) and all(from_header)
        return looks_only_there or self.name in (
            "filter", "mask", "headers", "convert", "schema-ids", "route",
        )  # fmt: skip

    def behind(self, formats: Formats) -> Formats:
        """What keys and values are behind it."""
        if self.convert is None:
            return formats
        found = {"key": formats.key, "value": formats.value, self.convert.side: self.convert.to}
        return Formats.model_validate(found)

    def check(self, formats: Formats) -> None:
        if not self.name:
            raise wrong("which stage?")
        if self.when is not None:
            check_conditions(self.when, formats, "when")
            if self.convert is not None:
                raise wrong("convert is for all records of its flow", "when")
        with located(self.name):
            if self.sql is not None:
                _check_select(self.sql, formats)
            for path in (self.key, self.timestamp):
                if path is None:
                    continue
                found = parse(path)
                if found.root not in ("value", "key", "header") or found.each or not found.steps:
                    raise wrong("takes a field or a header")
                formats.kind(found)
            for options in (
                self.filter, self.headers, self.mask, self.fields, self.validation, self.convert, self.route,
            ):  # fmt: skip
                if options is not None:
                    options.check(formats)
