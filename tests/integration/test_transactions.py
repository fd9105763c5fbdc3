"""Transactions that do not end as they should: each outcome is found out, never guessed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from common.kafka.wire.batch_producer import BatchProducer
from deduplicator.lane import delivery, fencing, lane, recovery
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link, assert_copied, eventually

Commit = Callable[["Watched", float], None]


class Watched:
    """A transactional producer that logs what is asked of it, and commits as a test wants."""

    def __init__(self, real: BatchProducer, commit: Commit) -> None:
        self.real = real
        self.calls: list[str] = []
        self.commit = commit

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        if not callable(found):
            return found

        def logged(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            return found(*args, **kwargs)

        return logged

    def commit_transaction(self, timeout: float) -> None:
        self.calls.append("commit_transaction")
        self.commit(self, timeout)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Commit], list[Watched]]:
    """Let every transactional producer commit by a function of the test's; the producers that were made."""

    def patch(commit: Commit) -> list[Watched]:
        made: list[Watched] = []

        def producer(*args: Any) -> Any:
            made.append(Watched(BatchProducer(*args), commit))
            return made[-1]

        monkeypatch.setattr(fencing, "BatchProducer", producer)
        return made

    return patch


def filled(source: Kafka, target: Kafka, names: Names) -> tuple[Link, str]:
    topic = names.topic()
    create_topic(source.bootstrap_servers, topic, 2, {"retention.ms": "-1"})
    produce(source.bootstrap_servers, topic, [Record(partition=i % 2, value=b"%d" % i) for i in range(200)])
    link = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic)
    assert link.replicate() == 0
    return link, topic


def test_a_commit_that_succeeded_but_raised_is_not_done_again(
    source: Kafka, target: Kafka, names: Names, watch: Callable[[Commit], list[Watched]]
) -> None:
    """Promise: a transaction whose outcome is unknown is looked up in the mappings, so its records come
    once."""
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
    """Promise: state and position are loaded together after a failure; with `next` kept in memory the records
    would be lost."""
    failures = iter([True] * 3)

    def commit(producer: Watched, timeout: float) -> None:
        if next(failures, False):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        producer.real.commit_transaction(timeout)

    link, topic = filled(source, target, names)
    watch(commit)
    assert link.deduplicate() == 0
    assert_copied(link, topic)


def test_mappings_go_with_their_records_once_the_offsets_are_foreseen_and_these_are_as_foreseen(
    source: Kafka, target: Kafka, names: Names, watch: Callable[[Commit], list[Watched]]
) -> None:
    """Promise: where nobody else writes, a transaction takes up the offsets of its records and one for its
    marker in each destination partition, so all but a producer's first produce their mappings before the
    flush, none is given up, and every mapping is exact."""
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


@pytest.mark.whole
def test_a_call_that_never_returns_does_not_stop_its_partitions_for_ever(
    source: Kafka,
    target: Kafka,
    names: Names,
    watch: Callable[[Commit], list[Watched]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise: a delivery that hangs inside the client is given up and its partitions are delivered by a new
    one; what the call that hung does when it returns after all is without effect."""
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
    """Promise: nobody can commit any more when the mappings are read; read before, a predecessor's records
    would come again."""
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
