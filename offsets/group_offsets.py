"""Records of the group-offsets topic: for each partition of each group its last translation, and what was
last written. Pure.

The topic is compacted: a key is a source group, topic and partition. It is what survives when the source is
gone, and what a restarted `offsets` knows of its predecessor's writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from common.errors import StateError
from offsets.commit_rule import Written

VERSION = 1


class GroupKey(NamedTuple):
    """Source group, source topic, partition; `route`: the topic at the target that it is about, where that is
    none of the link's own destinations, but one that a stage takes records to."""

    group: str
    topic: str
    partition: int
    route: str = ""


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """`offset` is the translation of `source_offset`, None where there is none; `why` says why it is not
    exact; `detail` what Kafka said. `time_ms` is when it became so. `written` is what was last written to the
    target's group, now or earlier."""

    topic_id: str
    source_offset: int
    target_group: str
    destination_topic: str
    destination_partition: int
    offset: int | None
    exact: bool
    why: str | None
    outcome: str
    detail: str
    time_ms: int
    metadata: str
    written: Written | None

    def same(self, other: GroupOffset | None) -> bool:
        """Whether both say the same, whenever they were made."""
        return other is not None and encode_value(self, timeless=True) == encode_value(other, timeless=True)


def encode_key(key: GroupKey) -> bytes:
    told: dict[str, Any] = {"group": key.group, "topic": key.topic, "partition": key.partition}
    return orjson.dumps(told | ({"route": key.route} if key.route else {}))


def encode_value(record: GroupOffset, timeless: bool = False) -> bytes:
    """The record's value; `timeless` leaves the time out, to compare by."""
    value: dict[str, Any] = {
        "v": VERSION,
        "topic_id": record.topic_id,
        "source_offset": record.source_offset,
        "target_group": record.target_group,
        "destination_topic": record.destination_topic,
        "destination_partition": record.destination_partition,
        "offset": record.offset,
        "exact": record.exact,
        "why": record.why,
        "outcome": record.outcome,
        "detail": record.detail,
        "time": 0 if timeless else record.time_ms,
        "metadata": record.metadata,
        "written": None,
    }
    if record.written is not None:
        value["written"] = {
            "source_offset": record.written.source_offset,
            "offset": record.written.offset,
            "previous": record.written.previous,
        }
    return orjson.dumps(value)


class Stray(StateError):
    """What carries no group's key was written by something else."""


def decode_key(key: bytes | None) -> GroupKey:
    """Raises Stray."""
    try:
        k = orjson.loads(key or b"")
        return GroupKey(
            _text(k["group"]), _text(k["topic"]), _number(k["partition"]), _text(k.get("route", ""))
        )
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise Stray(f"no record of a group's offset: {error!r}") from None


def decode(key: bytes | None, value: bytes | None) -> tuple[GroupKey, GroupOffset | None]:
    """A record; without a value it says that the key is gone. Raises Stray for what is none, StateError for
    one that is damaged."""
    found = decode_key(key)
    try:
        if not value:
            return found, None
        r = orjson.loads(value)
        if r["v"] != VERSION:
            raise StateError(f"group offset of version {r['v']}: a newer release wrote it")
        w = r["written"]
        written = None
        if w is not None:
            written = Written(_number(w["source_offset"]), _number(w["offset"]), _or_none(w["previous"]))
        return found, GroupOffset(
            _text(r["topic_id"]),
            _number(r["source_offset"]),
            _text(r["target_group"]),
            _text(r["destination_topic"]),
            _number(r["destination_partition"]),
            _or_none(r["offset"]),
            bool(r["exact"]),
            None if r["why"] is None else _text(r["why"]),
            _text(r["outcome"]),
            _text(r["detail"]),
            _number(r["time"]),
            _text(r["metadata"]),
            written,
        )
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise StateError(f"group offset that can't be understood: {error!r}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a number from 0")
    return value


def _or_none(value: Any) -> int | None:
    return None if value is None else _number(value)
