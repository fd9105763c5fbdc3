"""What is measured side by side: Verbatim, MirrorMaker 2 in three configurations, and the floor. Starts and
ends them; measures nothing.

Each is one or more real processes that copy one topic to `<link>.<topic>` on the target.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from bench import transforms
from bench.clusters import Pair
from bench.standalone import standalone
from common.errors import VerbatimError
from common.spark import class_archive
from common.spark.jars import DELTA, KAFKA_LOGGING, classpath, java
from verbatim.local.applications import Application
from verbatim.local.kafka_cluster import FULL_SPEED, LOG4J
from verbatim.local.processes import HOST, free_ports

MIRROR_MAKER = "org.apache.kafka:connect-mirror:4.3.1"
"""The newest one that every Maven repository was seen to have: of 4.4.0 one had all parts but this."""

VERBATIM = "verbatim"
FLOOR = "floor"

# As connect-mirror-maker.sh starts it.
_MIRROR_MAKER_JVM = ("-Xms256M", "-Xmx2G", *FULL_SPEED)

# What all three have in common is what makes the comparison one of equals: exactly once, and only committed
# records.
_MIRROR_MAKER_COMMON = {
    "clusters": "{source}, target",
    "{source}.bootstrap.servers": "{source_servers}",
    "target.bootstrap.servers": "{target_servers}",
    "{source}->target.enabled": "true",
    "{source}->target.topics": "{topic}",
    "target->{source}.enabled": "false",
    "target.exactly.once.source.support": "enabled",
    "dedicated.mode.enable.internal.rest": "true",
    "listeners": "http://{host}:{port}",
    "{source}.consumer.isolation.level": "read_committed",
    # The brokers are one each.
    "replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "config.storage.replication.factor": "1",
}

# One task a partition. (Its connectors for heartbeats and checkpoints can't be switched off in dedicated
# mode; they cost next to nothing.)
_MIRROR_MAKER_TUNED = {
    "tasks.max": "{partitions}",
    "target.producer.compression.type": "lz4",
    "target.producer.max.request.size": str(4 << 20),
    "{source}.consumer.max.poll.records": "5000",
    "{source}.consumer.max.partition.fetch.bytes": str(4 << 20),
    "{source}.consumer.receive.buffer.bytes": str(1 << 20),
    "target.producer.send.buffer.bytes": str(1 << 20),
    "target.producer.buffer.memory": str(128 << 20),
}

MIRROR_MAKER_PROPERTIES: Mapping[str, Mapping[str, str]] = {
    "mm2-throughput": {
        **_MIRROR_MAKER_TUNED,
        "{source}->target.transaction.boundary": "interval",
        "{source}->target.transaction.boundary.interval.ms": "1000",
        "target.producer.batch.size": str(512 << 10),
        "target.producer.linger.ms": "20",
    },
    "mm2-latency": {
        **_MIRROR_MAKER_TUNED,
        "{source}->target.transaction.boundary": "poll",
        "target.producer.linger.ms": "0",
    },
    "mm2-defaults": {},
}
"""Configuration -> its properties, over what all have in common. The defaults: one task, a transaction for
each poll."""

EXECUTORS = {"verbatim-1-executor": 1, "verbatim-2-executors": 2}
"""Verbatim on a standalone cluster of Spark's: so many workers, on each an executor of either application,
which runs one lane."""

BESIDE_TARGET = "verbatim-beside-target"
LINKS = "verbatim-links"
"""Where the target is far away the replicator alone is, as the two are deployed. Where it is near, the same
as VERBATIM."""

PEERS = (VERBATIM, *MIRROR_MAKER_PROPERTIES, FLOOR)
NAMES = (*PEERS, BESIDE_TARGET, LINKS, *EXECUTORS, *transforms.VERBATIM, *transforms.MIRROR_MAKER)

TITLES = {
    VERBATIM: "Verbatim",
    BESIDE_TARGET: "Verbatim, deduplicator beside the target",
    LINKS: "Verbatim, a link for each topic",
    "verbatim-1-executor": "Verbatim, 1 executor",
    "verbatim-2-executors": "Verbatim, 2 executors",
    "mm2-throughput": "MirrorMaker 2, for throughput",
    "mm2-latency": "MirrorMaker 2, for latency",
    "mm2-defaults": "MirrorMaker 2, defaults",
    FLOOR: "plain loop, no guarantees",
    "verbatim-no-flow": "Verbatim, a pipeline for other topics",
    "verbatim-filter": "Verbatim, filter by a header",
    "verbatim-header": "Verbatim, a header set",
    "verbatim-mask": "Verbatim, a field masked",
    "mm2-filter": "MirrorMaker 2, Filter by HasHeaderKey",
    "mm2-header": "MirrorMaker 2, InsertHeader",
    "mm2-mask": "MirrorMaker 2, a field masked by an SMT",
}


@dataclass
class Copier:
    """A copier of one topic, stopped and ready to start; killed when the `with` ends, for nothing of it is
    needed any more."""

    name: str
    destination: str
    applications: dict[str, Application] = field(default_factory=dict)

    def start(self) -> None:
        for application in self.applications.values():
            application.start()

    def pids(self) -> dict[str, int]:
        """Application -> the process id of its eldest process."""
        return {name: pid for name, a in self.applications.items() if (pid := a.pid) is not None}

    def check(self) -> None:
        """Raises VerbatimError, with the end of its log, when an application has ended by itself."""
        for name, application in self.applications.items():
            code = application.ended()
            if code is not None:
                raise VerbatimError(f"{self.name}: {name} ended (exit code {code}): {application.log_tail()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for application in self.applications.values():
            application.kill()


def make(name: str, pair: Pair, link: str, topic: str, partitions: int, linger_ms: int = 20) -> Copier:
    """A copier by its name in NAMES. `link` must be new in this sitting. `topic` may be a pattern, but for
    the floor. `linger_ms` is the floor's."""
    folder = pair.folder / link
    folder.mkdir()
    makers: dict[str, Callable[[], dict[str, Application]]] = {
        VERBATIM: lambda: _verbatim(pair, link, topic, folder),
        BESIDE_TARGET: lambda: _verbatim(pair, link, topic, folder, pair.target.bootstrap_servers),
        LINKS: lambda: links_of(pair, link, topic, folder),
        FLOOR: lambda: _floor(pair, topic, destination(link, topic), partitions, linger_ms, folder),
    }
    for with_pipeline in transforms.VERBATIM:
        makers[with_pipeline] = partial(_verbatim_with_pipeline, with_pipeline, pair, link, topic, folder)
    for on_executors, count in EXECUTORS.items():
        makers[on_executors] = partial(_verbatim_on_executors, pair, link, topic, folder, count)
    maker = makers.get(name) or (lambda: _mirror_maker(name, pair, link, topic, partitions, folder))
    return Copier(name, destination(link, topic), maker())


