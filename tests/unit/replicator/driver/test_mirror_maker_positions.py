"""MirrorMaker 2's positions: what its records mean, whose they are, and what leaves a doubt."""

from __future__ import annotations

import struct

import pytest

from common.config.start_offsets import MirrorMaker
from common.errors import LinkRefused
from replicator.driver.mirror_maker_positions import (
    Content,
    Evidence,
    Flow,
    Positions,
    chosen,
    doubt,
    refusal,
    running,
    take,
)

US = Flow("MirrorSourceConnector", "us")
ASSIGNED = (
    b"\x00\x02\x00\x00\x00/us->target-a011c46b-cf82-428e-ae45-c1b758ddb015\x00\x17http://127.0.0.1:19137/"
    b"\x00\x00\x00\x00\x00\x00\x00\x11\x00\x00\x00\x02\x00\x18MirrorHeartbeatConnector\x00\x00\x00\x01\x00\x00"
    b"\x00\x00\x00\x15MirrorSourceConnector\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
)
"""What a worker of a MirrorMaker 2 4.3.1 had been given."""


def key(topic: str = "orders", partition: object = 0, flow: Flow = US) -> bytes:
    return f'["{flow.connector}",{{"cluster":"{flow.alias}","partition":{partition},"topic":"{topic}"}}]'.encode()


def test_the_last_record_of_a_partition_counts_and_one_without_an_offset_deletes_it() -> None:
    found: Positions = {}
    for at, value in (
        (key(), b'{"offset":7}'),
        (key(partition=1), b'{"offset":0}'),
        (key(), b'{"offset":9}'),
        (key(partition=2), b'{"offset":3}'),
        (key(partition=3), b'{"offset":3}'),
        (key(partition=4), b'{"offset":3}'),
    ):
        assert take(found, at, value) == US
    for partition, nothing in ((2, None), (3, b'{"offset":null}'), (4, b"null")):
        assert take(found, key(partition=partition), nothing) == US
    assert found == {US: {("orders", 0): 9, ("orders", 1): 0}}


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (None, None),
        (b"no json", b'{"offset":1}'),
        (
            b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"us","targetClusterAlias":"x"}]',
            b'{"offset":0}',
        ),
        (b'["MirrorCheckpointConnector",{"group":"g","partition":0,"topic":"t"}]', b'{"offset":0}'),
        (b'["x",{"cluster":"us","partition":"0","topic":"t"}]', b'{"offset":0}'),
        (b'["x",null]', b'{"offset":0}'),
        (b'["x"]', b'{"offset":0}'),
        (key(), b"7"),
        (key(), b"{"),
    ],
)
def test_what_is_no_position_is_left_out(at: bytes | None, value: bytes | None) -> None:
    found: Positions = {}
    assert take(found, at, value) is None and found == {}


def test_the_flow_is_the_one_that_is_named_or_the_only_one_that_has_copied() -> None:
    old, eu, elsewhere = Flow("old", "us"), Flow("MirrorSourceConnector", "eu"), Flow("more", "us")
    found: Positions = {
        US: {("orders", 0): 1},
        old: {("orders", 0): 2},
        eu: {("others", 0): 3, ("not-copied", 0): 4},
        elsewhere: {("paid", 0): 5},
    }
    wanted = {("orders", 0), ("others", 0), ("paid", 0)}
    assert chosen(found, MirrorMaker("o", "us", US.connector), wanted) == {US: {("orders", 0): 1}}
    assert chosen(found, MirrorMaker("o", "eu"), wanted) == {eu: {("others", 0): 3}}
    assert chosen(found, MirrorMaker("o"), {("paid", 0)}) == {elsewhere: {("paid", 0): 5}}
    del found[eu]
    with pytest.raises(LinkRefused, match="of orders-0 from us:MirrorSourceConnector, us:old: name one"):
        chosen(found, MirrorMaker("o"), wanted)
    del found[old]
    assert chosen(found, MirrorMaker("o"), wanted) == found
    with pytest.raises(LinkRefused, match="it has us:MirrorSourceConnector .1 partitions., us:more"):
        chosen(found, MirrorMaker("o", "ap"), wanted)
    with pytest.raises(LinkRefused, match="it has none at all"):
        chosen({}, MirrorMaker("o"), wanted)


