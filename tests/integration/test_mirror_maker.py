"""A link that goes on where MirrorMaker 2 has stopped. Its positions are written byte for byte as it writes
them, on real brokers. A real one is in tests/faults/test_mirror_maker_real.py."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from common.link.permissions import DEDUPLICATOR, REPLICATOR
from offsets.group_offsets import GroupKey
from tests.conftest import Kafka, Names
from tests.integration.test_offsets import commit_all, committed, group_offsets, once
from tests.support.brokers import (
    Record,
    create_topic,
    delete_records,
    end_offsets,
    produce,
    read_all,
)
from tests.support.guarded import Guarded, only_with
from tests.support.harness import Link, assert_mapped, contents
from tests.support.mirror_maker import KEPT, Before, records, refused
from tests.support.secured import SecuredCluster
from verbatim.main import cli


@pytest.fixture
def before(source: Kafka, target: Kafka, names: Names) -> Before:
    found = Before(source.bootstrap_servers, target.bootstrap_servers, f"{names.link}-us")
    create_topic(found.to, found.offsets, 5, {"cleanup.policy": "compact"})
    return found


def assert_gone_on(link: Link, before: Before, topic: str, origins: list[int]) -> None:
    """The copy is the source's records, each once and in order, also across where MirrorMaker 2 has stopped;
    the mappings begin there."""
    there, here = read_all(link.source, topic), read_all(link.target, before.copy(topic))
    assert [[r.value for r in p] for p in here] == [[r.value for r in p] for p in there]
    assert [[contents(r) for r in p] for p in here] == [[contents(r) for r in p] for p in there]
    assert [m[0].start for _, m in sorted(link.mappings(topic).items())] == origins
    rest = [[r for r in p if r.offset >= origin] for p, origin in zip(there, origins, strict=True)]
    assert_mapped(link, topic, rest, here)


def verify(link: Link) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["verify"], env=link.variables, standalone_mode=False)
    return done.return_value, done.output


def test_copying_goes_on_behind_the_last_record_that_mirror_maker_has_copied(
    before: Before, names: Names
) -> None:
    """Promise: nothing is lost and nothing is copied twice, with positions from transactions and without;
    nobody has to accept the destinations; a partition of which it has copied nothing begins at its beginning;
    a topic that comes later is copied whole; origins are decided once."""
    topic, added = names.topic("orders"), names.topic("added")
    before.make(topic, 4)
    produce(before.at, topic, records(0, 10) + records(0, 10, 1) + records(0, 4, 2))
    before.copied(topic, 0, 3)
    before.copied(topic, 1, 9, None)
    link = before.link(names)
    assert link.replicate() == 0
    produce(before.at, topic, records(10, 14) + records(10, 11, 1) + records(0, 1, 3))
    before.says(before.key(topic, 0), b'{"offset":0}')
    create_topic(before.at, added, 1, KEPT)
    produce(before.at, added, records(0, 2))
    assert link.copy() == (0, 0)
    assert_gone_on(link, before, topic, [4, 10, 0, 0])
    assert_gone_on(link, before, added, [0])
    assert link.halted() == {}


def both_copied(before: Before, names: Names) -> tuple[str, str]:
    """Two topics with ten records each, which MirrorMaker 2 has copied."""
    topic, idle = names.topic("orders"), names.topic("idle")
    before.make(topic)
    before.make(idle)
    for of in (topic, idle):
        produce(before.at, of, records(0, 10))
        before.copied(of, 0, 9)
    return topic, idle


@pytest.mark.whole
def test_verify_compares_from_where_the_link_began(before: Before, names: Names) -> None:
    """Promise: what MirrorMaker 2 has copied is none of the link's, and no finding, also where nothing was
    copied since; what is foreign or lost behind it is found."""
    topic, _ = both_copied(before, names)
    link = before.link(names)
    produce(before.at, topic, records(10, 15))
    assert link.copy() == (0, 0)
    code, said = verify(link)
    assert code == 0, said
    produce(before.to, before.copy(topic), [Record(b"foreign")])
    code, said = verify(link)
    assert code == 1 and "foreign" in said, said


@pytest.mark.whole
def test_what_is_no_position_of_the_link_counts_for_nothing(before: Before, names: Names) -> None:
    """Promise: positions that were aborted or deleted, those of other connectors and aliases, and what is
    none, move no origin; partitions and topics that MirrorMaker 2 has not copied begin by the next entry; an
    offset of its own comes before all."""
    topic, other, own = names.topic("orders"), names.topic("other"), names.topic("own")
    before.make(topic, 2)
    before.make(other)
    before.make(own)
    for of in (topic, other, own):
        produce(before.at, of, records(0, 10))
    produce(before.at, topic, records(0, 4, 1))
    before.says(before.key(topic, 1), b'{"offset":2}')
    before.copied(topic, 0, 3)
    before.copied(own, 0, 8)
    for key, value, transaction in (
        (before.key(topic, 0), b'{"offset":8}', "abort"),
        (before.key(topic, 1), None, None),
        (before.key(other, 0, alias="other"), b'{"offset":6}', None),
        (before.key(topic, 0, "another"), b'{"offset":7}', None),
        (b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"us"}]', b'{"offset":0}', None),
        (b'["MirrorCheckpointConnector",{"group":"g","partition":0,"topic":"t"}]', b'{"offset":0}', None),
        (b"no json", b"neither", None),
    ):
        before.says(key, value, transaction)
    link = before.link(names, f"{own}:0=9,.*={before.start},latest")
    assert link.replicate() == 0
    produce(before.at, topic, records(10, 12) + records(4, 5, 1))
    produce(before.at, other, records(10, 12))
    link.accept_destination(before.copy(own))
    assert link.copy() == (0, 0)
    here = [[r.value for r in p] for p in read_all(before.to, before.copy(topic))]
    assert here == [[b"%d" % i for i in range(12)], [b"4"]]
    assert [r.value for r in read_all(before.to, before.copy(other))[0]] == [b"10", b"11"]
    assert_gone_on(link, before, own, [9])


Break = Callable[[Before, str], None]


def _two_flows(before: Before, topic: str) -> None:
    before.says(before.key(topic, 0, "renamed"), b'{"offset":2}')


def _two_aliases(before: Before, topic: str) -> None:
    before.says(before.key(topic, 1, alias="eu"), b'{"offset":2}')


def _copied_more(before: Before, topic: str) -> None:
    produce(before.to, before.copy(topic), records(4, 6))


def _no_position(before: Before, topic: str) -> None:
    produce(before.to, before.copy(topic), records(0, 1, 1))


def _open_transaction(before: Before, topic: str) -> Producer:
    producer = Producer({"bootstrap.servers": before.to, "transactional.id": f"{before.alias}.open"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", b"open", partition=0)
    producer.flush(30)
    return producer


SEVERAL = "START_OFFSETS: topic {offsets} of the target has positions of "
DOUBTS: dict[str, tuple[Break, str, str]] = {
    "no offsets topic": (
        lambda before, topic: None,
        "mirrormaker:nowhere",
        "START_OFFSETS: the target has no topic nowhere",
    ),
    "another alias": (
        lambda before, topic: None,
        "mirrormaker:{offsets}:eu",
        "START_OFFSETS: topic {offsets} of the target holds no position of a topic that is copied under alias eu,",
    ),
    "two connectors": (
        _two_flows,
        "mirrormaker:{offsets}",
        SEVERAL
        + "{topic}-0 from {alias}:MirrorSourceConnector, {alias}:renamed: name one, mirrormaker:{offsets}:",
    ),
    "two aliases": (
        _two_aliases,
        "mirrormaker:{offsets}",
        SEVERAL
        + "the topics that are copied from eu:MirrorSourceConnector, {alias}:MirrorSourceConnector: name",
    ),
    "position beyond the end": (
        lambda before, topic: before.says(before.key(topic, 0), b'{"offset":10}'),
        "",
        "START_OFFSETS: {topic}-0: MirrorMaker 2 has copied offset 10, and the source's log ends at 10: it is another",
    ),
    "records lost": (
        lambda before, topic: delete_records(before.at, topic, {0: 7}),
        "",
        "START_OFFSETS: {topic}-0: 3 offsets are gone from the source that MirrorMaker 2 has not copied: [4, 7)",
    ),
    "copied more than it has written down": (
        _copied_more,
        "",
        "START_OFFSETS: {topic}-0: the last record of {copy}-0, offset 5, is not the source's at 3, where MirrorMaker",
    ),
    "says more than it has copied": (
        lambda before, topic: before.says(before.key(topic, 0), b'{"offset":4}'),
        "",
        "START_OFFSETS: {topic}-0: the last record of {copy}-0, offset 3, is not the source's at 4",
    ),
    "copied without a position": (
        _no_position,
        "",
        "START_OFFSETS: {topic}-1: {copy}-1 holds a record at offset 0, and MirrorMaker 2 has no position",
    ),
    "the record is gone": (
        lambda before, topic: delete_records(before.at, topic, {0: 4}),
        "",
        "START_OFFSETS: {topic}-0: no record to compare at the source's offset 3",
    ),
    "the copy is gone": (
        lambda before, topic: delete_records(before.to, before.copy(topic), {0: -1}),
        "",
        "START_OFFSETS: {topic}-0: no record to compare at {copy}-0",
    ),
}


@pytest.mark.parametrize("what", DOUBTS)
def test_where_there_is_doubt_nothing_begins_and_a_line_says_why(
    before: Before, names: Names, what: str
) -> None:
    """Promise: whatever leaves in doubt what was copied is one line with topic, partition and offset, exit
    code 2, and nothing is decided by it."""
    topic = names.topic("orders")
    before.make(topic, 2)
    produce(before.at, topic, records(0, 10))
    before.copied(topic, 0, 3, None)
    breaking, start, said = DOUBTS[what]
    facts = {"topic": topic, "copy": before.copy(topic), "offsets": before.offsets, "alias": before.alias}
    breaking(before, topic)
    line = refused(before.link(names, start.format(**facts) or None))
    assert line.startswith(said.format(**facts)), line


def test_with_other_names_of_destinations_than_mirror_maker_has_given_nothing_begins(
    before: Before, names: Names
) -> None:
    """Promise: the copy must be called as MirrorMaker 2 called it: one that is not there, and one that was
    never written to, is refused by name; so is one that was made again."""
    topic = names.topic("orders")
    before.make(topic)
    produce(before.at, topic, records(0, 10))
    before.copied(topic, 0, 9)
    same = {"KAFKA_CLUSTERS_DESTINATION_TOPIC": "{topic}"}
    said = f"START_OFFSETS: {topic}-0: "
    line = refused(before.link(names, **same))
    assert line.startswith(f"{said}the target has no {topic}-0: is it called so there?"), line
    create_topic(before.to, topic, 1, KEPT)
    line = refused(before.link(names, **same))
    assert line.startswith(f"{said}nothing was ever written to {topic}-0, and MirrorMaker 2 has copied up to")
    produce(before.to, topic, records(0, 9))
    assert refused(before.link(names, **same)).startswith(
        f"{said}the last record of {topic}-0, offset 8, is not"
    )


@pytest.mark.whole
def test_a_source_without_newer_records_needs_none_to_compare(before: Before, names: Names) -> None:
    """Promise: a partition that retention has emptied on either side goes on too, where the source holds
    nothing that MirrorMaker 2 could have copied since."""
    topic = names.topic("orders")
    before.make(topic, 2)
    produce(before.at, topic, records(0, 10) + records(0, 10, 1))
    for partition in (0, 1):
        before.copied(topic, partition, 9, None)
    delete_records(before.at, topic, {0: 10})
    delete_records(before.to, before.copy(topic), {1: -1})
    link = before.link(names)
    assert link.copy() == (0, 0)
    produce(before.at, topic, records(10, 12) + records(10, 12, 1))
    assert link.copy() == (0, 0)
    here = [[r.value for r in p] for p in read_all(before.to, before.copy(topic))]
    assert here == [[b"%d" % i for i in range(12)], [b"10", b"11"]]


@pytest.mark.whole
@pytest.mark.parametrize("where", ["offsets", "destination", "source"])
def test_an_open_transaction_is_no_end(
    before: Before, names: Names, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: what MirrorMaker 2 has in an open transaction may count or not: nothing begins before it has
    ended. A position within a transaction that is open at the source waits for that."""
    monkeypatch.setattr("replicator.driver.mirror_maker.CLOSING_S", 1.0)
    topic = names.topic("orders")
    before.make(topic)
    produce(before.at, topic, records(0, 4))
    before.copied(topic, 0, 3, None)
    if where == "source":
        producer = _open_transaction(Before(before.at, before.at, before.alias), topic)
        before.says(before.key(topic, 0), b'{"offset":4}')
        produce(before.to, before.copy(topic), [Record(b"open")])
        said = f"{topic}-0: MirrorMaker 2 has copied offset 4 from a transaction that is open at the source, from 4 on"
    elif where == "offsets":
        producer = _open_transaction(before, before.offsets)
        said = f"a transaction is open in {before.offsets}: MirrorMaker 2 runs, or has just died"
    else:
        producer = _open_transaction(before, before.copy(topic))
        said = f"{topic}-0: a transaction is open in {before.copy(topic)}-0: MirrorMaker 2 runs, or has just died"
    link = before.link(names)
    try:
        line = refused(link)
        assert line.startswith(f"START_OFFSETS: {said}"), line
    finally:
        producer.abort_transaction(30)
    if where != "source":
        produce(before.at, topic, records(4, 6))
        assert link.copy() == (0, 0)
        assert_gone_on(link, before, topic, [4])