def destination(link: str, topic: str) -> str:
    """What every copier calls its copy."""
    return f"{link}.{topic}"


def lay_by_classes(say: Callable[[str], None]) -> None:
    """Verbatim's images hold which classes Spark loads, so here it starts with them too. Made once; raises
    VerbatimError."""
    archive = class_archive.of_spark(classpath(DELTA))
    if archive.is_file():
        return
    say("laying by which classes Spark loads, as when Verbatim's image is built: once on this machine")
    command = [
        str(Path(sys.executable).with_name("verbatim")),
        "quickstart",
        "--no-kill",
        "--records",
        "20000",
    ]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if run.returncode or not archive.is_file():
        raise VerbatimError(f"{' '.join(command[1:])} made no {archive}: {run.stdout[-500:]}")


def _verbatim(
    pair: Pair, link: str, topic: str, folder: Path, deduplicators_target: str = ""
) -> dict[str, Application]:
    """`deduplicators_target`: where the deduplicator reaches the target, unless as all copiers do."""
    variables = _verbatim_variables(pair, link, topic, folder)
    servers = "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS"
    own = variables | {servers: deduplicators_target or variables[servers]}
    return {
        "replicator": Application("replicator", variables, folder),
        "deduplicator": Application("deduplicator", own, folder),
    }


def _verbatim_variables(pair: Pair, link: str, topic: str, folder: Path) -> dict[str, str]:
    return {
        "APPLICATION_NAME": link,
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": pair.source.copiers_servers,
        "KAFKA_CLUSTERS_SOURCE_TOPIC": topic,
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": pair.target.copiers_servers,
        "KAFKA_CLUSTERS_DESTINATION_TOPIC": f"{link}.{{topic}}",
        "STATE_PATH": str(folder / "state"),
        "HEALTH_PORT": "0",
        # A container that is restarted under its name: leads again at once.
        "INSTANCE_ID": link,
    }


