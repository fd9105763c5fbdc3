"""Groups of every kind that Kafka has, and with every id that it takes, on real brokers: each is moved, or
named. One sick group is one row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from common.errors import GroupRefused, GroupsFailed
from common.kafka.wire.connection import access
from common.partitions import PartitionName
from common.ports import Deadline
from offsets.group_calls import GroupCalls
from offsets.group_protocol import Committed, Group
from offsets.groups import Groups
from tests.integration.test_cutover import cutover, refused_at
from tests.integration.test_group_moves import move, states
from tests.integration.test_offsets import commit, commit_all, once, run, with_settings
from tests.support.brokers import Record, create_topic, produce, read_all, wait_until
from tests.support.group_members import share_member, streams_member
from tests.support.harness import Link
from verbatim.local.kafka_cluster import Cluster
from verbatim.main import cli

ODD = {"": 3, " ": 4, " both ": 5, "ünïcödé ☃ 消費者": 6, "a\nb\tc": 7, "n\0ul": 8, "x" * 3000: 9}
"""Group ids that Kafka takes, each with an offset."""


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[str, str]]:
    """Two clusters whose brokers know groups of all kinds: those of a container may be older."""
    clusters = Cluster(), Cluster()
    with ThreadPoolExecutor(2) as pool:
        for starting in [pool.submit(cluster.start) for cluster in clusters]:
            starting.result()
        yield clusters[0].bootstrap_servers, clusters[1].bootstrap_servers
        list(pool.map(Cluster.stop, clusters))


@pytest.fixture(scope="module")
def link(pair: tuple[str, str]) -> Link:
    """A link that has copied fifty records; behind each tenth an offset holds none."""
    at, to = pair
    create_topic(at, "kinds.t", config={"retention.ms": "-1"})
    for i in range(5):
        produce(at, "kinds.t", [Record(b"%d.%d" % (i, n)) for n in range(10)], "commit")
    copied = Link(at, to, "kinds", r"kinds\.t")
    assert copied.copy() == (0, 0)
    return copied


def target_of(link: Link, group: str) -> int | None:
    """What the target's group has, asked without the client library, which does not take every id."""
    found = committed(link.target, group)
    return found["kinds.t", 0].offset if ("kinds.t", 0) in found else None


def committed(bootstrap: str, group: str) -> dict[PartitionName, Committed]:
    with closing(GroupCalls({"bootstrap.servers": bootstrap})) as calls:
        found = calls.committed([group], 10)[group]
    assert not isinstance(found, KafkaException)
    return found


def commit_as(bootstrap: str, group: str, offset: int, metadata: str) -> None:
    """Whatever the group is called."""
    with closing(GroupCalls({"bootstrap.servers": bootstrap})) as calls:
        assert calls.commit({group: {("kinds.t", 0): Committed(offset, metadata)}}, 10) == {group: {}}


@pytest.fixture(scope="module")
def expected(link: Link) -> Callable[[int], int]:
    """Where the record that is read next from a source offset lies at the target."""
    (there,), (here,) = read_all(link.source, "kinds.t"), read_all(link.target, "kinds.t")
    return lambda offset: here[next(i for i, r in enumerate(there) if r.offset >= offset)].offset


def listed(bootstrap: str) -> dict[str, Group]:
    with closing(Groups({"bootstrap.servers": bootstrap}, "source")) as groups:
        return groups.listed(Deadline(20))


def test_every_kind_of_group_is_seen_with_its_members(pair: tuple[str, str], link: Link) -> None:
    at = pair[0]
    commit(at, "seen-classic", "kinds.t", 1)
    classic, new = (
        Consumer({"bootstrap.servers": at, "group.id": f"seen-{name}-used", "group.protocol": name})
        for name in ("classic", "consumer")
    )
    with (
        closing(classic),
        closing(new),
        streams_member(at, "seen-streams", "kinds.t", 2),
        share_member(at, "seen-share", "kinds.t"),
    ):
        for member in (classic, new):
            member.subscribe(["kinds.t"])
        with streams_member(at, "seen-streams-left", "kinds.t", 3):
            pass
        wait_until(lambda: all(m.poll(0.1) is None and m.assignment() for m in (classic, new)), "members")
        found = listed(at)
        seen = {group: of for group, of in found.items() if group.startswith("seen")}
        assert seen == {
            "seen-classic": Group("classic", False),
            "seen-classic-used": Group("classic", True),
            "seen-consumer-used": Group("consumer", True),
            "seen-streams": Group("streams", True),
            "seen-streams-left": Group("streams", False),
            "seen-share": Group("share", True),
        }


