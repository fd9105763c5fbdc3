"""Notices that a consumer has gone silent: records stand behind its position, and none of them comes.

librdkafka may cease to fetch a partition, for good and without a word, when its leader changes (its issue
4492; seen in fault rounds with 2.16). What reads on until it is told to stop would wait for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from common import ports
from common.partitions import PartitionName

LOOK_S = 10.0

Positions = Mapping[PartitionName, int]
"""(topic, partition) -> offset of the next record."""


class StallDetector:
    """Asked often, it looks every `look_s`: at the positions, and at the ends that brokers tell meanwhile.
    Never waits for a broker."""

    def __init__(self, admin: AdminClient, look_s: float = LOOK_S) -> None:
        self._admin = admin
        self._look_s = look_s
        self._look_at = ports.monotonic() + look_s
        self._before: Positions = {}
        self._ends: dict[PartitionName, int] = {}
        self._asked: Mapping[TopicPartition, Any] = {}

    def found(self, positions: Callable[[], Positions]) -> list[PartitionName]:
        """Partitions that have not moved since the last look, at which an end beyond was known already:
        between two and three looks old."""
        now = ports.monotonic()
        if now < self._look_at:
            return []
        self._look_at = now + self._look_s
        there = positions()
        silent = [
            at
            for at, end in self._ends.items()
            if at in there and there[at] == self._before.get(at, end) < end
        ]
        self._before = there
        self._ends = self._answers()
        wanted = {TopicPartition(*at): OffsetSpec.latest() for at in there}
        self._asked = (
            self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._look_s / 2
            )
            if wanted
            else {}
        )
        if silent:
            self._ends = {}
        return sorted(silent)

    def _answers(self) -> dict[PartitionName, int]:
        """What was asked at the last look. Of whom nobody answers it is not known whether anything is
        there."""
        ends = {}
        for at, future in self._asked.items():
            with contextlib.suppress(KafkaException, TimeoutError):
                ends[at.topic, at.partition] = future.result(0).offset
        return ends