def links_of(pair: Pair, link: str, pattern: str, folder: Path) -> dict[str, Application]:
    """One pair of processes with a link for each topic."""
    files = folder / "links"
    files.mkdir()
    variables = _verbatim_variables(pair, link, pattern, folder)
    del variables["APPLICATION_NAME"], variables["KAFKA_CLUSTERS_SOURCE_TOPIC"]
    for topic in pair.source.topics():
        if re.fullmatch(pattern, topic):
            (files / f"{topic}.yaml").write_text(f"KAFKA_CLUSTERS_SOURCE_TOPIC: {topic}\n")
    options = ["--links", str(files)]
    return {
        name: Application(name, variables, folder, options=options) for name in ("replicator", "deduplicator")
    }


def _verbatim_with_pipeline(
    name: str, pair: Pair, link: str, topic: str, folder: Path
) -> dict[str, Application]:
    file = folder / "pipeline.yaml"
    transforms.write_pipeline(name, file)
    variables = _verbatim_variables(pair, link, topic, folder)
    return {
        "replicator": Application("replicator", variables | {"PIPELINE": str(file)}, folder),
        "deduplicator": Application("deduplicator", variables, folder),
    }


def verbatim_with_groups(
    pair: Pair, link: str, topic: str, folder: Path
) -> tuple[dict[str, str], dict[str, Application]]:
    """A link with all groups, and `offsets`; its variables, for commands too."""
    variables = _verbatim_variables(pair, link, topic, folder) | {"CONSUMER_GROUPS": ".*"}
    names = ("replicator", "deduplicator", "offsets")
    return variables, {name: Application(name, variables, folder) for name in names}


def _verbatim_on_executors(
    pair: Pair, link: str, topic: str, folder: Path, count: int
) -> dict[str, Application]:
    # On each worker a core for the replicator's lane, one for the deduplicator's, one for the state query;
    # and one more, since the replicator's executors may all come to one worker, if that is up first, and
    # those of the deduplicator must find room for two cores still.
    master, found = standalone(folder, count, cores=4, memory="2g")
    variables = _verbatim_variables(pair, link, topic, folder)
    variables |= {"SPARK_MASTER": master, "PARALLELISM": str(count), "PYSPARK_PYTHON": sys.executable}
    for name, cores in (("replicator", 1), ("deduplicator", 2)):
        conf = {
            "spark.executor.memory": "512m",
            "spark.executor.cores": str(cores),
            "spark.cores.max": str(cores * count),
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
        }
        options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        found[name] = Application(name, variables, folder, options=options)
    return found


def _floor(
    pair: Pair, topic: str, destination: str, partitions: int, linger_ms: int, folder: Path
) -> dict[str, Application]:
    pair.target.create([destination], partitions)
    command = [sys.executable, str(Path(__file__).with_name("copy_loop.py"))]
    command += [pair.source.copiers_servers, pair.target.copiers_servers, topic, destination]
    command += [str(partitions), str(linger_ms)]
    return {"loop": Application("loop", {}, folder, command)}


def _mirror_maker(
    name: str, pair: Pair, link: str, topic: str, partitions: int, folder: Path
) -> dict[str, Application]:
    facts = {
        "{source}": link,
        "{source_servers}": pair.source.copiers_servers,
        "{target_servers}": pair.target.copiers_servers,
        "{topic}": topic,
        "{partitions}": str(partitions),
        "{host}": HOST,
        "{port}": str(free_ports(1)[0]),
    }

    def filled(text: str) -> str:
        for word, fact in facts.items():
            text = text.replace(word, fact)
        return text

    more = transforms.MIRROR_MAKER.get(name)
    own = MIRROR_MAKER_PROPERTIES[name if more is None else "mm2-throughput"]
    properties = {**_MIRROR_MAKER_COMMON, **own, **(more or {})}
    lines = [f"{filled(key)} = {filled(value)}\n" for key, value in properties.items()]
    (folder / "mm2.properties").write_text("".join(lines))
    (folder / "log4j2.properties").write_text(LOG4J)
    command = [java(), *_MIRROR_MAKER_JVM, f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"]
    jars = classpath(KAFKA_LOGGING, MIRROR_MAKER)
    command += ["-cp", transforms.compiled(jars, folder) if name == "mm2-mask" else jars]
    command += ["org.apache.kafka.connect.mirror.MirrorMaker", str(folder / "mm2.properties")]
    return {"mirror-maker": Application("mirror-maker", {}, folder, command)}
