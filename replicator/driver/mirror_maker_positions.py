"""What MirrorMaker 2 has written down of its copying, and whether it can be gone on from there. Pure; read in
replicator/driver/mirror_maker.py.

Connect keeps `["<connector>",{"cluster":"<alias>","partition":0,"topic":"T"}]` -> `{"offset":N}` in a
compacted topic. N is the last record that was copied; MirrorMaker 2 itself goes on at N + 1 (as its
MirrorSourceTask has it).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from common.config.start_offsets import MirrorMaker
from common.errors import LinkRefused
from common.partitions import PartitionName

DEDICATED = "mm2-offsets."
"""How the offsets topic of a MirrorMaker 2 in dedicated mode begins: the alias of its source follows."""
_SHOWN = 3


class Flow(NamedTuple):
    """Who has copied: a connector, from the cluster of an alias."""

    connector: str
    alias: str

    def __str__(self) -> str:
        return f"{self.alias}:{self.connector}"


Positions = dict[Flow, dict[PartitionName, int]]
"""Flow -> source topic and partition -> offset of the last record that it has copied."""


def take(positions: Positions, key: bytes | None, value: bytes | None) -> Flow | None:
    """Take in a record of an offsets topic; the flow that it is of, None where no MirrorSourceConnector's.

    A record without a value or without an offset deletes the position.
    """
    try:
        connector, of = orjson.loads(key or b"")
        flow, at = Flow(connector, of["cluster"]), (of["topic"], of["partition"])
        offset = (orjson.loads(value) or {}).get("offset") if value else None
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
        return None
    if not all(isinstance(name, str) for name in (*flow, at[0])) or not isinstance(at[1], int):
        return None
    known = positions.setdefault(flow, {})
    if isinstance(offset, int) and offset >= 0:
        known[at] = offset
    else:
        known.pop(at, None)
    return flow


def chosen(
    positions: Positions, start: MirrorMaker, wanted: Collection[PartitionName]
) -> dict[Flow, dict[PartitionName, int]]:
    """The flows that have copied `wanted` partitions, with these. Raises LinkRefused where there is none, and
    where it can't be told which one is meant."""
    found: dict[Flow, dict[PartitionName, int]] = {}
    for flow, of in positions.items():
        if start.alias in ("", flow.alias) and start.connector in ("", flow.connector):
            mine = {at: offset for at, offset in of.items() if at in wanted}
            found |= {flow: mine} if mine else {}
    what = f"START_OFFSETS: topic {start.topic} of the target"
    if not found:
        there = ", ".join(sorted(f"{flow} ({len(of)} partitions)" for flow, of in positions.items()))
        asked = f" under alias {start.alias or 'whatever'}, connector {start.connector or 'whatever'}"
        raise LinkRefused(
            f"{what} holds no position of a topic that is copied{asked}; it has {there or 'none at all'}"
        )
    counted: dict[PartitionName, list[Flow]] = {}
    for flow, of in found.items():
        for at in of:
            counted.setdefault(at, []).append(flow)
    several = next(((at, sorted(flows)) for at, flows in sorted(counted.items()) if len(flows) > 1), None)
    if several is not None or len({flow.alias for flow in found}) > 1:
        of_what = f"{several[0][0]}-{several[0][1]}" if several else "the topics that are copied"
        flows = several[1] if several else sorted(found)
        raise LinkRefused(
            f"{what} has positions of {of_what} from {', '.join(map(str, flows))}: name one, "
            f"mirrormaker:{start.topic}:{flows[0]}"
        )
    return found


class Content(NamedTuple):
    """What a copy has in common with its record. `time` None: the broker stamps copies itself."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    time: int | None

    def is_copy_of(self, other: Content) -> bool:
        return self == (other if self.time is not None else other._replace(time=None))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found of a partition. `position`: of the last record that MirrorMaker 2 says to have copied,
    `record` that one at the source, None where it is gone. `last`: the last one at the destination, with its
    offset. Log start, last stable offset and end of both sides."""

    position: int | None
    source: tuple[int, int, int]
    destination: tuple[int, int, int]
    record: Content | None
    last: tuple[int, Content] | None


def doubt(found: Evidence, destination: str) -> str | None:
    """Why it is not certain that the destination's partition holds all up to the position, and nothing after
    it; None: it is."""
    low, stable, end = found.source
    _, there_stable, there_end = found.destination
    if there_stable < there_end:
        return f"a transaction is open in {destination}: MirrorMaker 2 runs, or has just died; once it is stopped, it ends within a minute"
    if found.position is None:
        if found.last is None:
            return None
        return f"{destination} holds a record at offset {found.last[0]}, and MirrorMaker 2 has no position"
    begin = found.position + 1
    if begin < low:
        return f"{low - begin} offsets are gone from the source that MirrorMaker 2 has not copied: [{begin}, {low})"
    if begin > end:
        return f"MirrorMaker 2 has copied offset {found.position}, and the source's log ends at {end}: it is another one"
    if begin > stable:
        return f"MirrorMaker 2 has copied offset {found.position} from a transaction that is open at the source, from {stable} on"
    if there_end == 0:
        return f"nothing was ever written to {destination}, and MirrorMaker 2 has copied up to offset {found.position}: is it called so there?"
    if found.record is None or found.last is None:
        # At the end of the source nothing can have been copied behind the position.
        where = f"the source's offset {found.position}" if found.record is None else destination
        gone = f"no record to compare at {where}: whether MirrorMaker 2 has copied more can't be told"
        return None if begin == end else gone
    offset, last = found.last
    if last.is_copy_of(found.record):
        return None
    return (
        f"the last record of {destination}, offset {offset}, is not the source's at {found.position}, where MirrorMaker 2 says it is: it runs, was "
        "killed before it wrote down all it had copied (start it again, and stop it), or others have written there"
    )


def refusal(doubts: Mapping[PartitionName, str]) -> LinkRefused:
    """One line that names the first partitions."""
    shown = [f"{topic}-{p}: {why}" for (topic, p), why in sorted(doubts.items())[:_SHOWN]]
    more = f"; and {len(doubts) - len(shown)} more partitions" if len(doubts) > len(shown) else ""
    return LinkRefused(
        f"START_OFFSETS: {'; '.join(shown)}{more}. See docs: guides/migration#where-it-refuses"
    )


def running(
    flows: Collection[Flow], topic: str, members: Iterable[tuple[str, bytes]]
) -> tuple[Flow, str] | None:
    """The first flow that has tasks, with their group. `members` of Connect's groups: group, and what it has
    given the member to do."""
    for group, assignment in members:
        for flow in flows:
            # In dedicated mode the connectors of all flows are called the same.
            dedicated = topic == f"{DEDICATED}{flow.alias}.internal"
            if (not dedicated or group == f"{flow.alias}-mm2") and _has_tasks(assignment, flow.connector):
                return flow, group
    return None


def _has_tasks(assignment: bytes, connector: str) -> bool:
    """Whether a worker has tasks of a connector, which one that is stopped has not. Connect's protocol: the
    name with its length, then the numbers of its tasks; -1 stands for the connector itself."""
    name = connector.encode()
    at = assignment.find(struct.pack(">h", len(name)) + name)
    while at >= 0:
        behind = assignment[at + 2 + len(name) :]
        count = struct.unpack_from(">i", behind)[0] if len(behind) >= 4 else 0
        if 0 < count <= len(behind) // 4 - 1 and max(struct.unpack_from(f">{count}i", behind, 4)) >= 0:
            return True
        at = assignment.find(struct.pack(">h", len(name)) + name, at + 1)
    return False
