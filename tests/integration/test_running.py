"""How a link runs is changed while it runs: topics paused, resumed and limited, on real brokers, and nothing
lost or repeated by it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from common.app.health import Health
from common.errors import SettingsError
from replicator.lane import throttle
from replicator.lane.partition_copy import PartitionCopy
from replicator.lane.source_reader import Source
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link, Running, assert_copied, eventually
from tests.support.metrics import sample, text
from verbatim.main import cli

OBEYED_S = 5.0


def verbatim(link: Link, *args: str) -> Any:
    """What a command of `verbatim` says, as JSON."""
    command, *rest = args
    found = CliRunner().invoke(cli.commands[command], [*rest, "--output", "json"], env=link.variables)
    if found.exception is not None:
        raise found.exception
    return json.loads(found.stdout)


def records(count: int, partitions: int = 2, size: int = 100, begin: int = 0) -> list[Record]:
    return [
        Record(b"%0*d" % (size, i), b"k%d" % i, partition=i % partitions) for i in range(begin, begin + count)
    ]


@pytest.fixture
def suspended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Little is parked, so that fetching is suspended often; the names of the partitions with which that was
    done."""
    found: list[str] = []
    hold = Source.hold

    def holding(self: Source, copies: Collection[PartitionCopy]) -> None:
        found.extend(copy.name for copy in copies)
        hold(self, copies)

    monkeypatch.setattr(throttle, "MOST_RECORDS", 300)
    monkeypatch.setattr(Source, "hold", holding)
    return found


def arrives(link: Link, topic: str, count: int, timeout_s: float = 30.0) -> None:
    eventually(lambda: sum(link.arrived(topic)) >= count, f"{count} records in {topic}", timeout_s)


def stands_still(count: Callable[[], int], for_s: float) -> int:
    """What is counted, which may not change meanwhile."""
    before = count()
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        time.sleep(0.2)
        assert count() == before
    return before


def health(running: list[Running]) -> Health:
    return running[0].application.health


