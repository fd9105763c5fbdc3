"""Plays scenarios: chooses where a command is killed, runs it again until it is done, and writes down what
came of it. Which points there are is found by playing."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.faults.moves.scenarios import SCENARIOS
from tests.faults.moves.stage import Stage, World
from tests.faults.rounds.play import BAD, GOOD, NOT_REACHED, tree

TRIES = 8
AGAIN = 0.35
"""How often the next run of a command is killed, too."""
MOST_KILLS = 4
FIRST = 8
"""So many passages the shortest command has."""
GIVE_UP = 0.15
"""How often a command that was killed is given up, where that may be."""


@dataclass
class Result:
    """One line of the results file."""

    scenario: str
    seed: int
    number: int
    began: str = ""
    commit: str | None = None
    """Of the tree that was played, with a + where it had changes that were not committed."""
    offsets: bool = False
    """Whether `offsets` ran all the time."""
    point: str | None = None
    """Where the command was to be killed first: which command of the scenario's, the point, and which passage
    of it."""
    kills: list[str] = field(default_factory=list)
    given_up: bool = False
    refused: list[str] = field(default_factory=list)
    """What runs refused before one was done."""
    verdict: str = BAD
    problems: list[str] = field(default_factory=list)
    records: int = 0
    read: int = 0
    seconds: float = 0.0
    load: float = 0.0
    """The machine's load average over a minute, at the end."""
    broken: str | None = None
    """The breakage that production was run with."""

    def line(self) -> str:
        return json.dumps({k: v for k, v in asdict(self).items() if v is not None})


class Points:
    """Of each scenario, with and without `offsets`: the points that are known, and how often each was aimed
    at."""

    def __init__(self) -> None:
        self._aimed: defaultdict[tuple[str, bool], Counter[str]] = defaultdict(Counter)

    def seen(self, kind: tuple[str, bool], command: int, passed: Sequence[str]) -> None:
        for place in passed:
            self._aimed[kind].setdefault(f"{command} {place}", 0)

    def next(self, kind: tuple[str, bool], rng: random.Random) -> str:
        """One of those that were aimed at least; while none is known, any: the next run comes by all."""
        aimed = self._aimed[kind]
        if not aimed:
            return f"0 any {rng.randint(1, FIRST)}"
        least = min(aimed.values())
        point = rng.choice(sorted(name for name, count in aimed.items() if count == least))
        aimed[point] += 1
        return point

    def of(self, kind: tuple[str, bool], command: int) -> list[str]:
        return sorted(
            name.partition(" ")[2] for name in self._aimed[kind] if name.partition(" ")[0] == str(command)
        )

    def known(self) -> dict[tuple[str, bool], int]:
        return {kind: len(of) for kind, of in self._aimed.items()}


class Playing:
    """A scenario's command, killed and run again (scenarios.Play)."""

    def __init__(self, stage: Stage, points: Points, result: Result, rng: random.Random, once: bool) -> None:
        """`once`: it is killed no more than once, and never given up."""
        self.stage, self.points, self.result, self.random = stage, points, result, rng
        self._once = once
        self.passed: list[str] = []
        self._command = -1

    def __call__(self, *words: str, may_give_up: bool = False) -> dict[str, Any] | None:
        self._command += 1
        result, kind = self.result, (self.result.scenario, self.result.offsets)
        number, _, wish = (result.point or "").partition(" ")
        next_wish = wish if number == str(self._command) else None
        refused: list[str] = []
        for _ in range(TRIES):
            self.stage.before_command()
            ended = self.stage.command(*words, wish=next_wish)
            self.passed += ended.passed
            self.points.seen(kind, self._command, ended.passed)
            if ended.killed:
                result.kills.append(f"{self._command} {ended.passed[-1]}")
                if next_wish and next_wish.startswith("any "):
                    result.point = result.kills[-1]
                self.stage.problems += self.stage.writable(settled=False)
                if may_give_up and not self._once and self.random.random() < GIVE_UP:
                    result.given_up = True
                    return None
                again = self.random.random() < AGAIN and len(result.kills) < (1 if self._once else MOST_KILLS)
                next_wish = self.random.choice(self.points.of(kind, self._command)) if again else None
                continue
            if ended.code == 0:
                return ended.report
            next_wish = None
            why = f"{ended.code}: {ended.report.get('refused') or ended.said.strip()[-300:]}"
            refused.append(why)
            result.refused.append(f"{words[0]}: {why}"[:400])
            time.sleep(1)
        self.stage.problems.append(f"{words[0]} was refused for good: {refused[-1] if refused else 'killed'}")
        return None


class Player:
    """Plays one scenario after the other in a world. Of bad ones what the commands said is kept in `logs`."""

    def __init__(self, world: World, seed: int, logs: Path) -> None:
        self.world, self.seed, self.logs = world, seed, logs
        self.points = Points()
        self.commit = tree()

    def play(self, scenario: str, number: int, point: str | None = None) -> Result:
        """`point`: where it is killed, and nowhere else; None: first at one that was aimed at least."""
        rng = random.Random(f"{self.seed} {scenario} {number}")
        offsets = number % 2 == 1
        result = Result(scenario, self.seed, number, datetime.now(UTC).isoformat(timespec="seconds"))
        result.commit, result.offsets, result.broken = self.commit, offsets, self.world.broken
        result.point = point or self.points.next((scenario, offsets), rng)
        began = time.monotonic()
        name = f"k{self.seed}{''.join(c for c in scenario if c.isalpha())}{number}"
        of = SCENARIOS[scenario]
        stage = Stage(self.world, name, rng.randrange(2**31), offsets, dict(of.variables))
        try:
            stage.begin()
            of.drive(stage, Playing(stage, self.points, result, rng, point is not None))
        except Exception as error:  # noqa: BLE001 - what came of it is told, whatever it is
            stage.problems.append(f"{type(error).__name__}: {error}")
        finally:
            stage.close()
        result.problems = stage.problems
        result.records = sum(map(len, stage.history.written.values()))
        result.read = sum(map(len, stage.history.read.values()))
        result.verdict = BAD if result.problems else GOOD
        if not result.problems and result.point not in result.kills:
            result.verdict = NOT_REACHED
        result.seconds = round(time.monotonic() - began, 1)
        result.load = round(os.getloadavg()[0], 1)
        if result.verdict == BAD:
            shutil.copytree(stage.folder, self.logs / name, dirs_exist_ok=True)
        shutil.rmtree(stage.folder, ignore_errors=True)
        return result
