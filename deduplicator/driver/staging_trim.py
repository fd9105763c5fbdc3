"""Trims staging: what the Delta state table says is delivered is deleted, so that staging's disk cost stays
bounded."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from common.kafka.errors import future_result, kafka_error, retrying
from common.link.control_state import Control
from common.ports import Deadline


def limits(delivered: Mapping[int, int], control: Control) -> dict[int, int]:
    """Staging partition -> offset below which it may be trimmed; pure.

    Never past the first frame that a halted partition skipped: it may be the only copy of its records.
    `delivered` must be what a committed transaction reached, not what one attempted: that is what the state
    table records.
    """
    held: dict[int, int] = {}
    for request in control.holds.copy().values():
        if request.held is not None:
            partition, offset = request.held
            held[partition] = min(offset, held.get(partition, offset))
    return {p: min(offset, held.get(p, offset)) for p, offset in delivered.items()}


def trim(admin: AdminClient, topic: str, offsets: Mapping[int, int], deadline: Deadline) -> None:
    """Delete the records of each partition below its offset. Raises KafkaException, KafkaTimeout."""
    wanted = [TopicPartition(topic, p, offset) for p, offset in offsets.items() if offset > 0]
    if not wanted:
        return

    def delete(timeout: float) -> None:
        for future in admin.delete_records(
            wanted, request_timeout=timeout, operation_timeout=timeout
        ).values():
            try:
                future_result(future, timeout + 1)
            except KafkaException as exception:
                error = kafka_error(exception)
                if error is None or error.code() != error.OFFSET_OUT_OF_RANGE:
                    raise

    retrying(f"trimming {topic}", delete, deadline)