def test_a_paused_topic_stands_still_until_it_is_resumed_and_the_others_go_on(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: within seconds of `pause` no record of the topic is staged, the others go on; a replicator
    that starts later obeys too; it is no halt; health and metrics tell; after `resume` every record arrives,
    once."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    paused, other = names.topic("paused"), names.topic("other")
    for topic in (paused, other):
        create_topic(at, topic, 2)
        produce(at, topic, records(100))
    link = Link(at, to, names.link, rf"{names.link}\.t\..*")
    with link.running() as instances:
        arrives(link, paused, 100)
        shown = verbatim(link, "pause", paused)
        assert {t["topic"]: t["paused"] for t in shown["topics"]} == {paused: True, other: False}
        eventually(lambda: health(instances).paused == [paused], "the pause in health", OBEYED_S)
        time.sleep(OBEYED_S)
        for topic in (paused, other):
            produce(at, topic, records(100, begin=100))
        arrives(link, other, 200)
        assert stands_still(lambda: sum(link.arrived(paused)), 2) == 100
        assert health(instances).report()["status"] == "paused"
        assert sample(health(instances), "verbatim_paused_topics") == 1
        assert link.halted() == {}
        lag = "the paused topic in the lag"
        eventually(lambda: health(instances).work.counts["lag"] == 100, lag, 15)
    with link.running() as instances:
        produce(at, other, records(100, begin=200))
        arrives(link, other, 300)
        assert stands_still(lambda: sum(link.arrived(paused)), 2) == 100
        assert health(instances).paused == [paused]
        verbatim(link, "resume", paused)
        arrives(link, paused, 200, OBEYED_S + 5)
        eventually(lambda: health(instances).paused == [], "the end of the pause in health", OBEYED_S)
        assert health(instances).report()["status"] == "ok"
    for topic in (paused, other):
        assert_copied(link, topic)


@pytest.mark.whole
def test_what_is_said_of_a_link_before_its_replicator_has_led_is_obeyed_from_the_first_start(
    source: Kafka, target: Kafka, names: Names
) -> None:
    at, to = source.bootstrap_servers, target.bootstrap_servers
    paused, other = names.topic("paused"), names.topic("other")
    for topic in (paused, other):
        create_topic(at, topic, 2)
        produce(at, topic, records(10))
    link = Link(at, to, names.link, rf"{names.link}\.t\..*")
    assert link.deduplicate() == 0
    shown = verbatim(link, "pause", paused)
    assert [(t["topic"], t["paused"], t["copied"]) for t in shown["topics"]] == [(paused, True, False)]
    with pytest.raises(
        SettingsError, match="elsewhere is not copied by this link, and KAFKA_CLUSTERS_SOURCE_TOPIC"
    ):
        verbatim(link, "pause", "elsewhere")
    with link.running():
        arrives(link, other, 10)
        assert stands_still(lambda: sum(link.arrived(paused)), 1) == 0
        verbatim(link, "resume", paused)
        arrives(link, paused, 10)
    for topic in (paused, other):
        assert_copied(link, topic)


@pytest.mark.whole
def test_a_link_that_is_paused_under_load_goes_on_exactly_where_it_stood(
    source: Kafka, target: Kafka, names: Names, suspended: list[str]
) -> None:
    """Promise: pauses and limits that come and go in the middle of a full stream lose nothing and repeat
    nothing; after a failover the new leader obeys what was said before it."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    first, second = names.topic("first"), names.topic("second")
    for topic in (first, second):
        create_topic(at, topic, 3)
    link = Link(at, to, names.link, rf"{names.link}\.t\..*")
    with link.running(replicators=2) as instances:
        for go in range(6):
            for topic in (first, second):
                produce(at, topic, records(6000, 3, begin=6000 * go))
            if go == 1:
                arrives(link, first, 1)
                arrives(link, second, 1)
                verbatim(link, "pause")
            elif go == 2:
                leader = next(r for r in instances[:2] if r.application.health.role == "leader")
                leader.stop()
                verbatim(link, "resume", first)
            elif go == 3:
                verbatim(link, "limit", f"{names.link}.*d", "--records-per-second", "2000")
                verbatim(link, "limit", "--bytes-per-second", "4MB")
                verbatim(link, "resume")
            elif go == 4:
                verbatim(link, "pause", second)
                time.sleep(1)
            elif go == 5:
                assert sum(link.arrived(second)) < 36_000, "it was read faster than its limit"
                verbatim(link, "resume", second)
                time.sleep(1)
                verbatim(link, "limit", f"{names.link}.*d", "--none")
                verbatim(link, "limit", "--none")
        for topic in (first, second):
            arrives(link, topic, 36_000, 60)
    assert suspended, "shows nothing"
    for topic in (first, second):
        assert_copied(link, topic)


@pytest.mark.parametrize("how", ["records", pytest.param("bytes", marks=pytest.mark.whole)])
def test_a_limited_topic_keeps_to_its_rate_and_holds_nobody_up(
    source: Kafka, target: Kafka, names: Names, suspended: list[str], how: str
) -> None:
    """Promise: over all lanes a topic is staged no faster than its limit, steadily, while the others are
    copied as fast as they come; and every record arrives, once, in order."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    slow, fast = names.topic("slow"), names.topic("fast")
    for topic in (slow, fast):
        create_topic(at, topic, 4)
    link = Link(at, to, names.link, rf"{names.link}\.t\..*")
    rate, size, many = 500, 1000, 12_000
    told = ["--records-per-second", str(rate)] if how == "records" else ["--bytes-per-second", "560KB"]
    with link.running() as instances:
        eventually(lambda: link.arrived(slow), "the destination")
        verbatim(link, "limit", slow, *told)
        eventually(lambda: slow in health(instances).limits, "the limit in health", OBEYED_S)
        assert f'topic="{slow}"' in text(health(instances))
        assert not sample(health(instances), "verbatim_limit_wait_seconds_total")
        time.sleep(1)
        produced = time.monotonic()
        # As much as takes longer than the other topic does on a busy machine.
        produce(at, slow, records(many, 4, size))
        produce(at, fast, records(6000, 4, size))
        arrives(link, fast, 6000, 20)
        begun, there = time.monotonic(), sum(link.arrived(slow))
        assert there < many - 5 * rate
        seen: list[int] = []
        while len(seen) < 4 and (not seen or seen[-1] < many):
            # Asking takes most of a second itself on a busy machine, and by then the last record may have
            # come.
            time.sleep(1)
            seen.append(sum(link.arrived(slow)))
        passed = time.monotonic() - begun
        assert seen[-1] - there <= rate * (passed + 1.5), "faster than its limit"
        assert seen[-1] - there >= 0.5 * rate * passed, "far slower than its limit"
        assert all(a < b for a, b in pairwise([there, *seen])), "it stood still meanwhile"
        assert len(suspended) > len(set(suspended)), "shows nothing: never suspended again"
        assert all(name.startswith(slow) for name in suspended)
        verbatim(link, "limit", slow, "--none")
        arrives(link, slow, many, 20)
        took = time.monotonic() - produced + 1
        waited = "verbatim_limit_wait_seconds_total"
        eventually(lambda: (sample(health(instances), waited) or 0) > 0.5 * passed, "seconds of waiting", 10)
        time.sleep(4)
        assert (sample(health(instances), waited) or 0) <= 2 * took, "two lanes, and none waits any more"
    for topic in (slow, fast):
        assert_copied(link, topic)


@pytest.mark.whole
def test_a_limit_for_all_topics_together_is_shared_by_them(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: the link's limit is for all topics and lanes together, and each of them gets on under it."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topics = [names.topic(n) for n in ("one", "two", "three")]
    for topic in topics:
        create_topic(at, topic, 2)
        produce(at, topic, records(20))
    link = Link(at, to, names.link, rf"{names.link}\.t\..*")
    assert link.copy() == (0, 0)
    verbatim(link, "limit", "--records-per-second", "600")
    for topic in topics:
        produce(at, topic, records(4000, begin=20))
    with link.running() as instances:
        eventually(lambda: all(sum(link.arrived(t)) > 20 for t in topics), "more of each")
        begun = time.monotonic()
        before = [sum(link.arrived(t)) for t in topics]
        assert sum(before) < 9000, f"faster than their limit: {before}"
        while min(moved := [sum(link.arrived(t)) - b for t, b in zip(topics, before, strict=True)]) < 800:
            assert time.monotonic() < begun + 60, f"one does not get on, or all are far too slow: {moved}"
            time.sleep(0.5)
        passed = time.monotonic() - begun
        assert sum(moved) <= 600 * (passed + 1.5), "faster than their limit"
        assert max(moved) <= 2 * min(moved), f"not shared: {moved}"
        assert health(instances).limits["*"].records_per_second == 600
        verbatim(link, "limit", "--none")
        for topic in topics:
            arrives(link, topic, 4020)
    for topic in topics:
        assert_copied(link, topic)


def test_a_bounded_run_says_which_topics_are_paused_and_does_not_wait_for_them(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: --until-caught-up copies all that is not paused, names what is and is behind, and exits with
    3; a paused topic of which nothing is due is none of them."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    paused, idle, other = names.topic("paused"), names.topic("idle"), names.topic("other")
    for topic in (paused, idle, other):
        create_topic(at, topic, 2)
        produce(at, topic, records(10))
    link = Link(at, to, names.link, rf"{names.link}\.t\..*")
    assert link.copy() == (0, 0)
    verbatim(link, "pause", paused, f"{names.link}.*i[d]le")
    for topic in (paused, other):
        produce(at, topic, records(10, begin=10))
    capsys.readouterr()
    assert link.replicate() == 3
    said = capsys.readouterr()
    assert (
        said.err
        == f"error: {paused} is paused, 2 of its partitions not caught up; `verbatim resume {paused}`\n"
    )
    assert "10 records in" in said.out and "0 partitions halted, 1 topics paused" in said.out
    verbatim(link, "resume")
    assert link.copy() == (0, 0)
    for topic in (paused, idle, other):
        assert_copied(link, topic)


def test_a_cutover_refuses_by_name_what_is_paused(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    """Promise: nobody is moved while something would never arrive."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic = names.topic()
    create_topic(at, topic, 1)
    produce(at, topic, records(5, 1))
    link = Link(at, to, names.link, topic)
    assert link.copy() == (0, 0)
    verbatim(link, "pause")
    options = ["--output", "json", "--memory", str(tmp_path / "memory"), "--wait", "5", "--quiet", "1"]
    found = CliRunner().invoke(cli.commands["cutover"], options, env=link.variables)
    step = json.loads(found.stdout)["steps"][-1]
    assert (found.exit_code, step["name"], step["state"]) == (1, "producers", "refused")
    assert f"topic {topic} is paused: `verbatim resume {topic}`" in json.dumps(step)
