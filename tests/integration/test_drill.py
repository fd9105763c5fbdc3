"""`verbatim drill` on real brokers, with the source behind a proxy: what it says is lost is what was not
copied when the source was cut off, and afterwards the link goes on as if nothing had been."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import Kafka, Names
from tests.faults.rounds.proxy import Proxy
from tests.integration.test_cutover import KEPT, refused_at
from tests.integration.test_offsets import commit, committed, in_step
from tests.support.brokers import Record, create_topic, produce, read_all
from tests.support.harness import Link, assert_copied, eventually
from tests.support.hooks import hooks
from verbatim.main import cli


def drill(link: Link, *args: str, wait_s: float = 60) -> tuple[dict[str, Any], int]:
    """The report and the exit code."""
    options = ["--output", "json", "--wait", str(wait_s), *args]
    found = CliRunner().invoke(cli.commands["drill"], options, env=link.variables, catch_exceptions=False)
    return json.loads(found.stdout), found.exit_code


@pytest.mark.whole
@pytest.mark.timeout(480)
def test_what_a_drill_says_is_lost_is_what_was_not_copied_and_the_link_goes_on_afterwards(
    behind_a_proxy: Proxy, target: Kafka, names: Names, tmp_path: Path
) -> None:
    """So many records are copied, so many more are kept from it by a limit when the source is cut off."""
    proxy, to = behind_a_proxy, target.bootstrap_servers
    at, topic, group = proxy.bootstrap_servers, names.topic(), f"{names.link}.g"
    # A driver that looks for topics while the source is away ends only after that.
    link = Link(at, to, names.link, topic, CONSUMER_GROUPS=rf"{names.link}\..*", TOPIC_REFRESH_INTERVAL="1h")
    create_topic(at, topic, 2, KEPT)
    produce(at, topic, [Record(b"%d" % i, partition=i % 2) for i in range(100)])
    deduplicator, replicator = link.start_deduplicator(), link.start_replicator()
    cut_s: list[float] = []
    later: list[Any] = []

    def cut() -> None:
        proxy.unreachable.add(1)
        proxy.cut(True)
        cut_s.append(time.time())

    def restore() -> None:
        proxy.unreachable.clear()

    try:
        with in_step(link) as service:

            def stop() -> None:
                replicator.stop(40)
                service.stopping.set()

            commit(at, group, topic, 30)
            eventually(lambda: link.arrived(topic) == [50, 50], "all to be copied", 60)
            eventually(lambda: committed(to, group, topic) is not None, "the group to be in step")
            limited = CliRunner().invoke(
                cli.commands["limit"], [topic, "--records-per-second", "1"], env=link.variables
            )
            assert limited.exit_code == 0, limited.output
            time.sleep(2)
            first_s = time.time()
            produce(at, topic, [Record(b"late %d" % i, partition=i % 2) for i in range(400)])
            with hooks(tmp_path, {"cut": cut, "stop": stop, "restore": restore}) as commands:
                report, code = drill(link, *commands)
            assert code == 0, report
        names_of_steps = [step["name"] for step in report["steps"]]
        assert names_of_steps == [
            "ready",
            "cut",
            "stop",
            "link",
            "stopped",
            "staging",
            "groups",
            "missing",
            "restore",
            "rejoin",
        ]
        there, here = read_all(at, topic), read_all(to, topic)
        missing = [r for p in (0, 1) for r in there[p][len(here[p]) :]]
        assert 0 < report["rpo"]["records"] == len(missing), report["rpo"]
        assert sum(of["records"] for of in report["never_copied"]) == len(missing)
        oldest_s = cut_s[0] - min(r.timestamp for r in missing) / 1000
        assert (
            abs(report["rpo"]["seconds"] - oldest_s) < 1.5
            and report["rpo"]["seconds"] < cut_s[0] - first_s + 1.5
        )
        result = report["result"]
        assert 0 < result["seen_s"] < result["stopped_s"] < report["rto"]["seconds"] < 90
        assert result["after"] == result["gone"] == result["still"] == 0
        assert [(g["group"], g["exact"]) for g in report["groups"]] == [(group, True)]
        # Nothing was lost by it.
        freed = CliRunner().invoke(cli.commands["limit"], [topic, "--none"], env=link.variables)
        assert freed.exit_code == 0
        replicator = link.start_replicator()
        eventually(lambda: link.arrived(topic) == [250, 250], "the rest", 90)
        assert_copied(link, topic)
        later.append(True)
    finally:
        proxy.unreachable.clear()
        for running in (replicator, deduplicator):
            running.application.stopping.set()
        for running in (replicator, deduplicator):
            running.wait(40)
    assert later


def test_a_drill_is_refused_before_anything_is_cut_off_and_lets_the_source_back_where_it_is_refused_later(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    at, to, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic()
    create_topic(at, topic, 1, KEPT)
    produce(at, topic, [Record(b"%d" % i) for i in range(10)])
    link = Link(at, to, names.link, topic)
    assert link.copy() == (0, 0)
    done = [tmp_path / name for name in ("cut", "stop", "restore")]
    commands = [word for file in done for word in (f"--{file.name}", f"touch {file}")]
    report, code = drill(link, *commands, wait_s=1)
    assert (code, refused_at(report)) == (1, "ready") and "replicator does not run" in report["refused"]
    assert [file.exists() for file in done] == [False] * 3
    with link.running():
        eventually(lambda: link.control().led_by.keys() >= {"replicator", "deduplicator"}, "it to run")
        # The command has not cut anything off.
        report, code = drill(link, *commands, wait_s=1)
        assert (code, refused_at(report)) == (1, "cut") and "still answers" in report["refused"]
        assert [file.exists() for file in done] == [True, False, True]
        assert report["rpo"] == {"records": None, "seconds": None}
        done[2].unlink()
        report, code = drill(link, "--cut", "echo no way >&2; exit 7", "--restore", f"touch {done[2]}")
        assert (code, refused_at(report)) == (1, "cut") and "ended with 7: no way" in report["refused"]
        assert done[2].exists()
