"""What a link takes that is spread over many executors, reckoned from what was measured of small ones. Pure;
measures nothing.

Both applications rest after work, so what they do comes in turns: a lane of the replicator cuts a frame of
each partition that had records since its last turn, a delivery commits what came since its last transaction.
The more turns, the more of both there are. A longer turn has more in it. So a link that is short of CPU does
less for each record, and records wait longer: the model takes the shortest turns that there is CPU for. What
no longer turn helps against is what each byte costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

SIZES = (100, 200, 1_000, 10_000, 100_000)
WHOLE_US = {
    "replicator": (0.048, 0.101, 0.462, 3.94, 38.4),
    "deduplicator": (0.071, 0.132, 0.555, 5.04, 48.6),
    "source": (0.016, 0.057, 0.194, 1.62, 16.1),
    "target": (0.174, 0.346, 1.30, 11.8, 108.0),
}
"""CPU in µs of a record whose value has so many bytes, where the source's batches are handed on whole, with
frames and transactions as they are then; "target" of one replica. Medians of bench/results.json, shapes
100B-4p to 100KB-4p."""
SMALL_SIZES = (200, 1_000)
SMALL_US = {
    "replicator": (0.621, 2.16),
    "deduplicator": (0.636, 2.46),
    "source": (0.062, 0.254),
    "target": (0.476, 1.70),
}
"""The same for source batches of 16 KiB: shapes 200B-4p-in-16KiB and 1KB-4p-in-16KiB."""
FOLLOWER = 1.0
"""What a follower takes for each second of the leader's: not measured, at most as much
(docs/operations/sizing.md)."""

IDLE = 0.01
"""Cores of a lane to which nothing comes: half of an idle link's (docs/operations/sizing.md, many links)."""
FRAME_S = {"replicator": 0.16e-3, "source": 0.22e-3}
"""CPU of a frame that is not full, of the replicator and of the source's brokers: `python -m bench.trickle
--partitions 1000` on 2026-11-29, with the producer's own request for the record in the second."""
TRANSACTION_S = {"deduplicator": 1.1e-3, "target": 1.9e-3}
"""CPU of a transaction with one partition: docs/internals/tuning.md; of the target's brokers, with the frame,
by their half core at 1,000 records/s over four partitions (docs/operations/sizing.md, little traffic)."""
PARTITION_S = {"deduplicator": 0.23e-3, "target": 0.40e-3}
"""CPU of each further partition of a transaction: its frame, its batch, its mapping, its marker. What shape
200B-100x10p took longer than 200B-4p, for each marker (bench/results.json)."""
TRANSACTION_TAKES_S, ELSEWHERE_S = 2.7e-3, 2.1e-3
"""How long a transaction with one partition takes, and what else a record waits for but turns
(docs/internals/tuning.md, a record's milliseconds)."""
PARTITION_TAKES_S = 2.6e-3
"""By how much each further partition lengthens a transaction. `bench.trickle --partitions 100` and `1000` on
2026-11-29: 100 transactions a second of one partition took 1.3 ms each, 540 of 1.7 partitions 3.1. The
machine was busier then: an upper bound."""
LEAST_TURN_S, MOST_TURN_S, BUSY_PER_S, MANY_TURN_S = 0.013, 0.025, 600.0, 0.1
MANY, MANY_BYTES = 1000, 768 << 10
"""A replicator's lane: replicator/lane/batching_delay.py, replicator/lane/lane.py."""
LEAST_REST_S, MOST_REST_S = 0.003, 0.025
"""A delivery: deduplicator/lane/delivery.py."""
FRAME_BYTES, MUCH_BYTES, MUCH_S, TRANSACTION_BYTES = 400 << 10, 256 << 10, 0.1, 16 << 20
FRAMES_AT_ONCE = 0.25 / PARTITION_S["deduplicator"]
"""When a frame is full and when a transaction is, which has a quarter of a second for all that goes in, and
how long one that has much waits for more (docs/internals/architecture.md, frames;
deduplicator/lane/transaction_linger.py)."""
STREAM_BYTES_S = 430e6
"""Of one partition, at least: shape 200B-1p, which CPU limited."""