def test_groups_of_every_id_and_kind_are_moved_and_share_groups_are_named(
    link: Link, expected: Callable[[int], int], caplog: pytest.LogCaptureFixture
) -> None:
    at, config = link.source, {"bootstrap.servers": link.source}
    for group, offset in ODD.items():
        commit_as(at, group, offset, "a note")
    commit(at, "classic", "kinds.t", 20)
    with streams_member(at, "streams", "kinds.t", 21), share_member(at, "share", "kinds.t"):
        pass
    with closing(Consumer({**config, "group.id": "consumer", "group.protocol": "consumer"})) as new:
        new.subscribe(["kinds.t"])
        wait_until(lambda: new.poll(0.1) is None and bool(new.assignment()), "a member")
        new.commit(offsets=[TopicPartition("kinds.t", 0, 22)], asynchronous=False)
    moved = {**ODD, "classic": 20, "streams": 21, "consumer": 22}
    service = once(link, CONSUMER_GROUPS_EXCLUDE="seen.*")
    assert {row.key.group: row.record.outcome for row in service.rows} == dict.fromkeys(moved, "written")
    assert {group: target_of(link, group) for group in moved} == {
        group: expected(offset) for group, offset in moved.items()
    }
    assert [(left.group, left.outcome) for left in service.unmoved] == [("share", "unmovable")]
    assert [m for m in caplog.messages if "group share is not moved (unmovable): it is a share group" in m]
    found = json.loads(run(link, "describe", "--output", "json", CONSUMER_GROUPS_EXCLUDE="seen.*"))
    assert {line["group"]: line["outcome"] for line in found} == {
        **dict.fromkeys(moved, "in-step"),
        "share": "unmovable",
    }
    lines = run(link, "describe", CONSUMER_GROUPS_EXCLUDE="seen.*").splitlines()
    assert len(lines) == 1 + len(moved) + 1 and any(line.startswith("'a\\nb\\tc'") for line in lines)
    # And back: what they have consumed at the target goes to the source's group.
    commit_as(link.target, "", 30, "")
    assert "group '', kinds.t-0: 3 -> " in run(link, "--reverse", CONSUMER_GROUPS_EXCLUDE="seen.*")
    assert committed(at, "")["kinds.t", 0].offset > 30


def test_a_streams_group_in_use_and_a_share_group_keep_a_cutover_from_going_on(
    link: Link, expected: Callable[[int], int], tmp_path: Path
) -> None:
    def refused(*groups: str) -> str:
        report, code = cutover(only(link, *groups), tmp_path / "memory.json", wait_s=0, quiet_s=0)
        assert (code, refused_at(report)) == (1, "groups"), report
        return str(report["refused"])

    at, to = link.source, link.target
    with share_member(at, "kept-share", "kinds.t"):
        pass
    assert "group kept-share can't be moved (unmovable): it is a share group" in refused("kept-share")
    with streams_member(at, "kept-streams", "kinds.t", 8):
        assert "group kept-streams has members at the source" in refused("kept-streams")
    with streams_member(to, "kept-streams", "kinds.t"):
        assert "kept-streams, kinds.t-0: active" in refused("kept-streams")
        with pytest.raises(GroupRefused, match="ON_ACTIVE_GROUP"):
            once(only(link, "kept-streams"), ON_ACTIVE_GROUP="fail")
    report, code = cutover(only(link, "kept-streams"), tmp_path / "memory.json", wait_s=10, quiet_s=0)
    assert (code, report["refused"]) == (0, None)
    assert target_of(link, "kept-streams") == expected(8)


