"""`verbatim cutover` on real brokers: a consumer group goes on at the target where it stopped, or the command
says why it must not yet."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

from tests.conftest import Kafka, Names
from tests.integration.test_offsets import commit, committed, in_step
from tests.support.beside import beside
from tests.support.brokers import Record, create_topic, member, produce, wait_until
from tests.support.harness import Link
from verbatim.main import cli
from verbatim.verify.link import verify_link

KEPT = {"retention.ms": "-1"}
PARTITIONS = 3


def cutover(link: Link, memory: Path, *args: str, wait_s: float = 30, quiet_s: float = 1) -> tuple[dict[str, Any], int]:  # fmt: skip
    """The report and the exit code."""
    options = ["--output", "json", "--memory", str(memory), "--wait", str(wait_s), "--quiet", str(quiet_s)]
    found = CliRunner().invoke(cli.commands["cutover"], [*options, *args], env=link.variables)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return json.loads(found.stdout), found.exit_code


def refused_at(report: dict[str, Any]) -> str | None:
    """The step that refused, which is the last."""
    states = [(step["name"], step["state"]) for step in report["steps"]]
    assert all(state != "refused" for _, state in states[:-1])
    return states[-1][0] if states[-1][1] == "refused" else None


def work(consumer: Consumer, most: int, give_up_s: float = 20.0) -> list[bytes]:
    """Up to so many records, one by one, each committed; fewer where none comes for a while."""
    values: list[bytes] = []
    give_up = time.monotonic() + give_up_s
    while len(values) < most and time.monotonic() < give_up:
        message = consumer.poll(0.2)
        if message is None or message.error() is not None:
            continue
        value = message.value()
        assert value is not None
        values.append(value)
        consumer.commit(message=message, asynchronous=False)
        give_up = time.monotonic() + (give_up_s if len(values) < most else 0)
    return values


@contextmanager
def load(
    bootstrap: str, topic: str, written: list[bytes], prefix: bytes = b"", first: int = 0
) -> Iterator[None]:
    """A producer of numbers that goes on until the block ends; `written` is what was acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "enable.idempotence": True})

    def main(stop: threading.Event) -> None:
        number = first
        while not stop.is_set():
            value = b"%s%d" % (prefix, number)

            def done(error: Any, message: Any) -> None:
                assert error is None
                written.append(message.value())

            producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=done)
            producer.poll(0)
            number += 1
            time.sleep(0.002)
        producer.flush(10)

    with beside(main, 15):
        yield


@pytest.mark.parametrize(
    "offsets_runs",
    [False, pytest.param(True, marks=pytest.mark.whole)],
    ids=["alone", "beside a running offsets"],
)
def test_a_group_stopped_in_mid_topic_goes_on_at_the_target_missing_nothing_and_seeing_nothing_twice(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, offsets_runs: bool
) -> None:
    at, to, topic, group = (
        source.bootstrap_servers,
        target.bootstrap_servers,
        names.topic(),
        f"{names.link}.g",
    )
    create_topic(at, topic, PARTITIONS, KEPT)
    link = Link(at, to, names.link, topic)
    written: list[bytes] = []
    with link.running():
        with in_step(link) if offsets_runs else nullcontext():
            with load(at, topic, written), closing(member(at, group, topic)) as consumer:
                here = work(consumer, 150)
            assert 150 == len(here) < len(written)
            # Before the link is made, a cutover refuses.
            wait_until(lambda: sum(link.arrived(topic)) > 0, "the link to be made")
            report, code = cutover(link, tmp_path / "memory.json")
            assert (code, report["ok"], report["refused"]) == (0, True, None)
            assert [s["name"] for s in report["steps"]] == [
                "link",
                "producers",
                "lag",
                "groups",
                "verify",
                "still",
            ]
            assert report["seconds"] < 60
            moved = {g["partition"]: g["offset"] for g in report["groups"]}
            assert moved == {p: committed(to, group, topic, p) for p in moved} and moved
        with closing(member(to, group, topic)) as consumer:
            there = work(consumer, len(written) - len(here), 5)
            there += work(consumer, 1, 1)
    assert Counter(here + there) == Counter(written)