FOLD_S, FOLD_MAPPING_S, FOLD_COMMIT, FOLD_LOOK_S, FOLD_MAPPINGS, FOLD_EVERY_S = (
    2.0, 0.068e-3, 200_000, 60.0, 100_000, 600.0,
)  # fmt: skip
"""CPU of a fold, and of each mapping in it (docs/internals/tuning.md, folds); mappings of a commit; how often
it is looked whether one is due, and when one is (deduplicator/main.py)."""

ANSWER_S, PLAN_S, LEFT_S = 2 * 8e-6, 33e-6, 3e-6
"""CPU of the driver for each partition of a plan: the source's topics listed and described
(replicator/lane/topic_id_check.py), the replicator's plan, what deduplicator's lanes leave. The last two, and
those that follow, are of loops over the functions alone (docs/internals/tuning.md, many partitions)."""
ORIGIN_S, ORIGIN_BYTES, TOPIC_S, TOPIC_BYTES = 14e-6, 129, 75e-6, 2_540
"""Of the control topic, which each lane reads as its epoch begins: a partition's record, a topic's two."""
TAKEN_S = 9e-6
"""CPU of a lane for each partition of its plan."""
MAPPING_READ_S = 6e-6
"""CPU of whoever recovers a staging partition for each mapping, two thirds of it to decode it."""
BOUNDARY_S = 0.3
"""How long an epoch's boundary holds records up on a link of few partitions (docs/internals/tuning.md,
epochs)."""
FENCED_S = 0.045 / 8
"""A staging partition: eight of a lane connect and fence in 0.045 s (docs/internals/tuning.md)."""
START_S, EXECUTORS_START_S = 5.8, 18.9
"""Until a link of four partitions copies (bench/results.json), by itself and on an executor."""
CREATED_S = 4.9e-3
"""A broker makes a partition, of 10,000 (docs/internals/tuning.md, many destinations)."""
SETTLED_S = 25.0
"""At most, until the driver has seen and believes that slots are gone (common/app/role.py, LOOK_S;
common/spark/lane_count.py)."""

MOST_BUSY = 0.9
"""A part that is busier than this has queues of which nothing can be said."""
LONGEST_S = 10.0
"""Turns that would have to be longer count as too much."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """`busy`: partitions with traffic, which is the same for each. `records_per_s` in all, `size`: bytes of a
    value, taken as not compressed. `lanes`: of either application on each executor; both share its `cores`.
    `one_machine`: brokers share these too. `network`: bytes/s of a broker in each direction."""

    executors: int = 1
    cores: int = 2
    lanes: int = 2
    partitions: int = 4
    busy: int = 4
    topic_partitions: int = 10
    staging_partitions: int = 8
    records_per_s: float = 1_000.0
    size: int = 1_000
    small_batches: bool = False
    source_brokers: int = 1
    target_brokers: int = 1
    broker_cores: int = 2
    replicas: int = 1
    network: float = math.inf
    partition_takes_s: float = PARTITION_TAKES_S
    one_machine: bool = False

    @property
    def lanes_in_all(self) -> int:
        return self.executors * self.lanes

    @property
    def staging_busy(self) -> int:
        return min(self.staging_partitions, self.busy)

    def cost_us(self, of: str) -> float:
        """CPU of a record."""
        sizes, costs = (SMALL_SIZES, SMALL_US[of]) if self.small_batches else (SIZES, WHOLE_US[of])
        inside = min(max(self.size, sizes[0]), sizes[-1])
        return float(np.exp(np.interp(math.log(inside), np.log(sizes), np.log(costs)))) * self.size / inside


class Turns(NamedTuple):
    """How long the turn of a lane is, and one of a delivery, of which its transaction takes `transaction_s`.
    In a second: frames, and of these how many are not full; transactions, and the partitions that they move,
    each with a batch, a mapping and a marker of its own."""

    lane_s: float
    delivery_s: float
    transaction_s: float
    frames: float
    small_frames: float
    transactions: float
    moved: float


class Part(NamedTuple):
    """A part of a link, and the share of it that is in use: more than 1 is more than it can."""

    name: str
    used: float


class Steady(NamedTuple):
    """Of traffic that comes evenly. `limit`: the part that is most in use; turns are as short as keeps it at
    MOST_BUSY. `fold`: the share of a core that folds take. Latencies are None where more comes
    than is copied."""

    turns: Turns
    cores: dict[str, float]
    limit: Part
    fold: float
    p50_s: float | None
    p99_s: float | None


def _least(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The least number of which it holds, as of all greater ones; `high` where of none in between."""
    if holds(low):
        return low
    for _ in range(34):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _once(on_average: float) -> float:
    """How much comes in a turn of what comes evenly, and counts once however often it comes."""
    return min(1.0, on_average)


