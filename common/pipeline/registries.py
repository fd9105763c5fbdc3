"""Schema registries in a pipeline's file, and which of their schemas are kept in step. Pure; who asks them is
elsewhere."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Discriminator, Field, Tag, model_validator

from common.config import durations
from common.pipeline.options import Expression, Model, checked, wrong


def _url(text: str) -> None:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ValueError("expected http://host:port or https://host:port, with a path where it has one")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("a URL has neither a login nor parameters here: say auth")


def _duration(text: str) -> None:
    if not 0 < durations.seconds(text) <= 3600:
        raise ValueError("expected up to an hour")


Secret = Annotated[str, Field(pattern=r"^(file|env):.+")]


class Auth(Model):
    """How one logs in to a registry: one of the two."""

    basic: Secret | None = None
    """where `user:password` is, as `file:PATH` or `env:NAME`"""
    bearer: Secret | None = None
    """where the token is, likewise; a file is read again for each request"""

    @model_validator(mode="after")
    def _one(self) -> Auth:
        if (self.basic is None) == (self.bearer is None):
            raise wrong("say basic or bearer")
        return self


class Client(Model):
    """A certificate of one's own, for registries that ask for one (mTLS)."""

    certificate: str
    """a file of it, in PEM, with those that signed it behind it; read again for each connection, as the key
    is"""
    key: str
    """a file of its key, in PEM"""
    password: Secret | None = None
    """where the key's password is, as `file:PATH` or `env:NAME`"""


class Registry(Model):
    """A schema registry with Confluent's API."""

    url: Annotated[str, checked(_url)]
    """where its API begins: `https://sr.example:8081`, or `http://apicurio:8080/apis/ccompat/v7`"""
    auth: Auth | None = None
    """as below; none: no login"""
    ca: str | None = None
    """a file of certificates of authorities, in PEM; none: the system's"""
    client: Client | None = None
    """a certificate of one's own, as below; none: none is shown"""

    @model_validator(mode="after")
    def _shown(self) -> Registry:
        if self.client is not None and urlsplit(self.url).scheme != "https":
            raise wrong("no certificate is shown over http", "client")
        return self


class Registries(Model):
    """Both ends of a link."""

    source: Registry
    """where the schemas of source topics are; only read"""
    target: Registry
    """where they are copied to"""


Subjects = Annotated[
    Annotated[Literal["link", "all"], Tag("other")]
    | Annotated[list[Expression], Field(min_length=1), Tag("map")],
    Discriminator(lambda given: "map" if isinstance(given, list) else "other"),
]
"""Tagged, so that an error is of the one that was meant."""


class Schemas(Model):
    """Which schemas `schemas` keeps in step, and how."""

    subjects: Subjects = "link"
    """`link`: those of the link's topics (`<topic>-key`, `<topic>-value`, `<topic>-<record>`); `all`; or
    names and regular expressions that match whole names; with the subjects that these refer to"""
    ids: Literal["auto", "keep", "map"] = "auto"
    """`map`: the target gives ids of its own, which are written down; `keep`: the same ids, by mode `IMPORT`;
    `auto`: kept where the target does that, else mapped"""
    rename: Literal["no", "topics"] = "no"
    """`topics`: a subject of a topic that has another name at the target is called after that"""
    deleted: bool = True
    """whether soft-deleted versions are copied, and soft-deleted at the target, too: records may have their
    ids"""
    interval: Annotated[str, checked(_duration)] = "10s"
    """how often the source's registry is looked at"""
