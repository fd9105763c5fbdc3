"""How fast a copier catches up with a full topic, and what each record costs. One round measures one copier on one shape."""

from __future__ import annotations

import time
from typing import Any

from bench import copiers
from bench.clusters import Pair
from bench.figures import steady
from bench.load import Shape
from bench.usage import Watch
from common.errors import VerbatimError

_SAMPLE_S = 0.1
_STABLE_S = 0.7
BROKERS = ("source broker", "target broker")


def measure(pair: Pair, name: str, link: str, shape: Shape, timeout_s: float = 240) -> dict[str, Any]:
    """Copy the whole topic, already filled, with a copier that is new to it; what was seen, as JSON.

    Rates and CPU are those of the steady part (bench.figures). Raises VerbatimError when the copier ends or does not finish.
    """
    leftover = set(pair.source.topics())
    with copiers.make(name, pair, link, shape.topic, shape.partitions) as copier:
        began = time.monotonic()
        copier.start()
        eldest = {**copier.pids(), **dict(zip(BROKERS, (pair.source.pid, pair.target.pid), strict=True))}
        with Watch(eldest, pair.target.log_folder) as watch:
            curve = _follow(pair, copier, shape, began + timeout_s)
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
        "peak_bytes": sum(watch.peak_bytes[who] for who in pids),
        "peak_bytes_by_process": {who: watch.peak_bytes[who] for who in pids},
        "written_bytes": sum(written.values()),
        "written_bytes_destination": written.get(copier.destination, 0),
        "first_record_s": next(at for at, visible in curve if visible) - began,
        "steady_s": part.end_s - part.begin_s,
        "markers": curve[-1][1] - shape.records,
    }


def line(found: dict[str, Any]) -> str:
    """A result for whoever watches."""
    return (
        f"{found['shape']:<16} {found['copier']:<15} {found['records_per_s']:>9,.0f} records/s {found['cpu_us_per_record']:7.2f} us CPU"
        f" per record (brokers {found['broker_cpu_us_per_record']:.2f}), steady for {found['steady_s']:.1f} s, first record after"
        f" {found['first_record_s']:.1f} s, {found['peak_bytes'] >> 20} MiB, {found['written_bytes'] / found['records']:.0f} B written a record"
    )


def _follow(pair: Pair, copier: copiers.Copier, shape: Shape, deadline: float) -> list[tuple[float, float]]:
    """Offsets visible at the destination by time, until all records are there and nothing more comes."""
    curve: list[tuple[float, float]] = []
    look = pair.target.visible(copier.destination, shape.partitions)
    while True:
        asked = time.monotonic()
        visible = look()
        # The answer holds for some moment between question and answer.
        now = (asked + time.monotonic()) / 2
        if not curve or visible != curve[-1][1]:
            if len(curve) > 1 and now - curve[-1][0] > 2 * _SAMPLE_S:
                # It stood still until the sample before this one.
                curve.append((now - _SAMPLE_S, curve[-1][1]))
            curve.append((now, visible))
        elif visible >= shape.records and now - curve[-1][0] > _STABLE_S:
            return curve
        copier.check()
        if now > deadline:
            raise VerbatimError(
                f"{copier.name}: {visible:,} of {shape.records:,} records in time: "
                + " | ".join(a.log_tail(5) for a in copier.applications.values())
            )
        time.sleep(max(0.0, asked + _SAMPLE_S - time.monotonic()))
