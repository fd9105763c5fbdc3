"""Consumer groups that move at the source while a round is played, and whether their offsets at the target
are exact in the end."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.faults.rounds.checker import Mapped, Partition, read_mappings
from tests.faults.rounds.proxy import wait_for
from tests.support.brokers import end_offsets

GROUPS = 3
EACH_S = 0.2
CALL_S = 5.0

Place = tuple[str, str, int]
"""Group, topic, partition."""


class Groups:
    """Commits for some groups, further and further, until stopped; where they are going next is anywhere up
    to the log's end."""

    def __init__(self, source: str, names: Sequence[str], topics: Sequence[str], seed: int) -> None:
        self.committed: dict[Place, int] = {}
        """What the source has acknowledged; of what it has not it may have taken some all the same."""
        self._source, self._topics = source, topics
        self._random = random.Random(seed)
        self._consumers = {name: _consumer(source, name) for name in names}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> dict[Place, int]:
        self._stop.set()
        self._thread.join(60)
        for consumer in self._consumers.values():
            consumer.close()
        return self.committed

    def _run(self) -> None:
        while not self._stop.wait(EACH_S):
            # What the source can't take now is tried again with the next.
            with contextlib.suppress(KafkaException, TimeoutError):
                self._move()

    def _move(self) -> None:
        group, topic = self._random.choice(list(self._consumers)), self._random.choice(self._topics)
        for partition, end in end_offsets(self._source, topic, "read_uncommitted").items():
            at = (group, topic, partition)
            to = self._random.randint(self.committed.get(at, 0), end)
            self._consumers[group].commit(offsets=[TopicPartition(topic, partition, to)], asynchronous=False)
            self.committed[at] = to


def names(link: str) -> list[str]:
    return [f"{link}-reader{n}" for n in range(GROUPS)]


def problems(source: str, target: str, link: str, moved: Mapping[Place, int], within_s: float) -> list[str]:
    """Each group that was moved stands at the target, in time, at the copy of the record that it would read
    next at the source, and so in each topic that records are routed to. Call it when the source has
    healed."""
    committed = committed_at(source, moved)
    mapped = read_mappings(target, f"{link}.offset-mappings")
    due: dict[Place, tuple[list[Mapped], int]] = {}
    for (group, topic, partition), offset in committed.items():
        records = mapped.get((topic, partition), [])
        due[group, topic, partition] = records, offset
        for name in {name for m in records for name in m.routed}:
            due[group, name, partition] = [m.elsewhere(name) for m in records], offset
    ends = {t: end_offsets(target, t, "read_uncommitted") for t in {topic for _, topic, _ in due}}
    wrong: dict[Place, str] = {}

    def exact() -> bool:
        wrong.clear()
        found = committed_at(target, due)
        for at, (records, offset) in due.items():
            _, topic, partition = at
            least, most = bounds(records, offset, ends[topic][partition])
            if not least <= found.get(at, -1) <= most:
                wrong[at] = (
                    f"{offset} at the source, {found.get(at)} at the target, not from {least} to {most}"
                )
        time.sleep(0.3 if wrong else 0)
        return not wrong

    wait_for(exact, within_s)
    return [f"group {group}, {topic}-{p}: {what}" for (group, topic, p), what in sorted(wrong.items())]


def bounds(mapped: Sequence[Mapped], offset: int, end: int) -> tuple[int, int]:
    """Where a group at a source offset may stand: at one offset, or where nothing follows at any behind the
    last record."""
    pairs = [(s + i, d + i) for m in mapped for s, d, length in m.runs for i in range(length)]
    index = bisect_left(pairs, (offset, -1))
    if index < len(pairs):
        return pairs[index][1], pairs[index][1]
    return (pairs[-1][1] + 1 if pairs else 0), end


def committed_at(bootstrap: str, places: Collection[Place]) -> dict[Place, int]:
    """What the groups have committed in a cluster; below 0 where they have not."""
    found: dict[Place, int] = {}
    for group in {group for group, _, _ in places}:
        with contextlib.closing(_consumer(bootstrap, group)) as consumer:
            asked: list[Partition] = [(topic, p) for g, topic, p in places if g == group]
            for at in consumer.committed([TopicPartition(*where) for where in asked], timeout=CALL_S * 6):
                found[(group, at.topic, at.partition)] = at.offset
    return found


def _consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": "false",
            "socket.timeout.ms": int(CALL_S * 1000),
            "log_level": 0,
        }
    )
