"""Starts brokers of any version since 2.0 from Maven Central: with a ZooKeeper of theirs before Kafka 3.3, by
themselves from then on.

with VersionCluster("2.8.2") as source: ... source.bootstrap_servers ...
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.spark.jars import KAFKA_LOGGING, classpath, java
from verbatim.local.kafka_cluster import QUICK_START, Cluster
from verbatim.local.processes import HOST, spawn

OLD_LOGGING = "ch.qos.reload4j:reload4j:1.2.19"
"""Brokers before 4.0 let their loggers be changed by JMX, and don't start without these classes."""
KRAFT_SINCE = (3, 3)


class VersionCluster(Cluster):
    """A Kafka cluster of one node of a version, as verbatim.local.kafka_cluster.Cluster. With ZooKeeper, that
    listens on the port that is a controller's otherwise, and goes on while the node is restarted."""

    def __init__(
        self,
        version: str,
        data_folder: Path | None = None,
        properties: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(data_folder=data_folder, properties=properties)
        self.version = version
        self.numbers = tuple(map(int, version.split(".")))
        self._zookeeper: subprocess.Popen[bytes] | None = None

    @property
    def kraft(self) -> bool:
        return self.numbers >= KRAFT_SINCE

    def _java(
        self, node: int, main: str, *arguments: str, heap: str, options: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        jars = [f"org.apache.kafka:kafka_2.13:{self.version}", KAFKA_LOGGING]
        jars += [OLD_LOGGING] if self.numbers < (4,) else []
        command = [java(), f"-Xmx{heap}", *options, "-Dzookeeper.admin.enableServer=false"]
        command += [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"]
        return spawn([*command, "-cp", classpath(*jars), main, *arguments], self._log(node))

    def _format(self, deadline: float) -> None:
        if self.kraft:
            super()._format(deadline)

    def _launch(self, node: int) -> None:
        if not self.kraft and self._zookeeper is None:
            config = self.folder / "zookeeper.properties"
            lines = [f"dataDir={self.folder / 'zookeeper'}", f"clientPort={self._ports[1][1]}"]
            lines += [f"clientPortAddress={HOST}", "tickTime=500", "maxClientCnxns=0"]
            config.write_text("\n".join(lines) + "\n")
            self._zookeeper = self._java(
                node,
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                str(config),
                heap="128m",
                options=QUICK_START,
            )
        super()._launch(node)

    def _properties(self, node: int) -> dict[str, str]:
        found = super()._properties(node)
        if self.kraft:
            return found
        broker, keeper = self._ports[node]
        kraft_only = ("process.", "node.id", "controller.", "broker.")
        kept = {name: value for name, value in found.items() if not name.startswith(kraft_only)}
        plain = f"PLAINTEXT://{HOST}:{broker}"
        return kept | {
            "broker.id": str(node),
            "zookeeper.connect": f"{HOST}:{keeper}",
            "zookeeper.session.timeout.ms": "2000",
            "listeners": plain,
            "advertised.listeners": plain,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
        }

    def _end(self, timeout_s: float) -> None:
        if self._zookeeper is not None:
            # The brokers first: they sign off there.
            self._terminate(list(self._processes), timeout_s)
            self._zookeeper.kill()
            self._zookeeper.wait()
            self._zookeeper = None
        super()._end(timeout_s)
