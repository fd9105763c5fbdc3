"""How long nothing arrives after a kill -9: an application dies with all its processes and the same instance
is started at once."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench import copiers, paced
from bench.clusters import Pair
from bench.paced import Arrivals, Paced

RATE = 1_000
MORE_RATE, MORE_S = 50_000, 60.0
"""What Verbatim copies before it is killed again: neither its state nor a restart may grow with what has been
copied."""
_WITHIN_S = 180.0
_SETTLE_S = 8.0


def measure(
    pair: Pair, name: str, link: str, repetitions: int, say: Callable[[str], None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Kill each application of a copier so often, at 1,000 records/s; (repetition, what was seen).

    The exact times are known at the end, when the reader has ended; meanwhile `say` gets a line for each
    kill.
    """
    topic = f"{link}-recovery"
    pair.source.create([topic], paced.PARTITIONS)
    copier = copiers.make(name, pair, link, topic, paced.PARTITIONS)
    kills: list[dict[str, Any]] = []
    with paced.through(pair, link, copier, topic) as run:
        first = run.made
        for more in (False, True) if name == copiers.VERBATIM else (False,):
            if more:
                run.phase(MORE_RATE, MORE_S, copier)
                run.settle(_WITHIN_S)
            copied = run.made
            with run.producing(RATE):
                time.sleep(_SETTLE_S)
                for repetition, application in itertools.product(range(repetitions), copier.applications):
                    size = _bytes(pair.folder / link / "state" / link / "state")
                    killed_ns = _kill(run, copier, application, say)
                    kills.append(
                        {
                            "repetition": repetition,
                            "application": application,
                            "killed_ns": killed_ns,
                            "more": more,
                            "copied": copied,
                            "state_bytes": size,
                        }
                    )
        run.settle(_WITHIN_S)
        produced = run.made
        arrivals = run.arrivals()
    numbers = [n for n in arrivals.numbers if first <= n < produced]
    for kill in kills:
        killed_ns = kill.pop("killed_ns")
        yield (
            kill.pop("repetition"),
            {
                "kind": "recovery",
                "copier": name,
                "next_record_s": next_record_s(killed_ns, arrivals),
                "every_partition_s": every_partition_s(killed_ns, arrivals),
                # Of the whole run: exactly once means none of either.
                "missing": produced - first - len(set(numbers)),
                "repeated": len(numbers) - len(set(numbers)),
                **kill,
            },
        )


def _kill(run: Paced, copier: copiers.Copier, application: str, say: Callable[[str], None]) -> int:
    """Kill an application, start it at once and wait until it has caught up; when it was dead (ns)."""
    copier.applications[application].kill()
    # Not before: it takes a moment, in which records are still copied.
    killed_ns = time.monotonic_ns()
    copier.applications[application].start()
    run.wait_until(partial(_newer_than, run, killed_ns), _WITHIN_S, copier)
    again_s = (time.monotonic_ns() - killed_ns) / 1e9
    say(f"{copier.name}: records in every partition again {again_s:.1f} s after a kill of the {application}")
    run.wait_until(run.keeps_up, _WITHIN_S, copier)
    time.sleep(_SETTLE_S)
    return killed_ns


def _bytes(folder: Path) -> int:
    """What the files of a table take; 0 without one."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total


def _newer_than(run: Paced, since_ns: int) -> bool:
    return run.arrived_ns() > since_ns


def next_record_s(killed_ns: int, arrivals: Arrivals) -> float:
    """From a kill to the arrival of the first record that was made after it; pure. Raises ValueError when
    none came."""
    return (min(_firsts(killed_ns, arrivals).values()) - killed_ns) / 1e9


def every_partition_s(killed_ns: int, arrivals: Arrivals) -> float:
    """The same until every partition has had one; pure. A dead writer's open transaction may keep one from
    being read for longer than others."""
    return (max(_firsts(killed_ns, arrivals).values()) - killed_ns) / 1e9


def _firsts(killed_ns: int, arrivals: Arrivals) -> dict[int, int]:
    """Partition -> when the first record arrived that was made after a kill (ns)."""
    firsts: dict[int, int] = {}
    for made, arrived, number in zip(arrivals.made, arrivals.arrived, arrivals.numbers, strict=True):
        if made > killed_ns:
            partition = number % paced.PARTITIONS
            firsts[partition] = min(arrived, firsts.get(partition, arrived))
    return firsts


def line(found: dict[str, Any]) -> str:
    """A result for whoever watches."""
    return (
        f"{found['copier']:<15} kill -9 of the {found['application']} after {found['copied']:,} records (state table of"
        f" {found['state_bytes'] >> 10} KiB): next record after {found['next_record_s']:.1f} s, in every partition after {found['every_partition_s']:.1f} s"
        f" ({found['missing']} missing, {found['repeated']} repeated in the whole run)"
    )
