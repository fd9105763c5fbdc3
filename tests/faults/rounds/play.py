"""Plays rounds: deals faults, keeps the load up, waits until all is delivered, has it checked, writes down
what happened."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from common.errors import what_and_where
from common.kafka.client import topics as topics_of
from common.ports import Deadline
from tests.faults.processes import Batches, Load
from tests.faults.rounds import checker, groups, moves, pipelines
from tests.faults.rounds.faults import Fault
from tests.faults.rounds.proxy import wait_for
from tests.faults.rounds.scene import NotReached, Scene, Wrong
from tests.faults.rounds.world import BATCHES, OFFSETS, Link, World
from tests.support.brokers import Record, create_topic, produce, read_all
from verbatim.local.kafka_cluster import Cluster

PARTITIONS = 3
TOPICS = 2
PER_SECOND = 2000
"""Records for each topic."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEPT = {"retention.ms": "-1"}
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "200", "min.cleanable.dirty.ratio": "0.01"}
COMPACTED_S = 60.0
STARTED_S = 120.0
WENT_ON_S = 180.0
"""A bound on how long delivery may stand still after a fault is over: a call of the client's that hangs is
given up after 120 s."""
DRAINED_S = 180.0
"""A bound on how long it takes until all is delivered, once nothing is written and nothing is broken any
more."""

GROUPS_S = 30.0
"""A bound on how long it takes until groups that move no more are exact at the target."""

LANES = {(False, False): "spark", (False, True): "executors", (True, False): "processes"}
"""Whether they run without Spark, and on executors -> what the results call that."""
GOOD, BAD, NOT_REACHED = "good", "bad", "fault not reached"


@dataclass
class Result:
    """One line of the results file. `verdict` is good only if every fault is known to have happened."""

    seed: int
    round: int
    link: str
    began: str = ""
    commit: str | None = None
    """Of the tree that was played, with a + where it had changes that were not committed."""
    engine: str = BATCHES
    lanes: str = "spark"
    """What runs them: spark, executors of a cluster of Spark's, or processes of the application's own
    (rounds/light.py)."""
    named: bool = False
    """Whether the instances have names, and lead again at once."""
    sources: list[dict[str, Any]] = field(default_factory=list)
    """What its source topics are like."""
    far_source_ms: float | None = None
    far_target_ms: float | None = None
    """The applications' round trip to a cluster that is far away."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    verdict: str = BAD
    problems: list[str] = field(default_factory=list)
    records: int = 0
    mappings: int = 0
    runs: int = 0
    groups: int = 0
    """Offsets of consumer groups that moved, and were compared."""
    exits: list[dict[str, Any]] = field(default_factory=list)
    drained_s: float | None = None
    seconds: float = 0.0
    load: float = 0.0
    """The machine's load average over a minute, at the end: on a busy one, all takes its time."""
    pipelines: int | None = None
    """How many versions the link's pipeline had by the end of the round, where it had one."""
    dead_letters: int | None = None
    """Those that were to be, and were compared."""
    broken: str | None = None
    """The breakage that production was run with, in proofs of the harness."""

    def line(self) -> str:
        return json.dumps({k: v for k, v in asdict(self).items() if v is not None})


