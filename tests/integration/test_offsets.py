"""Consumer groups on real brokers: a group that goes on at the target reads exactly the record that it would
have read next."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from common.app.link_view import status
from common.errors import GroupRefused, LinkRefused
from common.kafka.client import topics as common_topics
from common.link import identity
from common.ports import Deadline
from offsets import survey
from offsets.group_offsets import GroupKey, GroupOffset, decode
from offsets.groups import Groups
from offsets.main import command
from offsets.service import Service
from offsets.survey import Row
from tests.conftest import Kafka
from tests.support.brokers import (
    Record,
    Seen,
    create_topic,
    delete_records,
    delete_topic,
    end_offsets,
    produce,
    read_all,
    topics,
    wait_until,
)
from tests.support.harness import Link, eventually
from tests.support.metrics import sample

CALL_S = 10.0
NOT_READY = (
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
NO_SOURCE = {"KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


def _client(bootstrap: str, group: str, **more: Any) -> Consumer:
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 20,
    }
    return Consumer(config | more)


def commit_all(
    bootstrap: str, topic: str, offsets: Mapping[str, int], partition: int = 0, metadata: str = ""
) -> None:
    """Commit for groups that have no members: group -> offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = [
        admin.alter_consumer_group_offsets(
            [
                ConsumerGroupTopicPartitions(
                    group, [TopicPartition(topic, partition, offset, metadata=metadata)]
                )
            ]
        )[group]
        for group, offset in offsets.items()
    ]
    found = [p for future in asked for p in future.result(CALL_S).topic_partitions]
    if any(p.error is not None and p.error.code() in NOT_READY for p in found):
        # The first group of a cluster.
        time.sleep(0.2)
        commit_all(bootstrap, topic, offsets, partition, metadata)
        return
    assert all(p.error is None for p in found)


def commit(
    bootstrap: str, group: str, topic: str, offset: int, partition: int = 0, metadata: str = ""
) -> None:
    commit_all(bootstrap, topic, {group: offset}, partition, metadata)


def committed_all(
    bootstrap: str, topic: str, groups: list[str], partition: int = 0
) -> list[TopicPartition | None]:
    """What each group has committed."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = [
        admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group] for group in groups
    ]
    found = []
    for future in asked:
        at = [
            p for p in future.result(CALL_S).topic_partitions if (p.topic, p.partition) == (topic, partition)
        ]
        found.append(at[0] if at and at[0].offset >= 0 else None)
    return found


def committed(bootstrap: str, group: str, topic: str, partition: int = 0) -> int | None:
    (found,) = committed_all(bootstrap, topic, [group], partition)
    return None if found is None else found.offset


def group_offsets(link: Link) -> dict[GroupKey, GroupOffset]:
    return {key: value for key, value in history(link) if value is not None}


def history(link: Link) -> list[tuple[GroupKey, GroupOffset | None]]:
    records = read_all(link.target, link.settings.group_offsets_topic)[0]
    return [decode(r.key, r.value) for r in records]


def with_settings(link: Link, **variables: str) -> Link:
    changed = Link.__new__(Link)
    changed.source, changed.target = link.source, link.target
    changed.variables = {**link.variables, **variables}
    return changed


def once(link: Link, **variables: str) -> Service:
    """`offsets --once`."""
    service = Service(with_settings(link, **variables).settings, once=True)
    assert service._run() == 0
    return service


def run(link: Link, *args: str, **variables: str) -> str:
    """The command's output, as from a shell; whatever it raises."""
    found = CliRunner().invoke(command, list(args), env={**link.variables, **variables})
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == 0, found.output
    return found.stdout


@contextmanager
def in_step(link: Link, **variables: str) -> Iterator[Service]:
    """`offsets`, until the block ends."""
    service = Service(with_settings(link, OFFSETS_INTERVAL="100ms", **variables).settings, once=False)
    failures: list[BaseException] = []

    def main() -> None:
        try:
            service._run()
        except BaseException as error:  # noqa: BLE001 - for the test to raise
            failures.append(error)

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.stopping.set()
        thread.join(20)
        assert not thread.is_alive()
        if failures:
            raise failures[0]


