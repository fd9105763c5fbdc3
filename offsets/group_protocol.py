"""Requests about groups, and their answers. Pure: bytes in, bytes out; they are asked in
offsets/group_calls.py.

The client library leaves groups of any protocol but the consumers' out of its list (KIP-1071's streams,
KIP-932's share groups), and takes no empty id.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from common.kafka.wire.protocol import NO_TAGS, Answer, Api, compact_count, compact_text, text
from common.partitions import PartitionName

LIST_GROUPS = Api("ListGroups", 16, 5, flexible=True)
"""With types (KIP-848, Kafka 3.8)."""
LIST_GROUPS_LEAST = 4
"""With states (KIP-518, Kafka 2.6); brokers that know no more have groups of one type."""
OFFSET_COMMIT = Api("OffsetCommit", 8, 7)
OFFSET_FETCH = Api("OffsetFetch", 9, 5)
DESCRIBE = {
    "classic": Api("DescribeGroups", 15, 4),
    "consumer": Api("ConsumerGroupDescribe", 69, 0, flexible=True),
}
"""What tells the members of a group of a kind. Those of other kinds are not asked for."""


MOVABLE = frozenset({"classic", "consumer", "streams"})
"""Kinds of groups that commit offsets as consumers do."""
_IDLE = frozenset({"empty", "dead"})
_CONSUMERS = frozenset({"", "consumer"})
"""Protocol types of classic groups that consume. Others (of Connect's workers, say) share out work of their
own, and have no offsets."""


class Group(NamedTuple):
    """A group as a broker lists it. `kind`: classic, consumer, streams, share, or what a newer broker calls
    it; `active`: it has members, or may have some in a moment."""

    kind: str
    active: bool


class Committed(NamedTuple):
    """A committed offset, with the text that its consumer put beside it."""

    offset: int
    metadata: str


class Member(NamedTuple):
    """A member of a group, as people know it: its client id, where it is, and its name if it is a static
    member."""

    client: str
    host: str
    instance: str | None

    def __str__(self) -> str:
        static = f" (static member {self.instance})" if self.instance else ""
        return f"{self.client} at {self.host.lstrip('/')}{static}"


def list_groups(version: int) -> bytes:
    """Groups in every state and, from version 5 on, of every type."""
    return b"\x01" * (version - LIST_GROUPS_LEAST + 1) + b"\0"


def listed(answer: Answer, version: int) -> tuple[int, dict[str, Group]]:
    """Error code; the groups that consume. Raises MalformedAnswer."""
    answer.tags()
    _, error = answer.take("ih")
    found = {}
    for _ in answer.each_compact():
        group, protocol_type, state = (answer.compact_text() or "" for _ in range(3))
        kind = _kind(protocol_type, (answer.compact_text() or "") if version >= 5 else "")
        answer.tags()
        if kind is not None:
            found[group] = Group(kind, state.lower() not in _IDLE)
    return error, found


def _kind(protocol_type: str, group_type: str) -> str | None:
    if group_type.lower() not in ("", "classic"):
        return group_type.lower()
    return "classic" if protocol_type in _CONSUMERS else None


def fetch_offsets(group: str) -> bytes:
    """Of all topics."""
    return text(group) + b"\xff\xff\xff\xff"


def fetched_offsets(answer: Answer) -> tuple[int, dict[PartitionName, Committed]]:
    """Error code; what is committed. Raises MalformedAnswer."""
    answer.number("i")
    found = {}
    for _ in answer.each():
        topic = answer.text() or ""
        for _ in answer.each():
            partition, offset, _ = answer.take("iqi")
            metadata, error = answer.text() or "", answer.number("h")
            if not error and offset >= 0:
                found[topic, partition] = Committed(offset, metadata)
    return answer.number("h"), found


def commit_offsets(group: str, offsets: Mapping[PartitionName, Committed]) -> bytes:
    """By nobody who is a member. Without leader epochs: those of one cluster mean nothing in another."""
    body = text(group) + struct.pack(">i", -1) + text("") + text(None) + struct.pack(">i", len(offsets))
    for (topic, partition), committed in offsets.items():
        body += (
            text(topic) + struct.pack(">iiqi", 1, partition, committed.offset, -1) + text(committed.metadata)
        )
    return body


def describe(kind: str, group: str) -> bytes:
    """Without the operations that are allowed."""
    if DESCRIBE[kind].flexible:
        return compact_count([group]) + compact_text(group) + b"\0" + NO_TAGS
    return struct.pack(">i", 1) + text(group) + b"\0"


def members(kind: str, answer: Answer) -> tuple[int, list[Member]]:
    """Error code; the members of the one group that was asked for. Raises MalformedAnswer."""
    return _consumer_members(answer) if DESCRIBE[kind].flexible else _classic_members(answer)


def _classic_members(answer: Answer) -> tuple[int, list[Member]]:
    answer.number("i")
    error, found = 0, []
    for _ in answer.each():
        error = answer.number("h")
        for _ in range(4):
            answer.text()
        for _ in answer.each():
            answer.text()
            instance, client, host = answer.text(), answer.text() or "", answer.text() or ""
            answer.blob()
            answer.blob()
            found.append(Member(client, host, instance))
        answer.number("i")
    return error, found


def _consumer_members(answer: Answer) -> tuple[int, list[Member]]:
    answer.tags()
    answer.number("i")
    error, found = 0, []
    for _ in answer.each_compact():
        error = answer.number("h")
        for _ in range(3):
            answer.compact_text()
        answer.take("ii")
        answer.compact_text()
        for _ in answer.each_compact():
            answer.compact_text()
            instance = answer.compact_text()
            answer.compact_text()
            answer.number("i")
            client, host = answer.compact_text() or "", answer.compact_text() or ""
            for _ in answer.each_compact():
                answer.compact_text()
            answer.compact_text()
            for _ in range(2):  # what it has, and what it is to have
                for _ in answer.each_compact():
                    answer.raw(16)
                    answer.compact_text()
                    answer.raw(4 * len(answer.each_compact()))
                    answer.tags()
                answer.tags()
            answer.tags()
            found.append(Member(client, host, instance))
        answer.number("i")
        answer.tags()
    return error, found
