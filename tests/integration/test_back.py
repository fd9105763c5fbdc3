"""The way back on real brokers: after a cutover or a failover a link is turned round, and each record is on
both sides once, each group reads each record once; killed anywhere, another run comes to the same end."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from common.link.control_log import ControlLog
from tests.conftest import Kafka, Names
from tests.integration.test_cutover import cutover, load, refused_at, work
from tests.integration.test_failover import failover
from tests.integration.test_group_moves import Killed, killed_at, rest
from tests.integration.test_offsets import commit, committed, once, run, with_settings
from tests.support.brokers import (
    Record,
    create_topic,
    delete_topic,
    end_offsets,
    member,
    produce,
    read_all,
    wait_until,
)
from tests.support.harness import Link, assert_copied, contents, eventually
from tests.support.unchanged import assert_unchanged, everything
from verbatim.local.kafka_cluster import Cluster
from verbatim.main import cli
from verbatim.moves.back import Back
from verbatim.verify.link import Options, verify_link

WIDE = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
AT_MS = 1_700_000_000_000


def back(link: Link, *args: str, wait_s: float = 10) -> tuple[dict[str, Any], int]:
    """The report and the exit code; raises what kills it."""
    options = ["--output", "json", "--wait", str(wait_s), *args]
    found = CliRunner().invoke(cli.commands["back"], options, env=link.variables, catch_exceptions=False)
    return json.loads(found.stdout), found.exit_code


def turned(link: Link, file: Path) -> Link:
    """The link that a file of settings is of, which goes the other way."""
    said = {name: str(value) for name, value in yaml.safe_load(file.read_text()).items()}
    found = Link(
        link.target, link.source, said["APPLICATION_NAME"], said["KAFKA_CLUSTERS_SOURCE_TOPIC"], **said
    )
    assert found.settings.source_bootstrap_servers == link.target
    return found


def let_in(link: Link, *destinations: str) -> None:
    """The operator's consent, as `back` says."""
    eventually(lambda: link.control().topics, "the link to know its topics")
    found = CliRunner().invoke(cli.commands["accept-destination"], list(destinations), env=link.variables)
    assert found.exit_code == 0, found.output


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for partition in read_all(bootstrap, topic) for record in partition]