@dataclass
class Copied:
    link: Link
    plain: str
    holes: str
    empty: str
    service: Service

    def group(self) -> str:
        """A name that nobody else uses, and no running `offsets` knows."""
        return f"g{secrets.token_hex(3)}"

    def served(self) -> str:
        """The same, of a group that the running `offsets` keeps in step."""
        return f"served-{secrets.token_hex(3)}"

    def settled(self, group: str, topic: str, source_offset: int, outcome: str, partition: int = 0) -> Row:
        """Wait for a round that has found the group at an offset, with an outcome; what it found."""
        key = GroupKey(group, topic, partition)

        def found() -> Row | None:
            for row in self.service.rows:
                if row.key == key and (row.record.source_offset, row.record.outcome) == (
                    source_offset,
                    outcome,
                ):
                    return row
            return None

        return eventually(found, f"{key} to be {outcome} at {source_offset}")  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def copied(source: Kafka, target: Kafka) -> Iterator[Copied]:
    """A link that has copied a plain topic, one with gaps of every kind, and one with an empty partition;
    `offsets` runs beside it."""
    at, to, name = source.bootstrap_servers, target.bootstrap_servers, f"t{secrets.token_hex(4)}"
    plain, holes, empty = (f"{name}.t.{what}" for what in ("plain", "holes", "empty"))
    create_topic(at, plain)
    produce(at, plain, [Record(b"%d" % i) for i in range(100)])
    create_topic(at, empty, 2)
    produce(at, empty, [Record(b"one", partition=1)])
    create_topic(
        at,
        holes,
        config={"cleanup.policy": "compact", "segment.ms": "200", "min.cleanable.dirty.ratio": "0.01"},
    )
    # Not compacted itself, or it would not stay what was copied.
    create_topic(to, holes, config={"cleanup.policy": "delete", "retention.ms": "-1"})
    for go in range(3):
        produce(at, holes, [Record(b"%d" % go, b"key%d" % k) for k in range(4)])
        produce(at, holes, [Record(b"aborted", b"a%d" % go)], "abort")
        produce(at, holes, [Record(b"in%d" % go, b"t%d" % go), Record(b"%d" % go, b"key9")], "commit")
    wait_until(lambda: _cleaned(at, holes), "the log to be compacted")
    admin = AdminClient({"bootstrap.servers": at})
    # No further: what is compared is what was copied.
    common_topics.alter(admin, holes, {"cleanup.policy": "delete", "retention.ms": "-1"}, Deadline(CALL_S))
    time.sleep(0.5)
    link = Link(at, to, name, rf"{name}\.t\..*", CONSUMER_GROUPS="nobody")
    assert link.copy() == (0, 0)
    produce(at, holes, [Record(b"later", b"key%d" % k) for k in range(3)], "commit")
    produce(at, holes, [Record(b"aborted", b"end")], "abort")
    assert link.copy() == (0, 0)
    with in_step(link, CONSUMER_GROUPS="served-.*") as service:
        yield Copied(link, plain, holes, empty, service)


def _cleaned(at: str, topic: str) -> bool:
    # A segment is rolled when something is appended to it after its time.
    produce(at, topic, [Record(b"roll", b"roll")])
    found = [r.offset for r in read_all(at, topic)[0]]
    return any(b - a > 3 for a, b in pairwise(found))