def test_a_mirror_maker_whose_positions_move_still_runs(before: Before, names: Names) -> None:
    """Promise: a position that is written while the link looks is refused, whatever else was found; one of
    another connector that uses the same topic is none of it."""
    topic = names.topic("orders")
    before.make(topic)
    produce(before.at, topic, records(0, 4))
    before.copied(topic, 0, 3)
    over = threading.Event()

    def writing(key: bytes) -> threading.Thread:
        def write() -> None:
            for number in itertools.count():
                before.says(key, b'{"offset":%d}' % number)
                if over.wait(0.3):
                    return

        thread = threading.Thread(target=write)
        thread.start()
        return thread

    heartbeats = writing(before.key("heartbeats", 0))
    try:
        line = refused(before.link(names))
    finally:
        over.set()
        heartbeats.join()
    assert line == f"START_OFFSETS: MirrorMaker 2 still runs: its positions in {before.offsets} move; stop it"
    over.clear()
    other = writing(before.key("heartbeats", 0, "another"))
    try:
        assert before.link(names).replicate() == 0
    finally:
        over.set()
        other.join()


def test_groups_are_exact_from_where_the_link_began_and_never_ahead(before: Before, names: Names) -> None:
    """Promise: a group at the source that stands where the link began, or behind, stands at the target at
    exactly the record that it would have read next, also where nothing was copied since; one that stands
    before is named, and stays where MirrorMaker 2 has put it, or begins at the destination's beginning: it
    leaves nothing out. Once it has moved on, it is exact."""
    topic, idle = both_copied(before, names)
    groups = {f"{names.link}-{at}": at for at in (4, 10, 12)}
    synced, fresh = f"{names.link}-4", f"{names.link}-new"
    link = before.link(names, CONSUMER_GROUPS=f"{names.link}-.*")
    assert link.copy() == (0, 0)
    produce(before.at, topic, records(10, 14))
    assert link.copy() == (0, 0)
    commit_all(before.at, topic, {**groups, fresh: 5})
    commit_all(before.at, idle, {f"{names.link}-10": 10, fresh: 6})
    commit_all(before.to, before.copy(topic), {synced: 3})
    once(link)
    here = {r.value: r.offset for r in read_all(before.to, before.copy(topic))[0]}
    assert committed(before.to, f"{names.link}-10", before.copy(topic)) == here[b"10"]
    assert committed(before.to, f"{names.link}-12", before.copy(topic)) == here[b"12"]
    assert committed(before.to, synced, before.copy(topic)) == 3
    assert committed(before.to, fresh, before.copy(topic)) == 0
    end = end_offsets(before.to, before.copy(idle))[0]
    assert committed(before.to, f"{names.link}-10", before.copy(idle)) == end
    said = group_offsets(link)
    told = {key[:2]: (r.exact, r.why, r.outcome) for key, r in said.items()}
    assert told == {
        (f"{names.link}-10", topic): (True, None, "written"),
        (f"{names.link}-12", topic): (True, None, "written"),
        (f"{names.link}-10", idle): (True, None, "written"),
        (synced, topic): (False, "before-origin", "target-ahead"),
        (fresh, topic): (False, "before-origin", "written"),
        (fresh, idle): (False, "before-origin", "written"),
    }
    commit_all(before.at, topic, {synced: 11, fresh: 10})
    produce(before.at, idle, records(10, 12))
    assert link.copy() == (0, 0)
    once(link)
    assert committed(before.to, synced, before.copy(topic)) == here[b"11"]
    assert committed(before.to, fresh, before.copy(topic)) == here[b"10"]
    after = {r.value: r.offset for r in read_all(before.to, before.copy(idle))[0]}
    assert end <= after[b"10"], "a group that stood at the end left nothing out"
    at_end = group_offsets(link)[GroupKey(f"{names.link}-10", idle, 0)]
    assert at_end.exact and at_end.offset in (end, after[b"10"])