@pytest.mark.whole
def test_it_refuses_while_the_source_is_in_use_and_goes_on_from_there_when_it_is_not(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    at, to, topic, group = (
        source.bootstrap_servers,
        target.bootstrap_servers,
        names.topic(),
        f"{names.link}.g",
    )
    memory = tmp_path / "memory.json"
    create_topic(at, topic, PARTITIONS, KEPT)
    produce(at, topic, [Record(b"%d" % i, partition=i % PARTITIONS) for i in range(60)])
    link = Link(at, to, names.link, topic)
    assert link.copy() == (0, 0)

    with load(at, topic, []):
        report, code = cutover(link, memory, wait_s=0)
    assert (code, refused_at(report)) == (1, "producers") and "end has moved" in report["refused"]

    with _transaction(at, topic, f"{names.link}.open"):
        report, code = cutover(link, memory, wait_s=0)
        assert (code, refused_at(report)) == (1, "producers") and "transaction is open" in report["refused"]

    report, code = cutover(link, memory, wait_s=60)
    assert (code, refused_at(report)) == (1, "lag") and report["seconds"] < 30
    assert "not running: replicator, deduplicator, and" in report["refused"]

    with link.running():
        with closing(member(at, group, topic)) as consumer:
            assert len(work(consumer, 10)) == 10
            report, code = cutover(link, memory, wait_s=20, quiet_s=0.3)
            assert (code, refused_at(report)) == (1, "groups"), report
            assert f"group {group} has members at the source" in report["refused"]
            assert committed(to, group, topic) is None
        with closing(member(to, group, topic)) as consumer:
            wait_until(lambda: consumer.poll(0.1) is not None, "the group to be in use at the target")
            report, code = cutover(link, memory, wait_s=1)
            assert (code, refused_at(report)) == (1, "groups") and "active" in report["refused"]
        report, code = cutover(link, memory)
        assert (code, report["refused"]) == (0, None)
        assert _state(report, "verify") == "done"
        again, code = cutover(link, memory)
        assert code == 0 and _state(again, "verify") == "kept"

        # A record that somebody else has written at the target: neither the result kept nor a new comparison
        # passes.
        produce(to, topic, [Record(b"foreign")])
        report, code = cutover(link, memory)
        assert (code, refused_at(report)) == (1, "verify") and "1 foreign" in report["refused"]


def test_a_halted_partition_keeps_everybody_where_they_are(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    at, to = source.bootstrap_servers, target.bootstrap_servers
    fine, kept = names.topic("fine"), names.topic("kept")
    create_topic(at, fine, 1, KEPT)
    create_topic(at, kept, 1, KEPT)
    create_topic(to, kept, 1, {"retention.ms": "3600000"})
    produce(at, fine, [Record(b"v")])
    produce(at, kept, [Record(b"v")])
    link = Link(at, to, names.link, f"{fine},{kept}")
    assert link.copy() == (0, 3)
    with link.running():
        report, code = cutover(link, tmp_path / "memory.json", wait_s=1)
        assert (code, refused_at(report)) == (1, "lag") and "destination-refused" in report["refused"]


@pytest.mark.parametrize("what", ["a record", "a group"])
def test_what_moves_at_the_source_while_both_sides_are_compared_is_noticed(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    at, topic, group = source.bootstrap_servers, names.topic(), f"{names.link}.g"
    create_topic(at, topic, 1, KEPT)
    produce(at, topic, [Record(b"%d" % i) for i in range(10)])
    link = Link(at, target.bootstrap_servers, names.link, topic)
    assert link.copy() == (0, 0)
    commit(at, group, topic, 3)

    def and_then(*args: Any) -> Any:
        report = verify_link(*args)
        if what == "a record":
            produce(at, topic, [Record(b"late")])
        else:
            commit(at, group, topic, 5)
        return report

    monkeypatch.setattr("verbatim.moves.cutover.verify_link", and_then)
    report, code = cutover(link, tmp_path / "memory.json", wait_s=5, quiet_s=0.1)
    assert (code, refused_at(report)) == (1, "still")
    assert ("end has moved" if what == "a record" else "moved meanwhile") in report["refused"]
    monkeypatch.undo()
    if what == "a group":
        report, code = cutover(link, tmp_path / "memory.json", wait_s=5, quiet_s=0.1)
        assert (code, _state(report, "verify")) == (0, "kept")
        # Also where the result can't be kept.
        options = ["--memory", str(tmp_path / "nowhere" / "memory.json"), "--quiet", "0.1"]
        text = CliRunner().invoke(cli.commands["cutover"], options, env=link.variables)
        assert text.exit_code == 0
        lines = text.stdout.splitlines()
        assert [line.split()[:2] for line in lines[:6]] == [["ok", s["name"]] for s in report["steps"]]
        assert "10 records equal; another run will compare them again" in lines[4]
        assert f"group {group}, {topic}-0: goes on at offset" in lines[6] and lines[-1].startswith(
            "ok: done in "
        )


def _state(report: dict[str, Any], name: str) -> str:
    return next(str(step["state"]) for step in report["steps"] if step["name"] == name)


@contextmanager
def _transaction(bootstrap: str, topic: str, transactional_id: str) -> Iterator[None]:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"perhaps", partition=0)
    producer.flush(10)
    try:
        yield
    finally:
        producer.abort_transaction(10)
