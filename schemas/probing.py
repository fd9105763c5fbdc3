"""What the target's registry does when it is asked to, found out with a subject that is nobody else's, and
removed again."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from common.errors import RegistryError
from common.pipeline.wire import DEFAULT_CONTEXT
from schemas.model import Schema
from schemas.registry import IMPORT, Registry

SUBJECT = "verbatim-probe-"
"""How the subject's name begins."""
FIRST = Schema('{"type":"record","name":"VerbatimProbe","fields":[{"name":"a","type":"string"}]}')
SECOND = Schema(
    '{"type":"record","name":"VerbatimProbe","fields":[{"name":"a","type":"string"},{"name":"b","type":"int","default":0}]}'
)
VERSION = 3
"""What the first version is to be numbered: a registry that counts by itself would begin with 1."""
LEVEL = "FULL"
_APART = 100
"""Behind the ids that are there by now: those next to them are about to be given."""


@dataclass(frozen=True, slots=True)
class Probe:
    """`keeps_ids`: whether ids and version numbers are kept that are asked for; None: that was not tried."""

    subject: str
    keeps_ids: bool | None


def probe(target: Registry, ids: Literal["auto", "keep", "map"], there: Iterable[int]) -> Probe:
    """Register, set compatibility, delete, as a round does, and remove all of it. `there`: the ids that are
    to be at the target. Raises RegistryError, also where something is left, and LinkRefused."""
    subject = SUBJECT + secrets.token_hex(4)
    failed = left = ""
    keeps: bool | None = None
    try:
        keeps = _tried(target, subject, ids, max(there, default=0) + _APART)
    except RegistryError as error:
        failed = str(error)
    finally:
        left = _left(target, subject)
    if failed or left:
        raise RegistryError("; ".join(filter(None, [failed, left])))
    return Probe(subject, keeps)


def _tried(target: Registry, subject: str, ids: str, above: int) -> bool | None:
    keeps = None if ids == "map" else _imports(target, subject, above)
    if ids == "keep" and not keeps:
        raise RegistryError(f"{target}: does not keep ids, as ids: keep would have it; use ids: map")
    made = target.register(subject, SECOND)
    target.set_level(subject, LEVEL)
    target.delete(subject, made.version)
    if target.by_id(DEFAULT_CONTEXT, made.id) is None:
        raise RegistryError(
            f"{target}: subject {subject}, version {made.version}: deleted softly, and its id {made.id} is not readable any more"
        )
    return keeps


def _imports(target: Registry, subject: str, above: int) -> bool:
    if not target.set_mode(subject, IMPORT):
        return False
    free = above
    while target.by_id(DEFAULT_CONTEXT, free) is not None:
        free += 1
    made = target.register(subject, FIRST, VERSION, free)
    if not target.set_mode(subject, None):
        raise RegistryError(f"{target}: subject {subject}: mode {IMPORT} can't be ended")
    return (made.version, made.id) == (VERSION, free)


def _left(target: Registry, subject: str) -> str:
    """Remove it; why that was not done, "" where it was."""
    try:
        target.remove(subject)
    except RegistryError as error:
        return f"subject {subject} is left there, remove it by hand: {error}"
    return ""
