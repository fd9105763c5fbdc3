"""What START_OFFSETS says: where the copying of each partition begins that is there when a link starts. Pure;
origins are decided and written down in replicator/driver/origins.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from common.config import topic_names
from common.partitions import PartitionName

MIRROR_MAKER = "mirrormaker"


@dataclass(frozen=True, slots=True)
class MirrorMaker:
    """Behind what MirrorMaker 2 has copied, as its offsets topic at the target says. An empty `alias` (of the
    source) or `connector`: there is but one."""

    topic: str
    alias: str = ""
    connector: str = ""


Point = str | int
"""`earliest`, `latest`, or milliseconds since the epoch."""
Start = Point | MirrorMaker

_PARTITION = re.compile(r"(.*):(\d{1,9})", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class StartOffsets:
    """`exact`: partitions that begin at an offset of their own; `some`: a list of topics and its start, the
    first that matches counts;
    `otherwise`: all others."""

    otherwise: Start = "earliest"
    some: tuple[tuple[str, Start], ...] = ()
    exact: dict[PartitionName, int] = field(default_factory=dict)

    def of(self, topic: str) -> Start:
        """Where the partitions of a topic begin that have no offset of their own."""
        return next(self._all_of(topic))

    def without_mirror_maker(self, topic: str) -> Point:
        """Where those begin of which MirrorMaker 2 has copied nothing: by the next entry."""
        found = (start for start in self._all_of(topic) if not isinstance(start, MirrorMaker))
        return next(found, "earliest")

    def _all_of(self, topic: str) -> Iterator[Start]:
        yield from (start for entry, start in self.some if topic_names.matches(entry, topic))
        yield self.otherwise

    @property
    def named(self) -> set[str]:
        """The topics that are given a start by their names."""
        return {entry for entry, _ in self.some if topic_names.is_name(entry)} | {t for t, _ in self.exact}


def checked(value: str | int) -> str | int:
    """The setting's value: of a point for all topics what it means, of anything else its text. ValueError
    says what is wrong with which entry."""
    try:
        found = start(value)
        return str(value).strip() if isinstance(found, MirrorMaker) else found
    except ValueError:
        # An ISO 8601 time may hold a comma, so a list is what is no single value.
        if "," not in str(value) and "=" not in str(value):
            raise
    parsed(str(value))
    return str(value)


@lru_cache(maxsize=16)
def parsed(value: str | int) -> StartOffsets:
    """What the setting says. ValueError names the first entry that is ill-formed, or given twice."""
    try:
        return StartOffsets(start(value))
    except ValueError:
        pass
    alone: list[Start] = []
    some: list[tuple[str, Start]] = []
    exact: dict[PartitionName, int] = {}
    for entry in topic_names.split_entries(str(value)):
        what, equals, where = (part.strip() for part in entry.rpartition("="))
        try:
            if not equals:
                if alone:
                    raise ValueError("a second value for all topics")
                alone.append(start(where))
            elif found := _PARTITION.fullmatch(what):
                _add_exact(exact, found[1].strip(), int(found[2]), where)
            else:
                _add_some(some, what, where)
        except ValueError as error:
            raise ValueError(f"entry {entry!r}: {error}") from None
    return StartOffsets(alone[0] if alone else "earliest", tuple(some), exact)


def start(value: str | int) -> Start:
    """`earliest`, `latest`, MirrorMaker 2's, or milliseconds since the epoch; ISO 8601 without an offset from
    UTC is in UTC. ValueError for anything else."""
    text = str(value).strip()
    kind, *named = text.split(":", 3)
    if kind.lower() == MIRROR_MAKER:
        if not named or any(set(",=") & set(name) for name in named):
            raise ValueError(
                "expected mirrormaker:OFFSETS_TOPIC, or mirrormaker:OFFSETS_TOPIC:ALIAS:CONNECTOR"
            )
        return MirrorMaker(topic_names.check_topic_name(named[0]), *named[1:])
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if re.fullmatch(r"\d{1,15}", text, re.ASCII):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        # Rounded up: a record older than the moment given is not asked for.
        since = -((datetime.fromtimestamp(0, UTC) - moment) // timedelta(milliseconds=1))
    except (ValueError, OverflowError):
        since = -1
    if since < 0:
        raise ValueError(
            f"expected earliest, latest, mirrormaker:OFFSETS_TOPIC, an ISO 8601 time or milliseconds since 1970, not {text[:40]!r}"
        )
    return since


def _add_exact(exact: dict[PartitionName, int], topic: str, partition: int, offset: str) -> None:
    if not topic_names.is_name(topic):
        raise ValueError("an offset goes with a topic's name, not with an expression")
    at = (topic_names.check_topic_name(topic), partition)
    if not re.fullmatch(r"\d{1,18}", offset, re.ASCII):
        raise ValueError(f"expected topic:partition=offset, with a number from 0, not {offset[:40]!r}")
    if at in exact:
        raise ValueError(f"{topic}:{partition} is given twice")
    exact[at] = int(offset)


def _add_some(some: list[tuple[str, Start]], what: str, where: str) -> None:
    if not what:
        raise ValueError("names no topic before the =")
    topic_names.compiled(what)
    if any(what == other for other, _ in some):
        raise ValueError(f"{what} is given twice")
    some.append((what, start(where)))
