"""A link whose applications come in as users of their own, with rights that can be taken away; whoever
asserts something is elsewhere.

The rights are those of common/link/permissions.py, which the reference shows.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from common.errors import VerbatimError
from common.link import permissions
from common.link.offset_mappings import decode
from common.link.permissions import DEDUPLICATOR, OFFSETS, REPLICATOR, RIGHTS, SCHEMAS, SOURCE, TARGET
from deduplicator.state.snapshot import FoldResult
from offsets.service import Service
from schemas import service as schemas_service
from tests.support.brokers import read_all
from tests.support.harness import Link, NoTable, Running, ThreadDeduplicator, ThreadReplicator, eventually
from tests.support.registry import Stored, stand_in
from tests.support.schemas import avro, client
from tests.support.secured import Denied, Right, SecuredCluster

PRINCIPALS = (REPLICATOR, DEDUPLICATOR, OFFSETS, SCHEMAS)
MADE_ONCE = {("CREATE", f"<link>.{topic}") for topic in ("*", "group-offsets", "schemas")}
"""Rights that only a new link needs: (operation, name)."""


def variables(cluster: str, properties: dict[str, str], folder: Path) -> dict[str, str]:
    """Client properties in a file, where lanes find secrets too: they are in no plan."""
    file = folder / f"{properties['sasl.username']}.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return {f"KAFKA_CLUSTERS_{cluster}_CLIENT_CONFIG": str(file)}


class Folded(NoTable):
    """A state table that is always folded to the end, so that staging is trimmed."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def fold(self) -> FoldResult:
        reached: dict[int, int] = {}
        for p, records in enumerate(read_all(self.link.target, self.link.settings.mappings_topic)):
            for record in records:
                reached[p] = decode(record.value).staging_offset
        return FoldResult({}, {}, reached, 0, {}, 0)


@dataclass
class Guarded:
    """A link whose applications come in as users of their own, each with the rights that it needs and no
    other."""

    pair: tuple[SecuredCluster, SecuredCluster]
    name: str
    clusters: dict[str, SecuredCluster] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    subjects: tuple[dict[str, list[Stored]], dict[str, list[Stored]]] = field(
        default_factory=lambda: ({}, {})
    )
    """What the schema registries hold, source's and target's."""

    def __post_init__(self) -> None:
        source, target = self.pair
        self.clusters |= {SOURCE: source, TARGET: target}
        for principal in PRINCIPALS:
            link = Link(source.bootstrap_servers, target.bootstrap_servers, self.name, rf"{self.name}-t\..*")
            user = self.user(principal)
            link.variables |= variables("SOURCE", source.user(user), source.folder)
            link.variables |= variables("DESTINATION", target.user(user), target.folder)
            link.variables["KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS"] = source.secure_servers
            link.variables["KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS"] = target.secure_servers
            link.variables["CONSUMER_GROUPS"] = rf"{self.name}-g.*"
            link.variables["STAGING_PARTITIONS"] = "1"
            self.links[principal] = link
            for which, cluster in self.clusters.items():
                mine = [r for r in needed() if (r.principal, r.cluster) == (principal, which)]
                cluster.grant(user, [self.on(right) for right in mine])

    def user(self, principal: str) -> str:
        return f"{self.name}-{principal}"

    def topic(self, what: str) -> str:
        return f"{self.name}-t.{what}"

    def on(self, right: permissions.Right) -> Right:
        names = {
            "<topics>": f"{self.name}-t.*",
            "<destinations>": f"{self.name}-t.*",
            "<groups>": f"{self.name}-g*",
            "<link>.heartbeats": self.topic("heartbeats"),
            "<offsets topic>": f"mm2-offsets.{self.name}.internal",
            "<Connect's group>": f"{self.name}-mm2",
        }
        name = names.get(right.name, right.name.replace("<link>", self.name))
        return Right(right.operation, right.resource, name)

    def grant(self, right: permissions.Right) -> None:
        self.clusters[right.cluster].grant(self.user(right.principal), [self.on(right)])

    def revoke(self, right: permissions.Right) -> None:
        self.clusters[right.cluster].revoke(self.user(right.principal), [self.on(right)])

    @contextlib.contextmanager
    def without(self, right: permissions.Right) -> Iterator[None]:
        """A principal without a right, and without those of its rights that include it."""
        taken = [right, *(r for r in needed() if r.principal == right.principal and includes(r, right))]
        for one in taken:
            self.revoke(one)
        try:
            yield
        finally:
            for one in taken:
                self.grant(one)

    def denying(self, principal: str, cluster: str, *denied: tuple[str, str, str]) -> Any:
        """A principal that may not (operation, resource, name), whatever its rights cover otherwise."""
        return self.clusters[cluster].denying(self.user(principal), [Right(*one) for one in denied])

    def denied(self, principal: str) -> dict[str, list[Denied]]:
        return {which: cluster.denied(self.user(principal)) for which, cluster in self.clusters.items()}

    def start(self, principal: str, bounded: bool = True) -> Running:
        """One of the copying applications."""
        settings = self.links[principal].settings
        if principal == REPLICATOR:
            return Running(ThreadReplicator(settings, bounded))
        deduplicator = ThreadDeduplicator(settings, bounded)
        deduplicator.table = Folded(self.links[principal])
        return Running(deduplicator)

    def run(self, principal: str) -> int | None:
        if principal == OFFSETS:
            return Service(self.links[principal].settings, True)._run()
        if principal == SCHEMAS:
            return self._schemas()
        return self.start(principal).wait(60)

    def _schemas(self) -> int:
        mine, theirs = self.subjects
        with stand_in(subjects=mine) as source, stand_in(subjects=theirs) as target:
            client(source.url).register(f"{self.topic('orders')}-value", avro("Order", "a"))
            file = self.clusters[TARGET].folder / f"{self.name}-pipeline.yaml"
            of = {"source": {"url": source.url}, "target": {"url": target.url}}
            file.write_text(json.dumps({"version": 1, "registries": of, "schemas": {}}))
            settings = self.links[SCHEMAS].settings.model_copy(update={"pipeline": str(file)})
            return schemas_service.Service(settings, True)._run()

    def tell(self, principal: str) -> Told:
        """The same, with what is said: errors, lines for the operator, warnings in the log."""
        log, lines, out = io.StringIO(), io.StringIO(), io.StringIO()
        handler = logging.StreamHandler(log)
        handler.setLevel(logging.WARNING)
        logging.getLogger().addHandler(handler)
        code: int | None
        try:
            with contextlib.redirect_stderr(lines), contextlib.redirect_stdout(out):
                code = self.run(principal)
        except VerbatimError as error:
            code = error.exit_code
            lines.write(str(error))
        finally:
            logging.getLogger().removeHandler(handler)
        return Told(code, lines.getvalue(), log.getvalue(), out.getvalue())


