"""Fetch requests and their answers. Pure: bytes in, bytes out; what an answer means is left to
common/kafka/wire/batch_consumer.py.

Version 13 is the first that asks for topics by id (Kafka 3.1, KIP-516): a topic that was deleted and made
again is another one to it. Version 12, which brokers before that know, says names instead, and is the same in
all else: who asks by it has to confirm the ids. What the partitions of a session have in common with the
request before need not be said again (KIP-227), and a log that has diverged from what was read is told
(KIP-595's DivergingEpoch).
"""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from common.kafka.wire.protocol import (
    NO_TAGS,
    Answer,
    Api,
    MalformedAnswer,
    by_topic,
    compact_count,
    compact_text,
)
from common.partitions import PartitionId

FETCH = Api("Fetch", 1, 13, flexible=True)
FETCH_BY_NAME = Api("Fetch", 1, 12, flexible=True)
NO_SESSION = 0
"""Of the session's id: the broker is to make one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A partition as a session is told of it: the offset to read from, the leader epoch of the record before,
    and that of the leader that is meant (-1: not known). A broker that has heard of another leader refuses
    then, instead of serving what it follows (KIP-320)."""

    offset: int
    last_epoch: int
    most_bytes: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Aborted:
    """A producer's transaction that was aborted, whose first record in this partition is at an offset."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class Part:
    """What a broker answers about one partition. `records` is a piece of the answer; `diverges` says where
    the log's history parted from what was read (None: it did not); `preferred` is the broker to read from
    instead, nearer to the rack that was told (-1: this one)."""

    error: int
    high_watermark: int
    last_stable_offset: int
    aborted: list[Aborted]
    records: memoryview
    diverges: int | None
    preferred: int = -1


@dataclass(frozen=True, slots=True)
class Fetched:
    error: int
    session: int
    parts: dict[PartitionId, Part]


def canonical(topic_id: str) -> str:
    """A topic id as it is spelled here, of one that common.kafka.client.topics.id_text has spelled: 22
    letters of base64."""
    return str(uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "==")))


def fetch(
    wanted: Mapping[PartitionId, Wanted],
    forgotten: Collection[PartitionId],
    session: int,
    epoch: int,
    wait_ms: int,
    least_bytes: int,
    most_bytes: int,
    rack: str = "",
    names: Mapping[str, str] | None = None,
) -> bytes:
    """Ask for committed records; of a session, only what has changed is `wanted`. `rack`: where to read, if a
    replica is there (KIP-392).

    `names`: each topic id's name, for FETCH_BY_NAME; None: for FETCH."""
    out = [struct.pack(">iiiibii", -1, wait_ms, least_bytes, most_bytes, 1, session, epoch)]
    topics = by_topic(wanted)
    out.append(compact_count(topics))
    for topic, partitions in topics.items():
        out += (_spelled(topic, names), compact_count(partitions))
        for partition in partitions:
            w = wanted[topic, partition]
            out += (
                struct.pack(">iiqiqi", partition, w.leader_epoch, w.offset, w.last_epoch, -1, w.most_bytes),
                NO_TAGS,
            )
        out.append(NO_TAGS)
    topics = by_topic(forgotten)
    out.append(compact_count(topics))
    for topic, partitions in topics.items():
        out += (
            _spelled(topic, names),
            compact_count(partitions),
            struct.pack(f">{len(partitions)}i", *partitions),
            NO_TAGS,
        )
    out += (compact_text(rack), NO_TAGS)
    return b"".join(out)


def _spelled(topic: str, names: Mapping[str, str] | None) -> bytes:
    if names is None:
        return uuid.UUID(topic).bytes
    return compact_text(names[topic])


def fetched(answer: Answer, ids: Mapping[str, str] | None = None) -> Fetched:
    """`ids`: each topic name's id, for an answer to FETCH_BY_NAME; a name that is not among them was not
    asked for. Raises MalformedAnswer."""
    answer.tags()
    _, error, session = answer.take("ihi")
    parts: dict[PartitionId, Part] = {}
    for _ in answer.each_compact():
        topic = _topic(answer, ids)
        for _ in answer.each_compact():
            partition, code, high, stable, _ = answer.take("ihqqq")
            aborted = []
            for _ in answer.each_compact():
                aborted.append(Aborted(*answer.take("qq")))
                answer.tags()
            preferred = answer.number("i")
            records = answer.raw(max(0, answer.unsigned() - 1))
            diverges = None
            if (told := answer.tags().get(0)) is not None:
                diverges = _diverging(told)
            parts[topic, partition] = Part(code, high, stable, aborted, records, diverges, preferred)
        answer.tags()
    return Fetched(error, session, parts)


def _topic(answer: Answer, ids: Mapping[str, str] | None) -> str:
    if ids is None:
        return str(uuid.UUID(bytes=bytes(answer.raw(16))))
    name = answer.compact_text() or ""
    return ids.get(name, name)


def _diverging(told: memoryview) -> int:
    if len(told) < 12:
        raise MalformedAnswer("a diverging epoch that ends too soon")
    return int(struct.unpack_from(">iq", told)[1])
