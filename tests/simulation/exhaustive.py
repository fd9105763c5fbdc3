"""Exhaustive search at small scope, bounded in how often it departs from everybody taking turns.

The world: 2 source partitions of 3 records each (one before the applications start, two after both run), two instances of each
application, one staging partition. Undisturbed, every task runs in turn, up to its next call to the outside, and every request ends well.

A schedule departs from that in up to `crashes` places. What is enumerated, completely: for each scheduling step of the undisturbed
schedule up to the arrival of the last record, each of the DISTURBANCES befalls, right before this step, each application; with two
departures, the second one at each later step of the schedule that the first one leaves. After the last departure everybody takes turns
again until all has arrived. So, with one departure, every single crash point of each process is tried; with two, every pair. A step of
somebody else, whom the disturbance does not befall, is left out: a process that ends before it or after it has done the same until then, and
nobody else has seen of it any more. What comes over the wire is nobody's step, and never left out.

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

Actors = dict[int, str]
"""Step -> the process whose task moves there, "" for what happens by itself."""


def befalls(disturbance: int, name: str, actor: str) -> bool:
    """Whether it makes a difference that this disturbance of an application comes before a step of this actor, and not after it."""
    lanes_alone = DISTURBANCES[disturbance] in (_kill_lane, _lose_lane)
    return actor == "" or actor.startswith(f"{name} lane") or (actor == name and not lanes_alone)


def world() -> World:
    return World(InTurn(), partitions=2, records=1)


def run(departures: tuple[tuple[int, int, str], ...]) -> tuple[Actors, Counter[str]]:
    """Run a schedule; `departures` are (step, number of a disturbance, application). Who moved at which step, and what it visited."""
    w = world()
    actors: Actors = {}
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
            step = w.scheduler.steps
            if w.scheduler.now > 4000.0 or not w.scheduler.step():
                raise AssertionError(f"stuck: {w.delivered}")
            actors[step] = w.scheduler.moved
        w.settle()
    return actors, w.states


def one_departure() -> Iterator[tuple[tuple[int, int, str], ...]]:
    for departure in _departures(run(())[0], 1):
        yield (departure,)


def _departures(actors: Actors, first: int) -> Iterator[tuple[int, int, str]]:
    """All that make a difference, from step `first` on."""
    for step, actor in actors.items():
        if step >= first:
            for disturbance in range(len(DISTURBANCES)):
                for name in NAMES:
                    if befalls(disturbance, name, actor):
                        yield (step, disturbance, name)


def pairs(stride: int = 1) -> Iterator[tuple[tuple[int, int, str], ...]]:
    """Each `stride`-th of all pairs of departures."""
    number = 0
    length: int | None = None
    for (first,) in one_departure():
        # Which pairs a departure has is known only by running it: where none of them is wanted, it has as many as the one before.
        if length is None or (number + length) // stride > number // stride:
            seconds = list(_departures(run((first,))[0], first[0]))
            length = len(seconds)
            yield from ((first, second) for i, second in enumerate(seconds, number + 1) if i % stride == 0)
        number += length
