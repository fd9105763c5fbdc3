"""What the verifier does with answers that only a client in trouble gives."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from common.errors import KafkaTimeout, VerbatimError
from verbatim.verify.reading import Cluster


def answering(*answers: int | KafkaError) -> tuple[Cluster, list[int]]:
    """A cluster whose ListOffsets is answered so, one time after the other, the last for ever; and how often
    it was asked."""
    left, asked_times = list(answers), [0]

    def list_offsets(asked: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        asked_times[0] += 1
        answer = left.pop(0) if len(left) > 1 else left[0]
        futures = {at: Future[Any]() for at in asked}
        for future in futures.values():
            if isinstance(answer, KafkaError):
                future.set_exception(KafkaException(answer))
            else:
                future.set_result(SimpleNamespace(offset=answer))
        return futures

    cluster = Cluster.__new__(Cluster)
    cluster.which, cluster._timeout_s = "source", 1.0
    cluster._admin = SimpleNamespace(list_offsets=list_offsets)  # type: ignore[assignment]
    return cluster, asked_times


def test_a_leader_that_has_just_moved_is_asked_again() -> None:
    """A cutover ended with a refusal for it."""
    moved = [
        KafkaError(code)
        for code in (
            KafkaError.FENCED_LEADER_EPOCH,
            KafkaError.NOT_LEADER_FOR_PARTITION,
            KafkaError._TRANSPORT,
        )
    ]
    cluster, asked = answering(*moved, 7)
    assert cluster.high_watermark("orders", 0) == 7
    assert asked == [4]


def test_what_will_not_pass_is_said_at_once() -> None:
    cluster, asked = answering(KafkaError(KafkaError.UNSUPPORTED_VERSION))
    with pytest.raises(VerbatimError, match=r"source cluster: offsets of orders/0: .*UNSUPPORTED_VERSION"):
        cluster.high_watermark("orders", 0)
    assert asked == [1]


def test_a_leader_that_does_not_answer_is_named_and_its_log_is_not_held_to_be_empty() -> None:
    cluster, _ = answering(OFFSET_INVALID)
    with pytest.raises(KafkaTimeout, match=r"source cluster: offsets of orders/0: its leader did not answer"):
        cluster.bounds("orders", 0)
