"""The two real brokers that everything in a sitting is measured on, and their topics. Knows no copier."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property, partial
from pathlib import Path

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from common.kafka.client.topics import create_all
from common.ports import Deadline
from verbatim.local.kafka_cluster import FULL_SPEED, Cluster
from verbatim.local.processes import HOST, free_ports, spawn

HEAP = "1g"
# As kafka-server-start.sh starts them: with a heap that has its full size at once.
_JVM = (f"-Xms{HEAP}", *FULL_SPEED)
# Of a benchmark's records nothing is to be deleted by age while it runs, and no limit of a topic is what is
# measured.
TOPIC_CONFIG = {"retention.ms": "-1", "max.message.bytes": str(4 << 20)}
_CALL_S = 30.0


@dataclass
class Broker:
    """A cluster of one broker, seen through an admin client. `far`: where copiers reach it by a line, if
    not at `bootstrap_servers`."""

    cluster: Cluster
    far: str = ""

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers})

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def copiers_servers(self) -> str:
        """Where copiers reach it."""
        return self.far or self.bootstrap_servers

    @property
    def pid(self) -> int:
        return self.cluster.pid()

    @property
    def log_folder(self) -> Path:
        return self.cluster.folder / "node-1"

    def create(self, topics: Sequence[str], partitions: int) -> None:
        """Create topics of so many partitions each, and wait until they are there."""
        wanted = dict.fromkeys(topics, (partitions, TOPIC_CONFIG))
        create_all(self.admin, wanted, 1, Deadline(300.0))

    def topics(self) -> list[str]:
        """All but Kafka's own."""
        return sorted(t for t in self.admin.list_topics(timeout=_CALL_S).topics if not t.startswith("__"))

    def delete(self, topics: list[str]) -> None:
        """Delete topics, and wait until their records have gone from the disk too: it is work that must not
        fall into a measurement."""
        if not topics:
            return
        for future in self.admin.delete_topics(topics, operation_timeout=_CALL_S).values():
            future.result(_CALL_S)
        give_up = time.monotonic() + _CALL_S
        while any(self.log_folder.glob("*-delete")) and time.monotonic() < give_up:
            time.sleep(0.1)

    def visible(self, topics: Sequence[str], partitions: int) -> Visible:
        """Follows what a read-committed reader may see of topics, which need not be there yet."""
        return Visible(self, topics, partitions)


class Visible:
    """Calling it gives the offsets that a read-committed reader may see, transaction markers included; 0
    until there are all topics."""

    def __init__(self, broker: Broker, topics: Sequence[str], partitions: int) -> None:
        self._broker, self._topics = broker, set(topics)
        self._asked = {TopicPartition(t, p): OffsetSpec.latest() for t in topics for p in range(partitions)}
        self._admin: AdminClient | None = None
        self._last = 0
        self._answered_at = time.monotonic()

    def __call__(self) -> int:
        if self._admin is None:
            if not self._topics.issubset(self._broker.topics()):
                return 0
            # A client of its own, made once there is something to ask for: one that has asked for a topic
            # before it was there, or has listed all topics, was seen to answer "no leaders found" for as long
            # as it lived.
            self._answered_at = time.monotonic()
            self._admin = AdminClient({"bootstrap.servers": self._broker.bootstrap_servers})
        found = self._admin.list_offsets(
            self._asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_CALL_S
        )
        try:
            self._last = sum(int(future.result(_CALL_S).offset) for future in found.values())
            self._answered_at = time.monotonic()
        except KafkaException:
            # A topic just made has no leader for a moment.
            if time.monotonic() - self._answered_at > _CALL_S:
                raise
        return self._last


@dataclass
class Pair:
    """Source and target, and a folder for what a sitting puts aside."""

    source: Broker
    target: Broker
    folder: Path


@dataclass(frozen=True)
class Far:
    """How far away a cluster is: its round trip, what its line carries in each direction, and how many
    percent of the connections it cuts each second."""

    round_trip_ms: float = 0.0
    mbit: float = math.inf
    cut_percent: float = 0.0


NEAR = Far()


@contextlib.contextmanager
def two_brokers(
    folder: Path, source: Far = NEAR, target: Far = NEAR, *, properties: Mapping[str, str | int] | None = None
) -> Iterator[Pair]:
    """Start both, and end them however it ends. `properties` are both brokers', over the defaults."""
    with (
        _broker(folder / "source-line.log", source, properties) as one,
        _broker(folder / "target-line.log", target, properties) as other,
    ):
        yield Pair(one, other, folder)


@contextlib.contextmanager
def _broker(log: Path, far: Far, properties: Mapping[str, str | int] | None) -> Iterator[Broker]:
    make = partial(Cluster, heap=HEAP, jvm_options=_JVM, properties=properties)
    if far == NEAR:
        with make() as cluster:
            yield Broker(cluster)
        return
    listens, told = free_ports(2)
    with make(clients={1: (listens, told)}) as cluster:
        command = [sys.executable, "-m", "bench.line", told, listens, *astuple(far)]
        line = spawn(list(map(str, command)), log)
        try:
            yield Broker(cluster, f"{HOST}:{told}")
        finally:
            line.kill()
            line.wait()
