"""Starts real Kafka clusters on this machine, without Docker, and lets tests hurt them; knows nothing of
links.

    with Cluster() as source, Cluster(nodes=3) as target: ... source.bootstrap_servers ...

Every node is broker and KRaft controller in one JVM, listening on 127.0.0.1 alone. For trying out, tests and
benchmarks: without authentication, and with internal topics too small for production.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from common.errors import VerbatimError
from common.spark import class_archive
from common.spark.jars import KAFKA, KAFKA_LOGGING, classpath, java
from verbatim.local.broker_properties import broker_properties
from verbatim.local.processes import HOST, free_ports, spawn, tail

# A broker that lives for minutes is ready sooner without the optimising compiler; a benchmark wants
# FULL_SPEED.
QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
FULL_SPEED = (
    # As kafka-run-class.sh has them.
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)

_POLL_S = 0.05

LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p [%t] %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


class BrokerError(VerbatimError):
    """A local broker could not be started, or did not answer in time. The message holds the end of its
    log."""


class Cluster:
    """A Kafka cluster of `nodes` brokers, numbered from 1, stopped and ready to start.

    data_folder: where logs and records lie; kept by stop(). A cluster made again over the same folder has the
        same cluster id, ports and records. None: a temporary folder, removed by stop().
    heap: of each broker, as Java writes it. properties: broker properties, over the defaults chosen here.
    jvm_options: QUICK_START, FULL_SPEED, or any of Java's.
    record_classes: where node 1 writes, when it is stopped gently, an archive of its classes, if it was
    started without one.
    clients: node -> (port it listens on, port it tells): one more listener, for clients that are to come
        through a proxy. Brokers among themselves, and whoever uses `bootstrap_servers`, keep to the other
        one.
    environment: of a node's process, over this one's.
    """

    def __init__(
        self,
        nodes: int = 1,
        data_folder: Path | str | None = None,
        heap: str = "256m",
        properties: Mapping[str, str | int] | None = None,
        jvm_options: Sequence[str] = QUICK_START,
        record_classes: Path | None = None,
        clients: Mapping[int, tuple[int, int]] | None = None,
        environment: Callable[[int], Mapping[str, str]] = lambda node: {},
    ) -> None:
        if nodes < 1:
            raise ValueError(f"a cluster has at least one node, not {nodes}")
        self.nodes = nodes
        self._given = Path(data_folder).absolute() if data_folder is not None else None
        self._heap = heap
        self._overrides = {key: str(value) for key, value in (properties or {}).items()}
        self._jvm_options = tuple(jvm_options)
        self._record_classes = record_classes
        self._clients = dict(clients or {})
        self._environment = environment
        self._folder: Path | None = None
        self._ports: dict[int, tuple[int, int]] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._paused: set[int] = set()
        self._cluster_id = ""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every node, comma-separated; known once the cluster has been started, and then
        fixed."""
        if not self._ports:
            raise BrokerError("the cluster has not been started yet")
        return ",".join(f"{HOST}:{broker}" for broker, _ in self._ports.values())

    @property
    def cluster_id(self) -> str:
        """Kafka's cluster id; empty before the first start."""
        return self._cluster_id

    @property
    def folder(self) -> Path:
        """Where the cluster's data and `node-<n>.log` lie."""
        if self._folder is None:
            raise BrokerError("the cluster has not been started yet")
        return self._folder

    def start(self, timeout_s: float = 60) -> Self:
        """Start every node that is not running; return once all of them are in the cluster's metadata.

        Raises BrokerError with the end of the log of a node that fails, JarsMissing when there is nothing to
        run.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._prepare(deadline)
            for node in self._ports:
                self._launch(node)
            self._wait_ready(deadline)
        except BaseException:
            self._end(0.0)
            raise
        return self

    def stop(self, timeout_s: float = 10) -> None:
        """Stop all nodes and remove a temporary folder. What has not gone after `timeout_s` is killed.

        Brokers whose data goes with them are killed at once.
        """
        self._end(timeout_s if self._given is not None else 0.0)

    def kill(self, node: int = 1) -> None:
        """End a node as a power cut would (SIGKILL); return when it is gone."""
        process = self._running(node)
        process.kill()
        process.wait()
        self._forget(node)

    def pause(self, node: int = 1) -> None:
        """Freeze a node (SIGSTOP): its connections stay open and nothing answers."""
        self._running(node).send_signal(signal.SIGSTOP)
        self._paused.add(node)

    def resume(self, node: int = 1) -> None:
        """Let a paused node go on (SIGCONT)."""
        self._running(node).send_signal(signal.SIGCONT)
        self._paused.discard(node)

    def restart(self, node: int = 1, timeout_s: float = 60) -> None:
        """Start a node again on its port, with its data, stopping it first if it runs; return once it is
        back."""
        deadline = time.monotonic() + timeout_s
        if node in self._processes:
            self._terminate([node], min(10.0, timeout_s))
        self._launch(node)
        self._wait_ready(deadline, [node])

    def is_running(self, node: int = 1) -> bool:
        """Whether the node's process is there, paused or not."""
        return node in self._processes and self._processes[node].poll() is None

    def pid(self, node: int = 1) -> int:
        """The process id of a running node."""
        return self._running(node).pid

    def log_tail(self, node: int = 1) -> str:
        """The last lines of a node's log (warnings and errors only)."""
        return tail(self._log(node))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Preparing the folder

    def _prepare(self, deadline: float) -> None:
        if self._folder is None:
            self._folder = self._given or Path(tempfile.mkdtemp(prefix="verbatim-kafka-"))
            self._folder.mkdir(parents=True, exist_ok=True)
        described = self._folder / "cluster.json"
        if described.exists():
            self._read(described)
        else:
            taken = free_ports(2 * self.nodes)
            self._ports = {n: (taken[2 * n - 2], taken[2 * n - 1]) for n in range(1, self.nodes + 1)}
            self._cluster_id = new_cluster_id()
        (self._folder / "log4j2.properties").write_text(LOG4J)
        for node in self._ports:
            self._config(node).write_text(
                "".join(f"{key}={value}\n" for key, value in self._properties(node).items())
            )
        if not described.exists():
            self._format(deadline)
            # Written last: a folder with it is a formatted one.
            ports = {str(node): pair for node, pair in self._ports.items()}
            described.write_text(json.dumps({"cluster_id": self._cluster_id, "ports": ports}))

    def _read(self, described: Path) -> None:
        content = json.loads(described.read_text())
        ports = {int(node): (broker, controller) for node, (broker, controller) in content["ports"].items()}
        if len(ports) != self.nodes:
            raise BrokerError(f"{described.parent} holds a cluster of {len(ports)} nodes, not {self.nodes}")
        self._ports, self._cluster_id = ports, content["cluster_id"]

    def _format(self, deadline: float) -> None:
        for node in self._ports:
            shutil.rmtree(self.folder / f"node-{node}", ignore_errors=True)
        tools = {
            node: self._java(
                node,
                "kafka.tools.StorageTool",
                *("format", "-t", self._cluster_id, "-c", str(self._config(node))),
                heap="64m",
                options=("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            )
            for node in self._ports
        }
        for node, tool in tools.items():
            try:
                code = tool.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                for other in tools.values():
                    other.kill()
                    other.wait()
                raise BrokerError(
                    f"node {node}: its data folder could not be formatted: {self.log_tail(node)}"
                )

    def _properties(self, node: int) -> dict[str, str]:
        found = broker_properties(node, self._ports, self.folder / f"node-{node}", self._clients.get(node))
        return found | self._overrides

    # Processes

    def _launch(self, node: int) -> None:
        if self.is_running(node):
            return
        if node not in self._ports:
            raise BrokerError(f"there is no node {node}; the cluster's nodes are {sorted(self._ports)}")
        options = self._jvm_options
        if node == 1 and self._record_classes is not None:
            options += class_archive.recording(class_data_archive(), self._record_classes)
        self._processes[node] = self._java(
            node, "kafka.Kafka", str(self._config(node)), heap=self._heap, options=options
        )

    def _java(
        self, node: int, main: str, *arguments: str, heap: str, options: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        using = class_archive.options(class_data_archive(), " ".join(options))
        command = [java(), f"-Xmx{heap}", *options, *using]
        command += [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"]
        command += ["-cp", classpath(KAFKA, KAFKA_LOGGING), main, *arguments]
        try:
            return spawn(command, self._log(node), os.environ | self._environment(node))
        except OSError as error:
            raise BrokerError(f"node {node} could not be started: {error}") from error

    def _wait_ready(self, deadline: float, wanted: Sequence[int] | None = None) -> None:
        """Wait until the nodes in `wanted` (all) answer for themselves and are in the metadata that they
        give."""
        waiting = list(wanted or self._ports)
        while waiting:
            node = waiting[0]
            if self._processes[node].poll() is not None:
                raise BrokerError(f"node {node} ended while starting:\n{self.log_tail(node)}")
            if time.monotonic() > deadline:
                raise BrokerError(f"node {node} is not ready in time:\n{self.log_tail(node)}")
            needed = set(self._ports) if wanted is None else {node}
            if needed <= self._seen_by(node):
                waiting.pop(0)
            else:
                time.sleep(_POLL_S)

    def _seen_by(self, node: int) -> set[int]:
        address = (HOST, self._ports[node][0])
        try:
            socket.create_connection(address, timeout=1).close()
        except OSError:
            return set()
        # log_level 0: refused connections are no news while a broker starts.
        admin = AdminClient({"bootstrap.servers": f"{HOST}:{address[1]}", "log_level": 0})
        try:
            return set(admin.list_topics(timeout=2).brokers)
        except KafkaException:
            return set()

    def _running(self, node: int) -> subprocess.Popen[bytes]:
        if not self.is_running(node):
            raise BrokerError(f"node {node} is not running")
        return self._processes[node]

    def _forget(self, node: int) -> None:
        self._processes.pop(node, None)
        self._paused.discard(node)

    def _terminate(self, nodes: Sequence[int], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        processes = [(node, self._processes[node]) for node in nodes if node in self._processes]
        for node, process in processes:
            # A stopped process does not hear SIGTERM.
            if node in self._paused:
                process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM if timeout_s > 0 else signal.SIGKILL)
        for node, process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()) if timeout_s > 0 else None)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._forget(node)

    def _end(self, timeout_s: float) -> None:
        self._terminate(list(self._processes), timeout_s)
        if self._given is None and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _config(self, node: int) -> Path:
        return self.folder / f"node-{node}.properties"

    def _log(self, node: int) -> Path:
        return self.folder / f"node-{node}.log"


def class_data_archive() -> Path:
    """Where the archive of classes of a broker's JVM lies."""
    return class_archive.archive(classpath(KAFKA, KAFKA_LOGGING))


def new_cluster_id() -> str:
    """A random cluster id as Kafka's tools make them: 16 bytes in URL-safe base64, without padding."""
    # Kafka's tools refuse one that begins with a dash.
    return base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
