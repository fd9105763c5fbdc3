"""Reads given ranges of a topic to their ends, committed records only; what the records mean is the caller's
business."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, TopicPartition

from common.errors import KafkaTimeout, StateError
from common.kafka.client import clients
from common.kafka.client.clients import Received
from common.kafka.errors import NO_RIGHTS, denied

TIMEOUT_S = 60.0


def records(
    reader: Consumer, topic: str, ranges: Mapping[int, tuple[int, int]], timeout_s: float = TIMEOUT_S
) -> Iterator[Received]:
    """Every committed record of the ranges, each partition's in order; returns once each partition's end is
    reached.

    The last offsets of a range may be markers or aborted records, which never arrive: there the
    end-of-partition event, whose offset is the position reached, stands for them. Raises StateError when a
    start is below the log start (the records are gone), KafkaTimeout when nothing has moved for `timeout_s`.
    """
    missing = {p: end for p, (start, end) in ranges.items() if start < end}
    if not missing:
        return
    try:
        reader.assign([TopicPartition(topic, p, ranges[p][0]) for p in missing])
        yield from _until(reader, topic, ranges, missing, timeout_s)
    finally:
        with contextlib.suppress(RuntimeError):  # the caller has closed it already
            # A pause outlives its assignment: the next range of the same reader would never arrive.
            reader.resume(reader.assignment())
            reader.unassign()


def _until(
    reader: Consumer,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    missing: dict[int, int],
    timeout_s: float,
) -> Iterator[Received]:
    deadline = time.monotonic() + timeout_s
    while missing:
        messages = clients.read(reader, 0.5, 1_000)
        if not messages and time.monotonic() > deadline:
            raise KafkaTimeout(f"{topic}: no progress for {timeout_s:.0f} s towards {missing}")
        for message in messages:
            partition, error = message.partition(), message.error()
            if error is None:
                deadline = time.monotonic() + timeout_s
                end = missing.get(partition)
                if end is None:
                    continue
                if message.offset() < end:
                    yield message
                if message.offset() >= end - 1:
                    del missing[partition]
                    reader.pause([TopicPartition(topic, partition)])
            elif error.code() == KafkaError._PARTITION_EOF:
                if message.offset() >= missing.get(partition, message.offset() + 1):
                    del missing[partition]
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise StateError(
                    f"{topic}/{partition}: records from offset {ranges.get(partition, (-1, -1))[0]} on are gone "
                    f"({error.str()}); read again from the log start"
                )
            elif error.code() in NO_RIGHTS:
                raise denied(f"reading {topic}", error, right="READ")
            elif error.fatal() or error.code() in (
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                KafkaError._UNKNOWN_PARTITION,
                KafkaError._UNKNOWN_TOPIC,
            ):
                raise StateError(f"{topic}/{partition}: can't be read: {error.str()}")
