"""Transactions that do not end as they should: each outcome is found out, never guessed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from common import kafka
from common.errors import UncleanTransaction
from common.kafka import Deadline
from deduplicator import delivery, lane, recovery
from deduplicator.fencing import COORDINATOR, FencingProducer
from tests.brokers import Record, create_topic, produce
from tests.conftest import Kafka, Names
from tests.faults.rounds.proxy import END_TXN, Connection, Proxy, Rule
from tests.harness import Link, assert_copied, eventually

Commit = Callable[["Watched", float], None]


class Watched:
    """A transactional producer that logs what is asked of it, and commits as a test wants."""

    made: list[Watched]

    def __init__(self, real: Any, logger: Any, commit: Commit) -> None:
        self.real = real
        self.logger = logger
        self.calls: list[str] = []
        self.commit = commit

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.real, name)

        def logged(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            return call(*args, **kwargs)

        return logged

    def __len__(self) -> int:
        return len(self.real)

    def commit_transaction(self, timeout: float) -> None:
        self.calls.append("commit_transaction")
        self.commit(self, timeout)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Commit], list[Watched]]:
    """Let every transactional producer commit by a function of the test's; the producers that were made."""

    def patch(commit: Commit) -> list[Watched]:
        made: list[Watched] = []
        real = kafka.producer

        def producer(config: Any, **own: Any) -> Any:
            if "transactional_id" not in own:
                return real(config, **own)
            made.append(Watched(real(config, **own), own["logger"], commit))
            return made[-1]

        monkeypatch.setattr(kafka, "producer", producer)
        return made

    return patch


def filled(source: Kafka, target: Kafka, names: Names) -> tuple[Link, str]:
    topic = names.topic()
    create_topic(source.bootstrap_servers, topic, 2, {"retention.ms": "-1"})
    produce(source.bootstrap_servers, topic, [Record(partition=i % 2, value=b"%d" % i) for i in range(200)])
    link = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic, WHOLE_BATCHES="false")
    assert link.replicate() == 0
    return link, topic


def test_a_commit_that_succeeded_but_raised_is_not_done_again(
    source: Kafka, target: Kafka, names: Names, watch: Callable[[Commit], list[Watched]]
) -> None:
    """Promise: a transaction whose outcome is unknown is looked up in the mappings, so its records come once."""
    failures = iter([True] * 3)

    def commit(producer: Watched, timeout: float) -> None:
        producer.real.commit_transaction(timeout)
        if next(failures, False):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    link, topic = filled(source, target, names)
    watch(commit)
    assert link.deduplicate() == 0
    assert_copied(link, topic)


def test_a_commit_that_failed_is_done_again_from_the_state_that_was_committed(
    source: Kafka, target: Kafka, names: Names, watch: Callable[[Commit], list[Watched]]
) -> None:
    """Promise: state and position are loaded together after a failure; with `next` kept in memory the records would be lost."""
    failures = iter([True] * 3)

    def commit(producer: Watched, timeout: float) -> None:
        if next(failures, False):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        producer.real.commit_transaction(timeout)

    link, topic = filled(source, target, names)
    watch(commit)
    assert link.deduplicate() == 0
    assert_copied(link, topic)


def test_a_producer_that_saw_a_connection_error_begins_no_other_transaction(
    source: Kafka, target: Kafka, names: Names, watch: Callable[[Commit], list[Watched]]
) -> None:
    """Promise: a commit that returned OK after a connection error is its producer's last: a delayed EndTxn may still be on its way."""

    def commit(producer: Watched, timeout: float) -> None:
        producer.real.commit_transaction(timeout)
        producer.logger.log(logging.DEBUG, "%s [%s] %s", "FAIL", "rdkafka", f"{COORDINATOR}: Disconnected")

    link, topic = filled(source, target, names)
    made = watch(commit)

    def commits_beyond(number: int) -> bool:
        return sum("commit_transaction" in w.calls for w in made) > number

    with link.running():
        for number in range(3):
            eventually(partial(commits_beyond, number), "a commit")
            produce(link.source, topic, [Record(partition=p, value=b"more %d" % number) for p in range(2)])
    assert link.deduplicate() == 0
    assert_copied(link, topic)
    assert all(w.calls.count("commit_transaction") <= 1 for w in made)


