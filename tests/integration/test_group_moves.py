"""`verbatim move-group` on real brokers: a group goes on at the other side at exactly the record that it
would have read next, while producers and applications run; killed anywhere, another run ends it; what is
refused is as it was."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

from common.link.control_log import ControlLog
from offsets.group_offsets import GroupKey
from offsets.groups import Groups
from offsets.service import Service
from offsets.survey import Found
from offsets.writer import RecordLog
from tests.conftest import Kafka, Names
from tests.integration.test_cutover import cutover, load, work
from tests.integration.test_failover import failover
from tests.integration.test_offsets import (
    commit,
    commit_all,
    committed,
    committed_all,
    group_offsets,
    in_step,
    once,
    run,
)
from tests.support.brokers import (
    Record,
    Seen,
    create_topic,
    end_offsets,
    member,
    produce,
    read_all,
    wait_until,
)
from tests.support.harness import Link, eventually
from verbatim.main import cli
from verbatim.moves.group_move import GroupMoves
from verbatim.moves.link_progress import Standings

KEPT = {"retention.ms": "-1"}


class Killed(BaseException):
    """Nothing of a killed process is undone."""


def move(link: Link, *args: str, wait_s: float = 20.0) -> tuple[dict[str, Any], int]:
    """What `verbatim move-group` says, and its exit code; raises what kills it."""
    options = ["--output", "json", "--wait", str(wait_s), *args]
    found = CliRunner().invoke(
        cli.commands["move-group"], options, env=link.variables, catch_exceptions=False
    )
    return json.loads(found.stdout), found.exit_code


def rest(consumer: Consumer, count: int) -> list[bytes]:
    """So many records that are left, and whatever comes within a second after them; all are committed."""
    values: list[bytes] = []
    give_up = time.monotonic() + 30
    while time.monotonic() < give_up:
        found = consumer.consume(500, 1.0)
        values += [value for message in found if (value := message.value()) is not None]
        if not found and len(values) >= count:
            break
    consumer.commit(asynchronous=False)
    return values


def states(report: dict[str, Any]) -> dict[str, str]:
    return {line["group"]: line["state"] for line in report["groups"]}


def refusals(report: dict[str, Any]) -> dict[str, str]:
    return {line["group"]: line["refused"] for line in report["groups"] if line["refused"] is not None}


def taken(link: Link) -> dict[str, str]:
    """Groups that are moved, or on their way."""
    return {group: of.state for group, of in link.control().group_moves.items()}


def test_a_group_goes_to_the_target_and_back_under_load_and_reads_each_record_once(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Producers stay at the source, both applications and `offsets` run."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic, group = names.topic(), f"{names.link}.g"
    create_topic(at, topic, 3, KEPT)
    link = Link(at, to, names.link, topic)
    written: list[bytes] = []
    with link.running(), in_step(link):
        with load(at, topic, written):
            wait_until(lambda: 0 not in (link.arrived(topic) or [0]), "the link to copy", 90)
            with closing(member(at, group, topic)) as consumer:
                seen = work(consumer, 60)
                report, code = move(link, group, wait_s=0)
                assert (code, states(report)) == (1, {group: "refused"})
                assert "members at the source: rdkafka at 127.0.0.1" in refusals(report)[group]
                assert taken(link) == {}
                seen += work(consumer, 40)
            report, code = move(link, group)
            assert (code, states(report)) == (0, {group: "done"}), report
            # Without what the copy takes, which on a busy machine may be longer.
            assert sum(step["seconds"] for step in report["groups"][0]["steps"][2:]) < 10
            assert [step["name"] for step in report["groups"][0]["steps"]] == [
                "members",
                "copy",
                "hold",
                "write",
                "check",
            ]
            moved = {line["partition"]: line["offset"] for line in report["groups"][0]["partitions"]}
            stood = {line["partition"]: line["source_offset"] for line in report["groups"][0]["partitions"]}
            assert moved and moved == {p: committed(to, group, topic, p) for p in moved}
            # Nothing follows the source's old position any more, wherever that goes.
            ends = end_offsets(at, topic)
            for p in stood:
                commit(at, group, topic, 0 if p % 2 else ends[p], partition=p)
            time.sleep(0.5)
            assert moved == {p: committed(to, group, topic, p) for p in moved}
            for p, offset in stood.items():
                commit(at, group, topic, offset, partition=p)
            assert {line["outcome"] for line in json.loads(run(link, "describe", "--output", "json"))} == {
                "moved"
            }
            with closing(member(to, group, topic)) as consumer:
                there = work(consumer, 60)
                report, code = move(link, group, "--back", wait_s=0)
                assert code == 1 and "members at the target: rdkafka" in refusals(report)[group]
                there += work(consumer, 40)
            assert len(there) == 100
            report, code = move(link, group, "--back")
            assert (code, states(report)) == (0, {group: "done"}), report
            assert taken(link) == {}
            with closing(member(at, group, topic)) as consumer:
                seen += there + work(consumer, 40)
        with closing(member(at, group, topic)) as consumer:
            seen += rest(consumer, len(written) - len(seen))
        assert Counter(seen) == Counter(written)
        # `offsets` follows again.
        key = GroupKey(group, topic, 0)
        eventually(lambda: (said := group_offsets(link).get(key)) and said.outcome == "in-step", "the group")
    assert committed(to, group, topic) == group_offsets(link)[key].offset


@contextmanager
def open_transaction(bootstrap: str, topic: str, name: str, count: int) -> Iterator[Producer]:
    """Records that are neither committed nor aborted until the block ends, or does it."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(10)
    producer.begin_transaction()
    for i in range(count):
        producer.produce(topic, b"open %d" % i, partition=0)
    producer.flush(10)
    yield producer


