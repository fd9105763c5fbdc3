"""Reads given ranges of topics to their ends, committed records only; what the records mean is the caller's
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
from common.partitions import PartitionName

TIMEOUT_S = 60.0


def records(
    reader: Consumer, topic: str, ranges: Mapping[int, tuple[int, int]], timeout_s: float = TIMEOUT_S
) -> Iterator[Received]:
    """Every committed record of ranges of one topic: partition -> first offset and the one after the last.
    As `of_partitions`."""
    return of_partitions(reader, {(topic, p): between for p, between in ranges.items()}, timeout_s)


def of_partitions(
    reader: Consumer, ranges: Mapping[PartitionName, tuple[int, int]], timeout_s: float = TIMEOUT_S
) -> Iterator[Received]:
    """Every committed record of the ranges, each partition's in order; returns once each partition's end is
    reached.

    The last offsets of a range may be markers or aborted records, which never arrive: there the
    end-of-partition event, whose offset is the position reached, stands for them. Raises StateError when a
    start is below the log start (the records are gone), KafkaTimeout when nothing has moved for `timeout_s`.
    """
    missing = {at: end for at, (start, end) in ranges.items() if start < end}
    if not missing:
        return
    try:
        reader.assign([TopicPartition(*at, ranges[at][0]) for at in missing])
        yield from _until(reader, ranges, missing, timeout_s)
    finally:
        with contextlib.suppress(RuntimeError):  # the caller has closed it already
            # A pause outlives its assignment: the next range of the same reader would never arrive.
            reader.resume(reader.assignment())
            reader.unassign()


def _until(
    reader: Consumer,
    ranges: Mapping[PartitionName, tuple[int, int]],
    missing: dict[PartitionName, int],
    timeout_s: float,
) -> Iterator[Received]:
    deadline = time.monotonic() + timeout_s
    while missing:
        messages = clients.read(reader, 0.5, 1_000)
        if not messages and time.monotonic() > deadline:
            (topic, partition), end = next(iter(missing.items()))
            raise KafkaTimeout(
                f"{topic}/{partition}: no progress for {timeout_s:.0f} s towards offset {end}, "
                f"in {len(missing)} partitions"
            )
        for message in messages:
            topic, partition, error = message.topic(), message.partition(), message.error()
            at = (topic, partition)
            if error is None:
                deadline = time.monotonic() + timeout_s
                end = missing.get(at, -1)
                if end < 0:
                    continue
                if message.offset() < end:
                    yield message
                if message.offset() >= end - 1:
                    del missing[at]
                    reader.pause([TopicPartition(topic, partition)])
            elif error.code() == KafkaError._PARTITION_EOF:
                if message.offset() >= missing.get(at, message.offset() + 1):
                    del missing[at]
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise StateError(
                    f"{topic}/{partition}: records from offset {ranges.get(at, (-1, -1))[0]} on are gone "
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
