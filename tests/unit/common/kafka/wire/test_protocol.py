"""Requests and answers of Kafka's protocol: what goes out is what the protocol says, and no answer raises
anything but MalformedAnswer."""

from __future__ import annotations

import contextlib
import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kafka.wire import fetch_protocol, protocol
from common.kafka.wire.fetch_protocol import Aborted, Wanted
from common.kafka.wire.protocol import Answer, MalformedAnswer, Produced, text
from tests.fuzz.targets import READERS

ID = uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF)


def test_a_produce_request_has_one_batch_for_each_partition_and_its_batches_as_they_are() -> None:
    batch = bytearray(b"batch")
    pieces = protocol.produce("tx", 1000, {("a", 0): [b"head", batch], ("b", 3): [b"x"], ("a", 1): [b""]})
    assert any(piece is batch for piece in pieces), "nothing is copied"
    assert b"".join(pieces) == (
        b"\0\x02tx"
        + struct.pack(">hii", -1, 1000, 2)
        + b"\0\x01a"
        + struct.pack(">i", 2)
        + struct.pack(">ii", 0, 9)
        + b"headbatch"
        + struct.pack(">ii", 1, 0)
        + b"\0\x01b"
        + struct.pack(">i", 1)
        + struct.pack(">ii", 3, 1)
        + b"x"
    )


def test_a_request_says_its_length_kind_number_and_client() -> None:
    sent = b"".join(protocol.framed(protocol.END_TXN, 7, "me", [b"body", b"!"]))
    assert sent == struct.pack(">i", 17) + struct.pack(">hhi", 26, 1, 7) + b"\0\x02mebody!"
    flexible = b"".join(protocol.framed(fetch_protocol.FETCH, 7, "me", []))
    assert flexible == struct.pack(">i", 13) + struct.pack(">hhi", 1, 13, 7) + b"\0\x02me\0", "no tags"


def test_an_answer_to_produce_tells_of_each_batch_where_it_lies_or_what_is_wrong() -> None:
    good = struct.pack(">ihqqq", 0, 0, 42, -1, 0) + struct.pack(">i", 0) + text(None)
    bad = (
        struct.pack(">ihqqq", 1, 87, -1, -1, 0) + struct.pack(">i", 1) + struct.pack(">i", 0) + text("no key")
    )
    answer = (
        struct.pack(">i", 1) + text("a") + struct.pack(">i", 2) + good + bad + text("refused") + b"\0\0\0\0"
    )
    assert protocol.produced(Answer(answer)) == {
        ("a", 0): Produced(0, 42, None),
        ("a", 1): Produced(87, -1, "refused"),
    }


def test_partitions_of_one_topic_are_asked_for_together() -> None:
    assert protocol.add_partitions("t", 5, 1, [("a", 0), ("b", 2), ("a", 1)]) == (
        b"\0\x01t"
        + struct.pack(">qhi", 5, 1, 2)
        + b"\0\x01a"
        + struct.pack(">iii", 2, 0, 1)
        + b"\0\x01b"
        + struct.pack(">ii", 1, 2)
    )
    wanted = {(str(ID), p): Wanted(10 + p, -1, 99) for p in (0, 1)}
    body = fetch_protocol.fetch(wanted, [(str(ID), 7)], 3, 4, 500, 1, 1000)
    part = struct.pack(">iiqiqi", 0, -1, 10, -1, -1, 99) + b"\0"
    other = struct.pack(">iiqiqi", 1, -1, 11, -1, -1, 99) + b"\0"
    assert body == (
        struct.pack(">iiiibii", -1, 500, 1, 1000, 1, 3, 4)
        + b"\x02"
        + ID.bytes
        + b"\x03"
        + part
        + other
        + b"\0"
        + b"\x02"
        + ID.bytes
        + b"\x02"
        + struct.pack(">i", 7)
        + b"\0"
        + b"\x01\0"
    )


def test_brokers_that_know_no_ids_are_asked_by_names_and_theirs_are_the_answers() -> None:
    """Promise: the same as by id, but for the names; a name that nobody asked for is no id's."""
    topic, spelled = str(ID), b"\x07orders"
    wanted, gone = {(topic, 0): Wanted(10, -1, 99)}, [(topic, 7)]
    by_id = fetch_protocol.fetch(wanted, gone, 3, 4, 500, 1, 1000)
    assert by_id.count(ID.bytes) == 2
    by_name = fetch_protocol.fetch(wanted, gone, 3, 4, 500, 1, 1000, names={topic: "orders"})
    assert by_name == by_id.replace(ID.bytes, spelled)
    part = struct.pack(">ihqqq", 0, 0, 9, 9, 0) + b"\0" + struct.pack(">i", -1) + b"\x01\0"
    answer = b"\0" + struct.pack(">ihi", 0, 0, 11) + b"\x02" + spelled + b"\x02" + part + b"\0\0"
    assert list(fetch_protocol.fetched(Answer(answer), {"orders": topic}).parts) == [(topic, 0)]
    assert list(fetch_protocol.fetched(Answer(answer), {"other": topic}).parts) == [("orders", 0)]


def test_what_was_fetched_comes_with_what_was_aborted_and_where_logs_parted() -> None:
    diverging = b"\x01\0\x0d" + struct.pack(">iq", 2, 77) + b"\0"
    part = (
        struct.pack(">ihqqq", 4, 0, 100, 90, 0)
        + b"\x02"
        + struct.pack(">qq", 9, 50)
        + b"\0"
        + struct.pack(">i", -1)
        + b"\x04abc"
    )
    answer = (
        b"\0" + struct.pack(">ihi", 0, 0, 11) + b"\x02" + ID.bytes + b"\x03" + part + b"\0" + part + diverging
    )
    found = fetch_protocol.fetched(Answer(answer + b"\0\0"))
    assert (found.error, found.session) == (0, 11)
    last = found.parts[str(ID), 4]
    assert (last.high_watermark, last.last_stable_offset, last.diverges) == (100, 90, 77)
    assert last.aborted == [Aborted(9, 50)]
    assert bytes(last.records) == b"abc"


def test_topic_ids_are_those_that_kafkas_tools_print() -> None:
    assert fetch_protocol.canonical("ASNFZ4mrze8BI0VniavN7w") == str(ID)
    assert fetch_protocol.canonical("-_______________-_-_-w").count("-") == 4, "both letters of its alphabet"


@pytest.mark.parametrize("read", READERS)
@given(st.binary(max_size=200))
def test_no_answer_raises_anything_else(read: Callable[[Answer], Any], data: bytes) -> None:
    with contextlib.suppress(MalformedAnswer):
        read(Answer(data))
