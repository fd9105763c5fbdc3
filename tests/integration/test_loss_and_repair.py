"""What is missing is sent again, what is there twice is dropped, and what is gone for good halts by name
until it is accepted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from common.kafka.client import topics as production_topics
from common.kafka.wire.records import encode_rows
from common.link import positions
from common.link.frame import Frame, decode_headers, encode_headers, pack
from common.link.positions import Position
from common.ports import Deadline
from tests.conftest import Kafka, Names
from tests.support.brokers import (
    Record,
    Seen,
    create_topic,
    delete_records,
    end_offsets,
    produce,
    read_all,
    start_offsets,
    topic_id,
)
from tests.support.harness import Link, assert_copied, eventually


def records(begin: int, end: int, partition: int = 0) -> list[Record]:
    return [Record(b"%d" % i, partition=partition) for i in range(begin, end)]


def without(there: list[list[Seen]], partition: int, begin: int, end: int) -> list[list[Seen]]:
    """Records there without those of a partition whose offsets lie in [begin, end)."""
    return [[r for r in p if i != partition or not begin <= r.offset < end] for i, p in enumerate(there)]


def link_of(source: Kafka, target: Kafka, names: Names, staging_partitions: int = 1) -> Link:
    """A link of all topics of a test; with one staging partition, a hole in it is one of every topic."""
    return Link(
        source.bootstrap_servers,
        target.bootstrap_servers,
        names.link,
        rf"{names.link}\.t\..*",
        STAGING_PARTITIONS=str(staging_partitions),
    )


def remember(link: Link, topic: str, position: int) -> None:
    """Write a position as the replicator would have, had it died before it could write the newer one."""
    key, value = positions.encode(topic, (topic_id(link.source, topic), 0), Position(position, None, -1))
    produce(link.target, link.settings.positions_topic, [Record(value, key)])


def allow(bootstrap: str, topic: str, max_message_bytes: int) -> None:
    """Let a topic take batches of that size."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    production_topics.alter(admin, topic, {"max.message.bytes": str(max_message_bytes)}, Deadline(30))


def empty(bootstrap: str, topic: str) -> None:
    """Delete all records of a compacted topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for policy in ("delete", "compact"):
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)
        if policy == "delete":
            eventually(lambda: _deleted(bootstrap, topic), "the records to be deleted", 10)


def _deleted(bootstrap: str, topic: str) -> bool:
    delete_records(bootstrap, topic, {0: -1})
    return start_offsets(bootstrap, topic) == end_offsets(bootstrap, topic, "read_uncommitted")


def halting(link: Link, capsys: pytest.CaptureFixture[str], run: Callable[[], int | None]) -> list[str]:
    """The lines with which a bounded run that must end with 3 names what is halted."""
    capsys.readouterr()
    assert run() == 3
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]


def test_retention_that_overtakes_the_replicator_halts_only_where_something_is_lost(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: records gone before they were read halt their partition by name; the other partitions go on;
    an accepted loss leaves out exactly the missing range. A position that is merely behind what was delivered
    is no loss and halts nothing."""
    at = source.bootstrap_servers
    overtaken, behind = names.topic("overtaken"), names.topic("behind")
    create_topic(at, overtaken, 2)
    create_topic(at, behind)
    produce(at, overtaken, records(0, 5) + records(0, 5, 1))
    produce(at, behind, records(0, 5))
    link = link_of(source, target, names, 2)
    assert link.copy() == (0, 0)
    produce(at, overtaken, records(5, 10) + records(5, 10, 1))
    there = {topic: read_all(at, topic) for topic in (overtaken, behind)}
    delete_records(at, overtaken, {0: 8})
    remember(link, behind, 2)
    delete_records(at, behind, {0: 4})
    # Both positions are out of range. Whether anything is lost only the deduplicator can tell.
    # Nor are its end and its beginning anywhere else to be read, once the source has moved on.
    asking = halting(link, capsys, link.replicate)
    assert len(asking) == 2
    assert f"{behind}-0 halted: the source no longer has position 2: its log is [4, 5) now" in asking[0]
    assert f"{overtaken}-0 halted: the source no longer has position 5: its log is [8, 10) now" in asking[1]
    assert link.deduplicate() == 0
    lines = halting(link, capsys, link.replicate)
    assert len(lines) == 1
    assert (
        f"{overtaken}-0 halted: records [5, 8) of {overtaken}-0 are gone from the source before they reached the destination; its log is [8, 10) now"
        in lines[0]
    )
    assert link.deduplicate() == 0
    assert link.arrived(overtaken) == [5, 10]
    assert_copied(link, behind, there=there[behind])
    assert link.halted() == {(overtaken, 0): "source-lost"}
    link.accept_loss(overtaken, 0, 5, 8)
    produce(at, behind, records(5, 7))
    assert link.copy() == (0, 0)
    assert_copied(link, overtaken, there=without(there[overtaken], 0, 5, 8))
    assert sum(m.lost for m in link.mappings(overtaken)[0]) == 3
    assert link.arrived(behind) == [7]
    assert link.halted() == {}


