"""Topics that leave a link one at a time, on real brokers: producers and consumers go on at the target, and
no record is read twice or by nobody; killed anywhere, another run ends it; and back again, where nothing was
written there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

from common.link.control_kinds import LetGo, Promotion
from common.link.control_log import ControlLog
from deduplicator.lane.letting_go import LettingGo
from tests.conftest import Kafka, Names
from tests.integration.test_cutover import KEPT, PARTITIONS, cutover, load, refused_at, work
from tests.integration.test_group_moves import Killed, move, rest
from tests.integration.test_offsets import commit, committed, in_step
from tests.support.brokers import (
    Record,
    create_topic,
    delete_records,
    end_offsets,
    member,
    produce,
    read_all,
    wait_until,
)
from tests.support.harness import Link, assert_copied, eventually
from verbatim.main import cli
from verbatim.moves.promotion import Promoting
from verbatim.plan.plan import make_plan
from verbatim.verify.link import Options, verify_link

STEPS = ["link", "producers", "lag", "groups", "verify", "still", "hold", "promote"]


def demote(link: Link, *args: str, quiet_s: float = 0.5) -> tuple[dict[str, Any], int]:
    """What `verbatim demote` says, and its exit code."""
    options = ["--output", "json", "--quiet", str(quiet_s), *args]
    found = CliRunner().invoke(cli.commands["demote"], options, env=link.variables, catch_exceptions=False)
    return json.loads(found.stdout), found.exit_code


def promotions(link: Link) -> dict[str, str]:
    return {topic: of.state for topic, of in link.control().steering.promotions.items()}


def steps(report: dict[str, Any]) -> list[str]:
    return [step["name"] for step in report["steps"]]


def shown(link: Link, command: str) -> Any:
    found = CliRunner().invoke(cli.commands[command], ["--output", "json"], env=link.variables)
    return json.loads(found.stdout)


@contextmanager
def at_work(bootstrap: str, group: str, *topics: str) -> Iterator[Consumer]:
    """A member of a group that reads several topics."""
    with closing(member(bootstrap, group, topics[0])) as consumer:
        consumer.subscribe(list(topics))
        yield consumer


@pytest.mark.whole
def test_a_topic_goes_to_the_target_under_load_while_the_link_goes_on_with_the_rest(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    """Promise: a group that reads both reads each record of either once; what a forgotten producer writes at
    the source is not copied, and told; restarts change nothing."""
    at, to, group = source.bootstrap_servers, target.bootstrap_servers, f"{names.link}.g"
    goes, stays = names.topic("goes"), names.topic("stays")
    for topic in (goes, stays):
        create_topic(at, topic, PARTITIONS, KEPT)
    link = Link(at, to, names.link, f"{goes},{stays}")
    memory = tmp_path / "memory.json"
    here: dict[str, list[bytes]] = {goes: [], stays: []}
    there: list[bytes] = []
    with load(at, stays, here[stays], b"stays "):
        with link.running(), in_step(link):
            with load(at, goes, here[goes], b"here "), at_work(at, group, goes, stays) as consumer:
                seen = work(consumer, 100)
                while len({value.split()[0] for value in seen}) < 2:
                    seen += work(consumer, 100)
            wait_until(lambda: 0 not in (link.arrived(goes) or [0]), "the link to copy", 90)
            plan, code = cutover(link, memory, "--topic", goes, "--dry-run")
            assert code == 0 and [line["topic"] for line in plan["topics"]] == [goes]
            (line,) = plan["groups"]
            assert {topic for topic, _ in line["moves"]} == {goes}
            assert {topic for topic, _ in line["stays"]} == {stays}
            assert promotions(link) == {}
            report, code = cutover(link, memory, "--topic", goes)
            assert (code, steps(report)) == (0, STEPS), report
            assert {row["topic"] for row in report["groups"]} == {goes}
            assert list(report["stay"]) == [group] and {t for t, _ in report["stay"][group]} == {stays}
            (topic,) = report["topics"]
            assert [end for end, _ in topic["ends"]] == list(end_offsets(at, goes).values())
            # Both go on: the one at the target, the other at the source.
            with load(to, goes, there, b"there "), at_work(to, group, goes) as consumer:
                seen += work(consumer, len(here[goes]) // 2)
                with at_work(at, group, stays) as other:
                    seen += work(other, 100)
                produce(at, goes, [Record(b"forgotten", partition=p) for p in range(PARTITIONS)])
                seen += work(consumer, 50)
        # As after a restart.
        with link.running():
            status = eventually(lambda: shown(link, "status"), "the status")
            states = {line["topic"]: (line["copied"], line["promotion"]) for line in status["topics"]}
            assert states == {goes: (False, "promoted"), stays: (True, None)} and not status["halts"]
            before = len(here[stays])
            wait_until(lambda: sum(link.arrived(stays)) > before, "the other to be copied", 60)

            def lags() -> dict[str, int | None]:
                found = shown(link, "status")
                return {"": found["lag"]} | {line["topic"]: line["lag"] for line in found["topics"]}

            # What is not copied is not behind.
            eventually(lambda: (of := lags())[""] is not None and of[goes] is None, "the lag of the rest")
        told = make_plan(link.settings, 0.1)
        assert told.ok and {t.topic: t.action for t in told.topics} == {goes: "promoted", stays: "there"}
        assert sum("promoted, copied up to" in line for line in told.warnings) == PARTITIONS
    with link.running():
        everything = Counter(here[goes] + there + here[stays])
        left = {topic: len([v for v in seen if v.split()[0] in words]) for topic, words in
                ((goes, (b"here", b"there")), (stays, (b"stays",)))}  # fmt: skip
        with at_work(to, group, goes) as consumer:
            seen += rest(consumer, len(here[goes]) + len(there) - left[goes])
        with at_work(at, group, stays) as consumer:
            seen += rest(consumer, len(here[stays]) - left[stays])
        assert Counter(seen) == everything
        assert b"forgotten" not in {r.value for p in read_all(to, goes) for r in p}
        eventually(lambda: sum(link.arrived(stays)) == len(here[stays]), "all of the other")
    assert_copied(link, stays)
    compared = {p.topic: p for p in verify_link(link.settings, Options()).partitions if p.partition == 0}
    assert compared[goes].behind == 1 and not compared[goes].findings and not compared[stays].findings
    assert compared[goes].equal == topic["ends"][0][0]
    # It is not given back while others have written there, and told where.
    report, code = demote(link, goes)
    assert (code, refused_at(report)) == (1, "target")
    first = next(r for r in read_all(to, goes)[0] if r.value is not None and r.value.startswith(b"there"))
    assert (
        f"{goes}-0 of the target holds offset {first.offset}, which the link has not written"
        in report["refused"]
    )


@pytest.mark.whole
def test_producers_go_first_and_a_group_that_is_behind_reads_on_from_where_it_ends(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    """Promise: with others' records behind the copies, a group's offset is translated exactly, at the
    source's end to the first offset behind what was copied."""
    at, to, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic()
    slow, through, idle = (f"{names.link}.{name}" for name in ("slow", "through", "idle"))
    create_topic(at, topic, PARTITIONS, KEPT)
    create_topic(at, empty := f"{topic}.empty", 1, KEPT)
    link = Link(at, to, names.link, f"{topic},{empty}")
    written: list[bytes] = []
    there: list[bytes] = []
    with link.running(), in_step(link):
        with load(at, topic, written, b"here "), at_work(at, slow, topic) as consumer:
            seen = work(consumer, 60)
            wait_until(lambda: 0 not in (link.arrived(topic) or [0]), "the link to copy", 90)
        with at_work(at, through, topic) as other:
            assert len(rest(other, len(written))) == len(written)
        with at_work(at, slow, topic) as consumer:
            seen += work(consumer, 10)
            commit(at, idle, empty, 0)
            options = ["--topic", topic, "--topic", empty, "--producers-first"]
            wait_until(lambda: bool(link.mappings(empty)), "the empty one")
            report, code = cutover(link, tmp_path / "memory.json", *options)
            assert (code, steps(report)) == (0, [s for s in STEPS if s != "groups"]), report
            assert [line["ends"] for line in report["topics"] if line["topic"] == empty] == [[[0, 0]]]
            ends = {p: copied for p, (_, copied) in enumerate(report["topics"][0]["ends"])}
            with load(to, topic, there, b"there "):
                produce(to, empty, [Record(b"there")])
                seen += work(consumer, 100)
                # What it has read at the source is followed at the target.
                eventually(
                    lambda: all(committed(to, through, topic, p) == ends[p] for p in ends),
                    "the group in step",
                )
                assert all(end_offsets(to, topic)[p] > ends[p] for p in ends)
        # Its consumers may leave where they are: it reads the rest there, and then what comes behind.
        report, code = cutover(link, tmp_path / "memory.json", "--topic", topic)
        assert (code, report["topics"][0]["before"]) == (0, True), report
        assert {row["group"] for row in report["groups"]} == {slow, through}
        report, code = cutover(link, tmp_path / "memory.json", "--topic", empty)
        assert (code, [(row["group"], row["offset"]) for row in report["groups"]]) == (0, [(idle, 0)]), report
        with at_work(to, slow, topic) as consumer:
            seen += rest(consumer, len(written) + len(there) - len(seen))
        with at_work(to, through, topic) as other:
            assert Counter(rest(other, len(there))) == Counter(there)
        # A group alone goes as well, and one that has gone on is left where it is.
        report, code = cutover(link, tmp_path / "memory.json", "--topic", topic)
        assert (code, report["groups"]) == (0, []), report
        report, code = move(link, slow)
        assert code == 1 and "target-ahead" in report["refused"]
    assert Counter(seen) == Counter(written + there)


