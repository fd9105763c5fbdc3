"""Records of the compacted positions topic: how far each source partition is known to lie in staging. Pure.

A position is a hint that saves repetition, never a promise: written only after the frames below it are
acknowledged, and lost without harm. The same topic carries the lanes' counters, for metrics, since it is
compacted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson

from common.partitions import PartitionId


@dataclass(frozen=True, slots=True)
class Position:
    """`next` is where to go on; `leader_epoch` the epoch of the record before it (KIP-320: tells a log that
    was cut and rewritten); `handled` the control offset of the newest demand (resend, accepted loss) that
    these frames answer. `tolerated`: the offsets below `next` on which a stage of pipeline `pipeline` has
    failed, as far as `onError: tolerate` counts them."""

    next: int
    leader_epoch: int | None
    handled: int
    pipeline: int = 0
    tolerated: tuple[int, ...] = ()


def encode(topic: str, key: PartitionId, position: Position) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    told = {
        "topic": topic,
        "next": position.next,
        "leader_epoch": position.leader_epoch,
        "handled": position.handled,
    }
    if position.tolerated:
        told |= {"pipeline": position.pipeline, "tolerated": position.tolerated}
    return orjson.dumps({"topic_id": key[0], "partition": key[1]}), orjson.dumps(told)


def decode(key: bytes | None, value: bytes | None) -> tuple[PartitionId, Position] | None:
    """The position in a record, or None for what is no position: it is only a hint, so nothing is made of a
    bad one."""
    try:
        k, v = orjson.loads(key or b""), orjson.loads(value or b"")
        partition, position = k["partition"], Position(v["next"], v["leader_epoch"], v["handled"])
        if "tolerated" in v:
            position = replace(position, pipeline=v["pipeline"], tolerated=tuple(v["tolerated"]))
        numbers = (
            partition,
            position.next,
            position.handled,
            0 if position.leader_epoch is None else position.leader_epoch,
            position.pipeline,
            *position.tolerated,
        )
        # A negative number would be a logical offset to the client: -1 is the end of the log. (-1 handled is
        # none.)
        if not isinstance(k["topic_id"], str) or any(type(n) is not int for n in numbers):
            return None
        if min(partition, position.next, position.handled + 1) < 0:
            return None
        return (k["topic_id"], partition), position
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def forgotten(key: bytes | None, value: bytes | None) -> PartitionId | None:
    """The source partition whose position a tombstone takes away, or None for any other record."""
    if value is not None:
        return None
    try:
        k = orjson.loads(key or b"")
        found = (k["topic_id"], k["partition"])
        return found if isinstance(found[0], str) and type(found[1]) is int else None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