def test_a_running_link_halts_by_name_and_goes_on_once_the_loss_is_accepted(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: in normal running too: the position is compared with what was delivered, what is lost halts,
    the others go on, and the operator's word is enough to go on without a restart."""
    at = source.bootstrap_servers
    overtaken, behind = names.topic("overtaken"), names.topic("behind")
    for topic in (overtaken, behind):
        create_topic(at, topic)
        produce(at, topic, records(0, 5))
    link = link_of(source, target, names)
    assert link.copy() == (0, 0)
    produce(at, overtaken, records(5, 10))
    there = {topic: read_all(at, topic) for topic in (overtaken, behind)}
    delete_records(at, overtaken, {0: 8})
    remember(link, behind, 0)
    delete_records(at, behind, {0: 5})
    with link.running() as (replicator, _):
        eventually(lambda: link.halted() == {(overtaken, 0): "source-lost"}, "the halt")
        eventually(
            lambda: replicator.application.health.halted == {f"{overtaken}-0": "source-lost"},
            "the health page",
        )
        produce(at, behind, records(5, 8))
        eventually(lambda: link.arrived(behind) == [8], "the other topic")
        assert link.arrived(overtaken) == [5]
        link.accept_loss(overtaken, 0, 5, 8)
        eventually(lambda: link.arrived(overtaken) == [7], "the records behind the loss")
        eventually(lambda: link.halted() == {}, "the halt to end")
    assert_copied(link, overtaken, there=without(there[overtaken], 0, 5, 8))
    assert (behind, 0) not in {(h.topic, 0) for h in link.control().halts.values()}


def test_frames_deleted_or_damaged_in_staging_are_sent_again(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: frames that vanish from staging before they were delivered, the first of a partition too, and
    frames that fail their checksum or are none at all cost nothing but a repetition: everything arrives once,
    in order."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    old, new, damaged = names.topic("old"), names.topic("new"), names.topic("damaged")
    link = link_of(source, target, names)
    staging = link.settings.staging_topic
    for topic in (old, damaged):
        create_topic(at, topic)
        produce(at, topic, records(0, 5))
    assert link.copy() == (0, 0)
    produce(at, old, records(5, 10))
    create_topic(at, new)
    produce(at, new, records(0, 5))
    assert link.replicate() == 0
    delete_records(to, staging, {0: -1})
    produce(to, staging, _damaged_frames(link, damaged))
    for topic, begin in ((old, 10), (new, 5), (damaged, 5)):
        produce(at, topic, records(begin, begin + 5))
    with link.running():
        eventually(
            lambda: [link.arrived(t) for t in (old, new, damaged)] == [[15], [10], [10]], "the records"
        )
        eventually(lambda: not link.control().holds, "the holes to close")
    for topic in (old, new, damaged):
        assert_copied(link, topic)
    assert link.halted() == {}


def _damaged_frames(link: Link, topic: str) -> list[Record]:
    """What else may lie in staging: the next frame damaged in each way, and what is no frame of this link."""
    identity = link.control().identity
    assert identity is not None
    frame = Frame(identity.source_cluster, topic, topic_id(link.source, topic), 0, 5, 7, 2, "tests")
    value = pack(encode_rows([5, 6], [1, 2], [1, 1], [None, None], [b"wrong", b"wrong"], None)).to_pybytes()
    good = encode_headers(frame, value)
    return [
        Record(b"garbage"),
        Record(None, headers=[("v", b"1")]),
        Record(value, headers=[("v", b"2"), *good[1:]]),
        Record(value[:-1] + b"\xff", headers=good),
        Record(value[:100], headers=encode_headers(frame, value[:100])),
        Record(None, headers=good),
        Record(value, headers=encode_headers(replace(frame, count=1), value)),
        Record(value, headers=encode_headers(replace(frame, cluster="another"), value)),
        Record(value, headers=[*good, ("crc", b"0")]),
        Record(value, headers=[(n, b"\xff\xfe" if n == "topic" else v) for n, v in good]),
    ]


@pytest.mark.whole
def test_what_is_remembered_may_be_lost(source: Kafka, target: Kafka, names: Names) -> None:
    """Promise: frames repeated by a writer that was thought dead, origin frames too, positions that are older
    or gone, and a group whose offsets are deleted or moved back below what is left of staging lead to
    repetition at most, and all repeated is dropped."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic, other = names.topic("a"), names.topic("b")
    for name in (topic, other):
        create_topic(at, name)
        produce(at, name, records(0, 5))
    link = link_of(source, target, names)
    staging, group = link.settings.staging_topic, link.settings.deduplicator_group
    assert link.copy() == (0, 0)

    # A zombie repeats all its frames, behind newer ones.
    produce(at, topic, records(5, 10))
    assert link.replicate() == 0
    frames = read_all(to, staging)[0]
    produce(to, staging, [Record(f.value, f.key, headers=f.headers) for f in frames])
    remember(link, other, 3)
    produce(at, other, records(5, 10))
    assert link.copy() == (0, 0)
    repeated = [decode_headers(f.headers)[0] for f in read_all(to, staging)[0][2 * len(frames) :]]
    assert min(f.start for f in repeated if f.topic == other) == 3
    for name in (topic, other):
        assert_copied(link, name)

    # Positions are gone, and so are the group's offsets.
    empty(to, link.settings.positions_topic)
    admin = AdminClient({"bootstrap.servers": to})
    admin.delete_consumer_groups([group])[group].result(30)
    produce(at, topic, records(10, 12))
    assert link.copy() == (0, 0)
    for name in (topic, other):
        assert_copied(link, name)

    # Staging is trimmed, and the group's offset is older.
    delete_records(to, staging, {0: -1})
    consumer = Consumer({"bootstrap.servers": to, "group.id": group})
    consumer.commit(offsets=[TopicPartition(staging, 0, 1)], asynchronous=False)
    consumer.close()
    produce(at, topic, records(12, 15))
    assert link.copy() == (0, 0)
    for name in (topic, other):
        assert_copied(link, name)
    assert link.halted() == {}


@pytest.mark.whole
def test_frames_that_were_skipped_are_kept_and_delivered_once_the_loss_before_them_is_accepted(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: where frames are missing from staging and the source has lost them too, later frames may be
    the only copy of their
    records: they are held, and delivered when the operator accepts the loss of what came before, and only of
    that."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic, other = names.topic("holed"), names.topic("other")
    for name in (topic, other):
        create_topic(at, name)
        produce(at, name, records(0, 5))
    link = link_of(source, target, names)
    staging = link.settings.staging_topic
    assert link.copy() == (0, 0)
    produce(at, topic, records(5, 10))
    assert link.replicate() == 0
    delete_records(to, staging, {0: -1})
    produce(at, topic, records(10, 15))
    assert link.replicate() == 0
    there = read_all(at, topic)
    delete_records(at, topic, {0: 15})
    # [5, 10) is nowhere any more, [10, 15) only in staging.
    assert len(halting(link, capsys, link.deduplicate)) == 1
    # Whoever asked for it may be long gone: it is lost only if that is still what is wanted.
    assert len(halting(link, capsys, link.replicate)) == 1
    assert len(halting(link, capsys, link.deduplicate)) == 1
    lines = halting(link, capsys, link.replicate)
    assert len(lines) == 1 and "records [5, 15)" in lines[0]
    held = link.control().holds[(topic_id(at, topic), 0)]
    # The other topic's frame may stand before it.
    first = next(f.offset for f in read_all(to, staging)[0] if decode_headers(f.headers)[0].topic == topic)
    assert held.held == (0, first) and held.held_start == 10
    produce(at, other, records(5, 8))
    produce(at, topic, records(15, 18))
    there[0] += read_all(at, topic)[0]
    link.accept_loss(topic, 0, 5, 10)
    with link.running():
        eventually(lambda: link.arrived(other) == [8], "the other topic")
        eventually(lambda: link.arrived(topic) == [13], "the records that were held, and those after them")
        eventually(lambda: not link.control().holds, "the hole to close")
        eventually(lambda: link.halted() == {}, "the halt to end")
    assert_copied(link, topic, there=without(there, 0, 5, 10))
    assert_copied(link, other)


def test_staging_wiped_while_the_source_is_idle_is_noticed_and_repaired(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: what is missing from staging is noticed even when no record ever comes again."""
    topic = names.topic()
    create_topic(source.bootstrap_servers, topic, 2, {"retention.ms": "-1"})
    produce(source.bootstrap_servers, topic, [Record(partition=i % 2, value=b"%d" % i) for i in range(20)])
    link = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic)
    assert link.copy() == (0, 0)
    produce(
        source.bootstrap_servers, topic, [Record(partition=i % 2, value=b"late %d" % i) for i in range(20)]
    )
    assert link.replicate() == 0
    staging = f"{names.link}.staging"
    delete_records(target.bootstrap_servers, staging, end_offsets(target.bootstrap_servers, staging))
    assert link.replicate() == 0
    assert link.deduplicate() == 3  # both partitions wait for what they have asked for
    assert link.copy() == (0, 0)
    assert_copied(link, topic)


def test_a_frame_that_staging_refuses_halts_its_partition_and_comes_when_there_is_room(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: a record whose frame is too large for a staging topic made by hand halts its partition by
    name, after all that came before it and without holding up others; with a larger max.message.bytes it is
    copied, and what came after it."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    large, other = names.topic("large"), names.topic("other")
    create_topic(at, large, 1, {"max.message.bytes": "2400000"})
    create_topic(at, other)
    link = link_of(source, target, names)
    # By itself the batch would go as it is, and fit.
    link.variables["KAFKA_CLUSTERS_DESTINATION_PRODUCER_COMPRESSION_TYPE"] = "lz4"
    staging = link.settings.staging_topic
    wide = {
        "message.timestamp.before.max.ms": str(2**63 - 1),
        "message.timestamp.after.max.ms": str(2**63 - 1),
    }
    create_topic(to, staging, 1, {"retention.ms": "-1", "max.message.bytes": str(1 << 20), **wide})
    # Hexadecimal digits at random: half their size by gzip, the source's compression, and nothing less by
    # lz4, staging's.
    digits = random.Random(7).randbytes(2_000_000).hex().encode()
    tightly: dict[str, str | int] = {"compression.type": "gzip", "message.max.bytes": 8_000_000}
    produce(at, large, [*records(0, 5), Record(digits), *records(5, 8)], config=tightly)
    produce(at, other, records(0, 5))
    lines = halting(link, capsys, link.replicate)
    assert len(lines) == 1 and lines[0].startswith(
        f"error: {large}-0 halted: the staging topic refuses the frame"
    )
    assert link.deduplicate() == 0
    assert link.arrived(large) == [5]
    assert_copied(link, other)
    assert link.halted() == {(large, 0): "staging-refused"}
    allow(to, staging, 8 << 20)
    produce(at, large, records(8, 9))
    # The destination was made like the source, and is too small for the record without gzip.
    allow(to, large, 8 << 20)
    assert link.copy() == (0, 0)
    assert_copied(link, large)
    assert link.halted() == {}
