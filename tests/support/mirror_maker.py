"""MirrorMaker 2 for tests: a real one, as a process in dedicated mode; and what one leaves behind, written
byte for byte as it writes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.copiers import MIRROR_MAKER
from common.errors import LinkRefused
from common.spark.jars import KAFKA_LOGGING, classpath, java
from tests.conftest import Names
from tests.support.brokers import Record, create_topic, produce, read_all
from tests.support.harness import Link
from verbatim.local.applications import Application
from verbatim.local.kafka_cluster import LOG4J, QUICK_START
from verbatim.local.processes import HOST, free_ports

_PROPERTIES = """\
clusters = {alias}, target
{alias}.bootstrap.servers = {source}
target.bootstrap.servers = {target}
{alias}->target.enabled = true
{alias}->target.topics = {topics}
target->{alias}.enabled = false
target.exactly.once.source.support = {exactly_once}
{alias}.consumer.isolation.level = read_committed
# Small transactions, so that a stop under load falls between two of many.
{alias}.consumer.max.poll.records = 100
dedicated.mode.enable.internal.rest = true
listeners = http://{host}:{port}
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
sync.topic.acls.enabled = false
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
offset.storage.partitions = 5
status.storage.replication.factor = 1
config.storage.replication.factor = 1
"""


class MirrorMaker(Application):
    """Copies `topics` to `<alias>.<topic>`. `properties` is the file that it goes by, for `verbatim convert`;
    `more` are further lines of it."""

    def __init__(
        self,
        folder: Path,
        source: str,
        target: str,
        alias: str,
        topics: str,
        exactly_once: bool = True,
        more: str = "",
    ) -> None:
        self.properties = folder / "mm2.properties"
        self.properties.write_text(
            _PROPERTIES.format(
                alias=alias,
                source=source,
                target=target,
                topics=topics,
                exactly_once="enabled" if exactly_once else "disabled",
                host=HOST,
                port=free_ports(1)[0],
            )
            + more
        )
        logging = folder / "log4j2.properties"
        logging.write_text(LOG4J)
        command = [java(), "-Xmx512M", *QUICK_START, f"-Dlog4j2.configurationFile={logging}"]
        command += ["-cp", classpath(KAFKA_LOGGING, MIRROR_MAKER)]
        command += ["org.apache.kafka.connect.mirror.MirrorMaker", str(self.properties)]
        super().__init__("mirror-maker", {}, folder, command)


KEPT = {"retention.ms": "-1"}
CONNECTOR = "MirrorSourceConnector"


def records(begin: int, end: int, partition: int = 0) -> list[Record]:
    return [
        Record(b"%d" % i, b"k%d" % i, partition, 1_700_000_000_000 + i, [("n", None), ("i", b"%d" % i)])
        for i in range(begin, end)
    ]


@dataclass
class Before:
    """A MirrorMaker 2 that has copied, and is gone: `alias` stands before the names of its copies."""

    at: str
    to: str
    alias: str

    @property
    def offsets(self) -> str:
        return f"mm2-offsets.{self.alias}.internal"

    def copy(self, topic: str) -> str:
        return f"{self.alias}.{topic}"

    def key(self, topic: str, partition: int, connector: str = CONNECTOR, alias: str = "") -> bytes:
        of = f'{{"cluster":"{alias or self.alias}","partition":{partition},"topic":"{topic}"}}'
        return f'["{connector}",{of}]'.encode()

    def make(self, topic: str, partitions: int = 1) -> None:
        create_topic(self.at, topic, partitions, KEPT)
        create_topic(self.to, self.copy(topic), partitions, KEPT)

    def copied(self, topic: str, partition: int, position: int, transaction: str | None = "commit") -> None:
        """It has copied what there is up to a position, and written that down."""
        there = [r for r in read_all(self.at, topic)[partition] if r.offset <= position]
        copies = [Record(r.value, r.key, partition, r.timestamp, r.headers) for r in there]
        produce(self.to, self.copy(topic), copies, transaction, self.alias)
        self.says(self.key(topic, partition), b'{"offset":%d}' % position, transaction)

    def says(self, key: bytes, value: bytes | None, transaction: str | None = None) -> None:
        produce(self.to, self.offsets, [Record(value, key, sum(key) % 5)], transaction, f"{self.alias}.o")

    @property
    def start(self) -> str:
        return f"mirrormaker:{self.offsets}:{self.alias}:{CONNECTOR}"

    def link(self, names: Names, start: str | None = None, **variables: str) -> Link:
        variables = {
            "KAFKA_CLUSTERS_SOURCE_NAME": self.alias,
            "KAFKA_CLUSTERS_DESTINATION_TOPIC": "{source}.{topic}",
            "START_OFFSETS": start or self.start,
            **variables,
        }
        return Link(self.at, self.to, names.link, rf"{names.link}\.t\..*", **variables)


def refused(link: Link) -> str:
    """What the replicator says that does not begin; nothing is decided then."""
    with pytest.raises(LinkRefused) as caught:
        link.replicate()
    state = link.control()
    assert state.origins == {} and not state.started and state.accepted == {}
    assert caught.value.exit_code == 2
    return str(caught.value)
