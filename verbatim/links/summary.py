"""What the topics of a cluster, its groups, and links' own records say of the links there. Pure.

A link is known by the records of a control topic, each of which names it. Control topics are looked for under
the name that they have where no setting gives them another: `<link>.control`. That a link is there whose
control topic is called otherwise, its other topics and its applications' groups tell, and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import orjson

from common.errors import ControlError
from common.link import link_status
from common.link.control_records import DEDUPLICATOR, REPLICATOR
from common.link.control_state import Control
from common.link.lane_words import Heard, decode, hear
from common.link.link_status import SILENT_MS, Line
from common.link.permissions import OFFSETS
from offsets.group_offsets import GroupKey, Stray, decode_key

if TYPE_CHECKING:
    from common.config.settings import Settings
    from verbatim.links.tails import Entry

CONTROL = ".control"
_OTHERS = (".staging", ".positions", ".offset-mappings")
_GROUPS = tuple(f".{name}.leader" for name in (REPLICATOR, DEDUPLICATOR))
STATES = ("unread", "halted", "silent", "paused", "runs")
"""`unread`: the control topic, or what its lanes say, can't be read; `silent`: the replicator or the
deduplicator does not run, or its lanes say nothing. The first three are sick."""


def traces(names: Iterable[str], groups: Iterable[str]) -> set[str]:
    """Links of which two of their other topics are there, or the group of one of their applications."""
    count = Counter(name.removesuffix(end) for name in names for end in _OTHERS if name.endswith(end))
    led = {group.removesuffix(end) for group in groups for end in _GROUPS if group.endswith(end)}
    return {link for link in count if count[link] > 1} | led


def links_in(said: Iterable[tuple[int, bytes | None]]) -> dict[str, Control | ControlError]:
    """What a control topic (offset, value) says of each link that uses it, or why that can't be understood;
    nothing where it is another kind of topic."""
    of: dict[str | None, list[tuple[int, bytes | None]]] = {}
    for offset, value in said:
        of.setdefault(_link_of(value), []).append((offset, value))
    # What names no link may be an early release's record, or a link's own that was cut.
    nameless = of.pop(None, [])
    found: dict[str, Control | ControlError] = {}
    for link, own in of.items():
        found[link or ""] = state = Control(link=link)
        try:
            for offset, value in sorted([*own, *nameless]):
                state.apply(offset, value)
        except ControlError as error:
            found[link or ""] = error
    return found


def _link_of(value: bytes | None) -> str | None:
    try:
        name = orjson.loads(value or b"")["link"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) else None


def heard_in(entries: Iterable[Entry]) -> Heard:
    """What lanes have said last, of the records of a positions topic."""
    # A lane's newest word holds all that counts, and all are of some size.
    heard: Heard = {}
    for entry in {entry.key: entry for entry in entries}.values():
        if (said := decode(entry.key, entry.value)) is not None:
            hear(heard, said, entry.at_ms)
    return heard


def groups_in(entries: Iterable[Entry]) -> int:
    """Of how many source groups the records of a group-offsets topic hold offsets."""
    known: dict[GroupKey, bool] = {}
    for entry in entries:
        try:
            known[decode_key(entry.key)] = bool(entry.value)
        except Stray:
            continue
    return len({key.group for key, there in known.items() if there})


def row(
    settings: Settings,
    state: Control,
    heard: Heard | str,
    members: Mapping[str, bool],
    groups: int | None,
    now_ms: int,
) -> Line:
    """A link as its topics tell it. `settings` are the link's as far as they are known, `members` says of
    each group whether it has members; `heard` is why, where what lanes say can't be read."""
    said = {} if isinstance(heard, str) else heard
    leads = {
        name: members.get(
            f"{settings.application_name}.{name}.leader", link_status.speaks(said, name, now_ms)
        )
        for name in (REPLICATOR, DEDUPLICATOR, OFFSETS)
    }
    told = link_status.told(settings, state)
    found = link_status.summary(told, link_status.partitions(said), said, leads, now_ms)
    copied = [line for line in found["topics"] if line["copied"]]
    lags = [line["lag"] for line in copied if line["lag"] is not None]
    paused = sum(line["paused"] for line in copied)
    halts = Counter(halt["reason"] for halt in found["halts"])
    halted = [f"halted: {', '.join(f'{name} {n}' for name, n in sorted(halts.items()))}"] if halts else []
    unheard = [heard] if isinstance(heard, str) else []
    away = [words for line in found["applications"] if (words := _away(line)) is not None]
    still = ["all"] if copied and paused == len(copied) else []
    marks = zip(("halted", "unread", "silent", "paused"), (halted, unheard, away, still), strict=True)
    return {
        **unread(settings.application_name, settings.control_topic, ""),
        "state": next((name for name, found in marks if found), "runs"),
        "why": [*halted, *unheard, *away],
        "source": None if state.identity is None else state.identity.source_cluster,
        "topics": len(copied),
        "partitions": sum(line["partitions"] for line in copied),
        "lag": sum(lags) if lags or not copied else None,
        "topics_without_lag": len(copied) - len(lags),
        "paused_topics": paused,
        "halted_partitions": len({(halt["topic"], halt["partition"]) for halt in found["halts"]}),
        "halts": dict(halts),
        "applications": found["applications"],
        "groups": groups,
    }


def unread(link: str, control_topic: str, why: str) -> Line:
    """A link of which nothing is known but that it is there, with all the fields of `row`."""
    unknown = ("source", "topics", "partitions", "lag", "topics_without_lag", "paused_topics")
    return {
        "link": link,
        "state": "unread",
        "why": [why],
        "control_topic": control_topic,
        **dict.fromkeys((*unknown, "halted_partitions", "groups")),
        "halts": {},
        "applications": [],
    }


def is_sick(row: Line) -> bool:
    return STATES.index(row["state"]) < STATES.index("paused")


def in_order(rows: Collection[Line]) -> list[Line]:
    """The worst first."""
    return sorted(rows, key=lambda row: (STATES.index(row["state"]), row["link"]))


def _away(line: Line) -> str | None:
    """Why an application without which nothing is copied is taken not to run."""
    name, said_s = line["application"], line["said_s"]
    last = "" if said_s is None else f"; its lanes have said nothing for {age(said_s)}"
    if name == OFFSETS or (line["runs"] and (said_s is None or said_s * 1000 < SILENT_MS)):
        return None
    if line["runs"] is None:
        return f"{name}: nothing is heard of it"
    return f"{name} {'leads' if line['runs'] else 'does not run'}{last}"


def age(seconds: float) -> str:
    """A time that has passed, for people."""
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    unit, length = next((one for one in units if seconds >= 2 * one[1]), units[-1])
    return f"{seconds / length:,.0f} {unit}"
