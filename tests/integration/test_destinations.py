"""Destination topics: made like their source, grown with it, refused by name where they would alter or delete
what is copied."""

from __future__ import annotations

import random
import threading
import time

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from common.kafka.client import topics as production_topics
from common.ports import Deadline
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, delete_records, delete_topic, produce, read_all
from tests.support.harness import Link, assert_copied, assert_mapped, contents, eventually
from verbatim.main import cli

FOREIGN = b"from another writer"


def records(begin: int, end: int, partition: int = 0) -> list[Record]:
    return [Record(b"%d" % i, b"k%d" % i, partition) for i in range(begin, end)]


def config(bootstrap: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entries = admin.describe_configs([resource])[resource].result(30)
    return {name: entry.value for name, entry in entries.items()}


def alter(bootstrap: str, topic: str, **changes: str) -> None:
    wanted = {key.replace("_", "."): value for key, value in changes.items()}
    production_topics.alter(AdminClient({"bootstrap.servers": bootstrap}), topic, wanted, Deadline(30))


def link_of(source: Kafka, target: Kafka, names: Names, **variables: str) -> Link:
    topics = rf"{names.link}\.t\..*"
    return Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topics, **variables)


def test_a_destination_is_made_like_its_source_and_refused_by_name_where_it_would_not_hold_it(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: a missing destination gets the source's partitions and configuration, one with fewer
    partitions is grown with consent; one that would stamp, refuse, compact or delete records is refused, that
    topic only, by name, with exit code 3 in a bounded run; mended while the link runs, it gets all that it
    missed."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    made, grown = names.topic("made"), names.topic("grown")
    like = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "max.message.bytes": "2000000",
        "segment.bytes": "10485760",
    }
    create_topic(at, made, 4, like)
    create_topic(at, grown, 3)
    create_topic(to, grown, 1)
    bad = {
        "message.timestamp.type": ("LogAppendTime", "CreateTime"),
        "max.message.bytes": ("1000", "1048588"),
        "cleanup.policy": ("compact", "delete"),
        "retention.ms": ("3600000", "-1"),
        "message.timestamp.before.max.ms": ("3600000", str(2**63 - 1)),
    }
    refused = {key: names.topic(f"refused{i}") for i, key in enumerate(bad)}
    for key, topic in refused.items():
        create_topic(at, topic)
        create_topic(to, topic, 1, {"retention.ms": "-1", key: bad[key][0]})
        produce(at, topic, records(0, 5))
    for topic, partitions in ((made, 4), (grown, 3)):
        produce(at, topic, [r for p in range(partitions) for r in records(0, 5, p)])
    link = link_of(source, target, names)
    assert link.replicate() == 0
    link.accept_destination(grown)
    capsys.readouterr()
    assert link.deduplicate() == 3
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == len(bad)
    for (key, topic), line in zip(refused.items(), sorted(lines), strict=True):
        assert line.startswith(f"error: {topic}-0 halted: destination topic {topic} has {key}={bad[key][0]}")
        assert link.arrived(topic) == [0]
    for topic in (made, grown):
        assert_copied(link, topic)
    assert like.items() <= config(to, made).items()
    there = {topic: read_all(at, topic) for topic in refused.values()}
    for topic in refused.values():
        # From now on staging has the only copy of what was skipped.
        delete_records(at, topic, {0: 5})
        produce(at, topic, records(5, 8))
        there[topic][0] += read_all(at, topic)[0]
    with link.running():
        for key, topic in refused.items():
            alter(to, topic, **{key.replace(".", "_"): bad[key][1]})
        eventually(lambda: all(link.arrived(t) == [8] for t in refused.values()), "what was skipped")
        eventually(lambda: link.halted() == {}, "the halts to end")
    for topic in refused.values():
        assert_copied(link, topic, there=there[topic])