def test_every_offset_of_a_log_with_gaps_leads_to_the_same_next_record(copied: Copied) -> None:
    """For each source offset a group of its own: the record that it would read next is the same on both
    sides."""
    link, topic, prefix = copied.link, copied.holes, copied.served()
    at, to = link.source, link.target
    (there,), (here,) = read_all(at, topic), read_all(to, topic)
    end = end_offsets(at, topic)[0]
    assert end > len(there) + 5, "gaps are needed"
    groups = [f"{prefix}-{offset}" for offset in range(end + 1)]
    commit_all(at, topic, {group: offset for offset, group in enumerate(groups)}, metadata="a note")
    for offset, group in enumerate(groups):
        copied.settled(group, topic, offset, "in-step")
    records = {key: value for key, value in history(link) if value is not None and value.outcome == "written"}

    def following(records: list[Seen], offset: int) -> tuple[bytes | None, bytes | None] | None:
        return next(((r.key, r.value) for r in records if r.offset >= offset), None)

    for offset, found in enumerate(committed_all(to, topic, groups)):
        assert found is not None
        assert following(there, offset) == following(here, found.offset), offset
        record = records[GroupKey(groups[offset], topic, 0)]
        assert (record.offset, record.exact, record.outcome) == (found.offset, True, "written")
        # The client library, by which it was committed here and is read, writes a NUL behind it.
        assert record.metadata.removesuffix("\0") == found.metadata == "a note"


def test_an_empty_partition_has_its_offset_too(copied: Copied) -> None:
    group, link = copied.served(), copied.link
    commit(link.source, group, copied.empty, 0, partition=0)
    commit(link.source, group, copied.empty, 1, partition=1)
    assert copied.settled(group, copied.empty, 0, "in-step", 0).record.exact
    copied.settled(group, copied.empty, 1, "in-step", 1)
    assert committed(link.target, group, copied.empty, 0) == 0
    (_, (only,)) = read_all(link.target, copied.empty)
    assert committed(link.target, group, copied.empty, 1) == only.offset + 1


def test_a_group_that_goes_back_is_followed_unless_it_was_used_at_the_target(copied: Copied) -> None:
    """90 %, then 10 %; then its consumers commit at the target, and nothing moves it back."""
    group, link, topic = copied.served(), copied.link, copied.plain
    (here,) = read_all(link.target, topic)
    for offset in (90, 10):
        commit(link.source, group, topic, offset)
        copied.settled(group, topic, offset, "in-step")
        assert committed(link.target, group, topic) == here[offset].offset
    commit(link.target, group, topic, here[12].offset)
    commit(link.source, group, topic, 5)
    copied.settled(group, topic, 5, "target-ahead")
    assert committed(link.target, group, topic) == here[12].offset
    commit(link.source, group, topic, 40)
    copied.settled(group, topic, 40, "in-step")
    assert committed(link.target, group, topic) == here[40].offset
    # Put back at the target, while the source's group stands still.
    commit(link.target, group, topic, 3)
    copied.settled(group, topic, 40, "target-moved")
    assert committed(link.target, group, topic) == 3


def test_the_page_shows_what_the_control_topic_says(copied: Copied) -> None:
    """`offsets` may not read what lanes say: of the link it knows the rest."""
    with in_step(copied.link) as service:
        eventually(lambda: "offsets" in led(service), "the link on the page", 30)
        found = status(service.health, int(time.time() * 1000))
    assert copied.plain in {line["topic"] for line in found["topics"]}
    assert (found["partitions"], found["lag"], found["halts"]) == ([], None, [])
    assert led(service).keys() >= {"replicator", "deduplicator"}


def led(service: Service) -> dict[str, int]:
    """Application -> when its leader began to lead, as the page has it."""
    found = status(service.health, int(time.time() * 1000))
    return {line["application"]: line["led_ms"] for line in found.get("applications", ())}


