"""The world that rounds happen in: a source and a target cluster behind proxies, links and their running
applications."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.faults.processes import BIN, Process, environment, with_variable
from tests.faults.rounds import light
from tests.faults.rounds.checker import Tail
from tests.faults.rounds.executors import INSTANCE, Executors
from tests.faults.rounds.proxy import Delay, Proxy, wait_for
from verbatim.local.kafka_cluster import Cluster
from verbatim.local.processes import HOST, free_ports

INSIDE = Path(__file__).parent / "inside"
APPLICATIONS = ("replicator", "deduplicator")
OFFSETS = "offsets"
STAGING_PARTITIONS = 4
NODES = 3
"""Of each cluster."""
COORDINATOR_PARTITIONS = 4
"""Of __consumer_offsets and __transaction_state, as verbatim.local.kafka_cluster makes them."""
TRANSACTION_MS = 10_000
"""The deliveries' transaction time-out in a round: a pause can outlast it without taking a minute."""
HANGS_S = 30.0
"""After so long without a word a lane is taken for one that hangs; no fault that is over by itself keeps one
alone from speaking for as long."""
FETCH_KIB = 16
"""What a partition is asked for at first: then fetches grow with what there is in a round, too."""
STATE_MB = 48
LOG_MB = 1000
SMALL_LOG_NODE = 2
"""The target's broker whose logs lie on a file system of their own that can be filled."""

BATCHES, RECORDS = "batches", "records"
"""The engines: record batches, or, before it, the client library record by record."""


