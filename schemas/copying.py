"""One round: what of the source's schemas the target lacks, and, where that is wanted, brings it there. What
is a link's subject, and which version is which, is decided elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from common.errors import Deposed, RegistryError, SchemaMismatch
from common.link.schema_map import Mapped, Reference, SchemaId, SchemaMap, encode_id
from common.pipeline.registries import Schemas
from schemas.contents import Contents
from schemas.matching import Matching
from schemas.model import Schema, Version
from schemas.registry import Registry
from schemas.subjects import LATEST, At, ordered, referred, renamed, selected
from schemas.writing import Writing

log = logging.getLogger(__name__)

GoOn = Callable[[], None]
IN_STEP, COPIED, DUE, FAILED = "in-step", "copied", "due", "failed"


@dataclass(frozen=True, slots=True)
class Line:
    """What became of a version of the source, or would; of a subject as a whole without a `version`."""

    subject: str
    version: int | None
    id: int | None
    target_subject: str
    target_version: int | None
    target_id: int | None
    state: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A version of the source that is soft-deleted there, and `found` at the target's subject `name`."""

    version: Version
    name: str
    found: Version


class Stopped(Exception):
    """This instance is to end, so the round does."""


class Failed(Exception):
    """Why a version can't be brought in step; `due`: what it refers to is to be copied first."""

    def __init__(self, why: str, due: bool = False) -> None:
        super().__init__(why)
        self.due = due


