"""Which version at the target is a source's version: one with the same schema, in the same order. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.model import Schema, Version


@dataclass(slots=True)
class Matching:
    """One subject's versions at the target, and which of them have been taken for one of the source's."""

    there: list[Version]
    _taken: set[int] = field(default_factory=set)
    _last: int = 0

    def take(self, version: Version, wanted: Schema) -> Version | None:
        """The target's version for one of the source's, asked in their order; `wanted`: its schema as it is
        to be there. None: there is none yet.

        One of the same number counts first: where numbers are the same on both sides, a schema that was
        registered twice is no riddle. Others may have versions in between. What is live at the source must be
        so at the target.
        """
        fit = [
            v
            for v in self.there
            if v.version not in self._taken
            and (version.deleted or not v.deleted)
            and not wanted.differences(v.schema)
        ]
        fit.sort(key=lambda v: (v.version != version.version, v.version < self._last, v.version))
        return self._took(fit[0]) if fit else None

    def add(self, made: Version) -> Version:
        """One that has just been registered."""
        self.there.append(made)
        return self._took(made)

    def _took(self, version: Version) -> Version:
        self._taken.add(version.version)
        self._last = version.version
        return version