@dataclass
class Side:
    """A cluster and the proxy through which the applications reach it."""

    cluster: Cluster
    proxy: Proxy
    clocks: dict[int, Path]
    """By node, the file that sets its clock apart (inside/clock.c); none where that can't be compiled."""

    def __post_init__(self) -> None:
        self._admin: AdminClient | None = None

    @property
    def direct(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.direct, "log_level": 0})
        return self._admin

    def healthy(self, timeout_s: float = 60.0) -> bool:
        """Whether all nodes run and every replica is in sync, in time."""
        return wait_for(self._in_sync, timeout_s)

    def _in_sync(self) -> bool:
        try:
            found = self.admin.list_topics(timeout=5)
        except KafkaException:
            return False
        if len(found.brokers) < self.cluster.nodes:
            return False
        partitions = [p for topic in found.topics.values() for p in topic.partitions.values()]
        ready = all(p.leader >= 0 and len(p.isrs) == len(p.replicas) for p in partitions)
        if not ready:
            time.sleep(0.2)
        return ready

    def set_clock(self, node: int, apart_s: int) -> None:
        """Set a node's clock so many seconds apart from the machine's."""
        with self.clocks[node].open("r+b") as file:
            file.write(apart_s.to_bytes(8, sys.byteorder, signed=True))

    def time_of(self, node: int) -> float | None:
        """What a node takes for the time, in seconds since 1970: a thread dump begins with it."""
        log = self.cluster.folder / f"node-{node}.log"
        before = log.stat().st_size
        os.kill(self.cluster.pid(node), signal.SIGQUIT)

        def told() -> list[str]:
            with log.open(errors="replace") as file:
                file.seek(before)
                return re.findall(
                    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\nFull thread dump", file.read(), re.MULTILINE
                )

        if not wait_for(lambda: bool(told()), 10):
            return None
        return datetime.strptime(told()[-1], "%Y-%m-%d %H:%M:%S").astimezone().timestamp()

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads a partition."""
        return int(self.admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader)

    def transaction_coordinator(self, transactional_id: str) -> int:
        return self.leader("__transaction_state", coordinated_by(transactional_id))

    def group_coordinator(self, group: str) -> int:
        return self.leader("__consumer_offsets", coordinated_by(group))

    def controller(self) -> int:
        """The active KRaft controller. DescribeQuorum alone tells it: what metadata call the controller is
        any broker."""
        port = int(self.direct.split(",")[0].rpartition(":")[2])
        topic = b"__cluster_metadata"
        body = b"\x02" + bytes([len(topic) + 1]) + topic + b"\x02" + struct.pack(">i", 0) + b"\0\0\0"
        request = struct.pack(">hhih", 55, 0, 1, -1) + b"\0" + body
        with socket.create_connection((HOST, port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", _exactly(connection, 4))
            answer = _exactly(connection, size)
        # Correlation id, tags; error code, topics [name, partitions [index, error code, leader id...
        at = 4 + 1 + 2 + 1 + 1 + len(topic) + 1
        partition, error, leader = struct.unpack(">ihi", answer[at : at + 10])
        if partition != 0 or error != 0:
            raise RuntimeError(f"DescribeQuorum answered with error {error}")
        return int(leader)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise ConnectionError("the broker closed the connection")
        found += more
    return found


def coordinated_by(name: str) -> int:
    # As Java's String.hashCode, made positive as Kafka does.
    number = 0
    for character in name:
        number = (31 * number + ord(character)) & 0xFFFFFFFF
    return (number & 0x7FFFFFFF) % COORDINATOR_PARTITIONS


@dataclass
class Armed:
    """A crash point that waits for its passage."""

    folder: Path
    point: str
    id: str

    def fired(self) -> bool:
        return (self.folder / f"{self.id}.fired").exists()

    def disarm(self) -> None:
        (self.folder / f"{self.point}.armed").unlink(missing_ok=True)


@dataclass
class Link:
    """A link and the processes that run it. A watchdog starts again what has died, as an orchestrator
    would."""

    source: Side
    target: Side
    name: str
    folder: Path
    state: Path
    more: dict[str, str] = field(default_factory=dict)
    light: bool = False
    """Whether the lanes are processes of the applications' own, without Spark."""
    named: bool = False
    """Whether instances have names, so that one that is started again leads at once."""
    executors: Executors | None = None
    """Where the lanes run, if not in the applications' own containers."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.running: dict[str, Process] = {}
        self.standby: dict[str, Process] = {}
        self.exits: list[dict[str, Any]] = []
        self.starts = 0
        self._armed = 0
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self.tail = Tail(self.target.direct, self.mappings)
        self._watchdog = threading.Thread(target=self._watch, daemon=True)

    @property
    def topics(self) -> str:
        """What the names of the link's source topics begin with."""
        return f"{self.name}.t."

    @property
    def mappings(self) -> str:
        return f"{self.name}.offset-mappings"

    def start(self) -> None:
        for application in APPLICATIONS:
            self.points(application).mkdir(exist_ok=True)
            self.running[application] = self.launch(application)
        self._watchdog.start()

    def start_offsets(self) -> None:
        """Once the link is made: from then on groups are kept in step."""
        if OFFSETS not in self.running:
            with self._lock:
                self.points(OFFSETS).mkdir(exist_ok=True)
                self.running[OFFSETS] = self.launch(OFFSETS)

    def settings(self) -> dict[str, str]:
        """The environment of the applications, and of whatever command is run on the link."""
        return environment(
            self.source.proxy.bootstrap_servers,
            self.target.proxy.bootstrap_servers,
            self.name,
            rf"{self.topics}.*".replace(".t.", r"\.t\."),
            self.folder,
            STATE_PATH=str(self.state),
            STAGING_PARTITIONS=str(STAGING_PARTITIONS),
            TOPIC_REFRESH_INTERVAL="1s",
            REPLICATION_FACTOR=str(NODES),
            CONSUMER_GROUPS=f"{self.name}-.*",
            OFFSETS_INTERVAL="1s",
            **self.more,
        )

    def command(self, *words: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run a `verbatim` command on the link."""
        return subprocess.run(
            [str(BIN / "verbatim"), *words],
            env=self.settings(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def launch(self, application: str, number: int = 1) -> Process:
        """One more instance of an application."""
        self.starts += 1
        variables = self.settings()
        variables |= {
            "VERBATIM_FAULTS": str(self.points(application)),
            "VERBATIM_FOLD_S": "10",
            "VERBATIM_HANGS_S": str(HANGS_S),
            "VERBATIM_FETCH_KIB": str(FETCH_KIB),
            "VERBATIM_TRANSACTION_MS": str(TRANSACTION_MS),
        }
        if self.named:
            variables["INSTANCE_ID"] = f"{application}{number}"
        variables["PYTHONPATH"] = os.pathsep.join(
            [str(INSIDE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        )
        log, mark = self.log(application, number), None
        in_light = self.light and application != OFFSETS
        command = [sys.executable, "-m", light.MODULE, application] if in_light else None
        arguments: list[str] = []
        if self.executors is not None and application != OFFSETS:
            variables |= {INSTANCE: f"{self.folder}/{self.starts}"} | self.executors.variables()
            mark = f"{INSTANCE}={variables[INSTANCE]}"
            arguments = self.executors.arguments(variables)
        return Process(application, variables, log, *arguments, command=command, mark=mark)

    def points(self, application: str) -> Path:
        return self.folder / f"points-{application}"

    def log(self, application: str, number: int = 1) -> Path:
        return self.folder / f"{application}{number}.log"

    def arm(self, application: str, point: str, passage: int, action: str) -> Armed:
        """Make the `passage`th time that a process of the application comes by a point act: kill, kill-all or
        stop."""
        self._armed += 1
        armed = Armed(self.points(application), point, f"{point}-{self._armed}")
        wish = f'{{"id": "{armed.id}", "n": {passage}, "action": "{action}"}}'
        temporary = armed.folder / f"{armed.id}.wish"
        temporary.write_text(wish)
        temporary.rename(armed.folder / f"{point}.armed")
        return armed

    def retire(self, application: str, gently: bool) -> None:
        """End an application for good."""
        with self._lock:
            process = self.running.pop(application)
        if gently and process.alive():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.terminate(20)
        process.end()

    def replace(self, application: str, successor: Process) -> Process:
        """Make another instance the one that is watched; the one before."""
        with self._lock:
            before, self.running[application] = self.running[application], successor
        return before

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Nothing is started again in the block."""
        with self._lock:
            yield

    def moves(self, timeout_s: float, by: int = 3) -> bool:
        """Whether delivery goes on, from now on and in time: so many mapping records more."""
        before = self.tail.count()
        return wait_for(lambda: self.tail.count() >= before + by, timeout_s)

    def stop(self) -> list[int]:
        """Stop the applications as an operator would; their exit codes."""
        self._stop.set()
        if self._watchdog.ident is not None:
            self._watchdog.join(10)
        codes = []
        for process in self.running.values():
            try:
                codes.append(process.terminate(20))
            except subprocess.TimeoutExpired:
                codes.append(-1)
        self.end()
        return codes

    def end(self) -> None:
        """Whatever state they are in, nothing of the link's processes is left."""
        self._stop.set()
        self.tail.close()
        for process in [*self.running.values(), *self.standby.values()]:
            process.end()
        for pid in self._leftovers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ask_for_stacks(self) -> None:
        """Make every Python thread write where it is into its application's log."""
        for process in self.running.values():
            for pid in [process.pid, *process.workers()]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR2)
        time.sleep(1)

    def _leftovers(self) -> list[int]:
        """Processes of this link whose driver died: Spark's JVM ends with its driver, but not while it is
        stopped."""
        return with_variable(f"VERBATIM_FAULTS={self.folder}{os.sep}")

    def forget(self) -> None:
        """Delete the link's topics, its own and those it copied, and its state."""
        for side in (self.source, self.target):
            names = [n for n in side.admin.list_topics(timeout=10).topics if n.startswith(f"{self.name}.")]
            if names:
                for future in side.admin.delete_topics(names).values():
                    future.result(30)
        shutil.rmtree(self.state / self.name, ignore_errors=True)

    def _watch(self) -> None:
        while not self._stop.wait(0.3):
            with self._lock:
                for application, process in self.running.items():
                    if not process.alive() and not self._stop.is_set():
                        code = process.wait(1)
                        if code != -9:
                            self.exits.append(
                                {"application": application, "code": code, "said": _last(process)}
                            )
                        self.running[application] = self.launch(application)


