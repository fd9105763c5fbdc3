"""What every test may ask for: two real clusters, started once and only when wanted, and names nobody else
uses."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import settings

from common import log_lines
from common.spark.jars import cache_folder

if TYPE_CHECKING:
    from tests.faults.rounds.proxy import Proxy
    from tests.support.secured import SecuredCluster

# Where Python is told to write no bytecode, each worker and each process that a test starts would compile all
# that it imports: most of a short one's time.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(cache_folder() / "bytecode")
    sys.dont_write_bytecode = False

# The same examples in every run, so that a change is judged by what it changed; HYPOTHESIS_PROFILE=explore
# looks for new ones. No deadline: how long an example takes says more about the machine.
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

# Where a Docker engine answers; VERBATIM_TEST_BROKERS=embedded prefers the brokers of
# verbatim.local.kafka_cluster even there.
_IMAGE = "confluentinc/cp-kafka:7.9.1"


LONGEST = [f"integration/test_{name}.py" for name in ("state", "promotions", "back", "pipelines")]
"""Begun before all other files, so that none of them is under way when the other workers have ended."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "/".join(item.path.parts[-2:]) not in LONGEST)


def pytest_collection_finish() -> None:
    """What all tests import stays to the end: a collector that looked at it each time would take most of a
    second for it."""
    gc.collect()
    gc.freeze()


class Kafka(Protocol):
    """A running cluster."""

    @property
    def bootstrap_servers(self) -> str: ...


@dataclass(frozen=True)
class Address:
    """Where a cluster that runs in a container is reached."""

    bootstrap_servers: str


@dataclass(frozen=True)
class Names:
    """Names of one test: `link`, and `topic()` or `topic("orders")` for a topic, each call another unless
    named."""

    link: str
    _made: list[str] = field(default_factory=list)

    def topic(self, what: str | None = None) -> str:
        self._made.append(what or f"topic{len(self._made)}")
        return f"{self.link}.t.{self._made[-1]}"


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that a test ran in this process logs to a stderr of its own, which is closed by then: what
    the next test logs would end there."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    log_lines.end_logging()


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """A lane that runs in this process has the garbage collector look rarely, and never at what was there
    before. Each client that is left to it keeps a key of thread-local storage, and a process has 1024 of
    them."""
    usual = gc.get_threshold()
    yield
    if gc.get_threshold() != usual:
        gc.set_threshold(*usual)
        gc.unfreeze()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def clusters() -> Iterator[tuple[Kafka, Kafka]]:
    """Two independent clusters, started at the same time and stopped when the last test has ended."""
    with contextlib.ExitStack() as stack:
        start = cluster_starter()
        with ThreadPoolExecutor(2) as pool:
            starting = [pool.submit(start, stack) for _ in range(2)]
        first, second = (future.result() for future in starting)
        yield first, second


@pytest.fixture(scope="session")
def source(clusters: tuple[Kafka, Kafka]) -> Kafka:
    """The cluster to copy from."""
    return clusters[0]


@pytest.fixture(scope="session")
def target(clusters: tuple[Kafka, Kafka]) -> Kafka:
    """The cluster to copy to."""
    return clusters[1]


@pytest.fixture(autouse=True)
def signals_given_back() -> Iterator[None]:
    """An application that runs in a test takes the signals of its process and keeps them: the tests behind it
    want them as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def names() -> Names:
    """Link and topic names of this test alone, so that tests can share the clusters."""
    return Names(f"t{secrets.token_hex(4)}")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SecuredCluster, SecuredCluster]]:
    """A source and a target of this module's own, where nothing is allowed that was not granted."""
    from tests.support.secured import secured_pair

    with secured_pair(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")) as pair:
        yield pair


@pytest.fixture
def behind_a_proxy() -> Iterator[Proxy]:
    """A proxy before a cluster of one node."""
    from tests.faults.rounds.proxy import before_a_cluster

    with before_a_cluster() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def third() -> Iterator[Kafka]:
    """One more cluster, for the tests of one file."""
    with contextlib.ExitStack() as stack:
        yield cluster_starter()(stack)


def cluster_starter() -> Callable[[contextlib.ExitStack], Kafka]:
    """What starts a cluster that a stack stops again."""
    return _container if _docker_answers() else _embedded


def _docker_answers() -> bool:
    if os.environ.get("VERBATIM_TEST_BROKERS") == "embedded":
        return False
    import docker

    try:
        client = docker.from_env(timeout=5)
    except docker.errors.DockerException:
        return False
    with contextlib.closing(client):
        try:
            return bool(client.ping())
        except (docker.errors.DockerException, OSError):
            return False


def _embedded(stack: contextlib.ExitStack) -> Kafka:
    from verbatim.local.kafka_cluster import Cluster

    # Never killed, so its session may be long. One that is too busy to tell its controller in time that it
    # lives leads nothing for a while.
    patient = {"broker.session.timeout.ms": 60_000, "broker.heartbeat.interval.ms": 2000}
    cluster = Cluster(properties=patient).start()
    stack.callback(cluster.stop)
    return cluster


def _container(stack: contextlib.ExitStack) -> Kafka:
    from testcontainers.kafka import KafkaContainer

    from verbatim.local.kafka_cluster import new_cluster_id

    # Containers share one cluster id by default, and a link between "two" clusters of one id is none.
    container = KafkaContainer(_IMAGE).with_kraft().with_cluster_id(new_cluster_id())
    for variable, value in {
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "4",
        "KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "4",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_LOG_RETENTION_CHECK_INTERVAL_MS": "1000",
    }.items():
        container = container.with_env(variable, value)
    container.start(timeout=120)
    stack.callback(container.stop)
    return Address(container.get_bootstrap_server())
