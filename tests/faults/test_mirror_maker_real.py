"""A real MirrorMaker 2 (its jars come from Maven Central) ends under load, and a link goes on from there."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from common.errors import LinkRefused
from tests.conftest import Kafka, Names
from tests.integration.test_offsets import commit_all, committed, once
from tests.support.beside import beside
from tests.support.brokers import Record, create_topic, end_offsets, produce, read_all
from tests.support.harness import Link, assert_mapped, contents, eventually
from tests.support.mirror_maker import KEPT, Before, MirrorMaker, refused
from verbatim.main import cli


@contextmanager
def load(at: str, topic: str) -> Iterator[None]:
    """Thousands of records a second, until the block ends."""

    def write(over: threading.Event) -> None:
        for begin in itertools.count(0, 100):
            values = range(begin, begin + 100)
            produce(
                at, topic, [Record(b"%d" % i, b"k%d" % i, i % 3, headers=[("h", b"%d" % i)]) for i in values]
            )
            if over.wait(0.03):
                return

    with beside(write):
        yield


def converted(mirror: MirrorMaker, before: Before, names: Names) -> Link:
    """What `verbatim convert` makes of its properties, under the name that belongs to the test."""
    done = CliRunner().invoke(cli, ["convert", str(mirror.properties)], standalone_mode=False)
    made = dict(line.split("=", 1) for line in done.stdout.splitlines() if line and line[0] != "#")
    assert made["START_OFFSETS"] == before.start
    link = Link(before.at, before.to, names.link, "", **made)
    link.variables |= {"APPLICATION_NAME": names.link, "STAGING_PARTITIONS": "2"}
    return link


def begins(link: Link) -> bool:
    try:
        return link.replicate() == 0
    except LinkRefused:
        return False


def passed(link: Link, topic: str, ends: dict[int, int]) -> bool:
    """Whether all below these source offsets is delivered."""
    found = link.mappings(topic)
    return all(p in found and found[p][-1].next >= end for p, end in ends.items())


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("exactly_once", "killed"),
    [(True, False), (True, True), (False, True)],
    ids=["exactly-once", "exactly-once-killed", "at-least-once-killed"],
)
def test_a_link_goes_on_where_a_real_mirror_maker_has_ended_under_load(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, exactly_once: bool, killed: bool
) -> None:
    """Promise: what `verbatim convert` makes of its properties goes on behind what MirrorMaker 2 has copied:
    nothing lost, nothing twice, groups exact. While it runs the link does not begin. Killed with
    exactly-once, it has left no doubt once its transaction has ended. Killed without, it has copied more than
    it has written down: the link begins only when it was started again and stopped in order."""
    before = Before(source.bootstrap_servers, target.bootstrap_servers, f"{names.link}-us")
    topic, copy, group = names.topic("orders"), before.copy(names.topic("orders")), f"{names.link}-g"
    create_topic(before.at, topic, 3, KEPT)
    mirror = MirrorMaker(
        tmp_path,
        before.at,
        before.to,
        before.alias,
        rf"{names.link}\\.t\\..*",
        exactly_once,
        "target.producer.transaction.timeout.ms = 10000\n",
    )
    link = converted(mirror, before, names)
    try:
        with load(before.at, topic):
            mirror.start()
            eventually(lambda: min(link.arrived(copy), default=0) > 1000, "MirrorMaker 2 to copy", 120)
            said = refused(link)
            runs = f"MirrorMaker 2 still runs: group {before.alias}-mm2 of the target has tasks of MirrorSourceCon"
            # Without exactly-once it writes its first positions after a minute.
            assert runs in said or (not exactly_once and "holds no position of a topic" in said), said
            if killed:
                mirror.kill()
            else:
                mirror.stop()
            if not exactly_once:
                time.sleep(1)
                refused(link)
                known = sum(link.arrived(copy))
                mirror.start()
                eventually(lambda: sum(link.arrived(copy)) > known + 1000, "MirrorMaker 2 to copy again", 120)
                mirror.stop()
            eventually(lambda: begins(link), "the link to begin", 60)
            with link.running():
                ends = end_offsets(before.at, topic)
                eventually(lambda: passed(link, topic, ends), "the link to go on", 60)
        ends = end_offsets(before.at, topic)
        commit_all(before.at, topic, {group: ends[0] - 7})
        assert link.copy() == (0, 0)
    finally:
        mirror.kill()
    origins = {key[1]: origin.offset for key, origin in link.control().origins.items()}
    assert len(origins) == 3 and all(origins.values()), "MirrorMaker 2 has copied of each partition"
    there, here = read_all(before.at, topic), read_all(before.to, copy)
    for partition, origin in origins.items():
        ours, theirs = there[partition], here[partition]
        behind = [r for r in ours if r.offset >= origin]
        assert [contents(r) for r in theirs[-len(behind) :]] == [contents(r) for r in behind]
        last = theirs[-len(behind) - 1]
        assert contents(last) == contents(ours[-len(behind) - 1]), (
            "right behind what MirrorMaker 2 has copied"
        )
        if exactly_once:
            assert [contents(r) for r in theirs] == [contents(r) for r in ours]
    assert_mapped(link, topic, [[r for r in p if r.offset >= origins[i]] for i, p in enumerate(there)], here)
    once(link, CONSUMER_GROUPS=group)
    stands = committed(before.to, group, copy)
    assert stands is not None
    assert next(r.value for r in here[0] if r.offset >= stands) == there[0][-7].value
