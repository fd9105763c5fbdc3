"""A rolling upgrade under load, as docs/operations/upgrades.md says: an earlier version's applications, in
their own environment, are replaced one by one by today's, and back.

Needs the repository's history and uv, and takes a quarter of an hour and more, hence a command of its own:
`uv run pytest -n 0 tests/faults/test_upgrade.py`. VERBATIM_UPGRADE_FROM names another commit.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import Kafka, Names
from tests.faults.processes import BIN, Batches, Load, Process, environment
from tests.faults.rounds import groups
from tests.faults.rounds.checker import Tail, check
from tests.faults.rounds.light import MODULE as LIGHT
from tests.support.brokers import create_topic, end_offsets, read_all
from tests.support.harness import eventually
from verbatim.local.processes import HOST, free_ports

FROM = os.environ.get("VERBATIM_UPGRADE_FROM", "904cda4ad83622aab231c084a188a762dbc92dc7")
"""No release is out yet. This one still packs small batches into frames of version 1, and asks and sets
groups' offsets by the client library."""
ROOT = Path(__file__).parents[2]
ORDER = ("offsets", "deduplicator", "replicator")
"""Readers first; the other way round back."""
PARTITIONS = 3
START_S = 240.0


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The earlier version, installed in a folder of its own."""
    folder = tmp_path_factory.mktemp("older")
    if shutil.which("uv") is None:
        pytest.skip("uv, which installs the earlier version, is not here")
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", FROM], capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"commit {FROM} is not in this clone's history")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    clean = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    subprocess.run(["uv", "sync", "--locked", "-q"], cwd=folder, env=clean, check=True)
    yield folder
    shutil.rmtree(folder)


@dataclass
class Instance:
    """One instance of an application, in one of the versions."""

    process: Process
    port: int

    def role(self) -> str:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/readyz", timeout=5) as answer:
                return str(json.load(answer)["role"])
        except urllib.error.HTTPError:
            return "not ready"
        except OSError:
            assert self.process.alive(), self.process.said()[-3000:]
            return "silent"

    def await_ready(self) -> None:
        eventually(lambda: self.role() in ("leader", "standby"), f"{self.process.log} to be ready", START_S)


@dataclass
class Fleet:
    """A link under load: its applications, topics and groups."""

    older: Path
    folder: Path
    source: str
    target: str
    link: str
    light: bool
    """Whether lanes are processes of the applications' own, instead of Spark's."""
    topics: dict[str, tuple[Batches, int]]
    """The load of each, with records a second."""
    running: dict[str, list[Instance]] = field(default_factory=dict)
    started: int = 0

    def __post_init__(self) -> None:
        more = {"CONSUMER_GROUPS": f"{self.link}-reader.*", "OFFSETS_INTERVAL": "1s"}
        self.variables = environment(
            self.source, self.target, self.link, ",".join(self.topics), self.folder, **more
        )
        self.tail = Tail(self.target, f"{self.link}.offset-mappings")

    def start(self, application: str, version: str) -> Instance:
        self.started += 1
        log = self.folder / f"{self.started:02}-{application}-{version}.log"
        bin_, at = (BIN, ROOT) if version == "new" else (self.older / ".venv/bin", self.older)
        (port,) = free_ports(1)
        # Lanes import what lies in the folder that they are started in.
        light = self.light and application != "offsets"
        own = [str(bin_ / "python"), "-m", LIGHT, application] if light else [str(bin_ / application)]
        command = ["env", "-C", str(at), *own]
        variables = self.variables | {"HEALTH_PORT": str(port), "HEALTH_ADDRESS": HOST}
        instance = Instance(Process(application, variables, log, command=command), port)
        self.running.setdefault(application, []).append(instance)
        return instance

    def stop(self, application: str, instance: Instance, kill: bool = False) -> None:
        if kill:
            instance.process.kill()
        else:
            assert instance.process.terminate() == 0, instance.process.said()[-3000:]
        self.running[application].remove(instance)

    def replace(self, application: str, version: str, first: str) -> None:
        """Both instances, the standby or the leader first."""
        pair = sorted(self.running[application], key=lambda one: one.role() != first)
        assert pair[0].role() == first and {one.role() for one in pair} == {"leader", "standby"}
        for instance in pair:
            self.stop(application, instance)
            self.start(application, version).await_ready()
            self.caught_up()

    def replace_alone(self, application: str, version: str, kill: bool) -> None:
        """The only instance; with kill -9, of the old one and, once records flow, of the new one."""
        (instance,) = self.running[application]
        self.stop(application, instance, kill)
        new = self.start(application, version)
        self.caught_up()
        if kill:
            self.stop(application, new, kill)
            self.start(application, version)
            self.caught_up()
        self.running[application][0].await_ready()

    def caught_up(self) -> None:
        """Wait until all that is at the source now is delivered: whatever was replaced does its work."""
        ends = {(t, p): end for t in self.topics for p, end in end_offsets(self.source, t).items()}

        def delivered() -> bool:
            reached = self.tail.reached()
            return all(reached.get(at, -1) >= end for at, end in ends.items())

        eventually(delivered, "all to be delivered", START_S)

    def folds(self) -> int:
        """Commits of the state table."""
        return len(list((self.folder / "state").glob("**/_delta_log/*.json")))

    def forms(self) -> set[tuple[bytes, bool]]:
        """Of the frames in staging: their version, and whether there are records in them."""
        found = [
            dict(r.headers or ()) for part in read_all(self.target, f"{self.link}.staging") for r in part
        ]
        return {(one["v"] or b"", one["count"] != b"0") for one in found}


@pytest.fixture
def fleet(
    older: Path, source: Kafka, target: Kafka, names: Names, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Fleet]:
    topics = {
        names.topic("small"): (Batches("lz4"), 300),
        names.topic("large"): (Batches("zstd", large=True), 1200),
    }
    s, t = source.bootstrap_servers, target.bootstrap_servers
    for topic in topics:
        create_topic(s, topic, PARTITIONS, {"retention.ms": "-1"})
    with ExitStack() as stack:
        light = getattr(request, "param", "light") == "light"
        found = Fleet(older, tmp_path, s, t, names.link, light, topics)
        stack.enter_context(closing(found.tail))
        try:
            yield found
        finally:
            for instances in found.running.values():
                for instance in instances:
                    instance.process.end()


def under_load(fleet: Fleet, upgrade: Callable[[], None]) -> None:
    """Do it while records come and groups move; then each record is there once, in order, its mapping exact,
    and so is each group."""
    loads = [
        Load(fleet.source, topic, PARTITIONS, seed, per_second, batches)
        for seed, (topic, (batches, per_second)) in enumerate(fleet.topics.items())
    ]
    moving = groups.Groups(fleet.source, groups.names(fleet.link), list(fleet.topics), 1)
    try:
        fleet.caught_up()
        upgrade()
    finally:
        moved = moving.stop()
        written = sum(load.stop() for load in loads)
    fleet.caught_up()
    verdict = check(fleet.source, fleet.target, fleet.link, list(fleet.topics))
    assert verdict.problems == []
    assert verdict.records == written > 5000
    assert len(moved) == groups.GROUPS * len(fleet.topics) * PARTITIONS
    assert groups.problems(fleet.source, fleet.target, fleet.link, moved, 60) == []
    for application, instances in fleet.running.items():
        for instance in list(instances):
            fleet.stop(application, instance)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", ["standby", "leader"])
def test_each_instance_is_replaced_readers_first(fleet: Fleet, first: str) -> None:
    """Promise: each application's two instances are replaced one after the other, the standby first, or the
    leader, as a rollout on Kubernetes may: nothing is lost or twice, and it flows in between."""
    for application in ORDER:
        for _ in range(2):
            fleet.start(application, "old")

    def upgrade() -> None:
        for instances in fleet.running.values():
            for instance in instances:
                instance.await_ready()
        for application in ORDER:
            fleet.replace(application, "new", first)

    under_load(fleet, upgrade)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("fleet", "kill"),
    [("light", False), ("light", True), ("spark", True)],
    ids=["stopped", "killed", "killed-on-spark"],
    indirect=["fleet"],
)
def test_without_a_standby_there_and_one_step_back(fleet: Fleet, kill: bool) -> None:
    """Promise: the only instance of each is replaced, readers first, also where it is killed and its
    successor too; the new version folds on in the older one's state table. Back, writers first, the older
    version goes on with what the newer one has written."""
    for application in ORDER:
        fleet.start(application, "old")

    def upgrade() -> None:
        if not fleet.light:
            # Who takes over with mappings there, and no table, makes one.
            fleet.replace_alone("deduplicator", "old", kill=True)
            eventually(lambda: fleet.folds() > 1, "the older version to fold", START_S)
        folds = fleet.folds()
        for application in ORDER:
            fleet.replace_alone(application, "new", kill)
        if not fleet.light:
            eventually(lambda: fleet.folds() > folds, "the newer version to fold", START_S)
        assert (b"1", True) in fleet.forms() and (b"2", True) in fleet.forms()
        for application in reversed(ORDER):
            # By then no frame of the newer replicator is left that was not delivered.
            fleet.replace_alone(application, "old", kill)

    under_load(fleet, upgrade)