@pytest.mark.whole
def test_groups_in_the_middle_of_an_open_transaction_and_at_the_end_of_the_log(
    source: Kafka, target: Kafka, names: Names
) -> None:
    at, to, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic()
    create_topic(at, topic, 1, KEPT)
    produce(at, topic, [Record(b"%d" % i) for i in range(10)])
    link = Link(at, to, names.link, topic)
    before, first, within, end = (f"{names.link}.{name}" for name in ("before", "first", "within", "end"))
    with link.running():
        with open_transaction(at, topic, names.link, 5) as producer:
            wait_until(lambda: sum(link.arrived(topic)) == 10, "what is committed to be copied")
            # One that reads what is not committed has read two records of it.
            commit_all(at, topic, {before: 5, first: 10, within: 12})
            report, code = move(link, before, first, within, wait_s=1)
            assert (code, states(report)) == (3, {before: "done", first: "done", within: "refused"}), report
            assert "transaction is open at the source from offset 10" in refusals(report)[within]
            assert (committed(to, within, topic), taken(link)) == (None, {before: "moved", first: "moved"})
            producer.commit_transaction(10)
        produce(at, topic, [Record(b"aborted")], "abort")
        ends = end_offsets(at, topic, "read_uncommitted")[0]
        commit(at, end, topic, ends)
        report, code = move(link, within, end)
        assert (code, states(report)) == (0, {within: "done", end: "done"}), report
        produce(at, topic, [Record(b"later")])
        wait_until(lambda: sum(link.arrived(topic)) == 16, "all to be copied")
    (there,), (here,) = read_all(at, topic), read_all(to, topic)
    for group, offset in ((before, 5), (first, 10), (within, 12), (end, ends)):
        stands = committed(to, group, topic)
        assert stands is not None
        assert [r.value for r in here if r.offset >= stands] == [
            r.value for r in there if r.offset >= offset
        ], group


@dataclass
class Copied:
    """A link that has copied all there was, and does not run."""

    link: Link
    topic: str
    there: list[Seen]
    here: list[Seen]

    def groups(self, *names: str, offset: int = 7) -> list[str]:
        """Groups without members, which have read so far."""
        groups = [f"{self.link.settings.application_name}.{secrets.token_hex(3)}-{name}" for name in names]
        commit_all(self.link.source, self.topic, dict.fromkeys(groups, offset))
        return groups

    def at(self, offset: int) -> int:
        """Where the record that is read next from a source offset lies at the target."""
        return self.here[next(i for i, r in enumerate(self.there) if r.offset >= offset)].offset

    def target(self, group: str) -> int | None:
        return committed(self.link.target, group, self.topic)

    def stand(self, groups: Iterable[str], where: str) -> dict[str, int | None]:
        """Where each group stands at the source or the target."""
        names = list(groups)
        found = committed_all(getattr(self.link, where), self.topic, names)
        return {name: None if p is None else p.offset for name, p in zip(names, found, strict=True)}


