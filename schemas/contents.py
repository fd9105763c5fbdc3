"""The versions of subjects, each read once: a version never changes. Asks again what it has read where a
version has gone for good."""

from __future__ import annotations

from dataclasses import replace

from common.errors import RegistryError
from schemas.model import Version
from schemas.registry import Registry


class Contents:
    """Of one registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.hidden: dict[str, list[int]] = {}
        """Subject -> soft-deleted versions that the registry lists, and does not show: Apicurio's, of a
        subject that has no other."""
        self._read: dict[str, dict[int, Version]] = {}

    def of(self, subject: str) -> list[Version]:
        """All versions, soft-deleted ones too, oldest first; without those that are hidden. Raises
        RegistryError."""
        there = self._registry.versions(subject)
        before = self._read.get(subject, {})
        if before.keys() - there.keys():
            # Numbers may begin anew.
            before = {}
        self._read[subject], hidden = {}, []
        for number, deleted in there.items():
            version = before.get(number) or self._version(subject, number, deleted)
            if version is None:
                hidden.append(number)
            else:
                self._read[subject][number] = replace(version, deleted=deleted)
        self.hidden[subject] = hidden
        return list(self._read[subject].values())

    def _version(self, subject: str, number: int, deleted: bool) -> Version | None:
        try:
            return self._registry.version(subject, number, deleted)
        except RegistryError as error:
            if deleted and error.status == 404:
                return None
            raise
