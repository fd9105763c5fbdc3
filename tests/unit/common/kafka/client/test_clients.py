"""Which errors pass by themselves, and what a broker that lags behind the others may not lead to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec

from common.config import loading
from common.config.settings import Settings
from common.errors import KafkaTimeout, LinkRefused, SettingsError
from common.kafka.client import clients, topics
from common.kafka.client.appender import Appender
from common.kafka.client.topics import TopicInfo
from common.kafka.errors import retriable
from common.link import identity
from common.ports import Deadline
from verbatim.plan.dry_run_clients import PretendingAdmin


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError._TRANSPORT,
        KafkaError._NOENT,
    ],
)
def test_what_a_change_of_leaders_brings_is_ridden_out(code: int) -> None:
    assert retriable(KafkaError(code))


@pytest.mark.parametrize("code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_PRODUCER_EPOCH])
def test_what_does_not_pass_is_not_tried_again(code: int) -> None:
    assert not retriable(KafkaError(code))


class Leaderless:
    """An admin client that answers OFFSET_INVALID before it knows the partition's leader."""

    def __init__(self) -> None:
        self.asked = 0

    def describe_topics(self, wanted: TopicCollection, **_: Any) -> dict[str, Any]:
        answers: dict[str, Any] = {name: Future() for name in wanted.topic_names}
        for answer in answers.values():
            answer.set_result(None)
        return answers

    def list_offsets(self, wanted: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Any]:
        self.asked += 1
        answers: dict[TopicPartition, Any] = {}
        for at in wanted:
            answers[at] = Future()
            answers[at].set_result(SimpleNamespace(offset=OFFSET_INVALID if self.asked < 4 else 7))
        return answers


def test_the_end_of_a_log_without_a_leader_is_waited_for_and_never_taken_for_an_offset() -> None:
    """A partition was halted for a log that ended at -1001, in a control record that nobody could read
    afterwards."""
    client: Any = Leaderless()
    assert clients.watermarks(client, "orders", 0, Deadline(10)) == (7, 7)
    client = Leaderless()
    where = {("orders", 0): OffsetSpec.latest()}
    assert topics.offsets(client, where, Deadline(10)) == {("orders", 0): 7}


def settings() -> Settings:
    return loading.load(
        environ={
            "APPLICATION_NAME": "link",
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "a:1",
            "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders",
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "b:1",
        }
    )


def test_a_topic_that_one_broker_does_not_know_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new topic is known to one broker before it is to another, and each description may ask another
    one."""
    asked = 0

    def describe(_: Any, names: list[str], __: Deadline) -> dict[str, TopicInfo]:
        nonlocal asked
        asked += 1
        known = names if asked > 2 else names[1:]
        return {name: TopicInfo(name, "id", 1) for name in known}

    monkeypatch.setattr(topics, "describe", describe)
    found = identity._described(None, list(settings().own_topics), Deadline(5))  # type: ignore[arg-type]
    assert found.keys() == settings().own_topics and asked == 3


def test_a_topic_that_never_shows_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "describe", lambda *_: {})
    with pytest.raises(LinkRefused, match=r"link\.control was made but does not show up"):
        identity._described(None, [settings().control_topic], Deadline(0))  # type: ignore[arg-type]


class Said:
    """A producer that notes what it is asked, and answers no question about topics if it is `alone`."""

    def __init__(self, alone: bool) -> None:
        self.calls: list[str] = []
        self._alone = alone
        self._reports: list[Any] = []

    def list_topics(self, topic: str, timeout: float) -> None:
        self.calls.append(f"list_topics {topic}")
        if self._alone:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def produce(self, topic: str, value: Any, key: Any, partition: int, on_delivery: Any) -> None:
        self.calls.append("produce")
        self._reports.append(on_delivery)

    def poll(self, timeout: float) -> int:
        return 0

    def flush(self, timeout: float) -> int:
        for report in self._reports:
            report(None, SimpleNamespace(offset=lambda: 7))
        return 0


@pytest.mark.parametrize("alone", [False, True])
def test_a_producer_is_connected_before_it_is_used_and_used_where_it_can_t_be(
    monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """Two questions: the first one's connection is given up (see kafka.connect)."""
    made = Said(alone)
    monkeypatch.setattr(clients, "producer", lambda *_, **__: made)
    asked = 1 if alone else 2
    assert Appender("l.control", {}).append([(None, b"v")], 5.0) == [7]
    assert made.calls == ["list_topics l.control"] * asked + ["produce"]


@pytest.mark.parametrize("make", [clients.consumer, clients.producer, clients.admin, PretendingAdmin])
def test_properties_that_no_client_can_be_made_of_are_an_error_in_one_line(make: Callable[..., Any]) -> None:
    """GSSAPI, with a library that was built without it. It was a traceback."""
    with pytest.raises(SettingsError, match=r"of b:1 can't be made: .*SASL mechanism GSSAPI"):
        make({"bootstrap.servers": "b:1", "security.protocol": "sasl_ssl"})


def test_partitions_are_added_once_the_broker_that_is_asked_has_heard_of_the_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen: a topic that was just made, another broker asked, and a KeyError ended the deduplicator."""
    info = TopicInfo("orders", "id", 3)
    answers = iter([{}, {}, {"orders": info}])
    monkeypatch.setattr(topics, "describe", lambda *_: next(answers))
    topics.add_partitions(None, "orders", 3, Deadline(5))  # type: ignore[arg-type]
    assert next(answers, None) is None
    monkeypatch.setattr(topics, "describe", lambda *_: {})
    with pytest.raises(KafkaTimeout, match="adding partitions to topic orders: the broker that was asked"):
        topics.add_partitions(None, "orders", 3, Deadline(0.1))  # type: ignore[arg-type]