@pytest.mark.whole
@pytest.mark.timeout(480)
def test_after_a_cutover_all_goes_back_from_where_the_copies_end_and_each_group_reads_each_record_once(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    """There and back under load, under another name. `early` has read nothing new at the target, `late` not
    even all that was copied: that goes back by the way there."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic, there = names.topic(), names.topic("there")
    group, early, late = (f"{names.link}.{who}" for who in ("group", "early", "late"))
    create_topic(at, topic, 3, WIDE)
    link = Link(at, to, names.link, topic, KAFKA_CLUSTERS_DESTINATION_TOPIC_MAP=f"{topic}={there}")
    first: list[bytes] = []
    second: list[bytes] = []
    seen: dict[str, list[bytes]] = {}
    with link.running():
        with load(at, topic, first):
            for who in (group, early, late):
                with closing(member(at, who, topic)) as consumer:
                    seen[who] = work(consumer, 60)
        report, code = cutover(link, tmp_path / "memory.json")
        assert code == 0, report
    with closing(member(to, early, there)) as consumer:
        seen[early] += rest(consumer, len(first) - len(seen[early]))
    with closing(member(to, late, there)) as consumer:
        seen[late] += work(consumer, 30)
    file = tmp_path / "back.yaml"
    report, code = back(link, "--settings", str(file))
    assert (code, report["never_copied"]) == (0, []), report
    reverse = turned(link, file)
    with load(to, there, second, first=1_000_000):
        with closing(member(to, group, there)) as consumer:
            seen[group] += rest(consumer, len(first) - len(seen[group]))
        with reverse.running():
            let_in(reverse, topic)
            wait_until(lambda: len(values(at, topic)) > len(first) + 100, "what is new to come back", 90)
            with closing(member(to, group, there)) as consumer:
                seen[group] += work(consumer, 50)
    with reverse.running():
        # `late` stands before where the way back begins.
        report, code = cutover(reverse, tmp_path / "back.json", wait_s=20)
        assert code == 1 and "before-origin" in report["refused"], report
        assert late in report["refused"] and f"group {early}," not in report["refused"]
        run(link, "--reverse", CONSUMER_GROUPS=late.replace(".", r"\."))
        report, code = cutover(
            with_settings(reverse, CONSUMER_GROUPS_EXCLUDE=late), tmp_path / "back.json", wait_s=60
        )
        assert code == 0, report
    assert Counter(values(at, topic)) == Counter(first + second)
    for who, read in seen.items():
        with closing(member(at, who, topic)) as consumer:
            read += rest(consumer, len(first) + len(second) - len(read))
        assert Counter(read) == Counter(first + second), who
    # And the link that went there, started by mistake, copies nothing of what came back.
    held = end_offsets(to, there, "read_uncommitted")
    with link.running():
        eventually(lambda: link.control().led_by.get("replicator"), "it to run")
        time.sleep(3)
    assert end_offsets(to, there, "read_uncommitted") == held


@pytest.fixture(scope="module")
def gone_over(source: Kafka, target: Kafka, tmp_path_factory: pytest.TempPathFactory) -> tuple[Link, str]:
    """A link whose cutover has come to its end, and its topic; nothing has happened since."""
    name = f"t{secrets.token_hex(4)}"
    at, topic = source.bootstrap_servers, f"{name}.t"
    create_topic(at, topic, 2, WIDE)
    produce(at, topic, [Record(b"%d" % i, partition=i % 2) for i in range(20)])
    link = Link(at, target.bootstrap_servers, name, topic, CONSUMER_GROUPS=rf"{name}\..*")
    assert link.copy() == (0, 0)
    memory = tmp_path_factory.mktemp("memory") / "memory.json"
    # Killed before and after it was written down, it comes to the same end.
    for after in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            killed_at(patch, ControlLog, "append_all", after)
            with pytest.raises(Killed):
                _cut_over(link, memory)
        assert len(link.control().handed_over) == after
    (first,) = link.control().handed_over.values()
    assert cutover(link, memory, quiet_s=0.1)[1] == 0
    assert link.control().handed_over == {first.topic_id: first}
    return link, topic


def _cut_over(link: Link, memory: Path) -> None:
    options = ["--memory", str(memory), "--quiet", "0.1"]
    CliRunner().invoke(cli.commands["cutover"], options, env=link.variables, catch_exceptions=False)


def test_what_a_cutover_writes_down_is_the_offset_behind_the_last_copy_of_each_partition(
    gone_over: tuple[Link, str],
) -> None:
    link, topic = gone_over
    (said,) = link.control().handed_over.values()
    assert (said.topic, said.destination, said.by, said.emptied) == (topic, topic, "cutover", False)
    assert said.delivered == (10, 10)
    here = read_all(link.target, topic)
    assert list(said.ends) == [partition[-1].offset + 1 for partition in here]
    # Behind it there is a marker.
    assert list(said.ends) == [
        end - 1 for end in end_offsets(link.target, topic, "read_uncommitted").values()
    ]


def test_killed_between_two_steps_another_run_of_back_comes_to_the_same_end(
    gone_over: tuple[Link, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, _ = gone_over
    before = {at: everything(at) for at in (link.source, link.target)}
    report, code = back(link)
    assert code == 0 and [s["name"] for s in report["steps"]] == ["link", "stopped", "copies", "source"]
    for at, found in before.items():
        assert_unchanged(at, found)
    written = []
    steps = [(Back, "_write", False), (ControlLog, "append", False), (ControlLog, "append", True)]
    for number, (cls, method, after) in enumerate(steps):
        with monkeypatch.context() as patch:
            killed_at(patch, cls, method, after)
            with pytest.raises(Killed):
                back(link, "--settings", str(tmp_path / f"{number}.yaml"))
        file = tmp_path / f"{number}.yaml"
        written.append(file.read_text() if file.exists() else "")
    assert bool(link.control().steering.pauses)
    report, code = back(link, "--settings", str(tmp_path / "last.yaml"))
    assert code == 0
    last = (tmp_path / "last.yaml").read_text()
    assert written == ["", last, last]
    said = yaml.safe_load(last)
    assert said["APPLICATION_NAME"] == f"{link.settings.application_name}.back"


def test_back_refuses_whatever_is_not_as_it_was_written_down(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    at, to, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic()
    create_topic(at, topic, 1, WIDE)
    produce(at, topic, [Record(b"%d" % i) for i in range(10)])
    link = Link(at, to, names.link, topic)
    assert link.copy() == (0, 0)
    report, code = back(link)
    assert (code, refused_at(report)) == (1, "copies")
    assert "neither a cutover nor a failover has come to its end" in report["refused"]
    assert cutover(link, tmp_path / "memory.json", quiet_s=0.1)[1] == 0
    with link.running():
        eventually(lambda: link.control().led_by.get("deduplicator"), "the link to run")
        report, code = back(link, wait_s=0)
        assert (code, refused_at(report)) == (1, "stopped") and "`replicator` still runs" in report["refused"]
    produce(at, topic, [Record(b"more", b"k", timestamp=AT_MS)])
    report, code = back(link, "--keys")
    assert (code, refused_at(report)) == (1, "source") and "1 records of 1 partitions" in report["refused"]
    (left,) = report["records"]
    assert (left["topic"], left["partition"], left["offset"]) == (topic, 0, 10)
    assert (left["timestamp_ms"], left["key_bytes"], left["value_bytes"], left["key"]) == (
        AT_MS,
        1,
        4,
        "aw==",
    )
    assert link.copy() == (0, 0)
    report, code = back(link)
    assert (code, refused_at(report)) == (1, "copies") and "has gone on copying since" in report["refused"]
    assert cutover(link, tmp_path / "memory.json", quiet_s=0.1)[1] == 0
    file = tmp_path / "back.yaml"
    text = CliRunner().invoke(cli.commands["back"], ["--settings", str(file)], env=link.variables)
    assert text.exit_code == 0 and f"accept-destination --config {file} {topic}" in text.stdout
    reverse = turned(link, file)
    assert reverse.replicate() == 0
    report, code = back(link)
    assert (code, refused_at(report)) == (1, "stopped") and "has begun" in report["refused"]
    for own in ("control", "staging", "positions", "offset-mappings"):
        delete_topic(at, f"{reverse.settings.application_name}.{own}")
    delete_topic(to, topic)
    create_topic(to, topic, 1, WIDE)
    report, code = back(link)
    assert (code, refused_at(report)) == (1, "copies") and "deleted or made again" in report["refused"]


def lost_and_found(link: Link, cluster: Cluster, topic: str, group: str) -> None:
    """40 records of each of two partitions are delivered, 10 more only at the source, which is gone and comes
    back; consumers and producers went on at the target."""

    def write(begin: int, end: int) -> None:
        for p in (0, 1):
            found = [
                Record(
                    None if i % 5 == 0 else b"%d-%d" % (p, i),
                    None if i % 3 == 0 else b"k%d" % i,
                    p,
                    AT_MS + i,
                    [("h", None), ("h", b"%d" % i)] if i % 2 else None,
                )
                for i in range(begin, end)
            ]
            produce(link.source, topic, found)

    create_topic(link.source, topic, 2, WIDE)
    write(0, 40)
    assert link.copy() == (0, 0)
    commit(link.source, group, topic, 35)
    once(link)
    write(40, 50)
    cluster.kill(1)
    report, code = failover(link, wait_s=60)
    assert code == 0, report
    for p in (0, 1):
        produce(link.target, topic, [Record(b"new %d-%d" % (p, i), partition=p) for i in range(15)])
    with closing(member(link.target, group, topic)) as consumer:
        # Those with a value: all of one partition, five of the other, and what is new.
        assert len(rest(consumer, 32 + 4 + 30)) == 32 + 4 + 30
    # Again: it does not take what was produced since for copies.
    assert failover(link, wait_s=60)[1] == 0
    cluster.restart(1)


@pytest.mark.whole
@pytest.mark.timeout(480)
def test_after_a_failover_what_was_never_copied_is_told_and_exported_and_stays_below_what_comes_back(
    target: Kafka, names: Names, tmp_path: Path
) -> None:
    topic, group = names.topic(), f"{names.link}.g"
    with Cluster() as cluster:
        link = Link(cluster.bootstrap_servers, target.bootstrap_servers, names.link, topic)
        lost_and_found(link, cluster, topic, group)
        there = read_all(link.source, topic)
        export, file = tmp_path / "never.jsonl", tmp_path / "back.yaml"
        report, code = back(link, "--export", str(export), "--settings", str(file), wait_s=30)
        assert (code, refused_at(report)) == (1, "source") and "20 records of 2 partitions" in report[
            "refused"
        ]
        assert not file.exists()
        told = [(r["partition"], r["offset"], r["timestamp_ms"], r["value_bytes"]) for r in report["records"]]
        wanted = [
            (p, r.offset, r.timestamp, None if r.value is None else len(r.value))
            for p, of in enumerate(there)
            for r in of[40:]
        ]
        assert sorted(told, key=str) == sorted(wanted, key=str)
        counts = {of["partition"]: of for of in report["never_copied"]}
        assert [(counts[p]["records"], counts[p]["oldest_ms"], counts[p]["newest_ms"]) for p in (0, 1)] == [
            (10, AT_MS + 40, AT_MS + 49)
        ] * 2
        # The bytes are exact: written anywhere, they are those records.
        elsewhere = names.topic("elsewhere")
        create_topic(link.target, elsewhere, 2, WIDE)
        lines = [json.loads(line) for line in export.read_text().splitlines()]
        for line in lines:
            produce(link.target, elsewhere, [imported(line)])
        assert [[contents(r) for r in of] for of in read_all(link.target, elsewhere)] == [
            [contents(r) for r in of[40:]] for of in there
        ]
        assert export.stat().st_mode & 0o777 == 0o600
        # Another export is not written over it.
        export.write_text("{}")
        report, code = back(link, "--export", str(export), "--tails", "keep", "--settings", str(file))
        assert code == 2 and "is there, with other records" in report["refused"]
        export.unlink()
        report, code = back(link, "--tails", "keep", "--settings", str(file))
        assert code == 0, report
        reverse = turned(link, file)
        with reverse.running():
            let_in(reverse, topic)
            eventually(lambda: reverse.arrived(topic) == [65, 65], "what is new", 90)
            report, code = cutover(reverse, tmp_path / "memory.json", wait_s=60)
            assert code == 0, report
        for p, of in enumerate(read_all(link.source, topic)):
            assert [contents(r) for r in of[:50]] == [contents(r) for r in there[p]]
            assert [r.value for r in of[50:]] == [b"new %d-%d" % (p, i) for i in range(15)]
        assert not verify_link(reverse.settings, Options()).failed()
        produce(link.source, topic, [Record(b"next")])
        with closing(member(link.source, group, topic)) as consumer:
            assert rest(consumer, 1) == [b"next"]


def imported(line: dict[str, Any]) -> Record:
    """A record as an export has it."""

    def plain(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    headers = [(name, plain(value)) for name, value in line["headers"]]
    return Record(
        plain(line["value"]), plain(line["key"]), line["partition"], line["timestamp"], headers or None
    )


@pytest.mark.whole
@pytest.mark.timeout(480)
def test_topics_that_hold_what_was_never_copied_are_emptied_on_request_and_come_back_whole(
    target: Kafka, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each step, another run goes on from there. Nothing is deleted that was not exported or is not
    at the target."""
    topic, group = names.topic(), f"{names.link}.g"
    with Cluster() as cluster:
        link = Link(cluster.bootstrap_servers, target.bootstrap_servers, names.link, topic)
        lost_and_found(link, cluster, topic, group)
        export, file = tmp_path / "never.jsonl", tmp_path / "back.yaml"
        empty = ["--tails", "empty", "--export", str(export), "--settings", str(file)]
        report, code = back(link, "--tails", "empty")
        assert code == 2 and report["refused"].startswith("--tails: empty goes with")
        held = [len(of) for of in read_all(link.source, topic)]
        with monkeypatch.context() as patch:
            # What is there is not what was copied.
            patch.setattr("verbatim.moves.back_rules.differences", lambda *_: ["t-0: 1 altered"])
            report, code = back(link, *empty)
        assert (code, refused_at(report)) == (1, "empty") and "nothing is deleted: t-0" in report["refused"]
        for after in (False, True):
            with monkeypatch.context() as patch:
                killed_at(patch, ControlLog, "append_all", after)
                with pytest.raises(Killed):
                    back(link, *empty)
            assert [len(of) for of in read_all(link.source, topic)] == held and not file.exists()
        lines = export.read_text().splitlines()
        assert len(lines) == 20
        with monkeypatch.context() as patch:
            killed_at(patch, ControlLog, "append", False)
            with pytest.raises(Killed):
                back(link, "--settings", str(file))
        assert [len(of) for of in read_all(link.source, topic)] == [0, 0]
        report, code = back(link, *empty)
        assert (code, report["never_copied"]) == (0, []), report
        assert export.read_text().splitlines() == lines
        reverse = turned(link, file)
        assert "START_OFFSETS" in file.read_text() and reverse.settings.start_offsets == "earliest"
        with reverse.running():
            let_in(reverse, topic)
            eventually(lambda: reverse.arrived(topic) == [55, 55], "all of it", 90)
            report, code = cutover(reverse, tmp_path / "memory.json", wait_s=60)
            assert code == 0, report
        assert_copied(reverse, topic)
        assert committed(link.source, group, topic) == end_offsets(link.source, topic)[0] - 1