def turns(link: Link, least_s: float = 0.0) -> Turns:
    """Turns as they are where there is CPU to spare, but none shorter than `least_s`."""
    bytes_s, staging = link.records_per_s * link.size, link.staging_busy
    of_lane, of_partition = link.records_per_s / link.lanes_in_all, link.records_per_s / link.busy
    many = max(of_lane / MANY, of_lane * link.size / MANY_BYTES) * LEAST_TURN_S >= 1

    def lane_needs(length: float) -> float:
        small = link.busy / link.lanes_in_all * _once(of_partition * length)
        work = small * FRAME_S["replicator"] + of_lane * length * link.cost_us("replicator") / 1e6
        least = LEAST_TURN_S * min(1.0, of_lane / BUSY_PER_S)
        return work + (MANY_TURN_S if many else min(MOST_TURN_S, max(least, 3 * work)))

    lane_s = max(least_s, _least(lambda length: lane_needs(length) <= length, 1e-4, 3600.0))
    full = bytes_s / FRAME_BYTES
    frames = max(full, link.busy / lane_s * _once(of_partition * lane_s))

    def transaction_takes(length: float) -> float:
        moved = link.busy / staging * _once(frames / link.busy * length)
        return TRANSACTION_TAKES_S + link.partition_takes_s * max(0.0, moved - 1)

    def delivery_needs(length: float) -> float:
        took = transaction_takes(length)
        if bytes_s / staging * MUCH_S >= MUCH_BYTES:
            return max(MUCH_S, took)
        return took + min(MOST_REST_S, max(LEAST_REST_S, took))

    by_itself_s = _least(lambda length: delivery_needs(length) <= length, 1e-4, 3600.0)
    delivery_s = max(least_s, by_itself_s)
    transactions = max(
        staging / delivery_s * _once(frames / staging * delivery_s), bytes_s / TRANSACTION_BYTES
    )
    return Turns(
        lane_s,
        delivery_s,
        delivery_s - by_itself_s + transaction_takes(by_itself_s),
        frames,
        frames - full,
        transactions,
        max(transactions, link.busy / delivery_s * _once(frames / link.busy * delivery_s)),
    )


def _whole(link: Link) -> Turns:
    """Of a backlog all frames are full, and what these cost is in what records do."""
    bytes_s = link.records_per_s * link.size
    full, transactions = bytes_s / FRAME_BYTES, max(bytes_s / TRANSACTION_BYTES, 1e-9)
    few = min(link.busy * transactions / link.staging_busy, full)
    return Turns(MANY_TURN_S, MUCH_S, MUCH_S, full, 0.0, transactions, max(few, transactions))


def cores(link: Link, of: Turns) -> dict[str, float]:
    """CPU by application and by cluster, but for what idle lanes take."""
    further = of.moved - of.transactions
    copies = 1 + FOLLOWER * (link.replicas - 1)
    found = {name: link.records_per_s * link.cost_us(name) / 1e6 for name in WHOLE_US}
    for name, cost in FRAME_S.items():
        found[name] += of.small_frames * cost
    for name, cost in TRANSACTION_S.items():
        found[name] += of.transactions * cost + further * PARTITION_S[name]
    found["target"] *= copies
    return found


def parts(link: Link, of_turns: Turns) -> list[Part]:
    """What may be in use, and how much of it is."""
    found = cores(link, of_turns)
    bytes_s, lanes = link.records_per_s * link.size, link.lanes_in_all
    idle = 2 * IDLE * lanes
    staging = link.staging_busy
    of = [
        Part(
            "executors' CPU",
            (found["replicator"] + found["deduplicator"] + idle) / (link.executors * link.cores),
        ),
        Part("a replicator lane's thread", found["replicator"] / link.busy * math.ceil(link.busy / lanes)),
        Part("a deduplicator lane's thread", found["deduplicator"] / staging * math.ceil(staging / lanes)),
        Part("source brokers' CPU", found["source"] / (link.source_brokers * link.broker_cores)),
        Part("target brokers' CPU", found["target"] / (link.target_brokers * link.broker_cores)),
        Part("source brokers' network", bytes_s / (link.source_brokers * link.network)),
        # Staging and destination, to leader and followers; out of it to these, and to the deduplicator.
        Part("target brokers' network", 2 * bytes_s * link.replicas / (link.target_brokers * link.network)),
        Part("a staging partition's stream", bytes_s / staging / STREAM_BYTES_S),
        Part("a delivery's turns", of_turns.small_frames / staging * of_turns.delivery_s / FRAMES_AT_ONCE),
    ]
    if link.one_machine:
        of = [Part("the machine's CPU", (sum(found.values()) + idle) / link.cores), *of[1:3], *of[-2:]]
    return of


