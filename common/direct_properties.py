"""What becomes of each property of the client library where records go by connections of Verbatim's own (common/connection.py). Pure.

Each is heeded there, or only the library can follow it, so that records go through that one by one; or it speaks of something that these
connections don't have, such as a queue of messages; or it has no effect on them, and whoever sets it is told. A test compares the four with the
list of the installed library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from common import scram

_TLS_FILES = frozenset(
    f"ssl.{what}"
    for what in (
        "ca.location",
        "ca.pem",
        "certificate.location",
        "certificate.pem",
        "key.location",
        "key.pem",
        "key.password",
    )
)
_TLS_CHECKS = frozenset({"ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"})
HEEDED = (
    _TLS_FILES
    | _TLS_CHECKS
    | frozenset(
        [
            "bootstrap.servers",
            "client.id",
            "broker.address.family",
            "security.protocol",
            "sasl.mechanism",
            "sasl.username",
            "sasl.password",
            "check.crcs",
            "fetch.wait.max.ms",
            "fetch.min.bytes",
            "fetch.max.bytes",
            "max.partition.fetch.bytes",
            "compression.type",
            "compression.level",
        ]
    )
)
"""They mean the same to both. (`check.crcs`: batches are always checked.)"""
_LIBRARY_ONLY = re.compile(r"ssl\.|sasl\.(kerberos|oauthbearer)|plugin\.|enable\.sasl\.")
ELSEWHERE = frozenset(
    [
        "broker.version.fallback",
        "https.ca.location",
        "https.ca.pem",
        "message.copy.max.bytes",
        "topic.metadata.refresh.fast.interval.ms",
        "topic.metadata.refresh.fast.cnt",
        "topic.metadata.refresh.sparse",
        "topic.metadata.propagation.max.ms",
        "socket.blocking.max.ms",
        "statistics.interval.ms",
        "enabled_events",
        "log_level",
        "internal.termination.signal",
        "api.version.request",
        "api.version.request.timeout.ms",
        "api.version.fallback.ms",
        "log.queue",
        "log.thread.name",
        "enable.random.seed",
        "log.connection.close",
        "enable.metrics.push",
        "debug",
        "group.protocol.type",
        "group.remote.assignor",
        "share.acknowledgement.mode",
        "partition.assignment.strategy",
        "offset.store.path",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "coordinator.query.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "auto.commit.interval.ms",
        "queued.min.messages",
        "queued.max.messages.kbytes",
        "fetch.queue.backoff.ms",
        "offset.store.sync.interval.ms",
        "consume.callback.max.messages",
        "offset.store.method",
        "partitioner",
        "queue.buffering.max.messages",
        "queue.buffering.max.kbytes",
        "queue.buffering.backpressure.threshold",
        "sticky.partitioning.linger.ms",
        "produce.offset.report",
    ]
)
"""They speak of a client's queues, callbacks, logs and groups, of which these connections have none."""
NO_EFFECT = frozenset(
    [
        "client.rack",
        "message.max.bytes",
        "receive.message.max.bytes",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "topic.metadata.refresh.interval.ms",
        "metadata.max.age.ms",
        "socket.timeout.ms",
        "socket.send.buffer.bytes",
        "socket.receive.buffer.bytes",
        "socket.max.fails",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "broker.address.ttl",
        "socket.connection.setup.timeout.ms",
        "connections.max.idle.ms",
        "reconnect.backoff.jitter.ms",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "client.dns.lookup",
        "max.in.flight.requests.per.connection",
        "fetch.error.backoff.ms",
        "transaction.timeout.ms",
        "retries",
        "batch.num.messages",
        "batch.size",
        "request.timeout.ms",
        "linger.ms",
    ]
)


def library_only(config: Mapping[str, Any]) -> str | None:
    """The first property of a client's that only the client library can follow, None where there is none."""
    mechanism = sasl_mechanism(config)
    if mechanism is not None and mechanism not in scram.MECHANISMS:
        return f"sasl.mechanism={mechanism}"
    return next((str(name) for name in config if only_the_librarys(name)), None)


def only_the_librarys(name: str) -> bool:
    return name not in HEEDED and _LIBRARY_ONLY.match(name) is not None


def sasl_mechanism(config: Mapping[str, Any]) -> str | None:
    """SASL's, where a client is to use that."""
    if not str(config.get("security.protocol", "plaintext")).lower().startswith("sasl_"):
        return None
    return str(config.get("sasl.mechanism", config.get("sasl.mechanisms", "GSSAPI"))).upper()


def without_effect(config: Mapping[str, Any]) -> list[str]:
    """The properties of a client's that have no effect on records which go as whole batches."""
    found = [name for name in config if name in NO_EFFECT]
    if "compression.level" in config and config.get("compression.type", "lz4") in ("lz4", "snappy", "none"):
        found.append("compression.level")
    return found
