"""Reads the ends of several topics of one partition each, side by side: what can't be read is named, and
holds up none of the others. What the records mean is the caller's business.

By the project's own consumer: it needs the right to read a topic, and none on a group.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from common.kafka.client import topics
from common.kafka.client.clients import Config
from common.kafka.errors import denied
from common.kafka.wire.batch_consumer import BatchConsumer, Event
from common.ports import Deadline

LEAST = 1_000
"""Offsets: of a link that has been silent for long, what it said last."""


class Entry(NamedTuple):
    """A record, with its time in ms since 1970."""

    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None


def read(
    config: Config,
    admin: AdminClient,
    names: Iterable[str],
    most: int | None,
    deadline: Deadline,
    since_ms: int | None = None,
) -> tuple[dict[str, list[Entry]], dict[str, str]]:
    """The committed records of topics, up to the ends that they have now, of each the last `most` offsets
    (None: all), and of these, with `since_ms`, no more than LEAST that are older. And why the others could
    not be read. Topics of several partitions are neither. Raises LinkRefused where no broker lets this client
    in."""
    names, hidden, unknown = sorted(names), set[str](), dict[tuple[str, int], str]()
    there = topics.describe(admin, names, deadline, hidden)
    at = [(name, 0) for name, info in there.items() if info.partitions == 1 and not info.leaderless]
    bounds = topics.bounds(admin, at, deadline, True, unknown)
    since: dict[tuple[str, int], int] = {}
    if since_ms is not None:
        of_time = dict.fromkeys(bounds, OffsetSpec.for_timestamp(since_ms))
        since = topics.offsets(admin, of_time, deadline, failed=unknown)
    failed = {name: "it is not there" for name in names if name not in there}
    failed |= dict.fromkeys(hidden, "it may not be described; grant DESCRIBE")
    failed |= {name: "it has no leader now" for name, info in there.items() if info.leaderless}
    failed |= {name: words for (name, _), words in unknown.items()}
    found: dict[str, list[Entry]] = {name: [] for name, _ in bounds}
    left = {name: end for (name, _), (low, end) in bounds.items() if low < end}
    with closing(BatchConsumer({**config, "fetch.wait.max.ms": 50}, {})) as consumer:
        for name, end in left.items():
            begin = first(bounds[name, 0][0], end, most, since.get((name, 0), 0))
            consumer.assign([(name, there[name].id, 0, begin, None)])
        while left and not deadline.passed():
            for part in consumer.read(min(0.2, deadline.left())):
                if isinstance(part, Event):
                    if not part.topic:
                        raise denied("reading topics", part.error)
                    failed[part.topic] = _words(part.error)
                    left.pop(part.topic, None)
                elif part.topic in left:
                    if part.rows is not None:
                        columns = (part.rows.column(i).to_pylist() for i in (0, 1, 3, 4))
                        found[part.topic] += map(Entry._make, zip(*columns, strict=True))
                    if part.next >= left[part.topic]:
                        del left[part.topic]
                        consumer.pause([TopicPartition(part.topic, 0)])
    failed |= dict.fromkeys(left, "its end was not reached within the time allowed")
    return {name: entries for name, entries in found.items() if name not in failed}, failed


def first(low: int, end: int, most: int | None, recent: int) -> int:
    """Where to begin to read a log: with what is `recent` (an offset; -1: nothing is) and LEAST offsets in
    any case, with the last `most` (None: all) at most. Pure."""
    if most is None:
        return low
    return max(low, max(end - most, min(end if recent < 0 else recent, end - LEAST)))


def _words(error: KafkaError) -> str:
    right = "; grant READ" if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED else ""
    return error.str() + right
