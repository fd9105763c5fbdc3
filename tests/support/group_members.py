"""Members of groups that no client library for Python can be: of the streams protocol (KIP-1071) and of share
groups (KIP-932). Each is two requests, spoken directly: one to join or leave, one to commit."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from common.kafka.wire import protocol
from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.protocol import Answer, Api, unsigned
from common.ports import Deadline

_STREAMS_HEARTBEAT = Api("StreamsGroupHeartbeat", 88, 0, flexible=True)
_SHARE_HEARTBEAT = Api("ShareGroupHeartbeat", 76, 1, flexible=True)
_COMMIT = Api("OffsetCommit", 8, 9, flexible=True)
_NULL, _NONE, _TAGS = b"\0", b"\x01", b"\0"
"""A null, an empty array, no tagged fields."""
_NO_STRUCT, _A_STRUCT = b"\xff", b"\x01"
_LEAVE = -1


@contextmanager
def streams_member(bootstrap: str, group: str, topic: str, offset: int | None = None) -> Iterator[None]:
    """A member of a streams group until the block ends, that has committed an offset of the topic's first
    partition."""
    member = str(uuid.uuid4())
    epoch = _heartbeat(bootstrap, group, _STREAMS_HEARTBEAT, _joins_streams(group, member, topic))
    if offset is not None:
        _commit(bootstrap, group, member, epoch, topic, offset)
    try:
        yield
    finally:
        _heartbeat(bootstrap, group, _STREAMS_HEARTBEAT, _leaves_streams(group, member))


@contextmanager
def share_member(bootstrap: str, group: str, topic: str) -> Iterator[None]:
    """A member of a share group until the block ends."""
    member = str(uuid.uuid4())
    head = _text(group) + _text(member)
    joins = struct.pack(">i", 0) + _NULL + _array([_text(topic)]) + _TAGS
    _heartbeat(bootstrap, group, _SHARE_HEARTBEAT, head + joins)
    try:
        yield
    finally:
        leaves = struct.pack(">i", _LEAVE) + _NULL + _NULL + _TAGS
        _heartbeat(bootstrap, group, _SHARE_HEARTBEAT, head + leaves)


def _joins_streams(group: str, member: str, topic: str) -> bytes:
    subtopology = _text("0") + _array([_text(topic)]) + _NONE * 5 + _TAGS
    topology = _A_STRUCT + struct.pack(">i", 0) + _array([subtopology]) + _TAGS
    head = _text(group) + _text(member) + struct.pack(">ii", 0, 0) + _NULL * 2 + struct.pack(">i", 60_000)
    return head + topology + _NONE * 3 + _text("process") + _NO_STRUCT + _NONE + _NULL * 2 + b"\0" + _TAGS


def _leaves_streams(group: str, member: str) -> bytes:
    head = _text(group) + _text(member) + struct.pack(">ii", _LEAVE, 0) + _NULL * 2 + struct.pack(">i", -1)
    return head + _NO_STRUCT + _NULL * 4 + _NO_STRUCT + _NULL * 3 + b"\0" + _TAGS


def _heartbeat(bootstrap: str, group: str, api: Api, body: bytes) -> int:
    """The member's epoch."""
    answer = _asked(bootstrap, group, api, body)
    answer.tags()
    _, error = answer.take("ih")
    words = str(answer.raw(max(0, answer.unsigned() - 1)), "utf-8")
    assert not error, f"{api.name} of {group}: error {error} {words}"
    answer.raw(max(0, answer.unsigned() - 1))
    return answer.number("i")


def _commit(bootstrap: str, group: str, member: str, epoch: int, topic: str, offset: int) -> None:
    partition = struct.pack(">iqi", 0, offset, -1) + _NULL + _TAGS
    topics = _array([_text(topic) + _array([partition]) + _TAGS])
    body = _text(group) + struct.pack(">i", epoch) + _text(member) + _NULL + topics + _TAGS
    answer = _asked(bootstrap, group, _COMMIT, body)
    answer.tags()
    answer.number("i")
    assert len(answer.each_compact()) == 1
    answer.raw(max(0, answer.unsigned() - 1))
    assert len(answer.each_compact()) == 1
    _, error = answer.take("ih")
    assert not error, f"a commit of {group}: error {error}"


def _asked(bootstrap: str, group: str, api: Api, body: bytes) -> Answer:
    with closing(BrokerConnections({"bootstrap.servers": bootstrap})) as brokers:
        deadline = Deadline(10)
        address = brokers.coordinator(protocol.GROUP, group, deadline)
        return brokers.ask(address, api, [body], deadline)


def _text(value: str) -> bytes:
    return unsigned(len(value.encode()) + 1) + value.encode()


def _array(items: Sequence[bytes]) -> bytes:
    return unsigned(len(items) + 1) + b"".join(items)
