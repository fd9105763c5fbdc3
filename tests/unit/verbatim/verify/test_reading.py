"""What the verifier does with answers that only a client in trouble gives."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from common.errors import KafkaTimeout
from verbatim.verify.reading import Cluster


def test_a_leader_that_does_not_answer_is_named_and_its_log_is_not_held_to_be_empty() -> None:
    def list_offsets(asked: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        answers = {at: Future[Any]() for at in asked}
        for answer in answers.values():
            answer.set_result(SimpleNamespace(offset=OFFSET_INVALID))
        return answers

    cluster = Cluster.__new__(Cluster)
    cluster.which, cluster._timeout_s = "source", 1.0
    cluster._admin = SimpleNamespace(list_offsets=list_offsets)  # type: ignore[assignment]
    with pytest.raises(KafkaTimeout, match=r"source cluster: offsets of orders/0: its leader did not answer"):
        cluster.bounds("orders", 0)
