"""Exhaustive search at small scope, bounded in how often it departs from everybody taking turns.

The world: 2 source partitions of 3 records each (one before the applications start, two after both run), two instances of each
application, one staging partition. Undisturbed, every task runs in turn, up to its next call to the outside, and every request ends well.

A schedule departs from that in up to `crashes` places. What is enumerated, completely: for each scheduling step of the undisturbed
schedule up to the arrival of the last record, each of the DISTURBANCES befalls, right before this step, each application; with two
departures, the second one at each later step of the schedule that the first one leaves. After the last departure everybody takes turns
again until all has arrived. So, with one departure, every single crash point of each process is tried; with two, every pair.

What is not enumerated: other orders of the tasks between two departures than in turn (the seeded schedules draw those), and batches: what
waits on one wire arrives in batches whose size follows from the number of the step. States that were seen before are not cut off, since
production objects can't be compared; each schedule is run from its beginning. A `stride` takes only each n-th pair; so does the default
run, and of the single departures it takes a part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tests.simulation.scheduler import InTurn
from tests.simulation.world import World

NAMES = ("replicator", "deduplicator")


def _kill_lane(w: World, name: str) -> None:
    for query, lane in w.lanes_of(name):
        w.kill(query.attempts[lane].process)


def _kill_leader(w: World, name: str) -> None:
    """The driver that leads, with its lanes."""
    for instance in w.instances:
        if w.leaders.get(name) is instance.process:
            w.kill_driver(instance)


def _kill_driver_alone(w: World, name: str) -> None:
    """The driver dies, and its lanes live on for a while."""
    for instance in w.instances:
        if w.leaders.get(name) is instance.process:
            w.kill_driver(instance, executors_too=False)


def _lose_lane(w: World, name: str) -> None:
    """Spark runs the lane again, and the first goes on beside it."""
    for query, lane in w.lanes_of(name):
        if lane not in query.rows:
            w.zombies.append(query.lose(lane))


DISTURBANCES: tuple[Callable[[World, str], None], ...] = (
    _kill_lane,
    _kill_leader,
    _kill_driver_alone,
    _lose_lane,
)


def world() -> World:
    return World(InTurn(), partitions=2, records=1)


def run(departures: tuple[tuple[int, int, str], ...]) -> tuple[int, Counter[str]]:
    """Run a schedule; `departures` are (step, number of a disturbance, application). How many steps it took, and what it visited."""
    w = world()
    with w.living():
        w.start(*NAMES, *NAMES)
        todo = list(departures)
        more = True
        while more or not w.copied():
            if todo and w.scheduler.steps >= todo[0][0]:
                _, disturbance, name = todo.pop(0)
                DISTURBANCES[disturbance](w, name)
            if more and w.copied():
                more = False
                for partition in (0, 1):
                    w.produce(partition, 2)
            if w.scheduler.now > 4000.0 or not w.scheduler.step():
                raise AssertionError(f"stuck: {w.delivered}")
        steps = w.scheduler.steps
        w.settle()
    return steps, w.states


def one_departure() -> Iterator[tuple[tuple[int, int, str], ...]]:
    last, _ = run(())
    for step in range(1, last):
        for disturbance in range(len(DISTURBANCES)):
            for name in NAMES:
                yield ((step, disturbance, name),)


def pairs(stride: int = 1) -> Iterator[tuple[tuple[int, int, str], ...]]:
    """Each `stride`-th of all pairs of departures."""
    number = 0
    length = 0
    for (first,) in one_departure():
        # How long the schedule is that the first one leaves, is known only by running it: where none of its pairs is wanted, as before.
        if stride == 1 or (number + length * len(DISTURBANCES) * len(NAMES)) // stride > number // stride:
            length = run((first,))[0] - first[0]
        for step in range(first[0], first[0] + length):
            for disturbance in range(len(DISTURBANCES)):
                for name in NAMES:
                    number += 1
                    if number % stride == 0:
                        yield (first, (step, disturbance, name))
