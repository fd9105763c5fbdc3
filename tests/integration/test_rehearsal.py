"""`verbatim cutover --rehearse` on real brokers: it writes nothing, takes what runs for no doubt, and names
every other one; how long it says that a cutover takes is what one takes."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from common.link.permissions import DEDUPLICATOR, OFFSETS, REPLICATOR
from tests.conftest import Kafka, Names
from tests.integration.test_cutover import KEPT, cutover, load, refused_at, work
from tests.integration.test_group_moves import open_transaction, rest
from tests.integration.test_offsets import commit, committed, in_step
from tests.support.brokers import Record, create_topic, end_offsets, member, produce, topics, wait_until
from tests.support.guarded import Guarded
from tests.support.harness import Link, eventually
from tests.support.secured import Right, SecuredCluster
from tests.support.unchanged import assert_unchanged, everything
from verbatim.main import cli

STEPS = ["link", "producers", "lag", "groups", "verify", "still"]


def rehearse(link: Link, *args: str, wait_s: float = 30, quiet_s: float = 1) -> tuple[dict[str, Any], int]:
    """The report and the exit code."""
    options = ["--rehearse", "--output", "json", "--wait", str(wait_s), "--quiet", str(quiet_s), *args]
    found = CliRunner().invoke(cli.commands["cutover"], options, env=link.variables, catch_exceptions=False)
    return json.loads(found.stdout), found.exit_code


def doubts(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(doubt["step"], doubt["what"]) for doubt in report["doubts"]]


def test_under_load_nothing_stands_in_the_way_and_the_cutover_that_follows_takes_no_longer_than_was_said(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    """Producers, a consumer and `offsets` run throughout; the group then reads each record once."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic, group = names.topic(), f"{names.link}.g"
    create_topic(at, topic, 3, KEPT)
    link = Link(at, to, names.link, topic)
    written: list[bytes] = []
    with link.running():
        with in_step(link):
            with load(at, topic, written), closing(member(at, group, topic)) as consumer:
                wait_until(lambda: 0 not in (link.arrived(topic) or [0]), "the link to copy", 90)
                seen = work(consumer, 50)
                report, code = rehearse(link)
                assert (code, report["doubts"]) == (0, []), report
                seen += work(consumer, 50)
            assert [step["name"] for step in report["steps"]] == list(report["expected"]) == STEPS
            told = {step["name"]: "; ".join(step["found"]) for step in report["steps"]}
            assert "3 of 3 partitions are written to" in told["producers"]
            assert f"in use at the source, to be stopped: {group}" in told["groups"]
            assert "records equal" in told["verify"]
            assert report["expected"]["producers"] >= 1
            assert sum(report["expected"].values()) - report["expected_seconds"] < 0.01
            real, code = cutover(link, tmp_path / "memory.json")
            assert code == 0, real
            # With what a member takes to be gone, and for what the machine is busy with otherwise.
            assert real["seconds"] < 2 * report["expected_seconds"] + 8
        with closing(member(to, group, topic)) as consumer:
            seen += rest(consumer, len(written) - len(seen))
    assert Counter(seen) == Counter(written)


def test_it_writes_nothing_to_either_cluster(source: Kafka, target: Kafka, names: Names) -> None:
    """All that a cutover would write is there to be written: a group, and the topic of its translations."""
    at, to, topic, group = (
        source.bootstrap_servers,
        target.bootstrap_servers,
        names.topic(),
        f"{names.link}.g",
    )
    create_topic(at, topic, 2, KEPT)
    produce(at, topic, [Record(b"%d" % i, partition=i % 2) for i in range(20)])
    link = Link(at, to, names.link, topic)
    assert link.copy() == (0, 0)
    commit(at, group, topic, 3)
    commit(to, f"{names.link}.other", topic, 1)  # the cluster has the topic that groups are kept in
    before = {bootstrap: everything(bootstrap) for bootstrap in (at, to)}
    report, code = rehearse(link, quiet_s=0.2)
    assert (code, report["refused"]) == (0, None), report
    for bootstrap in (at, to):
        assert_unchanged(bootstrap, before[bootstrap])
    assert (committed(at, group, topic), committed(to, group, topic)) == (3, None)
    assert link.settings.group_offsets_topic not in topics(to)
    assert report["groups"][0]["outcome"] == "written"
    text = CliRunner().invoke(cli.commands["cutover"], ["--rehearse", "--quiet", "0.2"], env=link.variables)
    lines = text.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:6]] == [["ok", step] for step in STEPS]
    assert lines[6].startswith("a cutover stands still for about ") and lines[7].startswith("ok: ")


