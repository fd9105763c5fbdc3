"""A trickle over very many partitions: latency, CPU and memory. Run: uv run python -m bench.trickle

Topics of ten partitions each, and in each partition so many records a second. What arrives is noted of the
first topics only: a client that reads ten thousand partitions would be what is measured.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import click

from bench import copiers, latency
from bench.clusters import Pair, two_brokers
from bench.copiers import Copier
from bench.paced import Paced
from bench.usage import Watch

PARTITIONS = 10
"""Of each topic."""
READ_TOPICS = 20
START_SHARE = 0.1
"""Of the load, until the first records are there: while a broker makes ten thousand partitions it takes
little else."""
INDEX_BYTES = 1 << 16
"""Of a segment's index, with both brokers. With Kafka's 10 MB a kernel that reads ahead reads megabytes of
each partition's index as it gets its first entry, which all of them do in the same minute here."""
_LINK = "trickle"


@click.command()
@click.option("--partitions", default=10_000, show_default=True, help="In all.")
@click.option("--rate", default=1.0, show_default=True, help="Records a second in each of them.")
@click.option("--seconds", default=60.0, show_default=True, help="How long is measured.")
@click.option("--warm", default=60.0, show_default=True, help="Seconds before that.")
@click.option("--copier", "name", type=click.Choice(copiers.NAMES), default=copiers.VERBATIM)
def main(partitions: int, rate: float, seconds: float, warm: float, name: str) -> None:
    """Start a copier, let records trickle, and say what they waited and what that took."""
    topics = [f"few-{i:04}" for i in range(max(1, partitions // PARTITIONS))]
    read = topics[:READ_TOPICS]
    in_all = rate * PARTITIONS * len(topics)
    with (
        tempfile.TemporaryDirectory(prefix="verbatim-bench-") as folder,
        two_brokers(Path(folder), properties={"log.index.size.max.bytes": INDEX_BYTES}) as pair,
    ):
        pair.source.create(topics, PARTITIONS)
        places = [PARTITIONS * len(topics), PARTITIONS * len(read)]
        # What the measuring clients and a broker take by themselves, as of a copy.
        bare = Paced(_made(folder, "bare"), pair.source, topics, PARTITIONS, pair.source, read)
        try:
            bare.start()
            bare.phase(in_all, warm, None)
            bare.settle()
            phase = bare.phase(in_all, latency.SETTLE_S + seconds / 2, None)
            bare.settle()
            _say(latency.BARE, latency.judged(phase, bare.arrivals(), *places))
        finally:
            bare.close()
        copies = [copiers.destination(_LINK, topic) for topic in read]
        # What the bare topic was given is copied too, and is not to be taken for what is measured.
        paced = Paced(
            _made(folder, "copy"), pair.source, topics, PARTITIONS, pair.target, copies, first=bare.made
        )
        try:
            with copiers.make(name, pair, _LINK, "few-.*", places[0]) as copier:
                _measured(pair, paced, copier, in_all, seconds, warm, places)
        finally:
            paced.close()


def _measured(
    pair: Pair, paced: Paced, copier: Copier, in_all: float, seconds: float, warm: float, places: list[int]
) -> None:
    began = time.monotonic()
    copier.start()
    paced.start()
    with paced.producing(in_all * START_SHARE):
        paced.wait_until(lambda: paced.arrived_ns() > 0, 900.0, copier)
        click.echo(f"the first records of each partition are there after {time.monotonic() - began:.0f} s")
    with paced.producing(in_all):
        paced.wait_until(paced.keeps_up, 300.0, copier)
        click.echo(f"in step after {time.monotonic() - began:.0f} s")
        time.sleep(warm)
    eldest = copier.pids() | {"source broker": pair.source.pid, "target broker": pair.target.pid}
    with Watch(eldest, pair.target.log_folder) as watch:
        phase = paced.phase(in_all, latency.SETTLE_S + seconds, copier)
        paced.settle()
    begin, end = phase.begin_ns / 1e9, phase.end_ns / 1e9
    cores = watch.cores(begin, end)
    own = sum(cores[who] for who in copier.pids())
    _say(copier.name, latency.judged(phase, paced.arrivals(), *places), own)
    for line in watch.lines(begin, end):
        click.echo(line)


def _say(name: str, found: dict[str, Any], cores: float = 0.0) -> None:
    click.echo(latency.line({"kind": "latency", "copier": name, "cores": cores, **found}))


def _made(folder: str, name: str) -> Path:
    made = Path(folder) / name
    made.mkdir()
    return made


if __name__ == "__main__":
    main()
