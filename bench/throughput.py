"""How fast a copier catches up with a full topic, and what each record costs. One round measures one copier
on one shape."""

from __future__ import annotations

import time
from typing import Any

from bench import copiers, page_cache
from bench.clusters import Pair, Visible
from bench.figures import steady
from bench.load import Backlog, Shape
from bench.usage import Watch, compiled_s, compilers
from common.errors import VerbatimError

_SAMPLE_S = 0.1
# What is visible is asked less often where that takes more than this share of a CPU: a thousand partitions,
# ten times a second, took half of one.
_ASKING = 0.1
_STABLE_S = 0.7
_START_S = 240.0
_COPY_S = 240.0
# What a copier does when it has just started is not what it does in the long run.
_SETTLE_S = 3.0
_WARM = 1.5
"""Copied before anything is counted, as a share of what is. Of 200 B MirrorMaker 2 copied 150,000 records/s
in its first ten seconds and 300,000 from then on, as its JVM has compiled what it does."""
_WARM_MOST = 3_000_000
BROKERS = ("source broker", "target broker")


def warm_records(full: Shape) -> int:
    """How many records of a shape a copier has copied before anything is counted, however slow it is;
    pure."""
    return min(_WARM_MOST, round(_WARM * full.records))


def measure(pair: Pair, name: str, link: str, shape: Shape, warm: int = 0) -> dict[str, Any]:
    """Give a running copier a full topic at once, and follow until all is copied; what was seen, as JSON. It
    has copied `warm` records before.

    Rates and CPU are those of the steady part (bench.figures). Raises VerbatimError when the copier ends or
    does not finish.
    """
    leftover = set(pair.source.topics())
    backlog = Backlog(pair.source, shape, f"{link}-backlog", warm)
    backlog.fill()
    with copiers.make(name, pair, link, backlog.pattern, shape.partitions) as copier:
        began = time.monotonic()
        copier.start()
        destinations = [copiers.destination(link, topic) for topic in backlog.topics]
        look = pair.target.visible(destinations, shape.partitions)
        brokers = pair.source.pid, pair.target.pid
        eldest = {**copier.pids(), **dict(zip(BROKERS, brokers, strict=True))}
        with Watch(eldest, pair.target.log_folder) as watch:
            ready = _follow(copier, look, backlog.first, _START_S)
            started_s = ready[-1][0] - began
            time.sleep(_SETTLE_S)
            if warm:
                base = look()
                backlog.warm()
                _follow(copier, look, base + warm, _COPY_S)
                time.sleep(_SETTLE_S)
            page_cache.fill(pair.folder / "page-cache", page_cache.free_bytes())
            base = look()
            compiled = compilers(*brokers)
            revealed = time.monotonic()
            backlog.reveal()
            curve = [
                (at, visible - base) for at, visible in _follow(copier, look, base + shape.records, _COPY_S)
            ]
            compiling_s = compiled_s(compiled, compilers(*brokers))
        pids = copier.pids()
    made = pair.target.topics()
    written = {topic: size for topic, size in watch.written().items() if topic in made}
    pair.target.delete(made)
    pair.source.delete(sorted(set(pair.source.topics()) - leftover))
    if name != copiers.FLOOR and curve[-1][1] <= shape.records:
        # Every transaction leaves a marker in each partition: without one this is not what it is taken for.
        raise VerbatimError(f"{name} left no transaction marker: it did not copy exactly once")
    part = steady(curve, shape.records)
    costs = {who: part.per_record(watch.cpu[who]) * 1e6 for who in eldest}
    return {
        "kind": "throughput",
        "copier": name,
        "shape": shape.name,
        "records": shape.records,
        "records_per_s": part.records_per_s,
        "mb_per_s": part.records_per_s * shape.size / 1e6,
        "cpu_us_per_record": sum(costs[who] for who in pids),
        "broker_cpu_us_per_record": sum(costs[who] for who in BROKERS),
        "cpu_us_per_record_by_process": costs,
        "brokers_compiling_cores": compiling_s / (curve[-1][0] - revealed),
        "peak_bytes": sum(watch.peak_bytes[who] for who in pids),
        "peak_bytes_by_process": {who: watch.peak_bytes[who] for who in pids},
        "written_bytes": sum(written.values()),
        "written_records": backlog.first + warm + shape.records,
        "written_bytes_destination": sum(written.get(topic, 0) for topic in destinations),
        "started_s": started_s,
        "steady_s": part.end_s - part.begin_s,
        "markers": curve[-1][1] - shape.records,
    }


def line(found: dict[str, Any]) -> str:
    """A result for whoever watches."""
    return (
        f"{found['shape']:<16} {found['copier']:<15} {found['records_per_s']:>9,.0f} records/s {found['cpu_us_per_record']:7.2f} us CPU"
        f" per record (brokers {found['broker_cpu_us_per_record']:.2f}, compiling {found['brokers_compiling_cores']:.2f} cores), steady for {found['steady_s']:.1f} s, started in"
        f" {found['started_s']:.1f} s, {found['peak_bytes'] >> 20} MiB, {found['written_bytes'] / found['written_records']:.0f} B written a record"
    )


def _follow(copier: copiers.Copier, look: Visible, wanted: int, within_s: float) -> list[tuple[float, float]]:
    """Offsets visible at the destination by time, from now until as many as wanted are there and nothing more
    comes."""
    curve: list[tuple[float, float]] = []
    deadline = time.monotonic() + within_s
    looked = 0.0
    while True:
        asked, busy = time.monotonic(), time.process_time()
        visible = look()
        answered, busy = time.monotonic(), time.process_time() - busy
        # The answer holds for some moment between question and answer.
        now = (asked + answered) / 2
        if not curve or visible != curve[-1][1]:
            if curve and looked > curve[-1][0]:
                # It stood still until the look before this one.
                curve.append((looked, curve[-1][1]))
            curve.append((now, visible))
        elif visible >= wanted and now - curve[-1][0] > _STABLE_S:
            return curve
        looked = now
        copier.check()
        if now > deadline:
            raise VerbatimError(
                f"{copier.name}: {visible:,} of {wanted:,} offsets within {within_s:.0f} s: "
                + " | ".join(a.log_tail() for a in copier.applications.values())
            )
        time.sleep(max(asked + _SAMPLE_S - answered, busy / _ASKING))