@dataclass(frozen=True)
class SourceKind:
    """What a source topic of a round is like: its batches' codec, whether they are of 64 KiB and more or of a
    few records, and whether its log begins with gaps."""

    codec: str
    large: bool
    tiny: bool
    gaps: bool

    @classmethod
    def dealt(cls, rng: random.Random) -> SourceKind:
        codec, large, gaps, tiny = (
            rng.choice(CODECS),
            rng.random() < 0.5,
            rng.random() < 0.25,
            rng.random() < 0.5,
        )
        return cls(codec, large, tiny and not large, gaps)

    def make(self, cluster: Cluster, topic: str) -> None:
        """With gaps: a log that was compacted, and is so no more. Call it before anybody copies the topic."""
        source = cluster.bootstrap_servers
        if not self.gaps:
            create_topic(source, topic, PARTITIONS, KEPT)
            return
        create_topic(source, topic, PARTITIONS, KEPT | COMPACTED)
        for value in range(3):
            records = [Record(b"%d" % value, b"%d" % k, p) for k in range(20) for p in range(PARTITIONS)]
            produce(source, topic, records)
            time.sleep(0.3)
        # Of each partition the first values go; the second ones are the newest before the segment that is
        # written to. One that is compacted later, after it was copied, would be another log than its copy,
        # and so would that of a follower which comes to lead.
        left = [2 * 20] * PARTITIONS

        def compacted() -> bool:
            if [*map(len, read_all(source, topic))] != left:
                return False
            of_each = [replica_bytes(cluster.folder, f"{topic}-{p}") for p in range(PARTITIONS)]
            return all(len(sizes) == cluster.nodes and len(set(sizes)) == 1 for sizes in of_each)

        if not wait_for(compacted, COMPACTED_S):
            raise TimeoutError(f"{topic} was not compacted")
        admin = AdminClient({"bootstrap.servers": source, "log_level": 0})
        topics_of.alter(admin, topic, dict.fromkeys(COMPACTED), Deadline(30))


def replica_bytes(folder: Path, partition: str) -> list[int]:
    """How much each replica of a partition holds, of those that have it."""
    replicas = folder.glob(f"node-*/{partition}")
    return [sum(log.stat().st_size for log in replica.glob("*.log")) for replica in replicas]


def deal(seed: int, rounds: int, names: Sequence[str], singly: bool) -> list[list[list[str]]]:
    """For each round its steps, for each step the faults that come together. Every fault once before any
    comes again."""
    rng = random.Random(f"deal {seed}")
    pile: list[str] = []
    dealt: list[list[list[str]]] = []
    for _ in range(rounds):
        steps: list[list[str]] = []
        for _ in range(1 if singly else 3):
            pile = pile or rng.sample(list(names), len(names))
            step = [pile.pop()]
            if not singly and rng.random() < 0.6:
                other = next((n for n in reversed(pile) if _together(step[0], n)), None)
                if other is not None:
                    pile.remove(other)
                    step.append(other)
            steps.append(step)
        dealt.append(steps)
    return dealt


def _together(a: str, b: str) -> bool:
    """Whether two faults can come at the same time. Not two brokers: fewer replicas would be left than
    writing takes. And killing what another fault has its eye on would keep that one from happening."""
    kinds = {a.partition("/")[0], b.partition("/")[0]}
    if kinds in (
        {"broker", "app"},
        {"broker", "point"},
        {"broker", "state"},
        {"net", "app"},
        {"data", "app"},
    ):
        return True
    at_large = any(name.startswith(("net/drop", "net/reset", "net/delay")) for name in (a, b))
    return at_large and kinds in ({"net", "broker"}, {"net", "point"}, {"net", "state"})