def test_a_group_with_members_at_the_target_is_never_written(copied: Copied) -> None:
    group, link, topic = copied.served(), copied.link, copied.plain
    commit(link.target, group, topic, 2)
    member = _client(link.target, group)
    try:
        assigned = threading.Event()
        member.subscribe([topic], on_assign=lambda *_: assigned.set())
        wait_until(lambda: member.poll(0.1) is not None or assigned.is_set(), "the group to have a member")
        commit(link.source, group, topic, 30)
        copied.settled(group, topic, 30, "active")
        eventually(lambda: partitions_of(copied, group) == [0, 0, 1], "held back in metrics")
        assert copied.service.health.groups[group].in_step_ms is None
        record = group_offsets(link)[GroupKey(group, topic, 0)]
        (here,) = read_all(link.target, topic)
        assert (record.outcome, record.offset, record.exact) == ("active", here[30].offset, True)
        assert record.written is None
        with pytest.raises(GroupRefused, match=f"{group}.*ON_ACTIVE_GROUP"):
            run(link, "--dry-run", CONSUMER_GROUPS=group, ON_ACTIVE_GROUP="fail")
    finally:
        member.close()
    copied.settled(group, topic, 30, "in-step")
    assert committed(link.target, group, topic) == here[30].offset
    eventually(lambda: partitions_of(copied, group) == [1, 0, 0], "exact in metrics")
    health = copied.service.health
    assert sample(health, "verbatim_group_offsets_written_total", group=group) == 1
    since = time.time() - (sample(health, "verbatim_group_in_step_timestamp_seconds", group=group) or 0)
    assert 0 <= since < 30


def partitions_of(copied: Copied, group: str) -> list[float | None]:
    """Of a group, in metrics: those that are exact, behind and held back."""
    return [
        sample(copied.service.health, "verbatim_group_partitions", group=group, state=state)
        for state in ("exact", "behind", "held_back")
    ]