def _last(process: Process) -> str:
    """The last line of a process that tells why it ended."""
    lines = [line.strip() for line in process.said().splitlines() if line.strip()]
    return next((line for line in reversed(lines) if line.startswith("error:")), lines[-1] if lines else "")[
        :500
    ]


def _side(folder: Path, properties: dict[str, str | int], library: Path | None) -> Side:
    ports = free_ports(2 * NODES)
    routes = {n + 1: (ports[2 * n], ports[2 * n + 1]) for n in range(NODES)}
    heard = {node: (behind, own) for node, (own, behind) in routes.items()}
    clocks = {node: folder.with_name(f"{folder.name}-{node}.clock") for node in routes if library is not None}

    def of_node(node: int) -> dict[str, str]:
        return {"LD_PRELOAD": str(library), "VERBATIM_CLOCK": str(clocks[node])} if clocks else {}

    cluster = Cluster(NODES, folder, clients=heard, properties=properties, environment=of_node)
    side = Side(cluster, Proxy(routes), clocks)
    for node, file in clocks.items():
        file.touch()
        side.set_clock(node, 0)
    return side


def clock_library(folder: Path) -> Path | None:
    """What sets brokers' clocks apart, compiled; None where there is no compiler."""
    library = folder / "clock.so"
    try:
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(INSIDE / "clock.c")]
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return library


