"""One sitting: what is measured in which order, on two brokers that stay up, and what is written down of
it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import copiers, latency, recovery, throughput, transforms
from bench.clusters import Pair
from bench.load import Shape
from common.errors import VerbatimError
from common.spark.jars import KAFKA

MAIN_SHAPES = (Shape(200, 6_000_000), Shape(1000, 2_000_000))
"""Measured with every copier. Some seconds of each: what 2,000,000 records of 200 B took was a second and a
half."""

SIDE_SHAPES = (
    Shape(100, 6_000_000),
    Shape(10_000, 250_000),
    Shape(100_000, 25_000),
    Shape(1000, 2_000_000, headers=True),
    Shape(1000, 1_500_000, fill="random"),
    Shape(200, 6_000_000, partitions=1),
    Shape(200, 6_000_000, partitions=16),
    # As Java's producers fill them by default.
    Shape(200, 6_000_000, batch_bytes=16 << 10),
    Shape(1000, 2_000_000, batch_bytes=16 << 10),
)
"""One property changed each; measured with Verbatim and the fastest of MirrorMaker 2's configurations."""

SCALE_SHAPES = (
    Shape(200, 6_000_000, partitions=10, topics=10),
    Shape(200, 6_000_000, partitions=10, topics=100),
    Shape(200, 60_000_000, long=True),
)
"""Of several topics, or very many records; measured with the same two."""

OTHER_SHAPES = (
    # For clusters that are far away.
    Shape(1000, 1_500_000, partitions=1),
    Shape(1000, 1_500_000, partitions=8),
    # As producers that do not wait for a batch make them.
    Shape(200, 600_000, batch_records=1),
    Shape(1000, 600_000, batch_records=1),
    Shape(500, 2_000_000, batch_records=10),
    # For stages of a pipeline, and transforms.
    Shape(1000, 1_000_000, fill="json"),
    # Of which each topic may be a link of its own.
    Shape(200, 3_000_000, partitions=1, topics=50),
    Shape(200, 12_000_000, partitions=1, topics=50, long=True),
)
"""Measured by name only, with the same two."""

SHAPES = MAIN_SHAPES + SIDE_SHAPES + SCALE_SHAPES
SIDE_COPIERS = (copiers.VERBATIM, "mm2-throughput")
SHARES = {
    "mm2-throughput": 0.4,
    "mm2-latency": 0.4,
    "mm2-defaults": 0.2,
    **dict.fromkeys(transforms.MIRROR_MAKER, 0.4),
}
"""Of a shape's records, for who is slower: what is measured is a rate, and some ten seconds of it are
enough."""

LATENCY_COPIERS = (copiers.VERBATIM, "mm2-latency")
RATES = (100, 1_000, 5_000, 20_000)
WARM_UP = Shape(1000, 1_000_000)
WARMING = (copiers.VERBATIM, "mm2-throughput")
"""Who copies it, in turn, before anything is counted. The floor does not warm the brokers up: what goes in
transactions cost them 8 us a record of 1 KB the first time and 4 to 5 the third."""
WARM_CORES, WARM_TURNS = 0.1, 10
"""Brokers are warm when their JVMs' compilers take less than this in each copy of a turn; turns at most. One
that has run for days compiles nothing. In the first two copies they took half a core, a quarter of what two
cores have for copier and brokers together."""


@dataclass(frozen=True)
class Scale:
    """How long a sitting takes. `chosen` copiers, if there are any, are all that is measured. `records`: the
    share of each shape's records. Seconds of each rate, minutes of looking for a pause, seconds before that
    which are not counted."""

    records: float = 1.0
    shapes: tuple[Shape, ...] = SHAPES
    chosen: tuple[str, ...] = ()
    main_copiers: tuple[str, ...] = copiers.PEERS
    rates: tuple[int, ...] = RATES
    rate_s: float = 10.0
    pause_minutes: float = 2.0
    warm_s: float = 60.0

    def copiers_of(self, shape: Shape) -> tuple[str, ...]:
        if self.chosen:
            return self.chosen
        if shape == MAIN_SHAPES[0] and self.main_copiers == copiers.PEERS:
            return (*self.main_copiers, *copiers.EXECUTORS)
        return self.main_copiers if shape in MAIN_SHAPES else SIDE_COPIERS