class Told(NamedTuple):
    """An exit code, what stands on stderr, the log from warnings on, and what stands on stdout."""

    code: int | None
    lines: str
    log: str
    out: str


INCLUDED = {"DESCRIBE": {"READ", "WRITE", "DELETE", "ALTER"}, "DESCRIBE_CONFIGS": {"ALTER_CONFIGS"}}
"""Operation -> those that include it."""


def includes(one: permissions.Right, other: permissions.Right) -> bool:
    """Whether one right makes up for the other, which the same principal lacks."""
    return (one.cluster, one.resource, one.name) == (other.cluster, other.resource, other.name) and (
        one.operation in INCLUDED.get(other.operation, ())
    )


def needed() -> list[permissions.Right]:
    """What a link needs that has no need of what is only for some."""
    some = (
        "ACL_SYNC",
        "--reverse",
        "HEARTBEATS_INTERVAL",
        "OTEL_METRICS_EXPORTER",
        "START_OFFSETS",
        "onError",
        "schema-ids",
    )
    return [right for right in RIGHTS if not any(right in only_with(what) for what in some)]


def only_with(what: str) -> list[permissions.Right]:
    """What is needed for a setting or a flag alone."""
    return [right for right in RIGHTS if what in right.when]


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def group_offset(link: Guarded, group: str, what: str) -> int:
    """Where a group of the link's is at the target, in the first partition of a topic; below 0: nowhere."""
    servers = link.clusters[TARGET].bootstrap_servers
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"{link.name}-{group}"})

    def ask() -> list[TopicPartition]:
        with contextlib.suppress(KafkaException):  # a cluster that has just started has no coordinator yet
            return list(consumer.committed([TopicPartition(link.topic(what), 0)], timeout=30))
        return []

    (found,) = eventually(ask, "the group's offset")
    consumer.close()
    return int(found.offset)
