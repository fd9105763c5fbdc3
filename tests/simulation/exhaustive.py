"""Exhaustive search at small scope, bounded in how often it departs from everybody taking turns.

The world: 2 source partitions of 3 records each (one before the applications start, two after both run), two
instances of each application, one staging partition. Undisturbed, every task runs in turn, up to its next
call to the outside, and every request ends well.

A schedule departs from that in up to `crashes` places. What is enumerated, completely: for each scheduling
step of the undisturbed schedule up to the arrival of the last record, each of the DISTURBANCES befalls, right
before this step, each application; with two departures, the second one at each later step of the schedule
that the first one leaves. After the last departure everybody takes turns again until all has arrived. So,
with one departure, every single crash point of each process is tried; with two, every pair.

Two points of a process between which nothing of what it does is seen outside of it are one: it has left the
same behind, wherever it ends between them. So a step of somebody else, whom the disturbance does not befall,
is left out, and so is a step after one that changed nothing `outside`: no log, transaction, group offset or
topic, nor the table, the election, what Spark runs, or what is on the wire. An answer that arrives changes
nothing but the process that asked; a batch that arrives is its sender's step.

What is not enumerated: other orders of the tasks between two departures than in turn (the seeded schedules
draw those), and batches: what waits on one wire arrives in batches whose size follows from the number of the
step. States that were seen before are not cut off, since production objects can't be compared; each schedule
is run from its beginning. A `stride` takes only each n-th pair; so does the default run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from tests.simulation.batches import BatchProducer
from tests.simulation.clients import Producer
from tests.simulation.faults import end_epoch
from tests.simulation.scheduler import Process, Scripted
from tests.simulation.world import World

NAMES = ("replicator", "deduplicator")
STILL_S = 300.0


def _kill_lane(w: World, name: str) -> None:
    for query, lane in w.lanes_of(name):
        w.kill(query.attempts[lane].process)


def _kill_leader(w: World, name: str) -> None:
    """The driver that leads, with its lanes."""
    if (leader := w.leading(name)) is not None:
        w.kill_driver(leader)


def _kill_driver_alone(w: World, name: str) -> None:
    """The driver dies, and its lanes live on for a while."""
    if (leader := w.leading(name)) is not None:
        w.kill_driver(leader, executors_too=False)


def _lose_lane(w: World, name: str) -> list[Process]:
    """Spark runs the lane again, and the first goes on beside it."""
    lost = [query.lose(lane) for query, lane in w.lanes_of(name) if lane not in query.rows]
    w.zombies += lost
    return lost


def _lose_lane_that_stands_still(w: World, name: str) -> None:
    """The same, but the first stands still until more comes to the source."""
    for process in _lose_lane(w, name):
        process.paused = True


def _pause_leader(w: World, name: str) -> None:
    """The driver that leads stands still until more comes to the source; where nobody else copies what is
    there, for STILL_S."""
    if name in w.leaders:
        w.leaders[name].paused = True


def _end_epoch(w: World, name: str) -> None:
    """The driver that leads wants its lanes to end, and starts them again; it is time for them to look
    whether it does."""
    if end_epoch(w, name):
        w.scheduler.now += 5.0


def _go_on(w: World) -> None:
    for process in [*w.zombies, *(instance.process for instance in w.instances)]:
        process.paused = False


def _nothing(w: World, name: str) -> None:
    pass


@dataclass(frozen=True)
class Disturbance:
    """What befalls an application: before it does, how requests end from then on (Scripted) is set to
    `ends`."""

    befall: Callable[[World, str], object]
    lanes_alone: bool = False
    ends: dict[str, list[int]] = field(default_factory=dict)
    of: str = ""
    """Where it is the end of a request: which one. It befalls who makes it."""

    def concerns(self, process: str, name: str) -> bool:
        """Whether a process is among those that it befalls when it befalls this application."""
        return process.startswith(f"{name} lane") or (process == name and not self.lanes_alone)


_ARRIVES = {"what was sent": [1] * 9}
_LATER = {**_ARRIVES, "delay": [3] * 9}

DISTURBANCES = (
    Disturbance(_kill_lane, lanes_alone=True),
    Disturbance(_kill_leader),
    Disturbance(_kill_driver_alone),
    Disturbance(_lose_lane, lanes_alone=True),
    # What was on the wire arrives all the same: at once, or ten seconds later.
    Disturbance(_kill_lane, lanes_alone=True, ends=_ARRIVES),
    Disturbance(_kill_lane, lanes_alone=True, ends=_LATER),
    Disturbance(_kill_leader, ends=_ARRIVES),
    Disturbance(_kill_leader, ends=_LATER),
    Disturbance(_lose_lane_that_stands_still, lanes_alone=True),
    Disturbance(_pause_leader),
    Disturbance(_end_epoch),
    # Answered slowly; the answer is lost; late, by ten or a hundred seconds; lost.
    Disturbance(_nothing, of="EndTxn", ends={"EndTxn": [1]}),
    Disturbance(_nothing, of="EndTxn", ends={"EndTxn": [2]}),
    Disturbance(_nothing, of="EndTxn", ends={"EndTxn": [3], "delay": [3]}),
    Disturbance(_nothing, of="EndTxn", ends={"EndTxn": [3], "delay": [4]}),
    Disturbance(_nothing, of="EndTxn", ends={"EndTxn": [4]}),
    # The answer is lost; the request is.
    Disturbance(_nothing, of="InitProducerId", ends={"InitProducerId": [1]}),
    Disturbance(_nothing, of="InitProducerId", ends={"InitProducerId": [2]}),
)

Departure = tuple[int, int, str]
"""Step, number of a disturbance, application."""


@dataclass(frozen=True)
class Move:
    """A step: the process that moves ("" if none does), what requests it ended, whether it is seen outside,
    what is on the wire then."""

    actor: str
    ended: tuple[str, ...]
    seen: bool
    sent: Collection[str]
    """By whom."""

    def befallen(self, disturbance: Disturbance, name: str) -> bool:
        """Whether it makes a difference that this disturbance of an application comes before this step, and
        not after it."""
        concerned = disturbance.concerns(self.actor, name)
        if disturbance.of:
            return disturbance.of in self.ended and concerned
        return self.actor == "" or concerned


class Watched(Scripted):
    """Tells what requests have ended since it was last asked."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []

    def outcome(self, n: int, what: str) -> int:
        self.ended.append(what)
        return super().outcome(n, what)


