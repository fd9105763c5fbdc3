"""Runs more of the simulation than the tests do: `python -m tests.simulation --help`."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from tests.simulation import exhaustive, mutants
from tests.simulation.schedules import by_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=0, metavar="N", help="run N seeded schedules")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="the first one's number; the others follow"
    )
    parser.add_argument("--merged", action="store_true", help="schedules of two sources in one destination")
    parser.add_argument(
        "--names", action="store_true", help="schedules in which topics are asked for by name"
    )
    parser.add_argument("--routes", action="store_true", help="schedules in which it takes records elsewhere")
    parser.add_argument("--pipelines", action="store_true", help="schedules in which the pipeline changes")
    parser.add_argument(
        "--promotions", action="store_true", help="schedules in which topics are promoted and given back"
    )
    parser.add_argument(
        "--exhaustive", type=int, choices=[1, 2], help="every departure, or every pair of departures"
    )
    parser.add_argument("--workers", type=int, default=1, metavar="W", help="in so many processes")
    parser.add_argument("--stride", type=int, default=1, metavar="K", help="only each K-th of them")
    parser.add_argument(
        "--mutants", action="store_true", help="look for what notices each mutant, and write the table"
    )
    parser.add_argument("--log", action="store_true", help="show what production code logs")
    args = parser.parse_args()
    if args.log:
        logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(message)s")
    else:
        logging.disable(logging.CRITICAL)
    failures = 0
    if args.schedules:
        failures += _all(
            "schedule",
            range(args.seed, args.seed + args.schedules),
            partial(
                by_seed,
                merged=args.merged,
                names=args.names,
                pipelines=args.pipelines,
                routes=args.routes,
                promotions=args.promotions,
            ),
            args.workers,
        )
    if args.exhaustive == 1:
        chosen = list(exhaustive.one_departure())[:: args.stride]
        failures += _all("departure", chosen, _departures, args.workers)
    if args.exhaustive == 2:
        failures += _all("departures", list(exhaustive.pairs(args.stride)), _departures, args.workers)
    if args.mutants:
        failures += _mutants()
    return 1 if failures else 0


Outcome = tuple[Any, Counter[str], str]
"""What was run, what it visited, what was wrong."""


def _all(what: str, which: Iterable[Any], run: Callable[[Any], Counter[str]], workers: int) -> int:
    began, failures = time.monotonic(), 0
    visited: Counter[str] = Counter()
    done = 0
    # What a world leaves behind is not all given back: after some thousand, another process.
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=50) as pool:
        for done, (one, states, wrong) in enumerate(pool.imap_unordered(partial(_one, run), which, 20), 1):
            visited.update(states)
            if wrong:
                failures += 1
                print(f"{what} {one}: {wrong}", flush=True)
            if done % 1000 == 0:
                print(f"{done} run, {failures} wrong, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{done} run, {failures} wrong, {time.monotonic() - began:.0f} s")
    for state, times in sorted(visited.items()):
        print(f"  {times:8}  {state}")
    return failures


def _one(run: Callable[[Any], Counter[str]], one: Any) -> Outcome:
    try:
        return one, run(one), ""
    except Exception as error:  # noqa: BLE001 - it is counted, and the others are run
        return one, Counter(), f"{type(error).__name__}: {error}"


def _departures(departures: tuple[exhaustive.Departure, ...]) -> Counter[str]:
    return exhaustive.run(departures)[1]


def _mutants() -> int:
    survivors = 0
    for mutant in mutants.MUTANTS:
        by = mutants.hunt(mutant, range(1000))
        survivors += by is None
        known = "" if by == mutant.killed_by else f" (not by {mutant.killed_by})"
        print(f"{'SURVIVES' if by is None else 'noticed'}: {mutant.name}: {by}{known}", flush=True)
    readme = Path(__file__).parent / "README.md"
    head, _, rest = readme.read_text().partition("| careless version |")
    _, _, tail = rest.partition("\n\n")
    readme.write_text(f"{head}{mutants.table()}\n\n{tail}")
    return survivors


if __name__ == "__main__":
    sys.exit(main())
