"""Which errors pass by themselves, and what a broker that lags behind the others may not lead to."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from common import kafka, link, topics
from common.errors import LinkRefused
from common.kafka import Deadline
from common.settings import Settings
from common.topics import TopicInfo


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError._TRANSPORT,
    ],
)
def test_what_a_change_of_leaders_brings_is_ridden_out(code: int) -> None:
    assert kafka.retriable(KafkaError(code))


@pytest.mark.parametrize("code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_PRODUCER_EPOCH])
def test_what_does_not_pass_is_not_tried_again(code: int) -> None:
    assert not kafka.retriable(KafkaError(code))


def settings() -> Settings:
    return Settings.load(
        environ={
            "APPLICATION_NAME": "link",
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "a:1",
            "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders",
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "b:1",
        }
    )


def test_a_topic_that_one_broker_does_not_know_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new topic is known to one broker before it is to another, and each description may ask another one."""
    asked = 0

    def describe(_: Any, names: list[str], __: Deadline) -> dict[str, TopicInfo]:
        nonlocal asked
        asked += 1
        known = names if asked > 2 else names[1:]
        return {name: TopicInfo(name, "id", 1) for name in known}

    monkeypatch.setattr(topics, "describe", describe)
    found = link._described(settings(), None, Deadline(5))  # type: ignore[arg-type]
    assert found.keys() == settings().own_topics and asked == 3


def test_a_topic_that_never_shows_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "describe", lambda *_: {})
    with pytest.raises(LinkRefused, match=r"link\.control was made but does not show up"):
        link._described(settings(), None, Deadline(0))  # type: ignore[arg-type]
