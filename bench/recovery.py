"""How long nothing arrives after a kill -9: an application dies with all its processes and the same instance is started at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from bench import copiers, paced
from bench.clusters import Pair
from bench.paced import Arrivals, Paced

RATE = 1_000
_WITHIN_S = 180.0
_SETTLE_S = 8.0


def measure(
    pair: Pair, name: str, link: str, repetitions: int, say: Callable[[str], None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Kill each application of a copier so often, at 1,000 records/s; (repetition, what was seen).

    The exact times are known at the end, when the reader has ended; meanwhile `say` gets a line for each kill.
    """
    topic = f"{link}-recovery"
    pair.source.create([topic], paced.PARTITIONS)
    copier = copiers.make(name, pair, link, topic, paced.PARTITIONS)
    kills: list[tuple[int, str, int]] = []
    with paced.through(pair, link, copier, topic) as run:
        with run.producing(RATE):
            time.sleep(_SETTLE_S)
            for repetition in range(repetitions):
                for application in copier.applications:
                    killed_ns = time.monotonic_ns()
                    copier.applications[application].kill()
                    copier.applications[application].start()
                    kills.append((repetition, application, killed_ns))
                    run.wait_until(partial(_newer_than, run, killed_ns), _WITHIN_S, copier)
                    say(
                        f"{name}: records again {(time.monotonic_ns() - killed_ns) / 1e9:.1f} s after a kill of the {application}"
                    )
                    run.wait_until(run.keeps_up, _WITHIN_S, copier)
                    time.sleep(_SETTLE_S)
        run.settle(60)
        produced = run.last
        arrivals = run.arrivals()
    numbers = [n for n in arrivals.numbers if produced.first <= n < produced.first + produced.sent]
    for repetition, application, killed_ns in kills:
        yield (
            repetition,
            {
                "kind": "recovery",
                "copier": name,
                "application": application,
                "next_record_s": next_record_s(killed_ns, arrivals),
                # Of the whole run: exactly once means none of either.
                "missing": produced.sent - len(set(numbers)),
                "repeated": len(numbers) - len(set(numbers)),
            },
        )


def _newer_than(run: Paced, since_ns: int) -> bool:
    return run.newest_ns() > since_ns


def next_record_s(killed_ns: int, arrivals: Arrivals) -> float:
    """From a kill to the arrival of the first record that was made after it; pure. Raises ValueError when none came."""
    first = min(
        arrived for made, arrived in zip(arrivals.made, arrivals.arrived, strict=True) if made > killed_ns
    )
    return (first - killed_ns) / 1e9


def line(found: dict[str, Any]) -> str:
    """A result for whoever watches."""
    return (
        f"{found['copier']:<15} kill -9 of the {found['application']}: next record after {found['next_record_s']:.1f} s"
        f" ({found['missing']} missing, {found['repeated']} repeated in the whole run)"
    )