def fold_needs(moved: float) -> float:
    """The share of one core that folds take, of so many mappings a second."""
    if not moved:
        return 0.0
    due_s = min(FOLD_EVERY_S, max(FOLD_LOOK_S, FOLD_MAPPINGS / moved))
    mappings = moved * due_s
    return (max(1.0, mappings / FOLD_COMMIT) * FOLD_S + mappings * FOLD_MAPPING_S) / due_s


def most_used(link: Link, of: Turns) -> Part:
    return max(parts(link, of), key=lambda part: part.used)


def steady(link: Link) -> Steady:
    """What becomes of traffic that comes evenly."""
    shortest = _least(lambda length: most_used(link, turns(link, length)).used <= MOST_BUSY, 1e-4, LONGEST_S)
    of = turns(link, shortest)
    found, limit, fold = cores(link, of), most_used(link, of), fold_needs(of.moved)
    if limit.used > MOST_BUSY * 1.001:
        return Steady(of, found, limit, fold, None, None)
    # Frames of one lane come together, and a delivery whose turns are shorter is ready for them.
    feeds = min(link.lanes_in_all, math.ceil(link.busy / link.staging_busy))
    comes = _once(of.frames / link.staging_busy * of.delivery_s)
    waits = of.delivery_s * comes if feeds * of.delivery_s > of.lane_s else 0.0
    p50_s = of.lane_s / 2 + ELSEWHERE_S + waits / 2 + of.transaction_s
    p99_s = of.lane_s + ELSEWHERE_S + waits + 2 * of.transaction_s
    return Steady(of, found, limit, fold, p50_s, p99_s)


def catching_up(link: Link) -> tuple[float, Part]:
    """Records a second of a backlog in all busy partitions, and what limits them."""

    def at(records_per_s: float) -> Part:
        tried = replace(link, records_per_s=records_per_s)
        return most_used(tried, _whole(tried))

    most = _least(lambda rate: at(rate).used >= 1.0, 1.0, 1e12)
    return most, at(most)


def boundary_s(link: Link) -> float:
    """How long records wait where an epoch ends, once an hour, for whichever application is the longer."""
    lanes = link.lanes_in_all
    topics = link.partitions / link.topic_partitions
    records_s = link.partitions * ORIGIN_S + topics * TOPIC_S
    sent_s = lanes * (link.partitions * ORIGIN_BYTES + topics * TOPIC_BYTES) / link.network
    control_s = max(records_s, sent_s)
    # Each lane says where each of its partitions stands.
    says_s = link.partitions / lanes * (TAKEN_S + FRAME_S["replicator"])
    replicator_s = link.partitions * (ANSWER_S + PLAN_S) + control_s + says_s
    fences_s = math.ceil(link.staging_partitions / lanes) * FENCED_S
    return BOUNDARY_S + max(replicator_s, link.partitions * LEFT_S + control_s + fences_s)


def start_s(link: Link) -> float:
    """Until a new link copies, its destinations made."""
    made_s = link.partitions * link.replicas * CREATED_S / link.target_brokers
    return (START_S if link.one_machine else EXECUTORS_START_S) + made_s + boundary_s(link) - BOUNDARY_S


def lost_s(link: Link, moved: float) -> float:
    """How long the partitions of one of several executors wait after it is lost, where no slot is free. What
    was moved since the last fold is read from the mappings, by whoever has their staging partitions next."""
    since_s = min(FOLD_EVERY_S, max(FOLD_LOOK_S, FOLD_MAPPINGS / moved)) if moved else 0.0
    each = moved * since_s / link.staging_partitions * MAPPING_READ_S
    lost = math.ceil(link.staging_partitions / link.executors)
    return SETTLED_S + boundary_s(link) + math.ceil(lost / (link.lanes_in_all - link.lanes)) * each
