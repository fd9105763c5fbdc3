"""Records at a pace through a copier, and their arrivals: runs the programs of bench.probe. Judges
nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.clusters import Broker, Pair
from bench.copiers import Copier
from common.errors import VerbatimError
from verbatim.local.applications import Application

PARTITIONS = 4
SIZE = 200
_FIRST_ARRIVAL_S = 240.0
_LOOK_S = 0.05
_WARM_S = 5.0
_LATELY_NS = 3_000_000_000


@dataclass(frozen=True)
class Phase:
    """Records that a producer made between two moments (ns of the monotonic clock), numbered from `first`."""

    rate: float
    begin_ns: int
    end_ns: int
    first: int
    sent: int
    latest_tick_ms: float


@dataclass(frozen=True)
class Arrivals:
    """Every record that arrived, in the order of arrival: when it was made and when it came, in ns, and its
    number."""

    made: array[int]
    arrived: array[int]
    numbers: array[int]


class Paced:
    """Topics of so many partitions each, a reader of copies, and producers one after the other."""

    def __init__(
        self,
        folder: Path,
        source: Broker,
        topics: Sequence[str],
        partitions: int,
        reader: Broker,
        copies: Sequence[str],
        first: int = 0,
    ) -> None:
        """`first`: the number of the first record."""
        self._folder = folder
        self._source, self._topics, self._partitions = source, topics, partitions
        self._runs = itertools.count(1)
        self._numbers = first
        self._file = folder / "arrivals"
        self._newest = folder / "arrivals.newest"
        self._producer: Application | None = None
        self._reader = self._program(
            "read", "read", reader.bootstrap_servers, ",".join(copies), str(self._file)
        )

    def start(self) -> None:
        self._reader.start()

    @property
    def made(self) -> int:
        """The number of the next record: how many the producers that have ended made, where they began at
        0."""
        return self._numbers

    def arrived_ns(self) -> int:
        """When the newest record was made that has arrived from the partition that is furthest behind; 0
        before the first of every partition.

        A partition whose reader waits for the end of a dead writer's transaction stands still for a minute,
        while the others go on.
        """
        newest = array("q")
        with contextlib.suppress(OSError):
            newest.frombytes(self._newest.read_bytes())
        return min(newest, default=0)

    def wait_for_first(self, copier: Copier | None) -> None:
        """A trickle until records arrive, at once, for some seconds. Raises VerbatimError when they don't."""
        with self.producing(100):
            self.wait_until(lambda: self.arrived_ns() > 0, _FIRST_ARRIVAL_S, copier)
            self.wait_until(self.keeps_up, _FIRST_ARRIVAL_S, copier)
            time.sleep(_WARM_S)
            self.wait_until(self.keeps_up, _FIRST_ARRIVAL_S, copier)

    def keeps_up(self) -> bool:
        """Whether what was made lately has arrived, in every partition."""
        return time.monotonic_ns() - self.arrived_ns() < _LATELY_NS

    def wait_until(self, reached: Callable[[], bool], within_s: float, copier: Copier | None) -> None:
        """Raises VerbatimError when it takes too long, or something has ended."""
        give_up = time.monotonic() + within_s
        while not reached():
            if copier is not None:
                copier.check()
            for who, program in (("reader", self._reader), ("producer", self._producer)):
                if program is not None and program.ended() is not None:
                    raise VerbatimError(f"the {who} ended: {program.log_tail()}")
            if time.monotonic() > give_up:
                raise VerbatimError(
                    f"{copier.name if copier else 'bare topic'}: nothing arrived within {within_s:.0f} s: "
                    + " | ".join(a.log_tail() for a in (copier.applications.values() if copier else ()))
                )
            time.sleep(_LOOK_S)

    @contextlib.contextmanager
    def producing(self, rate: float, seconds: float = 3600) -> Iterator[Application]:
        """A producer at this rate, stopped at the end of the `with`."""
        run = next(self._runs)
        file = self._folder / f"produced{run}"
        names = ",".join(self._topics)
        arguments = [names, self._partitions, rate, seconds, SIZE, self._numbers, file]
        producer = self._producer = self._program(
            f"produce{run}", "produce", self._source.bootstrap_servers, *map(str, arguments)
        )
        producer.start()
        try:
            yield producer
        finally:
            self._producer = None
            producer.stop()
        if not file.exists():
            raise VerbatimError(f"the producer ended: {producer.log_tail()}")
        found = json.loads(file.read_text())
        self.last = Phase(rate, first=self._numbers, **found)
        self._numbers += self.last.sent

    def phase(self, rate: float, seconds: float, copier: Copier | None) -> Phase:
        """Produce for so long."""
        with self.producing(rate, seconds) as producer:
            give_up = time.monotonic() + 2 * seconds + 30
            while producer.ended() is None and time.monotonic() < give_up:
                if copier is not None:
                    copier.check()
                time.sleep(_LOOK_S)
        return self.last

    def settle(self, within_s: float = 20.0) -> None:
        """Wait until what was made has arrived, or nothing more comes."""
        give_up = time.monotonic() + within_s
        while self.arrived_ns() < self.last.end_ns - 100_000_000 and time.monotonic() < give_up:
            time.sleep(_LOOK_S)
        time.sleep(0.5)

    def arrivals(self) -> Arrivals:
        """End the reader and read what it noted."""
        self._reader.stop()
        data = array("q")
        data.frombytes(self._file.read_bytes())
        third = len(data) // 3
        return Arrivals(data[:third], data[third : 2 * third], data[2 * third :])

    def close(self) -> None:
        self._reader.kill()

    def _program(self, name: str, *arguments: str) -> Application:
        # -P: or modules of this folder would be taken for the standard library's.
        command = [sys.executable, "-P", str(Path(__file__).with_name("probe.py")), *arguments]
        return Application(name, {}, self._folder, command)


@contextlib.contextmanager
def through(pair: Pair, link: str, copier: Copier | None, topic: str) -> Iterator[Paced]:
    """A running copier (None: the topic itself, on the target) with records arriving. Topics are deleted at
    the end."""
    folder = pair.folder / f"{link}-paced"
    folder.mkdir()
    before = set(pair.source.topics()) - {topic}
    source = pair.source if copier else pair.target
    copy = copier.destination if copier else topic
    paced = Paced(folder, source, [topic], PARTITIONS, pair.target, [copy])
    try:
        with copier or contextlib.nullcontext():
            if copier is not None:
                copier.start()
            paced.start()
            paced.wait_for_first(copier)
            yield paced
    finally:
        paced.close()
        pair.target.delete(pair.target.topics())
        pair.source.delete(sorted(set(pair.source.topics()) - before))