@pytest.fixture(scope="module")
def copied(source: Kafka, target: Kafka) -> Copied:
    name, at = f"t{secrets.token_hex(4)}", source.bootstrap_servers
    topic = f"{name}.t"
    create_topic(at, topic, 1, KEPT)
    for _ in range(4):
        produce(at, topic, [Record(b"%d" % i) for i in range(5)], "commit", name)
    link = Link(at, target.bootstrap_servers, name, rf"{name}\..*", CONSUMER_GROUPS=rf"{name}\..*")
    assert link.copy() == (0, 0)
    once(link)
    return Copied(link, topic, *read_all(at, topic), *read_all(link.target, topic))


def killed_at(monkeypatch: pytest.MonkeyPatch, cls: type, method: str, after: bool, nth: int = 0) -> None:
    """Have the process killed before or after the nth call."""
    whole, calls = getattr(cls, method), iter(range(100))

    def call(*args: Any, **more: Any) -> Any:
        if (mine := next(calls) == nth) and not after:
            raise Killed
        found = whole(*args, **more)
        if mine:
            raise Killed
        return found

    monkeypatch.setattr(cls, method, call)


STEPS: dict[str, tuple[type, str, bool, int]] = {
    "before it takes the groups": (ControlLog, "append_all", False, 0),
    "when it has taken them": (ControlLog, "append_all", True, 0),
    "when offsets has let go": (GroupMoves, "_hold", True, 0),
    "when the records are written": (RecordLog, "write", True, 0),
    "when the offsets are written": (Groups, "commit", True, 0),
    "before the move is on record": (ControlLog, "append_all", False, 1),
    "when the move is on record": (ControlLog, "append_all", True, 1),
    "at its end": (RecordLog, "write", True, 2),
}


