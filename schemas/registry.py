"""A schema registry by Confluent's API. Whatever is written is read back: what a registry says that it did,
and did not do, is an error by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from common.errors import RegistryError
from schemas import requests
from schemas.http import Http
from schemas.model import Schema, Version, context_of
from schemas.requests import Request

T = TypeVar("T")

NONE, IMPORT = "NONE", "IMPORT"
ABSENT = (404, 405)


class Registry:
    """Every method raises RegistryError, and LinkRefused where the login is not taken."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def __str__(self) -> str:
        return str(self._http)

    def close(self) -> None:
        self._http.close()

    # reading

    def subjects(self) -> list[str]:
        """Full names of all, soft-deleted ones too."""
        return self._asked(requests.subjects(), requests.names)

    def versions(self, subject: str) -> dict[int, bool]:
        """Number -> whether it is soft-deleted, in order; empty where there is no such subject."""
        live = self._if_there(requests.versions(subject, deleted=False), requests.numbers) or []
        every = self._if_there(requests.versions(subject, deleted=True), requests.numbers) or []
        return {number: number not in live for number in sorted({*every, *live})}

    def version(self, subject: str, number: int, deleted: bool = False) -> Version:
        return self._asked(
            requests.version(subject, number), lambda answer: requests.version_of(answer, subject, deleted)
        )

    def by_id(self, context: str, schema_id: int) -> Schema | None:
        """What consumers get for an id; None: there is none."""
        return self._if_there(requests.by_id(context, schema_id), requests.schema)

    def own_level(self, subject: str) -> str | None:
        """The compatibility level that was set on a subject."""
        return self._if_there(requests.level(subject, inherited=False), _level)

    def level(self, subject: str) -> str:
        """The level that holds for a subject: its own, or the registry's."""
        found = self._if_there(requests.level(subject, inherited=True), _level)
        return found or self._asked(requests.general_level(), _level)

    def own_mode(self, subject: str) -> str | None:
        """The mode that was set on a subject; None also where a registry has no modes."""
        return self._if_there(requests.mode(subject), requests.mode_of)

    # writing

    def set_level(self, subject: str, level: str) -> None:
        self._http.ask(requests.set_level(subject, level))
        if (found := self.own_level(subject)) != level:
            raise RegistryError(
                f"{self}: subject {subject}: its compatibility was set to {level}, and is read back as {found}"
            )

    def set_mode(self, subject: str, mode: str | None) -> bool:
        """None: none of its own. False where the registry has no modes, or forbids this one."""
        try:
            self._http.ask(requests.set_mode(subject, mode))
        except RegistryError as error:
            if error.status in (*ABSENT, 422):
                return False
            raise
        return self.own_mode(subject) == mode

    def register(
        self, subject: str, schema: Schema, number: int | None = None, schema_id: int | None = None
    ) -> Version:
        """The version that it became, as it is read back: the same schema. `number` and `schema_id` are asked
        for, which needs mode IMPORT; what came of that is for the caller to see."""
        asked = requests.register(subject, schema, number, schema_id)
        given = self._asked(asked, lambda answer: requests.number(answer, "id"))
        made = self._registered(subject, given)
        context = context_of(subject)
        for where, found in (
            (f"version {made.version}", made.schema),
            (f"id {given}", self.by_id(context, given)),
        ):
            wrong = ["all"] if found is None else schema.differences(found)
            if wrong:
                raise RegistryError(
                    f"{self}: subject {subject}: registered, but read back by {where} with another {', '.join(wrong)}"
                    if found is not None
                    else f"{self}: subject {subject}: registered, but there is nothing by {where}"
                )
        return made

    def delete(self, subject: str, number: int) -> None:
        """Softly: ids stay readable."""
        refused: RegistryError | None = None
        try:
            self._http.ask(requests.delete(subject, number))
        except RegistryError as error:
            # Each registry says in its own way that it is deleted already.
            refused = error
        if self.versions(subject).get(number) is False:
            raise refused or RegistryError(
                f"{self}: subject {subject}, version {number}: deleted, and still there"
            )

    def remove(self, subject: str) -> None:
        """For good, with its ids, its level and its mode. Nothing where there is no such subject."""
        if self.own_mode(subject) is not None:
            self._http.ask(requests.set_mode(subject, None))
        if self.own_level(subject) is not None:
            self._http.ask(requests.forget_level(subject))
        if False in self.versions(subject).values():
            self._http.ask(requests.remove(subject, permanent=False))
        if self.versions(subject):
            self._http.ask(requests.remove(subject, permanent=True))
        if self.versions(subject):
            raise RegistryError(f"{self}: subject {subject}: removed, and still there")

    def _registered(self, subject: str, given: int) -> Version:
        for number, deleted in reversed(self.versions(subject).items()):
            if not deleted and (found := self.version(subject, number)).id == given:
                return found
        raise RegistryError(
            f"{self}: subject {subject}: registered as id {given}, but none of its versions has that id"
        )

    def _asked(self, request: Request, read: Callable[[Any], T]) -> T:
        try:
            return read(self._http.ask(request))
        except requests.Unexpected as error:
            raise RegistryError(f"{self}: {request.about}: the answer can't be understood: {error}") from None

    def _if_there(self, request: Request, read: Callable[[Any], T]) -> T | None:
        try:
            return self._asked(request, read)
        except RegistryError as error:
            if error.status == 404:
                return None
            raise


def _level(answer: Any) -> str:
    return requests.text(answer, "compatibilityLevel", "compatibility")