@dataclass
class Sitting:
    """Measures on a pair of brokers; `say` gets a line for each thing measured. What was measured lies in
    `results`, as JSON."""

    pair: Pair
    scale: Scale
    say: Callable[[str], None]
    results: list[dict[str, Any]] = field(default_factory=list)
    _links: Any = field(default_factory=lambda: itertools.count(1))

    def link(self) -> str:
        """A name that nothing in this sitting has had."""
        return f"bench{next(self._links)}"

    def warm_up(self) -> None:
        """Turns that are not counted, until the brokers' JVMs have compiled what they are going to do."""
        for _ in range(WARM_TURNS):
            compiling = 0.0
            for name in WARMING:
                found = throughput.measure(self.pair, name, self.link(), WARM_UP)
                self.say(f"warm-up, not counted: {throughput.line(found)}")
                compiling = max(compiling, found["brokers_compiling_cores"])
            if compiling < WARM_CORES:
                return

    def throughput(self, repetitions: int) -> None:
        """Every shape, its copiers in alternation."""
        for full in self.scale.shapes:
            for repetition in range(repetitions):
                for name in self.scale.copiers_of(full):
                    shape = full.times(self.scale.records * SHARES.get(name, 1.0))
                    with self._noted(f"throughput of {name}, {shape.name}"):
                        warm = throughput.warm_records(full.times(self.scale.records))
                        found = throughput.measure(self.pair, name, self.link(), shape, warm)
                        self._add(found, repetition, throughput.line)

    def latency(self, repetitions: int) -> None:
        """The bare topic first: what the measuring clients add themselves, and whether they keep up."""
        rates, rate_s = self.scale.rates, self.scale.rate_s
        for found in latency.measure_bare(self.pair, self.link(), rates, rate_s):
            self._add(found, 0, latency.line)
        for repetition in range(repetitions):
            for name in self.scale.chosen or LATENCY_COPIERS:
                pause_s = self.scale.pause_minutes * 60 if repetition == 0 else 0.0
                with self._noted(f"latency of {name}"):
                    warm_s = self.scale.warm_s
                    for found in latency.measure(
                        self.pair, name, self.link(), rates, rate_s, pause_s, warm_s
                    ):
                        self._add(found, repetition, latency.line)

    def recovery(self, repetitions: int) -> None:
        """Kills, each application of each copier as often as there are repetitions."""
        # The floor begins anew when it is started anew: it has nothing to recover.
        for name in (n for n in self.scale.chosen or LATENCY_COPIERS if n != copiers.FLOOR):
            with self._noted(f"recovery of {name}"):
                for repetition, found in recovery.measure(
                    self.pair, name, self.link(), repetitions, self.say
                ):
                    self._add(found, repetition, recovery.line)

    def _add(self, found: dict[str, Any], repetition: int, line: Callable[[dict[str, Any]], str]) -> None:
        self.results.append({**found, "repetition": repetition})
        self.say(line(found))

    @contextlib.contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        """A copier that fails is a result too, and no reason to throw an hour away."""
        try:
            yield
        except VerbatimError as error:
            self.results.append({"kind": "failure", "what": what, "error": str(error)[:300]})
            self.say(f"{what} FAILED: {error}")
            self.pair.target.delete(self.pair.target.topics())
            self.pair.source.delete(self.pair.source.topics())


def about_the_machine(command: Sequence[str]) -> dict[str, Any]:
    """What the figures depend on, and the command that made them."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": " ".join(command),
        "cpus": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        "kafka": KAFKA.rpartition(":")[2],
        "load_before": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    for row in Path("/proc/cpuinfo").read_text().splitlines():
        if row.startswith("model name"):
            return row.partition(":")[2].strip()
    return platform.machine()


def save(file: Path, about: dict[str, Any], results: list[dict[str, Any]], append: bool) -> None:
    """Write a file of sittings; `append` adds to those that it holds."""
    sittings = json.loads(file.read_text())["sittings"] if append and file.exists() else []
    sittings.append({**about, "results": results})
    temporary = file.with_name(file.name + ".tmp")
    temporary.write_text(json.dumps({"sittings": sittings}, indent=1) + "\n")
    temporary.replace(file)


def command_line(arguments: Sequence[str]) -> list[str]:
    """The command as it is told: without where it keeps its figures, which changes none."""
    told: list[str] = []
    skip = False
    for argument in arguments:
        if not skip and argument not in ("--output", "--append") and not argument.startswith("--output="):
            told.append(argument)
        skip = argument == "--output" and not skip
    return ["python", "-m", "bench", *told]