def outside(w: World) -> tuple[object, dict[str, int]]:
    """All that a process can change and that outlives it, equal if nothing has changed; and how many records
    are on the wire, by the process that sent them."""
    clusters = [
        (
            [
                (
                    topic,
                    [(log.start, log.end, log.high, log.leader_epoch, len(log.open)) for log in topic.logs],
                )
                for topic in cluster.topics.values()
            ],
            [
                (
                    known.epoch,
                    known.ended,
                    txn,
                    txn and (txn.state, len(txn.logs), len(txn.unmarked), dict(txn.offsets)),
                )
                for known in cluster.coordinated.values()
                for txn in [known.txn]
            ],
            dict(cluster.group_offsets),
            len(cluster.unfinished),
            len(cluster.lagging),
        )
        for cluster in w.clusters.values()
    ]
    spark = [(q, q.closed, q.lanes, len(q.rows), [a.process for a in q.attempts.values()]) for q in w.queries]
    table = (w.table.exists, dict(w.table.folded), dict(w.table.holes))
    sent: Counter[str] = Counter()
    for event in w.scheduler.events:
        sender = getattr(event, "__self__", None)
        if isinstance(sender, Producer | BatchProducer):
            sent[sender.process.name] += len(sender)
    return (clusters, dict(w.leaders), spark, table, len(w.late), len(w._late), len(w.zombies)), sent


def world() -> World:
    return World(Watched(), partitions=2, records=1)


def run(departures: tuple[Departure, ...], watch: bool = False) -> tuple[dict[int, Move], Counter[str]]:
    """Run a schedule: its steps, if they are `watch`ed, and what it visited."""
    w = world()
    chooser = w.chooser
    assert isinstance(chooser, Watched)
    moves: dict[int, Move] = {}
    with w.living():
        w.start(*NAMES, *NAMES)
        todo = list(departures)
        more, began = True, w.scheduler.now
        while more or not w.copied():
            if todo and w.scheduler.steps >= todo[0][0]:
                _, number, name = todo.pop(0)
                disturbance = DISTURBANCES[number]
                chooser.script = {what: list(ways) for what, ways in disturbance.ends.items()}
                disturbance.befall(w, name)
                began = w.scheduler.now
            if more and w.copied():
                more = False
                for partition in (0, 1):
                    w.produce(partition, 2)
                _go_on(w)
            if w.scheduler.now > began + STILL_S:
                _go_on(w)
            step, before = w.scheduler.steps, outside(w) if watch else None
            chooser.ended.clear()
            if w.scheduler.now > 4000.0 or not w.scheduler.step():
                raise AssertionError(f"stuck: {w.delivered}")
            if before is not None:
                moves[step] = Move(w.scheduler.moved, tuple(chooser.ended), outside(w) != before, before[1])
        w.settle()
    return moves, w.states


def one_departure() -> Iterator[tuple[Departure, ...]]:
    for departure in _departures(run((), watch=True)[0], 1):
        yield (departure,)


def _departures(moves: dict[int, Move], first: int) -> list[Departure]:
    """All that make a difference, from step `first` on."""
    found: list[Departure] = []
    for number, disturbance in enumerate(DISTURBANCES):
        for name in NAMES:
            seen = True
            for step, move in moves.items():
                if step < first or not move.befallen(disturbance, name):
                    continue
                sends = not disturbance.ends or any(disturbance.concerns(p, name) for p in move.sent)
                if disturbance.of or (seen and sends):
                    found.append((step, number, name))
                seen = move.seen
    return sorted(found)


def pairs(stride: int = 1) -> Iterator[tuple[Departure, ...]]:
    """Each `stride`-th of all pairs of departures."""
    number = 0
    length: int | None = None
    for (first,) in one_departure():
        # Which pairs a departure has is known only by running it: where none of them is wanted, it has as
        # many as the one before.
        if length is None or (number + length) // stride > number // stride:
            seconds = _departures(run((first,), watch=True)[0], first[0])
            length = len(seconds)
            yield from ((first, second) for i, second in enumerate(seconds, number + 1) if i % stride == 0)
        number += length