def killed_where(monkeypatch: pytest.MonkeyPatch, is_it: Callable[[Any], bool], after: bool) -> None:
    """Have the process killed before or after it writes such a control record."""
    whole = ControlLog.append_all

    def append_all(self: ControlLog, records: Any, deadline: Any) -> Any:
        records = list(records)
        mine = isinstance(records[0], Promotion) and is_it(records[0])
        if mine and not after:
            raise Killed
        found = whole(self, records, deadline)
        if mine:
            raise Killed
        return found

    monkeypatch.setattr(ControlLog, "append_all", append_all)


KILLS: dict[str, tuple[str, bool]] = {
    "before it takes the topic": ("promoting", False),
    "when it has taken it": ("promoting", True),
    "when nothing more is delivered": ("promoted", False),
    "when it is on record": ("promoted", True),
}


@pytest.mark.whole
@pytest.mark.parametrize("again", ["another run", pytest.param("back", marks=pytest.mark.whole)])
def test_killed_between_two_steps_another_run_comes_to_the_same_end_or_the_link_goes_on(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topics = {kill: names.topic(f"t{n}") for n, kill in enumerate(KILLS)}
    for topic in topics.values():
        create_topic(at, topic, 2, KEPT)
        produce(at, topic, [Record(b"%d" % i, partition=i % 2) for i in range(10)])
    link = Link(at, to, names.link, ",".join(topics.values()))
    memory = tmp_path / "memory.json"
    with link.running():
        for topic in topics.values():
            wait_until(lambda topic=topic: sum(link.arrived(topic)) == 10, "the copies", 90)  # type: ignore[misc]
        for kill, (state, after) in KILLS.items():
            with monkeypatch.context() as patch:
                killed_where(patch, lambda r, state=state: r.state == state, after)  # type: ignore[misc]
                with pytest.raises(Killed):
                    cutover(link, memory, "--topic", topics[kill], quiet_s=0.2)
        stands = {kill: promotions(link).get(topic) for kill, topic in topics.items()}
        assert list(stands.values()) == [None, "promoting", "promoting", "promoted"]
        if again == "another run":
            for kill, topic in topics.items():
                report, code = cutover(link, memory, "--topic", topic, quiet_s=0.2)
                assert (code, report["topics"][0]["before"]) == (0, stands[kill] == "promoted"), (
                    kill,
                    report,
                )
                assert [end for end, _ in report["topics"][0]["ends"]] == [5, 5]
            assert promotions(link) == dict.fromkeys(topics.values(), "promoted")
            return
        # The producers stay, or were never stopped: nothing of it is copied before it is given back.
        for topic in topics.values():
            produce(at, topic, [Record(b"more %d" % i, partition=i % 2) for i in range(4)])
        free = topics["before it takes the topic"]
        wait_until(lambda: sum(link.arrived(free)) == 14, "what was never taken", 60)
        held = [topic for topic in topics.values() if topic != free]
        assert [sum(link.arrived(topic)) for topic in held] == [10] * len(held)
        report, code = demote(link, *held)
        assert (code, {line["topic"] for line in report["topics"]}) == (0, set(held)), report
        for topic in held:
            wait_until(lambda topic=topic: sum(link.arrived(topic)) == 14, "what came meanwhile", 60)  # type: ignore[misc]
        assert promotions(link) == {}
    for topic in topics.values():
        assert_copied(link, topic)


@pytest.mark.whole
def test_a_topic_whose_source_goes_on_meanwhile_stays_with_the_link(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written after the last look and before the deduplicator lets go is copied, and the topic is not
    promoted; where it comes later, neither."""
    at, to, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic()
    create_topic(at, topic, 1, KEPT)
    produce(at, topic, [Record(b"%d" % i) for i in range(10)])
    link = Link(at, to, names.link, topic)
    hold, still = Promoting.hold, Promoting._still

    def there(count: int) -> None:
        wait_until(lambda: sum(link.arrived(topic)) == count, "the copies", 90)

    def before(self: Promoting, *args: Any) -> None:
        produce(at, topic, [Record(b"late")])
        there(11)
        hold(self, *args)

    def after(self: Promoting) -> None:
        produce(at, topic, [Record(b"later")])
        still(self)

    with link.running():
        there(10)
        for count, method, late, why in (
            (11, "hold", before, "was delivered up to offset 11, its end was 10"),
            (12, "_still", after, "has not stood still"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(Promoting, method, late)
                report, code = cutover(link, tmp_path / "memory.json", "--topic", topic, quiet_s=0.1)
            assert (code, refused_at(report)) == (1, "hold") and why in report["refused"], report
            assert promotions(link) == {}
            there(count)
        # A deduplicator of an earlier release answers nothing.
        monkeypatch.setattr(LettingGo, "due", lambda self: list[LetGo]())
        monkeypatch.setattr("verbatim.moves.promotion.ANSWER_S", 1.0)
        report, code = cutover(link, tmp_path / "memory.json", "--topic", topic, wait_s=1, quiet_s=0.1)
        assert (code, refused_at(report)) == (1, "hold") and "has not let go of it" in report["refused"]
        assert promotions(link) == {}
    monkeypatch.undo()
    report, code = cutover(link, tmp_path / "memory.json", "--topic", topic, quiet_s=0.1)
    assert (code, refused_at(report)) == (1, "hold") and "not running: deduplicator" in report["refused"]
    assert_copied(link, topic)


def test_a_topic_is_given_back_only_where_nothing_stands_behind_the_copies(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    at, to, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic()
    create_topic(at, topic, PARTITIONS, KEPT)
    produce(at, topic, [Record(b"%d" % i, partition=i % 2) for i in range(10)])
    link = Link(at, to, names.link, topic)
    memory = tmp_path / "memory.json"
    with link.running():
        wait_until(lambda: sum(link.arrived(topic)) == 10, "the copies", 90)
        assert cutover(link, memory, "--topic", topic, quiet_s=0.1)[1] == 0
        assert cutover(link, memory, quiet_s=0.1)[1] == 0, "nothing is left to be moved"
        found = CliRunner().invoke(cli.commands["demote"], ["x"], env=link.variables)
        assert found.exit_code == 2 or "means no topic of this link" in str(found.exception)
        # What was aborted is nothing; what is open may become something.
        producer = Producer({"bootstrap.servers": to, "transactional.id": names.link})
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce(topic, b"perhaps", partition=1)
        producer.flush(10)
        report, code = demote(link, topic)
        assert (code, refused_at(report)) == (1, "target"), report
        assert f"{topic}-1 of the target: a transaction is open from offset" in report["refused"]
        producer.abort_transaction(10)
        written: list[bytes] = []
        with load(to, topic, written):
            wait_until(lambda: written, "a record that somebody writes there")
            report, code = demote(link, topic)
            assert (code, refused_at(report)) == (1, "target") and "somebody writes there" in report[
                "refused"
            ]
        assert promotions(link) == {topic: "promoted"}
    again = names.topic("again")
    create_topic(at, again, 1, KEPT)
    produce(at, again, [Record(b"%d" % i) for i in range(5)])
    other = Link(at, to, f"{names.link}.again", again)
    with other.running():
        wait_until(lambda: sum(other.arrived(again)) == 5, "the copies", 90)
        assert cutover(other, memory, "--topic", again, quiet_s=0.1)[1] == 0
        report, code = demote(other, again, "--dry-run")
        assert code == 0 and promotions(other) == {again: "promoted"}
        report, code = demote(other, again)
        assert (code, steps(report)) == (0, ["link", "source", "target", "copied"]), report
        report, code = demote(other, again)
        assert (code, report["topics"]) == (0, []), "a run that was killed at its end may be run again"
        produce(at, again, [Record(b"after")])
        wait_until(lambda: sum(other.arrived(again)) == 6, "what came after", 60)
        assert cutover(other, memory, "--topic", again, quiet_s=0.1)[1] == 0
        # What comes next is gone from the source.
        produce(at, again, [Record(b"lost"), Record(b"kept")])
        delete_records(at, again, {0: 7})
        report, code = demote(other, again)
        assert (code, refused_at(report)) == (1, "source")
        assert (
            f"{again}-0: it was copied up to source offset 6, and the source has 7 to 8 now"
            in report["refused"]
        )


@pytest.mark.whole
def test_a_promoted_topic_is_left_alone_by_what_moves_the_rest_of_the_link(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    """Promise: no cutover or failover of the rest says where its copies end, and neither they nor an
    undo minds who reads and writes there; turned round it is by name refused, and the rest is without it."""
    at, to, group = source.bootstrap_servers, target.bootstrap_servers, f"{names.link}.g"
    goes, stays = names.topic("goes"), names.topic("stays")
    for topic in (goes, stays):
        create_topic(at, topic, 1, KEPT)
        produce(at, topic, [Record(b"here %d" % i) for i in range(20)])
    commit(at, group, goes, 20)
    link = Link(at, to, names.link, f"{goes},{stays}")
    with link.running():
        eventually(lambda: [link.arrived(t) for t in (goes, stays)] == [[20], [20]], "all to be copied")
        assert cutover(link, tmp_path / "one.json", "--topic", goes)[1] == 0
        assert link.control().handed_over == {}
        produce(to, goes, [Record(b"there")])
        rehearsed, code = cutover(link, tmp_path / "all.json", "--rehearse")
        assert code == 0, rehearsed
        report, code = cutover(link, tmp_path / "all.json")
        assert (code, {of.topic for of in link.control().handed_over.values()}) == (0, {stays}), report
        undone, code = invoked(link, "cutover", "--undo")
        assert code == 0 and undone["groups"] == [], undone
    with closing(member(to, group, goes)) as consumer:
        assert work(consumer, 1) == [b"there"]
        with link.running(replicators=0):
            report, code = invoked(link, "failover")
    assert code == 0, report
    assert {of.topic for of in link.control().handed_over.values()} == {stays}
    report, code = invoked(link, "back")
    assert (code, refused_at(report)) == (1, "copies") and f"topic {goes} is promoted" in report["refused"]
    link.variables["KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE"] = goes
    report, code = invoked(link, "back")
    assert (code, [of["topic"] for of in report["copies"]]) == (0, [stays]), report


def invoked(link: Link, command: str, *args: str) -> tuple[dict[str, Any], int]:
    """What a command says, and its exit code."""
    options = ["--output", "json", "--wait", "30", *args]
    found = CliRunner().invoke(cli.commands[command], options, env=link.variables, catch_exceptions=False)
    return json.loads(found.stdout), found.exit_code
