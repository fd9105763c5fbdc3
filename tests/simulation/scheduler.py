"""A deterministic scheduler: one task runs at a time, until its next call to the outside; then a chooser says
who goes on. Virtual clock.

Tasks are greenlets, so the code that they run needs no change: a blocking call switches to the scheduler.
Time stands still while anything can run, and jumps to the next time-out when nothing can. Knows nothing of
Kafka.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet


class Chooser(Protocol):
    """Decides what is left to chance."""

    def pick(self, n: int, what: str) -> int:
        """Which of n things that may all happen next."""

    def outcome(self, n: int, what: str) -> int:
        """How something ends: 0 is as it should be."""


class Seeded:
    """Everything by chance, reproducibly; `odds` is how often something ends otherwise than it should."""

    def __init__(self, seed: int, odds: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.odds = odds

    def pick(self, n: int, what: str) -> int:
        return int(self.random.random() * n)

    def outcome(self, n: int, what: str) -> int:
        if n < 2 or self.random.random() >= self.odds:
            return 0
        return 1 + int(self.random.random() * (n - 1))


class InTurn:
    """Everything as it should be, everybody in turn; but the `deviations`, decision number -> choice, are
    taken."""

    def __init__(self, deviations: dict[int, int] | None = None) -> None:
        self.deviations = deviations or {}
        self.sizes: list[tuple[int, str]] = []
        """What could have been chosen at each decision."""
        self._last = -1

    def pick(self, n: int, what: str) -> int:
        self._last += 1
        return self._decide(n, what, self._last % n)

    def outcome(self, n: int, what: str) -> int:
        return self._decide(n, what, 0)

    def _decide(self, n: int, what: str, default: int) -> int:
        number = len(self.sizes)
        self.sizes.append((n, what))
        return (default + self.deviations.get(number, 0)) % n


class Scripted(InTurn):
    """As it should be and in turn, but for the ends that a case wants: `script` has, by what ends, the ways
    of the next ones."""

    def __init__(self, **script: list[int]) -> None:
        super().__init__()
        self.script = script

    def outcome(self, n: int, what: str) -> int:
        ways = self.script.get(what)
        return ways.pop(0) if ways else 0


class Process:
    """What dies and stands still together: a driver, an executor."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.cut_off_until = 0.0
        """Until then it reaches no broker."""
        self.on_death: list[Callable[[], None]] = []
        self.producers: list[Any] = []
        """Those that append frames: for faults."""


class Task:
    """A thread of a process."""

    def __init__(self, scheduler: Scheduler, process: Process, name: str, run: Callable[[], None]) -> None:
        self.process = process
        self.name = name
        self.started = False
        self.done = False
        self.error: BaseException | None = None
        self.until: float | None = None
        """Blocked until then, or until `ready`; None: it can go on."""
        self.ready: Callable[[], bool] | None = None
        self._run = run
        self._greenlet = greenlet(self._main, parent=scheduler.hub)

    def _main(self) -> None:
        try:
            self._run()
        except GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001 - for whoever looks after this task
            self.error = error
        self.done = True

    def go_on(self) -> None:
        self.started = True
        self.until = self.ready = None
        self._greenlet.switch()

    # what a threading.Thread offers, as far as it is used

    def is_alive(self) -> bool:
        return not self.done and self.process.alive


class Scheduler:
    """`tasks` run and wait; `events` are what may happen by itself at any time: messages on the wire,
    answers."""

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser
        self.now = 1000.0
        self.steps = 0
        self.hub = getcurrent()
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.events: list[Callable[[], Callable[[], None] | None]] = []
        """Each gives what would happen now, or None."""
        self.before_step: Callable[[], None] = lambda: None
        self.somebody_ended = True
        self.moved = ""
        """The process whose task made the last step; "" where something happened by itself."""

    def spawn(self, process: Process, name: str, run: Callable[[], None]) -> Task:
        task = Task(self, process, name, run)
        self.tasks.append(task)
        return task

    # called by tasks

    def point(self) -> None:
        """Let anybody else go first. Ends a task whose process has died."""
        task = self.current
        assert task is not None, "only tasks wait"
        self.hub.switch()
        if not task.process.alive:
            raise GreenletExit

    def wait(self, timeout: float, ready: Callable[[], bool] | None = None) -> None:
        """Block until `ready` or for `timeout` seconds."""
        task = self.current
        assert task is not None, "only tasks wait"
        task.until, task.ready = self.now + max(timeout, 0.0), ready
        self.point()

    def sleep(self, seconds: float) -> None:
        self.wait(seconds)

    def monotonic(self) -> float:
        return self.now

    # called by whoever drives the simulation

    def run(self, until: Callable[[], bool], seconds: float, most_steps: int = 1_000_000) -> bool:
        """Run until something is true; False if it still is not after so much virtual time, or when nothing
        can ever happen."""
        end, last = self.now + seconds, self.steps + most_steps
        while not until():
            if self.now > end or self.steps >= last or not self.step():
                return False
        return True

    def step(self) -> bool:
        """One choice. False when nothing can happen any more."""
        self.before_step()
        now = self.now
        runnable: list[Task | Callable[[], None]] = []
        wake = None
        over = False
        for task in self.tasks:
            if task.done or not task.process.alive:
                over = True
                continue
            if task.process.paused:
                continue
            if task.until is None or task.until <= now or (task.ready is not None and task.ready()):
                runnable.append(task)
            elif wake is None or task.until < wake:
                wake = task.until
        if over:
            self.tasks = [t for t in self.tasks if not t.done and t.process.alive]
        for event in list(self.events):
            act = event()
            if act is not None:
                runnable.append(act)
        if not runnable:
            if wake is None:
                return False
            self.now = wake
            return True
        self.steps += 1
        self.moved = ""
        n = len(runnable)
        chosen = runnable[self.chooser.pick(n, "next") if n > 1 else 0]
        if isinstance(chosen, Task):
            self._go_on(chosen)
        else:
            chosen()
        return True

    def _go_on(self, task: Task) -> None:
        self.current = task
        self.moved = task.process.name
        try:
            task.go_on()
        finally:
            self.current = None
            self.somebody_ended |= task.done

    def close(self) -> None:
        """End all tasks."""
        for task in self.tasks:
            task.process.alive = False
        for task in self.tasks:
            if task.started and not task.done:
                self._go_on(task)