class Copying:
    """Rounds of one term. `writing` None: nothing is written, and lines say what would be."""

    def __init__(
        self,
        source: Registry,
        target: Registry,
        schema_map: SchemaMap,
        config: Schemas,
        writing: Writing | None,
        go_on: GoOn,
    ) -> None:
        self.source, self.target, self.config = source, target, config
        self.written = 0
        """Versions that were registered."""
        self._map = schema_map
        self._writing = writing
        self._go_on = go_on
        self._known = Contents(source)
        self._done: dict[str, tuple[object, list[Line]]] = {}
        """Subject -> what it was like when it was in step, and its lines then."""
        self._pairs: dict[At, Version] = {}
        self._failed: dict[str, str] = {}
        """Subject -> why, in this round."""
        self._unread: dict[str, str] = {}
        """Likewise, of those that can't be read at the source."""
        self._names: dict[str, str] = {}
        self._lines: dict[str, list[Line]] = {}
        self._deletions: list[Deletion] = []

    def round(self, topics: Mapping[str, str]) -> list[Line]:
        """A line for each version. `topics`: source -> destination. Raises RegistryError where a registry
        can't be reached, SchemaMismatch."""
        deposed = False
        try:
            return self._round(topics)
        except Deposed:
            # What is on record is the successor's to put back: it may be copying already.
            deposed = True
            raise
        finally:
            if self._writing is not None and not deposed:
                self._writing.restore()

    def check_fingerprints(self) -> None:
        """Whether ids still mean what they meant when they were written down: registries can give them away
        again. An Avro schema's text that is not written down, since an earlier release was who did it, is
        now, also of what is deleted by now. Raises SchemaMismatch."""
        for key, mapped in self._map.ids.copy().items():
            self._go_on()
            for registry, schema_id in ((self.source, key.id), (self.target, mapped.target)):
                found = registry.by_id(key.context, schema_id)
                if found is None and registry is self.source:
                    continue  # deleted for good; records may still have it, and are read at the target
                if found is None or found.sha256 != mapped.sha256:
                    raise mismatch(f"{registry}: id {schema_id}", key, mapped, found is None)
            if mapped.avro is None and found is not None and self._writing is not None:
                self._writing.append([encode_id(key, replace(mapped, avro=found.avro))])

    # a round

    def _round(self, topics: Mapping[str, str]) -> list[Line]:
        versions = self._read(topics)
        self._names = {subject: renamed(subject, self.config, topics) for subject in versions}
        self._failed = self._joined() | self._unread
        state = {subject: self._state(subject, of) for subject, of in versions.items()}
        same = {s for s in versions if s in self._done and self._done[s][0] == state[s]}
        self._lines = {subject: self._done[subject][1] if subject in same else [] for subject in versions}
        self._deletions = []
        matching: dict[str, Matching] = {}
        for version in ordered(v for of in versions.values() for v in of):
            subject = version.subject
            if subject in same:
                continue
            self._go_on()
            if subject not in matching:
                matching[subject] = Matching(Contents(self.target).of(self._names[subject]))
            self._lines[subject].append(self._line(version, matching[subject]))
        while self._deletions:
            # What refers to another comes behind it, and goes first.
            self._delete(self._deletions.pop())
        for subject in versions.keys() - same:
            self._lines[subject] += self._missing(subject) + self._level(subject)
            self._done.pop(subject, None)
            if subject not in self._failed and self._writing is not None:
                settled = [
                    replace(line, state=IN_STEP, detail="") for line in self._lines[subject] if line.version
                ]
                self._done[subject] = (state[subject], settled)
        return [line for subject in sorted(self._lines) for line in self._lines[subject]]

    def _read(self, topics: Mapping[str, str]) -> dict[str, list[Version]]:
        """Subject -> versions, of the subjects that are selected, and of those that they refer to."""
        found: dict[str, list[Version]] = {}
        self._unread = {}
        todo = selected(self.source.subjects(), self.config, topics)
        while todo:
            subject = todo.pop()
            if subject in found:
                continue
            self._go_on()
            try:
                of = self._known.of(subject)
            except RegistryError as error:
                if error.retriable:
                    raise
                self._unread[subject], found[subject] = str(error), []
                continue
            found[subject] = [v for v in of if self.config.deleted or not v.deleted]
            todo += [referred(r, subject) for v in found[subject] for r in v.schema.references]
        return {s: of for s, of in found.items() if of or s in self._unread or self._hidden(s)}

    def _hidden(self, subject: str) -> list[int]:
        return self._known.hidden[subject] if self.config.deleted else []

    def _missing(self, subject: str) -> list[Line]:
        """Of what the source's registry does not show."""
        name = self._names[subject]
        if subject in self._unread:
            return [Line(subject, None, None, name, None, None, FAILED, self._unread[subject])]
        why = f"{self.source} does not show this soft-deleted version; to do without: deleted: false"
        hidden = [Line(subject, n, None, name, None, None, FAILED, why) for n in self._hidden(subject)]
        if hidden:
            self._failed.setdefault(subject, why)
        return hidden

    def _state(self, subject: str, versions: Iterable[Version]) -> object:
        of = [(v.version, v.id, v.deleted) for v in versions]
        return of, self._names[subject], self.source.level(subject)

    def _joined(self) -> dict[str, str]:
        """Subjects that would be one at the target, and why they are not copied."""
        by_name: dict[str, list[str]] = {}
        for subject, name in sorted(self._names.items()):
            by_name.setdefault(name, []).append(subject)
        return {
            subject: f"{' and '.join(several)} would both be {name} at the target"
            for name, several in by_name.items()
            if len(several) > 1
            for subject in several
        }

    def _line(self, version: Version, matching: Matching) -> Line:
        subject, name = version.subject, self._names[version.subject]
        found: Version | None = None
        state, detail = FAILED, ""
        try:
            if subject in self._failed:
                raise Failed(self._failed[subject])
            found, state, detail = self._version(version, matching)
        except Failed as failed:
            state, detail = (DUE, "") if failed.due else (FAILED, str(failed))
        except RegistryError as error:
            if error.retriable:
                raise
            detail = str(error)
        if state == FAILED:
            self._failed.setdefault(subject, detail)
        number, schema_id = (None, None) if found is None else (found.version, found.id)
        return Line(subject, version.version, version.id, name, number, schema_id, state, detail)

    def _version(self, version: Version, matching: Matching) -> tuple[Version | None, str, str]:
        """The target's version, with the state and its detail. Raises Failed, RegistryError."""
        name = self._names[version.subject]
        wanted = version.schema.referring(lambda reference: self._translated(reference, version.subject))
        found, state, detail = matching.take(version, wanted), IN_STEP, ""
        if found is None and version.deleted and self._written_down(version):
            # Its id is all that anybody needs of it; some registries show no more.
            return None, IN_STEP, ""
        if found is None:
            if self._writing is None:
                self._pairs.pop((version.subject, version.version), None)
                return None, DUE, "deleted" if version.deleted else ""
            self._delete_alike(name, wanted)
            found = matching.add(
                self._writing.register(
                    version, name, wanted, {v.version for v in matching.there}, self._source_level(version)
                )
            )
            self.written += 1
            state = COPIED
            log.info("%s version %d: id %d", name, found.version, found.id)
        elif self.config.ids == "keep" and (found.version, found.id) != (version.version, version.id):
            raise Failed(
                f"{self.target}: subject {name} has version {version.version}, id {version.id}, of the source as version"
                f" {found.version}, id {found.id}"
            )
        self._pairs[version.subject, version.version] = found
        if self._write_down(version, found):
            state, detail = DUE, "its id is not written down"
        if version.deleted and not found.deleted:
            if self._writing is None:
                return found, DUE, "to be soft-deleted"
            self._deletions.append(Deletion(version, name, found))
            state = COPIED
        return found, state, detail

    def _delete(self, deletion: Deletion) -> None:
        """Softly. Not before all is registered that refers to it, nor behind what is registered again."""
        try:
            self.target.delete(deletion.name, deletion.found.version)
        except RegistryError as error:
            if error.retriable:
                raise
            subject, why = deletion.version.subject, str(error)
            self._failed.setdefault(subject, why)
            self._lines[subject] = [
                replace(line, state=FAILED, detail=why) if line.version == deletion.version.version else line
                for line in self._lines[subject]
            ]

    def _delete_alike(self, name: str, wanted: Schema) -> None:
        """A schema that a subject has is not registered again."""
        alike = [d for d in self._deletions if d.name == name and not wanted.differences(d.found.schema)]
        for deletion in alike:
            self._deletions.remove(deletion)
            self._delete(deletion)

    def _source_level(self, version: Version) -> Callable[[], str]:
        return lambda: self.source.level(version.subject)

    def _translated(self, reference: Reference, by: str) -> Reference:
        """As it is at the target. Raises Failed."""
        subject = referred(reference, by)
        name = self._names.get(subject, subject)
        if name != subject and not reference.subject.startswith(":."):
            name = renamed_like(reference.subject, subject, name)
        else:
            name = reference.subject if name == subject else name
        if reference.version == LATEST:
            return reference._replace(subject=name)
        pair = self._pairs.get((subject, reference.version))
        if pair is None:
            if subject in self._names and subject not in self._failed and self._writing is None:
                raise Failed("", due=True)
            raise Failed(f"it refers to {subject} version {reference.version}, which is not copied")
        return reference._replace(subject=name, version=pair.version)

    def _written_down(self, version: Version) -> bool:
        return SchemaId(version.context, version.id) in self._map.ids

    def _write_down(self, version: Version, found: Version) -> bool:
        """The id at the target, once: the first one counts. Whether that is yet to be done. Raises
        SchemaMismatch."""
        key = SchemaId(version.context, version.id)
        mapped = Mapped(found.id, version.schema.sha256, version.schema.references, version.schema.avro)
        known = self._map.ids.get(key)
        if known is not None and known.sha256 != mapped.sha256:
            raise mismatch(f"{self.source}: subject {version.subject}, id {version.id}", key, known, False)
        if known is None and self._writing is not None:
            self._writing.append([encode_id(key, mapped)])
        return known is None and self._writing is None

    def _level(self, subject: str) -> list[Line]:
        """Nothing where the level is in step, or is yet to be put back."""
        name = self._names[subject]
        if subject in self._failed or name in self._map.restores:
            return []
        try:
            wanted, found = self.source.level(subject), self.target.own_level(name)
            if wanted == found:
                return []
            if self._writing is not None:
                self.target.set_level(name, wanted)
        except RegistryError as error:
            if error.retriable:
                raise
            self._failed[subject] = str(error)
            return [Line(subject, None, None, name, None, None, FAILED, str(error))]
        state = DUE if self._writing is None else COPIED
        what = f"compatibility {found or 'not set'} -> {wanted}"
        return [Line(subject, None, None, name, None, None, state, what)]


def renamed_like(short: str, full: str, name: str) -> str:
    """The target's name without its context, as a reference had it that named none."""
    return name[len(full) - len(short) :]


def mismatch(where: str, key: SchemaId, mapped: Mapped, gone: bool) -> SchemaMismatch:
    what = "is gone" if gone else "is another schema now"
    return SchemaMismatch(
        f"schema-mismatch: {where} {what}: id {key.id} of the source was mapped to id {mapped.target} of the target, sha256"
        f" {mapped.sha256[:12]}; nothing is copied until that is cleared up (docs: guides/schemas#schema-mismatch)"
    )