RECORD = Content(b"k", b"v", [("h", None)], 5)


def evidence(**other: object) -> Evidence:
    found: dict[str, object] = {
        "position": 7,
        "source": (0, 10, 10),
        "destination": (0, 12, 12),
        "record": RECORD,
        "last": (11, RECORD),
    }
    return Evidence(**{**found, **other})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({}, None),
        ({"position": 9}, None),
        ({"source": (8, 10, 10)}, None),
        (
            {"source": (9, 10, 10)},
            "1 offsets are gone from the source that MirrorMaker 2 has not copied: [8, 9)",
        ),
        ({"source": (0, 7, 7)}, "the source's log ends at 7"),
        ({"source": (0, 7, 10)}, "from a transaction that is open at the source, from 7 on"),
        ({"source": (0, 8, 10)}, None),
        ({"destination": (0, 11, 12)}, "a transaction is open in copy-0"),
        ({"destination": (0, 0, 0), "last": None}, "nothing was ever written to copy-0"),
        ({"record": None}, "no record to compare at the source's offset 7"),
        ({"last": None}, "no record to compare at copy-0"),
        ({"record": None, "position": 9}, None),
        ({"last": None, "position": 9}, None),
        (
            {"last": (11, RECORD._replace(value=b"w"))},
            "the last record of copy-0, offset 11, is not the source's",
        ),
        ({"last": (11, RECORD._replace(time=6)), "position": 9}, "is not the source's at 9"),
        ({"last": (11, RECORD._replace(headers=[]))}, "is not the source's at 7"),
        ({"last": (11, RECORD._replace(key=None))}, "is not the source's at 7"),
        ({"last": (11, RECORD._replace(time=None))}, None),
        ({"position": None}, "copy-0 holds a record at offset 11, and MirrorMaker 2 has no position"),
        ({"position": None, "last": None}, None),
    ],
)
def test_only_a_copy_of_the_record_at_the_position_leaves_no_doubt(
    other: dict[str, object], why: str | None
) -> None:
    found = doubt(evidence(**other), "copy-0")
    assert found is None if why is None else why in (found or "")


def test_a_refusal_is_one_line_with_the_first_partitions() -> None:
    doubts = {("orders", p): f"why {p}" for p in range(5)}
    said = str(refusal(doubts))
    assert said.startswith(
        "START_OFFSETS: orders-0: why 0; orders-1: why 1; orders-2: why 2; and 2 more partitions."
    )


def test_a_worker_with_tasks_of_the_connector_shows_that_it_runs() -> None:
    assert running([US], "mm2-offsets.us.internal", [("other", b""), ("us-mm2", ASSIGNED)]) == (US, "us-mm2")
    assert running([US], "mm2-offsets.us.internal", [("eu-mm2", ASSIGNED)]) is None, "another flow's worker"
    assert running([US], "connect-offsets", [("connect", ASSIGNED)]) == (US, "connect")
    assert running([Flow("Mirror", "us"), Flow("Source", "us")], "connect-offsets", [("c", ASSIGNED)]) is None


def test_a_connector_without_tasks_is_stopped() -> None:
    name = struct.pack(">h", len(US.connector)) + US.connector.encode()
    only_itself = name + struct.pack(">ii", 1, -1)
    assert running([US], "connect-offsets", [("c", only_itself)]) is None
    assert running([US], "connect-offsets", [("c", name + struct.pack(">i", 0))]) is None
    assert running([US], "connect-offsets", [("c", only_itself + name + struct.pack(">iii", 2, -1, 3))])
    for cut in range(len(ASSIGNED)):
        running([US], "connect-offsets", [("c", ASSIGNED[:cut])])