class Player:
    """Plays rounds on one world. A link lives for several of them, so that what is old meets what is new."""

    def __init__(
        self,
        world: World,
        seed: int,
        faults: Mapping[str, Fault],
        records: int,
        rounds_per_link: int,
        logs: Path,
        broken: str | None = None,
        patience: float = 1.0,
        light: bool = False,
        drained_s: float = DRAINED_S,
        moves: Sequence[str] = (),
        pipeline: bool = False,
    ) -> None:
        """`patience` multiplies all bounds on waiting; `drained_s` is the one until all is delivered. `moves`
        are the ways in which a link ends, one after the other; none where it is just stopped. `pipeline`:
        links have one, which is another three times a minute."""
        self.world = world
        self.seed = seed
        self.faults = faults
        self.records = records
        self.rounds_per_link = rounds_per_link
        self.logs = logs
        self.broken = broken
        self.patience = patience
        self.light = light
        self.drained_s = drained_s * patience
        self.link: Link | None = None
        self.moves = moves
        self.pipeline: pipelines.Changing | None = None
        self._with_pipeline = pipeline
        self.commit = tree()
        self._played = 0
        self._links = 0
        self._topics: list[str] = []

    def play(self, number: int, steps: list[list[str]]) -> Result:
        """One round. Never raises for what production or a fault did: that is the verdict."""
        began = time.monotonic()
        link = self._link(number)
        result = Result(
            self.seed, number, link.name, datetime.now(UTC).isoformat(timespec="seconds"), broken=self.broken
        )
        result.commit = self.commit
        result.far_source_ms, result.far_target_ms = (ms or None for ms in self.world.far_ms)
        result.lanes, result.named = LANES[self.light, link.executors is not None], link.named
        try:
            self._round(link, number, steps, result, began)
        except Exception as error:  # noqa: BLE001 - whatever it is, the round has failed, and the next may still tell something
            # The results are the project's: no place on this machine is in them.
            result.problems.append(f"the round broke off: {what_and_where(error)}: {error}")
            traceback.print_exc()
        result.exits, link.exits = link.exits, []
        missed = [f["name"] for f in result.faults if not f["reached"]]
        result.problems += [f["wrong"] for f in result.faults if "wrong" in f]
        result.verdict = BAD if result.problems else NOT_REACHED if missed else GOOD
        self._played += 1
        if result.problems:
            self.keep_logs(number)
            self.drop_link()
        elif self._played % self.rounds_per_link == 0:
            codes = link.stop()
            if any(codes):
                result.problems.append(f"stopped with exit codes {codes}")
                result.verdict = BAD
                self.keep_logs(number)
            self.drop_link()
        result.seconds = round(time.monotonic() - began, 1)
        result.load = round(os.getloadavg()[0], 1)
        return result

    def keep_logs(self, number: int) -> Path:
        """Copy what the processes said to where it stays."""
        kept = self.logs / f"seed{self.seed}-round{number}"
        kept.mkdir(parents=True, exist_ok=True)
        if self.link is not None:
            self.link.ask_for_stacks()
            for log in [*self.link.folder.glob("*.log")]:
                shutil.copy(log, kept)
        for side in (self.world.source, self.world.target):
            for log in side.cluster.folder.glob("node-*.log"):
                shutil.copy(log, kept / f"{side.cluster.folder.name}-{log.name}")
        # The logs of the partitions as well: kafka.tools.DumpLogSegments shows what became of a transaction.
        target = self.world.target.cluster
        for folder in target.folder.glob("node-*/*-[0-9]*"):
            if self.link is not None and folder.name.startswith((self.link.name, "__transaction_state")):
                shutil.copytree(folder, kept / "target" / folder.parent.name / folder.name)
        return kept

    def drop_link(self) -> None:
        """End the link's processes, and forget it."""
        if self.link is None:
            return
        self.link.end()
        moves.let_back(self.world.source)
        for side in (self.world.source, self.world.target):
            side.healthy(60)
        self.link.forget()
        self.link = None
        self._topics = []

    def _kinds(self, link: str, number: int) -> dict[str, SourceKind]:
        """The source topics of a round."""
        rng = random.Random(f"kinds {self.seed} {number}")
        return {f"{link}.t.{number}.{letter}": SourceKind.dealt(rng) for letter in "abcdef"[:TOPICS]}

    def _link(self, number: int) -> Link:
        if self.link is None:
            self._links += 1
            name = f"r{self.seed}x{self._links}"
            # It copies a topic as soon as it is there.
            for later in range(number, number + self.rounds_per_link):
                for topic, kind in self._kinds(name, later).items():
                    if kind.gaps:
                        kind.make(self.world.source.cluster, topic)
            # A destination that were compacted for a moment would be another log than its source.
            more = {"TOPIC_CONFIG_EXCLUDE": ",".join(COMPACTED)}
            more |= {} if self.broken is None else {"VERBATIM_BREAK": self.broken}
            named = random.Random(f"named {self.seed} {self._links}").random() < 0.5
            if self._with_pipeline:
                file = self.world.folder / f"{name}.pipeline.yaml"
                self.pipeline = pipelines.Changing(file)
                more["PIPELINE"] = str(file)
            self.link = self.world.link(name, self.light, named, **more)
            self.link.start()
        return self.link

    def _round(self, link: Link, number: int, steps: list[list[str]], result: Result, began: float) -> None:
        rng = random.Random(f"{self.seed} {number}")
        source, target = self.world.source.direct, self.world.target.direct
        for side in (self.world.source, self.world.target):
            if not side.healthy(90):
                raise TimeoutError("a cluster did not heal after the round before")
        last = (self._played + 1) % self.rounds_per_link == 0
        move = self.moves[self._links % len(self.moves)] if last and self.moves else ""
        kinds = self._kinds(link.name, number)
        topics = [*kinds]
        result.sources = [asdict(kind) for kind in kinds.values()]
        for topic, kind in kinds.items():
            if not kind.gaps:
                kind.make(self.world.source.cluster, topic)
        self._topics += topics
        loads = [
            Load(
                source,
                t,
                PARTITIONS,
                rng.randrange(2**31),
                PER_SECOND,
                Batches(kind.codec, kind.large, kind.tiny),
            )
            for t, kind in kinds.items()
        ]
        moving: groups.Groups | None = None
        try:
            if not wait_for(lambda: _there(link.tail.reached(), topics), STARTED_S * self.patience):
                raise TimeoutError(
                    f"nothing of the round's topics is delivered after {STARTED_S * self.patience:.0f} s"
                )
            link.start_offsets()
            moving = groups.Groups(source, groups.names(link.name), topics, rng.randrange(2**31))
            scene = Scene(self.world, link, topics, rng)
            with self.pipeline or contextlib.nullcontext():
                self._hurt(scene, steps, loads, result, began)
            wait_for(lambda: _written(loads) >= self.records, 120)
            if move == moves.FAILOVER:
                moves.cut_off(self.world.source)
                moves.stop_reading(link)
                time.sleep(moves.GONE_ON_S)
        finally:
            for load in loads:
                load.stop()
            committed = {} if moving is None else moving.stop()
        if move:
            moved = self._moved(move, scene, rng, result, began)
        for side in (self.world.source, self.world.target):
            if not side.healthy(90):
                raise TimeoutError("a cluster did not heal")
        if move == moves.FAILOVER:
            result.problems += moves.failover_problems(source, target, link.name, topics, committed, moved)
            result.groups = len(committed)
            result.records = sum(len(p) for t in topics for p in read_all(target, t))
            return
        self._drain(link, topics, result)
        known = pipelines.versions(target, link.name) if self.pipeline else None
        expecting = None if known is None else pipelines.Expecting(known)
        made = checker.as_they_are if expecting is None else expecting.made
        wanted = self._topics if last else topics
        elsewhere = checker.nowhere if expecting is None else expecting.elsewhere
        verdict = checker.check(source, target, link.name, wanted, made=made, elsewhere=elsewhere)
        result.problems += verdict.problems
        if expecting is not None:
            result.problems += expecting.wrong_letters(target, link.name, wanted)
            result.dead_letters = expecting.letters.total()
        # After a cutover nobody is there to mend them.
        within = 1.0 if move else GROUPS_S * self.patience
        result.problems += groups.problems(source, target, link.name, committed, within)
        result.groups = len(committed)
        result.records = sum(len(p) for t in topics for p in read_all(source, t))
        result.mappings, result.runs = verdict.mappings, verdict.runs
        result.pipelines = None if known is None else len(known)
        if move == moves.PROMOTE:
            result.problems += moves.promotion_problems(link, source, target, topics)

    def _hurt(
        self, scene: Scene, steps: list[list[str]], loads: list[Load], result: Result, began: float
    ) -> None:
        """One step after the other, under load."""
        for step in steps:
            time.sleep(scene.random.uniform(0, 1))
            result.faults += self._together(scene, step, began)
            # Now and then the next fault meets what has not got over the last one yet.
            if scene.random.random() < 0.7 and not scene.link.moves(WENT_ON_S * self.patience):
                raise TimeoutError(
                    f"delivery stood still for {WENT_ON_S * self.patience:.0f} s after {', '.join(step)}"
                )
            if _written(loads) >= self.records:
                # Enough; what still comes keeps faults from finding nothing to hurt.
                for load in loads:
                    load.per_second = PER_SECOND // 8

    def _drain(self, link: Link, topics: Sequence[str], result: Result) -> None:
        """Wait until all that was written is delivered."""
        source = self.world.source.direct
        drained = time.monotonic()
        ends = {(t, p): r[-1].offset + 1 for t in topics for p, r in enumerate(read_all(source, t)) if r}
        if not wait_for(lambda: moves.beyond(link.tail.reached(), ends), self.drained_s):
            now = link.tail.reached()
            behind = [
                f"{t}-{p} {now.get((t, p))} of {end}"
                for (t, p), end in ends.items()
                if now.get((t, p), -1) < end
            ]
            result.problems.append(f"not delivered within {self.drained_s:.0f} s: {', '.join(behind)}")
        else:
            result.drained_s = round(time.monotonic() - drained, 1)

    def _moved(
        self, move: str, scene: Scene, rng: random.Random, result: Result, began: float
    ) -> moves.Moved:
        """The link ends in this way, while a fault befalls it."""
        said: dict[str, Any] = {"name": f"move/{move}", "at_s": round(time.monotonic() - began, 1)}
        amid = rng.choice([name for name in moves.AMID[move] if name in self.faults])
        befalls = threading.Thread(
            target=lambda: result.faults.extend(self._together(scene, [amid], began)), daemon=True
        )
        befalls.start()
        moved = moves.run(scene.link, move, scene.topics[0])
        if moved.ok and move == moves.CUTOVER:
            scene.link.retire(OFFSETS, gently=False)
        befalls.join()
        said |= {"reached": True, "refused": moved.refused, "amid": amid}
        said["took_s"] = round(time.monotonic() - began - said["at_s"], 1)
        result.faults.append(said)
        if not moved.ok:
            raise RuntimeError(f"{move} said no: {moved.refused[-1]}")
        return moved

    def _together(self, scene: Scene, step: Iterable[str], began: float) -> list[dict[str, Any]]:
        """Bring the step's faults about, at the same time; what became of each."""
        told: list[dict[str, Any]] = []
        lock = threading.Lock()

        def bring_about(name: str, seed: int) -> None:
            said: dict[str, Any] = {"name": name, "at_s": round(time.monotonic() - began, 1)}
            own = Scene(scene.world, scene.link, scene.topics, random.Random(seed))
            try:
                said |= {"reached": True, **self.faults[name](own)}
            except NotReached as reason:
                said |= {"reached": False, "why": str(reason)}
            except Wrong as wrong:
                said |= {"reached": True, "wrong": str(wrong)}
            except Exception as error:  # noqa: BLE001 - a fault that fell over has not been brought about for certain
                said |= {"reached": False, "why": f"{type(error).__name__}: {error}"}
            said["took_s"] = round(time.monotonic() - began - said["at_s"], 1)
            with lock:
                told.append(said)

        threads = [
            threading.Thread(target=bring_about, args=(name, scene.random.randrange(2**31))) for name in step
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return told


def tree() -> str | None:
    """Of this tree, None where git does not know it."""
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or None


def _written(loads: Iterable[Load]) -> int:
    return sum(load.written for load in loads)


def _there(reached: Mapping[checker.Partition, int], topics: Sequence[str]) -> bool:
    if {topic for topic, _ in reached} >= set(topics):
        return True
    time.sleep(0.2)
    return False