def test_killed_between_two_steps_another_run_comes_to_the_same_end_and_so_does_the_way_back(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups for each step: one goes on, one goes back. Between, `offsets` writes nothing of those that
    were taken."""
    link = copied.link
    pairs = {step: copied.groups("on", "back") for step in STEPS}
    for step, pair in pairs.items():
        with monkeypatch.context() as patch:
            killed_at(patch, *STEPS[step])
            with pytest.raises(Killed):
                move(link, *pair)
    held, stood = taken(link), copied.stand((group for pair in pairs.values() for group in pair), "target")
    free = pairs.pop("before it takes the groups")
    assert {group for group in stood if group in held} == {group for pair in pairs.values() for group in pair}
    before = group_offsets(link)
    once(link)
    changed = {key.group for key, now in group_offsets(link).items() if before.get(key) != now}
    assert changed & stood.keys() == set(free)
    there = copied.at(7)
    assert copied.stand(stood, "target") == {**stood, **dict.fromkeys(free, there)}
    ons, backs = (list(column) for column in zip(*pairs.values(), strict=True))
    report, code = move(link, free[0], *ons)
    assert code == 0, report
    kept = [pairs[step][0] for step in ("when the move is on record", "at its end")]
    assert states(report) == {group: "kept" if group in kept else "done" for group in (free[0], *ons)}
    report, code = move(link, free[1], *backs, "--back")
    assert (code, states(report)) == (3, {free[1]: "refused", **dict.fromkeys(backs, "done")})
    assert "was not moved" in refusals(report)[free[1]]
    # As after a run that was killed at its end.
    report, code = move(link, *backs, "--back")
    assert (code, states(report)) == (0, dict.fromkeys(backs, "kept")), report
    assert {group: of for group, of in taken(link).items() if group in stood} == dict.fromkeys(
        (free[0], *ons), "moved"
    )
    once(link)
    assert copied.stand(stood, "source") == dict.fromkeys(stood, 7)
    assert copied.stand(stood, "target") == dict.fromkeys(stood, there)


def test_a_way_back_that_was_killed_is_gone_on_with(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    link, (group,) = copied.link, copied.groups("g")
    assert move(link, group)[1] == 0
    commit(link.target, group, copied.topic, copied.at(12))
    with monkeypatch.context() as patch:
        killed_at(patch, Groups, "commit", True)
        with pytest.raises(Killed):
            move(link, group, "--back")
    assert taken(link)[group] == "moved"
    report, code = move(link, group, "--back")
    assert (code, states(report)) == (0, {group: "done"})
    assert (committed(link.source, group, copied.topic), group in taken(link)) == (12, False)


def test_a_group_that_read_nothing_at_the_target_goes_back_to_where_it_stood(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the log a marker is behind the last record. And a move that ended half-way has left the
    target's group behind."""
    link, end = copied.link, end_offsets(copied.link.source, copied.topic, "read_uncommitted")[0]
    (last,), (half,) = copied.groups("last", offset=end), copied.groups("half")
    said = CliRunner().invoke(cli.commands["move-group"], [last], env=link.variables)
    lines = said.stdout.splitlines()
    assert (said.exit_code, lines[0]) == (0, f"plan    group {last}: 1 partitions, to {last}")
    assert [line.split()[:2] for line in lines[1:-1]] == [
        ["ok", step] for step in ("members", "copy", "hold", "write", "check")
    ]
    assert lines[-2].endswith(f"its consumers may be started at the target  group {last}")
    assert lines[-1].startswith("ok: done in ") and lines[-1].endswith(": 1 groups")
    commit(link.target, half, copied.topic, copied.at(3))
    with monkeypatch.context() as patch:
        killed_at(patch, *STEPS["when it has taken them"])
        with pytest.raises(Killed):
            move(link, half)
    report, code = move(link, last, half, "--back")
    assert (code, states(report)) == (0, {last: "done", half: "done"}), report
    assert copied.stand((last, half), "source") == {last: end, half: 7}
    assert copied.target(half) == copied.at(3)
    assert not {last, half} & taken(link).keys()


def test_a_group_that_goes_on_at_the_source_meanwhile_is_moved_from_where_it_ends(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, (group,) = copied.link, copied.groups("g")
    write = GroupMoves._write

    def written(*args: Any) -> Any:
        found = write(*args)
        monkeypatch.undo()
        commit(link.source, group, copied.topic, 9)
        return found

    monkeypatch.setattr(GroupMoves, "_write", written)
    report, code = move(link, group)
    assert (code, copied.target(group)) == (0, copied.at(9)), report


def test_what_is_refused_is_as_it_was_and_the_others_are_moved(copied: Copied) -> None:
    link, topic = copied.link, copied.topic
    good, ahead, used, beyond = copied.groups("good", "ahead", "used", "beyond")
    none = f"{link.settings.application_name}.none"
    commit(link.target, ahead, topic, copied.at(15))
    commit(link.source, beyond, topic, 500)
    commit(link.target, used, topic, 1)
    with closing(member(link.target, used, topic)) as consumer:
        wait_until(lambda: consumer.poll(0.1) is not None, "the group to have a member")
        before = group_offsets(link)
        report, code = move(link, good, ahead, used, beyond, none, "another", wait_s=0.3)
    assert (code, report["ok"]) == (3, False)
    assert states(report) == {
        good: "done",
        **dict.fromkeys((ahead, used, beyond, none, "another"), "refused"),
    }
    why = refusals(report)
    assert why[ahead].startswith(f"{topic}-0: target-ahead")
    assert why[used] == "it has members at the target: stop them"
    assert why[beyond].startswith(f"{topic}-0: beyond-source")
    assert why[none].startswith("there is no such group") and "CONSUMER_GROUPS" in why["another"]
    assert [copied.target(g) for g in (good, ahead, beyond)] == [copied.at(7), copied.at(15), None]
    assert not {ahead, used, beyond} & taken(link).keys()
    changed = {key.group for key, said in group_offsets(link).items() if before.get(key) != said}
    assert changed == {good}
    # Again, by an expression: what was moved is not moved again, and a plan changes nothing.
    create_topic(link.source, elsewhere := f"not-{topic}")
    commit(link.source, f"{good}-elsewhere", elsewhere, 0)
    report, code = move(link, "--matching", f"{good[:-5]}.*", "--dry-run")
    assert (code, states(report)) == (0, {good: "kept"})
    report, code = move(link, ahead, good, "--dry-run")
    assert (code, states(report)) == (3, {ahead: "refused", good: "kept"})
    report, code = move(link, ahead)
    assert (code, report["refused"]) == (1, f"group {ahead}: {why[ahead]}")


def test_nothing_of_a_group_is_written_by_a_round_that_had_begun_when_it_was_taken(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`offsets` has looked, the group is moved and reads on, `offsets` would write what it has found."""
    link, (group,) = copied.link, copied.groups("g", offset=3)
    whole, rounds = Service._round, iter(range(100))

    def round_(self: Service, record_log: RecordLog) -> bool:
        look = self.survey.look

        def looked() -> Found:
            self.survey.look = look  # type: ignore[method-assign]
            found = look()
            commit(link.source, group, copied.topic, 9)
            assert move(link, group)[1] == 0
            return found

        if next(rounds) == 0:
            self.survey.look = looked  # type: ignore[method-assign]
        return whole(self, record_log)

    # As if nobody led: the one that does is this one, in mid-round.
    monkeypatch.setattr(Standings, "led", lambda *_: False)
    monkeypatch.setattr(Service, "_round", round_)
    service = once(link)
    assert copied.target(group) == copied.at(9)
    assert {row.record.outcome for row in service.rows if row.key.group == group} == {"moved"}


def test_a_group_that_offsets_does_not_let_go_of_is_refused(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier release would not."""
    link, (group,) = copied.link, copied.groups("g")
    monkeypatch.setattr(Service, "_let_go", lambda self: None)
    monkeypatch.setattr(Service, "_asked", lambda self: {})
    monkeypatch.setattr("verbatim.moves.group_move.ANSWER_S", 1.0)
    with in_step(link):
        eventually(lambda: copied.target(group) is not None, "a round")
        report, code = move(link, group, wait_s=1)
    assert code == 1 and "does not let go of it" in refusals(report)[group]
    assert taken(link).get(group) is None


def test_a_static_member_holds_its_group_until_its_session_is_over(copied: Copied) -> None:
    link, (group,) = copied.link, copied.groups("static")
    config = {"bootstrap.servers": link.source, "group.id": group, "session.timeout.ms": 6000}
    with closing(Consumer({**config, "group.instance.id": "i-1", "enable.auto.commit": False})) as consumer:
        consumer.subscribe([copied.topic])
        wait_until(lambda: consumer.poll(0.1) is not None, "the group to have a member")
    report, code = move(link, group, wait_s=0)
    assert code == 1 and "(static member i-1)" in refusals(report)[group]
    report, code = move(link, group)
    assert (code, copied.target(group)) == (0, copied.at(7))


def test_state_of_streams_is_copied_to_its_end_first(copied: Copied) -> None:
    """The changelog of an application is a topic of its own, which its group has no offsets in."""
    link, (group,) = copied.link, copied.groups("app")
    changelog = f"{group}-store-changelog"
    create_topic(link.source, changelog, 1, KEPT)
    produce(link.source, changelog, [Record(b"state")])
    report, code = move(link, group)
    assert (
        code == 1
        and f"{changelog}, a topic of its Streams application, is not copied" in refusals(report)[group]
    )
    assert link.copy() == (0, 0)
    produce(link.source, changelog, [Record(b"more state")])
    report, code = move(link, group, wait_s=0)
    assert code == 1 and f"{changelog}-0: delivered up to offset 1 of 2" in refusals(report)[group]
    assert link.copy() == (0, 0)
    report, code = move(link, group)
    assert (code, states(report)) == (0, {group: "done"}), report


def test_a_moved_group_is_left_alone_by_cutover_and_failover(
    copied: Copied, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, (moved, other) = copied.link, copied.groups("moved", "other")
    link = Link(link.source, link.target, link.settings.application_name, link.variables["KAFKA_CLUSTERS_SOURCE_TOPIC"], CONSUMER_GROUPS=f"{moved},{other}")  # fmt: skip
    assert move(link, moved)[1] == 0
    commit(link.target, moved, copied.topic, copied.at(15))
    report, code = cutover(link, tmp_path / "memory.json", quiet_s=0.1)
    assert (code, report["refused"]) == (0, None), report
    assert {line["group"] for line in report["groups"]} == {other}
    # The source is lost in the middle of a move: nobody could go on with it.
    (half,) = copied.groups("half")
    with monkeypatch.context() as patch:
        killed_at(patch, *STEPS["when the records are written"])
        with pytest.raises(Killed):
            move(copied.link, half)
    report, code = failover(copied.link, CONSUMER_GROUPS=f"{moved},{half}")
    assert (code, report["refused"]) == (0, None), report
    assert {line["group"]: line["outcome"] for line in report["groups"]} == {moved: "moved", half: "written"}
    assert (copied.target(moved), copied.target(half)) == (copied.at(15), copied.at(7))
