"""What a scenario is played on: two clusters that stay, and a link with topics, groups and applications of
its own. The applications run in this process, without Spark; commands run in theirs."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import orjson
from confluent_kafka.admin import AclBinding, AclBindingFilter, AclPermissionType, AdminClient

from common.app.signals import STOP_S
from offsets.service import Service
from replicator.driver import planner
from tests.faults.moves import oracle, points
from tests.faults.moves.clients import Load, Reader
from tests.faults.moves.oracle import SOURCE, TARGET, History, Partition
from tests.faults.rounds.proxy import Proxy, before_a_cluster
from tests.support.brokers import create_topic, end_offsets, read_all
from tests.support.harness import Link, Running, eventually, stop_all
from tests.support.secured import AUTHORIZED, Right, binding
from verbatim.local.kafka_cluster import Cluster

PARTITIONS = 2
CALL_S = 20.0
COMMAND_S = 150.0
"""For so long a command may run."""
DRAIN_S = 40.0
TOPIC = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
REPLICATOR, DEDUPLICATOR, OFFSETS = "replicator", "deduplicator", "offsets"


@dataclass
class Ended:
    """A command that has ended; `report` where it says one. `passed` are the points that it has come by."""

    code: int | None
    report: dict[str, Any]
    passed: list[str]
    said: str

    @property
    def killed(self) -> bool:
        return self.code == -9


class World:
    """The clusters. The source is reached through a proxy alone, so that it can be cut off; both have an
    authorizer, which lets everybody in that comes here."""

    def __init__(self, folder: Path, broken: str | None = None) -> None:
        self.folder, self.broken = folder, broken
        # A process is ended so long after its SIGTERM, whatever it waits for; a thread can't be.
        planner.PLAN_S = STOP_S
        self._stack = ExitStack()
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload([points.__name__])

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.proxy: Proxy = stack.enter_context(before_a_cluster(AUTHORIZED))
            self.clusters = {
                SOURCE: self.proxy.bootstrap_servers,
                TARGET: stack.enter_context(Cluster(properties=AUTHORIZED)).bootstrap_servers,
            }
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@dataclass
class Stage:
    """One scenario's. `topics` by their short names."""

    world: World
    name: str
    seed: int
    offsets: bool
    """Whether `offsets` runs all the time."""
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.world.folder / self.name
        self.folder.mkdir()
        self.topics = {short: f"{self.name}.t.{short}" for short in "abc"}
        self.link = Link(
            self.world.clusters[SOURCE],
            self.world.clusters[TARGET],
            self.name,
            rf"{self.name}\.t\..*",
            CONSUMER_GROUPS=rf"{self.name}\.g.*",
            OFFSETS_INTERVAL="100ms",
            LOG_LEVEL="ERROR",
            **{"ACL_SYNC": "read", "ACL_READ_ONLY": "true", **self.variables},
        )
        self.history = History()
        self.load = Load(self.world.clusters, PARTITIONS, self.history, self.seed)
        self.apps: dict[str, Running] = {}
        self.readers: list[Reader] = []
        self.problems: list[str] = []
        self.commands = 0
        self.before_command: Callable[[], None] = lambda: None
        self.given_back = False
        """Whether topics are given back: others are kept from writing a moment later, and nobody does."""
        self.kept: set[str] = set()
        """What records are called that stay at the source, and are nobody's."""

    def group(self, number: int) -> str:
        return f"{self.name}.g{number}"

    def named(self, *shorts: str) -> list[str]:
        return [self.topics[short] for short in shorts]

    # Life

    def begin(self) -> None:
        """Topics are written, copied, and read by three groups: the first reads two that may part."""
        for topic in self.topics.values():
            create_topic(self.link.source, topic, PARTITIONS, TOPIC)
        if self.link.settings.acl_sync != "off":
            self._let_write(self.topics.values())
        self.load.write(self.topics.values(), SOURCE)
        self.start(DEDUPLICATOR, REPLICATOR, *([OFFSETS] if self.offsets else []))
        self.history.due = {
            self.group(1): tuple(self.named("a", "b")),
            self.group(2): tuple(self.named("a", "c")),
            self.group(3): tuple(self.named("b")),
        }
        self.read_at(SOURCE)
        eventually(self._under_way, "the link to copy, and groups to read", 90)
        if self.link.settings.acl_sync != "off":
            eventually(lambda: all(self.denied().values()), "the copies to be read only", 60)

    def _under_way(self) -> bool:
        there = all(len(self.history.read[group]) >= 20 for group in self.history.due)
        return there and all(
            0 not in end_offsets(self.link.target, topic).values() for topic in self.topics.values()
        )

    def _let_write(self, topics: Iterable[str]) -> None:
        admin = AdminClient({"bootstrap.servers": self.link.source, "log_level": 4})
        rules = [AclBinding(*binding("writer", Right("WRITE", "TOPIC", topic))) for topic in topics]
        for done in admin.create_acls(rules).values():
            done.result(CALL_S)

    def close(self) -> None:
        """Whatever state it is in, nothing of it goes on."""
        self.world.proxy.unreachable.clear()
        ends: list[Callable[[], None]] = [self.stop_reading, self.load.stop]
        ends += [*(partial(self.stop, name) for name in self.apps), self._forget]
        for end in ends:
            with suppress(Exception):
                end()

    def _forget(self) -> None:
        """Its topics would make each look at a whole cluster longer."""
        for cluster in self.world.clusters.values():
            admin = AdminClient({"bootstrap.servers": cluster, "log_level": 4})
            mine = [t for t in admin.list_topics(timeout=CALL_S).topics if t.startswith(f"{self.name}.")]
            for done in admin.delete_topics(mine).values() if mine else ():
                done.result(CALL_S)

    def start(self, *names: str, link: Link | None = None) -> None:
        of = link or self.link
        made: dict[str, Callable[[], Running]] = {
            REPLICATOR: of.start_replicator,
            DEDUPLICATOR: of.start_deduplicator,
            OFFSETS: lambda: Running(Service(of.settings, once=False)),
        }
        for name in names:
            self.apps[name] = made[name]()

    def stop(self, *names: str) -> None:
        stop_all([self.apps.pop(name) for name in names if name in self.apps], 60)

    # Consumers

    def read_at(self, cluster: str, *groups: int, topics: Collection[str] = ()) -> None:
        """These groups (all) have a consumer there, of those of their topics (all)."""
        for group in [self.group(n) for n in groups] or self.history.due:
            mine = [topic for topic in self.history.due[group] if not topics or topic in topics]
            if mine:
                self.readers.append(Reader(self.world.clusters[cluster], cluster, group, mine, self.history))

    def stop_reading(self, *groups: int) -> None:
        names = [self.group(n) for n in groups] or list(self.history.due)
        mine = [reader for reader in self.readers if reader.group in names]
        self.readers = [reader for reader in self.readers if reader.group not in names]
        for reader in mine:
            reader._stop.set()
        for reader in mine:
            reader.stop()

    # What is there

    def promotions(self) -> dict[str, str]:
        return {topic: of.state for topic, of in self.link.control().steering.promotions.items()}

    def denied(self) -> dict[str, bool]:
        """Topic -> whether who writes it at the source is kept from writing its copy."""
        admin = AdminClient({"bootstrap.servers": self.link.target, "log_level": 4})
        return {
            topic: bool(admin.describe_acls(AclBindingFilter(*_denial(topic))).result(CALL_S))
            for topic in self.topics.values()
        }

    def writable(self, settled: bool) -> list[str]:
        """What is wrong about who may write the copies."""
        if self.link.settings.acl_sync == "off" or (self.given_back and not settled):
            return []
        denied = self.denied()  # before: a promotion is on record first
        states = self.promotions()
        return [
            f"topic {topic}: {problem}"
            for topic, is_denied in denied.items()
            for problem in oracle.writable(states.get(topic), is_denied, settled)
        ]

    def names_in(self, cluster: str) -> dict[Partition, list[str]]:
        """What the records of each partition are called, in the log's order."""
        return {
            (topic, p): [
                name
                for record in found
                if (name := (record.value or b"").decode()) not in (self.kept if cluster == SOURCE else ())
            ]
            for topic in self.topics.values()
            for p, found in enumerate(read_all(self.world.clusters[cluster], topic))
        }

    def copied_until(self, topics: Iterable[str]) -> dict[Partition, tuple[int, int]]:
        """Where the source ends, and behind which offset of the target the last lies that was written
        there."""
        found = {}
        for topic in topics:
            ends = end_offsets(self.link.source, topic, "read_uncommitted")
            for p, records in enumerate(read_all(self.link.target, topic)):
                count = self.history.written[topic, p].count(SOURCE)
                found[topic, p] = ends[p], records[count - 1].offset + 1 if 0 < count <= len(records) else 0
        return found

    # Commands

    def command(self, *words: str, wish: str | None = None, json: bool = True) -> Ended:
        """A command, run to its end, or killed at the point that is called `wish`."""
        self.commands += 1
        name = f"command-{self.commands}"
        environment = {**self.link.variables, "PATH": "/usr/bin:/bin", "HOME": str(self.folder)}
        process = self.world.processes.Process(
            target=points.run,
            args=(
                [*words, *(["--output", "json"] if json else [])],
                environment,
                self.folder,
                name,
                wish,
                self.world.broken,
            ),
            daemon=True,
        )
        process.start()
        process.join(COMMAND_S)
        if process.exitcode is None:
            process.kill()
            process.join(CALL_S)
            self.problems.append(f"{' '.join(words)}: did not end within {COMMAND_S:.0f} s")
        out, err, passed = (self.folder / f"{name}.{kind}" for kind in ("out", "err", "passed"))
        report: dict[str, Any] = {}
        with suppress(orjson.JSONDecodeError, OSError):
            report = orjson.loads(out.read_bytes())
        said = err.read_text(errors="replace") if err.exists() else ""
        lines = passed.read_text().splitlines() if passed.exists() else []
        return Ended(process.exitcode, report, lines, said)

    # The end

    def finish(self, homes: Mapping[str, str], at_target: Collection[int] = ()) -> None:
        """All goes on for a moment, and comes to its end. `homes`: topic -> where it is written, and read,
        but by groups that are `at_target`."""
        for topic, cluster in homes.items():
            self.load.write([topic], cluster)
        have = {(reader.group, reader.cluster) for reader in self.readers}
        for cluster in (SOURCE, TARGET):
            for number, group in enumerate(self.history.due, start=1):
                mine = [
                    t for t, home in homes.items() if cluster == (TARGET if number in at_target else home)
                ]
                if mine and (group, cluster) not in have:
                    self.read_at(cluster, number, topics=mine)
        time.sleep(0.7)
        self.load.stop()
        for reader in self.readers:
            reader.pause_s = 0.0
        with suppress(TimeoutError):
            eventually(self._all_read, "all to be read", DRAIN_S)
        time.sleep(0.5)  # what is too much would come now
        self.stop_reading()
        self.problems += oracle.reads(self.history)

    def _all_read(self) -> bool:
        return all(len(self.history.read[group]) >= self.history.wanted(group) for group in self.history.due)

    def compare(self, whole: Mapping[str, Collection[str]]) -> None:
        """The logs of both clusters. `whole`: cluster -> the topics that have all there; what is copied still
        is waited for."""
        found: list[str] = []

        def right() -> bool:
            found.clear()
            for cluster in (SOURCE, TARGET):
                found.extend(oracle.logs(self.history, cluster, self.names_in(cluster), whole[cluster]))
            return not found

        with suppress(TimeoutError):
            eventually(right, "the logs", 20)
        self.problems += found


def _denial(topic: str) -> Any:
    return binding("writer", Right("WRITE", "TOPIC", topic), AclPermissionType.DENY)