@pytest.mark.whole
def test_every_doubt_is_named_and_what_runs_is_none(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    """A halted partition, a paused topic, a topic whose applications do not run, a group that others have
    moved at the target, and one in use there."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    fine, kept, late = names.topic("fine"), names.topic("kept"), names.topic("late")
    ahead, used = f"{names.link}.ahead", f"{names.link}.used"
    for topic in (fine, kept, late):
        create_topic(at, topic, 1, KEPT)
        produce(at, topic, [Record(b"%d" % i) for i in range(10)])
    create_topic(to, kept, 1, {"retention.ms": "3600000"})
    link = Link(at, to, names.link, f"{fine},{kept},{late}")
    assert link.copy() == (0, 3)
    for group in (ahead, used):
        commit(at, group, fine, 4)
        commit(to, group, fine, 9)
    produce(at, late, [Record(b"late")])
    paused = CliRunner().invoke(cli.commands["pause"], [late], env=link.variables)
    assert paused.exit_code == 0, paused.output
    with (
        closing(member(to, used, fine)) as consumer,
        open_transaction(at, fine, names.link, 2) as producer,
    ):
        wait_until(lambda: consumer.poll(0.1) is not None, "the group to be in use at the target")
        report, code = rehearse(link, quiet_s=0.2, wait_s=2)
        producer.abort_transaction(10)
    assert code == 1 and [step["name"] for step in report["steps"]] == STEPS
    found = doubts(report)
    words = {
        ("producers", f"topic {late} is paused"),
        ("lag", f"{kept}-0 stands still: destination-refused"),
        ("lag", "not running: replicator, deduplicator, and"),
        ("groups", f"group {ahead}, {fine}-0: target-ahead"),
        ("groups", f"group {used}, {fine}-0: active"),
        ("verify", f"{kept}-0: 2 halted"),
    }
    for step, what in words:
        assert any(of == step and what in said for of, said in found), f"{step} {what}: {found}"
    assert len(found) == len(words), found
    # It is waited for, whoever has opened it.
    told = "; ".join(report["steps"][1]["found"])
    assert f"{fine}-0: a transaction is open from offset 10 all the time" in told
    real, code = cutover(link, tmp_path / "memory.json", wait_s=0)
    assert (code, refused_at(real)) == (1, "producers")


@pytest.mark.whole
def test_a_lag_that_is_not_drained_in_time_is_a_doubt(source: Kafka, target: Kafka, names: Names) -> None:
    """Something is left, and the applications run: not one of them is said to be at fault."""
    at, to, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic()
    create_topic(at, topic, 1, KEPT)
    produce(at, topic, [Record(b"%d" % i) for i in range(10)])
    link = Link(at, to, names.link, topic)
    assert link.copy() == (0, 0)
    with link.running():
        limited = CliRunner().invoke(
            cli.commands["limit"], [topic, "--records-per-second", "1"], env=link.variables
        )
        assert limited.exit_code == 0, limited.output
        end = end_offsets(at, topic, "read_uncommitted")[0]
        produce(at, topic, [Record(b"%d" % i) for i in range(300)])
        eventually(lambda: link.arrived(topic)[0] > 10, "both applications to run", 120)
        report, code = rehearse(link, quiet_s=0.2, wait_s=1)
    assert code == 1 and end == 10
    ((step, what),) = doubts(report)
    assert step == "lag" and "offsets are not delivered after" in what, what


@pytest.mark.whole
def test_a_right_that_a_cutover_would_lack_is_named(
    guarded: tuple[SecuredCluster, SecuredCluster],
) -> None:
    """READ on a group at the target, and WRITE on the topics that it writes to."""
    found = Guarded(guarded, "rehearsed")
    at = guarded[0].bootstrap_servers
    create_topic(at, found.topic("orders"), 1, KEPT)
    produce(at, found.topic("orders"), [Record(b"before")])
    commit(at, f"{found.name}-g1", found.topic("orders"), 1)
    assert [found.run(principal) for principal in (REPLICATOR, DEDUPLICATOR, OFFSETS)] == [0, 0, 0]
    mine = found.topic("orders")
    for_verify = [Right("DESCRIBE_CONFIGS", "TOPIC", mine), Right("DESCRIBE", "GROUP", f"{found.name}.*")]
    guarded[0].grant(found.user(OFFSETS), [Right("READ", "TOPIC", mine), *for_verify])
    guarded[1].grant(found.user(OFFSETS), [Right("READ", "TOPIC", f"{found.name}.positions"), *for_verify])
    link = found.links[OFFSETS]
    report, code = rehearse(link, quiet_s=0.2)
    assert (code, doubts(report)) == (0, []), report
    denied = [
        ("READ", "GROUP", f"{found.name}-g1"),
        ("WRITE", "TOPIC", f"{found.name}.control"),
        ("WRITE", "TOPIC", f"{found.name}.group-offsets"),
    ]
    with found.denying(OFFSETS, "target", *denied):
        report, code = rehearse(link, quiet_s=0.2)
    said = "; ".join(what for _, what in doubts(report))
    assert (
        code == 1
        and f"group {found.name}-g1: its offsets in {found.topic('orders')} can't be written" in said
    )
    assert f"topic {found.name}.control: not allowed to write" in said
    assert f"topic {found.name}.group-offsets: not allowed to write" in said
    assert len(doubts(report)) == 3, said
