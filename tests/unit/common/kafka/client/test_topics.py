"""Offsets of many partitions, of which some are not told."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from common.errors import KafkaTimeout, LinkRefused
from common.kafka.client import topics
from common.ports import Deadline

DENIED, AWAY = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.LEADER_NOT_AVAILABLE


class Admin:
    """Answers with offsets, or with errors; the errors of `passing` once only."""

    def __init__(self, errors: dict[str, int], passing: dict[str, int] | None = None) -> None:
        self.errors, self.passing = errors, dict(passing or {})
        self.asked = 0

    def list_offsets(self, wanted: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Any]:
        self.asked += 1
        found: dict[TopicPartition, Any] = {}
        for at in wanted:
            found[at] = future = Future[Any]()
            code = self.errors.get(at.topic) or self.passing.pop(at.topic, None)
            if code is None:
                future.set_result(SimpleNamespace(offset=7))
            else:
                future.set_exception(KafkaException(KafkaError(code)))
        return found


def asked(admin: Admin, seconds: float, failed: dict[Any, str] | None) -> dict[Any, int]:
    specs = {(name, 0): OffsetSpec.latest() for name in ("a", "b")}
    return topics.offsets(admin, specs, Deadline(seconds), failed=failed)  # type: ignore[arg-type]


def test_what_is_not_told_of_one_partition_is_named_and_the_others_are_told() -> None:
    failed: dict[Any, str] = {}
    assert asked(Admin({"b": DENIED}), 30, failed) == {("a", 0): 7}
    assert failed == {("b", 0): "Broker: Topic authorization failed"}
    with pytest.raises(LinkRefused, match="not allowed"):
        asked(Admin({"b": DENIED}), 30, None)


def test_what_passes_is_asked_again_before_it_is_an_answer() -> None:
    failed: dict[Any, str] = {}
    admin = Admin({}, passing={"b": AWAY})
    assert (asked(admin, 30, failed), failed, admin.asked) == ({("a", 0): 7, ("b", 0): 7}, {}, 2)


def test_what_does_not_pass_is_an_answer_in_the_end() -> None:
    failed: dict[Any, str] = {}
    admin = Admin({"b": AWAY})
    assert asked(admin, topics.LAST_TRY_S + 0.3, failed) == {("a", 0): 7}
    assert list(failed) == [("b", 0)] and admin.asked > 1
    with pytest.raises(KafkaTimeout):
        asked(Admin({"b": AWAY}), 0.3, None)


def test_the_bounds_of_others_are_told_too() -> None:
    failed: dict[Any, str] = {}
    found = topics.bounds(Admin({"b": DENIED}), [("a", 0), ("b", 0)], Deadline(9), failed=failed)  # type: ignore[arg-type]
    assert (found, list(failed)) == ({("a", 0): (7, 7)}, [("b", 0)])
    once = Admin({}, passing={"b": DENIED})
    found = topics.bounds(once, [("a", 0), ("b", 0)], Deadline(9), failed=failed)  # type: ignore[arg-type]
    assert found == {("a", 0): (7, 7)}, "of one without a beginning no end is asked"