def test_a_plan_says_where_copying_goes_on_or_why_not(before: Before, names: Names) -> None:
    """Promise: `verbatim plan` reads what the replicator would read, and counts what is left to copy; it
    names what would be refused; and it changes nothing."""
    topic = names.topic("orders")
    before.make(topic)
    produce(before.at, topic, records(0, 10))
    before.copied(topic, 0, 6)
    link = before.link(names)

    def plan() -> tuple[int, dict[str, Any]]:
        command = ["plan", "--output", "json", "--seconds", "0s"]
        done = CliRunner().invoke(cli, command, env=link.variables, standalone_mode=False)
        return done.return_value, json.loads(done.stdout)

    code, found = plan()
    (of_topic,) = found["topics"]
    assert code == 0 and found["failures"] == []
    assert (of_topic["to_copy"], of_topic["action"]) == (3, "there")
    before.says(before.key(topic, 0), b'{"offset":5}')
    code, found = plan()
    (failure,) = [f for f in found["failures"] if "START_OFFSETS" in f]
    assert code == 1 and f"the last record of {before.copy(topic)}-0" in failure
    before.says(before.key(topic, 0), b'{"offset":6}')
    assert link.copy() == (0, 0)
    assert_gone_on(link, before, topic, [7])


@pytest.mark.whole
def test_the_rights_that_the_reference_lists_are_enough(
    guarded: tuple[SecuredCluster, SecuredCluster],
) -> None:
    """Promise: with them the replicator goes on from MirrorMaker 2, and tries nothing else."""
    link = Guarded(guarded, "gone-on")
    before = Before(guarded[0].bootstrap_servers, guarded[1].bootstrap_servers, "gone-on")
    create_topic(before.to, before.offsets, 5, {"cleanup.policy": "compact"})
    topic = link.topic("orders")
    create_topic(before.at, topic, 1, KEPT)
    create_topic(before.to, topic, 1, KEPT)
    produce(before.at, topic, records(0, 5))
    produce(before.to, topic, records(0, 3))
    before.says(before.key(topic, 0), b'{"offset":2}')
    for right in only_with("START_OFFSETS"):
        link.grant(right)
    tried = link.denied(REPLICATOR)
    link.links[REPLICATOR].variables["START_OFFSETS"] = before.start
    assert [link.run(one) for one in (REPLICATOR, DEDUPLICATOR)] == [0, 0]
    assert link.denied(REPLICATOR) == tried
    assert [r.value for r in read_all(before.to, topic)[0]] == [b"%d" % i for i in range(5)]
