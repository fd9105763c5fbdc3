"""What a scan's JSON says, as far as a link's files need it, and that it is one. Pure."""

from __future__ import annotations

import re
from typing import Annotated

import orjson
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from common.config.topic_names import check_topic_name, split_entries
from common.errors import SettingsError
from verbatim.scan.scan import FORM

_BARE = re.compile(r"[^\x00-\x20\x7f$#'\"`\u0085\u2028\u2029]*")


def bare(value: str) -> str:
    """The value itself, if compose files, Kustomize and `docker run --env-file` all read it as it stands;
    ValueError otherwise."""
    if not _BARE.fullmatch(value):
        raise ValueError("a blank, a quote, a $ or a # in it would be read in several ways")
    return value


def _entries(value: str) -> str:
    return bare(",".join(split_entries(value)))


Amount = Annotated[float, Field(ge=0, le=1e15)]


class Topic(BaseModel):
    topic: Annotated[str, AfterValidator(check_topic_name)]
    partitions: int = Field(ge=0)
    replication_factor: int = Field(ge=0)
    bytes: Annotated[int, Field(ge=0)] | None
    bytes_per_second: Amount | None
    batch_bytes: Amount | None
    lacking: list[str]


class Group(BaseModel):
    group: str
    type: str


class Asked(BaseModel):
    """`properties`: of the source's clients; null: not to be told."""

    bootstrap_servers: Annotated[str, AfterValidator(_entries)]
    topic: Annotated[str, AfterValidator(_entries)]
    topic_exclude: Annotated[str, AfterValidator(_entries)]
    properties: dict[
        Annotated[str, Field(pattern=r"^[a-z0-9._]+$")], Annotated[str, AfterValidator(bare)] | None
    ]


class Unread(BaseModel):
    what: str
    why: str


class Moving(BaseModel):
    line_mbit: Amount | None


class Scan(BaseModel):
    cluster: Annotated[str, AfterValidator(bare)]
    asked: Asked
    topics: list[Topic]
    groups: list[Group] | None
    unread: list[Unread]
    moving: Moving


def read(text: bytes, label: str) -> Scan:
    """Raises SettingsError, one line with the label, for what is no scan, or one of a newer form."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SettingsError(f"{label}: no JSON: {error}") from None
    form = found.get("form") if isinstance(found, dict) else None
    if not isinstance(form, int) or not {"asked", "moving"} <= found.keys():
        raise SettingsError(f"{label}: not what `verbatim scan --output json` writes")
    if form > FORM:
        raise SettingsError(
            f"{label}: a scan of form {form}; this version reads {FORM}: use the one that wrote it"
        )
    try:
        return Scan.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise SettingsError(f"{label}: {where}: {first['msg'].removeprefix('Value error, ')}") from None
