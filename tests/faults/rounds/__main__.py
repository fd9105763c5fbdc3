"""The command that plays fault rounds: python -m tests.faults.rounds --rounds N --seed S [--results FILE]"""

from __future__ import annotations

import argparse
import fnmatch
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.faults.rounds.faults import deck
from tests.faults.rounds.play import BAD, NOT_REACHED, Player, deal
from tests.faults.rounds.world import World


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.rounds", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=10, help="how many (10)")
    add("--seed", type=int, default=1, help="decides which faults come when (1)")
    add(
        "--first",
        type=int,
        default=1,
        help="number of the first round: goes on with a seed where an earlier run stopped (1)",
    )
    add("--results", type=Path, help="append a line of JSON for each round to this file")
    add("--records", type=int, default=34_000, help="at least so many records a round (34000)")
    add("--minutes", type=float, default=float("inf"), help="begin no round after so many minutes")
    add(
        "--faults",
        default="*",
        help="only faults whose names match these patterns, comma-separated: broker/*,net/reset-*",
    )
    add(
        "--patience", type=float, default=1.0, help="multiplies the bounds on waiting, for a busy machine (1)"
    )
    add("--singly", action="store_true", help="one fault a round instead of three or more")
    add(
        "--moves",
        default=",cutover,failover,promote",
        help="the ways in which links end, one after the other: by a cutover, by a failover, going on after a topic was promoted, or just so (all)",
    )
    add("--long", action="store_true", help="also pauses of more than a minute")
    add(
        "--clocks",
        action="store_true",
        help="also brokers' clocks that jump by an hour (takes a C compiler)",
    )
    add(
        "--rounds-per-link", type=int, default=5, help="a new link and new processes after so many rounds (5)"
    )
    add(
        "--logs", type=Path, default=Path("fault-logs"), help="where logs of bad rounds are kept (fault-logs)"
    )
    add(
        "--light",
        action="store_true",
        help="lanes in processes of the applications' own instead of Spark: several times as many faults in an hour",
    )
    add(
        "--executors",
        action="store_true",
        help="lanes on the executors of a standalone cluster of two workers, which are killed too",
    )
    add(
        "--far-source",
        type=float,
        default=0.0,
        metavar="MS",
        help="round trip of the applications to the source's brokers, in ms (0)",
    )
    add(
        "--far-target",
        type=float,
        default=0.0,
        metavar="MS",
        help="the same to the target's brokers (0)",
    )
    add(
        "--pipeline",
        action="store_true",
        help="links have a pipeline, which is another one three times a minute; they end just so",
    )
    add("--keep-going", action="store_true", help="do not stop at the first bad round")
    add(
        "--break",
        dest="broken",
        help="run production broken in this way, to see a round notice (inside/sitecustomize.py)",
    )
    add("--list", action="store_true", help="print the faults' names and exit")
    return parser.parse_args()


def main() -> int:
    """0: every round is good. 1: one was bad. 3: none was bad, but some fault did not happen."""
    options = arguments()
    if options.light and options.executors:
        print("--light has no executors", file=sys.stderr)
        return 2
    faults = deck(options.long, options.light, options.clocks, options.executors)
    patterns = options.faults.split(",")
    names = [name for name in faults if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    if options.list:
        print(*names, sep="\n")
        return 0
    if not names:
        print(f"no fault matches {options.faults}", file=sys.stderr)
        return 2
    # The applications have sessions of their own, and would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.results is None:
        print("what comes of the rounds is kept nowhere: --results FILE", file=sys.stderr)
    began = time.monotonic()
    verdicts: Counter[str] = Counter()
    happened = records = 0
    folder = Path(tempfile.mkdtemp(prefix="verbatim-rounds-"))
    dealt = deal(options.seed, options.first + options.rounds - 1, names, options.singly)
    try:
        with World(
            folder, options.clocks, options.executors, (options.far_source, options.far_target)
        ) as world:
            player = Player(
                world,
                options.seed,
                faults,
                options.records,
                options.rounds_per_link,
                options.logs,
                options.broken,
                options.patience,
                options.light,
                moves=() if options.pipeline else options.moves.split(","),
                pipeline=options.pipeline,
            )
            try:
                for number in range(options.first, options.first + options.rounds):
                    if time.monotonic() - began > options.minutes * 60:
                        break
                    result = player.play(number, dealt[number - 1])
                    verdicts[result.verdict] += 1
                    happened += sum(f["reached"] for f in result.faults)
                    records += result.records
                    if options.results is not None:
                        with options.results.open("a") as file:
                            file.write(result.line() + "\n")
                    named = ", ".join(
                        f["name"] + ("" if f["reached"] else " (not reached)") for f in result.faults
                    )
                    print(
                        f"round {number}: {result.verdict}, {result.records} records, {result.seconds} s: {named}",
                        flush=True,
                    )
                    for problem in result.problems:
                        print(f"  {problem}", flush=True)
                    if result.verdict == BAD:
                        print(f"  logs: {options.logs / f'seed{options.seed}-round{number}'}", flush=True)
                        if not options.keep_going:
                            break
            finally:
                player.drop_link()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{dict(verdicts)}, {happened} faults, {records} records, {time.monotonic() - began:.0f} s")
    return 1 if verdicts[BAD] else 3 if verdicts[NOT_REACHED] else 0


if __name__ == "__main__":
    sys.exit(main())