class World:
    """Both clusters, running, and a folder for everything. Use as a context."""

    def __init__(
        self,
        folder: Path,
        clocks: bool = False,
        executors: bool = False,
        far_ms: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """`clocks`: brokers' clocks can be set. `executors`: lanes run on a standalone cluster's. `far_ms`:
        the applications' round trips to the source and to the target."""
        self.folder = folder
        self.far_ms = far_ms
        self.executors = Executors(folder / "spark") if executors else None
        properties: dict[str, str | int] = {
            # Looked for every 10 s by default.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
            "replica.lag.time.max.ms": 8000,
            "auto.leader.rebalance.enable": "true",
            "leader.imbalance.check.interval.seconds": 5,
        }
        library = clock_library(folder) if clocks else None
        self.source, self.target = (
            _side(folder / name, properties, library) for name in ("source", "target")
        )
        self.state = folder / "state"
        self.small_state = False
        """Whether the state lies on a file system of its own that can be filled."""
        self.log_folder = folder / "target" / f"node-{SMALL_LOG_NODE}"
        self.small_log = False

    def __enter__(self) -> World:
        try:
            self.small_state = self._mounted(self.state, STATE_MB)
            self.small_log = self._mounted(self.log_folder, LOG_MB)
            for side in (self.source, self.target):
                side.proxy.start()
                side.cluster.start(90)
            for side, ms in zip((self.source, self.target), self.far_ms, strict=True):
                if ms:
                    side.proxy.add(Delay(ms / 2000))
            if self.executors is not None:
                self.executors.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.executors is not None:
            self.executors.stop()
        for side in (self.source, self.target):
            with contextlib.suppress(Exception):
                side.cluster.stop(0)
            with contextlib.suppress(Exception):
                side.proxy.stop()
        for mounted, path in ((self.small_state, self.state), (self.small_log, self.log_folder)):
            if mounted:
                subprocess.run(["umount", "-l", str(path)], capture_output=True)

    @staticmethod
    def _mounted(path: Path, megabytes: int) -> bool:
        path.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
        return sys.platform == "linux" and subprocess.run(command, capture_output=True).returncode == 0

    def link(self, name: str, light: bool = False, named: bool = False, **more: str) -> Link:
        folder = self.folder / name
        return Link(self.source, self.target, name, folder, self.state, more, light, named, self.executors)