def test_groups_of_every_kind_are_moved_one_by_one_and_share_groups_are_refused(
    link: Link, expected: Callable[[int], int]
) -> None:
    at, names = link.source, ("moves-classic", "moves-consumer", "moves-streams", "moves-share", "")
    commit(at, "moves-classic", "kinds.t", 20)
    commit_as(at, "", 40, "")
    chosen = only(link, "moves-.*", ".{0}")
    with (
        closing(
            Consumer({"bootstrap.servers": at, "group.id": names[1], "group.protocol": "consumer"})
        ) as new,
        streams_member(at, "moves-streams", "kinds.t", 21),
        share_member(at, "moves-share", "kinds.t"),
    ):
        new.subscribe(["kinds.t"])
        wait_until(lambda: new.poll(0.1) is None and bool(new.assignment()), "a member")
        new.commit(offsets=[TopicPartition("kinds.t", 0, 22)], asynchronous=False)
        options = ["--dry-run", *names]
        said = CliRunner().invoke(cli.commands["move-group"], options, env=chosen.variables)
        lines = said.stdout.splitlines()
        assert (said.exit_code, lines[0]) == (
            3,
            "plan    group moves-classic: 1 partitions, to moves-classic",
        ), said.output
        assert "waits: it has members at the source: rdkafka at 127.0.0.1" in lines[1]
        assert lines[2].endswith("waits: it has members at the source")
        assert "REFUSED: it is a share group" in lines[3] and lines[4].startswith(
            "plan    group '': 1 partitions"
        )
        assert lines[-1].startswith("REFUSED: group moves-share: it is a share group")
        report, code = move(chosen, *names, wait_s=0)
        assert (code, set(states(report).values())) == (3, {"done", "refused"})
        assert [name for name, state in states(report).items() if state == "done"] == ["moves-classic", ""]
    report, code = move(chosen, "--matching", "moves-.*")
    assert (code, states(report)) == (
        3,
        {
            "moves-classic": "kept",
            "moves-consumer": "done",
            "moves-share": "refused",
            "moves-streams": "done",
        },
    )
    assert [target_of(link, name) for name in names] == [
        expected(20),
        expected(22),
        expected(21),
        None,
        expected(40),
    ]


@pytest.mark.parametrize("where", ["source", "target"])
def test_an_error_about_one_group_is_its_own(
    link: Link, expected: Callable[[int], int], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Of a group whose coordinator answers with an error, or not at all, nothing is known; the others go on,
    and `--once` ends with 3 and its name."""
    commit_all(link.source, "kinds.t", {f"sick-{where}": 5, f"passing-{where}": 5, f"sound-{where}": 5})
    ask = GroupCalls.committed

    def asked(self: GroupCalls, groups: list[str], timeout: float) -> Any:
        found = ask(self, groups, timeout)
        bootstrap = link.source if where == "source" else link.target
        if self._brokers._access.bootstrap == access({"bootstrap.servers": bootstrap}).bootstrap:
            for name, code in (
                ("sick", KafkaError.INVALID_GROUP_ID),
                ("passing", KafkaError.COORDINATOR_NOT_AVAILABLE),
            ):
                if f"{name}-{where}" in found:
                    found[f"{name}-{where}"] = KafkaException(KafkaError(code))
        return found

    monkeypatch.setattr(GroupCalls, "committed", asked)
    monkeypatch.setattr("offsets.survey.SOURCE_S", 4.0)
    monkeypatch.setattr("offsets.survey.CALL_S", 4.0)
    service = once(link, CONSUMER_GROUPS=f".*-{where}")
    assert target_of(link, f"sound-{where}") == expected(5)
    rows = {row.key.group: (row.record.outcome, row.record.detail) for row in service.rows}
    assert rows.pop(f"sound-{where}") == ("written", "")
    told = {left.group: (left.outcome, left.detail) for left in service.unmoved} | rows
    assert {group: outcome for group, (outcome, _) in told.items()} == {
        f"sick-{where}": "failed",
        f"passing-{where}": "failed",
    }
    assert "Invalid group.id" in told[f"sick-{where}"][1]
    with pytest.raises(
        GroupsFailed,
        match=rf"2 groups could not be moved: group passing-{where}: .*; group sick-{where}: .*Inv",
    ) as failed:
        run(link, "--once", CONSUMER_GROUPS=f".*-{where}", HEALTH_PORT="0")
    assert failed.value.exit_code == 3
    monkeypatch.undo()
    assert target_of(link, f"sick-{where}") is None


def only(link: Link, *groups: str) -> Link:
    return with_settings(link, CONSUMER_GROUPS=",".join(groups))
