"""Two requests that the client library lacks: how large logs are (DescribeLogDirs), and quotas. Pure: bytes
in, bytes out; they are asked in verbatim/scan/calls.py."""

from __future__ import annotations

import struct
from typing import NamedTuple

from common.kafka.wire.protocol import Answer, Api
from common.partitions import PartitionName

LOG_DIRS = Api("DescribeLogDirs", 35, 1)
ALL_LOGS = struct.pack(">i", -1)
QUOTAS = Api("DescribeClientQuotas", 48, 0)
ALL_QUOTAS = struct.pack(">ib", 0, 0)


class Quota(NamedTuple):
    """Whom a quota is for (kind -> name; None: the default), and what it allows."""

    entity: dict[str, str | None]
    limits: dict[str, float]


def log_sizes(answer: Answer) -> dict[PartitionName, int] | None:
    """Bytes of each log that a broker holds; None where it may not be asked: it names no folder then. Raises
    MalformedAnswer."""
    answer.number("i")
    folders = answer.each()
    found: dict[PartitionName, int] = {}
    for _ in folders:
        answer.number("h")
        answer.text()
        for _ in answer.each():
            topic = answer.text() or ""
            for _ in answer.each():
                partition, size, _, moving_here = answer.take("iqqb")
                if not moving_here:
                    found[topic, partition] = size
    return found if folders else None


def quotas(answer: Answer) -> tuple[int, str | None, list[Quota]]:
    """Error code, the broker's words, and the quotas. Raises MalformedAnswer."""
    _, error = answer.take("ih")
    words = answer.text()
    found = []
    for _ in answer.each():
        entity = {(answer.text() or ""): answer.text() for _ in answer.each()}
        limits = {(answer.text() or ""): float(answer.take("d")[0]) for _ in answer.each()}
        found.append(Quota(entity, limits))
    return error, words, found
