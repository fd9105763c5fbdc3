"""The properties of a local broker that is a KRaft controller too: small, quick to show what happens, for
trying out alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from verbatim.local.processes import HOST


def broker_properties(
    node: int, ports: Mapping[int, tuple[int, int]], data: Path, clients: tuple[int, int] | None = None
) -> dict[str, str]:
    """Of one node of a cluster. `ports`: of each node, the broker's and the controller's; `data`: the node's
    log folder.

    `clients`: (port it listens on, port it tells) of one more listener, for clients that are to come through
    a proxy.
    """
    broker, controller = ports[node]
    plain = f"PLAINTEXT://{HOST}:{broker}"
    listeners, advertised = [plain, f"CONTROLLER://{HOST}:{controller}"], [plain]
    protocols = ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT"]
    if clients is not None:
        listeners.append(f"CLIENTS://{HOST}:{clients[0]}")
        advertised.append(f"CLIENTS://{HOST}:{clients[1]}")
        protocols.append("CLIENTS:PLAINTEXT")
    copies = min(3, len(ports))
    in_sync = max(1, copies - 1)
    properties: dict[str, str | int | Path] = {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": ",".join(f"{n}@{HOST}:{port}" for n, (_, port) in ports.items()),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(protocols),
        "log.dirs": data,
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.num.partitions": 4,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.num.partitions": 4,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": 0,
        # Retention, compaction and deletion show within a second or two instead of minutes.
        "log.initial.task.delay.ms": 500,
        "log.retention.check.interval.ms": 1000,
        "log.cleaner.backoff.ms": 1000,
        "log.segment.delete.delay.ms": 1000,
        # 128 MB by default, on the heap.
        "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
        # A killed broker may not register again before its old session has ended (9 s by default).
        "broker.session.timeout.ms": 4000,
        "broker.heartbeat.interval.ms": 500,
        # Or its controller writes a record that says nothing twice a second: a quarter of what a broker takes
        # at rest.
        "metadata.max.idle.interval.ms": 0,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }
    return {key: str(value) for key, value in properties.items()}
