"""An earlier version's applications, in an environment of their own, are replaced one by one by the working
tree's while records come: for test_upgrade.py, and as a command, which kills applications in between.

    python -m tests.faults.upgrade --from REVISION

It has two clusters of its own, runs the applications on Spark, and goes in the order of
docs/operations/upgrades.md. In each step it kills (-9) whichever application the seed says, at a moment that
the seed says, and starts it again in the version that it had. Then the rounds' checker and `verbatim verify`
say what became of the records. Needs the repository's history and uv.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import Names
from tests.faults.processes import BIN, Batches, Load, Process, environment
from tests.faults.rounds import groups
from tests.faults.rounds.checker import Tail, Verdict, check
from tests.faults.rounds.light import MODULE as LIGHT
from tests.support.brokers import create_topic, end_offsets, read_all
from tests.support.harness import eventually
from verbatim.local.kafka_cluster import Cluster
from verbatim.local.processes import HOST, free_ports

ROOT = Path(__file__).parents[2]
ORDER = ("offsets", "deduplicator", "replicator")
"""Readers first; the other way round back."""
PARTITIONS = 3
START_S = 240.0
LATEST_S = 20.0
"""A kill comes within so long of the step before."""


class NotThere(Exception):
    """A version that can't be installed."""


def install(revision: str, folder: Path) -> None:
    """That version with its packages, in an environment of its own. Raises NotThere."""
    if shutil.which("uv") is None:
        raise NotThere("uv, which installs the earlier version, is not here")
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", revision], capture_output=True, check=False)
    if packed.returncode:
        raise NotThere(f"commit {revision} is not in this clone's history")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    clean = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    subprocess.run(["uv", "sync", "--locked", "-q"], cwd=folder, env=clean, check=True)


@dataclass
class Instance:
    """One instance of an application, in one of the versions."""

    process: Process
    port: int
    version: str

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
        instance = Instance(Process(application, variables, log, command=command), port, version)
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


@contextmanager
def fleet_of(
    older: Path, folder: Path, source: str, target: str, names: Names, light: bool
) -> Iterator[Fleet]:
    """None of its applications has been started yet; none is left behind."""
    topics = {
        names.topic("small"): (Batches("lz4"), 300),
        names.topic("large"): (Batches("zstd", large=True), 1200),
    }
    for topic in topics:
        create_topic(source, topic, PARTITIONS, {"retention.ms": "-1"})
    found = Fleet(older, folder, source, target, names.link, light, topics)
    with closing(found.tail):
        try:
            yield found
        finally:
            for instances in found.running.values():
                for instance in instances:
                    instance.process.end()


def under_load(fleet: Fleet, upgrade: Callable[[], None]) -> Verdict:
    """Do it while records come and groups move: then each record is there once, in order, its mapping exact,
    and so is each group, or the verdict says what is not."""
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
    assert verdict.records == written > 5000
    assert len(moved) == groups.GROUPS * len(fleet.topics) * PARTITIONS
    verdict.problems += groups.problems(fleet.source, fleet.target, fleet.link, moved, 60)
    for application, instances in fleet.running.items():
        for instance in list(instances):
            fleet.stop(application, instance)
    return verdict


def replace_and_kill(fleet: Fleet, version: str, rng: random.Random, kills: int) -> None:
    """Each application, in the order that its version asks for, with so many kills in each step: of whichever
    application, wherever it is in its start."""
    for application in ORDER if version == "new" else reversed(ORDER):
        (instance,) = fleet.running[application]
        fleet.stop(application, instance)
        fleet.start(application, version)
        print(f"{application}: {version}", flush=True)
        for _ in range(kills):
            time.sleep(rng.uniform(0, LATEST_S))
            hit = rng.choice(ORDER)
            (instance,) = fleet.running[hit]
            fleet.stop(hit, instance, kill=True)
            fleet.start(hit, instance.version)
            print(f"  killed: {hit} ({instance.version})", flush=True)
        for instances in fleet.running.values():
            instances[0].await_ready()
        # Nothing that the other version has written is left when the next step begins.
        fleet.caught_up()


def verify(variables: Mapping[str, str]) -> int:
    """What `verbatim verify` says, and how it ends."""
    return subprocess.run([BIN / "verbatim", "verify"], env=dict(variables), check=False).returncode


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.upgrade",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--from",
        dest="revision",
        required=True,
        metavar="REVISION",
        help="what is upgraded: a commit or a tag",
    )
    add("--kills", type=int, default=2, help="in each step (2)")
    add("--seed", type=int, default=1, help="decides what is killed when (1)")
    add("--back", action="store_true", help="also one step back, writers first, with as many kills")
    add("--light", action="store_true", help="lanes in processes of the applications' own instead of Spark's")
    return parser.parse_args()


def main() -> int:
    """0: every record is there once. 1: not so. 2: that version can't be had."""
    options = arguments()
    # The applications have sessions of their own, and would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="verbatim-upgrade-"))
    older, own = folder / "older", folder / "own"
    older.mkdir()
    own.mkdir()
    rng = random.Random(options.seed)
    print(f"logs, kept unless all is well: {own}", flush=True)
    try:
        install(options.revision, older)
        with (
            Cluster() as source,
            Cluster() as target,
            fleet_of(
                older,
                own,
                source.bootstrap_servers,
                target.bootstrap_servers,
                Names("upgrade"),
                options.light,
            ) as fleet,
        ):

            def upgrade() -> None:
                for version in ("new", "old") if options.back else ("new",):
                    replace_and_kill(fleet, version, rng, options.kills)

            for application in ORDER:
                fleet.start(application, "old")
            verdict = under_load(fleet, upgrade)
            code = verify(fleet.variables)
    except NotThere as error:
        print(error, file=sys.stderr)
        shutil.rmtree(folder)
        return 2
    finally:
        shutil.rmtree(older, ignore_errors=True)
    print(*verdict.problems, sep="\n")
    print(f"{verdict.records} records, {verdict.mappings} mappings, {time.monotonic() - began:.0f} s")
    if verdict.problems or code:
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
