"""Heartbeats on real brokers: written at the source where asked for, copied as all else, and what is told of
them; no other write there."""

from __future__ import annotations

import time

import pytest
from click.testing import CliRunner

from common.app.health import Heartbeat
from common.errors import LinkRefused
from common.kafka.client import clients
from replicator.driver import heartbeats
from replicator.main import Replicator
from tests.conftest import Kafka, Names
from tests.integration.test_failover import failover
from tests.integration.test_plan import plan
from tests.support.brokers import Record, create_topic, end_offsets, produce, read_all, topics
from tests.support.harness import Link, Running, assert_copied, eventually
from tests.support.metrics import sample
from tests.support.unchanged import GROUPS_LOG, assert_unchanged, everything
from verbatim.main import cli


def beating(replicator: Running) -> Heartbeat | None:
    return replicator.application.health.heartbeat


@pytest.mark.whole
def test_heartbeats_are_written_where_asked_for_and_copied_and_their_delay_and_the_last_one_are_told(
    source: Kafka, target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: a link with HEARTBEATS_INTERVAL makes and writes one topic at the source, copies it like any
    other under the rules for names, and tells a delay that is small while all runs and grows when nothing
    arrives; a failover tells of when the last one is; a link without writes nothing there."""
    at, to, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic("orders")
    create_topic(at, topic)
    produce(at, topic, [Record(b"1")])
    before = topics(at) - {GROUPS_LOG}
    still = Link(at, to, f"{names.link}.off", topic, KAFKA_CLUSTERS_DESTINATION_TOPIC="off.{topic}")
    with still.running() as (replicator, _):
        eventually(lambda: still.arrived(f"off.{topic}") == [1], "a copy")
        assert beating(replicator) is None
    assert topics(at) - {GROUPS_LOG} == before
    link = Link(
        at, to, names.link, topic, HEARTBEATS_INTERVAL="200ms", KAFKA_CLUSTERS_DESTINATION_TOPIC="eu.{topic}"
    )
    pulse = f"{names.link}.heartbeats"
    planned, code = plan(link)
    assert code == 0 and [(c["name"], c["at"]) for c in planned["changes"] if c["at"] == "source"] == [
        (pulse, "source")
    ]
    assert topics(at) - {GROUPS_LOG} == before
    replicator = link.start_replicator()
    try:
        deduplicator = link.start_deduplicator()
        eventually(
            lambda: (seen := beating(replicator)) and seen.newest_ms and seen.delay_s, "a heartbeat", 60
        )
        time.sleep(2)
        seen = beating(replicator)
        assert seen is not None and seen.delay_s is not None and seen.newest_ms is not None
        assert 0 < seen.delay_s < 2
        assert time.time() * 1000 - seen.newest_ms < 3000
        assert sample(replicator.application.health, "verbatim_heartbeat_delay_seconds")
        deduplicator.stop()
        time.sleep(4)
        late = beating(replicator)
        assert late is not None and late.delay_s is not None and late.delay_s > 3
        with_again = link.start_deduplicator()
        eventually(
            lambda: (seen := beating(replicator)) and seen.delay_s is not None and seen.delay_s < 2,
            "quick ones again",
            60,
        )
        monkeypatch.setattr(heartbeats, "SILENT_S", 1.0)
        assert isinstance(replicator.application, Replicator)
        writer = replicator.application.heartbeats
        assert writer is not None and writer._reader is not None
        writer._reader.pause(writer._reader.assignment())  # as a client that has gone silent
        silent_from = time.time() * 1000
        eventually(
            lambda: (seen := beating(replicator)) and (seen.newest_ms or 0) > silent_from + 2000,
            "beats again",
            30,
        )
        # Of a producer that reaches nobody any more (tests/integration/test_struck_off.py) they are given up,
        # and another one is made.
        lost = writer._producer = clients.producer(
            {"bootstrap.servers": "127.0.0.1:1"},
            enable_idempotence=False,
            enable_gapless_guarantee=False,
            message_timeout_ms=1000,
        )
        lost_from = time.time() * 1000
        eventually(
            lambda: (seen := beating(replicator)) and (seen.newest_ms or 0) > lost_from + 2000,
            "beats of another producer",
            30,
        )
        assert writer._producer is not lost
        settled, code = cutover(link)
        assert code == 0, settled
    finally:
        replicator.stop()
    assert topics(at) - {GROUPS_LOG} == before | {pulse}
    assert beating(replicator) is None
    try:
        told, code = failover(link)
        assert code == 0
        assert told["last_heartbeat_ms"] == read_all(to, f"eu.{pulse}")[0][-1].timestamp
    finally:
        with_again.stop()
    ends = end_offsets(at, pulse)
    assert link.copy() == (0, 0)
    assert end_offsets(at, pulse) == ends, "a bounded run writes none"
    assert_copied(link, pulse, f"eu.{pulse}")
    assert_copied(link, topic, f"eu.{topic}")
    assert {r.key for r in read_all(at, pulse)[0]} == {names.link.encode()}


def cutover(link: Link) -> tuple[str, int]:
    found = CliRunner().invoke(
        cli.commands["cutover"], ["--quiet", "1", "--wait", "30", "--memory", "/dev/null"], env=link.variables
    )
    return found.output, found.exit_code


def test_a_topic_of_heartbeats_is_made_by_hand_where_topics_are(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: CREATE_TOPICS=false holds at the source too: a missing topic is refused by name, and nothing
    is made there."""
    at, to, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic("orders")
    create_topic(at, topic)
    link = Link(at, to, names.link, topic)
    assert link.copy() == (0, 0)
    by_hand = Link(
        at,
        to,
        names.link,
        topic,
        CREATE_TOPICS="false",
        HEARTBEATS_INTERVAL="200ms",
        HEARTBEATS_TOPIC=f"{names.link}.pulse",
    )
    before = everything(at)
    with pytest.raises(
        LinkRefused,
        match=rf"topic {names.link}.pulse is missing on the source, .* 1 partition and cleanup.policy=compact",
    ):
        by_hand.start_replicator().wait(60)
    assert_unchanged(at, before)
    create_topic(at, f"{names.link}.pulse", 1, {"cleanup.policy": "compact"})
    create_topic(
        to,
        f"{names.link}.pulse",
        1,
        {"cleanup.policy": "compact", "message.timestamp.after.max.ms": str(2**63 - 1)},
    )
    with by_hand.running() as (replicator, _):
        eventually(lambda: (seen := beating(replicator)) and seen.newest_ms, "a heartbeat", 60)
