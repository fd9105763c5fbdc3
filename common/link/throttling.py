"""What operators have said about how a link runs: topics paused or promoted, rates limited. Pure; records of
the control topic change it, the replicator's lanes obey it.

Entries are names or regular expressions, as in the settings. Of several that mean a topic the one said last
counts, so a topic can be taken out of what was said of many, and the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from common.config import topic_names
from common.link.promotions import Promotions

T = TypeVar("T")
EVERYTHING = ".*"
_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_MOST = 10**15


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that may be staged in a second: bytes of frames before compression, and records. None: any
    number."""

    bytes_per_second: int | None = None
    records_per_second: int | None = None

    def __bool__(self) -> bool:
        return self != NO_LIMIT

    def __str__(self) -> str:
        shown = []
        if self.bytes_per_second is not None:
            shown.append(f"{self.bytes_per_second:,} bytes/s")
        if self.records_per_second is not None:
            shown.append(f"{self.records_per_second:,} records/s")
        return ", ".join(shown) or "no limit"


NO_LIMIT = Limit()


@dataclass(frozen=True, slots=True)
class Steering:
    """What is in force. `pauses` and `limits` are entries with what was said of them, oldest first;
    `link_limit` is for all topics together."""

    link_limit: Limit = NO_LIMIT
    pauses: tuple[tuple[str, bool], ...] = ()
    limits: tuple[tuple[str, Limit], ...] = ()
    promotions: Promotions = field(default_factory=dict)
    """Topics that the link copies no longer, or is about to."""

    def with_pause(self, entries: Sequence[str], paused: bool) -> Steering:
        """Entries paused, or going on; none: all topics, whatever was said of single ones."""
        if not entries:
            return replace(self, pauses=((EVERYTHING, True),) if paused else ())
        return replace(self, pauses=_said(self.pauses, entries, paused))

    def with_limit(self, entries: Sequence[str], limit: Limit) -> Steering:
        """A limit for each topic that the entries mean; without entries, for all topics together."""
        if not entries:
            return replace(self, link_limit=limit)
        return replace(self, limits=_said(self.limits, entries, limit))

    def paused_by(self, topic: str) -> str | None:
        """The entry that pauses a topic; None where it runs."""
        entry, paused = _last(self.pauses, topic, False)
        return entry if paused else None

    def stops(self, topic: str) -> bool:
        """Whether a topic is not read: paused, or promoted."""
        return topic in self.promotions or self.paused_by(topic) is not None

    def limit_of(self, topic: str) -> Limit:
        """A topic's own limit; that of the link comes on top."""
        return _last(self.limits, topic, NO_LIMIT)[1]


def rate(text: str) -> int:
    """Bytes a second: a number with a unit (`10MB`, `512KiB`) or without (bytes). ValueError for anything
    else."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)", text.strip(), re.ASCII)
    unit = _UNITS.get(found[2].lower() or "b") if found else None
    size = round(float(found[1]) * unit) if found and unit else 0
    if not 1 <= size <= _MOST:
        raise ValueError(f"expected bytes a second such as 500KB, 10MB or 64MiB, not {text[:40]!r}")
    return size


def checked_entries(values: Sequence[str]) -> Sequence[str]:
    """Topic entries as a control record has them. TypeError for what is none."""
    for value in values:
        try:
            names, expressions = topic_names.compiled(value)
        except ValueError as error:
            raise TypeError(f"topics: {error}") from None
        if len(names) + len(expressions) != 1:
            raise TypeError(f"topics: {value!r} is not one name or expression")
    return values


def checked_limit(bytes_per_second: int | None, records_per_second: int | None) -> Limit:
    """The limit that a control record tells. TypeError for what is none."""
    if 0 in (bytes_per_second, records_per_second):
        raise TypeError("0 is no rate: a number from 1, or null")
    return Limit(bytes_per_second, records_per_second)


def _said(before: tuple[tuple[str, T], ...], entries: Sequence[str], what: T) -> tuple[tuple[str, T], ...]:
    """Entries join the end, once. Those that take back nothing are left out, so that what has come to an end
    is forgotten."""
    rules = [rule for rule in before if rule[0] not in entries] + [(e, what) for e in dict.fromkeys(entries)]
    while rules and not rules[0][1]:
        del rules[0]
    return tuple(rules)


def _last(rules: tuple[tuple[str, T], ...], topic: str, otherwise: T) -> tuple[str | None, T]:
    for entry, what in reversed(rules):
        if topic_names.matches(entry, topic):
            return entry, what
    return None, otherwise
