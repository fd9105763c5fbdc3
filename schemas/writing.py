"""Registers versions at the target: ids kept or given anew, compatibility set aside meanwhile and put back,
also after a crash. What is to be registered is decided in schemas/copying.py."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from common.errors import RegistryError
from common.link.schema_map import Restore, encode_restore
from common.link.schema_map_log import SchemaMapLog
from common.ports import Deadline
from schemas.model import Schema, Version
from schemas.registry import IMPORT, NONE, Registry

log = logging.getLogger(__name__)

CALL_S = 30.0


class Writing:
    """Of one term. Raises RegistryError, and what writing to the schemas topic raises."""

    def __init__(self, target: Registry, map_log: SchemaMapLog, ids: Literal["auto", "keep", "map"]) -> None:
        self.keeps: bool | None = {"keep": True, "map": False}.get(ids)
        """Whether ids are kept; None: that is yet to be seen."""
        self._must_keep = ids == "keep"
        self._target = target
        self._log = map_log

    def append(self, records: list[tuple[bytes, bytes | None]]) -> None:
        """To the schemas topic."""
        self._log.append(records, Deadline(CALL_S))

    def register(
        self, version: Version, name: str, wanted: Schema, there: set[int], level: Callable[[], str]
    ) -> Version:
        """`name`: the target's subject, which has the versions `there`, and whose compatibility is to be
        `level()` afterwards."""
        taken = self.keeps is not False and (self._taken(version) or self._occupied(version, name, there))
        self._open(name, bool(there), level)
        if self.keeps is not False and not taken and self._import(name, True):
            made = self._target.register(name, wanted, version.version, version.id)
            kept = (made.id, made.version) == (version.id, version.version)
            if not kept and self._must_keep:
                raise RegistryError(
                    f"{self._target}: subject {name}, version {version.version}: id {version.id} was to be kept, and became version"
                    f" {made.version}, id {made.id}: this registry does not keep ids; use ids: map"
                )
            if self.keeps is None:
                self.keeps = kept
                log.info("%s %s ids", self._target, "keeps" if kept else "does not keep")
            return made
        if self.keeps is None and not taken:
            self.keeps = False
            log.info("%s has no mode %s: ids are mapped", self._target, IMPORT)
        self._import(name, False)
        return self._target.register(name, wanted)

    def restore(self) -> None:
        """Put back what is to be; what can't be is tried again in the next round, or at the next start."""
        for subject, before in self._log.map.restores.copy().items():
            try:
                self._import(subject, False)
                # Where nothing has come of it there is nothing to put back.
                if self._target.versions(subject) or self._target.own_level(subject) == NONE:
                    self._target.set_level(subject, before.compatibility)
            except RegistryError as error:
                log.warning("compatibility is yet to be put back: %s", error)
                continue
            self.append([encode_restore(subject, None)])

    def _open(self, name: str, has_versions: bool, level: Callable[[], str]) -> None:
        """Set compatibility aside. First it is written down what is to be put back: whoever leads next does
        it. Of a subject without versions there is nothing to be compatible with, and some registries know no
        level."""
        if name not in self._log.map.restores:
            before = Restore(level(), self._target.own_mode(name))
            self.append([encode_restore(name, before)])
        if has_versions and self._target.own_level(name) != NONE:
            self._target.set_level(name, NONE)

    def _import(self, name: str, wanted: bool) -> bool:
        """Whether a subject is in mode IMPORT, or no longer in it; False where it can't be had."""
        mode = self._target.own_mode(name)
        if (mode == IMPORT) == wanted:
            return True
        if wanted:
            if self._target.set_mode(name, IMPORT):
                return True
            if self._must_keep:
                raise RegistryError(
                    f"{self._target}: subject {name}: there is no mode {IMPORT}, so ids can't be kept; use ids: map"
                )
            return False
        before = self._log.map.restores.get(name)
        if before is not None and before.mode == IMPORT:
            return True
        if not self._target.set_mode(name, before.mode if before is not None else None):
            raise RegistryError(f"{self._target}: subject {name}: mode {IMPORT} can't be ended")
        return True

    def _occupied(self, version: Version, name: str, there: set[int]) -> bool:
        """Whether the number is another version's, which IMPORT would overwrite. Raises RegistryError
        likewise."""
        occupied = version.version in there
        if occupied and self._must_keep:
            raise RegistryError(
                f"{self._target}: subject {name} has another version {version.version} already: it can't be kept; use ids: map"
            )
        return occupied

    def _taken(self, version: Version) -> bool:
        """Whether another schema has the id. Raises RegistryError where it must be kept."""
        there = self._target.by_id(version.context, version.id)
        taken = there is not None and there.sha256 != version.schema.sha256
        if taken and self._must_keep:
            raise RegistryError(
                f"{self._target}: id {version.id} of {version.subject} version {version.version} is another schema's there: it can't be"
                " kept; use ids: map"
            )
        return taken