def test_mappings_go_with_their_records_once_the_offsets_are_foreseen_and_these_are_as_foreseen(
    source: Kafka, target: Kafka, names: Names, watch: Callable[[Commit], list[Watched]]
) -> None:
    """Promise: where nobody else writes, a transaction takes up the offsets of its records and one for its marker in each destination partition,
    so all but a producer's first produce their mappings before the flush, none is given up, and every mapping is exact."""
    link, topic = filled(source, target, names)
    made = watch(lambda producer, timeout: producer.real.commit_transaction(timeout))
    rounds = 4
    with link.running():
        for number in range(rounds):
            eventually(lambda n=number: link.arrived(topic) == [100 + 3 * n] * 2, "what was produced")  # type: ignore[misc]
            more = [Record(partition=p, value=b"more %d" % i) for p in range(2) for i in range(3)]
            produce(link.source, topic, more)
        eventually(lambda: link.arrived(topic) == [100 + 3 * rounds] * 2, "the last")
    assert_copied(link, topic)
    delivering = [w for w in made if "flush" in w.calls]
    assert len(delivering) == 2, "an owner of each partition's staging, and none again"
    for producer in delivering:
        calls = [call for call in producer.calls if call != "send_offsets_to_transaction"]
        before = [calls[i - 1] for i, call in enumerate(calls) if call == "commit_transaction"]
        assert before.count("flush") >= rounds
        assert before[0] == "produce", "the first one's mapping waits for the reports"


class BreakAtCommit(Rule):
    """The connection breaks when a commit is asked for, each time the first request is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False

    async def request(self, connection: Connection, api: int, body: bytes) -> bool:
        if api != END_TXN or not self.armed:
            return True
        self.armed = False
        self.hits += 1
        connection.reset()
        connection.broker.close()
        return False


def test_each_connection_that_breaks_during_a_commit_is_seen(behind_a_proxy: Proxy) -> None:
    """Promise: a commit that librdkafka sent twice ends its producer, also the fourth time within seconds that it looks the same. Found by a
    fault round: records came twice, since the client tells its error callback nothing of connections that break."""
    bootstrap = behind_a_proxy.bootstrap_servers
    create_topic(bootstrap, "mappings")
    plan = {
        "mappings_topic": "mappings",
        "producer": {"bootstrap.servers": bootstrap},
        "link": "link",
        "whole_batches": False,
    }
    ids: Any = SimpleNamespace(used=lambda link, partition: [])
    fencing = FencingProducer(plan, 0, "staging-0", 1_000_000, 65536, ids)
    fencing.fence(Deadline(30))
    rule = BreakAtCommit()
    behind_a_proxy.add(rule)

    def commit() -> None:
        fencing.begin()
        fencing.client.produce("mappings", b"record", None, 0)
        fencing.client.flush(10)
        fencing.client.commit_transaction(10)
        fencing.must_be_clean(0.0)

    for number in range(1, 5):
        commit()
        rule.armed = True
        with pytest.raises(UncleanTransaction):
            commit()
        assert rule.hits == number


def test_a_call_that_never_returns_does_not_stop_its_partitions_for_ever(
    source: Kafka,
    target: Kafka,
    names: Names,
    watch: Callable[[Commit], list[Watched]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise: a delivery that hangs inside the client is given up and its partitions are delivered by a new one; what the call that
    hung does when it returns after all is without effect."""
    monkeypatch.setattr(lane, "HANGS_S", 8.0)
    hung, released = iter([True]), threading.Event()

    def commit(producer: Watched, timeout: float) -> None:
        if next(hung, False):
            released.wait(120)
        producer.real.commit_transaction(timeout)

    link, topic = filled(source, target, names)
    watch(commit)
    with link.running(replicators=0):
        eventually(lambda: link.arrived(topic) == [100, 100], "both partitions", 60)
        released.set()
    assert_copied(link, topic)


def test_fencing_comes_before_the_state_is_read(
    source: Kafka,
    target: Kafka,
    names: Names,
    watch: Callable[[Commit], list[Watched]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise: nobody can commit any more when the mappings are read; read before, a predecessor's records would come again."""
    link, topic = filled(source, target, names)
    made = watch(lambda producer, timeout: producer.real.commit_transaction(timeout))
    real = recovery.recover
    seen: list[list[str]] = []

    def recover(*args: Any) -> Any:
        seen.append([call for w in made for call in w.calls])
        return real(*args)

    monkeypatch.setattr(delivery, "recover", recover)
    assert link.deduplicate() == 0
    assert seen
    assert all("init_transactions" in calls and "abort_transaction" in calls for calls in seen)
    assert_copied(link, topic)
