"""Plays moves that are killed: python -m tests.faults.moves --times N [--results FILE]"""

from __future__ import annotations

import argparse
import gc
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.faults.moves.breakages import BREAKAGES
from tests.faults.moves.play import Player
from tests.faults.moves.scenarios import SCENARIOS
from tests.faults.moves.stage import World
from tests.faults.rounds.play import BAD


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.moves", description=__doc__)
    add = parser.add_argument
    add("--times", type=int, default=50, help="how often each scenario is played (50)")
    add("--first", type=int, default=0, help="number of the first time (0)")
    add("--seed", type=int, default=1, help="decides which point comes when, and what befalls besides (1)")
    add("--scenario", action="append", choices=sorted(SCENARIOS), help="only this one; may be repeated")
    add("--results", type=Path, help="append a line of JSON for each to this file")
    add("--minutes", type=float, default=float("inf"), help="begin none after so many minutes")
    add("--logs", type=Path, default=Path("move-logs"), help="where what bad ones said is kept (move-logs)")
    add("--keep-going", action="store_true", help="do not stop at the first bad one")
    add(
        "--break",
        dest="broken",
        choices=sorted(BREAKAGES),
        help="run commands broken in this way, to see the oracle notice (breakages.py)",
    )
    return parser.parse_args()


def main() -> int:
    """0: none is bad. 1: one was."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.results is None:
        print("what comes of it is kept nowhere: --results FILE", file=sys.stderr)
    began = time.monotonic()
    verdicts = Counter[str]()
    folder = Path(tempfile.mkdtemp(prefix="verbatim-moves-"))
    try:
        with World(folder, options.broken) as world:
            player = Player(world, options.seed, options.logs)
            for number in range(options.first, options.first + options.times):
                for scenario in options.scenario or SCENARIOS:
                    if time.monotonic() - began > options.minutes * 60:
                        break
                    result = player.play(scenario, number)
                    # A lane in this process freezes what is there; clients that nobody holds go only so.
                    gc.unfreeze()
                    gc.collect()
                    verdicts[result.verdict] += 1
                    if options.results is not None:
                        with options.results.open("a") as file:
                            file.write(result.line() + "\n")
                    kills = ", ".join(result.kills) or "none"
                    print(
                        f"{scenario} {number}: {result.verdict}, {result.records} records, {result.seconds} s, kills: {kills}",
                        flush=True,
                    )
                    for problem in [*(f"refused: {why}" for why in result.refused), *result.problems]:
                        print(f"  {problem}", flush=True)
                    if result.verdict == BAD and not options.keep_going:
                        return 1
            for (scenario, offsets), count in sorted(player.points.known().items()):
                print(f"{scenario}{', with offsets' if offsets else ''}: {count} points")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{dict(verdicts)}, {time.monotonic() - began:.0f} s")
    return 1 if verdicts[BAD] else 0