def test_somebody_elses_topic_is_written_only_with_consent(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: a destination that holds records of somebody else's, or has too few partitions, is left alone,
    with the command that lets it in; an empty one is used as it is. With that command all comes, behind what
    was there; and the link's own destinations never need it, also where its source topic is made again."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    held, narrow, empty = names.topic("held"), names.topic("narrow"), names.topic("empty")
    for topic, partitions in ((held, 1), (narrow, 2), (empty, 1)):
        create_topic(at, topic, partitions)
        create_topic(to, topic, 1, {"retention.ms": "-1"})
        produce(at, topic, [r for p in range(partitions) for r in records(0, 5, p)])
    produce(to, held, [Record(FOREIGN)])
    link = link_of(source, target, names)
    assert link.replicate() == 0
    capsys.readouterr()
    assert link.deduplicate() == 3
    told = capsys.readouterr().err
    assert (
        f"{held}-0 halted: destination topic {held}: it holds records that this link has not written" in told
    )
    assert f"{narrow}-1 halted: destination topic {narrow}: it is there already, with 1 partitions" in told
    for topic in (held, narrow):
        assert f"verbatim accept-destination {topic}" in told
    assert (link.arrived(held), link.arrived(narrow), link.arrived(empty)) == ([1], [0], [5])
    command = cli.commands["accept-destination"]
    refused = CliRunner().invoke(command, ["nowhere"], env=link.variables)
    assert "nowhere is no destination of this link" in str(refused.exception)
    assert CliRunner().invoke(command, [held, narrow], env=link.variables).exit_code == 0
    assert link.copy() == (0, 0)
    assert [r.value for r in read_all(to, held)[0]] == [FOREIGN, *(r.value for r in records(0, 5))]
    assert_copied(link, narrow)
    delete_topic(at, held)
    create_topic(at, held, 1)
    produce(at, held, records(5, 6))
    assert link.copy() == (0, 0)
    assert link.arrived(held) == [7]


def test_a_record_that_the_destination_is_too_small_for_halts_and_comes_when_there_is_room(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: a record that fits the source only through a better compression halts its partition by name,
    after all that came before it and without holding up others; with a larger max.message.bytes it is
    delivered, and what came after it."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    tight, other = names.topic("tight"), names.topic("other")
    create_topic(at, tight, 1, {"max.message.bytes": "100000"})
    create_topic(at, other, 2)
    # Hexadecimal digits at random: half their size by Huffman coding, which lz4 has not.
    digits = random.Random(7).randbytes(75_000).hex().encode()
    tightly: dict[str, str | int] = {"compression.type": "gzip"}
    produce(
        at, tight, [*records(0, 5), Record(digits), *records(5, 8)], config=tightly | {"batch.size": 90_000}
    )
    produce(at, other, records(0, 5) + records(0, 5, 1))
    # By itself the batch would go as it is, and fit.
    link = link_of(source, target, names, KAFKA_CLUSTERS_DESTINATION_PRODUCER_COMPRESSION_TYPE="lz4")
    assert link.replicate() == 0
    capsys.readouterr()
    assert link.deduplicate() == 3
    assert f"error: {tight}-0 halted: record 5 of {tight}-0 is larger" in capsys.readouterr().err
    assert link.arrived(tight) == [5]
    assert_copied(link, other)
    assert link.halted() == {(tight, 0): "destination-too-small"}
    alter(to, tight, max_message_bytes="1000000")
    produce(at, tight, records(8, 9))
    assert link.copy() == (0, 0)
    assert_copied(link, tight)
    assert link.halted() == {}


def test_another_writer_at_the_destination_does_not_spoil_the_mappings(
    source: Kafka, target: Kafka, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: records that someone else writes into a destination come between copied ones; these still all
    arrive once and in order, and each is mapped to the offset that it has."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic = names.topic()
    create_topic(at, topic)
    create_topic(to, topic, 1, {"retention.ms": "-1"})
    stop = threading.Event()

    def interleave() -> None:
        producer = Producer({"bootstrap.servers": to, "linger.ms": 0})
        while not stop.is_set():
            producer.produce(topic, FOREIGN, partition=0)
            producer.flush(5)
            time.sleep(0.002)

    def met() -> bool:
        return any("another writer's records came between" in line for line in caplog.messages)

    other = threading.Thread(target=interleave, daemon=True)
    link = link_of(source, target, names)
    made = 0
    after = 3
    try:
        with link.running():
            # Who was there before would need consent.
            eventually(lambda: topic in link.control().settled, "the destination to be let in", 60)
            other.start()
            while after and made < 500_000:
                produce(at, topic, records(made, made + 10_000))
                made += 10_000
                after -= met()

            def reached() -> bool:
                return any(m.next == made for m in link.mappings(topic).get(0, [])[-1:])

            eventually(reached, "all records", 60)
    finally:
        stop.set()
        other.join()
    assert met(), "the other writer's records were never among those of one transaction"
    there, here = read_all(at, topic), read_all(to, topic)
    copied = [r for r in here[0] if r.value != FOREIGN]
    assert [contents(r) for r in copied] == [contents(r) for r in there[0]]
    assert copied[-1].offset - copied[0].offset > len(copied)
    assert_mapped(link, topic, there, here)


def test_a_record_without_a_key_halts_where_the_destination_has_become_compacted_and_comes_when_it_is_not(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: a staged record without a key, which a compacted destination refuses, halts its partition by
    name, after all that came before it and without holding up others; when the topic is compacted no longer,
    it is delivered, and what came after it."""
    at = source.bootstrap_servers
    once, other = names.topic("once-plain"), names.topic("other")
    create_topic(at, once)
    create_topic(at, other)
    produce(at, once, [*records(0, 3), Record(b"no key"), *records(4, 6)])
    produce(at, other, records(0, 3))
    there = read_all(at, once)
    link = link_of(source, target, names)
    assert link.replicate() == 0
    alter(at, once, cleanup_policy="compact", min_compaction_lag_ms="3600000")
    assert link.replicate() == 0
    capsys.readouterr()
    assert link.deduplicate() == 3
    assert f"error: {once}-0 halted: record 3 of {once}-0 has no key" in capsys.readouterr().err
    assert link.halted() == {(once, 0): "key-missing"}
    assert link.arrived(once) == [3]
    assert_copied(link, other)
    alter(at, once, cleanup_policy="delete")
    assert link.copy() == (0, 0)
    assert_copied(link, once, there=there)
    assert link.halted() == {}


@pytest.mark.whole
def test_many_destinations_are_made_together_and_what_is_wrong_with_one_is_told_of_that_one(
    source: Kafka, target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: they are made by few requests, not by one each; two that would meet are not let in both; none
    is held up by one that can't be."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topics = [names.topic(f"t{i:02}") for i in range(12)]
    for topic in topics:
        create_topic(at, topic, 2)
        produce(at, topic, records(0, 3))
    taken, short, *sound = topics
    create_topic(to, taken, 2)
    produce(to, taken, [Record(FOREIGN)])
    create_topic(to, short, 1)
    meeting = f"{sound[1]}.a"
    create_topic(at, meeting, 2)
    link = link_of(source, target, names, KAFKA_CLUSTERS_DESTINATION_TOPIC_MAP=f"{meeting}={sound[1]}")
    assert link.replicate() == 0
    asked: list[int] = []
    create = AdminClient.create_topics

    def counting(self: AdminClient, new: list[NewTopic], **how: object) -> object:
        asked.append(len(new))
        return create(self, new, **how)

    monkeypatch.setattr(AdminClient, "create_topics", counting)
    assert link.deduplicate() == 3
    assert sum(asked) == len(sound) and len(asked) <= 4, "where one can't be, half of them at a time"
    refused = {d.topic: d.refused for d in link.control().destinations.values() if d.refused}
    assert refused.keys() == {taken, short, sound[1]}
    assert "records that this link has not written" in (refused[taken] or "")
    assert "with 1 partitions" in (refused[short] or "")
    assert "is copied there already" in (refused[sound[1]] or "")
    for topic in sound[2:]:
        assert link.arrived(topic)[0] == 3
