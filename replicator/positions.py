"""Records of the compacted positions topic: how far each source partition is known to lie in staging. Pure.

A position is a hint that saves repetition, never a promise: written only after the frames below it are acknowledged, and lost
without harm. The same topic carries the lanes' counters, for metrics, since it is compacted.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from common.control import Key


@dataclass(frozen=True, slots=True)
class Position:
    """`next` is where to go on; `leader_epoch` the epoch of the record before it (KIP-320: tells a log that was cut and
    rewritten); `handled` the control offset of the newest demand (resend, accepted loss) that these frames answer."""

    next: int
    leader_epoch: int | None
    handled: int


def encode(topic: str, key: Key, position: Position) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    return (
        orjson.dumps({"topic_id": key[0], "partition": key[1]}),
        orjson.dumps(
            {
                "topic": topic,
                "next": position.next,
                "leader_epoch": position.leader_epoch,
                "handled": position.handled,
            }
        ),
    )


def decode(key: bytes | None, value: bytes | None) -> tuple[Key, Position] | None:
    """The position in a record, or None for what is no position: it is only a hint, so nothing is made of a bad one."""
    try:
        k, v = orjson.loads(key or b""), orjson.loads(value or b"")
        return (str(k["topic_id"]), int(k["partition"])), Position(int(v["next"]), v["leader_epoch"], int(v["handled"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