def test_kafka_itself_refuses_a_group_that_got_members_meanwhile(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a group and the write to it, a consumer may join: then the broker says no, and the
    record says so."""
    group, link, topic = copied.served(), copied.link, copied.plain
    refused: list[int] = []
    members, set_offsets = Groups.members, Groups.commit

    def blind(self: Groups, deadline: Deadline) -> dict[str, bool]:
        return dict.fromkeys(members(self, deadline), False)

    def commits(self: Groups, wanted: Any, deadline: Deadline) -> Any:
        answers = set_offsets(self, wanted, deadline)
        refused.extend(error.code() for (name, _), error in answers.items() if name == group)
        return answers

    member = _client(link.target, group, **{"auto.offset.reset": "earliest"})
    try:
        member.subscribe([topic])
        wait_until(lambda: member.poll(0.1) is not None, "the group to have a member")
        monkeypatch.setattr(Groups, "members", blind)
        monkeypatch.setattr(Groups, "commit", commits)
        commit(link.source, group, topic, 30)
        row = copied.settled(group, topic, 30, "active")
    finally:
        monkeypatch.undo()
        member.close()
    assert KafkaError.UNKNOWN_MEMBER_ID in refused
    assert row.record.written is None
    # Or it would be written in the middle of another test.
    copied.settled(group, topic, 30, "in-step")


def test_a_dry_run_and_describe_write_nothing(copied: Copied) -> None:
    group, link, topic = copied.group(), copied.link, copied.plain
    commit(link.source, group, topic, 30)

    def everything() -> tuple[set[str], dict[str, dict[int, int]]]:
        # Without what others write meanwhile: Kafka of members that left, and `offsets` of served groups.
        others = {link.settings.group_offsets_topic}
        names = {name for name in topics(link.target) if not name.startswith("__")}
        return names, {name: end_offsets(link.target, name) for name in names - others}

    before = everything()
    out = run(link, "--dry-run", CONSUMER_GROUPS=group)
    (here,) = read_all(link.target, topic)
    assert out == (
        f"group {group}, {topic}-0: none -> {here[30].offset} (exact; source offset 30 of {topic}): would be written\n"
    )
    lines = orjson.loads(run(link, "describe", "--output", "json", CONSUMER_GROUPS=group))
    assert everything() == before
    assert committed(link.target, group, topic) is None
    assert GroupKey(group, topic, 0) not in group_offsets(link)
    (line,) = lines
    assert {"source_offset": 30, "source_lag": 70, "offset": here[30].offset}.items() <= line.items()
    assert (line["target_offset"], line["target_lag"], line["outcome"]) == (None, None, "due")
    group = copied.served()
    commit(link.source, group, topic, 30)
    copied.settled(group, topic, 30, "in-step")
    (line,) = orjson.loads(run(link, "describe", "--output", "json", CONSUMER_GROUPS=group))
    assert (line["target_offset"], line["outcome"]) == (here[30].offset, "in-step")
    assert line["target_lag"] == end_offsets(link.target, topic, "read_uncommitted")[0] - here[30].offset
    heading, row = run(link, "describe", CONSUMER_GROUPS=group).splitlines()
    assert heading.split()[:3] == ["GROUP", "TOPIC", "PARTITION"]
    assert row.split()[:5] == [group, topic, "0", "30", "70"]


def test_fail_back_writes_to_the_source_only_what_is_ahead_there(copied: Copied) -> None:
    link, topic, (here,) = copied.link, copied.plain, read_all(copied.link.target, copied.plain)
    prefix = copied.group()
    new, behind, ahead = (f"{prefix}-{what}" for what in ("new", "behind", "ahead"))
    commit(link.source, behind, topic, 10)
    commit(link.source, ahead, topic, 80)
    for group in (new, behind, ahead):
        commit(link.target, group, topic, here[60].offset, metadata="there")
    out = run(link, "--reverse", "--dry-run", CONSUMER_GROUPS=f"{prefix}-.*")
    assert "would be written" in out
    assert committed(link.source, new, topic) is None
    out = run(link, "--reverse", CONSUMER_GROUPS=f"{prefix}-.*")
    assert out.startswith("writing to the SOURCE cluster")
    assert [committed(link.source, group, topic) for group in (new, behind, ahead)] == [60, 60, 80]
    member = _client(link.source, behind)
    commit(link.target, behind, topic, here[70].offset)
    try:
        assigned = threading.Event()
        member.subscribe([topic], on_assign=lambda *_: assigned.set())
        wait_until(lambda: member.poll(0.1) is not None or assigned.is_set(), "the group to have a member")
        assert "active" in run(link, "--reverse", CONSUMER_GROUPS=behind)
        with pytest.raises(GroupRefused):
            run(link, "--reverse", CONSUMER_GROUPS=behind, ON_ACTIVE_GROUP="fail")
    finally:
        member.close()
    assert committed(link.source, behind, topic) == 60


def test_every_offset_of_a_log_with_gaps_leads_back_to_the_same_next_record(copied: Copied) -> None:
    link, topic, prefix = copied.link, copied.holes, copied.group()
    (there,), (here,) = read_all(link.source, topic), read_all(link.target, topic)
    end = end_offsets(link.target, topic)[0]
    groups = [f"{prefix}-{offset}" for offset in range(end + 1)]
    commit_all(link.target, topic, {group: offset for offset, group in enumerate(groups)})
    run(link, "--reverse", CONSUMER_GROUPS=f"{prefix}-.*")
    for offset, found in enumerate(committed_all(link.source, topic, groups)):
        assert found is not None
        after = next(((r.key, r.value) for r in here if r.offset >= offset), None)
        assert next(((r.key, r.value) for r in there if r.offset >= found.offset), None) == after, offset


def test_a_link_pointed_at_another_cluster_is_refused(copied: Copied) -> None:
    link = copied.link
    swapped = with_settings(link, KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS=link.target)
    with pytest.raises(LinkRefused, match="was made with source_cluster"):
        once(swapped)
    with pytest.raises(LinkRefused, match="there is no link"):
        run(link, "--dry-run", APPLICATION_NAME="nosuchlink")


def test_without_the_source_what_was_translated_is_still_there(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, link, topic = copied.served(), copied.link, copied.plain
    commit(link.source, group, topic, 30)
    copied.settled(group, topic, 30, "in-step")
    monkeypatch.setattr(identity, "SOURCE_S", 0.5)
    lines = orjson.loads(run(link, "describe", "--output", "json", **NO_SOURCE))
    (line,) = (line for line in lines if line["group"] == group)
    reached = read_all(link.target, topic)[0][30].offset
    assert (line["source_offset"], line["offset"], line["target_offset"]) == (30, reached, reached)
    assert line["source_lag"] is None and line["target_lag"] is not None


@pytest.mark.whole
def test_a_restart_knows_what_was_written_and_translated_before(
    source: Kafka, target: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round here is a process of its own. It follows a rewind, by the settings, and keeps to what was
    translated exactly when retention has taken the mappings: a translation never goes back while its group
    does not."""
    name, at, to = f"t{secrets.token_hex(4)}", source.bootstrap_servers, target.bootstrap_servers
    topic = f"{name}.t"
    create_topic(at, topic)
    produce(at, topic, [Record(b"%d" % i) for i in range(100)])
    link = Link(at, to, name, topic, CONSUMER_GROUPS=f"{name}-.*", KAFKA_CLUSTERS_SOURCE_NAME="east")
    assert link.copy() == (0, 0)
    old, other = f"{name}-old", f"{name}-other"
    (here,) = read_all(to, topic)
    for offset, rewind, reached, outcome in (
        (90, "true", 90, "written"),
        (40, "false", 90, "rewind-off"),
        (40, "true", 40, "written"),
    ):
        commit(at, old, topic, offset)
        once(link, REWIND=rewind)
        assert committed(to, old, topic) == here[reached].offset
        assert group_offsets(link)[GroupKey(old, topic, 0)].outcome == outcome
    delete_records(to, link.settings.mappings_topic, {0: -1, 1: -1})
    commit(at, other, topic, 60)
    once(link)
    records = group_offsets(link)
    assert (committed(to, old, topic), records[GroupKey(old, topic, 0)].exact) == (here[40].offset, True)
    assert (committed(to, other, topic), records[GroupKey(other, topic, 0)].exact) == (here[40].offset, False)
    commit(at, old, topic, 50)
    commit(at, other, topic, 10)
    once(link)
    assert committed(to, old, topic) == here[40].offset
    # Nothing is known below 40: the destination's beginning.
    assert committed(to, other, topic) == 0
    assert group_offsets(link)[GroupKey(other, topic, 0)].why == "before-history"
    once(link, GROUP_NAME="from-{source}.{group}")
    assert committed(to, f"from-east.{old}", topic) == here[40].offset
    monkeypatch.setattr(identity, "SOURCE_S", 0.5)
    monkeypatch.setattr(survey, "SOURCE_S", 0.5)
    with in_step(link, **NO_SOURCE) as service:
        eventually(lambda: service.health.role == "leader" and not service.health.source_reached, "a round")
        assert service.health.alive()


def test_a_topic_made_again_and_one_that_went_to_two_destinations(source: Kafka, target: Kafka) -> None:
    name, at, to = f"t{secrets.token_hex(4)}", source.bootstrap_servers, target.bootstrap_servers
    again, moved = f"{name}.t.again", f"{name}.t.moved"
    for topic in (again, moved):
        create_topic(at, topic)
        produce(at, topic, [Record(b"old %d" % i) for i in range(10)])
    link = Link(at, to, name, rf"{name}\.t\..*", CONSUMER_GROUPS=f"{name}-.*")
    assert link.copy() == (0, 0)
    group = f"{name}-g"
    commit(at, group, again, 8)
    once(link)
    assert committed(to, group, again) == 8
    delete_topic(at, again)
    create_topic(at, again)
    produce(at, again, [Record(b"new %d" % i) for i in range(10)])
    wait_until(lambda: committed(at, group, again) is None, "the group's offset to go with the topic")
    commit(at, group, again, 2)
    once(link)
    # The new topic is not copied yet: its offsets are nobody's.
    assert committed(to, group, again) == 8
    # A new partition gets the new destination; so does, from then on, the old one.
    common_topics.add_partitions(AdminClient({"bootstrap.servers": at}), moved, 2, Deadline(CALL_S))
    produce(at, moved, [Record(b"elsewhere")])
    link.variables["KAFKA_CLUSTERS_DESTINATION_TOPIC"] = "{topic}.v2"
    assert link.copy() == (0, 0)
    (here,) = read_all(to, f"{again}.v2")
    once(link)
    assert committed(to, group, f"{again}.v2") == here[2].offset
    commit(at, group, moved, 5)
    with pytest.raises(GroupRefused, match=f"{moved}-0.*ON_SEVERAL_TARGETS"):
        once(link)
    once(link, ON_SEVERAL_TARGETS="skip")
    assert committed(to, group, moved) is None and committed(to, group, f"{moved}.v2") is None
    record = group_offsets(link)[GroupKey(group, moved, 0)]
    assert (record.outcome, record.offset) == ("several-targets", None)


def test_a_real_group_moves_to_the_target_in_mid_topic_under_load(source: Kafka, target: Kafka) -> None:
    """Written, copied, consumed and translated all at once; the consumers stop here and start there: nothing
    is missing, nothing twice.

    Meanwhile the offset at the target follows, and never goes back, over a restart of `offsets` too.
    """
    name, at, to = f"t{secrets.token_hex(4)}", source.bootstrap_servers, target.bootstrap_servers
    topic, group = f"{name}.t", f"{name}-g"
    create_topic(at, topic, 2)
    link = Link(at, to, name, topic, CONSUMER_GROUPS=group)
    loading = threading.Event()
    loading.set()
    written: list[bytes] = []

    def load() -> None:
        while loading.is_set():
            batch = [b"%d" % (len(written) + i) for i in range(40)]
            ending = "abort" if len(written) % 7 == 0 else "commit"
            if ending == "abort":
                produce(at, topic, [Record(b"aborted", partition=0)], "abort", name)
            produce(at, topic, [Record(v, partition=int(v) % 2) for v in batch], "commit", name)
            written.extend(batch)
            time.sleep(0.02)

    seen: list[bytes] = []

    def consume(bootstrap: str, until: Any) -> dict[int, int]:
        client = _client(bootstrap, group, **{"auto.offset.reset": "earliest"})
        client.subscribe([topic])
        try:
            while not until():
                fresh = False
                for message in client.consume(20, 0.1):
                    error = message.error()
                    assert error is None or error.code() == KafkaError._PARTITION_EOF, error
                    value = message.value()
                    assert value is not None
                    seen.append(value)
                    fresh = True
                if fresh:
                    client.commit(asynchronous=False)
            stood = client.position([TopicPartition(topic, p) for p in range(2)])
            return {p.partition: p.offset for p in stood}
        finally:
            client.close()

    def followed() -> bool:
        """Whether the offsets at the target have moved several times."""
        moves = [k.partition for k, v in history(link) if v is not None]
        return all(moves.count(p) > 3 for p in range(2))

    loader = threading.Thread(target=load, daemon=True)
    with link.running():
        loader.start()
        with in_step(link):
            consume(at, lambda: len(seen) > 200)
        with in_step(link):
            stood = consume(at, lambda: len(seen) > 600 and followed())

            def caught_up() -> bool:
                records = group_offsets(link)
                return all(
                    (r := records.get(GroupKey(group, topic, p))) is not None
                    and r.source_offset == stood[p]
                    and r.exact
                    and committed(to, group, topic, p) == r.offset
                    for p in range(2)
                )

            wait_until(caught_up, "the group's last offsets to be at the target")
        moved_at = len(seen)
        first = len(written)
        wait_until(lambda: len(written) > first, "records that are only read at the target")
        loading.clear()
        loader.join(10)
        deadline = time.monotonic() + 20
        consume(to, lambda: len(seen) >= len(written) or time.monotonic() > deadline)
    assert moved_at < len(written)
    assert sorted(seen, key=int) == written
    for partition in range(2):
        of_partition = [v.offset for k, v in history(link) if k.partition == partition and v is not None]
        assert len(of_partition) > 3
        assert of_partition == sorted(o for o in of_partition if o is not None)
