"""How long a record takes from its producer to a read-committed reader at the other side, at several rates;
and the longest pause."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench import copiers, paced
from bench.clusters import Pair
from bench.figures import PERCENTILES, longest_gap, percentile
from bench.paced import Arrivals, Phase
from bench.usage import Watch

BARE = "bare topic"
"""No copier: what the measuring clients and a broker take by themselves."""

PAUSE_RATE = 1_000
SETTLE_S = 3.0
"""Of each phase the first seconds are not counted: the pace has just changed."""


def measure(
    pair: Pair, name: str, link: str, rates: Sequence[int], seconds: float, pause_s: float, warm_s: float
) -> Iterator[dict[str, Any]]:
    """One copier through all rates, then, if asked for, `pause_s` at 1,000 records/s to look for the longest
    pause. For `warm_s` before that nothing is counted: brokers and copiers compile what they are going to do,
    transactions above all."""
    topic = f"{link}-latency"
    pair.source.create([topic], paced.PARTITIONS)
    copier = copiers.make(name, pair, link, topic, paced.PARTITIONS, linger_ms=1)
    yield from _measure(pair, name, link, copier, topic, rates, seconds, pause_s, warm_s)


def measure_bare(pair: Pair, link: str, rates: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    """The same with nothing between producer and reader but a topic."""
    topic = f"{link}-latency"
    pair.target.create([topic], paced.PARTITIONS)
    yield from _measure(pair, BARE, link, None, topic, rates, seconds, 0.0, 0.0)


def _measure(
    pair: Pair,
    name: str,
    link: str,
    copier: copiers.Copier | None,
    topic: str,
    rates: Sequence[int],
    seconds: float,
    pause_s: float,
    warm_s: float,
) -> Iterator[dict[str, Any]]:
    phases: list[tuple[str, Phase]] = []
    with paced.through(pair, link, copier, topic) as run:
        if warm_s:
            run.phase(PAUSE_RATE, warm_s, copier)
            run.settle()
        with Watch(copier.pids() if copier else {}, pair.target.log_folder) as watch:
            for rate in rates:
                phases.append(("latency", run.phase(rate, SETTLE_S + seconds, copier)))
                run.settle()
            if pause_s:
                phases.append(("pause", run.phase(PAUSE_RATE, SETTLE_S + pause_s, copier)))
                run.settle()
            time.sleep(0.5)
        arrivals = run.arrivals()
    for kind, phase in phases:
        begin, end = phase.begin_ns / 1e9, phase.end_ns / 1e9
        cores = sum(watch.cores(begin, end).values())
        yield {"kind": kind, "copier": name, "cores": cores, **judged(phase, arrivals)}


def judged(phase: Phase, arrivals: Arrivals, partitions: int = 1, read: int = 1) -> dict[str, Any]:
    """What a phase's arrivals say, in ms and s; pure. `read`: of so many partitions, those that arrivals were
    noted of, the first ones."""
    counted_from = phase.begin_ns + round(SETTLE_S * 1e9)
    seen: set[int] = set()
    repeated = 0
    waits: list[float] = []
    times: list[float] = []
    for made, arrived, number in zip(arrivals.made, arrivals.arrived, arrivals.numbers, strict=True):
        if not phase.first <= number < phase.first + phase.sent:
            continue
        if number in seen:
            repeated += 1
            continue
        seen.add(number)
        if made >= counted_from:
            waits.append((arrived - made) / 1e6)
            times.append(arrived / 1e9)
    ordered = sorted(waits)
    return {
        "rate": phase.rate,
        "sent_per_s": phase.sent / ((phase.end_ns - phase.begin_ns) / 1e9),
        "seconds": (phase.end_ns - counted_from) / 1e9,
        "counted": len(waits),
        "missing": sum(n % partitions < read for n in range(phase.first, phase.first + phase.sent))
        - len(seen),
        "repeated": repeated,
        **{f"p{percent:g}_ms": percentile(ordered, percent) if ordered else None for percent in PERCENTILES},
        "longest_ms": ordered[-1] if ordered else None,
        "longest_pause_s": longest_gap(times) if len(times) > 1 else None,
        "latest_tick_ms": phase.latest_tick_ms,
    }


def line(found: dict[str, Any]) -> str:
    """A result for whoever watches."""
    if not found["counted"]:
        return f"{found['copier']:<15} {found['rate']:>7,.0f} records/s: nothing arrived"
    text = f"{found['copier']:<15} {found['rate']:>7,.0f} records/s"
    if found["kind"] == "pause":
        text += f" for {found['seconds']:.0f} s: longest pause {found['longest_pause_s']:.3f} s, longest wait {found['longest_ms']:.0f} ms;"
    waits = " / ".join(f"{found[f'p{percent:g}_ms']:.0f}" for percent in PERCENTILES)
    return (
        f"{text} p50/95/99/99.9 {waits} ms, {found['cores']:.2f} cores, sent {found['sent_per_s']:,.0f}/s (a tick was"
        f" {found['latest_tick_ms']:.0f} ms late at most), {found['missing']} missing, {found['repeated']} repeated"
    )
