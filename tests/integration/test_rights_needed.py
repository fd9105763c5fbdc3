"""That each of the least rights is needed: without it the application says so by name, loses nothing, and
makes up for it once it is granted.

The rights are those of common/link/permissions.py; that they are enough is proved in test_rights.py. The
tests of one link follow each other.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaException

from common.errors import LinkRefused, VerbatimError
from common.kafka.client import clients
from common.kafka.errors import kafka_error, lacks_right
from common.kafka.wire.batch_producer import BatchProducer
from common.link import permissions
from common.link.permissions import DEDUPLICATOR, OFFSETS, REPLICATOR, SOURCE, TARGET
from common.ports import Deadline
from offsets.groups import Groups
from offsets.main import command
from tests.integration.test_destinations import alter
from tests.integration.test_topics_change import add_partitions
from tests.support.brokers import Record, create_topic, end_offsets, produce, read_all, topics
from tests.support.guarded import (
    MADE_ONCE,
    PRINCIPALS,
    Guarded,
    Told,
    commit,
    group_offset,
    needed,
    only_with,
)
from tests.support.harness import Link, assert_copied, contents, eventually
from tests.support.secured import Right, SecuredCluster
from tests.support.slices import each

GO_ON = {
    (REPLICATOR, "READ", "<topics>"),
    *((principal, "DESCRIBE_CONFIGS", permissions.CLUSTER) for principal in PRINCIPALS),
    (DEDUPLICATOR, "DELETE", "<link>.staging"),
    (DEDUPLICATOR, "READ", "<link>.positions"),
    (DEDUPLICATOR, "WRITE", "<link>.positions"),
    *(
        (DEDUPLICATOR, operation, "<destinations>")
        for operation in ("READ", "WRITE", "DESCRIBE_CONFIGS", "CREATE", "ALTER", "ALTER_CONFIGS")
    ),
    (OFFSETS, "DESCRIBE", "<topics>"),
    (OFFSETS, "DESCRIBE", "<groups>"),
}
"""Rights without which partitions are halted, or the log says what is not done. All others end the
application, exit 2."""


SLOW = {
    (DEDUPLICATOR, "READ", "<link>.deduplicator"),
    (DEDUPLICATOR, "READ", "<link>.offset-mappings"),
    (DEDUPLICATOR, "READ", "<link>.staging"),
}
"""Rights whose absence a client tells late."""
IN_MID_RUN = [
    ("WRITE", "<link>.offset-mappings"),
    ("READ", "<link>.staging"),
    ("READ", "<link>.deduplicator"),
    ("WRITE", "<link>.*"),
]


@pytest.fixture(scope="module")
def link(guarded: tuple[SecuredCluster, SecuredCluster]) -> Guarded:
    """A link in the middle of its work, by users with the least rights: some topics copied, a group
    translated."""
    found = Guarded(guarded, "least")
    at = guarded[0].bootstrap_servers
    for what in ("orders", "unread", "unseen", "unwritten", "unknown", "small", "changed"):
        create_topic(at, found.topic(what))
        produce(at, found.topic(what), [Record(b"before")])
    for group, what in (("g1", "orders"), ("g2", "changed")):
        commit(at, f"{found.name}-{group}", found.topic(what), 1)
    assert [found.run(principal) for principal in PRINCIPALS] == [0, 0, 0, 0]
    return found


def halted(told: Told) -> set[str]:
    """The partitions that a bounded run could not copy."""
    lines = told.lines.splitlines()
    return {line.removeprefix("error: ").split(" halted: ")[0] for line in lines if " halted: " in line}


def test_what_ends_a_producer_is_told_as_such_by_whatever_call(
    guarded: tuple[SecuredCluster, SecuredCluster],
) -> None:
    """Promise: a right that is missing is found whatever call the client tells it by. In the middle of
    reports it would be a SystemError."""
    at = guarded[1]
    create_topic(at.bootstrap_servers, "not-granted")
    config = {"bootstrap.servers": at.secure_servers, **at.user("nobody")}
    at.grant("nobody", [Right("DESCRIBE", "TOPIC", "not-granted")])
    producer = clients.producer(config)
    reports: list[object] = []
    for _ in range(3):
        producer.produce("not-granted", b"x", on_delivery=lambda error, _: reports.append(error))
    with pytest.raises(KafkaException) as told:
        eventually(lambda: producer.flush(5.0) and None, "the refusal", 60)
    error = kafka_error(told.value)
    assert error is not None and error.fatal() and lacks_right(error) and reports


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.whole), 5])
@pytest.mark.parametrize("principal", PRINCIPALS)
def test_without_a_right_that_all_its_work_needs_an_application_ends_by_name(
    link: Guarded, principal: str, step: int
) -> None:
    """Promise: no such right is one too many. Without it the authorizer denies what is tried, or the brokers
    say beforehand that it would be, and the application ends in one line that names topic, group or
    transactional id, exit 2; with it again, it goes on where it was. Of all, or of each fifth but for the
    slow ones."""
    known = {(right.principal, right.operation, right.name) for right in needed()}
    assert known >= GO_ON
    produce(link.clusters[SOURCE].bootstrap_servers, link.topic("orders"), [Record(b"waits")])
    if principal == DEDUPLICATOR:
        assert link.run(REPLICATOR) == 0
    left_out = GO_ON if step == 1 else GO_ON | SLOW
    mine = [
        right
        for right in needed()
        if right.principal == principal
        and (right.operation, right.name) not in MADE_ONCE
        and (principal, right.operation, right.name) not in left_out
    ]
    assert mine
    for right in mine[::step]:
        if (right.operation, right.name) == ("ALTER_CONFIGS", "<link>.staging"):
            alter(link.clusters[SOURCE].bootstrap_servers, link.topic("orders"), max_message_bytes="73400320")
        tried = len(link.denied(principal)[right.cluster])
        with link.without(right):
            told = link.tell(principal)
        what = link.on(right).name.removesuffix("*")
        assert told.code == 2, f"{right}: {told}"
        assert what in told.lines and ("not allowed" in told.lines or "grant" in told.lines), (
            f"{right}: {told}"
        )
        assert len(told.lines.splitlines()) == 1, f"{right}: {told}"
        beforehand = right.operation == "WRITE" and right.name in (
            "<link>.offset-mappings",
            "<link>.group-offsets",
            "<link>.schemas",
        )
        assert beforehand or len(link.denied(principal)[right.cluster]) > tried, (
            f"{right}: nothing was denied"
        )


def test_what_may_not_be_read_is_halted_by_name_and_the_others_go_on(link: Guarded) -> None:
    """Promise: a source topic that may not be read, or not even be seen any more, is halted by name, exit 3;
    another one is copied meanwhile, and without the right to ask for the target's version the log says that
    it is not checked."""
    at = link.clusters[SOURCE].bootstrap_servers
    for what in ("orders", "unread", "unseen"):
        produce(at, link.topic(what), [Record(b"after")])
    (cluster,) = [r for r in needed() if (r.principal, r.name) == (REPLICATOR, permissions.CLUSTER)]
    unread, unseen = link.topic("unread"), link.topic("unseen")
    denied = [("READ", "TOPIC", unread), ("DESCRIBE", "TOPIC", unseen)]
    with link.without(cluster), link.denying(REPLICATOR, SOURCE, *denied):
        told = link.tell(REPLICATOR)
        assert (told.code, halted(told)) == (3, {f"{unread}-0", f"{unseen}-0"}), told
        assert "not allowed" in told.lines and "may not be described" in told.lines
        assert told.log.count("version can't be checked") == 1
    assert "caught up: 0 records" not in told.out


def test_what_may_not_be_delivered_is_halted_by_name_at_each_start_and_the_others_go_on(
    link: Guarded,
) -> None:
    """Promise: a destination that may not be written, made, grown or judged halts its own partitions by name,
    exit 3, now and after a restart. One that may not be brought in step with its source is copied, and named
    in the log. So are, once each, counters that may not be kept and staging that may not be trimmed."""
    at, to = (link.clusters[which].bootstrap_servers for which in (SOURCE, TARGET))
    for what in ("unmade", "unjudged"):
        create_topic(at, link.topic(what))
    add_partitions(at, link.topic("small"), 2)
    alter(at, link.topic("changed"), segment_ms="300000000")
    for what in ("orders", "unwritten", "unknown", "changed", "unmade", "unjudged"):
        produce(at, link.topic(what), [Record(b"after")])
    produce(at, link.topic("small"), [Record(b"after", partition=p) for p in range(2)])
    assert link.run(REPLICATOR) == 0
    there = {
        what: end_offsets(to, link.topic(what))[0] for what in ("orders", "changed", "unknown", "unwritten")
    }
    of_all = [
        link.on(right)
        for right in needed()
        if (right.principal, right.operation, right.name) in GO_ON
        and right.principal == DEDUPLICATOR
        and right.name != "<destinations>"
    ]
    denied = [
        *of_all,
        ("WRITE", "TOPIC", link.topic("unwritten")),
        ("CREATE", "TOPIC", link.topic("unmade")),
        ("ALTER", "TOPIC", link.topic("small")),
        ("DESCRIBE_CONFIGS", "TOPIC", link.topic("unjudged")),
        ("DESCRIBE_CONFIGS", "TOPIC", link.topic("unknown")),
        ("ALTER_CONFIGS", "TOPIC", link.topic("changed")),
    ]
    stopped = {f"{link.topic(at)}" for at in ("unwritten-0", "unmade-0", "small-0", "small-1", "unjudged-0")}
    with link.denying(DEDUPLICATOR, TARGET, *denied):
        for turn in range(2):
            told = link.tell(DEDUPLICATOR)
            assert (told.code, halted(told)) == (3, stopped), f"turn {turn}: {told}"
            for said in (
                "version can't be checked",
                f"destination topic {link.topic('changed')} can't be kept in step",
                f"destination topic {link.topic('unknown')} can't be kept in step",
                "can't be read, and is not shown",
                "counters can't be written",
                "staging is not trimmed",
            ):
                assert told.log.count(said) == 1, f"{said}: {told.log}"
    went_on = {
        what: end_offsets(to, link.topic(what))[0] for what in ("orders", "changed", "unknown", "unwritten")
    }
    assert all(end > there[what] for what, end in went_on.items() if what != "unwritten"), went_on
    assert went_on["unwritten"] == there["unwritten"]


@pytest.mark.whole
def test_where_something_is_open_that_may_not_be_looked_at_the_partition_halts_by_name(link: Guarded) -> None:
    """Promise: a transaction is open in a destination, and whose it is takes READ there: without it the
    partition is halted with that word, and the others go on. Where nothing is open, nobody misses that
    right."""
    at, to = (link.clusters[which].bootstrap_servers for which in (SOURCE, TARGET))
    orders, changed = link.topic("orders"), link.topic("changed")
    for topic in (orders, changed):
        produce(at, topic, [Record(b"behind")])
    assert link.run(REPLICATOR) == 0
    foreign = BatchProducer({"bootstrap.servers": to}, "foreign", 60_000, "foreign")
    foreign.init_transactions()
    foreign.begin_transaction()
    foreign.produce(orders, b"open", None, 0)
    assert foreign.flush() == 0
    there = end_offsets(to, changed)[0]
    with link.denying(DEDUPLICATOR, TARGET, ("READ", "TOPIC", orders), ("READ", "TOPIC", changed)):
        told = link.tell(DEDUPLICATOR)
        assert told.code == 3 and f"{orders}-0" in halted(told), told
        assert f"{changed}-0" not in halted(told)
        assert "takes READ on its topic" in told.lines
        assert end_offsets(to, changed)[0] > there
        foreign.abort_transaction()
        eventually(lambda: link.run(DEDUPLICATOR) == 0, "it to go on", 60)
    foreign.close()


@pytest.mark.parametrize("lost", each(len(IN_MID_RUN), IN_MID_RUN), ids=lambda lost: lost[1])
def test_a_right_taken_away_in_mid_run_halts_what_needs_it_or_ends_the_application_by_name(
    link: Guarded, lost: tuple[str, str]
) -> None:
    """Promise: a deduplicator that may not write one destination any more halts that one by name, goes on
    with the others, and with it again by itself. One that loses a right which all its work needs does not try
    for ever: it ends in one line that names what it is about, exit 2."""
    (right,) = [r for r in needed() if (r.principal, r.operation, r.name) == (DEDUPLICATOR, *lost)]
    at, to = (link.clusters[which].bootstrap_servers for which in (SOURCE, TARGET))
    changed, orders = link.topic("changed"), link.topic("orders")
    plain = Link(at, to, link.name, rf"{link.name}-t\..*", STAGING_PARTITIONS="1")
    assert link.run(REPLICATOR) == 0
    running = link.start(DEDUPLICATOR, bounded=False)
    try:
        staged = [[len(partition) for partition in read_all(at, topic)] for topic in (changed, orders)]
        eventually(lambda: [plain.arrived(topic) for topic in (changed, orders)] == staged, "what is staged")
        with link.denying(DEDUPLICATOR, TARGET, ("WRITE", "TOPIC", changed)):
            there = plain.arrived(orders)[0], plain.arrived(changed)[0]
            for topic in (changed, orders):
                produce(at, topic, [Record(b"now")])
            assert link.run(REPLICATOR) == 0
            eventually(lambda: plain.halted() == {(changed, 0): "destination-refused"}, "the halt")
            eventually(lambda: plain.arrived(orders)[0] > there[0], "the others")
            assert plain.arrived(changed)[0] == there[1]
        eventually(lambda: not plain.halted() and plain.arrived(changed)[0] > there[1], "it to go on")
        link.revoke(right)
        produce(at, orders, [Record(b"kept out")])
        assert link.run(REPLICATOR) == 0
        with pytest.raises(LinkRefused, match=link.on(right).name.removesuffix("*")):
            running.wait(30)
    finally:
        running.application.stopping.set()
        link.grant(right)


def test_with_all_rights_again_all_that_was_missed_is_made_up_for(link: Guarded) -> None:
    """Promise: whatever rights were missing before, once they are there everything of every topic is at the
    target, once and in order."""
    assert [link.run(principal) for principal in (REPLICATOR, DEDUPLICATOR)] == [0, 0]
    at, to = (link.clusters[which].bootstrap_servers for which in (SOURCE, TARGET))
    copied = sorted(name for name in topics(at) if name.startswith(f"{link.name}-t."))
    with ThreadPoolExecutor(4) as pool:
        for topic, there, here in zip(
            copied, *(pool.map(partial(read_all, which), copied) for which in (at, to)), strict=True
        ):
            found = [[list(map(contents, partition)) for partition in side] for side in (here, there)]
            assert found[0] == found[1], topic
    orders = link.topic("orders")
    assert_copied(Link(at, to, link.name, orders, STAGING_PARTITIONS="1"), orders)


def test_what_of_the_source_may_not_be_seen_is_told_and_its_offsets_follow_later(link: Guarded) -> None:
    """Promise: Kafka leaves topics and groups that may not be described out of its answers; of those that
    were translated before, the log says that they are not any more. Granted again, their offsets follow."""
    at = link.clusters[SOURCE].bootstrap_servers
    hidden = ("DESCRIBE", "TOPIC", link.topic("orders")), ("DESCRIBE", "GROUP", f"{link.name}-g2")
    groups = ("g1", "orders"), ("g2", "changed")
    assert link.run(OFFSETS) == 0
    before = [group_offset(link, *one) for one in groups]
    for group, what in groups:
        commit(at, f"{link.name}-{group}", link.topic(what), end_offsets(at, link.topic(what))[0])
    with link.denying(OFFSETS, SOURCE, *hidden):
        told = link.tell(OFFSETS)
    assert (told.code, [group_offset(link, *one) for one in groups]) == (0, before), told
    for _, kind, name in hidden:
        assert told.log.count(f"{kind.lower()} {name} of the source may not be seen") == 1, told
    assert link.run(OFFSETS) == 0
    assert all(group_offset(link, *one) > was for one, was in zip(groups, before, strict=True))


def test_the_way_back_says_which_right_at_the_source_it_lacks(link: Guarded) -> None:
    """Promise: `offsets --reverse` needs more rights at the source, each of them: without it the command
    names group or topic, exit 2, and writes nothing; with all of them it moves the source's group."""
    at, to = (link.clusters[which].bootstrap_servers for which in (SOURCE, TARGET))
    group, topic = f"{link.name}-g1", link.topic("orders")
    back = only_with("--reverse")
    commit(at, group, topic, 1)
    commit(to, group, topic, end_offsets(to, topic)[0])

    def reverse() -> Result:
        variables = link.links[OFFSETS].variables
        return CliRunner().invoke(command, ["--reverse"], env=variables, standalone_mode=False)

    def reached() -> int:
        with closing(Groups({"bootstrap.servers": at}, "source")) as groups:
            found = groups.committed([group], Deadline(30))
        return found[group][(topic, 0)].offset

    for right in back:
        link.grant(right)
    for right in back:
        link.revoke(right)
        told = reverse()
        link.grant(right)
        assert isinstance(told.exception, VerbatimError), f"{right}: {told.output}"
        assert told.exception.exit_code == 2
        assert group in str(told.exception) and "uthorization failed" in str(told.exception), right
        assert reached() == 1
    assert reverse().exception is None
    assert reached() > 1
    for right in back:
        link.revoke(right)
