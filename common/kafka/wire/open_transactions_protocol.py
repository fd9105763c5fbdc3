"""The requests that common/kafka/wire/open_transactions.py asks leaders with. Bytes in, bytes out."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from common.kafka.wire.protocol import NO_TAGS, Answer, Api, by_topic, compact_count, compact_text, text
from common.partitions import PartitionName

LIST_OFFSETS = Api("ListOffsets", 2, 5)
DESCRIBE_PRODUCERS = Api("DescribeProducers", 61, 0, flexible=True)


def list_offsets(partitions: Iterable[PartitionName], committed: bool) -> bytes:
    """The ends of partitions: high watermarks, or (`committed`) last stable offsets."""
    topics = by_topic(partitions)
    body = struct.pack(">ibi", -1, committed, len(topics))
    for topic, numbers in topics.items():
        body += text(topic) + struct.pack(">i", len(numbers))
        body += b"".join(struct.pack(">iiq", number, -1, -1) for number in numbers)
    return body


def listed_offsets(answer: Answer) -> dict[PartitionName, tuple[int, int]]:
    """Of each partition an error code (0: none) and the offset."""
    found = {}
    answer.number("i")
    for _ in answer.each():
        topic = answer.text() or ""
        for _ in answer.each():
            partition, error, _, offset, _ = answer.take("ihqqi")
            found[topic, partition] = (error, offset)
    return found


def describe_producers(partitions: Iterable[PartitionName]) -> bytes:
    topics = by_topic(partitions)
    body = compact_count(topics)
    for topic, numbers in topics.items():
        body += compact_text(topic) + compact_count(numbers)
        body += struct.pack(f">{len(numbers)}i", *numbers) + NO_TAGS
    return body + NO_TAGS


def described_producers(answer: Answer) -> dict[PartitionName, tuple[int, dict[int, int]]]:
    """Of each partition an error code (0: none), and by producer id where the transaction begins that it has
    open there."""
    found = {}
    answer.tags()
    answer.number("i")
    for _ in answer.each_compact():
        topic = answer.compact_text() or ""
        for _ in answer.each_compact():
            partition, error = answer.take("ih")
            answer.compact_text()
            first = {}
            for _ in answer.each_compact():
                number, _, _, _, _, begin = answer.take("qiiqiq")
                if begin >= 0:
                    first[number] = begin
                answer.tags()
            answer.tags()
            found[topic, partition] = (error, first)
        answer.tags()
    return found
